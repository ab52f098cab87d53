#include "slackwater/base/clock.h"

#include <array>
#include <atomic>

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

// Two workers move the clock until they have got in each other's way often enough; a third looks.
TEST(VirtualClockThreads, LosesNoAdvanceAndGoesBackForNoOne) {
  constexpr int kMeetings = 2000;
  constexpr int kMaxAdvances = 1'000'000;  // Where they hardly meet: a busy or a single core.
  VirtualClock clock;
  std::atomic<int> meetings{0};
  std::array<std::int64_t, 3> moved_ns{};
  bool went_back = false;
  ThreadPool pool(3);
  pool.run([&](int worker) {
    const Nanoseconds move{worker == 2 ? 0 : 3 + 2 * worker};
    std::int64_t sum_ns = 0;
    Nanoseconds last{0};
    for (int i = 0; i < kMaxAdvances && meetings.load() < kMeetings; ++i) {
      const Nanoseconds before = clock.now();
      clock.sleep_for(move);
      const Nanoseconds after = clock.now();
      if (worker == 2) went_back = went_back || before < last || after < before;
      if (worker != 2 && after - before != move) meetings.fetch_add(1);
      sum_ns += move.count();
      last = after;
    }
    moved_ns.at(static_cast<std::size_t>(worker)) = sum_ns;
  });
  EXPECT_EQ(clock.now().count(), moved_ns[0] + moved_ns[1]);
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
