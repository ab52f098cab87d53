#ifndef SLACKWATER_STORAGE_STAGING_H_
#define SLACKWATER_STORAGE_STAGING_H_

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/device/device.h"

namespace slackwater::storage {

// One part of the staging memory.
struct StagingMemory {
  std::unique_ptr<device::Arena> arena;
  std::atomic<bool> is_given_up{false};

  std::span<std::byte> bytes() const { return {arena->base(), arena->committed_bytes()}; }
};

// Memory between disk and everything else: a few parts, used in turn.
//
// A part carries the event of its last use; whoever takes it waits for that on a stream. When the
// disk does not answer, a part is given up: the disk may still write to it, so nobody uses it
// again, and its memory lives as long as the request does.
//
// Invariants:
//   I1  a part is handed out again only after the event it was given back with.
// Ownership: shares each part's memory with the transfers on it.
// Threads: one caller; give_up() may be called on any thread.
// Errors: prepare() gives kResourceExhausted where a part that was given up cannot be replaced.
class Staging {
 public:
  // A part in use until done().
  class Part {
   public:
    const std::shared_ptr<StagingMemory>& memory() const { return memory_; }
    const device::Event& ready() const { return *last_use_; }
    void done(const device::Event& event) { *last_use_ = event; }

   private:
    friend class Staging;
    std::shared_ptr<StagingMemory> memory_;
    device::Event* last_use_ = nullptr;
  };

  static Result<std::unique_ptr<Staging>> create(device::Device& device, std::size_t num_parts,
                                                 std::size_t part_bytes);

  std::size_t part_bytes() const { return part_bytes_; }

  // Replaces what was given up. Before taking parts for a batch that must not fail.
  Result<void> prepare();
  // The next part. It may have been given up meanwhile: the work that finds it so fails.
  Part take();

 private:
  struct Slot {
    std::shared_ptr<StagingMemory> memory;
    device::Event last_use;
  };

  Staging(device::Device& device, std::size_t part_bytes)
      : device_(device), part_bytes_(part_bytes) {}
  Result<std::shared_ptr<StagingMemory>> make_memory();
  Result<void> replace_given_up();

  device::Device& device_;
  const std::size_t part_bytes_;
  std::vector<Slot> slots_;
  std::size_t next_ = 0;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_STAGING_H_
