// What is counted: the values that the statistics of TensorRT-LLM's KV cache manager V2 have in its
// own tests.

#include <memory>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/statistics_test_support.h"
#include "testing/padding_codec.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();
// Slots are whole cache lines.
constexpr std::int64_t kSlotBytes = 64;

SequenceOptions prompt_of(std::int64_t length) {
  SequenceOptions options;
  options.expected_prompt_length = length;
  return options;
}

SnapshotStatistics pending_snapshots(const Sequence& sequence) {
  return sequence.pending_statistics().groups[1].snapshots;
}

// A cache of 32 tokens a block where a prompt has committed up to `end`, with a snapshot there.
TestCache with_snapshot_at(std::int64_t end) {
  KvCacheConfig config = test_config({kFull, kState}, 32);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  if (end > 0) cache.run(numbers(0, end));
  cache.manager->synchronize();
  return cache;
}

// ssm_snapshot_iteration_stats: a miss, a hit at the end of a block, a hit inside one. Tokens are
// those of the prompt as it was given.
TEST(SnapshotStatistics, AMissReusesNothing) {
  const TestCache cache = with_snapshot_at(0);
  const Sequence sequence = std::move(cache.manager->create_sequence({})).value();
  EXPECT_EQ(pending_snapshots(sequence), SnapshotStatistics()) << "nothing was asked for";
  const Tokens tokens = numbers(0, 48);
  SequenceOptions options;
  options.tokens = tokens;
  Sequence asking = std::move(cache.manager->create_sequence(options)).value();
  EXPECT_EQ(pending_snapshots(asking), (SnapshotStatistics{1, 0, 1, 0, 48, 0, 0}));
  asking.commit_statistics();
  EXPECT_EQ(cache.manager->take_statistics().groups[1].use.snapshots.misses, 1);
  EXPECT_EQ(cache.manager->take_statistics().groups[1].use, GroupUse());
}

TEST(SnapshotStatistics, AHitAtABoundaryIsToldFromOneInsideABlock) {
  const std::tuple<std::int64_t, std::int64_t, SnapshotStatistics> cases[] = {
      {32, 48, {1, 1, 0, 32, 16, 1, 0}}, {48, 64, {1, 1, 0, 48, 16, 0, 1}}};
  for (const auto& [snapshot, query, expected] : cases) {
    TestCache cache = with_snapshot_at(snapshot);
    Sequence sequence = cache.create(numbers(0, query));
    EXPECT_EQ(pending_snapshots(sequence), expected);
    sequence.commit_statistics();
    EXPECT_EQ(use_of(cache, 1).snapshots, expected);
    EXPECT_EQ(use_of(cache, 0).snapshots, SnapshotStatistics()) << "attention has none";
  }
}

// discard_ssm_snapshot_stats_clears_dirty_state.
TEST(SnapshotStatistics, DiscardingLeavesNothing) {
  TestCache cache = with_snapshot_at(32);
  Sequence sequence = cache.create(numbers(0, 48));
  sequence.discard_statistics();
  EXPECT_EQ(pending_snapshots(sequence), SnapshotStatistics());
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache, 1), GroupUse());
}

// ssm_resume_records_intra_device_copy.
TEST(SnapshotStatistics, TheFirstResumeCopiesTheStateOnce) {
  TestCache cache = with_snapshot_at(32);
  Sequence sequence = cache.create(numbers(0, 48));
  for (int i = 0; i < 3; ++i) {
    cache.resume(sequence);
    EXPECT_EQ(sequence.pending_statistics().groups[1].copied, (PageFlow{1, kSlotBytes}));
    EXPECT_EQ(sequence.pending_statistics().groups[0].copied, PageFlow());
    ASSERT_TRUE(sequence.suspend().has_value());
  }
}

class Behaviour : public testing::Test {
 protected:
  TestCache cache_{test_config({kFull}, 4)};
};

// test_kv_cache_stats_behavior: context, then generation.
TEST_F(Behaviour, BlocksOfAPromptAreMissedAndThoseAfterItGenerated) {
  Sequence sequence = create_with(cache_, numbers(0, 8), prompt_of(8));
  cache_.resume(sequence);
  cache_.compute(sequence, numbers(0, 8));
  GroupUse use = sequence.pending_statistics().groups[0];
  EXPECT_EQ(use.pages_allocated, 2);
  EXPECT_EQ(use.pages_missed, 2);
  EXPECT_EQ(use.pages_generated, 0);
  sequence.commit_statistics();
  ASSERT_TRUE(sequence.resize(9).has_value());
  use = sequence.pending_statistics().groups[0];
  EXPECT_EQ(use.pages_allocated, 1);
  EXPECT_EQ(use.pages_generated, 1);
  EXPECT_EQ(use.pages_missed, 0);
}

