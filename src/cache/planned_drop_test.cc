// Pages that somebody says will not be needed again.

#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;

// Blocks of 8, and a window of 8 beside full attention.
KvCacheConfig windows() { return test_config({FullAttention(), SlidingWindow{8, 0}}, 8); }

PlannedDrop plan_of(Sequence& sequence) {
  auto planned = sequence.plan_drop();
  EXPECT_TRUE(planned.has_value()) << planned.error().text();
  EXPECT_TRUE(planned->has_value()) << "nothing is planned";
  return **std::move(planned);
}

// A sequence that has computed and committed all, and is over.
Sequence ended(TestCache& cache, const Tokens& tokens) {
  Sequence sequence = cache.create(tokens);
  cache.resume(sequence);
  cache.compute(sequence, tokens, true);
  return sequence;
}

std::int32_t num_taken(const TestCache& cache, std::int32_t group) {
  const TierRoom room = cache.manager->room(Tier::kDevice, LayerGroupId(group));
  return room.total - room.free;
}

TEST(PlannedDropTest, TakesTheWindowOfTheEndAndLeavesWhatIsOlder) {
  TestCache cache(windows());
  Sequence sequence = ended(cache, numbers(0, 24));
  PlannedDrop plan = plan_of(sequence);
  sequence.close();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 24) << "a plan keeps nothing, and takes nothing yet";
  ASSERT_TRUE(plan.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 16);
  EXPECT_EQ(cache.manager->counters().pages_dropped, 1);
  const auto again = plan.drop();
  ASSERT_FALSE(again.has_value());
  EXPECT_EQ(again.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(again.error().text(), HasSubstr("has already been dropped"));
}

TEST(PlannedDropTest, TheEndOfTheHandleDrops) {
  TestCache cache(windows());
  Sequence sequence = ended(cache, numbers(0, 24));
  std::optional<PlannedDrop> plan = plan_of(sequence);
  sequence.close();
  std::optional<PlannedDrop> moved = std::move(plan);
  plan.reset();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 24) << "it was moved away";
  moved.reset();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 16);
}

// Assigned to, a handle drops what it had.
TEST(PlannedDropTest, AHandleThatIsAssignedToDrops) {
  TestCache cache(windows());
  Sequence first = ended(cache, numbers(0, 24));
  Sequence second = ended(cache, numbers(5000, 24));
  PlannedDrop plan = plan_of(first);
  PlannedDrop other = plan_of(second);
  first.close();
  second.close();
  plan = std::move(other);
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 16);
  EXPECT_EQ(cache.reusable(numbers(5000, 24)), 24);
  ASSERT_TRUE(plan.drop().has_value());
  EXPECT_EQ(cache.reusable(numbers(5000, 24)), 16);
}

TEST(PlannedDropTest, ThereIsNoneBeforeTheEnd) {
  TestCache cache(windows());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  const auto early = sequence.plan_drop();
  ASSERT_FALSE(early.has_value());
  EXPECT_EQ(early.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(early.error().text(), HasSubstr("stop committing first"));
  ASSERT_TRUE(sequence.stop_committing().has_value());
  const auto nothing = sequence.plan_drop();
  ASSERT_TRUE(nothing.has_value());
  EXPECT_FALSE(nothing->has_value()) << "nothing is committed";
  sequence.close();
  EXPECT_EQ(sequence.plan_drop().error().code(), ErrorCode::kFailedPrecondition);
}

// After stop_committing() the end of a block is not in the tree yet.
TEST(PlannedDropTest, ThereIsNoneWhereAPageOfTheEndIsNotInTheTree) {
  TestCache cache(windows());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  ASSERT_TRUE(sequence.stop_committing().has_value());
  EXPECT_FALSE(sequence.plan_drop()->has_value());
  cache.manager->audit();
}

// Both say so, one of them sleeps: it goes with the last plan, and only when nobody holds it.
TEST(PlannedDropTest, APageGoesWithTheLastPlanThatNamesIt) {
  TestCache cache(windows());
  Sequence first = ended(cache, numbers(0, 24));
  Sequence second = ended(cache, numbers(0, 24));
  PlannedDrop one = plan_of(first);
  PlannedDrop two = plan_of(second);
  first.close();
  second.close();
  ASSERT_TRUE(one.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 24);
  ASSERT_TRUE(two.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 16);
}

TEST(PlannedDropTest, WhatSomebodyHoldsStays) {
  TestCache cache(windows());
  Sequence sequence = ended(cache, numbers(0, 24));
  PlannedDrop plan = plan_of(sequence);
  sequence.close();
  Sequence reader = cache.create(numbers(0, 25));
  ASSERT_EQ(reader.num_committed(), 24);
  ASSERT_TRUE(plan.drop().has_value());
  cache.manager->audit();
  cache.resume(reader);
  cache.compute(reader, numbers(0, 25));
  EXPECT_EQ(cache.engine.mismatches(), 0);
  reader.close();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 24) << "and it is let go as if nobody had planned";
  EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
}

