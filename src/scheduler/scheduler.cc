#include "slackwater/scheduler/scheduler.h"

#include "slackwater/base/check.h"

namespace slackwater::scheduler {

Result<void> validate(const SchedulerConfig& config) {
  if (config.beam_width != 1) {
    return make_error(ErrorCode::kUnimplemented, "beams of {}; use 1", config.beam_width);
  }
  return {};
}

void Schedule::clear() {
  contexts.clear();
  generations.clear();
  suspended.clear();
  recomputed.clear();
  lost.clear();
  num_tokens = 0;
}

Scheduler::Scheduler(SchedulerConfig config) : config_(config) {
  SLACKWATER_CHECK(validate(config).has_value(), "an invalid configuration");
}

Result<void> Scheduler::schedule(std::span<const Candidate> candidates, RequestResidency& residency,
                                 bool is_work_under_way, Schedule& schedule) {
  schedule.clear();
  if (candidates.empty() || is_work_under_way || residency.can_evict()) idle_passes_ = 0;
  return {};
}

}  // namespace slackwater::scheduler
