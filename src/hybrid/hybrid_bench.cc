// What a suspend costs, beside memcpy of the same pieces between memory that is mapped alike, and
// what those pay for it who are never suspended. Both copies are made by a stream's thread, which
// has to be woken, so that the copies are compared and not who is woken.
//   save_share, restore_share   time of memcpy over ours: the median of pairs taken in turns
//   *_ns_per_row                of one step of a batch that nobody leaves

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/cache/layer_groups.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::hybrid {
namespace {

// Slots of these shapes, each layer of which keeps records of so many drafts. `kimi_k3` is one of
// 16 ranks.
struct SlotWorkload {
  const char* name;
  std::int32_t num_layers, num_heads, max_drafts;
};
constexpr SlotWorkload kSlotWorkloads[] = {
    {"kimi_k3/3_drafts", 69, 6, 3},
    {"kimi_k3/7_drafts", 69, 6, 7},
    {"kimi_linear/3_drafts", 20, 32, 3},
    {"kimi_linear/7_drafts", 20, 32, 7},
};
constexpr std::int64_t kHeadDim = 128;
constexpr std::int32_t kRows = 256;            // of the batch that nobody leaves
constexpr std::int64_t kWorkingSet = 1 << 30;  // slots and what is saved of them
constexpr std::int64_t kHugePage = 2 << 20;

template <class T>
T must(Result<T> made) {
  if (made.has_value()) return *std::move(made);
  std::fprintf(stderr, "%s\n", made.error().text().c_str());
  std::exit(1);
}
void must(const Result<void>& done) {
  if (done.has_value()) return;
  std::fprintf(stderr, "%s\n", done.error().text().c_str());
  std::exit(1);
}

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Time of memcpy over ours, of pairs in which each is first in turn.
class Pairs {
 public:
  // Returns what ours took.
  double add(const std::function<void()>& ceiling, const std::function<void()>& ours) {
    const bool is_first = ratios_.size() % 2 == 0;
    const double before = is_first ? seconds_of(ceiling) : 0;
    const double taken = seconds_of(ours);
    ratios_.push_back((is_first ? before : seconds_of(ceiling)) / taken);
    return taken;
  }
  void report(benchmark::State& state, const std::string& name) const {
    state.counters[name + "_share"] = median(ratios_);
    state.counters[name + "_least"] = *std::min_element(ratios_.begin(), ratios_.end());
    state.counters[name + "_most"] = *std::max_element(ratios_.begin(), ratios_.end());
  }

 private:
  std::vector<double> ratios_;
};

HybridConfig make_config(const SlotWorkload& workload) {
  HybridConfig config;
  config.cache.layers.push_back({.layer = 0,
                                 .kind = cache::FullAttention(),
                                 .buffers = {{"kv_latent", 256}},
                                 .group_tag = "target"});
  const KdaShape shape = {.num_heads = workload.num_heads, .head_dim = kHeadDim};
  for (std::int32_t layer = 1; layer <= workload.num_layers; ++layer) {
    config.kda_layers.push_back({layer, shape, "target"});
  }
  config.speculation = {workload.max_drafts};
  config.replay = {workload.max_drafts};
  config.placement = ReplayPlacement::kBesidePool;
  config.enable_block_reuse = false;
  config.cache.max_util_for_resume = 1;
  return config;
}

// A manager of `num_requests` that are all active, with room for `capacity` tokens each.
struct Manager {
  Manager(const std::function<HybridConfig()>& config_of, std::int32_t num_requests,
          std::int64_t capacity) {
    const auto with_floors = [&] {
      HybridConfig config = config_of();
      config.max_batch_size = num_requests;
      config.save_bytes = num_requests * save_bytes_of(slot_entries(config, "target"));
      config.cache.constraints.push_back(
          {std::vector<cache::SequenceDesc>(static_cast<std::size_t>(num_requests), {capacity, 0}),
           0});
      return config;
    };
    HybridConfig probe = with_floors();
    const cache::MinQuotas least = must(cache::min_quotas(make_cache_config(probe)));
    HybridConfig config = with_floors();
    config.cache.device_bytes = least.device_bytes;
    hybrid = must(HybridCacheManager::create(*device, *stream, nullptr, std::move(config)));
    for (std::int32_t i = 0; i < num_requests; ++i) {
      const RequestId id(static_cast<std::uint64_t>(i));
      must(hybrid->add_request({.request = id, .tokens = prompt}));
      static_cast<void>(must(hybrid->resume_request(id)));
      must(hybrid->resize(id, capacity));
      contexts.push_back({id, RowKind::kContext, 0, 1, 1});
    }
    must(hybrid->setup_state_indices(contexts, setup));
    hybrid->step_queued(setup);
  }

  const std::vector<TokenId> prompt = {1, 2};
  std::unique_ptr<device::Device> device = device::make_cpu_device();
  std::unique_ptr<device::Stream> stream = must(device->make_stream("steps"));
  std::unique_ptr<HybridCacheManager> hybrid;
  std::vector<BatchRow> contexts;
  BatchSetup setup;
};

// Memory like that of saved slots, for memcpy to copy to and from: a place per slot.
struct Ceiling {
  Ceiling(device::Device& device, SlotRegistry& slots)
      : registry(slots),
        stream(must(device.make_stream("ceiling"))),
        arena(must(device.reserve_arena(
            device::MemoryKind::kPinnedHost,
            static_cast<std::size_t>(slots.slot_stride() * slots.num_slots()), kHugePage))) {
    must(arena->resize(arena->reserved_bytes()));
  }
  void save(SlotId slot) const { copy(place(slot), from(slot)); }
  void restore(SlotId slot) const { copy(from(slot), place(slot)); }
  void copy(std::byte* to, const std::byte* source) const {
    stream->run([to, source, bytes = bytes()] {
      std::memcpy(to, source, bytes);
      return true;
    });
    stream->record().wait();
  }

  std::byte* place(SlotId slot) const {
    return arena->base() + slot.value() * registry.slot_stride();
  }
  std::byte* from(SlotId slot) const { return registry.slot(slot).data(); }
  std::size_t bytes() const { return static_cast<std::size_t>(registry.slot_stride()); }

  SlotRegistry& registry;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<device::Arena> arena;
};

std::int32_t slots_of_working_set(std::int64_t bytes_per_slot) {
  return static_cast<std::int32_t>(kWorkingSet / 2 / bytes_per_slot) / 2 * 2;
}

// save() and apply() of the registry alone.
void save_and_restore_a_slot(benchmark::State& state, const SlotWorkload& workload) {
  const auto device = device::make_cpu_device();
  const auto stream = must(device->make_stream("steps"));
  SlotRegistryOptions options;
  options.name = "bench";
  options.entries = slot_entries(make_config(workload), "target");
  options.num_slots = slots_of_working_set(save_bytes_of(options.entries));
  options.save_bytes = options.num_slots * save_bytes_of(options.entries);
  const auto registry = must(SlotRegistry::create(*device, std::move(options)));
  for (std::int32_t i = 0; i < registry->num_slots(); ++i) {
    must(registry->reserve_save());
    std::memset(registry->slot(SlotId(i)).data(), 1 + i, registry->slot(SlotId(i)).size());
  }
  const Ceiling ceiling(*device, *registry);
  Pairs saves, restores;
  const std::int32_t half = registry->num_slots() / 2;
  std::vector<SavedSlot> saved(static_cast<std::size_t>(half));
  SlotRegistry::Applied applied;
  for (auto _ : state) {
    double seconds = 0;
    for (std::int32_t i = 0; i < half; ++i) {
      SavedSlot& place = saved[static_cast<std::size_t>(i)];
      seconds += saves.add([&] { ceiling.save(SlotId(half + i)); },
                           [&] {
                             place = registry->save(SlotId(i), {}, true, *stream);
                             place.copied.wait();
                           });
    }
    for (std::int32_t i = 0; i < half; ++i) {
      SlotChanges changes;
      changes.restores.push_back({saved[static_cast<std::size_t>(i)], SlotId(i)});
      restores.add([&] { ceiling.restore(SlotId(half + i)); },
                   [&] {
                     registry->apply(changes, *stream, applied);
                     applied.restored[0].wait();
                   });
    }
    state.SetIterationTime(seconds / half);
  }
  state.SetBytesProcessed(state.iterations() * registry->slot_stride());
  saves.report(state, "save");
  restores.report(state, "restore");
}

// The same by way of a manager: suspend, and resume with the setup of the next step.
void suspend_and_resume_a_request(benchmark::State& state, const SlotWorkload& workload) {
  const std::int64_t bytes = save_bytes_of(slot_entries(make_config(workload), "target"));
  // Half of what the registry alone takes: each has a page of the pool too.
  const std::int32_t num_requests = std::max(16, slots_of_working_set(bytes) / 4 * 2);
  Manager manager([&] { return make_config(workload); }, num_requests, 32);
  HybridCacheManager& hybrid = *manager.hybrid;
  const Ceiling ceiling(*manager.device, hybrid.replay_state().registry());
  Pairs saves, restores;
  const std::int32_t half = num_requests / 2;
  const auto slot_of = [&](std::int32_t i) {
    return *hybrid.state_index(RequestId(static_cast<std::uint64_t>(i)));
  };
  for (auto _ : state) {
    double seconds = 0;
    for (std::int32_t i = 0; i < half; ++i) {
      const RequestId id(static_cast<std::uint64_t>(i));
      const SlotId other = slot_of(half + i);
      seconds += saves.add([&] { ceiling.save(other); },
                           [&] {
                             must(hybrid.suspend_request(id));
                             hybrid.replay_state().registry().synchronize();
                           });
    }
    for (std::int32_t i = 0; i < half; ++i) {
      const BatchRow row{RequestId(static_cast<std::uint64_t>(i)), RowKind::kGeneration, 1, 1, 1};
      const SlotId other = slot_of(half + i);
      restores.add([&] { ceiling.restore(other); },
                   [&] {
                     static_cast<void>(must(hybrid.resume_request(row.request)));
                     must(hybrid.setup_state_indices({&row, 1}, manager.setup));
                     manager.setup.rows[0].ready.wait();
                   });
    }
    state.SetIterationTime(seconds / half);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  saves.report(state, "save");
  restores.report(state, "restore");
}

// One step of a batch that nobody leaves, in the order of an engine with a host drafter. Its
// instructions are counted by name, where a tool does that.
struct Steady {
  Steady()
      : manager(
            [] {
              return make_config({"", 1, 1, 3});
            },
            kRows, 4096),
        hybrid(*manager.hybrid) {
    for (const BatchRow& row : manager.contexts) {
      rows.push_back({row.request, RowKind::kGeneration, 1, 4, 1});
      acceptances.push_back({row.request, 0, 0, 2});
    }
  }
  // Room for the drafts is asked for apart: it is the cache's.
  void make_room() {
    for (BatchRow& row : rows) must(hybrid.resize(row.request, *row.first_position + 4));
  }
  [[gnu::noinline]] void timed_step() {
    must(hybrid.setup_state_indices(rows, manager.setup));
    hybrid.step_queued(manager.setup);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      acceptances[i].round = manager.setup.rows[i].round;
    }
    must(hybrid.update_resources(acceptances));
  }
  void go_on() {
    for (BatchRow& row : rows) *row.first_position += 3;
    manager.stream->synchronize();
  }

  Manager manager;
  HybridCacheManager& hybrid;
  std::vector<BatchRow> rows;
  std::vector<Acceptance> acceptances;
};

void step_of_a_batch_nobody_leaves(benchmark::State& state) {
  Steady steady;
  std::vector<double> rooms, steps;
  for (auto _ : state) {
    rooms.push_back(seconds_of([&] { steady.make_room(); }));
    steps.push_back(seconds_of([&] { steady.timed_step(); }));
    state.SetIterationTime(steps.back());
    steady.go_on();
  }
  const HybridCounters counters = steady.hybrid.counters();
  if (counters.saves + counters.restores + counters.relocations > 0) std::abort();
  state.SetItemsProcessed(state.iterations() * kRows);
  state.counters["room_ns_per_row"] = median(rooms) * 1e9 / kRows;
  state.counters["step_ns_per_row"] = median(steps) * 1e9 / kRows;
}

void register_benchmarks() {
  for (const SlotWorkload& workload : kSlotWorkloads) {
    const auto add = [&](const char* what, auto* run) {
      benchmark::RegisterBenchmark((std::string(what) + "/" + workload.name).c_str(), run, workload)
          ->Iterations(5)
          ->UseManualTime();
    };
    add("save_and_restore_a_slot", &save_and_restore_a_slot);
    add("suspend_and_resume_a_request", &suspend_and_resume_a_request);
  }
  benchmark::RegisterBenchmark("step_of_a_batch_nobody_leaves", step_of_a_batch_nobody_leaves)
      ->Iterations(500)
      ->UseManualTime();
}

[[maybe_unused]] const bool is_registered = (register_benchmarks(), true);

}  // namespace
}  // namespace slackwater::hybrid