// A node is cut in two after the plan: its pages are found in either part.
TEST(PlannedDropTest, PagesAreFoundWhereverTheTreePutsThem) {
  KvCacheConfig wanted = test_config({FullAttention(), SlidingWindow{17, 0}}, 8);
  TestCache cache(std::move(wanted));
  Sequence sequence = ended(cache, numbers(0, 32));
  PlannedDrop plan = plan_of(sequence);
  sequence.close();
  const std::int32_t before = num_taken(cache, 1);
  Tokens fork = numbers(0, 24);
  for (const TokenId token : numbers(7000, 9)) fork.push_back(token);
  cache.run(fork);
  const std::int32_t with_fork = num_taken(cache, 1);
  ASSERT_GT(with_fork, before);
  ASSERT_TRUE(plan.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(num_taken(cache, 1), with_fork - 2) << "blocks 2 and 3 of the window";
}

// A plan names fewer pages once some have left, and none of those that came in their place.
TEST(PlannedDropTest, PagesThatHaveLeftAreForgotten) {
  TestCache cache(windows());
  Sequence sequence = ended(cache, numbers(0, 24));
  std::optional<PlannedDrop> plan = plan_of(sequence);
  sequence.close();
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  cache.manager->audit();
  cache.run(numbers(0, 24));
  ASSERT_TRUE(plan->drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 24)), 24);
  EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
}

// A block that ends early gives its pages to a longer one: the plan goes with them.
TEST(PlannedDropTest, ALongerBlockTakesThePlanOver) {
  KvCacheConfig wanted = test_config({FullAttention(), SlidingWindow{8, 0}, Recurrent()}, 8);
  wanted.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(wanted));
  Sequence sequence = ended(cache, numbers(0, 20));
  std::optional<PlannedDrop> plan = plan_of(sequence);
  sequence.close();
  ASSERT_EQ(cache.reusable(numbers(0, 20)), 20);
  cache.run(numbers(0, 40));
  ASSERT_EQ(cache.reusable(numbers(0, 20)), 20) << "its state went over";
  plan.reset();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 0);
  EXPECT_EQ(cache.reusable(numbers(0, 40)), 40);
}

// Two states in one block and nowhere else: the plan takes the later one.
TEST(PlannedDropTest, TakesTheSnapshotOfTheEndOnly) {
  KvCacheConfig wanted = test_config({FullAttention(), Recurrent()}, 32);
  wanted.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(wanted));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  for (const std::int64_t end : {10, 20}) cache.compute(sequence, numbers(0, end));
  ASSERT_TRUE(sequence.stop_committing().has_value());
  PlannedDrop plan = plan_of(sequence);
  sequence.close();
  ASSERT_TRUE(plan.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 10);
}

// Wherever it lies.
TEST(PlannedDropTest, APageLeavesTheHostToo) {
  KvCacheConfig wanted = test_config({FullAttention(), SlidingWindow{512, 0}}, 512, 8 * 4096);
  wanted.host_bytes = 16 * 4096;
  TestCache cache(std::move(wanted));
  Sequence sequence = ended(cache, numbers(0, 3 * 512));
  PlannedDrop plan = plan_of(sequence);
  sequence.close();
  Sequence other = cache.create({});
  cache.resume(other);
  ASSERT_TRUE(other.resize(4 * 512).has_value());
  cache.manager->synchronize();
  ASSERT_EQ(num_taken(cache, 1), 8);
  const auto on_host = [&] {
    const TierRoom room = cache.manager->room(Tier::kHost, LayerGroupId(1));
    return room.total - room.free;
  };
  const std::int32_t before = on_host();
  ASSERT_GT(before, 0);
  ASSERT_TRUE(plan.drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(on_host(), before - 1);
}

}  // namespace
}  // namespace slackwater::cache