// A step that the scheduler takes back: of generation, and of a prompt.
TEST_F(Behaviour, WhatIsTakenBackReportsNothing) {
  Sequence sequence = create_with(cache_, numbers(0, 8), prompt_of(8));
  cache_.resume(sequence);
  sequence.discard_statistics();
  ASSERT_TRUE(sequence.resize(8).has_value());
  ASSERT_TRUE(sequence.resize(0).has_value());
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache_), GroupUse());
  cache_.compute(sequence, numbers(0, 8));
  sequence.commit_statistics();
  ASSERT_TRUE(sequence.resize(9).has_value());
  ASSERT_TRUE(sequence.resize(8).has_value());
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache_).pages_allocated, 2);
  EXPECT_EQ(use_of(cache_).pages_generated, 0);
}

// A beginning whose tokens come from elsewhere (disagg-init): all of it counts as computed, and its
// owner gives up before anything arrives.
TEST_F(Behaviour, ABeginningFromElsewhereThatIsGivenUpReportsNothing) {
  Sequence sequence = create_with(cache_, {}, prompt_of(8));
  cache_.resume(sequence);
  ASSERT_TRUE(sequence.resize(8, 8).has_value());
  EXPECT_EQ(sequence.pending_statistics().groups[0].pages_allocated, 2);
  sequence.discard_statistics();
  EXPECT_EQ(sequence.pending_statistics().groups[0], GroupUse());
  sequence.close();
  EXPECT_EQ(use_of(cache_), GroupUse());
}

// Chunks that commit at once, whatever becomes reusable of them: each counts its own blocks.
TEST(BehaviourOfPolicies, ChunksCountTheirOwnBlocks) {
  for (const CommitPolicy policy : {CommitPolicy::kEveryBlock, CommitPolicy::kEndpointsOnly}) {
    KvCacheConfig config = test_config({kFull}, 4);
    config.commit_policy = policy;
    TestCache cache(std::move(config));
    Sequence sequence = create_with(cache, numbers(0, 12), prompt_of(12));
    cache.resume(sequence);
    std::int64_t blocks = 0;
    for (const std::int64_t end : {4, 12}) {
      cache.compute(sequence, numbers(0, end));
      const GroupUse pending = sequence.pending_statistics().groups[0];
      EXPECT_EQ(pending.pages_allocated, end / 4 - blocks);
      EXPECT_EQ(pending.pages_missed, end / 4 - blocks);
      sequence.commit_statistics();
      blocks = end / 4;
      EXPECT_EQ(use_of(cache).pages_allocated, blocks);
    }
    EXPECT_EQ(use_of(cache).pages_generated, 0);
    EXPECT_EQ(use_of(cache).copied, PageFlow()) << "they end where blocks do";
  }
}

// A chunk that waits for its turn is asked for again, and counts once.
TEST_F(Behaviour, AChunkThatWaitedCountsOnce) {
  Sequence sequence = create_with(cache_, numbers(0, 16), prompt_of(16));
  cache_.resume(sequence);
  ASSERT_TRUE(sequence.resize(8).has_value());
  ASSERT_TRUE(sequence.suspend().has_value());
  cache_.resume(sequence);
  ASSERT_TRUE(sequence.resize(8).has_value());
  cache_.compute(sequence, numbers(0, 8));
  sequence.commit_statistics();
  cache_.compute(sequence, numbers(0, 16));
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache_).pages_allocated, 4);
  EXPECT_EQ(use_of(cache_).pages_missed, 4);
  EXPECT_EQ(cache_.manager->statistics().tokens.queried, 16);
}

// A prompt of 10 after one of 12: the last token is left to compute.
TEST_F(Behaviour, APartialMatchCostsOneCopy) {
  cache_.run(numbers(0, 12));
  cache_.manager->synchronize();
  Sequence sequence = cache_.create(numbers(0, 10));
  EXPECT_EQ(sequence.num_committed(), 9);
  cache_.resume(sequence);
  ASSERT_TRUE(sequence.resize(10).has_value());
  sequence.commit_statistics();
  const GroupUse use = use_of(cache_);
  EXPECT_EQ(use.pages_reused_full, 2);
  EXPECT_EQ(use.pages_reused_partial, 1);
  EXPECT_EQ(use.pages_allocated, 1);
  EXPECT_EQ(use.pages_missed, 0);
  EXPECT_EQ(use.copied, (PageFlow{1, kSlotBytes}));
  EXPECT_EQ(cache_.manager->statistics().tokens.reused, 9);
}

