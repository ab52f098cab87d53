#ifndef SLACKWATER_STORAGE_POOL_GROUP_H_
#define SLACKWATER_STORAGE_POOL_GROUP_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/page_table.h"
#include "slackwater/device/device.h"
#include "slackwater/storage/slot_allocator.h"
#include "slackwater/storage/slot_layout.h"

namespace slackwater::storage {

struct PoolGroupOptions {
  std::string name;  // for error texts
  device::MemoryKind kind = device::MemoryKind::kDevice;
  SlotSizes slot_bytes;          // [pools]
  std::int64_t grain_bytes = 0;  // memory is committed in multiples of it
  std::int32_t max_slots = 0;    // address space is reserved for so many
};

// What a slot holds goes to another one, which may be written once `to.ready` is done; `moved` is
// done when it has arrived.
struct SlotMove {
  SlotId from;
  SlotGrant to;
  device::Event moved;
};

// Arrays of equal slots that share slot ids: slot s of one pool belongs to slot s of the others.
//
// Source: the pool groups of TensorRT-LLM's KV cache manager V2.
// Invariants (check_invariants):
//   I1  base addresses never change.
//   I2  every pool has memory for exactly num_slots() slots, rounded up to grains.
//   I3  those of its SlotAllocator.
// Ownership: owns the arenas and the slot numbers. The device outlives it.
// Threads: one thread at a time; work on streams may use occupied slots.
// Errors: kResourceExhausted where memory for a growth is not to be had, kOutOfRange beyond
// max_slots; nothing changes then.
// Cost: allocate and release as SlotAllocator; resizing commits or gives back memory.
class PoolGroup {
 public:
  static Result<std::unique_ptr<PoolGroup>> create(device::Device& device,
                                                   const PoolGroupOptions& options);

  std::optional<SlotGrant> allocate() { return slots_.allocate(); }
  void release(SlotId slot, const device::Event& last_use = {}) {
    if (slots_.release(slot, last_use)) poison(slot);
  }
  // Another use of an occupied slot, which whoever takes it after us has to wait for.
  void note_use(SlotId slot, const device::Event& event) { slots_.note_use(slot, event); }

  void set_tag(SlotId slot, std::int32_t tag) { slots_.set_tag(slot, tag); }

  const SlotAllocator& slots() const { return slots_; }
  std::int32_t num_slots() const { return slots_.capacity(); }
  std::int32_t num_free() const { return slots_.num_free(); }
  std::int32_t max_slots() const { return options_.max_slots; }
  std::int64_t committed_bytes() const;
  device::MemoryKind kind() const { return options_.kind; }
  const SlotSizes& slot_bytes() const { return options_.slot_bytes; }
  std::int64_t grain_bytes() const { return options_.grain_bytes; }
  const std::string& name() const { return options_.name; }

  // The bytes of a slot in one pool.
  std::byte* address(std::size_t pool, SlotId slot) const;
  // Where kernels find a buffer; without slots, which the caller's table names.
  PageTable view(const BufferPlacement& buffer, std::int32_t tokens_per_block) const;

  // Gives every pool memory for `num_slots` >= num_slots(), of `handover` first where there is one.
  // What new slots hold is undefined.
  Result<void> grow(std::int32_t num_slots, device::Handover* handover = nullptr);

  // Queues all the moves of a shrink, and says of each when it is done. No slot is in two of them.
  using MoveSlots = std::function<void(std::span<SlotMove> moves)>;

  // Takes memory away: occupied slots at and past `num_slots` are vacated by `move`, which is
  // called once where there are any, and waited for. kResourceExhausted unless enough slots below
  // `num_slots` are free; nothing is moved then. The memory goes to `handover` where there is one.
  Result<void> shrink(std::int32_t num_slots, const MoveSlots& move,
                      device::Handover* handover = nullptr);

  std::string describe() const;  // a line for people
  void check_invariants() const;

 private:
  PoolGroup(const PoolGroupOptions& options) : options_(options) {}
  // Fills a free slot with 0xDD, in builds with DCHECKs: what is read without having been written
  // shows.
  void poison(SlotId slot) const;
  Result<void> resize_arenas(std::int32_t num_slots, device::Handover* handover);
  std::size_t pool_bytes(std::size_t pool, std::int32_t num_slots) const;

  const PoolGroupOptions options_;
  std::vector<std::unique_ptr<device::Arena>> arenas_;  // [pools]
  SlotAllocator slots_;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_POOL_GROUP_H_
