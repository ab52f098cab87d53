#ifndef SLACKWATER_SCHEDULER_PASS_H_
#define SLACKWATER_SCHEDULER_PASS_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/scheduler/scheduler.h"

namespace slackwater::scheduler {

// What the pass under way has done with a request.
enum class Mark : std::uint8_t {
  kNone,
  kPrepared,   // it has its first token to compute, and nothing else yet
  kScheduled,  // never a victim any more
  kSuspended,
  kGone,  // it has lost or given up what it had: not asked again in this pass
};

// One pass over the candidates, from the first question to the list of who runs.
//
// Regions of the list, by index (half-open); victims come from behind whoever needs room:
//   [0, i)        decided: they run, wait for the second phase, or want nothing
//   i             needs room
//   (i, end_)     may be suspended, the youngest first; whoever is takes end_ with him
//   [end_, size)  not visited again in this pass; gives up what it has as the last rung
//
// Source: kda_replay.md 4.3 to 4.5; what differs is in docs/decisions/0013.
// Invariants: those of Scheduler.
// Ownership: none; a value for one call.
// Threads: one.
// Errors: what the residency passes on. What is scheduled is taken back then.
// Cost: O(candidates), and O(candidates) more for every request that suspends somebody.
class Pass {
 public:
  struct Memory {
    std::vector<Mark>& marks;           // [candidates]
    std::vector<std::size_t>& waiting;  // indices of contexts, ascending
  };

  Pass(const SchedulerConfig& config, std::span<const Candidate> candidates,
       RequestResidency& residency, Memory memory, Schedule& schedule);

  Result<void> run();

 private:
  enum class Answer : std::uint8_t { kRoom, kNoRoom, kLost };
  struct Question {
    enum class Kind : std::uint8_t { kPrepare, kContext, kGeneration } kind;
    std::int64_t num_tokens = 0;
    std::int32_t num_drafts = 0;
  };
  struct Chunk {
    std::int64_t num_tokens = 0;
    std::int32_t num_drafts = 0;  // room for them
    bool is_last = false;
  };

  Result<void> run_phases();
  void undo();

  // generation_pass.cc
  Result<void> schedule_generation();
  Result<bool> schedule_round(std::size_t i);

  // context_pass.cc. What returns bool says whether the phase goes on.
  Result<bool> admit_oldest();
  Result<void> extend_oldest();
  Result<void> schedule_context();
  Result<bool> admit_waiting(std::size_t i);
  Result<Answer> ask_for_chunk(std::size_t i, const Chunk& chunk, bool& has_taken);
  bool is_worth_a_try(std::size_t i) const;
  Chunk plan_chunk(const Candidate& candidate, std::int64_t most) const;
  void schedule_chunk(std::size_t i, const Chunk& chunk);
  void give_back(std::size_t i, bool was_active);
  void put_last_chunks_last();

  // pass.cc: the rungs.
  Result<Answer> ask(std::size_t i, const Question& question);
  Result<Answer> ask_with_room(std::size_t i, const Question& question);
  bool is_anyone_ahead(std::size_t i) const;
  bool suspend_youngest_behind(std::size_t i);
  bool recompute_youngest_behind(std::size_t i);
  bool can_suspend(std::size_t v) const;
  bool can_recompute(std::size_t v) const;
  void suspend(std::size_t v);
  void give_up(std::size_t v);

  static bool is_schedulable(const Candidate& candidate) {
    return !candidate.is_in_flight && !candidate.is_held_back;
  }
  bool is_full() const { return num_requests() >= config_.max_batch_size; }
  std::int64_t num_requests() const;
  std::int64_t tokens_left() const { return config_.max_num_tokens - schedule_.num_tokens; }

  const SchedulerConfig& config_;
  const std::span<const Candidate> candidates_;
  RequestResidency& residency_;
  std::vector<Mark>& marks_;
  std::vector<std::size_t>& waiting_;
  Schedule& schedule_;
  const bool can_evict_;
  std::size_t end_;
  std::size_t recompute_end_;        // nobody from here on has anything left to give up
  std::int64_t first_position_ = 0;  // of whoever was prepared last
};

}  // namespace slackwater::scheduler

#endif  // SLACKWATER_SCHEDULER_PASS_H_
