// What one pass costs with many live requests, over a residency that is nothing but counts.
//   allocations   from the heap, per pass, after the first
// Of the workloads, `plenty` asks each request once; under `pressure` the device has room for half
// of them, so that passes suspend and are refused; `recompute` is the same without a host.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include <benchmark/benchmark.h>

#include "scheduler/fake_residency_test_support.h"
#include "testing/allocation_counter.h"

namespace slackwater::scheduler {
namespace {

struct PassWorkload {
  const char* name;
  std::int32_t num_requests, max_batch_size;
  double share_of_device;  // how many of the requests fit
  bool has_host;
};
constexpr PassWorkload kPassWorkloads[] = {
    {"plenty", 1000, 1000, 2, true},
    {"batch_of_64", 1000, 64, 2, true},
    {"pressure", 1000, 1000, .5, true},
    {"recompute", 1000, 1000, .5, false},
};
constexpr std::int64_t kTokens = 1024;  // of a request when it begins to generate
constexpr std::int32_t kDrafts = 3;

// Requests that talk on and on: once they are 64 tokens longer they begin anew.
class Crowd {
 public:
  explicit Crowd(const PassWorkload& workload)
      : scheduler_({.max_num_tokens = 1 << 20,
                    .max_batch_size = workload.max_batch_size,
                    .max_context_length = 1 << 20}),
        residency_(pools_of(workload)) {
    for (std::int32_t i = 0; i < workload.num_requests; ++i) {
      const RequestId id(static_cast<std::uint64_t>(i));
      residency_.at(id);
      candidates_.push_back({.request = id, .context_end = kTokens, .num_drafts = kDrafts});
    }
  }

  void pass() {
    const Result<void> done = scheduler_.schedule(candidates_, residency_, false, decided_);
    if (done.has_value()) return;
    std::fprintf(stderr, "%s\n", done.error().text().c_str());
    std::exit(1);
  }
  // The step of that pass.
  void step() {
    for (const RequestId id : decided_.recomputed) begin_anew(candidate(id));
    for (const ScheduledContext& chunk : decided_.contexts) {
      residency_.advance(chunk.request, chunk.num_tokens);
      candidate(chunk.request).is_started = true;
      if (chunk.is_last) candidate(chunk.request).phase = RequestPhase::kGeneration;
    }
    for (const ScheduledGeneration& round : decided_.generations) {
      residency_.advance(round.request, round.num_drafts > 0 ? 2 : 1);
      if (residency_.at(round.request).computed < kTokens + 64) continue;
      residency_.free(round.request);
      begin_anew(candidate(round.request));
    }
  }
  const Schedule& decided() const { return decided_; }

 private:
  static FakePools pools_of(const PassWorkload& workload) {
    FakePools pools;
    pools.tokens_per_page = 32;
    const double all = static_cast<double>(workload.num_requests) * kTokens / 32;
    pools.pages = static_cast<std::int64_t>(all * workload.share_of_device);
    if (workload.has_host) pools.host_pages = pools.host_slots = 1 << 20;
    return pools;
  }
  Candidate& candidate(RequestId id) { return candidates_[id.value()]; }
  static void begin_anew(Candidate& candidate) {
    candidate.phase = RequestPhase::kContext;
    candidate.is_started = false;
  }

  Scheduler scheduler_;
  FakeResidency residency_;
  std::vector<Candidate> candidates_;
  Schedule decided_;
};

void run_passes(benchmark::State& state, const PassWorkload& workload) {
  Crowd crowd(workload);
  std::int64_t allocations = 0, scheduled = 0, suspended = 0, recomputed = 0;
  for (int i = 0; i < 100; ++i) {
    crowd.pass();
    crowd.step();
  }
  for (auto _ : state) {
    const std::int64_t before = num_heap_allocations();
    crowd.pass();
    allocations += num_heap_allocations() - before;
    state.PauseTiming();
    const Schedule& decided = crowd.decided();
    scheduled += std::ssize(decided.contexts) + std::ssize(decided.generations);
    suspended += std::ssize(decided.suspended);
    recomputed += std::ssize(decided.recomputed);
    crowd.step();
    state.ResumeTiming();
  }
  const auto per_pass = [&](std::int64_t count) {
    return static_cast<double>(count) / static_cast<double>(state.iterations());
  };
  state.counters["allocations"] = per_pass(allocations);
  state.counters["scheduled"] = per_pass(scheduled);
  state.counters["suspended"] = per_pass(suspended);
  state.counters["recomputed"] = per_pass(recomputed);
}

const bool kRegistered = [] {
  for (const PassWorkload& workload : kPassWorkloads) {
    benchmark::RegisterBenchmark((std::string("pass/") + workload.name).c_str(), run_passes,
                                 workload)
        ->Unit(benchmark::kMicrosecond);
  }
  return true;
}();

}  // namespace
}  // namespace slackwater::scheduler
