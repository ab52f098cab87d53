#ifndef SLACKWATER_CACHE_EVENT_QUEUE_H_
#define SLACKWATER_CACHE_EVENT_QUEUE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/cache_event.h"
#include "slackwater/cache/token_digests.h"

namespace slackwater::cache {

// What is noted when something happens: all that an event needs and that will be gone when it is
// drained. Blocks that come and go are noted too, because keys are chained over them.
struct EventRecord {
  enum class Kind : std::uint8_t {
    kBlockAdded,       // after another block
    kFirstBlockAdded,  // after a root
    kBlockRemoved,
    kStored,
    kRemoved,
    kUpdated,
  };

  Digest128 prefix;      // of the block
  Digest128 parent;      // kBlockAdded: of the block before; kFirstBlockAdded: low is the scope's
                         // adapter, high its salt
  std::int64_t end = 0;  // of a page
  std::uint64_t first_token = 0;  // in the tokens of the batch: kBlockAdded, kFirstBlockAdded,
  std::uint32_t num_tokens = 0;   // and kStored
  std::uint16_t group = 0;
  Kind kind = Kind::kBlockAdded;
  storage::Tier tier = storage::Tier::kDevice;
  storage::Tier previous_tier = storage::Tier::kDevice;
  Priority priority = kDefaultPriority;
  RemovalCause cause = RemovalCause::kEvicted;
  std::uint8_t scope_mask = 0;  // kFirstBlockAdded: bit 0 there is an adapter, bit 1 a salt

  bool is_of_page() const { return kind >= Kind::kStored; }
};
static_assert(sizeof(EventRecord) == 64);

// Records in the order in which things happened. Digest tokens among the tokens are retained.
struct EventBatch {
  std::vector<EventRecord> records;
  std::vector<TokenId> tokens;
  std::int64_t num_events = 0;  // records that are of pages

  // `tokens` are the front of those of the block of the record. They are there once for records of
  // one block in a row.
  void add(const EventRecord& record, std::span<const TokenId> block_tokens, TokenDigests& digests);
  // Whether tokens would be added for it.
  bool has_tokens_of(const EventRecord& record, std::size_t num_tokens) const {
    return num_tokens <= num_shared_ && record.prefix == shared_;
  }
  // The digest tokens are for somebody else to release.
  void clear();

 private:
  Digest128 shared_;            // the block whose tokens are the last ones
  std::size_t num_shared_ = 0;  // so many
};

// What has happened to the tree since somebody looked. Room for it is taken once; when there is no
// more, what is in it is worth nothing, because whoever reads it misses the rest: it is given up,
// and nothing is noted until somebody looks, who then asks the tree.
//
// Source: kvcm_v2.md 3.14 for the bound; that one keeps the newest events, of which no mirror can
// be built.
// Invariants (check_invariants):
//   I1  at most max_events records of pages, kRecordsPerEvent times as many records.
//   I2  what has overflown is empty.
// Ownership: owns the records; retains their digest tokens in `digests`, which outlives it.
// Threads: one at a time.
// Errors: none.
// Cost: add() 64 bytes and the tokens, no heap allocation, no hash.
class EventQueue {
 public:
  // Records of blocks have no bound of their own, but no page comes or goes without few of them.
  static constexpr std::size_t kRecordsPerEvent = 3;

  EventQueue(std::int32_t max_events, std::int32_t tokens_per_block, TokenDigests& digests);

  void add(const EventRecord& record, std::span<const TokenId> block_tokens = {});

  // All that is in it, which leaves it empty; the digest tokens in it are the caller's to release.
  // Of what has overflown, nothing but the count.
  struct Taken {
    EventBatch batch;
    bool has_overflown = false;
    std::int64_t num_lost = 0;
  };
  Taken take();

  void check_invariants() const;

 private:
  void overflow();

  const std::int64_t max_events_;
  std::size_t max_tokens_ = 0;
  TokenDigests& digests_;
  EventBatch batch_;
  bool has_overflown_ = false;
  std::int64_t num_lost_ = 0;
};

// Makes events of records: knows the keys of all blocks of the tree, so that a page finds its own.
//
// Invariants:
//   I1  the keys are those of the blocks that were added and not removed since the last
//       begin_anew().
// Ownership: owns the keys.
// Threads: one at a time.
// Errors: CHECK: a block is added once and after the one before; a page is of a block that is
// there. Blocks are told apart by their prefix digests: prefix_digest.h says whom that trusts.
// Cost: a SHA-256 per block; about 120 bytes per block of the tree.
class EventReader {
 public:
  // A kCreated event: whatever was known is not.
  void begin_anew(const std::array<std::int64_t, storage::kNumTiers>& num_slots,
                  std::vector<CacheEvent>& events);
  bool has_begun() const { return next_id_ > 0; }
  // Appends the events of a batch.
  void read(const EventBatch& batch, const TokenDigests& digests, std::vector<CacheEvent>& events);

 private:
  struct BlockKeys {
    Sha256Digest key;
    Sha256Digest parent;
  };
  struct DigestHash {
    std::size_t operator()(const Digest128& digest) const {
      return static_cast<std::size_t>(digest.low);
    }
  };

  void add_block(const EventRecord& record, std::span<const TokenId> tokens,
                 const TokenDigests& digests);
  CacheEvent page_event(const EventRecord& record) const;

  std::unordered_map<Digest128, BlockKeys, DigestHash> keys_;
  std::int64_t next_id_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_EVENT_QUEUE_H_
