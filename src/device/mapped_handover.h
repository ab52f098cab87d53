#ifndef SLACKWATER_DEVICE_MAPPED_HANDOVER_H_
#define SLACKWATER_DEVICE_MAPPED_HANDOVER_H_

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "device/memory_ledger.h"
#include "slackwater/device/handover.h"

namespace slackwater::device {

// Pages of host memory that have left one mapping and have not come to another: what moves are
// entries of page tables.
//
// Invariants: as Handover; each piece is readable and writable, and one area of the kernel's.
// Ownership: as Handover; shares the ledger.
// Threads: as Handover.
// Errors: as Handover.
class MappedHandover final : public Handover {
 public:
  MappedHandover(std::shared_ptr<MemoryLedger> ledger, MemoryKind kind)
      : ledger_(std::move(ledger)), kind_(kind) {}
  ~MappedHandover() override { give_back(); }

  std::size_t kept_bytes() const override { return kept_bytes_; }
  bool is_for(const MemoryLedger& ledger, MemoryKind kind) const {
    return &ledger == ledger_.get() && kind == kind_;
  }

  // Takes memory out of [first, first + bytes), which is readable and writable, and says how much
  // of it: the rest is still there. The addresses stay the caller's, who makes them inaccessible;
  // what is charged for kept bytes is charged for them here.
  std::size_t keep(std::byte* first, std::size_t bytes, std::size_t grain_bytes);
  // Puts up to `bytes` of what is kept at `first`, where addresses are reserved, and says how many:
  // these are the caller's, and so is what is charged for them. Fewer than there were only where
  // the system refuses; nothing is kept any more then.
  std::size_t take(std::byte* first, std::size_t bytes);

 private:
  struct Piece {
    std::byte* first = nullptr;
    std::size_t bytes = 0;
  };

  void give_back();

  const std::shared_ptr<MemoryLedger> ledger_;
  const MemoryKind kind_;
  std::vector<Piece> pieces_;
  std::size_t kept_bytes_ = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_MAPPED_HANDOVER_H_
