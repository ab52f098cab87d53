#ifndef SLACKWATER_HYBRID_HYBRID_REQUEST_H_
#define SLACKWATER_HYBRID_HYBRID_REQUEST_H_

#include <cstdint>
#include <optional>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/sequence.h"
#include "slackwater/device/event.h"
#include "slackwater/hybrid/batch.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/hybrid/slot_registry.h"

namespace slackwater::hybrid {

// A request's state in the recurrent pool of one tag.
//
//   fresh      no slot, nothing saved: the next setup resets its slot
//   set up     `slot` is where its entries lie
//   saved      no slot; `saved` is restored by the next setup, or dropped
struct StateCursor {
  std::optional<SlotId> slot;
  std::optional<SavedSlot> saved;
  std::int64_t num_saves = 0;
  std::optional<SlotId> slot_before;  // of the last suspend, for the counters
  // Replaces P of what is saved, when that is restored.
  std::optional<std::int32_t> accepted_override;
  std::int64_t page_position = 0;  // tokens that the page stands for
  std::int32_t num_records = 0;    // left behind it, accepted or not
  std::int32_t num_pending = 0;    // P: those that are accepted, as far as the host knows
  std::uint64_t changes = 0;       // of what a row begins with
};

// A generation step whose acceptance the host has not read.
struct OpenRound {
  std::uint64_t round = 0;
  std::int32_t num_written = 0;
  std::int32_t num_drafts = 0;
  bool is_on_device = false;  // the acceptance is queued behind the step
};

// A page that waits for the state at a position of the prompt.
struct SnapshotPlace {
  std::int64_t position = 0;
  std::uint64_t written = 0;  // a bit per tag whose step is queued
};

struct HybridRequest {
  RequestId id;
  cache::Sequence sequence;
  cache::ReuseScope scope;
  cache::PriorityCallback priority;
  std::int64_t expected_prompt_length = 0;
  bool is_dummy = false;
  bool has_started = false;  // a save is reserved
  bool was_resumed = false;  // it has pages
  bool is_lost = false;      // must come back as context
  std::uint64_t epoch = 0;
  std::uint64_t round = 0;
  std::int64_t kept = 0;                 // as of the last round whose acceptance is known
  std::uint64_t setup = 0;               // the last one it was a row of
  std::int64_t setup_end = 0;            // where that row may end; 0 once it is queued
  std::vector<StateCursor> cursors;      // [tags]
  std::vector<SnapshotPlace> snapshots;  // ascending
  std::vector<OpenRound> open_rounds;    // oldest first; only the last one may await the host
  // Rounds without drafts, settled when they were queued, of which the host has told nothing; the
  // latest few, oldest first.
  std::vector<OpenRound> settled_ahead;
  device::Event ready;  // of all it was given since it resumed: its pages, what was restored

  // A round whose acceptance only the host can tell.
  bool awaits_host() const { return !open_rounds.empty() && !open_rounds.back().is_on_device; }
  // Whose saved entry this is, and which of those there were of this cursor.
  Digest128 certificate(LayerGroupId group, std::int64_t save) const;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_HYBRID_REQUEST_H_
