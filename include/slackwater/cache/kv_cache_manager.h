#ifndef SLACKWATER_CACHE_KV_CACHE_MANAGER_H_
#define SLACKWATER_CACHE_KV_CACHE_MANAGER_H_

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/page_table.h"
#include "slackwater/cache/cache_event.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/cache/cache_view.h"
#include "slackwater/cache/config.h"
#include "slackwater/cache/layer_groups.h"
#include "slackwater/cache/sequence.h"
#include "slackwater/cache/token_digests.h"
#include "slackwater/device/device.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// All that is kept of sequences: pages per block of full attention and sliding windows, recurrent
// states and snapshots of them, over device, host and disk; which prefixes are known; who leaves
// when room is wanted.
//
// Source: the KV cache manager V2 of TensorRT-LLM, kvcm_v2.md; what is done differently is in
// ARCHITECTURE.md.
// Invariants (audit): those of the prefix tree, of residency and of the sequences.
// Ownership: owns tiers, tree and sequences; the device and the streams passed in outlive it.
// Threads: queries from any number of threads beside one that changes something; calls that change
// something take turns.
// Errors: create() as validate(), the tiers and the file of an operation log: kFailedPrecondition
// where one is there already, kUnavailable where it cannot be made; a log of what was not made is
// taken away again. kFailedPrecondition with the number of open sequences where all must be closed.
class KvCacheManager {
 public:
  static Result<std::unique_ptr<KvCacheManager>> create(device::Device& device,
                                                        KvCacheConfig config);
  ~KvCacheManager();

  // Drops every page that is kept for reuse. Refused while a sequence is open.
  Result<void> clear_reusable_blocks();
  // Drops what is kept for reuse, and waits for all that is queued. Refused while a sequence is
  // open; again: nothing. The memory goes with the manager.
  Result<void> shutdown();

  // Gives a tier more or fewer bytes, whole grains of them, while sequences are suspended: what no
  // longer fits goes to colder tiers or is dropped, what somebody holds is kept. Waits for the
  // pages that move. kFailedPrecondition while a sequence is active, or for a tier that is not
  // there; kInvalidArgument below what the floors need, kOutOfRange above the most that was
  // configured, kResourceExhausted where more is held than would fit: nothing has changed then.
  Result<void> set_quota(storage::Tier tier, std::int64_t bytes);
  std::int64_t quota(storage::Tier tier) const;  // bytes; 0 for a tier that is not there

  // Whether the shares of layer groups are worth changing: enough sequences have ended, the last
  // change is long enough ago, and with shares for the sequences of these days some tier would give
  // some pool group that factor more or fewer slots (RebalanceOptions). Each tier is looked at by
  // itself. `now` is of a clock that does not go back.
  bool need_adjustment(Nanoseconds now) const;
  // Changes the shares of each tier that needs it, at its present quota, while sequences are
  // suspended; nothing where need_adjustment() is false. As with set_quota(), what no longer fits a
  // pool goes to colder tiers or is dropped, what somebody holds is kept, and pages that move are
  // waited for. kFailedPrecondition while a sequence is active, kResourceExhausted where more is
  // held than would fit: nothing has changed then, on any tier. Where something fails on the way,
  // memory that is refused or a disk that does not answer, tiers keep what they have got, coldest
  // first, and all goes on; whether it is worth another try need_adjustment() says after the
  // cooldown.
  Result<void> adjust(Nanoseconds now);

  // A suspended sequence that holds what of its prompt is known.
  Result<Sequence> create_sequence(const SequenceOptions& options);

  // What create_sequence() would find.
  MatchDepths probe_reuse(const ReuseScope& scope, std::span<const TokenId> tokens) const;
  // Ahead of a match: what create_sequence() would hold of this prompt, and lies colder than
  // `tier`, comes there as in Sequence::prefetch(), and nobody holds it afterwards. It counts as
  // used just now. Returns what the prompt matches; errors are those of Sequence::prefetch().
  Result<MatchDepths> prefetch(const ReuseScope& scope, std::span<const TokenId> prompt,
                               storage::Tier tier);
  // The prefix digest of the first full block that a request would have to compute; nothing where
  // that block is not full. Two requests with the same one would compute the same.
  std::optional<Digest128> probe_first_new_block(const ReuseScope& scope,
                                                 std::span<const TokenId> tokens) const;

  // Where snapshots of a prompt of `prompt_length` tokens are worth taking, past what was reused,
  // ascending: at the junction with what is known, every snapshot_interval tokens, at the last
  // block boundary before the end, and one token before the end; the last two and the junction less
  // reuse_match_backoff. So the same prompt, and one that goes on from it, find all but the last
  // tokens. Empty where no layer is recurrent.
  std::vector<std::int64_t> snapshot_points(const Sequence& sequence,
                                            std::int64_t prompt_length) const;

  // Digests that tokens stand for.
  TokenDigests& token_digests();

  const LayerGroups& layer_groups() const;
  std::int32_t tokens_per_block() const;
  // Where the pages of a (layer, role) lie; `slots` is empty. With smaller blocks within a page,
  // `tokens_per_block` is theirs, and subblock i of a slot lies i times the buffer's bytes after
  // the first. kNotFound where there is no such buffer here.
  Result<PageTable> page_table(std::int32_t layer, std::string_view role) const;

  // Zeros for a tier that is not there. CHECK, here and below: the group exists.
  TierRoom room(storage::Tier tier, LayerGroupId group) const;
  // The most slots that the pool group of a layer group could ever have on the device, whatever
  // becomes of quotas and shares: slots have numbers below it.
  std::int64_t max_device_slots(LayerGroupId group) const;
  CacheCounters counters() const;
  // What has happened since the start, as far as it is committed; all zeros where
  // KvCacheConfig::enable_statistics is off.
  CacheStatistics statistics() const;
  // The same since the last time it was taken, or the start; statistics() goes on as it was.
  CacheStatistics take_statistics();
  // All there is to see, and the same in lines for people. O(everything). While no sequence is used
  // by another thread.
  CacheView view() const;
  std::string describe() const;
  std::size_t num_open_sequences() const;
  // Calls in the operation log so far, beside the making of the manager; 0 where there is none.
  std::int64_t num_logged_calls() const;
  // The longest sequence, at most `upper_bound` tokens, for which the device has room beside
  // `batch_size` - 1 sequences of one token; 0 if there is none.
  std::int64_t clamp_max_seq_len(std::int64_t batch_size, std::int64_t upper_bound) const;

  // What has happened to the pages kept for reuse since the last call, in order; keys are made
  // here, while others go on. The first call begins with kCreated. Nothing where
  // KvCacheConfig::max_events is 0.
  DrainedEvents drain_events();
  // All of these pages, blocks before those that follow them. O(everything): for audits and tools.
  std::vector<CachedPage> cached_pages() const;

  // Blocks until everything queued by the cache has ended.
  void synchronize();
  // Aborts with the invariant's number where one does not hold. O(everything). While no sequence is
  // used by another thread.
  void audit() const;

 private:
  explicit KvCacheManager(std::unique_ptr<CacheCore> core);

  std::unique_ptr<CacheCore> core_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_KV_CACHE_MANAGER_H_
