#include <algorithm>

#include "scheduler/pass.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::scheduler {

// A context that is the oldest of all is not left with what the younger ones leave: it has its
// first tokens and its room before anybody generates, and takes both from them where need be. One
// unit is enough to get on by; more of it comes from what is left in the second phase.
//
// Returns whether the pass goes on. It does not where there is no room: whatever ran now would be
// in flight the next time, when only what is not in flight can be taken back.
Result<bool> Pass::admit_oldest() {
  if (candidates_.empty() || !is_schedulable(candidates_[0])) return true;
  if (candidates_[0].phase != RequestPhase::kContext) return true;
  if (SLACKWATER_MUTANT(oldest_context_waits)) return true;

  const bool was_active = residency_.is_active(candidates_[0].request);
  SLACKWATER_ASSIGN_OR_RETURN(Answer answer, ask_with_room(0, {Question::Kind::kPrepare}));
  if (answer == Answer::kLost) return true;
  if (answer == Answer::kNoRoom) return SLACKWATER_MUTANT(others_run_without_the_oldest);

  const std::int64_t most = config_.enable_chunked_prefill ? config_.chunk_unit : tokens_left();
  Chunk chunk = plan_chunk(candidates_[0], most);
  answer = Answer::kNoRoom;
  if (chunk.num_tokens > 0) {
    Question question{Question::Kind::kContext, chunk.num_tokens, chunk.num_drafts};
    SLACKWATER_ASSIGN_OR_RETURN(answer, ask_with_room(0, question));
    if (answer == Answer::kNoRoom && chunk.num_drafts > 0) {
      question.num_drafts = chunk.num_drafts = 0;
      SLACKWATER_ASSIGN_OR_RETURN(answer, ask(0, question));
    }
  }
  if (answer == Answer::kLost) return true;
  if (answer == Answer::kNoRoom) {
    give_back(0, was_active);
    return SLACKWATER_MUTANT(others_run_without_the_oldest);
  }
  schedule_chunk(0, chunk);
  return true;
}

// What the others have left of the budget; where there is no room for it, the first tokens stand.
Result<void> Pass::extend_oldest() {
  if (schedule_.contexts.empty() || !config_.enable_chunked_prefill) return {};
  const ScheduledContext before = schedule_.contexts[0];
  std::int64_t others = 0;
  for (const ScheduledGeneration& round : schedule_.generations) others += 1 + round.num_drafts;
  const std::int64_t charged = schedule_.num_tokens;
  schedule_.num_tokens = others;
  first_position_ = before.first_position;
  const Chunk chunk = plan_chunk(candidates_[0], tokens_left());
  Answer answer = Answer::kNoRoom;
  if (chunk.num_tokens > before.num_tokens && !SLACKWATER_MUTANT(oldest_is_never_extended)) {
    SLACKWATER_ASSIGN_OR_RETURN(
        answer, ask(0, {Question::Kind::kContext, chunk.num_tokens, chunk.num_drafts}));
  }
  if (answer == Answer::kNoRoom) {
    schedule_.num_tokens = charged;
    return {};
  }
  schedule_.contexts.clear();
  if (answer == Answer::kRoom) schedule_chunk(0, chunk);
  return {};
}

// Second phase: contexts, with what is left of the budgets.
Result<void> Pass::schedule_context() {
  SLACKWATER_RETURN_IF_ERROR(extend_oldest());
  for (const std::size_t i : waiting_) {
    if (is_full() && !SLACKWATER_MUTANT(context_fills_past_the_batch)) break;
    if (marks_[i] != Mark::kNone || !is_worth_a_try(i)) continue;
    SLACKWATER_ASSIGN_OR_RETURN(const bool goes_on, admit_waiting(i));
    if (!goes_on && !SLACKWATER_MUTANT(context_goes_on_after_a_stop)) break;
  }
  return {};
}

// With less than a unit left only a whole rest fits. How long the rest of one that is not resident
// is turns out when it is prepared, which is dear: it has to be short even if nothing is reused.
bool Pass::is_worth_a_try(std::size_t i) const {
  if (tokens_left() <= 0) return false;
  if (!config_.enable_chunked_prefill || tokens_left() >= config_.chunk_unit) return true;
  return candidates_[i].context_end <= tokens_left() ||
         residency_.is_active(candidates_[i].request);
}

