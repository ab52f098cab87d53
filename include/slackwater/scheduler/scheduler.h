#ifndef SLACKWATER_SCHEDULER_SCHEDULER_H_
#define SLACKWATER_SCHEDULER_SCHEDULER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::scheduler {

enum class Mark : std::uint8_t;

// What a step may hold, and what may be done to make room for it.
struct SchedulerConfig {
  std::int64_t max_num_tokens = 512;  // of one step, drafts included; >= 1
  std::int32_t max_batch_size = 16;   // requests of one step; >= 1
  // Prompts may be cut into chunks. Off: a prompt is one chunk, or waits.
  bool enable_chunked_prefill = true;
  std::int32_t chunk_unit = 32;            // a chunk that is not the last is a multiple of this
  std::int64_t max_context_length = 1024;  // tokens of one chunk; >= chunk_unit
  // The last rung: whoever is younger gives up what he has and is computed again later.
  bool enable_recompute_pause = true;
  // Passes in a row with candidates, without progress, and with nothing under way, until the
  // scheduler says that it is stuck.
  std::int32_t max_idle_passes = 1000;
  std::int32_t beam_width = 1;  // more is kUnimplemented
};

// kInvalidArgument with the field, its value and what is legal; kUnimplemented for beams.
Result<void> validate(const SchedulerConfig& config);

// What a request wants next.
enum class RequestPhase : std::uint8_t {
  kContext,     // tokens of its prompt, or of what is computed again, are missing
  kGeneration,  // a round: its golden token and drafts
  kToComplete,  // all it needs is under way: it wants nothing
};

// One request, as the owner of all requests sees it when a pass begins.
struct Candidate {
  RequestId request;
  RequestPhase phase = RequestPhase::kContext;
  std::int64_t context_end = 0;  // of kContext: tokens to compute before it generates
  std::int32_t num_drafts = 0;  // of its next round; of kContext, room for them with the last chunk
  bool is_in_flight = false;    // not schedulable, but may be suspended
  // It has computed something: generation, or context past its first chunk. One that has not holds
  // nothing, unless it is active.
  bool is_started = false;
  // Not schedulable in this pass, though nothing of it is in flight: it may be suspended, and has
  // to give up what it has like anybody else.
  bool is_held_back = false;
  // Schedulable, though a step of it runs: it may be suspended, but not recomputed.
  bool is_running = false;
};

// Who holds the state of the requests, as the scheduler sees it. A call that is refused changes
// nothing, except where it says so. kResourceExhausted is no room now; kDataLoss says that what the
// request had is lost and that it has been sent back to its beginning; any other error is passed
// on.
//
// Source: the calls of TensorRT-LLM's V2 scheduler to its cache manager, kda_replay.md 4.2.
// Invariants: a request that was resumed stays active until it is suspended, released or
// recomputed.
// Threads: one.
// Errors: as above.
class RequestResidency {
 public:
  virtual ~RequestResidency() = default;

  // Makes the request's sequence where there is none, which claims what is known of its tokens, and
  // resumes it where it is suspended. Returns the first token to compute.
  virtual Result<std::int64_t> prepare_context(RequestId request) = 0;
  // Room for `num_tokens` from the first token to compute on, and for `num_drafts` past its end.
  virtual Result<void> resize_context(RequestId request, std::int64_t num_tokens,
                                      std::int32_t num_drafts) = 0;
  // Takes back what prepare_context() gave to one that has not started: it is not resident then,
  // and begins anew the next time.
  virtual void release_context(RequestId request) = 0;
  // Resumes it where it is suspended; room for a golden token and drafts.
  virtual Result<void> allocate_generation(RequestId request, std::int32_t num_drafts) = 0;
  // Its pages may leave the device. Never fails. CHECK: it is active.
  virtual void suspend(RequestId request) = 0;
  // It gives up all it has and comes back as context.
  virtual void recompute(RequestId request) = 0;

  // Whether its pages are locked on the device.
  virtual bool is_active(RequestId request) const = 0;
  // Whether suspended pages can leave the device: there is a colder tier.
  virtual bool can_evict() const = 0;
};

struct ScheduledContext {
  RequestId request;
  std::int64_t first_position = 0;
  std::int64_t num_tokens = 0;
  bool is_last = false;  // ends the context: a token is sampled, or it is known already
  friend bool operator==(const ScheduledContext&, const ScheduledContext&) = default;
};

struct ScheduledGeneration {
  RequestId request;
  std::int32_t num_drafts = 0;
  friend bool operator==(const ScheduledGeneration&, const ScheduledGeneration&) = default;
};

// What a pass decided. Kept by the caller from pass to pass for its memory.
struct Schedule {
  std::vector<ScheduledContext> contexts;  // those that do not end their context first
  std::vector<ScheduledGeneration> generations;
  std::vector<RequestId> suspended;   // in this pass, in the order in which they were
  std::vector<RequestId> recomputed;  // in this pass: they come back as context
  std::vector<RequestId> lost;        // what they had is lost: they come back as context, too
  std::int64_t num_tokens = 0;        // drafts included

  bool is_empty() const { return contexts.empty() && generations.empty(); }
  void clear();
};

// Decides, step by step, who runs: in the order of arrival, always.
//
// Two passes over the list. Generation first, oldest first: where there is no room for one, the
// youngest started request behind it is suspended, and so on until there is. Then, as the last
// rung, whoever is youngest gives up what he has; with a host tier only for one who has nobody
// ahead of him, since the others lose nothing by waiting. Then it is tried without drafts, and then
// it suspends itself. Context second, in chunks, with what is left of the budgets; but a context
// that is the oldest of all has a unit and its room before anybody generates. There is no queue of
// suspended requests: each is tried again when the pass gets to it.
//
// Source: the V2 scheduler of TensorRT-LLM, kda_replay.md 4; docs/decisions/0013.
// Invariants:
//   I1  a step has at most max_batch_size requests and max_num_tokens tokens, and each request
//       once.
//   I2  nobody is suspended or recomputed for somebody younger.
//   I3  who is scheduled is active and has the room that was asked for.
//   I4  the oldest request makes progress in every pass in which it wants something and is not in
//       flight, provided that it fits alone: so it always finishes. Where younger ones in flight
//       hold what it needs, nobody is scheduled, and it is free in the next pass.
// Ownership: none.
// Threads: one.
// Errors: kResourceExhausted when it is stuck, with the remedies; what the residency passes on.
// Cost: O(candidates) and one call of the residency per request that is tried; nothing is allocated
// after the longest list.
class Scheduler {
 public:
  // CHECK: the configuration is valid.
  explicit Scheduler(SchedulerConfig config);

  // One pass over `candidates`, which are in the order of arrival. `is_work_under_way`: something
  // that was queued may give room or candidates when it ends, so a pass without progress does not
  // count. After an error nobody is scheduled, and contexts that were to begin are released; who
  // was suspended, recomputed or lost is so all the same, and listed.
  Result<void> schedule(std::span<const Candidate> candidates, RequestResidency& residency,
                        bool is_work_under_way, Schedule& schedule);

  const SchedulerConfig& config() const { return config_; }

 private:
  SchedulerConfig config_;
  std::int32_t idle_passes_ = 0;
  // Of the pass under way; kept for their memory.
  std::vector<Mark> marks_;
  std::vector<std::size_t> waiting_;
};

}  // namespace slackwater::scheduler

#endif  // SLACKWATER_SCHEDULER_SCHEDULER_H_
