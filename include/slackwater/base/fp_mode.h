#ifndef SLACKWATER_BASE_FP_MODE_H_
#define SLACKWATER_BASE_FP_MODE_H_

#include <cstdint>

namespace slackwater {

// Puts the calling thread into the one floating-point mode the numerics are written for, and
// gives the caller's mode back when it goes out of scope.
//
// The mode: round to nearest even; flush-to-zero and denormals-are-zero off; exceptions masked.
// A host process may run in another mode (audio code sets flush-to-zero, interval arithmetic
// rounds upward); its bits must not differ from anyone else's.
//
// Use it in a function that reaches the arithmetic through a call that is not inlined: a
// compiler may move arithmetic across a mode change inside one function.
//
// Invariants:
//   I1  between construction and destruction the thread's mode is the fixed one.
//   I2  after destruction control bits are as before; sticky status flags are as before too.
// Ownership: the thread's control register, for the scope.
// Threads: acts on the calling thread only; not movable.
// Errors: none.
// Cost: one register read and at most two writes, some 10 ns.
class FpModeGuard {
 public:
  FpModeGuard();
  ~FpModeGuard();
  FpModeGuard(const FpModeGuard&) = delete;
  FpModeGuard& operator=(const FpModeGuard&) = delete;

 private:
  std::uint64_t saved_;
};

}  // namespace slackwater

#endif  // SLACKWATER_BASE_FP_MODE_H_
