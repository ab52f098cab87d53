#ifndef SLACKWATER_ENGINE_STEP_H_
#define SLACKWATER_ENGINE_STEP_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/device/event.h"
#include "slackwater/hybrid/batch.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/kernels/views.h"

namespace slackwater::engine {

struct LiveRequest;

// What became of a row, as the device wrote it. The host reads it once the step has ended; the next
// step on the stream reads it before that.
struct RowOutcome {
  std::int64_t first_position = 0;
  std::int32_t num_tokens = 0;  // that were run
  // Of them, those that stay: all of a chunk; the golden token and accepted drafts of a round. 0
  // past a stop.
  std::int32_t num_kept = 0;
  bool has_ended = false;  // a stop or the limit is reached: later rounds only fold in
  std::vector<kernels::SampleResult> sampled;       // one per kept token of a round
  std::vector<kernels::TokenLogprob> top_logprobs;  // [sampled, num_top_logprobs]
  std::vector<TokenId> drafts;                      // proposed for the next round
  std::optional<Error> error;                       // of sampling

  void clear();
};

// One request's share of a step, as the host queued it. Nothing here points to what the host may
// change while the step runs.
struct StepRow {
  LiveRequest* request = nullptr;
  std::uint64_t life = 0;
  bool is_context = false;
  bool is_last_chunk = false;
  // A token comes out of it: a round, or the last chunk where the next token is not known.
  bool samples = false;
  // Where the row begins; nothing: where `before` ended, which only the device knows.
  std::optional<std::int64_t> first_position;
  // The row of the step before it, where that is not known to the host yet.
  const RowOutcome* before = nullptr;
  std::int32_t num_tokens = 0;
  std::int32_t num_drafts = 0;      // of a round
  std::int32_t num_to_propose = 0;  // drafts for the next round, by the prediction block
  std::size_t first_token = 0;      // of Step::tokens: a chunk, or golden token and drafts
  std::size_t num_known = 0;        // of them, those that the host knows; `before` has the others
  std::size_t drafts_at = 0;        // of Step::drafts: what the draft model proposes
  std::optional<TokenId> next;      // the token after a context whose end is known
  std::int64_t limit = 0;
  // Of Step::blocks: the tables of the target's and the prediction block's attention.
  std::size_t first_block = 0;
  std::size_t num_blocks = 0;
  std::size_t first_mtp_block = 0;
  std::size_t num_mtp_blocks = 0;
};

// A row of a call of the draft model.
struct DraftRow {
  const LiveRequest* request = nullptr;
  std::size_t drafts_at = 0;  // of Step::drafts
  std::int64_t first_position = 0;
  std::size_t first_token = 0;  // of the call's; a later call takes what the one before sampled
  std::int32_t num_tokens = 0;
  std::int32_t draft = -1;  // which draft comes out; -1: none
  std::size_t first_block = 0;
  std::size_t num_blocks = 0;
};

// One call of the draft model. It has tokens and tables of its own: it may be under way while the
// calls after it are prepared.
struct DraftCall {
  hybrid::BatchSetup setup;
  std::vector<TokenId> tokens;
  std::vector<SlotId> blocks;
  std::vector<DraftRow> rows;  // as setup.rows
  std::size_t num_rows = 0;
};

// Everything about one step: what the host asks, and the places where the device answers. Kept from
// step to step for its memory.
struct Step {
  std::int64_t number = 0;
  std::vector<StepRow> rows;
  hybrid::BatchSetup setup;  // of the target; rows as above
  std::vector<TokenId> tokens;
  std::vector<SlotId> blocks;
  bool fails = false;  // on purpose

  // The draft model: proposals before the target's pass, and its own share of contexts after it.
  std::vector<DraftCall> draft_calls;
  std::size_t num_draft_calls = 0;
  DraftCall draft_context;
  std::vector<TokenId> drafts;  // that the draft model has proposed, M places a row

  // Written by the device.
  std::vector<RowOutcome> outcomes;        // [rows]
  std::vector<std::int32_t> num_accepted;  // [rows] golden tokens and accepted drafts

  device::Event done;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_STEP_H_
