// Recurrent layers: states, snapshots, and how far they let a prompt be found. Behaviour of
// TensorRT-LLM's KV cache manager V2, with several snapshots per block.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();
constexpr LayerGroupId kStateGroup{1};

class Snapshots : public testing::Test {
 protected:
  static KvCacheConfig config(std::int32_t tokens_per_block = 32) {
    KvCacheConfig config = test_config({kFull, kState}, tokens_per_block);
    config.commit_policy = CommitPolicy::kEndpointsOnly;
    return config;
  }

  // Commits up to each of `ends` in turn, and closes.
  void commit_at(TestCache& cache, const Tokens& tokens, std::initializer_list<std::int64_t> ends) {
    Sequence sequence = cache.create(tokens);
    cache.resume(sequence);
    for (const std::int64_t end : ends) {
      if (end <= sequence.num_committed()) continue;
      cache.compute(sequence, Tokens(tokens.begin(), tokens.begin() + end));
    }
    sequence.close();
    cache.manager->synchronize();
  }
};

// no_reuse_with_ssm: blocks are known, but nobody can go on from them without a state.
TEST_F(Snapshots, NothingMatchesBeforeTheFirst) {
  KvCacheConfig every_block = config();
  every_block.commit_policy = CommitPolicy::kEveryBlock;
  TestCache cache(std::move(every_block));
  Sequence sequence = cache.create(numbers(0, 100));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 64));
  cache.manager->synchronize();
  const MatchDepths match = cache.manager->probe_reuse({}, numbers(0, 65));
  EXPECT_EQ(match.content, 64);
  EXPECT_EQ(match.attention, 64);
  EXPECT_EQ(match.reused, 0);
  EXPECT_EQ(cache.create(numbers(0, 65)).num_committed(), 0);
}

// suspend_and_resume_with_ssm: without pressure everything stays where it is.
TEST_F(Snapshots, AStateKeepsItsSlotWhereNobodyWantsIt) {
  TestCache cache(config());
  Sequence sequence = cache.create(numbers(0, 64));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 40));
  const SlotId slot = sequence.slots(kStateGroup)[0];
  ASSERT_TRUE(sequence.suspend().has_value());
  cache.resume(sequence);
  EXPECT_EQ(sequence.slots(kStateGroup)[0], slot);
  cache.compute(sequence, numbers(0, 64));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// ssm: 63 tokens of prompt, 52 one by one, every byte checked.
TEST_F(Snapshots, AStateIsCarriedThroughPrefillAndDecode) {
  TestCache cache(config());
  Sequence sequence = cache.create(numbers(0, 63));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 63));
  for (std::int64_t end = 64; end <= 115; ++end) cache.compute(sequence, numbers(0, end));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// ssm_reuse_snapshots_each_commit, ssm_reuse_keeps_snapshots_from_multiple_commits.
TEST_F(Snapshots, EveryCommitLeavesOne) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 128), {32, 64, 96, 128});
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 32);
  EXPECT_EQ(cache.reusable(numbers(0, 48)), 32);
  EXPECT_EQ(cache.reusable(numbers(0, 95)), 64);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
  EXPECT_EQ(cache.reusable(numbers(0, 128)), 128);
}

// Commits of 32 and 64 alone: whoever asks for more has the later one, for less the earlier one.
TEST_F(Snapshots, TheLatestThatFitsIsTaken) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 64), {32, 64});
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 32);
  EXPECT_EQ(cache.reusable(numbers(0, 48)), 32);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 64);
}

