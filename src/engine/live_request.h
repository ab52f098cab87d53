#ifndef SLACKWATER_ENGINE_LIVE_REQUEST_H_
#define SLACKWATER_ENGINE_LIVE_REQUEST_H_

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "engine/draft_length.h"
#include "engine/ngram_drafter.h"
#include "engine/sampling_state.h"
#include "engine/step.h"
#include "engine/text_output.h"
#include "slackwater/engine/config.h"
#include "slackwater/engine/request.h"

namespace slackwater::engine {

// Why a request is not in the turn.
enum class Hold : std::uint8_t { kNone, kSuspended, kRecomputed };

// One request, or one choice of it, from submit() to its last output.
//
// A life begins when its state is made and ends when that is given up: what a step of an earlier
// life computed is not looked at. `tokens` outlives them all.
//
//   waiting    no state                                    has_state is false
//   context    tokens [cursor, context_end) are to be run  cursor < context_end
//   rounds     tokens.back() is golden, or the device knows the golden token
//   closing    its last output is told; it goes when none of its rows is under way
struct LiveRequest {
  LiveRequest(RequestId its_id, std::int32_t its_choice, GenerationRequest asked_for,
              const SpeculationConfig& speculation, TextOutput output)
      : id(its_id),
        choice(its_choice),
        asked(std::move(asked_for)),
        sampling(asked, its_choice),
        text(std::move(output)),
        ngrams(speculation.ngram_min, speculation.ngram_max),
        draft_length(speculation.max_drafts, speculation.adapt_length) {}

  const RequestId id;
  const std::int32_t choice;
  GenerationRequest asked;
  SamplingState sampling;
  TextOutput text;
  NgramDrafter ngrams;
  DraftLength draft_length;
  std::vector<TokenId> stop_ids;  // tokens that end it
  std::vector<TokenId> tokens;    // the prompt, and what was sampled as far as the host knows
  std::int64_t num_prompt = 0;
  std::int64_t limit = 0;   // tokens that there can be at most
  bool has_drafts = false;  // it takes part in speculation

  // Of the present life.
  std::uint64_t life = 0;
  bool is_suspended = false;
  bool has_state = false;                     // the state's manager knows it
  std::int64_t num_matched = 0;               // tokens that were found when it began
  std::int64_t cursor = 0;                    // tokens run as context, queued ones included
  std::int64_t context_end = 0;               // tokens to run as context; the next one is golden
  std::vector<std::int64_t> snapshot_points;  // of its context, ascending
  std::int32_t in_flight = 0;                 // of its rows, those under way
  const RowOutcome* before = nullptr;         // of the last of them
  std::int32_t tokens_to_come = 0;            // that they sample at the least
  std::int64_t most_run = 0;                  // tokens run at most, once those have ended
  std::vector<TokenId> drafts;                // for the next round, where the host knows them
  std::int32_t num_proposed = 0;              // of drafts for it, known to the device or the host
  bool are_drafts_known = false;              // `drafts` belongs to the present tokens

  std::int32_t rows_queued = 0;  // of any life: it stays until they have ended
  std::uint64_t half = 0;        // of the overlapped loop with a drafter on the host
  bool is_closing = false;
  Hold hold = Hold::kNone;
  bool has_run_before = false;  // a life of it ended

  std::int64_t num_reused = -1;  // of its prompt, the first time
  std::int32_t num_suspends = 0;
  std::int32_t num_recomputes = 0;
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;

  std::int64_t num_generated() const { return std::ssize(tokens) - num_prompt; }
  bool is_context() const { return !has_state || cursor < context_end; }
  bool is_golden_known() const { return context_end < std::ssize(tokens); }
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_LIVE_REQUEST_H_
