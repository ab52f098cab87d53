#ifndef SLACKWATER_CACHE_CACHE_HISTORY_H_
#define SLACKWATER_CACHE_CACHE_HISTORY_H_

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/cache/cache_event.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/cache/match_depths.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

class GroupKind;

// A page that was known and is gone.
struct PageRemoval {
  std::string call;  // during which it went
  RemovalCause cause = RemovalCause::kEvicted;
  storage::Tier tier = storage::Tier::kDevice;  // on which it lay
  // Where room was wanted: by which slots the pool group of the last tier, that of `pool`, would
  // have kept it until now, for pages leave in order. 0: no room would have helped.
  LayerGroupId pool;
  std::int64_t slots_to_keep = 0;
  std::int64_t bytes_to_keep = 0;
};

// What one layer group has to say about a prompt, by itself.
struct GroupExplanation {
  LayerGroupId group;
  std::string name;
  std::int64_t served = 0;       // tokens from which a sequence could go on with its pages
  std::int64_t served_once = 0;  // the same, had none of its pages ever gone
  // Up to where the page goes that is missing first; nothing where all of the prompt is served. For
  // a recurrent group, the next snapshot there was; the end of the prompt where there was none.
  std::optional<std::int64_t> missing_end;
  std::optional<PageRemoval> missing;  // nothing: there never was such a page
  // Of those that are missing up to `served_once`, the one for which most room is needed.
  std::optional<PageRemoval> worst;
};

struct MatchExplanation {
  MatchDepths match;
  std::vector<GroupExplanation> groups;  // [layer groups]
};

// Why a match ends where it ends, in lines for people.
std::string describe(const MatchExplanation& explanation);

// Remembers what a cache has kept for reuse and why it is gone: more than the cache itself does,
// for whoever looks at what it did (LogReplay).
//
// Invariants:
//   I1  a page that is there now is there here.
// Ownership: the manager outlives it.
// Threads: one at a time.
// Errors: CHECK: the manager makes events, and nobody else drains them.
// Cost: memory for every page there ever was, about 200 bytes and its tokens.
class CacheHistory {
 public:
  // What the manager was made with: KvCacheConfig.
  struct ReuseOptions {
    bool enable_partial_reuse = true;
    std::int64_t reuse_match_backoff = 0;
  };
  explicit CacheHistory(KvCacheManager& manager) : CacheHistory(manager, ReuseOptions()) {}
  CacheHistory(KvCacheManager& manager, const ReuseOptions& reuse);
  ~CacheHistory();

  // Takes in what a call has done; `call` says which one it was.
  void note_call(std::string_view call);
  // What every layer group can serve of a prompt, and what is missing.
  MatchExplanation explain(const ReuseScope& scope, std::span<const TokenId> tokens) const;

 private:
  struct Removal {
    std::size_t call = 0;  // in calls_
    RemovalCause cause = RemovalCause::kEvicted;
    storage::Tier tier = storage::Tier::kDevice;
    // Where room was wanted: in which pool, and how many pages that one had dropped before.
    std::size_t pool = 0;
    std::int64_t num_before = 0;
    bool is_for_room = false;
  };
  struct Page {
    Sha256Digest key = {};
    LayerGroupId group;
    storage::Tier tier = storage::Tier::kDevice;
    std::int64_t end = 0;
    std::vector<TokenId> tokens;  // of its block, as far as it covers them
    std::optional<Removal> removal;
  };
  class Offer;

  struct Pool {
    std::size_t first_group = 0;  // of those that share it: its number
    std::int64_t slot_bytes = 0;
  };

  void note(const CacheEvent& event);
  void find_root(const CachedPage& page);
  Page* find(const CachedPage& page);
  std::int64_t slots_to_keep(const Removal& removal) const;
  PageRemoval describe_removal(const Removal& removal) const;
  GroupExplanation explain_group(std::size_t group, const ReuseScope& scope,
                                 std::span<const TokenId> prompt) const;

  KvCacheManager& manager_;
  const ReuseOptions reuse_;
  std::vector<std::unique_ptr<GroupKind>> kinds_;
  std::vector<Pool> pools_;                          // [layer groups] of the coldest tier
  std::map<Sha256Digest, std::vector<Page>> pages_;  // by the key of the block before
  std::map<Sha256Digest, Sha256Digest> parents_;     // of blocks that have pages
  std::vector<std::string> calls_;                   // during which something went
  std::vector<std::int64_t> num_dropped_;            // [pools] so far
  std::map<Sha256Digest, Removal> roots_;            // of the call at hand, by block
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_HISTORY_H_
