#ifndef SLACKWATER_CACHE_CACHE_VIEW_H_
#define SLACKWATER_CACHE_CACHE_VIEW_H_

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/cache/layer_kind.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/cache/priority.h"
#include "slackwater/cache/sequence.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// Slots of one tier for one layer group: total = free + evictable + unavailable.
struct TierRoom {
  std::int32_t total = 0;
  std::int32_t free = 0;
  std::int32_t evictable = 0;
  std::int32_t unavailable = 0;
  friend bool operator==(const TierRoom&, const TierRoom&) = default;
};

// What has happened, in totals.
struct CacheCounters {
  std::int64_t pages_dropped = 0;  // chosen to leave the last tier, or given up by a plan
  std::int64_t snapshots_published = 0;
  std::int64_t snapshots_skipped = 0;       // no room, there already, or suspended before that
  std::int64_t certificate_mismatches = 0;  // counted as misses
  friend bool operator==(const CacheCounters&, const CacheCounters&) = default;
};

// All there is to see of a cache at one moment, as plain data: what holds what, and what may leave.
// Everything is in a fixed order: equal caches have equal views.

// Pages by tier.
using PagesByTier = std::array<std::int32_t, storage::kNumTiers>;

struct GroupView {
  std::string name;               // "target: full attention"
  bool has_block_pages = true;    // not of recurrent layers, which have a state and snapshots
  bool needs_every_block = true;  // of full attention only
  std::int64_t page_bytes = 0;    // on the device
  std::int64_t blob_bytes = 0;    // off it
  friend bool operator==(const GroupView&, const GroupView&) = default;
};

struct TierView {
  storage::Tier tier = storage::Tier::kDevice;
  std::int64_t quota_bytes = 0;
  std::int64_t used_bytes = 0;  // of occupied slots
  friend bool operator==(const TierView&, const TierView&) = default;
};

// A pool group of one tier. What is unavailable is locked, or held where there is no colder tier,
// or on disk nobody's: found at the start, or out of service.
struct PoolView {
  storage::Tier tier = storage::Tier::kDevice;
  std::size_t pool = 0;              // within the tier
  std::vector<LayerGroupId> groups;  // who compete for it
  TierRoom room;
  std::int32_t num_locked = 0;    // of the unavailable ones, on the device
  std::int32_t num_reserved = 0;  // of the free ones: for pages that change places
  std::int64_t slot_bytes = 0;
  friend bool operator==(const PoolView&, const PoolView&) = default;
};

// A sequence's share of one layer group.
struct SequenceGroupView {
  PagesByTier own = {};     // its own: of blocks, or its state
  PagesByTier shared = {};  // of the tree, which it locks while active and holds while suspended
  BlockRange stale;         // blocks that it does not need any more
  std::int64_t first_own_block = 0;
  GroupUse pending;  // counted, and not committed
  friend bool operator==(const SequenceGroupView&, const SequenceGroupView&) = default;
};

struct SequenceView {
  RequestId request;
  SequenceStatus status = SequenceStatus::kSuspended;
  ReuseScope scope;
  std::int64_t num_committed = 0;
  std::int64_t history = 0;
  std::int64_t capacity = 0;
  std::uint32_t leaf = 0;            // the node where its path ends
  std::int64_t num_path_blocks = 0;  // blocks of the path; those after it are its own
  std::int64_t num_unpublished = 0;  // tokens that are committed and not in the tree
  bool was_resumed = false;
  bool is_committing = true;
  bool is_damaged = false;  // pages of its own are lost
  TokenUse pending;
  std::vector<SequenceGroupView> groups;         // [layer groups]
  std::vector<std::int64_t> reserved_snapshots;  // positions
  friend bool operator==(const SequenceView&, const SequenceView&) = default;
};

struct SnapshotView {
  std::int64_t position = 0;
  std::optional<storage::Tier> tier;  // nothing: lost, and somebody still holds it
  std::int32_t num_locks = 0;
  std::int32_t num_holds = 0;
  friend bool operator==(const SnapshotView&, const SnapshotView&) = default;
};

// A layer group's pages of one node.
struct NodeGroupView {
  PagesByTier pages = {};
  PagesByTier evictable = {};
  Priority priority = kDefaultPriority;
  std::vector<std::optional<storage::Tier>> blocks;  // [blocks] where each page lies
  std::vector<SnapshotView> snapshots;               // ascending
  friend bool operator==(const NodeGroupView&, const NodeGroupView&) = default;
};

struct NodeView {
  std::uint32_t index = 0;
  std::optional<std::uint32_t> parent;  // nothing: a root
  ReuseScope scope;                     // of a root
  std::int32_t first_block = 0;
  std::int32_t num_blocks = 0;
  std::int32_t num_written = 0;  // leading blocks that are known to be written
  std::int32_t num_children = 0;
  std::int32_t num_locks = 0;  // active sequences whose path goes through here
  std::int32_t num_holds = 0;  // suspended ones
  bool is_broken = false;      // a block after those that are written has lost its bytes
  std::vector<TokenId> tokens;
  std::vector<NodeGroupView> groups;  // [layer groups]; of a root none
  friend bool operator==(const NodeView&, const NodeView&) = default;
};

struct TreeView {
  std::int64_t num_roots = 0;
  std::int64_t num_blocks = 0;
  std::int64_t num_tokens = 0;
  std::vector<NodeView> nodes;  // by index, roots too
  friend bool operator==(const TreeView&, const TreeView&) = default;
};

struct CacheView {
  std::int32_t tokens_per_block = 0;
  std::vector<GroupView> groups;        // [layer groups]
  std::vector<TierView> tiers;          // those that are there
  std::vector<PoolView> pools;          // by tier and number
  std::vector<SequenceView> sequences;  // open ones
  TreeView tree;
  CacheCounters counters;
  bool has_statistics = false;
  CacheStatistics statistics;
  friend bool operator==(const CacheView&, const CacheView&) = default;
};

// Lines for people, one fact each.
std::string describe(const CacheView& view);
// The tree, a line per node below that of its parent: its blocks, its first tokens, who is on its
// path, and for each layer group where its pages lie, block by block (d: device, h: host, k: disk,
// -: nowhere; in capitals what may not leave), or its snapshots by position.
std::string describe_tree(const TreeView& tree);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_VIEW_H_
