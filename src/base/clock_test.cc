#include "slackwater/base/clock.h"

#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"

namespace slackwater {
namespace {

using std::chrono::milliseconds;

TEST(VirtualClock, MovesOnlyWhenTold) {
  VirtualClock clock(Nanoseconds{100});
  EXPECT_EQ(clock.now(), Nanoseconds{100});
  EXPECT_EQ(clock.now(), Nanoseconds{100});
  clock.sleep_for(milliseconds{3});
  EXPECT_EQ(clock.now(), Nanoseconds{3'000'100});
  clock.advance(Nanoseconds{1});
  EXPECT_EQ(clock.now(), Nanoseconds{3'000'101});
}

TEST(VirtualClock, NeverGoesBack) {
  VirtualClock clock(Nanoseconds{50});
  clock.sleep_for(Nanoseconds{-20});
  clock.advance(Nanoseconds::min());
  clock.sleep_for(Nanoseconds{0});
  EXPECT_EQ(clock.now(), Nanoseconds{50});
}

TEST(VirtualClock, StopsAtTheEndOfTimeInsteadOfWrapping) {
  VirtualClock clock(Nanoseconds{50});
  clock.advance(Nanoseconds::max());
  EXPECT_EQ(clock.now(), Nanoseconds::max());
  clock.advance(Nanoseconds{1});
  EXPECT_EQ(clock.now(), Nanoseconds::max());
}

// Long enough that the writers meet on any machine with two cores.
TEST(VirtualClockThreads, LosesNoAdvanceAndGoesBackForNoOne) {
  constexpr int kAdvances = 300'000;
  VirtualClock clock;
  bool went_back = false;
  ThreadPool pool(3);
  pool.run([&](int worker) {
    Nanoseconds last{0};
    for (int i = 0; i < kAdvances; ++i) {
      if (worker == 0) clock.advance(Nanoseconds{5});
      if (worker == 1) clock.sleep_for(Nanoseconds{3});
      if (worker == 2) went_back = went_back || clock.now() < last;
      if (worker == 2) last = clock.now();
    }
  });
  EXPECT_EQ(clock.now(), Nanoseconds{std::int64_t{kAdvances} * 8});
  EXPECT_FALSE(went_back);
}

TEST(RealClock, DoesNotGoBack) {
  const RealClock clock;
  Nanoseconds last = clock.now();
  for (int i = 0; i < 100'000; ++i) {
    const Nanoseconds now = clock.now();
    ASSERT_GE(now, last);
    last = now;
  }
}

TEST(RealClock, SleepsAtLeastAsLongAsAsked) {
  RealClock clock;
  for (const Nanoseconds duration : {Nanoseconds{1}, Nanoseconds{70'000}, Nanoseconds{3'000'000}}) {
    const Nanoseconds before = clock.now();
    clock.sleep_for(duration);
    EXPECT_GE(clock.now() - before, duration);
  }
}

TEST(RealClock, NegativeDurationsReturn) {
  RealClock clock;
  clock.sleep_for(Nanoseconds{-1});
  clock.sleep_for(Nanoseconds::min());
  Clock& base = clock;
  EXPECT_GT(base.now(), Nanoseconds{0});
}

}  // namespace
}  // namespace slackwater
