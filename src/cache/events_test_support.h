#ifndef SLACKWATER_CACHE_EVENTS_TEST_SUPPORT_H_
#define SLACKWATER_CACHE_EVENTS_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_mirror.h"
#include "cache/manager_test_support.h"

namespace slackwater::cache {

inline constexpr std::int32_t kBlock = 4;
inline constexpr std::int64_t kPage = 4096;

inline KvCacheConfig with_events(std::vector<LayerKind> kinds, std::int32_t max_events = 1000,
                                 std::int64_t device_pages = 0) {
  KvCacheConfig config = test_config(std::move(kinds), kBlock);
  config.max_events = max_events;
  if (device_pages == 0) return config;
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kPage;
  config.device_bytes = device_pages * kPage;
  return config;
}

// A cache and whoever is told of it.
struct WatchedCache : TestCache {
  explicit WatchedCache(KvCacheConfig config) : TestCache(std::move(config)) {}

  std::vector<CacheEvent> drain() {
    DrainedEvents drained = manager->drain_events();
    num_lost = drained.num_lost;
    mirror.apply(drained.events);
    EXPECT_EQ(mirror.difference(manager->cached_pages()), std::nullopt);
    return std::move(drained.events);
  }
  std::vector<Sha256Digest> keys(const Tokens& tokens, const ReuseScope& scope = {}) {
    return block_keys(scope, tokens, kBlock, manager->token_digests());
  }

  CacheMirror mirror;
  std::int64_t num_lost = 0;
};

inline std::int64_t count_events(const std::vector<CacheEvent>& events, CacheEventKind kind) {
  return std::count_if(events.begin(), events.end(),
                       [&](const CacheEvent& event) { return event.kind == kind; });
}

inline std::int64_t count_events(const std::vector<CacheEvent>& events, RemovalCause cause) {
  return std::count_if(events.begin(), events.end(), [&](const CacheEvent& event) {
    return event.kind == CacheEventKind::kRemoved && event.cause == cause;
  });
}

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_EVENTS_TEST_SUPPORT_H_
