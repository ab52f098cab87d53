// What a slot costs, beside the budget of 50 ns for a pair of allocate and release.

#include <vector>

#include <benchmark/benchmark.h>

#include "slackwater/storage/slot_allocator.h"

namespace slackwater::storage {
namespace {

constexpr std::int32_t kSlots = 1 << 16;

// One page comes and goes while half of the pool is in use.
void allocate_and_release(benchmark::State& state) {
  SlotAllocator slots(kSlots);
  for (std::int32_t i = 0; i < kSlots / 2; ++i) benchmark::DoNotOptimize(slots.allocate());
  for (auto _ : state) {
    const auto grant = slots.allocate();
    benchmark::DoNotOptimize(grant->slot);
    slots.release(grant->slot);
  }
}

// A thousand pages come, and go in the order in which they came: the queue of ready slots turns
// over, and every entry is touched where it lies.
void allocate_and_release_in_batches(benchmark::State& state) {
  constexpr std::size_t kBatch = 1000;
  SlotAllocator slots(kSlots);
  std::vector<SlotId> taken(kBatch);
  for (auto _ : state) {
    for (SlotId& slot : taken) slot = slots.allocate()->slot;
    for (const SlotId slot : taken) slots.release(slot);
  }
  state.SetItemsProcessed(state.iterations() * static_cast<std::int64_t>(kBatch));
}

// The last use is under way when the slot comes back, and done when it is wanted.
void allocate_and_release_with_an_event(benchmark::State& state) {
  SlotAllocator slots(1);
  for (auto _ : state) {
    const auto grant = slots.allocate();
    device::EventSource last_use(device::Event(new device::EventState("the benchmark")));
    slots.release(grant->slot, last_use.event());
    last_use.complete(device::EventStatus::kSucceeded);
  }
}

void register_benchmarks() {
  benchmark::RegisterBenchmark("allocate_and_release", allocate_and_release);
  benchmark::RegisterBenchmark("allocate_and_release_in_batches", allocate_and_release_in_batches);
  benchmark::RegisterBenchmark("allocate_and_release_with_an_event",
                               allocate_and_release_with_an_event);
}

[[maybe_unused]] const bool is_registered = (register_benchmarks(), true);

}  // namespace
}  // namespace slackwater::storage
