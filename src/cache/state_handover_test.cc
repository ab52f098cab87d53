// States that become snapshots because a commit says what they are.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

const LayerKind kFull = FullAttention();
const LayerKind kWindow = SlidingWindow{6, 0};
const LayerKind kState = Recurrent();
constexpr LayerGroupId kStateGroup{1};

constexpr CommitPolicy kPolicies[] = {CommitPolicy::kEveryBlock, CommitPolicy::kEndpointsOnly};

KvCacheConfig explicit_config(CommitPolicy policy = CommitPolicy::kEveryBlock) {
  KvCacheConfig config = test_config({kFull, kState}, 8);
  config.explicit_states = true;
  config.commit_policy = policy;
  return config;
}

// Computes what is missing of `tokens`, and commits it with its states.
void publish(TestCache& cache, Sequence& sequence, const Tokens& tokens, bool is_end = false) {
  const std::int64_t from = sequence.history();
  ASSERT_TRUE(sequence.resize(std::max<std::int64_t>(sequence.capacity(), std::ssize(tokens)), from)
                  .has_value());
  const device::Event written = cache.engine.step(sequence, tokens, from);
  const auto committed =
      sequence.commit(std::span(tokens).subspan(static_cast<std::size_t>(sequence.num_committed())),
                      {written, is_end, true});
  ASSERT_TRUE(committed.has_value()) << committed.error().text();
  EXPECT_EQ(written.wait(), EventStatus::kSucceeded);
  cache.manager->audit();
}

// The sequence goes on, and so does whoever finds the snapshot; ends of blocks and positions
// within.
TEST(StateHandover, LeavesTheStateToOthersAndGoesOnInACopy) {
  for (const CommitPolicy policy : kPolicies) {
    for (const std::int64_t position : {5, 16, 21}) {
      SCOPED_TRACE(testing::Message() << "policy " << static_cast<int>(policy) << ", " << position);
      TestCache cache(explicit_config(policy));
      Sequence sequence = cache.create({});
      cache.resume(sequence);
      const SlotId before = sequence.slots(kStateGroup)[0];
      publish(cache, sequence, numbers(0, position));
      EXPECT_NE(sequence.slots(kStateGroup)[0], before);
      EXPECT_EQ(cache.reusable(numbers(0, position)), position) << "at once";
      EXPECT_EQ(cache.manager->counters().snapshots_skipped, 0);
      Sequence other = cache.create(numbers(0, position + 1));
      cache.resume(other);
      cache.compute(sequence, numbers(0, 40));
      cache.compute(other, numbers(0, 40));
      EXPECT_EQ(sequence.arrived().wait(), EventStatus::kSucceeded);
      sequence.close();
      other.close();
      cache.manager->audit();
      EXPECT_EQ(cache.engine.mismatches(), 0);
      EXPECT_EQ(cache.reusable(numbers(0, 40)), position) << "nobody has said so of the end";
    }
  }
}

// A slot of a pool of all recurrent groups, and a table of the caller's that follows.
TEST(StateHandover, MovesTheStatesOfAllGroupsAndTellsTheTable) {
  KvCacheConfig config = test_config({kFull, kState, kState, kWindow}, 8);
  config.layers[2].group_tag = "draft";
  TestCache cache(std::move(config));
  std::vector<SlotId> table(1);
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.set_index_table(LayerGroupId(2), table).has_value());
  const std::vector<SlotId> before = {sequence.slots(LayerGroupId(1))[0], table[0]};
  publish(cache, sequence, numbers(0, 21));
  EXPECT_NE(sequence.slots(LayerGroupId(1))[0], before[0]);
  EXPECT_NE(table[0], before[1]);
  EXPECT_EQ(table[0], sequence.slots(LayerGroupId(2))[0]);
  EXPECT_EQ(cache.manager->counters().snapshots_published, 2);
  EXPECT_EQ(cache.reusable(numbers(0, 21)), 21);
  cache.compute(sequence, numbers(0, 30));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(StateHandover, CountsACopyAndNoNewPage) {
  TestCache cache(explicit_config());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  publish(cache, sequence, numbers(0, 16));
  const GroupUse use = sequence.pending_statistics().groups[1];
  EXPECT_EQ(use.copied.pages, 1);
  EXPECT_EQ(use.pages_allocated, 1) << "its state";
}

