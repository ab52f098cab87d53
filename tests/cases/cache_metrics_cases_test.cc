// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// figures that are wrong. Each comment names the public reports.

#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "cache/statistics_test_support.h"
#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

// C19, metrics. Counters equal an independent recount, and are charged once, when the thing really
// happens; the recount is that of the model test.

// KB-C19-01 (vLLM 25780): random prompts have nothing in common. What a request finds again after
// it was given up is no hit.
TEST(C19Metrics, WhatIsFoundAgainAfterAPreemptionIsNoHit) {
  TestCache cache(test_config({kFull, kState}, 16));
  std::mt19937 random(19);
  for (int i = 0; i < 20; ++i) {
    Tokens prompt;
    for (int t = 0; t < 64; ++t) prompt.push_back(static_cast<TokenId>(random() >> 1));
    run_counted(cache, prompt);
    if (i % 4 != 0) continue;
    SequenceOptions options;
    options.is_recompute = true;
    prompt.push_back(1);
    run_counted(cache, prompt, options);
  }
  const CacheStatistics statistics = cache.manager->statistics();
  EXPECT_EQ(statistics.tokens.queried, 20 * 64);
  EXPECT_EQ(statistics.tokens.reused, 0);
  EXPECT_EQ(statistics.groups[0].use.pages_reused_full, 0);
  EXPECT_EQ(statistics.groups[1].use.snapshots.hits, 0);
  EXPECT_EQ(statistics.tokens.recompute_queried, 5 * 65);
  EXPECT_EQ(statistics.tokens.recompute_reused, 5 * 64);
}

// KB-C19-03 (vLLM 30522): the host is asked for what the device lacks, no more. 800 of 1000 tokens
// are known, in 100 blocks, of which a crowd sends 25 to the host.
TEST(C19Metrics, TheHostIsChargedOnlyForWhatTheDeviceLacked) {
  KvCacheConfig config = Crowd::config({kFull}, 8, 128, 64);
  TestCache cache(std::move(config));
  cache.run(numbers(0, 800));
  cache.manager->synchronize();
  crowd_out(cache, 53 * 8);
  Sequence sequence = cache.create(numbers(0, 1000));
  sequence.commit_statistics();
  const TokenUse tokens = cache.manager->statistics().tokens;
  EXPECT_EQ(tokens.tiers[0], (TierTokens{1000, 600}));
  EXPECT_EQ(tokens.tiers[1], (TierTokens{400, 200}));
}

// KB-C19-04 (TensorRT-LLM 12132): 50,000 tokens of warm-up, then ten prompts alike.
TEST(C19Metrics, AWarmUpIsNotCounted) {
  TestCache cache(test_config({kFull}, 32));
  SequenceOptions options;
  options.is_dummy = true;
  run_counted(cache, numbers(0, 50'000), options);
  for (int i = 0; i < 10; ++i) run_counted(cache, numbers(1'000'000, 96));
  const CacheStatistics statistics = cache.manager->statistics();
  EXPECT_EQ(statistics.tokens.queried, 10 * 96);
  EXPECT_EQ(statistics.tokens.reused, 9 * 95);
  EXPECT_EQ(statistics.groups[0].use.pages_missed, 3);
}

// KB-C19-06 (LMCache 2574): 48 tokens on the device and 32 on the host: every token counts on one
// tier, so nothing is subtracted that was not asked for.
TEST(C19Metrics, NothingIsNegative) {
  TestCache cache(Crowd::config({kFull}, 16, 8, 16));
  cache.run(numbers(0, 80));
  cache.manager->synchronize();
  crowd_out(cache, 5 * 16);
  Sequence sequence = cache.create(numbers(0, 81));
  EXPECT_EQ(sequence.cached_tokens(Tier::kDevice), 48);
  EXPECT_EQ(sequence.cached_tokens(Tier::kHost), 32);
  sequence.commit_statistics();
  const TokenUse tokens = cache.manager->statistics().tokens;
  EXPECT_EQ(tokens.tiers[0], (TierTokens{81, 48}));
  EXPECT_EQ(tokens.tiers[1], (TierTokens{33, 32}));
  EXPECT_EQ(tokens.queried - tokens.reused, 1) << "the last token is always computed";
  cache.manager->audit();
}

// KB-C19-07 (xllm 828): a hundred requests come, publish and go.
TEST(C19Metrics, WhatIsUsedReturnsToNothing) {
  TestCache cache(Crowd::config({kFull, kState}, 16, 16, 16));
  const auto check = [&] {
    for (const TierView& tier : cache.manager->view().tiers) {
      ASSERT_GE(tier.used_bytes, 0);
      ASSERT_LE(tier.used_bytes, tier.quota_bytes);
    }
  };
  for (TokenId i = 0; i < 100; ++i) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(1000 * (i % 7), 40 + i % 3));
    sequence.commit_statistics();
    check();
    sequence.close();
    check();
  }
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  const CacheView view = cache.manager->view();
  for (const TierView& tier : view.tiers) EXPECT_EQ(tier.used_bytes, 0);
  for (const PoolView& pool : view.pools) EXPECT_EQ(pool.room.free, pool.room.total);
  for (const GroupStatistics& group : view.statistics.groups) {
    EXPECT_LE(group.peak_slots[0], 16);
    EXPECT_GE(group.peak_slots[0], 8);
  }
}

}  // namespace
}  // namespace slackwater::cache
