#include <algorithm>

#include "scheduler/pass.h"
#include "slackwater/base/mutant.h"

namespace slackwater::scheduler {

// First phase: who generates, oldest first. Contexts on the way are noted for the second one.
Result<void> Pass::schedule_generation() {
  for (std::size_t i = 0; i < end_; ++i) {
    const Candidate& candidate = candidates_[i];
    if (!is_schedulable(candidate) && !SLACKWATER_MUTANT(in_flight_is_scheduled)) continue;
    if (marks_[i] != Mark::kNone || candidate.phase == RequestPhase::kToComplete) continue;
    if (candidate.phase == RequestPhase::kContext) {
      waiting_.push_back(i);
      continue;
    }
    if (is_full()) break;
    SLACKWATER_ASSIGN_OR_RETURN(const bool goes_on, schedule_round(i));
    if (!goes_on && !SLACKWATER_MUTANT(generation_goes_on_after_a_stop)) break;
  }
  return {};
}

// Returns whether the phase goes on.
Result<bool> Pass::schedule_round(std::size_t i) {
  std::int32_t num_drafts = candidates_[i].num_drafts;
  if (num_drafts >= tokens_left()) {
    // Drafts make it faster; without the first of a pass nothing would ever move.
    if (!schedule_.is_empty() || SLACKWATER_MUTANT(first_round_keeps_its_drafts)) return false;
    num_drafts = static_cast<std::int32_t>(tokens_left() - 1);
  }
  SLACKWATER_ASSIGN_OR_RETURN(Answer answer, ask_with_room(i, {.kind = Question::Kind::kGeneration,
                                                               .num_drafts = num_drafts}));
  if (answer == Answer::kNoRoom && num_drafts > 0 && !SLACKWATER_MUTANT(no_try_without_drafts)) {
    num_drafts = 0;
    SLACKWATER_ASSIGN_OR_RETURN(answer, ask(i, {.kind = Question::Kind::kGeneration}));
  }
  if (answer == Answer::kLost) return true;
  const RequestId request = candidates_[i].request;
  if (answer == Answer::kNoRoom) {
    // Those ahead of it may need what it holds.
    if (can_evict_ && residency_.is_active(request) && !SLACKWATER_MUTANT(nobody_suspends_itself)) {
      suspend(i);
    }
    return false;
  }
  marks_[i] = Mark::kScheduled;
  schedule_.generations.push_back({request, num_drafts});
  schedule_.num_tokens += 1 + (SLACKWATER_MUTANT(drafts_are_free) ? 0 : num_drafts);
  return true;
}

}  // namespace slackwater::scheduler