TEST(BehaviourOfWindows, OnlyBlocksThatAreNeededAreReused) {
  TestCache cache(test_config({SlidingWindow{8, 0}}, 4));
  cache.run(numbers(0, 16));
  cache.manager->synchronize();
  Sequence sequence = cache.create(numbers(0, 16));
  EXPECT_EQ(sequence.num_committed(), 15);
  EXPECT_EQ(sequence.pending_statistics().groups[0].pages_reused_full, 1);
  EXPECT_EQ(sequence.pending_statistics().groups[0].pages_reused_partial, 1);
}

TEST(BehaviourOfGroups, ThoseThatShareAPoolAddUp) {
  TestCache cache(test_config({kFull, SlidingWindow{100, 0}}, 4));
  run_counted(cache, numbers(0, 8), prompt_of(8));
  EXPECT_EQ(use_of(cache, 0).pages_allocated, 2);
  EXPECT_EQ(use_of(cache, 1).pages_allocated, 2);
  const CacheStatistics statistics = cache.manager->statistics();
  EXPECT_EQ(statistics.groups[0].peak_slots[0], 4) << "they lie in one pool group";
  EXPECT_EQ(statistics.groups[1].peak_slots[0], 4);
}

// test_kv_cache_stats_life_cycles: pages and states that leave and come back; and what is dropped.
class Lives : public testing::Test {
 protected:
  static KvCacheConfig config() {
    KvCacheConfig config = test_config({kFull, kState}, 4, 8 << 10);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 1024;
    config.host_bytes = 20 << 10;
    return config;
  }
};

TEST_F(Lives, StatesAreCountedLikePages) {
  TestCache cache(config());
  Sequence sleeper = cache.create({});
  cache.resume(sleeper);
  cache.compute(sleeper, numbers(0, 12));
  ASSERT_TRUE(sleeper.suspend().has_value());
  crowd_out(cache, 28);
  cache.resume(sleeper);
  const CacheStatistics statistics = cache.manager->statistics();
  for (const auto& [group, pages] : {std::pair{0, 3}, std::pair{1, 1}}) {
    const auto g = static_cast<std::size_t>(group);
    EXPECT_EQ(moved(statistics, g, Tier::kDevice, Tier::kHost), pages);
    EXPECT_EQ(moved(statistics, g, Tier::kHost, Tier::kDevice), pages);
    EXPECT_EQ(statistics.groups[g].moved[0][1].bytes, pages * 1024);
    EXPECT_EQ(statistics.groups[g].dropped, PageFlow());
  }
}

TEST_F(Lives, SnapshotsThatAreDroppedAreCounted) {
  KvCacheConfig device_only = config();
  device_only.host_bytes = 0;
  TestCache cache(std::move(device_only));
  cache.run(numbers(0, 12));
  cache.manager->synchronize();
  crowd_out(cache, 28);
  const CacheStatistics statistics = cache.manager->statistics();
  EXPECT_EQ(statistics.groups[0].dropped, (PageFlow{3, 3 * 1024}));
  EXPECT_EQ(statistics.groups[1].dropped.pages + 3, cache.manager->counters().pages_dropped);
}

// Cold-byte stats of the C++ unit tests: what moves weighs what its blob weighs, whoever shares the
// slots.
TEST(ColdBytes, AreThoseOfTheBlobsOfEachGroup) {
  for (const bool is_split : {false, true}) {
    KvCacheConfig config = test_config({kFull, SlidingWindow{100, 0}}, 4, 120 << 10);
    config.layers[0].buffers[0].bytes = 1024;
    config.layers[1].buffers[0].bytes = is_split ? 2048 : 1024;
    if (is_split) config.initial_pool_ratio = {1.0 / 3, 2.0 / 3};  // as many slots of each
    config.host_bytes = 64 << 10;
    TestCache cache(std::move(config));
    Sequence sleeper = cache.create({});
    cache.resume(sleeper);
    cache.compute(sleeper, numbers(0, 12));
    ASSERT_TRUE(sleeper.suspend().has_value());
    Sequence other = cache.create({});
    cache.resume(other);
    while (other.resize(other.capacity() + 4).has_value()) {
    }
    const CacheStatistics statistics = cache.manager->statistics();
    for (std::size_t g = 0; g < 2; ++g) {
      const PageFlow& out = statistics.groups[g].moved[0][1];
      EXPECT_GT(out.pages, 0);
      EXPECT_EQ(out.bytes, out.pages * (is_split && g == 1 ? 2048 : 1024));
    }
    if (!is_split) {
      EXPECT_EQ(moved(statistics, 0, Tier::kDevice, Tier::kHost) +
                    moved(statistics, 1, Tier::kDevice, Tier::kHost),
                6)
          << "whoever leaves the slots that they share";
    }
  }
}

