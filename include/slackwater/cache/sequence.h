#ifndef SLACKWATER_CACHE_SEQUENCE_H_
#define SLACKWATER_CACHE_SEQUENCE_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/cache/match_depths.h"
#include "slackwater/cache/planned_drop.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/cache/priority.h"
#include "slackwater/device/event.h"
#include "slackwater/device/stream.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

class CacheCore;
struct SequenceState;

enum class SequenceStatus : std::uint8_t { kSuspended, kActive, kClosed };

// "suspended", "active", "closed".
std::string_view to_string(SequenceStatus status);

struct SequenceOptions {
  ReuseScope scope;
  std::span<const TokenId> tokens;  // the prompt; its last token is always left to compute
  RequestId request;                // whose private pages these are
  PriorityCallback priority;        // empty: kDefaultPriority
  // Padding or warm-up: counts in no averages, and in no statistics but for what moves or leaves
  // because of it.
  bool is_dummy = false;
  // It comes back after it was given up: what it finds is no hit, and is counted apart.
  bool is_recompute = false;
  // From what history on new pages count as generated, in tokens; 0: all is prompt. For statistics
  // only.
  std::int64_t expected_prompt_length = 0;
};

struct CommitOptions {
  // After it, the pages hold what is committed; null when they do already. Others see what is
  // committed once it has succeeded; when it fails they never do.
  device::Event written;
  // Nothing is written any more: what is left over is committed too. The state of the end becomes
  // a snapshot, and its entry in the index table kNoSlot; with KvCacheConfig::explicit_states only
  // together with publishes_state.
  bool is_end = false;
  // The caller vouches that once `written` has succeeded, the recurrent states are exactly those of
  // the end of what is committed after this call, and that nothing that is queued by then goes on
  // from there. They become snapshots, wherever that is, and a partial block there is copied.
  //
  // Without is_end the sequence goes on in copies: the entry of its states in the index table names
  // another slot from then on, so look at slots() again. The copies wait for `written`, and the
  // stream of the sequence for them; arrived() tells of them too. Where one fails, commit() says
  // kDataLoss, and the snapshot is good all the same.
  //
  // Skipped and counted (CacheCounters::snapshots_skipped), without a change of slots: where there
  // is a snapshot already, where there is no room for the copies, or where somebody else is still
  // writing the same block. Nothing where no layer is recurrent.
  bool publishes_state = false;
};

// An entry of an index table: no page there.
inline constexpr SlotId kNoSlot{-1};

// One request's share of the cache: pages of a prefix that was found, pages of its own, one state
// per recurrent group.
//
// A sequence is made suspended, holding what it matched. Resumed, its pages are on the device and
// in its index tables; suspended, they may go anywhere and come back in other slots. Three lengths:
// num_committed <= history <= capacity, in tokens: what others may reuse, what is computed, what
// there is room for.
//
// Source: kvcm_v2.md 1.3, 2.7 and 3.3 to 3.8.
// Invariants (KvCacheManager::audit):
//   I1  0 <= num_committed <= history <= capacity; an index table has an entry per block.
//   I2  a block that is not stale has a page: locked while active, held while suspended.
//   I3  no page that others can see is written to.
// Ownership: a claim on its KvCacheManager, which outlives it; move-only; the destructor closes.
// Threads: one at a time; different sequences may be used by different threads.
// Errors: kFailedPrecondition for the wrong status, kInvalidArgument for impossible lengths,
// kResourceExhausted where there is no room: nothing has changed then. kDataLoss where pages were
// lost: close it and compute again.
// Cost: growing within a block takes no lock; no step takes anything from the heap once the cache
// has been full for a while, but for events of work that is under way. Suspend and close are
// O(nodes + window), resume also O(blocks) for the index tables.
class Sequence {
 public:
  Sequence() = default;
  Sequence(Sequence&& other) noexcept;
  Sequence& operator=(Sequence&& other) noexcept;
  ~Sequence() { close(); }

  // Brings its pages to the device. Work queued on `stream` afterwards finds them there; the event
  // returned says whether they all arrived: when it fails, what was computed since is worth
  // nothing, and commit() says kDataLoss. Refused while too much of the device is locked.
  Result<device::Event> resume(device::Stream& stream);
  // Lets the device go, after what is queued on the stream: its pages stay where they are until
  // others want the room. Snapshots that are not published yet are given up. Never refused for want
  // of room.
  Result<void> suspend();
  // Ahead of a resume: the pages that it will need and that lie colder than `tier` come there, all
  // or none; warmer ones stay. Who makes room goes to colder tiers, or is dropped where nobody
  // holds it. The pages are not locked: they count as used just now, and whoever wants room later
  // may send them away again. Returns once the moves are queued; O(blocks). kFailedPrecondition
  // unless suspended, and for a tier that is not there; kDataLoss where pages are lost;
  // kResourceExhausted where there is no room: nothing has changed then.
  Result<void> prefetch(storage::Tier tier);
  // Commits what is left over, and gives everything back. In any state; again: nothing. The state
  // of the end becomes a snapshot where there was no room for a step beyond it since the last
  // commit: capacity() was num_committed() then. What is left over is lost where pages of its own
  // are lost, have not come back yet, or lie on disk: a frame there names its owner.
  void close();

