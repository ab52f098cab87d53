#ifndef SLACKWATER_DEVICE_MEMORY_LEDGER_H_
#define SLACKWATER_DEVICE_MEMORY_LEDGER_H_

#include <array>
#include <cstddef>
#include <mutex>

#include "slackwater/base/error.h"
#include "slackwater/device/device.h"

namespace slackwater::device {

// Committed bytes and budgets by kind of memory, for one device.
//
// Invariants:
//   I1  charge() never takes a kind beyond its budget; a lowered budget refuses until enough was
//       given back.
// Threads: any.
// Errors: kResourceExhausted; nothing is charged then.
class MemoryLedger {
 public:
  Result<void> charge(MemoryKind kind, std::size_t bytes);
  void give_back(MemoryKind kind, std::size_t bytes);
  void set_budget(MemoryKind kind, std::size_t bytes);
  MemoryUsage usage(MemoryKind kind) const;

 private:
  mutable std::mutex mutex_;
  std::array<MemoryUsage, kNumMemoryKinds> usage_ = {};
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_MEMORY_LEDGER_H_