// cold_codec_merges_lifecycles_from_different_hot_pool_groups and
// cold_codec_splits_lifecycles_from_one_hot_pool_group, with KiB for MiB. Of 12 tokens every page
// leaves the device, also those that the windows have left behind, and only those come back that
// are needed.
class CodecGroups : public testing::Test {
 protected:
  static constexpr std::int64_t kKiB = 1024;

  // A sleeper of 12 tokens is crowded out and comes back.
  static CacheStatistics out_and_back(TestCache& cache) {
    Sequence sleeper = cache.create({});
    cache.resume(sleeper);
    cache.compute(sleeper, numbers(0, 12));
    EXPECT_TRUE(sleeper.suspend().has_value());
    crowd_out(cache, 12);
    cache.resume(sleeper);
    cache.engine.step(sleeper, numbers(0, 12), 12);
    EXPECT_EQ(cache.engine.stream().synchronize(), device::EventStatus::kSucceeded);
    EXPECT_EQ(cache.engine.mismatches(), 0);
    return cache.manager->statistics();
  }
  static std::int32_t num_slots(const TestCache& cache, Tier tier, std::int32_t group) {
    return cache.manager->room(tier, LayerGroupId(group)).total;
  }
  static std::size_t pool_of(const TestCache& cache, Tier tier, std::int32_t group) {
    for (const PoolView& pool : cache.manager->view().pools) {
      if (pool.tier != tier) continue;
      for (const LayerGroupId member : pool.groups) {
        if (member == LayerGroupId(group)) return pool.pool;
      }
    }
    ADD_FAILURE() << "group " << group << " has no pool";
    return 0;
  }
};

TEST_F(CodecGroups, FromTwoPoolsOfTheDeviceShareOneOffIt) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{4, 0}, SlidingWindow{8, 0}}, 4);
  const std::int64_t bytes[] = {4 * kKiB, 2 * kKiB, 2 * kKiB};
  for (std::size_t i = 0; i < 3; ++i) config.layers[i].buffers[0].bytes = bytes[i];
  config.device_bytes = 24 * kKiB;
  config.initial_pool_ratio = {0.5, 0.25, 0.25};
  config.host_bytes = 256 * kKiB;
  config.codec = std::make_shared<storage::PaddingCodec>(std::vector{4 * kKiB, 4 * kKiB, 2 * kKiB});
  TestCache cache(std::move(config));
  ASSERT_EQ(num_slots(cache, Tier::kDevice, 0), 3);
  ASSERT_EQ(num_slots(cache, Tier::kDevice, 1), 6);
  EXPECT_NE(pool_of(cache, Tier::kDevice, 0), pool_of(cache, Tier::kDevice, 1));
  EXPECT_EQ(pool_of(cache, Tier::kDevice, 1), pool_of(cache, Tier::kDevice, 2));
  EXPECT_EQ(pool_of(cache, Tier::kHost, 0), pool_of(cache, Tier::kHost, 1));
  EXPECT_NE(pool_of(cache, Tier::kHost, 1), pool_of(cache, Tier::kHost, 2));
  const CacheStatistics statistics = out_and_back(cache);
  const std::int64_t blobs[] = {4 * kKiB, 4 * kKiB, 2 * kKiB};
  const std::int64_t back[] = {3, 1, 2};
  for (std::size_t g = 0; g < 3; ++g) {
    EXPECT_EQ(statistics.groups[g].moved[0][1], (PageFlow{3, 3 * blobs[g]})) << "group " << g;
    EXPECT_EQ(statistics.groups[g].moved[1][0], (PageFlow{back[g], back[g] * blobs[g]}));
  }
}

