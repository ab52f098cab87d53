// Quotas that change while sequences sleep.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;

constexpr std::int64_t kKiB = 1024;

// Attention pages of 4 KiB and states of 8 KiB.
KvCacheConfig config(std::int64_t device_bytes) {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 16, device_bytes);
  config.layers[0].buffers[0].bytes = 4 * kKiB;
  config.layers[1].buffers[0].bytes = 8 * kKiB;
  config.initial_pool_ratio = {0.6, 0.4};
  return config;
}

// Sequences that have computed some tokens, and sleep.
std::vector<Sequence> sleepers(TestCache& cache, int count, std::int64_t length) {
  std::vector<Sequence> all;
  for (int i = 0; i < count; ++i) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(static_cast<TokenId>(10'000 * i), length));
    EXPECT_TRUE(sequence.suspend().has_value());
    all.push_back(std::move(sequence));
  }
  return all;
}

// Each goes on where it was.
void wake(TestCache& cache, std::vector<Sequence>& all, std::int64_t length) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    cache.resume(all[i]);
    cache.compute(all[i], numbers(static_cast<TokenId>(10'000 * i), length));
    ASSERT_TRUE(all[i].suspend().has_value());
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(Quota, ADeviceThatShrinksSendsSleepersToTheHost) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.host_bytes = 256 * kKiB;
  TestCache cache(std::move(wanted));
  std::vector<Sequence> all = sleepers(cache, 4, 100);
  const auto room = [&](Tier tier) { return cache.manager->room(tier, LayerGroupId(0)); };
  const std::int32_t slots = room(Tier::kDevice).total;
  EXPECT_EQ(room(Tier::kHost).evictable, 0);
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 96 * kKiB).has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.manager->quota(Tier::kDevice), 96 * kKiB);
  EXPECT_LT(room(Tier::kDevice).total, slots / 2);
  EXPECT_GT(room(Tier::kHost).unavailable, 4) << "held, and there is no colder tier";
  wake(cache, all, 101);
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 256 * kKiB).has_value());
  EXPECT_EQ(room(Tier::kDevice).total, slots);
  cache.manager->audit();
  wake(cache, all, 102);
}

// What nobody needs goes, oldest first; what is left is right.
TEST(Quota, ATierThatShrinksDropsWhatNobodyHolds) {
  TestCache cache(config(256 * kKiB));
  cache.run(numbers(0, 100));
  cache.run(numbers(5000, 100));
  const std::int32_t slots = cache.manager->room(Tier::kDevice, LayerGroupId(0)).total;
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 64 * kKiB).has_value());
  cache.manager->audit();
  EXPECT_LT(cache.manager->room(Tier::kDevice, LayerGroupId(0)).total, slots);
  EXPECT_LT(cache.manager->probe_reuse({}, numbers(0, 101)).content, 96);
  EXPECT_GT(cache.manager->counters().pages_dropped, 0);
  Sequence again = cache.create(numbers(5000, 101));
  cache.resume(again);
  cache.compute(again, numbers(5000, 101));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// On the last tier, where nothing is in any queue: pages of sleepers are found all the same, states
// among them.
TEST(Quota, SleepersOnTheLastTierSurviveItsShrink) {
  const TemporaryDirectory directory;
  for (const bool has_disk : {false, true}) {
    KvCacheConfig wanted = config(96 * kKiB);
    wanted.host_bytes = has_disk ? 64 * kKiB : 512 * kKiB;
    if (has_disk) wanted.disk_bytes = 1024 * kKiB;
    wanted.disk.directory = directory.path();
    wanted.disk.segment_bytes = 64 * kKiB;
    TestCache cache(std::move(wanted));
    // The first ones lie in high slots once the others have come and gone.
    std::vector<Sequence> all = sleepers(cache, 6, 60);
    all.erase(all.begin(), all.begin() + 3);
    const Tier last = has_disk ? Tier::kDisk : Tier::kHost;
    const std::int64_t quota = cache.manager->quota(last);
    ASSERT_TRUE(cache.manager->set_quota(last, quota / 2).has_value());
    cache.manager->audit();
    for (std::size_t i = 0; i < all.size(); ++i) {
      cache.resume(all[i]);
      cache.compute(all[i], numbers(static_cast<TokenId>(10'000 * (i + 3)), 61));
      ASSERT_TRUE(all[i].suspend().has_value());
    }
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

TEST(Quota, WhatIsRefusedChangesNothing) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.max_device_bytes = 512 * kKiB;
  const std::int64_t floor = min_quotas(wanted)->device_bytes;
  TestCache cache(std::move(wanted));
  const auto refused = [&](Tier tier, std::int64_t bytes, ErrorCode code, const std::string& text) {
    const std::int64_t before = cache.manager->quota(tier);
    const TierRoom room = cache.manager->room(tier, LayerGroupId(0));
    const auto changed = cache.manager->set_quota(tier, bytes);
    ASSERT_FALSE(changed.has_value()) << text;
    EXPECT_EQ(changed.error().code(), code) << changed.error().text();
    EXPECT_THAT(changed.error().text(), HasSubstr(text));
    EXPECT_EQ(cache.manager->quota(tier), before);
    EXPECT_EQ(cache.manager->room(tier, LayerGroupId(0)).free, room.free);
    cache.manager->audit();
  };
  refused(Tier::kDevice, floor - 1, ErrorCode::kInvalidArgument,
          "use " + std::to_string(floor) + " or more");
  refused(Tier::kDevice, 513 * kKiB, ErrorCode::kOutOfRange, "at most 524288");
  refused(Tier::kHost, 64 * kKiB, ErrorCode::kFailedPrecondition, "from the start or never");
  refused(Tier::kDevice, -1, ErrorCode::kInvalidArgument, "a quota of -1 bytes");
  std::vector<Sequence> all = sleepers(cache, 4, 100);
  refused(Tier::kDevice, 64 * kKiB, ErrorCode::kResourceExhausted, "close some sequences first");
  cache.resume(all[0]);
  refused(Tier::kDevice, 256 * kKiB, ErrorCode::kFailedPrecondition,
          "1 sequence(s) active; suspend them first");
  ASSERT_TRUE(all[0].suspend().has_value());
  all.resize(1);
  EXPECT_TRUE(cache.manager->set_quota(Tier::kDevice, 512 * kKiB).has_value());
  EXPECT_TRUE(cache.manager->set_quota(Tier::kDevice, 64 * kKiB).has_value());
  wake(cache, all, 101);
}

// What is guaranteed stays so: the host keeps room for all that is in use.
TEST(Quota, AGuaranteeHoldsTheHost) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.host_bytes = 512 * kKiB;
  wanted.guarantee_suspend = true;
  const std::int64_t floor = min_quotas(wanted)->host_bytes;
  TestCache cache(std::move(wanted));
  std::vector<Sequence> all = sleepers(cache, 4, 160);
  const auto changed = cache.manager->set_quota(Tier::kHost, floor);
  ASSERT_FALSE(changed.has_value());
  EXPECT_EQ(changed.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(changed.error().text(), HasSubstr("pages are in use"));
  all.clear();
  EXPECT_TRUE(cache.manager->set_quota(Tier::kHost, floor).has_value());
  cache.manager->audit();
}

}  // namespace
}  // namespace slackwater::cache
