#include "slackwater/cache/kv_cache_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using testing::HasSubstr;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();

TEST(KvCacheManager, APromptIsFoundAgainButForItsLastToken) {
  TestCache cache(test_config({kFull}, 8));
  const Tokens prompt = numbers(0, 40);
  EXPECT_EQ(cache.manager->probe_reuse({}, prompt).reused, 0);
  cache.run(prompt);
  EXPECT_EQ(cache.manager->probe_reuse({}, prompt).reused, 39);
  EXPECT_EQ(cache.reusable(prompt), 40);
  Sequence again = cache.create(prompt);
  EXPECT_EQ(again.num_committed(), 39);
  EXPECT_EQ(again.history(), 39);
  EXPECT_EQ(again.capacity(), 39);
  cache.resume(again);
  cache.compute(again, prompt);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(KvCacheManager, ABlockThatMatchesInPartIsCopied) {
  TestCache cache(test_config({kFull}, 8));
  cache.run(numbers(0, 16));
  Tokens fork = numbers(0, 13);
  fork.push_back(99);
  fork.push_back(98);
  Sequence sequence = cache.create(fork);
  EXPECT_EQ(sequence.num_committed(), 13);
  cache.resume(sequence);
  cache.compute(sequence, fork);
  EXPECT_EQ(cache.engine.mismatches(), 0);
  // Neither has written to the other's page.
  Sequence first = cache.create(numbers(0, 17));
  EXPECT_EQ(first.num_committed(), 16);
  cache.resume(first);
  cache.compute(first, numbers(0, 17));
  EXPECT_EQ(cache.engine.mismatches(), 0);
  sequence.close();
  EXPECT_EQ(cache.reusable(fork), 15) << "the partial block at its end";
  EXPECT_EQ(cache.reusable(numbers(0, 16)), 16);
}

// However many branches there are: forty part in the middle of a block, and the state that they
// have in common lies with the one that is farthest from what is asked for.
TEST(KvCacheManager, AStateIsFoundInWhicheverBranchItLies) {
  for (const TokenId keeper : {100, 139}) {
    TestCache cache(test_config({kFull, kState}, 8));
    for (TokenId branch = 100; branch < 140; ++branch) {
      Tokens tokens = numbers(0, 5);
      for (int i = 0; i < 11; ++i) tokens.push_back(branch);
      Sequence sequence = cache.create(tokens);
      cache.resume(sequence);
      ASSERT_TRUE(sequence.resize(std::ssize(tokens) + 1).has_value());
      if (branch == keeper) {
        ASSERT_TRUE(sequence.reserve_snapshot(5).has_value());
      }
      cache.compute(sequence, tokens);
    }
    for (const TokenId next : {90, 120, 150}) {
      Tokens query = numbers(0, 5);
      for (int i = 0; i < 20; ++i) query.push_back(next);
      EXPECT_EQ(cache.manager->probe_reuse({}, query).reused, 5) << keeper << ", " << next;
    }
  }
}

TEST(KvCacheManager, AFailedStepLeavesAStateThatNobodyKnows) {
  for (const bool has_states : {false, true}) {
    TestCache cache(has_states ? test_config({kFull, kState}, 8) : test_config({kFull}, 8));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 16));
    ASSERT_TRUE(sequence.resize(24).has_value());
    device::EventSource step = cache.device->make_event("a step");
    step.complete(device::EventStatus::kFailed);
    const auto failed = sequence.commit(numbers(16, 4), {step.event(), false});
    EXPECT_EQ(failed.error().code(), ErrorCode::kDataLoss);
    EXPECT_EQ(sequence.num_committed(), 16);
    const auto again = sequence.commit(numbers(16, 4));
    EXPECT_EQ(again.has_value(), !has_states) << "attention is computed again";
    if (has_states) {
      EXPECT_EQ(again.error().code(), ErrorCode::kDataLoss);
      EXPECT_THAT(again.error().text(), HasSubstr("compute it again"));
    }
    sequence.close();
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 24)), has_states ? 0 : 20);
  }
}

