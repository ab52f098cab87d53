#include "slackwater/base/thread_pool.h"
#include "testing/allocation_counter.h"

#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/core.h>
#include <gtest/gtest.h>

namespace slackwater {
namespace {

constexpr std::int64_t kMax64 = std::numeric_limits<std::int64_t>::max();

TEST(SplitItems, CoversEveryItemOnceInOrder) {
  for (const std::int64_t num_items : {0, 1, 2, 3, 7, 8, 9, 63, 64, 65, 500, 1'000'003}) {
    for (const int num_workers : {1, 2, 3, 5, 7, 8, 64, 255}) {
      std::int64_t end_before = 0;
      for (int worker = 0; worker < num_workers; ++worker) {
        const ItemRange range = split_items(num_items, worker, num_workers);
        ASSERT_EQ(range.begin, end_before) << num_items << " over " << num_workers;
        const std::int64_t size = range.end - range.begin;
        ASSERT_GE(size, num_items / num_workers) << num_items << " over " << num_workers;
        ASSERT_LE(size, (num_items + num_workers - 1) / num_workers);
        end_before = range.end;
      }
      ASSERT_EQ(end_before, num_items) << num_items << " over " << num_workers;
    }
  }
}

TEST(SplitItems, IsTheFloorOfTheExactQuotient) {
  for (const std::int64_t num_items : {5, 13, 100, 12'345}) {
    for (const int num_workers : {1, 3, 8, 11}) {
      for (int worker = 0; worker < num_workers; ++worker) {
        const ItemRange range = split_items(num_items, worker, num_workers);
        EXPECT_EQ(range.begin, num_items * worker / num_workers);
        EXPECT_EQ(range.end, num_items * (worker + 1) / num_workers);
      }
    }
  }
}

TEST(SplitItems, DoesNotOverflow) {
  static_assert(split_items(kMax64, 0, 8).begin == 0);
  static_assert(split_items(kMax64, 7, 8).end == kMax64);
  static_assert(split_items(kMax64, 0, 2).end == split_items(kMax64, 1, 2).begin);
  static_assert(split_items(kMax64, 0, 2).end == kMax64 / 2);
}

// Calls of a worker, on a line of its own so that the counts may be plain.
struct alignas(64) Calls {
  std::int64_t count = 0;
};

class ThreadPoolThreads : public testing::TestWithParam<int> {
 protected:
  int num_threads() const { return GetParam(); }
  std::size_t num_workers() const { return static_cast<std::size_t>(GetParam()); }

  void expect_all(std::int64_t count) const {
    for (std::size_t worker = 0; worker < num_workers(); ++worker) {
      ASSERT_EQ(calls_[worker].count, count) << "worker " << worker;
    }
  }

  void count_call(int worker) { ++calls_.at(static_cast<std::size_t>(worker)).count; }

  std::vector<Calls> calls_ = std::vector<Calls>(num_workers());
};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolThreads, testing::Values(1, 2, 3, 8));

TEST_P(ThreadPoolThreads, KnowsItsSizeAndEndsUnused) {
  const ThreadPool pool(num_threads());
  EXPECT_EQ(pool.num_threads(), num_threads());
}

TEST_P(ThreadPoolThreads, RunsEveryWorkerOnceOutsideAStep) {
  ThreadPool pool(num_threads());
  for (int region = 1; region <= 300; ++region) {
    pool.run([&](int worker) { count_call(worker); });
    expect_all(region);
  }
}

TEST_P(ThreadPoolThreads, RunsEveryWorkerOnceWithinAStep) {
  ThreadPool pool(num_threads());
  const ThreadPool::Step step(pool);
  for (int region = 1; region <= 3000; ++region) {
    pool.run([&](int worker) { count_call(worker); });
    expect_all(region);
  }
}

TEST_P(ThreadPoolThreads, RunsEachWorkerOnAThreadOfItsOwn) {
  ThreadPool pool(num_threads());
  std::vector<std::thread::id> first(num_workers());
  std::vector<std::thread::id> second(num_workers());
  const auto note = [](std::vector<std::thread::id>& ids) {
    return
        [&ids](int worker) { ids[static_cast<std::size_t>(worker)] = std::this_thread::get_id(); };
  };
  pool.run(note(first));
  {
    const ThreadPool::Step step(pool);
    pool.run(note(second));
  }
  EXPECT_EQ(first, second) << "a worker keeps its thread";
  EXPECT_EQ(first[0], std::this_thread::get_id()) << "worker 0 is the caller";
  std::sort(first.begin(), first.end());
  EXPECT_EQ(std::adjacent_find(first.begin(), first.end()), first.end());
}

// Steps begin and end with none, one or a few regions in them and between them, with pauses in
// which workers go to sleep or do not quite: a lost wake-up hangs here.
TEST_P(ThreadPoolThreads, SurvivesEveryTransitionBetweenStepAndPark) {
  ThreadPool pool(num_threads());
  std::int64_t regions = 0;
  const auto run_regions = [&](int count) {
    for (int i = 0; i < count; ++i) {
      pool.run([&](int worker) { count_call(worker); });
      ++regions;
    }
  };
  for (int round = 0; round < 400; ++round) {
    {
      const ThreadPool::Step step(pool);
      run_regions(round % 4);
    }
    if (round % 7 == 3) std::this_thread::sleep_for(std::chrono::microseconds(round % 5 * 30));
    run_regions(round / 4 % 3);
    if (round % 11 == 5) std::this_thread::yield();
  }
  expect_all(regions);
}

TEST_P(ThreadPoolThreads, StepsNest) {
  ThreadPool pool(num_threads());
  std::int64_t regions = 0;
  const auto run_one = [&] {
    pool.run([&](int worker) { count_call(worker); });
    expect_all(++regions);
  };
  for (int round = 0; round < 50; ++round) {
    const ThreadPool::Step outer(pool);
    run_one();
    {
      const ThreadPool::Step inner(pool);
      run_one();
    }
    run_one();
  }
  run_one();
}

// Plain memory both ways, different workers on one element in turn: TSan sees a missing order.
TEST_P(ThreadPoolThreads, MakesWritesVisibleInBothDirections) {
  ThreadPool pool(num_threads());
  constexpr int kRounds = 200;
  std::vector<std::int64_t> input(num_workers());
  std::vector<std::int64_t> output(num_workers());
  const auto run_round = [&](std::int64_t round) {
    std::iota(input.begin(), input.end(), round);
    pool.run([&](int worker) {
      const auto source = (static_cast<std::size_t>(worker) + 1) % num_workers();
      output[static_cast<std::size_t>(worker)] = input[source];
    });
    pool.run([&](int worker) {
      const auto source = (static_cast<std::size_t>(worker) + 1) % num_workers();
      input[static_cast<std::size_t>(worker)] = output[source] * 2;
    });
    for (std::size_t worker = 0; worker < num_workers(); ++worker) {
      const std::size_t origin = (worker + 2) % num_workers();
      ASSERT_EQ(input[worker], 2 * (round + static_cast<std::int64_t>(origin)));
    }
  };
  for (int round = 0; round < kRounds; ++round) {
    if (round % 2 == 0) {
      const ThreadPool::Step step(pool);
      run_round(round);
    } else {
      run_round(round);
    }
  }
}

TEST_P(ThreadPoolThreads, SharesItemsThatAddUp) {
  constexpr std::int64_t kItems = 100'003;
  ThreadPool pool(num_threads());
  std::vector<std::int64_t> sums(num_workers());
  pool.run([&](int worker) {
    const ItemRange range = split_items(kItems, worker, num_threads());
    std::int64_t sum = 0;
    for (std::int64_t item = range.begin; item < range.end; ++item) sum += item;
    sums[static_cast<std::size_t>(worker)] = sum;
  });
  EXPECT_EQ(std::accumulate(sums.begin(), sums.end(), std::int64_t{0}), kItems * (kItems - 1) / 2);
}

// The scheduler's letter for a thread of this process: R runs or could run, S sleeps.
char thread_state(pid_t thread_id) {
  std::ifstream file(fmt::format("/proc/self/task/{}/stat", thread_id));
  std::string line;
  std::getline(file, line);
  const std::size_t name_end = line.rfind(')');  // proc(5): the letter follows the name.
  return name_end + 2 < line.size() ? line[name_end + 2] : '?';
}

std::vector<pid_t> pool_thread_ids(ThreadPool& pool) {
  std::vector<pid_t> ids(static_cast<std::size_t>(pool.num_threads()));
  pool.run([&](int worker) { ids[static_cast<std::size_t>(worker)] = ::gettid(); });
  ids.erase(ids.begin());  // The caller.
  return ids;
}

// Whether all of the threads come to be in `state` at one time. The limit only ends a failure.
bool all_reach(const std::vector<pid_t>& ids, char state) {
  const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (std::chrono::steady_clock::now() < limit) {
    const auto is_there = [&](pid_t id) { return thread_state(id) == state; };
    if (std::all_of(ids.begin(), ids.end(), is_there)) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

TEST_P(ThreadPoolThreads, ParksOutsideAStepAndIsAwakeWithinOne) {
  ThreadPool pool(num_threads());
  const std::vector<pid_t> ids = pool_thread_ids(pool);
  EXPECT_TRUE(all_reach(ids, 'S')) << "after a region without a step";
  {
    const ThreadPool::Step outer(pool);
    EXPECT_TRUE(all_reach(ids, 'R')) << "when a step has begun, without a region";
    { const ThreadPool::Step inner(pool); }
    pool.run([](int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    EXPECT_TRUE(all_reach(ids, 'R')) << "long after a region and an inner step";
  }
  EXPECT_TRUE(all_reach(ids, 'S')) << "after the outer step";
}

// Worker 0 is done long before the others, and the others long before worker 0.
TEST_P(ThreadPoolThreads, WaitsForTheSlowestWorker) {
  ThreadPool pool(num_threads());
  for (int slow = 0; slow < num_threads(); ++slow) {
    pool.run([&](int worker) {
      if (worker == slow) std::this_thread::sleep_for(std::chrono::milliseconds(2));
      count_call(worker);
    });
    expect_all(slow + 1);
  }
}

TEST_P(ThreadPoolThreads, AllocatesNothingInARegion) {
  ThreadPool pool(num_threads());
  const auto run_both_ways = [&] {
    pool.run([&](int worker) { count_call(worker); });
    const ThreadPool::Step step(pool);
    pool.run([&](int worker) { count_call(worker); });
  };
  run_both_ways();
  const std::int64_t before = num_heap_allocations();
  for (int round = 0; round < 50; ++round) run_both_ways();
  EXPECT_EQ(num_heap_allocations() - before, 0);
  EXPECT_GT(before, 0) << "the counter does not count";
}

TEST_P(ThreadPoolThreads, CallsConstAndMutableCallablesInPlace) {
  ThreadPool pool(num_threads());
  const auto constant = [this](int worker) { count_call(worker); };
  pool.run(constant);
  std::atomic<int> total{0};
  struct Adder {
    std::atomic<int>& total;
    void operator()(int worker) { total.fetch_add(worker + 1, std::memory_order_relaxed); }
  } adder{total};
  pool.run(adder);
  expect_all(1);
  EXPECT_EQ(total.load(), num_threads() * (num_threads() + 1) / 2);
}

TEST(ThreadPoolManyThreads, PoolsComeAndGo) {
  std::atomic<int> calls{0};
  for (int round = 0; round < 60; ++round) {
    ThreadPool pool(1 + round % 4);
    if (round % 3 == 0) continue;  // Ends while its threads may not have begun.
    pool.run([&](int) { calls.fetch_add(1, std::memory_order_relaxed); });
  }
  int expected = 0;
  for (int round = 0; round < 60; ++round) expected += round % 3 == 0 ? 0 : 1 + round % 4;
  EXPECT_EQ(calls.load(), expected);
}

TEST(ThreadPoolManyThreads, PoolsSideBySideDoNotDisturbEachOther) {
  std::vector<std::thread> callers;
  std::vector<Calls> calls(6);
  for (std::size_t caller = 0; caller < 2; ++caller) {
    callers.emplace_back([caller, &calls] {
      ThreadPool pool(3);
      for (int round = 0; round < 100; ++round) {
        const ThreadPool::Step step(pool);
        pool.run([&](int worker) { ++calls[caller * 3 + static_cast<std::size_t>(worker)].count; });
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  for (const Calls& each : calls) EXPECT_EQ(each.count, 100);
}

TEST(ThreadPoolManyThreads, AnotherThreadMayTakeOverAsCaller) {
  ThreadPool pool(3);
  std::vector<Calls> calls(3);
  const auto count = [&](int worker) { ++calls[static_cast<std::size_t>(worker)].count; };
  pool.run(count);
  std::thread([&] {
    const ThreadPool::Step step(pool);
    pool.run(count);
  }).join();
  pool.run(count);
  for (const Calls& each : calls) EXPECT_EQ(each.count, 3);
}

// Not named Threads: a process that forks is not for ThreadSanitizer.
class ThreadPoolDeathTest : public testing::TestWithParam<int> {
 protected:
  void SetUp() override { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

INSTANTIATE_TEST_SUITE_P(Sizes, ThreadPoolDeathTest, testing::Values(1, 3));

TEST_P(ThreadPoolDeathTest, ARegionWithinARegionDies) {
  const auto nest_in = [&](int nesting_worker) {
    ThreadPool pool(GetParam());
    pool.run([&](int worker) {
      if (worker == nesting_worker) pool.run([](int) {});
    });
  };
  for (int worker = 0; worker < GetParam(); ++worker) {
    EXPECT_DEATH(nest_in(worker), "a region of [13] workers runs within a region");
  }
}

TEST_P(ThreadPoolDeathTest, AStepWithinARegionDies) {
  EXPECT_DEATH(
      {
        ThreadPool pool(GetParam());
        pool.run([&](int) { const ThreadPool::Step step(pool); });
      },
      "a step begins within a region");
}

TEST_P(ThreadPoolDeathTest, AThrowingFunctionEndsTheProcess) {
  const auto throw_in = [&](int throwing_worker) {
    ThreadPool pool(GetParam());
    pool.run([&](int worker) {
      if (worker == throwing_worker) throw std::runtime_error("thrown in a region");
    });
  };
  for (int worker = 0; worker < GetParam(); ++worker) {
    EXPECT_DEATH(
        {
          try {
            throw_in(worker);
          } catch (const std::runtime_error&) {
            std::exit(0);
          }
        },
        "thrown in a region");
  }
}

TEST(ThreadPoolSizeDeathTest, APoolWithoutThreadsDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(ThreadPool(0), "CHECK\\(num_threads >= 1\\) failed: 0 threads");
}

TEST(ThreadPoolSizeDeathTest, APoolThatEndsBeforeItsStepDies) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(
      {
        auto pool = std::make_unique<ThreadPool>(2);
        const ThreadPool::Step step(*pool);
        pool.reset();
      },
      "the pool ends within 1 steps");
}

}  // namespace
}  // namespace slackwater
