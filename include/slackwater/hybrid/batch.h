#ifndef SLACKWATER_HYBRID_BATCH_H_
#define SLACKWATER_HYBRID_BATCH_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/device/event.h"
#include "slackwater/kernels/views.h"

namespace slackwater::hybrid {

// What a row of a batch does.
enum class RowKind : std::uint8_t {
  // A chunk of a prompt, or of what is computed again: all tokens end in the page, and pending
  // drafts are gone.
  kContext,
  // Replays what is pending, runs the first `num_written` tokens into the page, and leaves the
  // others, drafts, as records.
  kGeneration,
  // Of a draft model: the page stays, all tokens are appended to the records.
  kDraft,
};

// One request's share of a batch, as its caller wants it.
struct BatchRow {
  RequestId request;
  RowKind kind = RowKind::kGeneration;
  // Tokens before the row's first one. Nothing: the acceptance of the round before is known on the
  // device only.
  std::optional<std::int64_t> first_position;
  std::int32_t num_tokens = 1;  // T
  std::int32_t num_written =
      1;  // c, of kGeneration: 1 golden token, or more where some are made up
};

// Where the row finds and leaves its state.
struct RowSetup {
  BatchRow row;
  std::uint64_t epoch = 0;
  std::uint64_t round = 0;  // of the step that is set up
  SlotId slot;              // of the recurrent pool
  // P: records before the first token. Nothing: read from the device when the step runs, and held
  // within [0, M], for where the row did not arrive it is anything.
  std::optional<std::int32_t> num_pending;
  // Ascending counts and the pages to write after them; the row's own, where it is written, last.
  std::vector<kernels::StateWrite> writes;
  // When it fails, what the row began with did not arrive: what it computes is worth nothing, and
  // the request comes back as context.
  device::Event ready;
  bool is_dummy = false;
  std::uint64_t changes = 0;  // of the request's state up to here: HybridCacheManager::is_current
};

// A batch that was set up for the recurrent layers of one tag. Kept by the caller from step to step
// for its memory.
struct BatchSetup {
  std::string group_tag;
  std::vector<RowSetup> rows;
  // Rows that were asked for and are not in `rows`: what they had saved is lost. They come back as
  // context.
  std::vector<RequestId> lost;
};

// What a round's verification found, told by the host. Of a round whose acceptance the device has
// recorded it is what the device found; who wants to keep less publishes less.
struct Acceptance {
  RequestId request;
  std::uint64_t epoch = 0;
  std::uint64_t round = 0;
  std::int32_t num_accepted = 0;  // A: drafts, the golden token not counted
  // A stop was found on the device: rounds queued since only fold in what is pending (T = 0). To be
  // said of a round without drafts, too.
  bool has_ended = false;
};

// Where a request stands, as far as the host knows.
struct RequestPosition {
  std::int64_t kept = 0;           // tokens computed and kept: page_position + num_pending
  std::int64_t page_position = 0;  // tokens that the page of the target's state stands for
  std::int32_t num_pending = 0;    // P
  std::uint64_t epoch = 0;
  std::uint64_t round = 0;             // generation steps queued so far
  bool is_acceptance_pending = false;  // by the host
  bool is_on_device = false;           // later rounds, whose acceptance the host has not read
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_BATCH_H_
