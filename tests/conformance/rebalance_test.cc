// Shares that follow the load. Behaviour of TensorRT-LLM's KV cache manager V2 (TestPoolRebalance).

#include <chrono>
#include <limits>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

using std::chrono::seconds;
using storage::Tier;

constexpr std::int64_t kSamples = 2000;  // the default

// Full attention beside a window of 32, in pools of their own.
KvCacheConfig rebalance_config() {
  KvCacheConfig config = test_config({FullAttention(), SlidingWindow{32, 0}}, 16, 1 << 20);
  config.layers[0].buffers[0].bytes = 4096;
  config.layers[1].buffers[0].bytes = 8192;
  config.initial_pool_ratio = {0.25, 0.75};
  return config;
}

struct Rebalanced : TestCache {
  using TestCache::TestCache;

  std::int32_t slots(std::int32_t group) const {
    return manager->room(Tier::kDevice, LayerGroupId(group)).total;
  }
  // Sequences of 512 tokens, 511 of them computed: 32 pages of attention and 2 of the window.
  void skew(std::int64_t count, bool is_dummy = false) {
    for (std::int64_t i = 0; i < count; ++i) {
      SequenceOptions options;
      options.request = RequestId(next_request++);
      options.is_dummy = is_dummy;
      Sequence sequence = *manager->create_sequence(options);
      resume(sequence);
      ASSERT_TRUE(sequence.stop_committing().has_value());
      ASSERT_TRUE(sequence.resize(512, 511).has_value());
    }
  }
};

// adjust_resizes_pool_groups.
TEST(PoolRebalance, TheGroupThatIsShortGrowsAndTheOtherShrinks) {
  Rebalanced cache(rebalance_config());
  const std::int32_t full = cache.slots(0);
  const std::int32_t window = cache.slots(1);
  cache.skew(kSamples - 1);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
  cache.skew(1);
  ASSERT_TRUE(cache.manager->need_adjustment(seconds(1)));
  ASSERT_TRUE(cache.manager->adjust(seconds(1)).has_value());
  cache.manager->audit();
  EXPECT_GT(cache.slots(0), full);
  EXPECT_LT(cache.slots(1), window);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1000)));
}

// custom_min_sampled_kv_caches_gates_adjustment: 5000.
TEST(PoolRebalance, TheNumberOfSamplesGatesIt) {
  KvCacheConfig config = rebalance_config();
  config.rebalance.min_samples = 5000;
  Rebalanced cache(std::move(config));
  cache.skew(kSamples);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
  cache.skew(3000);
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(1)));
}

// custom_cooldown_secs_gates_adjustment: 10,000 s, from the first adjustment on.
TEST(PoolRebalance, TheCooldownGatesIt) {
  KvCacheConfig config = rebalance_config();
  config.rebalance.cooldown = seconds(10'000);
  config.rebalance.min_samples = 1;
  config.rebalance.update_interval = 1;
  config.rebalance.decay = 0.5;
  Rebalanced cache(std::move(config));
  cache.skew(1);
  ASSERT_TRUE(cache.manager->adjust(seconds(1)).has_value());
  for (int i = 0; i < 30; ++i) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    ASSERT_TRUE(sequence.resize(16).has_value());
  }
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(10'000)));
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(10'001)));
}

// custom_ratio_threshold_gates_adjustment: 10.
TEST(PoolRebalance, TheThresholdGatesIt) {
  KvCacheConfig config = rebalance_config();
  config.rebalance.threshold = 10;
  Rebalanced cache(std::move(config));
  cache.skew(kSamples);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
}

// invalid_rebalance_settings_raise: eight of them, and each is named.
TEST(PoolRebalance, SettingsThatCannotWorkAreRefused) {
  const auto device = device::make_cpu_device();
  const auto expect_refused = [&](const RebalanceOptions& options, std::int64_t number) {
    KvCacheConfig config = rebalance_config();
    config.rebalance = options;
    const auto refused = KvCacheManager::create(*device, std::move(config));
    ASSERT_FALSE(refused.has_value()) << "case " << number;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_NE(refused.error().text().find("a rebalance"), std::string::npos);
  };
  const double infinity = std::numeric_limits<double>::infinity();
  expect_refused({.min_samples = -1}, 1);
  expect_refused({.update_interval = 0}, 2);
  expect_refused({.cooldown = Nanoseconds(-1)}, 3);
  expect_refused({.threshold = 1}, 4);
  expect_refused({.threshold = infinity}, 5);
  expect_refused({.threshold = std::numeric_limits<double>::quiet_NaN()}, 6);
  expect_refused({.decay = 0}, 7);
  expect_refused({.decay = 1}, 8);
}

// dummy_kv_caches_do_not_feed_the_tuner.
TEST(PoolRebalance, DummiesDoNotFeedTheTuner) {
  Rebalanced cache(rebalance_config());
  cache.skew(2 * kSamples, true);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
}

// kv_survives_adjust: bytes after slots have moved.
TEST(PoolRebalance, BytesSurviveIt) {
  KvCacheConfig config = rebalance_config();
  config.rebalance.min_samples = 1;
  config.rebalance.update_interval = 1;
  config.rebalance.decay = 0.5;
  Rebalanced cache(std::move(config));
  std::vector<Sequence> all;
  // Each takes some slots of the window's; those of the first ones are free when the others move.
  for (TokenId i = 0; i < 20; ++i) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(1000 * i, 33));
    ASSERT_TRUE(sequence.suspend().has_value());
    all.push_back(std::move(sequence));
  }
  all.erase(all.begin(), all.begin() + 16);
  const std::int32_t before = cache.slots(1);
  cache.skew(1);
  ASSERT_TRUE(cache.manager->adjust(seconds(1)).has_value());
  cache.manager->audit();
  EXPECT_LT(cache.slots(1), before / 2) << "the last ones lie beyond";
  for (std::size_t i = 0; i < all.size(); ++i) {
    cache.resume(all[i]);
    cache.compute(all[i], numbers(1000 * static_cast<TokenId>(i + 16), 50));
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

}  // namespace
}  // namespace slackwater::cache
