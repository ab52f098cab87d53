#ifndef SLACKWATER_CACHE_CACHE_MIRROR_H_
#define SLACKWATER_CACHE_CACHE_MIRROR_H_

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <tuple>

#include "slackwater/cache/cache_event.h"

namespace slackwater::cache {

// What a cache keeps for reuse, as whoever knows nothing but its events sees it.
//
// Source: kvcm_v2.md 5, number 25.
// Invariants: that of whoever makes the events; it holds what they come to.
// Ownership: owns its entries.
// Threads: one at a time.
// Errors: CHECK: ids ascend one by one; a page is stored once before it is updated or removed, and
// lies where its events say.
// Cost: O(log pages) an event.
class CacheMirror {
 public:
  void apply(std::span<const CacheEvent> events);

  std::size_t num_pages() const { return pages_.size(); }
  // Nothing for a page that is not there.
  std::optional<CachedPage> find(const Sha256Digest& key, LayerGroupId group,
                                 std::int64_t end) const;
  // What is told apart first, where it holds anything else than `pages`.
  std::optional<std::string> difference(std::span<const CachedPage> pages) const;

 private:
  using Name = std::tuple<Sha256Digest, LayerGroupId, std::int64_t>;
  static Name name(const CachedPage& page) { return {page.key, page.group, page.end}; }

  void apply(const CacheEvent& event);

  std::map<Name, CachedPage> pages_;
  std::int64_t next_id_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CACHE_MIRROR_H_