TEST(KvCacheManager, WhatIsComputedAlreadyCannotBeSnapshot) {
  TestCache cache(test_config({kFull, kState}, 16));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(64, 32).has_value());
  const auto refused = sequence.reserve_snapshot(16);
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().text(), HasSubstr("from 33 to the capacity 64"));
  EXPECT_FALSE(sequence.snapshot_slot(LayerGroupId(1), 16).has_value());
  EXPECT_TRUE(sequence.reserve_snapshot(33).has_value());
}

// The page may still be written to while the sequence runs, past what is committed.
TEST(KvCacheManager, TheEndOfWhoeverStoppedIsReusableOnceItIsClosed) {
  TestCache cache(test_config({kFull}, 16));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  ASSERT_TRUE(sequence.stop_committing().has_value());
  ASSERT_TRUE(sequence.resize(30, 20).has_value());
  cache.engine.step(sequence, numbers(0, 30), 20).wait();
  ASSERT_TRUE(sequence.resize(30, 30).has_value());
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 16);
  sequence.close();
  EXPECT_EQ(cache.reusable(numbers(0, 30)), 20);
  Sequence next = cache.create(numbers(0, 25));
  cache.resume(next);
  cache.compute(next, numbers(0, 25));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// Snapshots lie where the margin lets them be found: for the same prompt again, and for the next
