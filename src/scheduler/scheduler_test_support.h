#ifndef SLACKWATER_SCHEDULER_SCHEDULER_TEST_SUPPORT_H_
#define SLACKWATER_SCHEDULER_SCHEDULER_TEST_SUPPORT_H_

#include <cstdint>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "scheduler/fake_residency_test_support.h"

namespace slackwater::scheduler {

// What a pass decided, in one line: contexts as `c1@0+32`, with a dot where the context ends,
// rounds as `g2+3` with their drafts, then s, r and l for who was suspended, recomputed, lost.
inline std::string describe(const Schedule& schedule) {
  std::string text;
  const auto add = [&text](const std::string& part) { text += text.empty() ? part : " " + part; };
  for (const ScheduledContext& chunk : schedule.contexts) {
    add(fmt::format("c{}@{}+{}{}", chunk.request.value(), chunk.first_position, chunk.num_tokens,
                    chunk.is_last ? "." : ""));
  }
  for (const ScheduledGeneration& round : schedule.generations) {
    add(fmt::format("g{}+{}", round.request.value(), round.num_drafts));
  }
  for (const RequestId request : schedule.suspended) add(fmt::format("s{}", request.value()));
  for (const RequestId request : schedule.recomputed) add(fmt::format("r{}", request.value()));
  for (const RequestId request : schedule.lost) add(fmt::format("l{}", request.value()));
  return text;
}

// A list of candidates over pools of pages of one token, and passes over it.
class World {
 public:
  explicit World(const SchedulerConfig& config = {}, const FakePools& pools = {})
      : scheduler(config), residency(pools) {}

  // Candidates, in the order of the calls. Of one that has not begun, `matched` tokens are known.
  Candidate& add_prompt(std::uint64_t id, std::int64_t end, std::int64_t matched = 0) {
    residency.at(RequestId(id)).matched = matched;
    return add({.request = RequestId(id), .phase = RequestPhase::kContext, .context_end = end});
  }
  // In the middle of its context, on the device.
  Candidate& add_reading(std::uint64_t id, std::int64_t computed, std::int64_t end) {
    residency.place(RequestId(id), computed, true);
    return add({.request = RequestId(id),
                .phase = RequestPhase::kContext,
                .context_end = end,
                .is_started = true});
  }
  // Generating, on the device, with so many tokens.
  Candidate& add_talking(std::uint64_t id, std::int64_t computed, std::int32_t num_drafts = 0) {
    residency.place(RequestId(id), computed, true);
    return add({.request = RequestId(id),
                .phase = RequestPhase::kGeneration,
                .num_drafts = num_drafts,
                .is_started = true});
  }
  // The same, suspended.
  Candidate& add_asleep(std::uint64_t id, std::int64_t computed, std::int32_t num_drafts = 0) {
    residency.place(RequestId(id), computed, false);
    return add({.request = RequestId(id),
                .phase = RequestPhase::kGeneration,
                .num_drafts = num_drafts,
                .is_started = true});
  }

  Result<void> schedule(bool is_work_under_way = false) {
    return scheduler.schedule(candidates, residency, is_work_under_way, decided);
  }
  // One pass, in one line; or why not.
  std::string pass(bool is_work_under_way = false) {
    const Result<void> done = schedule(is_work_under_way);
    return done.has_value() ? describe(decided) : "error: " + done.error().text();
  }
  bool is_active(std::uint64_t id) const { return residency.is_active(RequestId(id)); }
  void refuse_next(std::uint64_t id, FakeCall::Kind call, ErrorCode code) {
    residency.refuse_next(RequestId(id), call, code);
  }

  Scheduler scheduler;
  FakeResidency residency;
  std::vector<Candidate> candidates;
  Schedule decided;

 private:
  Candidate& add(const Candidate& candidate) {
    residency.at(candidate.request);
    candidates.push_back(candidate);
    return candidates.back();
  }
};

}  // namespace slackwater::scheduler

#endif  // SLACKWATER_SCHEDULER_SCHEDULER_TEST_SUPPORT_H_