// ssm_reuse_data_integrity.
TEST_F(Snapshots, WhatIsTakenFromOneIsRight) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 128), {50, 128});
  // Each leaves one more, 20 tokens on.
  const std::pair<std::int64_t, std::int64_t> found[] = {{51, 50}, {100, 71}, {129, 128}};
  for (const auto& [end, position] : found) {
    Sequence sequence = cache.create(numbers(0, end));
    EXPECT_EQ(sequence.num_committed(), position);
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, end + 20));
    cache.manager->synchronize();
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// num_reusable_tokens_before_hybrid_pruning_isolates_recurrent_truncation: 48 tokens are known, and
// a state after 32 of them.
TEST_F(Snapshots, TheDepthWithoutThemIsTold) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 64), {32, 64});
  const MatchDepths match = cache.manager->probe_reuse({}, numbers(0, 49));
  EXPECT_EQ(match, (MatchDepths{48, 48, 48, 32}));
  const Sequence sequence = cache.create(numbers(0, 49));
  EXPECT_EQ(sequence.num_committed(), 32);
  EXPECT_EQ(sequence.match(), match);
  Tokens fork = numbers(0, 40);
  fork.push_back(9999);
  fork.push_back(9999);
  EXPECT_EQ(cache.manager->probe_reuse({}, fork), (MatchDepths{41, 40, 40, 32}));
}

// reuse_match_reports_content_divergence_depth: the same prompt, one that parts at a snapshot, and
// one that parts past one.
TEST_F(Snapshots, TheDepthWherePromptsPartIsTold) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 96), {32, 64, 96});
  const auto depths = [&](std::int64_t shared, std::int64_t own) {
    Tokens tokens = numbers(0, shared);
    for (const TokenId token : numbers(7000, own)) tokens.push_back(token);
    return cache.manager->probe_reuse({}, tokens);
  };
  EXPECT_EQ(depths(64, 1), (MatchDepths{64, 64, 64, 64})) << "the same, to the last token";
  EXPECT_EQ(depths(64, 33), (MatchDepths{96, 64, 64, 64}));
  EXPECT_EQ(depths(48, 1), (MatchDepths{48, 48, 48, 32}));
  EXPECT_EQ(depths(48, 49), (MatchDepths{96, 48, 48, 32}));
}

// reuse_match_divergence_is_zero_without_a_shared_prefix.
TEST_F(Snapshots, NothingInCommonHasNoDepth) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 96), {48, 96});
  EXPECT_EQ(cache.manager->probe_reuse({}, numbers(777, 64)), (MatchDepths{63, 0, 0, 0}));
}

// reuse_match_depths_are_monotonically_ordered.
TEST_F(Snapshots, DepthsAreOrderedForEveryLength) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 96), {48, 96});
  for (std::int64_t length = 16; length <= 128; length += 16) {
    const std::int64_t known = std::min<std::int64_t>(length, 96);
    const std::int64_t reused = length < 48 ? 0 : length < 96 ? 48 : 96;
    EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, length + 1)),
              (MatchDepths{length, known, known, reused}));
  }
}

// branch_snapshot_at_divergence_unlocks_sibling_reuse: the first sibling learns where it parts, and
// leaves a snapshot there for the next.
TEST_F(Snapshots, OneAtTheJunctionServesTheNextSibling) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 96), {96});
  Tokens second = numbers(0, 64);
  for (TokenId i = 0; i < 32; ++i) second.push_back(5000 + i);
  const MatchDepths match = cache.manager->probe_reuse({}, second);
  EXPECT_EQ(match.content, 64);
  EXPECT_EQ(match.reused, 0);
  commit_at(cache, second, {match.content, 96});
  Tokens third = numbers(0, 64);
  for (TokenId i = 0; i < 32; ++i) third.push_back(8000 + i);
  EXPECT_EQ(cache.manager->probe_reuse({}, third).reused, 64);
}

// ssm_same_block_snapshots_support_monotonic_multi_turn_reuse.
TEST_F(Snapshots, SeveralEndpointsInOneBlockServeTurnAfterTurn) {
  TestCache cache(config());
  std::int64_t before = 0;
  for (const std::int64_t end : {10, 20, 25}) {
    Sequence sequence = cache.create(numbers(0, end + 1));
    EXPECT_EQ(sequence.num_committed(), before);
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, end));
    sequence.close();
    cache.manager->synchronize();
    before = end;
  }
  EXPECT_EQ(cache.reusable(numbers(0, 25)), 25);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// ssm_same_block_forks_only_reuse_safe_snapshots. There a fork at 15 gives 0, because a block keeps
