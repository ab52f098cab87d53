#include "scheduler/pass.h"

#include <algorithm>

#include "slackwater/base/mutant.h"

namespace slackwater::scheduler {

Pass::Pass(const SchedulerConfig& config, std::span<const Candidate> candidates,
           RequestResidency& residency, Memory memory, Schedule& schedule)
    : config_(config),
      candidates_(candidates),
      residency_(residency),
      marks_(memory.marks),
      waiting_(memory.waiting),
      schedule_(schedule),
      can_evict_(residency.can_evict()),
      end_(candidates.size()),
      recompute_end_(candidates.size()) {
  marks_.assign(candidates.size(), Mark::kNone);
  waiting_.clear();
}

std::int64_t Pass::num_requests() const {
  return std::ssize(schedule_.contexts) + std::ssize(schedule_.generations);
}

Result<void> Pass::run() {
  const Result<void> done = run_phases();
  if (done.has_value()) {
    put_last_chunks_last();
  } else {
    undo();
  }
  return done;
}

Result<void> Pass::run_phases() {
  SLACKWATER_ASSIGN_OR_RETURN(const bool goes_on, admit_oldest());
  if (!goes_on) return {};
  SLACKWATER_RETURN_IF_ERROR(schedule_generation());
  return schedule_context();
}

// Who was suspended, recomputed or lost stays so, and in the lists that say it. Room that was given
// to those who have started stays theirs: they ask for it again.
void Pass::undo() {
  for (std::size_t i = 0; i < candidates_.size(); ++i) {
    const bool is_admitted = marks_[i] == Mark::kPrepared || marks_[i] == Mark::kScheduled;
    const Candidate& candidate = candidates_[i];
    if (!is_admitted || candidate.phase != RequestPhase::kContext || candidate.is_started) continue;
    if (SLACKWATER_MUTANT(failed_pass_keeps_admissions)) continue;
    residency_.release_context(candidate.request);
    marks_[i] = Mark::kNone;
  }
  schedule_.contexts.clear();
  schedule_.generations.clear();
  schedule_.num_tokens = 0;
}

Result<Pass::Answer> Pass::ask(std::size_t i, const Question& question) {
  const RequestId request = candidates_[i].request;
  Result<void> room;
  switch (question.kind) {
    case Question::Kind::kPrepare: {
      const Result<std::int64_t> first = residency_.prepare_context(request);
      if (first.has_value()) {
        first_position_ = *first;
        marks_[i] = Mark::kPrepared;
      } else {
        room = tl::unexpected<Error>(first.error());
      }
      break;
    }
    case Question::Kind::kContext:
      room = residency_.resize_context(request, question.num_tokens, question.num_drafts);
      break;
    case Question::Kind::kGeneration:
      room = residency_.allocate_generation(request, question.num_drafts);
      break;
  }
  if (room.has_value()) return Answer::kRoom;
  if (room.error().code() == ErrorCode::kResourceExhausted) return Answer::kNoRoom;
  const bool is_lost = room.error().code() == ErrorCode::kDataLoss;
  if (!is_lost || SLACKWATER_MUTANT(loss_ends_the_pass)) {
    return tl::unexpected<Error>(room.error());
  }
  // Its pages are free now and it has to be computed again; nobody else is concerned.
  schedule_.lost.push_back(request);
  if (!SLACKWATER_MUTANT(lost_is_asked_again)) marks_[i] = Mark::kGone;
  return Answer::kLost;
}

// Asks, and takes from who is younger until there is room or nobody is left to take from: first
// what comes back without loss, then what has to be computed again.
Result<Pass::Answer> Pass::ask_with_room(std::size_t i, const Question& question) {
  SLACKWATER_ASSIGN_OR_RETURN(Answer answer, ask(i, question));
  while (answer == Answer::kNoRoom && suspend_youngest_behind(i)) {
    SLACKWATER_ASSIGN_OR_RETURN(answer, ask(i, question));
  }
  // With a host, waiting loses nothing, and somebody ahead will be done some time; what lies there
  // may not even be what is in the way. Without one, room comes from nowhere else.
  const bool may_wait = can_evict_ && is_anyone_ahead(i) && !SLACKWATER_MUTANT(recomputes_for_all);
  while (answer == Answer::kNoRoom && !may_wait && recompute_youngest_behind(i)) {
    SLACKWATER_ASSIGN_OR_RETURN(answer, ask(i, question));
  }
  return answer;
}

// Whether somebody older is under way, or will be with this pass or the next.
bool Pass::is_anyone_ahead(std::size_t i) const {
  const auto is_under_way = [](const Candidate& candidate) {
    return !is_schedulable(candidate) || candidate.is_running ||
           candidate.phase == RequestPhase::kToComplete;
  };
  return !schedule_.is_empty() || std::ranges::any_of(candidates_.first(i), is_under_way);
}

bool Pass::suspend_youngest_behind(std::size_t i) {
  // Where nothing is colder, a suspended page stays where it is.
  if (!can_evict_ && !SLACKWATER_MUTANT(suspends_without_a_host)) return false;
  const std::size_t first = SLACKWATER_MUTANT(elders_are_suspended) ? 0 : i + 1;
  for (std::size_t at = end_; at-- > first;) {
    const std::size_t v = SLACKWATER_MUTANT(eldest_is_suspended_first) ? first + end_ - 1 - at : at;
    if (!can_suspend(v)) continue;
    suspend(v);
    if (!SLACKWATER_MUTANT(victim_is_visited_again)) end_ = v;
    return true;
  }
  return false;
}

// A frontier of its own, from the very end: it also takes from those that ordinary eviction passes
// over because they are asleep already, or were sent to sleep in this pass. Nobody becomes one who
// can be taken from within a pass, so it only ever moves to the front.
bool Pass::recompute_youngest_behind(std::size_t i) {
  const std::size_t first = SLACKWATER_MUTANT(elders_are_recomputed) ? 0 : i + 1;
  while (recompute_end_ > first) {
    const std::size_t v = --recompute_end_;
    if (SLACKWATER_MUTANT(recompute_within_the_range) && v >= end_) continue;
    if (!can_recompute(v)) continue;
    give_up(v);
    if (SLACKWATER_MUTANT(recompute_shrinks_the_range)) end_ = std::min(end_, v);
    return true;
  }
  return false;
}

// In flight or not: the step that runs is waited for by whoever gets the pages.
bool Pass::can_suspend(std::size_t v) const {
  const Candidate& candidate = candidates_[v];
  if (marks_[v] != Mark::kNone) return false;
  if (SLACKWATER_MUTANT(in_flight_is_no_victim) && candidate.is_in_flight) return false;
  if (!candidate.is_started && !SLACKWATER_MUTANT(first_chunk_is_suspended)) return false;
  // All it needs is under way; its pages come back without a move.
  if (candidate.phase == RequestPhase::kToComplete) return false;
  return residency_.is_active(candidate.request) || SLACKWATER_MUTANT(victim_is_asleep);
}

bool Pass::can_recompute(std::size_t v) const {
  const Candidate& candidate = candidates_[v];
  if (marks_[v] != Mark::kNone && marks_[v] != Mark::kSuspended) return false;
  if (SLACKWATER_MUTANT(suspended_is_never_recomputed) && marks_[v] == Mark::kSuspended) {
    return false;
  }
  // A step is writing there, and its tokens are still to come.
  const bool is_written = candidate.is_in_flight || candidate.is_running;
  if (is_written && !SLACKWATER_MUTANT(in_flight_is_recomputed)) return false;
  if (candidate.phase == RequestPhase::kToComplete) return false;
  // One that has not begun loses nothing: its batch was not queued.
  if (!candidate.is_started) return residency_.is_active(candidate.request);
  return config_.enable_recompute_pause || SLACKWATER_MUTANT(recompute_is_always_on);
}

void Pass::suspend(std::size_t v) {
  residency_.suspend(candidates_[v].request);
  marks_[v] = Mark::kSuspended;
  schedule_.suspended.push_back(candidates_[v].request);
}

void Pass::give_up(std::size_t v) {
  const Candidate& candidate = candidates_[v];
  if (!candidate.is_started) {
    residency_.release_context(candidate.request);
  } else {
    residency_.recompute(candidate.request);
    schedule_.recomputed.push_back(candidate.request);
    if (!SLACKWATER_MUTANT(recomputed_stays_suspended)) {
      std::erase(schedule_.suspended, candidate.request);
    }
  }
  if (!SLACKWATER_MUTANT(recomputed_is_asked_again)) marks_[v] = Mark::kGone;
}

}  // namespace slackwater::scheduler
