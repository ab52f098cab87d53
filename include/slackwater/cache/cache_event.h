#ifndef SLACKWATER_CACHE_CACHE_EVENT_H_
#define SLACKWATER_CACHE_CACHE_EVENT_H_

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/cache/priority.h"
#include "slackwater/cache/token_digests.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// Keys of blocks, for whoever is outside of the process: the same in every one, and safe from
// those who choose the tokens.
//
//   root  = SHA-256(mask byte: bit 0 adapter, bit 1 salt; then each of them that is there, 8 bytes)
//   block = SHA-256(key of the block before, or root; then 4 bytes a token, or the 32 of the digest
//                   that a token stands for)
//
// Little-endian. The last block of a prompt may be a partial one, and has a key like any other.
// Text and digests are not told apart by a tag, so that keys are those of other engines: that no
// digest reads as eight tokens is up to whoever makes digests, and SHA-256 sees to it.
//
// Source: kvcm_v2.md 1.1.
// Threads: pure functions, but for the lock of `digests`.
Sha256Digest root_key(const ReuseScope& scope);
// The key after `tokens`, which are those of one block.
Sha256Digest next_block_key(const Sha256Digest& parent, std::span<const TokenId> tokens,
                            const TokenDigests& digests);
// [blocks] the keys of a prompt, the last one of a partial block where it ends within one.
std::vector<Sha256Digest> block_keys(const ReuseScope& scope, std::span<const TokenId> tokens,
                                     std::int32_t tokens_per_block, const TokenDigests& digests);

enum class CacheEventKind : std::uint8_t {
  kCreated,  // nothing is known from here on but what the events after it say
  kStored,   // a page has come
  kRemoved,  // ... and gone
  kUpdated,  // ... lies on another tier now
};
// "created", "stored", "removed", "updated".
std::string_view to_string(CacheEventKind kind);

// Why a page is not known any more.
enum class RemovalCause : std::uint8_t {
  kEvicted,      // others wanted its room
  kQuota,        // its tier got smaller
  kPlannedDrop,  // whoever knew best said that nobody would need it
  kReplaced,     // another page has taken its place, or a longer block has
  kOrphaned,     // what it is of no use without has gone
  kLost,         // its bytes are lost, or were never written
  kCleared,      // everything was cleared
};
// "evicted", "quota", "planned drop", "replaced", "orphaned", "lost", "cleared".
std::string_view to_string(RemovalCause cause);

// A page that is kept for reuse: the share of one layer group in a block, or a snapshot. A page is
// known by (key, group, end), and there is one of each at most.
struct CachedPage {
  Sha256Digest key = {};  // of its block, all tokens of that
  LayerGroupId group;
  // Up to where it goes, in tokens from the start of the sequence: the end of the block, or less
  // where the page covers only the front of it; the position of a snapshot.
  std::int64_t end = 0;
  storage::Tier tier = storage::Tier::kDevice;
  Priority priority = kDefaultPriority;  // the same as long as it is there
  friend bool operator==(const CachedPage&, const CachedPage&) = default;
};

// What has happened to one page that is kept for reuse.
//
// A page is there before others may see it: they do once the step that writes it has succeeded.
// Where that fails, the page is removed as soon as somebody looks, and was never seen.
//
// Source: the event manager of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 2.9 and 3.14; an
// event is about one page here, blocks covered in part and snapshots have some too, and a removal
// says why.
struct CacheEvent {
  std::int64_t id = 0;  // ascending from 0, one by one
  CacheEventKind kind = CacheEventKind::kCreated;
  // But for kCreated. Of one that was removed, as it was then.
  CachedPage page;

  // kCreated: [tiers] slots, of all pool groups.
  std::array<std::int64_t, storage::kNumTiers> num_slots = {};
  // kStored: the key of the block before, or of the root; the tokens of the block, as far as the
  // page covers them; and the digests that some of those stand for, in their order, because such a
  // token means nothing outside of the process.
  Sha256Digest parent = {};
  std::vector<TokenId> tokens;
  std::vector<Sha256Digest> digests;
  RemovalCause cause = RemovalCause::kEvicted;           // kRemoved
  storage::Tier previous_tier = storage::Tier::kDevice;  // kUpdated
};

// What has happened since the last time, in order. Whoever applies all of them has what is in the
// tree at the end.
struct DrainedEvents {
  std::vector<CacheEvent> events;
  // Events that were not kept for want of room, those that were waiting at that time among them.
  // Where there are any, `events` begins with kCreated, and tells everything that is there.
  std::int64_t num_lost = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_EVENT_H_