// only its last snapshot; ours gives the one at 10.
TEST_F(Snapshots, AForkInTheBlockTakesTheLastOneBeforeIt) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 20), {10, 20});
  const auto fork = [](std::int64_t at) {
    Tokens tokens = numbers(0, at);
    tokens.push_back(9999);
    return tokens;
  };
  EXPECT_EQ(cache.manager->probe_reuse({}, fork(15)).reused, 10);
  EXPECT_EQ(cache.manager->probe_reuse({}, fork(9)).reused, 0);
  EXPECT_EQ(cache.manager->probe_reuse({}, fork(20)).reused, 20);
  EXPECT_EQ(cache.manager->probe_reuse({}, fork(25)).reused, 20);
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 20);
  commit_at(cache, numbers(0, 32), {32});
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 32);
  EXPECT_EQ(cache.reusable(numbers(0, 31)), 20);
  EXPECT_EQ(cache.manager->probe_reuse({}, fork(40)).reused, 32);
}

// ssm_partial_snapshot_respects_partial_reuse_setting.
TEST_F(Snapshots, APartialBlockServesOnlyAnExactEndWherePartialReuseIsOff) {
  for (const bool partial : {false, true}) {
    KvCacheConfig off = config();
    off.enable_partial_reuse = partial;
    TestCache cache(std::move(off));
    commit_at(cache, numbers(0, 48), {32, 48});
    Tokens longer = numbers(0, 48);
    longer.push_back(9998);
    longer.push_back(9999);
    EXPECT_EQ(cache.manager->probe_reuse({}, longer).reused, partial ? 48 : 32);
    EXPECT_EQ(cache.reusable(numbers(0, 48)), 48) << "exactly";
  }
}

// commit_is_end_moves_partial_attention_and_ssm_pages: nothing is copied at the end. The pages stay
// in their slots, which nobody else is given as long as they are known.
TEST_F(Snapshots, TheEndMovesPagesIntoTheTree) {
  KvCacheConfig shared = config();
  shared.device_bytes = 4096;
  shared.layers[1].buffers[0].bytes = shared.layers[0].buffers[0].bytes;  // one pool for both
  TestCache cache(std::move(shared));
  constexpr LayerGroupId kAttention{0};
  const auto room = [&] { return cache.manager->room(storage::Tier::kDevice, kAttention); };
  Sequence sequence = cache.create(numbers(0, 48));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(48).has_value());
  const std::vector<SlotId> before = {sequence.slots(kAttention)[0], sequence.slots(kAttention)[1],
                                      sequence.slots(kStateGroup)[0]};
  ASSERT_EQ(room().total - room().free, 3);
  cache.compute(sequence, numbers(0, 48), true);
  cache.manager->synchronize();
  EXPECT_EQ(room().total - room().free, 3);
  EXPECT_THAT(sequence.slots(kAttention), testing::ElementsAre(before[0], before[1]));
  EXPECT_THAT(sequence.slots(kStateGroup), testing::ElementsAre(kNoSlot));
  EXPECT_EQ(cache.reusable(numbers(0, 48)), 48);
  EXPECT_EQ(sequence.commit(numbers(48, 1)).error().code(), ErrorCode::kFailedPrecondition);
  sequence.close();
  EXPECT_EQ(room().total - room().free, 3);

  // Whoever takes all that is free is given none of the three.
  Sequence other = cache.create({});
  const std::int64_t free = room().free;
  cache.resume(other);
  ASSERT_TRUE(other.resize((free - 1) * 32).has_value());
  EXPECT_EQ(room().free, 0);
  std::vector<SlotId> taken(other.slots(kAttention).begin(), other.slots(kAttention).end());
  taken.push_back(other.slots(kStateGroup)[0]);
  for (const SlotId slot : before) EXPECT_THAT(taken, testing::Not(testing::Contains(slot)));
  other.close();

  // Whoever goes on reads the full block where it was, and has copies of what it may write to.
  Sequence next = cache.create(numbers(0, 49));
  EXPECT_EQ(next.num_committed(), 48);
  cache.resume(next);
  EXPECT_EQ(next.slots(kAttention)[0], before[0]);
  EXPECT_NE(next.slots(kAttention)[1], before[1]);
  EXPECT_NE(next.slots(kStateGroup)[0], before[2]);
  cache.compute(next, numbers(0, 60));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// ssm_snapshot_moves_to_covering_block.