TEST(StateHandover, IsSkippedWhereThereIsASnapshot) {
  for (const CommitPolicy policy : kPolicies) {
    TestCache cache(explicit_config(policy));
    Sequence first = cache.create({});
    Sequence second = cache.create({});
    cache.resume(first);
    cache.resume(second);
    publish(cache, first, numbers(0, 16));
    const SlotId before = second.slots(kStateGroup)[0];
    publish(cache, second, numbers(0, 16));
    EXPECT_EQ(second.slots(kStateGroup)[0], before);
    EXPECT_EQ(cache.manager->counters().snapshots_skipped, 1);
    EXPECT_EQ(cache.manager->counters().snapshots_published, 1);
    cache.compute(second, numbers(0, 20));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

TEST(StateHandover, IsSkippedWhereThereIsNoRoom) {
  KvCacheConfig config = explicit_config();
  config.device_bytes = 16 << 10;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(16).has_value());
  std::vector<Sequence> others;
  while (true) {
    Sequence other = cache.create({});
    if (!other.resume(cache.engine.stream()).has_value()) break;
    std::int64_t capacity = 0;
    while (other.resize(capacity + 8).has_value()) capacity += 8;
    others.push_back(std::move(other));
  }
  const SlotId before = sequence.slots(kStateGroup)[0];
  publish(cache, sequence, numbers(0, 16));
  EXPECT_EQ(sequence.slots(kStateGroup)[0], before);
  EXPECT_EQ(cache.manager->counters().snapshots_skipped, 1);
  EXPECT_EQ(sequence.num_committed(), 16);
  others.clear();
  publish(cache, sequence, numbers(0, 17));
  EXPECT_EQ(cache.reusable(numbers(0, 17)), 17);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// Somebody else is writing the block of the end, and may fail to.
TEST(StateHandover, IsSkippedWhereTheBlockIsNotOursYet) {
  for (const CommitPolicy policy : kPolicies) {
    TestCache cache(explicit_config(policy));
    Sequence first = cache.create({});
    Sequence second = cache.create({});
    cache.resume(first);
    cache.resume(second);
    device::EventSource step = cache.device->make_event("a step");
    ASSERT_TRUE(first.resize(16).has_value());
    ASSERT_TRUE(first.commit(numbers(0, 16), {step.event(), false}).has_value());
    const SlotId before = second.slots(kStateGroup)[0];
    publish(cache, second, numbers(0, 16));
    EXPECT_EQ(second.slots(kStateGroup)[0], before);
    EXPECT_EQ(cache.manager->counters().snapshots_skipped, 1);
    step.complete(EventStatus::kFailed);
    first.close();
    publish(cache, second, numbers(0, 17));
    EXPECT_EQ(cache.reusable(numbers(0, 17)), 17);
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// At the end nothing goes on, so nothing is copied; room past the end does not matter any more.
TEST(StateHandover, AtTheEndThePageItselfGoes) {
  for (const CommitPolicy policy : kPolicies) {
    TestCache cache(explicit_config(policy));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    ASSERT_TRUE(sequence.resize(40).has_value());
    publish(cache, sequence, numbers(0, 21), true);
    EXPECT_EQ(sequence.slots(kStateGroup)[0], kNoSlot);
    EXPECT_EQ(sequence.pending_statistics().groups[1].copied.pages, 0);
    EXPECT_EQ(cache.reusable(numbers(0, 21)), 21);
    sequence.close();
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 21)), 21);
  }
}

// As every end: what somebody else was writing is tried again when the sequence is closed.
TEST(StateHandover, AnEndThatHadToWaitIsTriedAgain) {
  TestCache cache(explicit_config());
  Sequence first = cache.create({});
  Sequence second = cache.create({});
  cache.resume(first);
  cache.resume(second);
  device::EventSource step = cache.device->make_event("a step");
  ASSERT_TRUE(first.resize(16).has_value());
  ASSERT_TRUE(first.commit(numbers(0, 16), {step.event(), false}).has_value());
  publish(cache, second, numbers(0, 16), true);
  EXPECT_EQ(cache.reusable(numbers(0, 16)), 0);
  step.complete(EventStatus::kFailed);
  first.close();
  second.close();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 16)), 16);
}

// Neither by close() nor by an end, nor as what is kept of every commit.
TEST(ExplicitStates, NothingIsASnapshotOfItself) {
  for (const CommitPolicy policy : kPolicies) {
    for (const bool has_end : {false, true}) {
      TestCache cache(explicit_config(policy));
      Sequence sequence = cache.create({});
      cache.resume(sequence);
      cache.compute(sequence, numbers(0, 21), has_end);
      EXPECT_EQ(sequence.slots(kStateGroup)[0] == kNoSlot, false);
      sequence.close();
      cache.manager->audit();
      EXPECT_EQ(cache.manager->counters().snapshots_published, 0);
      EXPECT_EQ(cache.reusable(numbers(0, 21)), 0);
      EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 22)).content, 21) << "blocks are known";
    }
  }
}

TEST(ExplicitStates, ReservedSnapshotsAreSaidAloud) {
  TestCache cache(explicit_config());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(24).has_value());
  ASSERT_TRUE(sequence.reserve_snapshot(11).has_value());
  cache.compute(sequence, numbers(0, 24));
  sequence.close();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 11);
}

// Without recurrent layers there is nothing to publish, and nothing is copied.
TEST(StateHandover, IsNothingWithoutStates) {
  TestCache cache(test_config({kFull, kWindow}, 8));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  publish(cache, sequence, numbers(0, 21));
  EXPECT_EQ(sequence.pending_statistics().groups[0].copied.pages, 0);
  EXPECT_EQ(cache.manager->counters().snapshots_skipped, 0);
}