TEST_F(CodecGroups, FromOnePoolOfTheDeviceHaveTwoOffIt) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{8, 0}}, 4);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 2 * kKiB;
  config.device_bytes = 12 * kKiB;
  config.initial_pool_ratio = {0.5, 0.5};  // of the host too
  config.host_bytes = 256 * kKiB;
  config.codec = std::make_shared<storage::PaddingCodec>(std::vector{2 * kKiB, 4 * kKiB});
  TestCache cache(std::move(config));
  ASSERT_EQ(num_slots(cache, Tier::kDevice, 0), 6);
  EXPECT_EQ(pool_of(cache, Tier::kDevice, 0), pool_of(cache, Tier::kDevice, 1));
  EXPECT_NE(pool_of(cache, Tier::kHost, 0), pool_of(cache, Tier::kHost, 1));
  const CacheStatistics statistics = out_and_back(cache);
  const std::int64_t blobs[] = {2 * kKiB, 4 * kKiB};
  const std::int64_t back[] = {3, 2};
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(statistics.groups[g].moved[0][1], (PageFlow{3, 3 * blobs[g]})) << "group " << g;
    EXPECT_EQ(statistics.groups[g].moved[1][0], (PageFlow{back[g], back[g] * blobs[g]}));
  }
}

// test_kv_cache_tier_attribution.
class Attribution : public testing::Test {
 protected:
  // Three tiers of pages of 2 KiB.
  KvCacheConfig config(std::vector<LayerKind> kinds, std::int32_t tokens_per_block,
                       std::int64_t device_slots, std::int64_t host_slots) {
    KvCacheConfig config = test_config(std::move(kinds), tokens_per_block);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 2048;
    config.device_bytes = device_slots << 11;
    config.host_bytes = host_slots << 11;
    config.disk_bytes = 1 << 20;
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 1 << 15;
    return config;
  }

  std::vector<std::int64_t> tokens_of(const Sequence& sequence) {
    return {sequence.cached_tokens(Tier::kDevice), sequence.cached_tokens(Tier::kHost),
            sequence.cached_tokens(Tier::kDisk)};
  }

  TemporaryDirectory directory_;
};

// Five blocks of 32. Whoever takes six slots of eight sends three of them away, the last ones
// first; the host has two slots for them, beside two that are kept free.
TEST_F(Attribution, EveryTokenBelongsToOneTier) {
  TestCache cache(config({kFull}, 32, 8, 4));
  cache.run(numbers(0, 160));
  cache.manager->synchronize();
  crowd_out(cache, 192);
  const Sequence sequence = cache.create(numbers(0, 161));
  EXPECT_EQ(sequence.num_committed(), 160);
  EXPECT_THAT(tokens_of(sequence), testing::ElementsAre(64, 64, 32));
  const TokenUse& tokens = sequence.pending_statistics().tokens;
  EXPECT_EQ(tokens.tiers[0], (TierTokens{161, 64}));
  EXPECT_EQ(tokens.tiers[1], (TierTokens{97, 64}));
  EXPECT_EQ(tokens.tiers[2], (TierTokens{33, 32}));
}

// Two groups share out the tokens of a block: 16 and 16, and of 15 tokens 7 and 7, with one left
// over for the device. Of the six pages two stay, three go to the host, and one to the disk.
TEST_F(Attribution, GroupsShareOutTheTokensOfABlock) {
  TestCache cache(config({kFull, SlidingWindow{100, 0}}, 32, 10, 6));
  cache.run(numbers(0, 79));
  cache.manager->synchronize();
  crowd_out(cache, 128);
  const Sequence sequence = cache.create(numbers(0, 80));
  EXPECT_EQ(sequence.num_committed(), 79);
  EXPECT_THAT(tokens_of(sequence), testing::ElementsAre(33, 39, 7));
}

// Blocks that a window has left behind are told like others, though nobody brings them back.
TEST_F(Attribution, StaleBlocksBelongSomewhereToo) {
  TestCache cache(config({SlidingWindow{33, 0}}, 32, 8, 20));
  cache.run(numbers(0, 160));
  cache.manager->synchronize();
  crowd_out(cache, 64);
  const Sequence before = cache.create(numbers(0, 161));
  EXPECT_EQ(before.num_committed(), 160);
  EXPECT_THAT(tokens_of(before), testing::ElementsAre(160, 0, 0));
  Sequence other = cache.create({});
  cache.resume(other);
  ASSERT_TRUE(other.resize(224).has_value());
  const Sequence sequence = cache.create(numbers(0, 161));
  EXPECT_EQ(sequence.num_committed(), 160);
  EXPECT_EQ(sequence.pending_statistics().groups[0].pages_reused_full, 1);
  EXPECT_THAT(tokens_of(sequence), testing::ElementsAre(32, 128, 0));
}

}  // namespace
}  // namespace slackwater::cache
