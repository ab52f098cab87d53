#ifndef SLACKWATER_CACHE_CACHE_STATISTICS_H_
#define SLACKWATER_CACHE_CACHE_STATISTICS_H_

#include <array>
#include <cstdint>
#include <vector>

#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// What has happened, counted where it happens.
//
// What a request does is pending until Sequence::commit_statistics(): a scheduler may take a step
// back, and a page that is given back before that was never allocated. Moves and drops are nobody's
// request: they count at once. Dummies count nothing, but for the moves and drops they cause.
//
// Source: kvcm_v2.md 2.6 and 3.15.

// Pages, and the bytes that were read for them: slots on the device, blobs elsewhere.
struct PageFlow {
  std::int64_t pages = 0;
  std::int64_t bytes = 0;
  friend bool operator==(const PageFlow&, const PageFlow&) = default;
};

// What snapshots did for prompts, by a recurrent layer group. Tokens are those of whole prompts.
struct SnapshotStatistics {
  std::int64_t lookups = 0;  // hits + misses; 0 for groups with pages per block
  std::int64_t hits = 0;
  std::int64_t misses = 0;
  std::int64_t tokens_reused = 0;
  std::int64_t tokens_not_reused = 0;
  std::int64_t hits_at_boundary = 0;  // of a block
  std::int64_t hits_inside_block = 0;
  friend bool operator==(const SnapshotStatistics&, const SnapshotStatistics&) = default;
};

// What requests did with the pages of one layer group. A page is that of a block, or a state.
struct GroupUse {
  // Pages of their own: missed + recomputed + generated, and one per state and per copy of a block
  // that is matched in part.
  std::int64_t pages_allocated = 0;
  std::int64_t pages_missed = 0;      // of a prompt, and not found
  std::int64_t pages_recomputed = 0;  // the same, of a request that comes back
  std::int64_t pages_generated = 0;   // past the prompt
  std::int64_t pages_reused_full = 0;
  std::int64_t pages_reused_partial = 0;  // of a block that is matched in part
  PageFlow copied;                        // within the device: private copies, ends of commits
  PageFlow copied_from_host;              // the same, of a page that stays on the host
  SnapshotStatistics snapshots;
  friend bool operator==(const GroupUse&, const GroupUse&) = default;
};

// Tokens that a tier was asked for, and had. A colder tier is asked for what the warmer ones lack.
struct TierTokens {
  std::int64_t queried = 0;
  std::int64_t found = 0;
  friend bool operator==(const TierTokens&, const TierTokens&) = default;
};

// Tokens of prompts. Those of a request that comes back are no hits: it had them before.
struct TokenUse {
  std::int64_t queried = 0;  // with the last one, which is always computed
  std::int64_t reused = 0;
  std::int64_t recompute_queried = 0;
  std::int64_t recompute_reused = 0;
  // Of `queried` and `reused`, by where it lay when the sequence was made. Where there is a
  // recurrent layer, all of it lies where the snapshot lies; else the tokens of a block are shared
  // out evenly among the pages it has, and what is left over is the device's.
  std::array<TierTokens, storage::kNumTiers> tiers;
  friend bool operator==(const TokenUse&, const TokenUse&) = default;
};

// What one request has done and nobody has committed.
struct RequestStatistics {
  std::vector<GroupUse> groups;  // [layer groups]
  TokenUse tokens;
  friend bool operator==(const RequestStatistics&, const RequestStatistics&) = default;
};

struct GroupStatistics {
  GroupUse use;
  // [from][to], in blobs whichever way.
  std::array<std::array<PageFlow, storage::kNumTiers>, storage::kNumTiers> moved;
  // Chosen to leave the last tier. What goes with them, because it is of no use without them, does
  // not count.
  PageFlow dropped;
  std::int64_t certificate_failures = 0;
  // The most slots that were occupied at once in the pool group where its pages lie, whosever they
  // were: looked at when pages are counted or moved.
  std::array<std::int32_t, storage::kNumTiers> peak_slots = {};
  friend bool operator==(const GroupStatistics&, const GroupStatistics&) = default;
};

struct CacheStatistics {
  std::vector<GroupStatistics> groups;  // [layer groups]
  TokenUse tokens;
  friend bool operator==(const CacheStatistics&, const CacheStatistics&) = default;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_STATISTICS_H_