// A device on which the n-th copy from now on fails.
class StateHandoverOnSim : public testing::Test {
 protected:
  void open(KvCacheConfig config) {
    device::SimOptions options;
    options.copy_fault = [this](std::int64_t) {
      return copies_left_-- == 0 ? device::CopyFault::kTear : device::CopyFault::kNone;
    };
    cache_ = std::make_unique<TestCache>(std::move(config),
                                         std::make_unique<device::SimDevice>(options));
  }

  std::int64_t copies_left_ = -1;
  std::unique_ptr<TestCache> cache_;
};

// The sequence has lost its state; the snapshot is the page that was written.
TEST_F(StateHandoverOnSim, AFailedCopyDamagesTheSequenceAndNotTheSnapshot) {
  for (const CommitPolicy policy : kPolicies) {
    for (const bool suspends : {false, true}) {
      open(explicit_config(policy));
      Sequence sequence = cache_->create({});
      cache_->resume(sequence);
      copies_left_ = 0;
      publish(*cache_, sequence, numbers(0, 16));
      EXPECT_EQ(sequence.arrived().wait(), EventStatus::kFailed);
      if (suspends) {
        ASSERT_TRUE(sequence.suspend().has_value());
        EXPECT_EQ(sequence.resume(cache_->engine.stream()).error().code(), ErrorCode::kDataLoss);
      } else {
        ASSERT_TRUE(sequence.resize(17).has_value());
        const auto committed = sequence.commit(numbers(16, 1));
        ASSERT_FALSE(committed.has_value());
        EXPECT_EQ(committed.error().code(), ErrorCode::kDataLoss);
      }
      sequence.close();
      cache_->manager->audit();
      ASSERT_EQ(cache_->reusable(numbers(0, 16)), 16);
      Sequence other = cache_->create(numbers(0, 20));
      cache_->resume(other);
      cache_->compute(other, numbers(0, 20));
      EXPECT_EQ(cache_->engine.mismatches(), 0);
      other.close();
    }
  }
}

// What is committed while a copy is under way that then fails is found by nobody.
TEST(StateHandover, WhatIsComputedFromAFailedCopyIsNeverFound) {
  int num_committed = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    device::SimOptions options;
    options.seed = seed;
    options.copy_fault = [](std::int64_t) { return device::CopyFault::kTear; };
    TestCache cache(explicit_config(), std::make_unique<device::SimDevice>(options));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    const Tokens tokens = numbers(0, 32);
    ASSERT_TRUE(sequence.resize(16).has_value());
    const device::Event first = cache.engine.step(sequence, numbers(0, 16), 0);
    ASSERT_TRUE(sequence.commit(numbers(0, 16), {first, false, true}).has_value());
    ASSERT_TRUE(sequence.resize(32).has_value());
    const device::Event second = cache.engine.step(sequence, tokens, 16);
    const auto committed = sequence.commit(numbers(16, 16), {second, false, true});
    num_committed += committed.has_value();
    second.wait();
    sequence.close();
    cache.manager->synchronize();
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(tokens), 16) << "seed " << seed;
  }
  EXPECT_GT(num_committed, 0);
}

// A step that fails has written no state: nobody sees the snapshot, and the copy fails with it.
TEST_F(StateHandoverOnSim, AStepThatFailsPublishesNothing) {
  for (const CommitPolicy policy : kPolicies) {
    open(explicit_config(policy));
    Sequence sequence = cache_->create({});
    cache_->resume(sequence);
    ASSERT_TRUE(sequence.resize(16).has_value());
    device::EventSource step = cache_->device->make_event("a step");
    ASSERT_TRUE(sequence.commit(numbers(0, 16), {step.event(), false, true}).has_value());
    EXPECT_EQ(cache_->reusable(numbers(0, 16)), 0);
    step.complete(EventStatus::kFailed);
    EXPECT_EQ(sequence.arrived().wait(), EventStatus::kFailed);
    EXPECT_EQ(cache_->reusable(numbers(0, 16)), 0);
    ASSERT_TRUE(sequence.resize(17).has_value());
    EXPECT_EQ(sequence.commit(numbers(16, 1)).error().code(), ErrorCode::kDataLoss);
    sequence.close();
    cache_->manager->audit();
    EXPECT_EQ(cache_->reusable(numbers(0, 16)), 0);
  }
}

// The step after the commit is queued at once, and reads the copy when that is there.
TEST_F(StateHandoverOnSim, TheNextStepWaitsForTheCopy) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    device::SimOptions options;
    options.seed = seed;
    TestCache cache(explicit_config(), std::make_unique<device::SimDevice>(options));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    device::Event last;
    for (std::int64_t end = 3; end < 40; end += 3) {
      ASSERT_TRUE(sequence.resize(end).has_value());
      last = cache.engine.step(sequence, numbers(0, end), end - 3);
      const Tokens more = numbers(static_cast<TokenId>(end - 3), 3);
      ASSERT_TRUE(sequence.commit(more, {last, false, true}).has_value());
    }
    EXPECT_EQ(last.wait(), EventStatus::kSucceeded);
    EXPECT_EQ(cache.engine.mismatches(), 0) << "seed " << seed;
    sequence.close();
    cache.manager->audit();
  }
}

}  // namespace
}  // namespace slackwater::cache
