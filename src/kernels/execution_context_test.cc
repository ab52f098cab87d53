#include "slackwater/kernels/execution_context.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <set>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater::kernels {
namespace {

// Who ran which items of one parallel_for.
struct Coverage {
  std::vector<std::atomic<int>> runs;
  std::vector<std::atomic<int>> calls;  // per worker

  Coverage(std::int64_t num_items, int num_threads)
      : runs(static_cast<std::size_t>(num_items)), calls(static_cast<std::size_t>(num_threads)) {}

  int num_workers() const {
    return static_cast<int>(std::ranges::count_if(calls, [](const auto& n) { return n > 0; }));
  }
};

Coverage cover(ExecutionContext& context, std::int64_t num_items, std::int64_t grain) {
  Coverage coverage(num_items, context.num_threads());
  context.parallel_for(num_items, grain, [&](ItemRange range, int worker) {
    ++coverage.calls.at(static_cast<std::size_t>(worker));
    for (std::int64_t item = range.begin; item < range.end; ++item) {
      ++coverage.runs.at(static_cast<std::size_t>(item));
    }
  });
  return coverage;
}

TEST(ExecutionContextThreads, ParallelForRunsEveryItemOnceOnOneRangePerWorker) {
  for (const int num_threads : {1, 2, 3, 5}) {
    ThreadPool pool(num_threads);
    ExecutionContext context(pool);
    EXPECT_EQ(context.num_threads(), num_threads);
    for (const std::int64_t num_items : {0, 1, 2, 3, 7, 16, 100, 1001}) {
      for (const std::int64_t grain : {1, 2, 7, 50, 5000}) {
        const Coverage coverage = cover(context, num_items, grain);
        for (const auto& runs : coverage.runs) {
          ASSERT_EQ(runs, 1) << num_items << " items, grain " << grain;
        }
        for (const auto& calls : coverage.calls) ASSERT_LE(calls, 1);
      }
    }
  }
}

TEST(ExecutionContextThreads, FewerThanTwoGrainsStayWithTheCaller) {
  ThreadPool pool(3);
  ExecutionContext context(pool);
  EXPECT_EQ(cover(context, 0, 10).num_workers(), 1);
  EXPECT_EQ(cover(context, 19, 10).num_workers(), 1);
  EXPECT_EQ(cover(context, 19, 10).calls[0], 1);
  EXPECT_EQ(cover(context, 20, 10).num_workers(), 2);
  EXPECT_EQ(cover(context, 30, 10).num_workers(), 3);
  EXPECT_EQ(cover(context, 3000, 10).num_workers(), 3);
}

TEST(ExecutionContext, ScratchIsAlignedAndEachWorkersOwn) {
  ThreadPool pool(3);
  ExecutionContext context(pool);
  for (const std::size_t bytes : {1u, 64u, 1000u, 5'000'000u}) {
    context.reserve_scratch(bytes);
    std::set<std::byte*> starts;
    for (int worker = 0; worker < 3; ++worker) {
      const std::span<std::byte> scratch = context.scratch(worker);
      EXPECT_GE(scratch.size(), bytes);
      EXPECT_EQ(reinterpret_cast<std::uintptr_t>(scratch.data()) % kBufferAlignment, 0u);
      std::ranges::fill(scratch, std::byte{static_cast<unsigned char>(worker)});
      starts.insert(scratch.data());
    }
    EXPECT_EQ(starts.size(), 3u);
    for (int worker = 0; worker < 3; ++worker) {
      EXPECT_EQ(std::ranges::count(context.scratch(worker),
                                   std::byte{static_cast<unsigned char>(worker)}),
                std::ssize(context.scratch(worker)));
    }
  }
}

// A warmed-up step allocates nothing: a request that fits changes neither place nor contents.
TEST(ExecutionContext, ScratchIsKeptWhileItIsLargeEnough) {
  ThreadPool pool(2);
  ExecutionContext context(pool);
  context.reserve_scratch(4096);
  const std::span<std::byte> first = context.scratch(1);
  std::ranges::fill(first, std::byte{0x5A});
  for (const std::size_t bytes : {0u, 1u, 4095u, 4096u}) {
    context.reserve_scratch(bytes);
    EXPECT_EQ(context.scratch(1).data(), first.data());
    EXPECT_EQ(context.scratch(1).size(), first.size());
  }
  EXPECT_EQ(std::ranges::count(context.scratch(1), std::byte{0x5A}), std::ssize(first));
  context.reserve_scratch(4097);
  EXPECT_GE(context.scratch(1).size(), 4097u);
}

TEST(ExecutionContextDeathTest, RefusesATargetThatCannotRun) {
  ThreadPool pool(1);
  const auto runnable = runnable_targets();
  const Target absent =
      std::ranges::count(runnable, Target::kNeon) == 0 ? Target::kNeon : Target::kAvx2;
  EXPECT_DEATH(ExecutionContext(pool, absent), "cannot run here");
}

}  // namespace
}  // namespace slackwater::kernels
