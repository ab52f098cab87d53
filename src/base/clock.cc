#include "slackwater/base/clock.h"

#include <limits>
#include <thread>

namespace slackwater {
namespace {

// The sum, or the end of time where it lies beyond.
std::int64_t saturating_add(std::int64_t now_ns, std::int64_t duration_ns) {
  std::int64_t sum = 0;
  if (!__builtin_add_overflow(now_ns, duration_ns, &sum)) return sum;
  return std::numeric_limits<std::int64_t>::max();
}

}  // namespace

Nanoseconds RealClock::now() const {
  return std::chrono::duration_cast<Nanoseconds>(
      std::chrono::steady_clock::now().time_since_epoch());
}

void RealClock::sleep_for(Nanoseconds duration) {
  if (duration <= Nanoseconds{0}) return;
  // sleep_for() of the library may wake early by the kernel's clock; only now() decides.
  const Nanoseconds end{saturating_add(now().count(), duration.count())};
  for (Nanoseconds left = duration; left > Nanoseconds{0}; left = end - now()) {
    std::this_thread::sleep_for(left);
  }
}

Nanoseconds VirtualClock::now() const {
  return Nanoseconds{now_ns_.load(std::memory_order_acquire)};
}

void VirtualClock::sleep_for(Nanoseconds duration) {
  if (duration <= Nanoseconds{0}) return;
  std::int64_t now_ns = now_ns_.load(std::memory_order_relaxed);
  // Not fetch_add: past the end of time it would wrap, and time would go back.
  while (!now_ns_.compare_exchange_weak(now_ns, saturating_add(now_ns, duration.count()),
                                        std::memory_order_acq_rel, std::memory_order_relaxed)) {
  }
}

}  // namespace slackwater