Result<bool> Pass::admit_waiting(std::size_t i) {
  const Candidate& candidate = candidates_[i];
  const bool was_active = residency_.is_active(candidate.request);
  SLACKWATER_ASSIGN_OR_RETURN(Answer answer, ask(i, {Question::Kind::kPrepare}));
  if (answer == Answer::kLost) return true;
  if (answer == Answer::kNoRoom) return false;

  const Chunk chunk = plan_chunk(candidate, tokens_left());
  // A whole prompt and the drafts after it are one thing; a chunk goes without.
  const bool is_cut = config_.enable_chunked_prefill;
  const bool has_budget = is_cut || chunk.num_drafts == candidate.num_drafts;
  if (chunk.num_tokens == 0 || !has_budget) {
    give_back(i, was_active);
    return is_cut;
  }
  bool has_taken = false;
  SLACKWATER_ASSIGN_OR_RETURN(answer, ask_for_chunk(i, chunk, has_taken));
  if (answer == Answer::kLost) return true;
  if (answer == Answer::kNoRoom) {
    give_back(i, was_active);
    return !has_taken;
  }
  schedule_chunk(i, chunk);
  return true;
}

// Without a host tier, those that wait for their turn behind it hold what only a recompute frees.
// With one they can be asked to wait: whoever is ahead of it takes from them once he needs it.
Result<Pass::Answer> Pass::ask_for_chunk(std::size_t i, const Chunk& chunk, bool& has_taken) {
  const Question question{Question::Kind::kContext, chunk.num_tokens, chunk.num_drafts};
  SLACKWATER_ASSIGN_OR_RETURN(Answer answer, ask(i, question));
  while (answer == Answer::kNoRoom && !can_evict_ && recompute_youngest_behind(i)) {
    has_taken = true;
    SLACKWATER_ASSIGN_OR_RETURN(answer, ask(i, question));
  }
  return answer;
}

// At most `most` tokens of the context of whoever was prepared last.
Pass::Chunk Pass::plan_chunk(const Candidate& candidate, std::int64_t most) const {
  const std::int64_t rest = candidate.context_end - first_position_;
  SLACKWATER_CHECK(rest > 0, "request {} begins at {} of {}", candidate.request.value(),
                   first_position_, candidate.context_end);
  Chunk chunk;
  if (config_.enable_chunked_prefill) {
    const bool is_capped = !SLACKWATER_MUTANT(chunk_has_no_cap);
    chunk.num_tokens = std::min({rest, most, is_capped ? config_.max_context_length : rest});
    const bool rounds = chunk.num_tokens < rest || SLACKWATER_MUTANT(last_chunk_is_rounded);
    if (rounds && !SLACKWATER_MUTANT(chunk_is_not_rounded)) {
      chunk.num_tokens -= chunk.num_tokens % config_.chunk_unit;
    }
  } else if (rest <= most) {
    chunk.num_tokens = rest;
  }
  chunk.is_last = chunk.num_tokens == rest;
  if (chunk.is_last || SLACKWATER_MUTANT(drafts_with_every_chunk)) {
    const std::int64_t room = std::max<std::int64_t>(tokens_left() - chunk.num_tokens, 0);
    chunk.num_drafts =
        static_cast<std::int32_t>(std::min<std::int64_t>(candidate.num_drafts, room));
  }
  return chunk;
}

void Pass::schedule_chunk(std::size_t i, const Chunk& chunk) {
  marks_[i] = Mark::kScheduled;
  schedule_.contexts.push_back(
      {candidates_[i].request, first_position_, chunk.num_tokens, chunk.is_last});
  schedule_.num_tokens += chunk.num_tokens + chunk.num_drafts;
}

// Who was prepared and cannot run leaves as he came.
void Pass::give_back(std::size_t i, bool was_active) {
  marks_[i] = Mark::kNone;
  if (SLACKWATER_MUTANT(failed_admission_keeps)) return;
  if (!candidates_[i].is_started) {
    residency_.release_context(candidates_[i].request);
  } else if (!was_active && can_evict_) {
    suspend(i);
  }
}

// Stable, in place: chunks of one step are few.
void Pass::put_last_chunks_last() {
  if (SLACKWATER_MUTANT(last_chunks_stay_first)) return;
  auto& context = schedule_.contexts;
  auto front = context.begin();
  for (auto at = context.begin(); at != context.end(); ++at) {
    if (at->is_last) continue;
    std::rotate(front, at, at + 1);
    ++front;
  }
}

}  // namespace slackwater::scheduler
