#ifndef SLACKWATER_DEVICE_ARENA_H_
#define SLACKWATER_DEVICE_ARENA_H_

#include <cstddef>

#include "slackwater/base/error.h"
#include "slackwater/device/handover.h"

namespace slackwater::device {

// A range of addresses of which a growing and shrinking front part is backed by memory.
//
// Source: the pools of TensorRT-LLM's KV cache manager V2 (kvcm_v2.md 3.13): reserve address
// space once, map and unmap physical memory by grain, never move.
//
// Invariants:
//   I1  base() never changes; it is a multiple of grain_bytes().
//   I2  [base, base + committed_bytes) is readable and writable, the rest is neither;
//       committed_bytes is a multiple of grain_bytes and at most reserved_bytes.
//   I3  bytes that stay committed keep their contents; bytes committed anew are zero, or left over
//       from an arena that was made smaller with the same handover.
//   I4  committed bytes count against the device's budget for the arena's kind of memory.
// Ownership: owns addresses and memory; both go back in the destructor. The device outlives it.
// Threads: one thread at a time resizes. Work on streams may use bytes that stay committed.
// Errors: kResourceExhausted when the budget or the system has no room, kOutOfRange beyond the
// reservation; nothing changes then.
// Cost: resize() is a system call and, when growing, 0.1 ms per MiB for the first touch of what no
// handover has kept.
class Arena {
 public:
  virtual ~Arena() = default;
  Arena() = default;
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  virtual std::byte* base() const = 0;
  virtual std::size_t reserved_bytes() const = 0;
  virtual std::size_t committed_bytes() const = 0;
  virtual std::size_t grain_bytes() const = 0;

  // Backs the first `bytes`, rounded up to a grain. Nobody may touch bytes past it any more:
  // work queued on them has ended. What is taken away goes to `handover`, and what is added comes
  // from there as far as it has any. CHECK: it is of the same device and kind of memory.
  Result<void> resize(std::size_t bytes, Handover* handover = nullptr) {
    return resize_now(bytes, handover);
  }

 private:
  virtual Result<void> resize_now(std::size_t bytes, Handover* handover) = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_ARENA_H_
