// What the cache says of itself.

#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/block_tree.h"
#include "cache/statistics_test_support.h"
#include "cache/tuner.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using ::testing::HasSubstr;
using ::testing::Not;

// Pages and states of 1 KiB over a device of 8 and a host of 16 slots and 4 that are kept free.
KvCacheConfig config() {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 4, 8 << 10);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 1024;
  config.host_bytes = 20 << 10;
  return config;
}

// One sequence that runs, one that sleeps on the host, and prompts that nobody uses.
struct Scene {
  Scene() : cache(config()) {
    run_counted(cache, numbers(0, 12));
    sleeper = cache.create(numbers(0, 16));
    cache.resume(sleeper);
    cache.compute(sleeper, numbers(0, 16));
    sleeper.commit_statistics();
    EXPECT_TRUE(sleeper.suspend().has_value());
    crowd_out(cache, 28);
    runner = cache.create(numbers(500, 9));
    cache.resume(runner);
    EXPECT_TRUE(runner.resize(9).has_value());
    EXPECT_TRUE(runner.reserve_snapshot(8).has_value());
  }

  TestCache cache;
  Sequence sleeper;
  Sequence runner;
};

TEST(View, SaysWhatHoldsWhat) {
  Scene scene;
  const CacheView view = scene.cache.manager->view();
  ASSERT_EQ(view.sequences.size(), 2u);
  const SequenceView& sleeper = view.sequences[0];
  EXPECT_EQ(sleeper.request, scene.sleeper.request());
  EXPECT_EQ(sleeper.status, SequenceStatus::kSuspended);
  EXPECT_EQ(sleeper.num_committed, 16);
  EXPECT_EQ(sleeper.num_path_blocks, 4);
  EXPECT_EQ(sleeper.groups[0].own, (PagesByTier{0, 0, 0}));
  EXPECT_EQ(sleeper.groups[0].shared, (PagesByTier{0, 4, 0}));
  EXPECT_EQ(sleeper.groups[1].own, (PagesByTier{0, 1, 0}));
  const SequenceView& runner = view.sequences[1];
  EXPECT_EQ(runner.status, SequenceStatus::kActive);
  EXPECT_EQ(runner.groups[0].own, (PagesByTier{3, 0, 0}));
  EXPECT_EQ(runner.groups[0].pending.pages_missed, 3);
  EXPECT_THAT(runner.reserved_snapshots, testing::ElementsAre(8));
}

TEST(View, SlotsAddUpToPagesOfNodesAndSequences) {
  Scene scene;
  const CacheView view = scene.cache.manager->view();
  ASSERT_EQ(view.pools.size(), 2u);
  const PoolView& device = view.pools[0];
  EXPECT_EQ(device.tier, Tier::kDevice);
  EXPECT_EQ(device.groups.size(), 2u) << "pages and states share their slots";
  EXPECT_EQ(device.room.total, device.room.free + device.room.evictable + device.room.unavailable);
  EXPECT_EQ(device.num_locked, 5) << "three pages, a state, and one for a snapshot";
  EXPECT_EQ(device.room.unavailable, device.num_locked);
  EXPECT_EQ(view.pools[1].num_reserved, 4);
  for (const TierView& tier : view.tiers) {
    std::int32_t pages = 0;
    const auto t = static_cast<std::size_t>(tier.tier);
    for (const NodeView& node : view.tree.nodes) {
      for (const NodeGroupView& group : node.groups) pages += group.pages[t];
    }
    for (const SequenceView& sequence : view.sequences) {
      for (const SequenceGroupView& group : sequence.groups) pages += group.own[t];
      if (tier.tier == Tier::kDevice) {
        pages += static_cast<std::int32_t>(sequence.reserved_snapshots.size());
      }
    }
    EXPECT_EQ(tier.used_bytes, 1024 * pages) << storage::to_string(tier.tier);
  }
}

