#include "slackwater/scheduler/scheduler.h"

#include <algorithm>
#include <string_view>

#include "scheduler/pass.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::scheduler {
namespace {

Result<void> at_least(std::string_view field, std::int64_t value, std::int64_t least) {
  if (value >= least) return {};
  return make_error(ErrorCode::kInvalidArgument, "{} is {}; at least {}", field, value, least);
}

// Whether the pass is one that should have moved something.
bool should_have_moved(std::span<const Candidate> candidates) {
  const auto is_under_way = [](const Candidate& candidate) {
    return candidate.is_in_flight || candidate.is_held_back || candidate.is_running ||
           candidate.phase == RequestPhase::kToComplete;
  };
  return !candidates.empty() && std::ranges::none_of(candidates, is_under_way);
}

}  // namespace

Result<void> validate(const SchedulerConfig& config) {
  if (config.beam_width > 1) {
    return make_error(ErrorCode::kUnimplemented, "beam_width is {}: beams are not built; use 1",
                      config.beam_width);
  }
  SLACKWATER_RETURN_IF_ERROR(at_least("beam_width", config.beam_width, 1));
  SLACKWATER_RETURN_IF_ERROR(at_least("max_num_tokens", config.max_num_tokens, 1));
  SLACKWATER_RETURN_IF_ERROR(at_least("max_batch_size", config.max_batch_size, 1));
  SLACKWATER_RETURN_IF_ERROR(at_least("max_idle_passes", config.max_idle_passes, 1));
  SLACKWATER_RETURN_IF_ERROR(at_least("chunk_unit", config.chunk_unit, 1));
  if (config.max_context_length < config.chunk_unit) {
    return make_error(ErrorCode::kInvalidArgument,
                      "max_context_length is {}; at least chunk_unit, which is {}",
                      config.max_context_length, config.chunk_unit);
  }
  if (config.enable_chunked_prefill && config.max_num_tokens < config.chunk_unit) {
    return make_error(ErrorCode::kInvalidArgument,
                      "max_num_tokens is {}, less than chunk_unit, which is {}: no longer prompt "
                      "would ever begin; use a smaller chunk_unit",
                      config.max_num_tokens, config.chunk_unit);
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
  const Result<void> valid = validate(config_);
  SLACKWATER_CHECK(valid.has_value(), "{}", valid.error().text());
}

Result<void> Scheduler::schedule(std::span<const Candidate> candidates, RequestResidency& residency,
                                 bool is_work_under_way, Schedule& schedule) {
  schedule.clear();
  SLACKWATER_RETURN_IF_ERROR(
      Pass(config_, candidates, residency, {marks_, waiting_}, schedule).run());
  if (!schedule.is_empty() || candidates.empty()) {
    idle_passes_ = 0;
    return {};
  }
  if (SLACKWATER_MUTANT(stuck_is_never_told)) return {};
  // What is under way ends, and then there may be room, or somebody else to take from.
  if (is_work_under_way && !SLACKWATER_MUTANT(work_under_way_counts_as_idle)) return {};
  if (!should_have_moved(candidates)) return {};
  idle_passes_ = std::min(idle_passes_ + 1, config_.max_idle_passes);
  if (idle_passes_ < config_.max_idle_passes) return {};
  return make_error(
      ErrorCode::kResourceExhausted,
      "stuck: none of {} requests could be scheduled in {} passes in a row, request {} waits "
      "longest; give the host tier more bytes, lower max_num_tokens (it is {}) so that a step "
      "needs less, or send fewer or smaller requests",
      candidates.size(), idle_passes_, candidates[0].request.value(), config_.max_num_tokens);
}

}  // namespace slackwater::scheduler
