#ifndef SLACKWATER_ENGINE_STATISTICS_H_
#define SLACKWATER_ENGINE_STATISTICS_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/cache/cache_view.h"
#include "slackwater/hybrid/hybrid_view.h"

namespace slackwater::engine {

// Where a request stands. It may come back from any state but the last.
enum class RequestState : std::uint8_t {
  kWaiting,    // has nothing: new, or to be computed again
  kContext,    // computing its prompt, resident
  kRunning,    // generating, resident
  kSuspended,  // has state, and none of it need be on the device
  kFinished,
};
std::string_view to_string(RequestState state);

// What has happened since the start. Times are of the thread that calls step().
struct EngineStatistics {
  // Requests: choices count each.
  std::int64_t submitted = 0;
  std::int64_t finished = 0;  // of any reason but the next two
  std::int64_t cancelled = 0;
  std::int64_t failed = 0;
  std::array<std::int64_t, 5> requests_by_state =
      {};  // now, by RequestState; finished ones of ever

  // Steps and tokens.
  std::int64_t steps = 0;
  std::int64_t failed_steps = 0;
  std::int64_t prompt_tokens = 0;      // computed as context the first time
  std::int64_t recomputed_tokens = 0;  // computed as context again
  std::int64_t generated_tokens = 0;
  std::int64_t rounds = 0;  // of generation, one per request and step
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;

  // Pressure.
  std::int64_t suspends = 0;
  std::int64_t suspends_in_flight = 0;  // of a request whose step had not ended
  std::int64_t resumes = 0;
  std::int64_t recomputes = 0;  // given up to make room
  std::int64_t losses = 0;      // given up because a step or a copy failed
  std::int64_t rebalances = 0;  // that changed a share

  // Where the time of steps goes.
  Nanoseconds schedule_time{0};  // planning, suspending, granting
  Nanoseconds prepare_time{0};   // slots, drafts of the host, queueing
  Nanoseconds wait_time{0};      // for the device
  Nanoseconds outcome_time{0};   // tokens, text, acceptance, publishing
  Nanoseconds rebalance_time{0};
  Nanoseconds pressure_time{0};  // of the above, what suspends, resumes and recomputes took

  hybrid::HybridCounters hybrid;
  cache::CacheCounters cache;
  cache::CacheStatistics cache_statistics;
};

// One request, to look at.
struct RequestView {
  RequestId request;
  std::int32_t choice = 0;
  RequestState state = RequestState::kWaiting;
  std::optional<SlotId> slot;  // of the recurrent pool, where it is resident
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_tokens = 0;    // prompt and answer
  std::int64_t num_computed = 0;  // of them
  std::int32_t num_pending = 0;   // drafts accepted, and not folded in yet
  std::int32_t num_suspends = 0;
  std::int32_t num_recomputes = 0;
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;
  std::int32_t draft_length = 0;  // of its next round
  bool is_in_flight = false;
  bool is_held = false;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_STATISTICS_H_