TEST_F(Snapshots, OneSurvivesWhenAFullBlockReplacesThePartialOne) {
  TestCache cache(config());
  commit_at(cache, numbers(0, 48), {48});
  commit_at(cache, numbers(0, 64), {64});
  EXPECT_EQ(cache.reusable(numbers(0, 48)), 48);
  EXPECT_EQ(cache.reusable(numbers(0, 63)), 48);
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 64);
}

// commit_min_snapshot_requires_history_alignment.
TEST_F(Snapshots, ACommitOfEndpointsEndsWhereTheHistoryDoes) {
  TestCache cache(config());
  Sequence sequence = cache.create(numbers(0, 64));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(48, 48).has_value());
  const auto refused = sequence.commit(numbers(0, 32));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("the history must be 0 or 32"));
  EXPECT_EQ(sequence.num_committed(), 0);
  EXPECT_TRUE(sequence.commit(numbers(0, 48)).has_value());
  EXPECT_EQ(sequence.num_committed(), 48);
}

// Both kinds of caches may have snapshots at any position, of any interval.
TEST_F(Snapshots, AnyIntervalIsLegal) {
  for (const std::int64_t interval : {0, 1, 10, 16, 24}) {
    KvCacheConfig any = config();
    any.snapshot_interval = interval;
    EXPECT_TRUE(validate(any).has_value()) << interval;
  }
}

// test_nvbug_6625710: somebody's snapshot is evicted while he sleeps, and a hundred others come and
// go; what he commits afterwards is in the tree.
TEST_F(Snapshots, ChurnBesideASleeperLeavesHisPathAlone) {
  for (const std::int64_t host_bytes : {0, 64 << 10}) {
    KvCacheConfig small = test_config({kFull, kState}, 32, 32 << 10);
    small.commit_policy = CommitPolicy::kEndpointsOnly;
    small.host_bytes = host_bytes;
    TestCache cache(std::move(small));
    Sequence sleeper = cache.create(numbers(0, 200));
    cache.resume(sleeper);
    cache.compute(sleeper, numbers(0, 100));
    ASSERT_TRUE(sleeper.suspend().has_value());
    for (int i = 1; i <= 100; ++i) cache.run(numbers(i * 1000, 64));
    cache.resume(sleeper);
    cache.compute(sleeper, numbers(0, 128));
    sleeper.close();
    cache.manager->synchronize();
    EXPECT_EQ(cache.reusable(numbers(0, 128)), 128);
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// The same without any layer that has pages per block.
TEST_F(Snapshots, ChurnBesideASleeperWithStatesOnly) {
  KvCacheConfig small = test_config({kState}, 32, 32 << 10);
  small.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(small));
  Sequence sleeper = cache.create(numbers(0, 200));
  cache.resume(sleeper);
  cache.compute(sleeper, numbers(0, 100));
  ASSERT_TRUE(sleeper.suspend().has_value());
  for (int i = 1; i <= 600; ++i) cache.run(numbers(i * 1000, 64));
  EXPECT_GT(cache.manager->counters().pages_dropped, 0);
  cache.resume(sleeper);
  cache.compute(sleeper, numbers(0, 128));
  sleeper.close();
  cache.manager->synchronize();
  EXPECT_EQ(cache.reusable(numbers(0, 128)), 128);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

}  // namespace
}  // namespace slackwater::cache