  // New pages for `capacity` tokens, of which `history` are computed; both only what is given.
  // Shrinking gives pages back, down to what is computed or committed. kFailedPrecondition after a
  // commit with is_end; kInvalidArgument also where a table of the caller's has too few entries.
  Result<void> resize(std::optional<std::int64_t> capacity,
                      std::optional<std::int64_t> history = std::nullopt);
  // Gives back the pages past `capacity` tokens, wherever they lie: in any state but closed, for
  // room that a sequence did not use before it was suspended. kInvalidArgument above capacity() or
  // below history(): nothing has changed then.
  Result<void> trim(std::int64_t capacity);

  // Tokens that are computed, from num_committed() on. Raises the history to at least all of them.
  // With CommitPolicy::kEndpointsOnly the history must be that of before or that of after, because
  // the states are taken to be of the end. kDataLoss where options.written has failed, and ever
  // after where there are recurrent layers: nobody knows their states then.
  Result<void> commit(std::span<const TokenId> tokens, const CommitOptions& options = {});
  // In any state but closed. Nothing more will be committed: pages kept for that only are let go,
  // and so are snapshots that are reserved. The block at the end, as far as it is committed,
  // becomes reusable when the sequence is closed: its page may still be written to, past that.
  // Again: nothing.
  Result<void> stop_committing();

  // Names the pages that only somebody who goes on from exactly the committed end will need: of
  // sliding windows those from the end of the stale blocks on, of recurrent groups the snapshot at
  // the end. Nothing where nothing is committed, or where one of them is not there in full: after
  // stop_committing() the block and the state of the end come only with close().
  // kFailedPrecondition before stop_committing() or a commit with is_end.
  Result<std::optional<PlannedDrop>> plan_drop();

  // A page per recurrent group for the state at exactly `position`, past history(): written by a
  // step, published by the commit that covers the position, once that step has succeeded and
  // the block is in the tree; a suspend before that gives it up, counted.
  // kResourceExhausted where there is no room; a snapshot never makes a sequence wait. One that is
  // not written after all must be cancelled before the commit that covers it.
  Result<void> reserve_snapshot(std::int64_t position);
  // Its slot; nothing where none is reserved.
  std::optional<SlotId> snapshot_slot(LayerGroupId group, std::int64_t position) const;
  // Gives it back, when the step did not write it. Nothing where none is reserved.
  void cancel_snapshot(std::int64_t position);

  // CHECK, here and above: the layer group exists.
  // Index tables: for a group with pages per block the slot of each block, or kNoSlot; for a
  // recurrent group one entry. Empty while suspended.
  std::span<const SlotId> slots(LayerGroupId group) const;
  // The caller's own table, kept up to date, which must have room for every block; entries past
  // the blocks, and all while suspended, are kNoSlot. It stays there until the sequence is closed
  // or another one is set. Empty: none. kOutOfRange where there is no such group, kInvalidArgument
  // where it has too few entries: the one before stays then.
  Result<void> set_index_table(LayerGroupId group, std::span<SlotId> table);

  // What it has done counts in the statistics of the cache from now on; before that, and when it is
  // closed, it can be forgotten. Once it is closed: nothing.
  void commit_statistics();
  void discard_statistics();
  RequestStatistics pending_statistics() const;  // without groups once it is closed
  // Of what was found when it was made, the tokens that lay on a tier; 0 where nothing is counted.
  std::int64_t cached_tokens(storage::Tier tier) const;

  SequenceStatus status() const;
  std::int64_t num_committed() const;
  std::int64_t history() const;
  std::int64_t capacity() const;
  std::int64_t num_blocks() const;
  RequestId request() const;
  // Whether all its pages have arrived: what resume() returned, and copies since. Null where
  // nothing is under way.
  device::Event arrived() const;
  const ReuseScope& scope() const;
  // What was found when it was made. Where `reused` is less than `attention`, a snapshot at
  // `content`, less the margin of every match, would have helped: the junction.
  const MatchDepths& match() const;
  std::vector<TokenId> committed_tokens() const;

 private:
  friend class KvCacheManager;
  Sequence(CacheCore* core, SequenceState* state) : core_(core), state_(state) {}

  CacheCore* core_ = nullptr;
  SequenceState* state_ = nullptr;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_SEQUENCE_H_