// turn.
TEST(KvCacheManager, SnapshotPointsLeaveTheMargin) {
  for (const std::int64_t margin : {0, 1, 16}) {
    KvCacheConfig config = test_config({kFull, kState}, 8);
    config.reuse_match_backoff = margin;
    TestCache cache(std::move(config));
    Tokens tokens = numbers(0, 50);
    for (int turn = 0; turn < 3; ++turn) {
      Sequence sequence = cache.create(tokens);
      if (turn > 0) {
        EXPECT_EQ(sequence.num_committed(), 49 - margin) << "turn " << turn;
      }
      cache.resume(sequence);
      ASSERT_TRUE(sequence.resize(std::ssize(tokens) + 1).has_value());
      for (const std::int64_t at : cache.manager->snapshot_points(sequence, std::ssize(tokens))) {
        ASSERT_TRUE(sequence.reserve_snapshot(at).has_value());
      }
      cache.compute(sequence, tokens);
      if (turn == 1) {
        for (const TokenId token : numbers(500, 30)) tokens.push_back(token);
      }
    }
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

TEST(KvCacheManager, ASuspendedSequenceComesBack) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{9, 3}, kState}, 4);
  TestCache cache(std::move(config));
  Sequence sequence = cache.create(numbers(0, 30));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 30));
  for (std::int64_t length = 31; length < 60; ++length) {
    ASSERT_TRUE(sequence.suspend().has_value());
    cache.manager->audit();
    EXPECT_TRUE(sequence.slots(LayerGroupId(0)).empty());
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, length));
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(KvCacheManager, WhoIsSuspendedMakesRoomOnTheHost) {
  // 16 blocks of 4 tokens on the device, as many on the host.
  KvCacheConfig config = test_config({kFull}, 64, 16 * 512);
  config.host_bytes = 16 * 512;
  TestCache cache(std::move(config));
  Sequence a = cache.create(numbers(0, 10 * 64));
  Sequence b = cache.create(numbers(5000, 10 * 64));
  cache.resume(a);
  cache.compute(a, numbers(0, 10 * 64));
  ASSERT_TRUE(a.suspend().has_value());
  cache.resume(b);
  cache.compute(b, numbers(5000, 10 * 64));
  ASSERT_TRUE(b.suspend().has_value());
  EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
  cache.resume(a);
  cache.compute(a, numbers(0, 10 * 64 + 1));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(KvCacheManager, WhatNobodyUsesIsDroppedOldestFirst) {
  KvCacheConfig config = test_config({kFull}, 64, 16 * 512);
  TestCache cache(std::move(config));
  const std::int64_t slots = cache.manager->room(storage::Tier::kDevice, LayerGroupId(0)).total;
  ASSERT_EQ(slots, 16);
  cache.run(numbers(0, 6 * 64));
  cache.run(numbers(5000, 6 * 64));
  cache.run(numbers(9000, 6 * 64));
  EXPECT_EQ(cache.reusable(numbers(0, 6 * 64)), 4 * 64) << "its end left first";
  EXPECT_EQ(cache.reusable(numbers(5000, 6 * 64)), 6 * 64);
  EXPECT_EQ(cache.manager->counters().pages_dropped, 2);
}

TEST(KvCacheManager, ASnapshotServesItsOwnPositionOnly) {
  TestCache cache(test_config({kFull, kState}, 8));
  const Tokens prompt = numbers(0, 40);
  Sequence sequence = cache.create(prompt);
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(40).has_value());
  ASSERT_TRUE(sequence.reserve_snapshot(19).has_value());
  ASSERT_TRUE(sequence.reserve_snapshot(32).has_value());
  cache.compute(sequence, prompt);
  EXPECT_EQ(cache.reusable(numbers(0, 18)), 0);
  EXPECT_EQ(cache.reusable(numbers(0, 19)), 19);
  EXPECT_EQ(cache.reusable(numbers(0, 31)), 19);
  EXPECT_EQ(cache.reusable(prompt), 32);
  sequence.close();
  EXPECT_EQ(cache.reusable(prompt), 40) << "the state of the end";
  EXPECT_EQ(cache.manager->probe_reuse({}, prompt).attention, 39);
  Sequence again = cache.create(prompt);
  EXPECT_EQ(again.num_committed(), 32);
  cache.resume(again);
  cache.compute(again, prompt);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// The same prompt twice, and a second turn, find all but fewer than a block.
TEST(KvCacheManager, SnapshotPointsServeTheSamePromptAndTheNextTurn) {
  KvCacheConfig config = test_config({kFull, kState}, 32);
  config.snapshot_interval = 40;
  TestCache cache(std::move(config));
  const auto run = [&](const Tokens& prompt, const Tokens& all) {
    Sequence sequence = cache.create(prompt);
    cache.resume(sequence);
    EXPECT_TRUE(sequence.resize(std::ssize(all)).has_value());
    const auto points = cache.manager->snapshot_points(sequence, std::ssize(prompt));
    for (const std::int64_t point : points) {
      EXPECT_TRUE(sequence.reserve_snapshot(point).has_value()) << point;
    }
    cache.compute(sequence, all);
    return points;
  };
  EXPECT_THAT(run(numbers(0, 100), numbers(0, 130)), testing::ElementsAre(40, 80, 96, 99));
  EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 100)).reused, 99) << "the same prompt";
  EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 200)).reused, 130) << "the next turn";
  Tokens fork = numbers(0, 70);
  for (const TokenId token : numbers(9000, 60)) fork.push_back(token);
  EXPECT_THAT(run(fork, fork), testing::ElementsAre(70, 80, 120, 128, 129)) << "70: the junction";
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(KvCacheManager, EndpointsAreKeptAsCopies) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{6, 0}, kState}, 16);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create(numbers(0, 26));
  cache.resume(sequence);
  for (const std::int64_t end : {10, 20, 25}) cache.compute(sequence, numbers(0, end));
  cache.manager->synchronize();
  EXPECT_EQ(cache.reusable(numbers(0, 9)), 0);
  EXPECT_EQ(cache.reusable(numbers(0, 10)), 10);
  EXPECT_EQ(cache.reusable(numbers(0, 19)), 10);
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 20);
  EXPECT_EQ(cache.reusable(numbers(0, 25)), 25);
  for (const std::int64_t end : {11, 21, 26}) {
    Sequence again = cache.create(numbers(0, end));
    EXPECT_EQ(again.num_committed(), end - 1);
    cache.resume(again);
    cache.compute(again, numbers(0, end));
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// With the device, the host and the disk full of what is held, whoever is resumed changes places
// with whoever is not, in whatever order that is asked for.
class FullTiers : public testing::TestWithParam<bool> {};

// With a host and a disk, or a disk alone.
INSTANTIATE_TEST_SUITE_P(KvCacheManager, FullTiers, testing::Bool());

TEST_P(FullTiers, EverybodyComesBackFirstInFirstOutWhenAllTiersAreFull) {
  const bool has_host = GetParam();
  const TemporaryDirectory directory;
  KvCacheConfig config = test_config({kFull}, 64, 8 * 512);
  if (has_host) config.host_bytes = 16 * 512;
  config.disk_bytes = has_host ? 12 * 1024 : 28 * 1024;
  config.disk.directory = directory.path();
  config.disk.segment_bytes = 16 << 10;
  TestCache cache(std::move(config));
  std::vector<Sequence> sequences;
  std::vector<Tokens> tokens;
  while (true) {
    tokens.push_back(numbers(static_cast<TokenId>(10'000 * sequences.size()), 7 * 64));
    Sequence sequence = cache.create(tokens.back());
    cache.resume(sequence);
    if (!sequence.resize(7 * 64).has_value()) break;
    cache.compute(sequence, tokens.back());
    ASSERT_TRUE(sequence.suspend().has_value());
    sequences.push_back(std::move(sequence));
  }
  ASSERT_GE(sequences.size(), 4u) << "7 blocks each: more than the device and the host hold";
  for (int round = 0; round < 3; ++round) {
    for (std::size_t i = 0; i < sequences.size(); ++i) {
      cache.resume(sequences[i]);
      tokens[i].push_back(static_cast<TokenId>(round));
      cache.compute(sequences[i], tokens[i]);
      ASSERT_TRUE(sequences[i].suspend().has_value());
      cache.manager->audit();
    }
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// What is in use is never more than the host could take.
TEST(KvCacheManager, SuspendIsGuaranteedByAdmission) {
  KvCacheConfig config = test_config({kFull}, 64, 16 * 512);
  config.host_bytes = 8 * 512;
  config.guarantee_suspend = true;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create(numbers(0, 10 * 64));
  cache.resume(sequence);
  const auto too_much = sequence.resize(5 * 64);
  ASSERT_FALSE(too_much.has_value());
  EXPECT_THAT(too_much.error().text(), HasSubstr("5 pages in use would not fit the 4 slots"));
  EXPECT_EQ(sequence.capacity(), 0);
  cache.compute(sequence, numbers(0, 4 * 64));
  ASSERT_TRUE(sequence.suspend().has_value());
  // Nobody else may take so much into use that the first could not leave.
  Sequence other = cache.create(numbers(5000, 64));
  cache.resume(other);
  EXPECT_EQ(other.resize(64).error().code(), ErrorCode::kResourceExhausted);
  sequence.close();
  EXPECT_TRUE(other.resize(64).has_value());
}

TEST(KvCacheManager, OpenSequencesKeepItOpen) {
  TestCache cache(test_config({kFull}, 8));
  Sequence sequence = cache.create(numbers(0, 4));
  const auto cleared = cache.manager->clear_reusable_blocks();
  ASSERT_FALSE(cleared.has_value());
  EXPECT_THAT(cleared.error().text(), HasSubstr("clear_reusable_blocks: 1 sequence(s) still open"));
  EXPECT_THAT(cache.manager->shutdown().error().text(), HasSubstr("shutdown: 1 sequence(s)"));
  sequence.close();
  EXPECT_TRUE(cache.manager->shutdown().has_value());
  EXPECT_TRUE(cache.manager->shutdown().has_value());
}

}  // namespace
}  // namespace slackwater::cache
