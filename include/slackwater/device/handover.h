#ifndef SLACKWATER_DEVICE_HANDOVER_H_
#define SLACKWATER_DEVICE_HANDOVER_H_

#include <cstddef>

namespace slackwater::device {

// Memory on its way from arenas that shrink to arenas that grow: as long as it lives, what the
// first give back is kept, and the others take that before they ask the system, which would clear
// it.
//
// Source: TensorRT-LLM's KV cache manager V2 (kvcm_v2.md 3.13) keeps the chunks that one pool gives
// back, maps them into the pools that gain, and frees the rest once an adjustment is done.
//
// Invariants:
//   I1  kept bytes count as committed; the destructor gives back what nobody has taken.
//   I2  kept memory lies at no address of an arena.
// Ownership: owns what is kept. Arenas may go before it, and it may outlive its device.
// Threads: one at a time, with the arenas that are resized with it.
// Errors: none: what cannot be kept goes back at once, as without a handover.
// Cost: three system calls where an arena shrinks and one per piece where one grows: about 50 us
// for 36 MiB, of which nothing is cleared or copied.
class Handover {
 public:
  virtual ~Handover() = default;
  Handover() = default;
  Handover(const Handover&) = delete;
  Handover& operator=(const Handover&) = delete;

  virtual std::size_t kept_bytes() const = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_HANDOVER_H_
