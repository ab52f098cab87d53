#ifndef SLACKWATER_CACHE_SEQUENCE_STATE_H_
#define SLACKWATER_CACHE_SEQUENCE_STATE_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/block_tree.h"
#include "cache/page_run.h"
#include "cache/tuner.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/cache/sequence.h"

namespace slackwater::cache {

// A sequence's share of one layer group.
struct SequenceGroup {
  explicit SequenceGroup(std::pmr::memory_resource* memory) : run(memory), slots(memory) {}

  PageRun run;                     // pages of its own: from `first_block` on, or the one state
  std::int64_t first_block = 0;    // of the run; blocks before the end of the path have none
  BlockRange stale;                // blocks that are not needed any more, and not pinned
  std::pmr::vector<SlotId> slots;  // the index table
  std::span<SlotId> table;         // the caller's own
  GroupUse pending;                // counted, and not committed
};

// Pages that wait for the state at a position: one per recurrent group, null for others.
struct ReservedSnapshot {
  std::int64_t position = 0;
  std::vector<PageId> pages;  // [layer groups]
  device::Event written;
  bool is_committed = false;
};

// Token ranges of a sequence (half-open, tokens):
//   [0, path)               on the path through the tree, shared, pinned by us   -> unpin at close
//   [path, num_committed)   ours, committed, not in the tree: a partial block, or one that
//                           another sequence is still writing                    -> tried again
//   [num_committed, history)  ours, computed
//   [history, capacity)       ours, room
struct SequenceState {
  std::uint32_t index = 0;
  std::uint32_t number = 0;  // how many were made before it
  SequenceStatus status = SequenceStatus::kClosed;
  RequestId request;
  ReuseScope scope;
  PriorityCallback priority;
  MatchDepths match;
  std::uint64_t round = 0;  // suspensions so far
  bool is_dummy = false;    // counts in no statistics and no averages
  LengthSums lengths;

  NodeIndex leaf = kNoNode;          // where the path ends; the root where there is none
  std::int64_t num_path_blocks = 0;  // the last one matched in part before the first resume
  std::int64_t num_committed = 0;
  std::int64_t history = 0;
  std::int64_t capacity = 0;
  std::vector<TokenId> unpublished;  // the tokens [path, num_committed)
  bool is_committing = true;
  bool is_finished = false;      // committed with is_end
  bool ends_with_state = false;  // and the state is known to be of there
  bool was_resumed = false;
  bool is_damaged = false;        // a page of its own was lost
  bool may_be_ahead = false;      // there was room past the end since: the state may be of there
  bool is_state_unknown = false;  // a step has failed, and may have left its state anywhere

  bool is_counted = false;    // in the statistics
  bool is_recompute = false;  // what it finds is no hit
  std::int64_t expected_prompt_length = 0;
  std::array<std::int64_t, kNumTiers> cached_tokens = {};
  TokenUse pending;  // likewise

  std::vector<SequenceGroup> groups;
  std::vector<ReservedSnapshot> snapshots;
  device::Stream* stream = nullptr;
  device::Event arrived;   // of the last resume
  device::Event written;   // of what is committed and not in the tree
  device::Event last_use;  // of the last suspend
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_SEQUENCE_STATE_H_
