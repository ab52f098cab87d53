// Latency of an empty parallel region: what each of the hundred regions of a forward step costs
// beyond its work. Wall time, because that is what a step waits for.

#include <chrono>

#include <benchmark/benchmark.h>

#include "slackwater/base/thread_pool.h"

namespace slackwater {
namespace {

// The workers spin from one region to the next.
void region_within_a_step(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const ThreadPool::Step step(pool);
  for (auto _ : state) pool.run([](int worker) { benchmark::DoNotOptimize(worker); });
}

void spin_for(std::chrono::microseconds duration) {
  const auto end = std::chrono::steady_clock::now() + duration;
  while (std::chrono::steady_clock::now() < end) {
  }
}

// Times only the regions; between them the caller works alone for `serial` microseconds.
void time_regions(benchmark::State& state, ThreadPool& pool, std::chrono::microseconds serial) {
  for (auto _ : state) {
    spin_for(serial);
    const auto start = std::chrono::steady_clock::now();
    pool.run([](int worker) { benchmark::DoNotOptimize(worker); });
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    state.SetIterationTime(seconds.count());
  }
}

void region_after_serial_work(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  const ThreadPool::Step step(pool);
  time_regions(state, pool, std::chrono::microseconds(state.range(1)));
}

// The workers are asleep when it comes: one system call, and a wake-up on another core.
void region_outside_a_step(benchmark::State& state) {
  ThreadPool pool(static_cast<int>(state.range(0)));
  time_regions(state, pool, std::chrono::microseconds(state.range(1)));
}

// The manual times contain one reading of the clock, some 30 ns. Their iterations are fixed: the
// runner would count only the timed part, and the serial part is a thousand times longer.
constexpr int kTimedRegions = 2000;

// By hand: the macro uses __COUNTER__, which -Wpedantic of clang 22 refuses.
void register_benchmarks() {
  benchmark::RegisterBenchmark("region_within_a_step", region_within_a_step)
      ->ArgName("threads")
      ->Arg(1)
      ->Arg(2)
      ->Arg(4)
      ->UseRealTime();
  benchmark::RegisterBenchmark("region_after_serial_work", region_after_serial_work)
      ->ArgNames({"threads", "serial_us"})
      ->Args({2, 5})
      ->Args({2, 50})
      ->Iterations(kTimedRegions)
      ->UseManualTime();
  benchmark::RegisterBenchmark("region_outside_a_step", region_outside_a_step)
      ->ArgNames({"threads", "serial_us"})
      ->Args({1, 50})
      ->Args({2, 50})
      ->Args({4, 50})
      ->Iterations(kTimedRegions)
      ->UseManualTime();
}

[[maybe_unused]] const bool is_registered = (register_benchmarks(), true);

}  // namespace
}  // namespace slackwater
