#ifndef SLACKWATER_BASE_CLOCK_H_
#define SLACKWATER_BASE_CLOCK_H_

#include <atomic>
#include <chrono>
#include <cstdint>

namespace slackwater {

// Nanoseconds since an arbitrary start. Never goes back.
using Nanoseconds = std::chrono::nanoseconds;

// Where time comes from, so that whatever waits or measures can run in simulated time.
//
// Invariants:
//   I1  now() never decreases.
// Threads: all members may be called from any thread.
// Errors: none.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual Nanoseconds now() const = 0;
  // Returns once now() has advanced by at least `duration`. Negative durations return at once.
  virtual void sleep_for(Nanoseconds duration) = 0;
};

// The machine's monotonic clock.
class RealClock final : public Clock {
 public:
  Nanoseconds now() const override;
  void sleep_for(Nanoseconds duration) override;
};

// Time that passes only when told to: sleep_for() and advance() move it, nothing else does.
class VirtualClock final : public Clock {
 public:
  explicit VirtualClock(Nanoseconds start = Nanoseconds{0}) : now_ns_(start.count()) {}

  Nanoseconds now() const override;
  void sleep_for(Nanoseconds duration) override;
  void advance(Nanoseconds duration) { sleep_for(duration); }

 private:
  std::atomic<std::int64_t> now_ns_;
};

}  // namespace slackwater

#endif  // SLACKWATER_BASE_CLOCK_H_
