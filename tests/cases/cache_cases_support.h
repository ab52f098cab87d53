#ifndef SLACKWATER_TESTS_CASES_CACHE_CASES_SUPPORT_H_
#define SLACKWATER_TESTS_CASES_CACHE_CASES_SUPPORT_H_

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::cache {

inline const LayerKind kFull = FullAttention();
inline const LayerKind kState = Recurrent();
inline constexpr LayerGroupId kGroup{0};

inline std::unique_ptr<device::Device> sim(std::uint64_t seed) {
  device::SimOptions options;
  options.seed = seed;
  return std::make_unique<device::SimDevice>(options);
}

// What somebody else could have.
inline std::int32_t num_free(const TestCache& cache, std::int32_t group = 0,
                             storage::Tier tier = storage::Tier::kDevice) {
  const TierRoom room = cache.manager->room(tier, LayerGroupId(group));
  return room.free + room.evictable;
}

inline std::int32_t num_taken(const TestCache& cache, storage::Tier tier) {
  const TierRoom room = cache.manager->room(tier, kGroup);
  return room.total - room.free;
}

// A device with few slots that are all alike, a host, and two engines: what one of them does waits
// for the other only where the cache says so.
struct Crowd {
  static constexpr std::int64_t kPageBytes = 1024;

  // Pages of all layer groups have the same size, so they share slots.
  static KvCacheConfig config(std::vector<LayerKind> kinds, std::int32_t tokens_per_block,
                              std::int64_t device_slots, std::int64_t host_slots) {
    KvCacheConfig config = test_config(std::move(kinds), tokens_per_block);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kPageBytes;
    config.device_bytes = device_slots * kPageBytes;
    config.host_bytes = host_slots * kPageBytes;
    return config;
  }

  Crowd(KvCacheConfig config, std::uint64_t seed)
      : cache(std::move(config), sim(seed)), other(*cache.manager, *cache.device) {}

  // Nothing that is queued on a stream from now on runs before the gate is completed.
  device::EventSource stall(FakeEngine& engine) {
    device::EventSource gate = cache.device->make_event("the test");
    engine.stream().wait(gate.event());
    return gate;
  }

  // One that has room for `num_tokens`, and has written them.
  Sequence written(FakeEngine& engine, TokenId first, std::int64_t num_tokens) {
    Sequence sequence = cache.create({});
    const auto resumed = sequence.resume(engine.stream());
    EXPECT_TRUE(resumed.has_value()) << resumed.error().text();
    const auto resized = sequence.resize(num_tokens);
    EXPECT_TRUE(resized.has_value()) << resized.error().text();
    engine.step(sequence, numbers(first, num_tokens), 0);
    EXPECT_TRUE(sequence.resize(std::nullopt, num_tokens).has_value());
    cache.manager->audit();
    return sequence;
  }

  void expect_right() {
    EXPECT_EQ(cache.engine.stream().synchronize(), device::EventStatus::kSucceeded);
    EXPECT_EQ(other.stream().synchronize(), device::EventStatus::kSucceeded);
    EXPECT_EQ(cache.engine.mismatches(), 0);
    EXPECT_EQ(other.mismatches(), 0);
    cache.manager->audit();
  }

  TestCache cache;
  FakeEngine other;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_TESTS_CASES_CACHE_CASES_SUPPORT_H_