TEST(View, TheTreeIsAllThere) {
  Scene scene;
  const CacheView view = scene.cache.manager->view();
  EXPECT_EQ(view.tree.num_roots, 1);
  Tokens path;
  std::int64_t num_snapshots = 0;
  for (const NodeView& node : view.tree.nodes) {
    if (!node.parent.has_value()) {
      EXPECT_TRUE(node.groups.empty());
      continue;
    }
    EXPECT_EQ(node.num_holds, 1) << "the sleeper's";
    EXPECT_GE(node.num_written, 3) << "the last one counts when somebody has looked at it";
    EXPECT_LE(node.num_written, node.num_blocks);
    EXPECT_EQ(node.groups[0].blocks.size(), static_cast<std::size_t>(node.num_blocks));
    path.insert(path.end(), node.tokens.begin(), node.tokens.end());
    for (const SnapshotView& snapshot : node.groups[1].snapshots) {
      ++num_snapshots;
      EXPECT_EQ(snapshot.position, 12);
      EXPECT_EQ(snapshot.tier, Tier::kHost);
      EXPECT_EQ(snapshot.num_holds, 0);
    }
  }
  EXPECT_EQ(path, numbers(0, 16));
  EXPECT_EQ(num_snapshots, 1);
}

TEST(Describe, SaysOneFactALine) {
  Scene scene;
  const std::string text = scene.cache.manager->describe();
  EXPECT_THAT(text, HasSubstr("cache: 2 layer groups, 4 tokens a block\n"));
  EXPECT_THAT(text, HasSubstr("device: 5 KiB of 8 KiB in use (62 %)\n"));
  EXPECT_THAT(text, HasSubstr("5 locked (62 %)\n"));
  EXPECT_THAT(text, HasSubstr("4 of them reserved for pages that change places\n"));
  EXPECT_THAT(text, HasSubstr("sequences: 2 open, 1 active, 1 suspended\n"));
  EXPECT_THAT(text, HasSubstr("group 0: own none; holds of the tree: 4 host\n"));
  EXPECT_THAT(text, HasSubstr("snapshots reserved at 8\n"));
  EXPECT_THAT(text, HasSubstr("device to host:        4 pages, 4 KiB\n"));
  EXPECT_THAT(text, HasSubstr("asked of the device:   28, 12 found (43 %)\n"));
  EXPECT_THAT(text, HasSubstr("12 of 28 (43 %)"));
  EXPECT_THAT(text, Not(HasSubstr("off\n")));
}

TEST(Describe, ManySequencesAreCountedAndSomeAreShown) {
  TestCache cache(test_config({FullAttention()}, 4));
  std::vector<Sequence> all;
  for (int i = 0; i < 20; ++i) all.push_back(cache.create({}));
  EXPECT_THAT(cache.manager->describe(), HasSubstr("  and 4 more\n"));
}

TEST(Describe, SaysWhenNothingIsCounted) {
  KvCacheConfig silent = config();
  silent.enable_statistics = false;
  const TestCache cache(std::move(silent));
  EXPECT_THAT(cache.manager->describe(), HasSubstr("statistics: off\n"));
}

TEST(Describe, ATunerTellsWhatItKnows) {
  RebalanceOptions options;
  options.update_interval = 2;
  Tuner tuner(options);
  EXPECT_EQ(tuner.describe(), "0 ended sequences of at least 2000; nothing is known of them yet");
  tuner.note_begin(3);
  tuner.note_end(100, 50);
  tuner.note_end(100, 50);
  EXPECT_EQ(tuner.describe(),
            "2 ended sequences of at least 2000; capacity 100, history 50, reused 3 tokens");
}

TEST(Describe, ATreeTellsItsSize) {
  TokenDigests digests;
  PageRun run;
  BlockTree tree(4, std::span(&run, 1), digests);
  const NodeIndex node = tree.add(tree.find_or_add_root({}), numbers(0, 4));
  tree.append(node, numbers(4, 4));
  EXPECT_EQ(tree.describe(), "1 root, 1 node, 2 blocks, 8 tokens");
}

}  // namespace
}  // namespace slackwater::cache
