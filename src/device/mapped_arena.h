#ifndef SLACKWATER_DEVICE_MAPPED_ARENA_H_
#define SLACKWATER_DEVICE_MAPPED_ARENA_H_

#include <cstddef>
#include <memory>
#include <utility>

#include "device/memory_ledger.h"
#include "slackwater/base/error.h"
#include "slackwater/device/arena.h"

namespace slackwater::device {

class MappedHandover;

// An arena of host memory: one anonymous mapping, of which pages past the committed part are
// inaccessible, so that a late access is a fault and not a stranger's bytes.
//
// Invariants: as Arena.
// Ownership: owns the mapping; shares the ledger, so that memory which late I/O keeps alive may
// outlive its device.
// Threads: as Arena.
// Errors: as Arena.
class MappedArena final : public Arena {
 public:
  static Result<std::unique_ptr<Arena>> reserve(std::shared_ptr<MemoryLedger> ledger,
                                                MemoryKind kind, std::size_t bytes,
                                                std::size_t grain_bytes);
  ~MappedArena() override;

  std::byte* base() const override { return base_; }
  std::size_t reserved_bytes() const override { return reserved_; }
  std::size_t committed_bytes() const override { return committed_; }
  std::size_t grain_bytes() const override { return grain_; }

 private:
  MappedArena(std::shared_ptr<MemoryLedger> ledger, MemoryKind kind)
      : ledger_(std::move(ledger)), kind_(kind) {}
  Result<void> resize_now(std::size_t bytes, Handover* handover) override;
  Result<void> commit(std::size_t end, MappedHandover* handover);
  Result<void> commit_fresh(std::size_t end);
  void decommit(std::size_t end, MappedHandover* handover);

  const std::shared_ptr<MemoryLedger> ledger_;
  const MemoryKind kind_;
  void* mapping_ = nullptr;  // as mmap gave it, before alignment
  std::size_t mapping_bytes_ = 0;
  std::byte* base_ = nullptr;
  std::size_t reserved_ = 0;
  std::size_t committed_ = 0;
  std::size_t grain_ = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_MAPPED_ARENA_H_
