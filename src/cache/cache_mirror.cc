#include "cache/cache_mirror.h"

#include <fmt/format.h>

#include "slackwater/base/check.h"

namespace slackwater::cache {
namespace {

std::string describe(const CachedPage& page) {
  return fmt::format("block {}, group {}, end {}, {}, priority {}", to_hex(page.key).substr(0, 16),
                     page.group.value(), page.end, storage::to_string(page.tier), page.priority);
}

}  // namespace

void CacheMirror::apply(std::span<const CacheEvent> events) {
  for (const CacheEvent& event : events) apply(event);
}

void CacheMirror::apply(const CacheEvent& event) {
  SLACKWATER_CHECK(event.id == next_id_, "event {} after {}", event.id, next_id_ - 1);
  ++next_id_;
  if (event.kind == CacheEventKind::kCreated) {
    pages_.clear();
    return;
  }
  if (event.kind == CacheEventKind::kStored) {
    const bool is_new = pages_.emplace(name(event.page), event.page).second;
    SLACKWATER_CHECK(is_new, "event {}: stored again: {}", event.id, describe(event.page));
    return;
  }
  const auto at = pages_.find(name(event.page));
  SLACKWATER_CHECK(at != pages_.end(), "event {}: {}, and was not there: {}", event.id,
                   to_string(event.kind), describe(event.page));
  const bool is_update = event.kind == CacheEventKind::kUpdated;
  CachedPage before = event.page;
  if (is_update) before.tier = event.previous_tier;
  SLACKWATER_CHECK(at->second == before, "event {}: {}, and was {}", event.id, describe(before),
                   describe(at->second));
  if (is_update) {
    at->second.tier = event.page.tier;
  } else {
    pages_.erase(at);
  }
}

std::optional<CachedPage> CacheMirror::find(const Sha256Digest& key, LayerGroupId group,
                                            std::int64_t end) const {
  const auto at = pages_.find(Name{key, group, end});
  return at == pages_.end() ? std::nullopt : std::optional(at->second);
}

std::optional<std::string> CacheMirror::difference(std::span<const CachedPage> pages) const {
  for (const CachedPage& page : pages) {
    const auto at = pages_.find(name(page));
    if (at == pages_.end()) return fmt::format("not told of: {}", describe(page));
    if (at->second == page) continue;
    return fmt::format("told: {}; is: {}", describe(at->second), describe(page));
  }
  if (pages.size() == pages_.size()) return std::nullopt;
  return fmt::format("{} pages are told of, {} are there", pages_.size(), pages.size());
}

}  // namespace slackwater::cache
