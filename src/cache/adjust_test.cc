// Shares of layer groups that follow the load.

#include <chrono>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using std::chrono::seconds;
using storage::Tier;
using testing::HasSubstr;

constexpr std::int64_t kKiB = 1024;

// Attention pages of 4 KiB for 16 tokens, and states of 8 KiB.
KvCacheConfig config(std::int64_t device_bytes) {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 16, device_bytes);
  config.layers[0].buffers[0].bytes = 4 * kKiB;
  config.layers[1].buffers[0].bytes = 8 * kKiB;
  config.initial_pool_ratio = {0.5, 0.5};
  config.rebalance.min_samples = 4;
  config.rebalance.update_interval = 2;
  config.rebalance.cooldown = seconds(10);
  config.rebalance.decay = 0.5;
  return config;
}

struct AdjustCache : TestCache {
  using TestCache::TestCache;

  TierRoom room(Tier tier, std::int32_t group) const {
    return manager->room(tier, LayerGroupId(group));
  }
  // Sequences of so many tokens come and go; nothing of them is kept.
  void feed(int count, std::int64_t length, bool is_dummy = false) {
    for (int i = 0; i < count; ++i) {
      SequenceOptions options;
      options.request = RequestId(next_request++);
      options.is_dummy = is_dummy;
      Sequence sequence = *manager->create_sequence(options);
      resume(sequence);
      ASSERT_TRUE(sequence.resize(length).has_value());
    }
  }
  // Prompts of which `length` tokens are found, by all but the first.
  void feed_reuse(int count, std::int64_t length) {
    run(numbers(900'000, length));
    for (int i = 1; i < count; ++i) {
      Sequence sequence = create(numbers(900'000, length + 1));
      ASSERT_EQ(sequence.num_committed(), length);
      resume(sequence);
      ASSERT_TRUE(sequence.resize(length + 1).has_value());
    }
  }
  // One that has computed some tokens, and sleeps.
  Sequence sleeper(TokenId first, std::int64_t length) {
    Sequence sequence = create({});
    resume(sequence);
    compute(sequence, numbers(first, length));
    EXPECT_TRUE(sequence.suspend().has_value());
    return sequence;
  }
  // It goes on where it was.
  void wake(Sequence& sequence, TokenId first, std::int64_t length) {
    resume(sequence);
    compute(sequence, numbers(first, length));
    ASSERT_TRUE(sequence.suspend().has_value());
    EXPECT_EQ(engine.mismatches(), 0);
  }
  void adjust(Nanoseconds now) {
    const auto adjusted = manager->adjust(now);
    ASSERT_TRUE(adjusted.has_value()) << adjusted.error().text();
    manager->audit();
  }
};

TEST(Adjust, SharesFollowTheSequencesThatEnd) {
  AdjustCache cache(config(256 * kKiB));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 32);
  EXPECT_EQ(cache.room(Tier::kDevice, 1).total, 16);
  cache.feed(4, 22 * 16);
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 32) << "by themselves they do not change";
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(1)));
  cache.adjust(seconds(1));
  // 22 blocks of 4 KiB beside a state of 8 KiB: 235 of 256 KiB, in whole grains.
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 60);
  EXPECT_EQ(cache.room(Tier::kDevice, 1).total, 2);
  EXPECT_EQ(cache.manager->quota(Tier::kDevice), 256 * kKiB);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(100)));
  cache.feed(30, 16);
  cache.adjust(seconds(100));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 21) << "a block beside a state: a third";
  EXPECT_EQ(cache.room(Tier::kDevice, 1).total, 21);
}

// It would change shares again and again where floors or grains give others than those asked for.
TEST(Adjust, AfterOneNoneIsNeeded) {
  for (const std::int64_t length : {1, 16, 40, 300, 500}) {
    KvCacheConfig wanted = config(136 * kKiB);
    wanted.grain_bytes = 16 * kKiB;
    wanted.rebalance.cooldown = {};
    wanted.rebalance.threshold = 1.01;
    wanted.constraints = {BatchDesc{{{128, 128}, {128, 128}, {16, 16}}, 0}};
    wanted.host_bytes = 64 * kKiB;
    AdjustCache cache(std::move(wanted));
    for (int i = 0; i < 6; ++i) {
      SequenceOptions options;
      Sequence sequence = *cache.manager->create_sequence(options);
      cache.resume(sequence);
      static_cast<void>(sequence.resize(std::min<std::int64_t>(length, 200)));
    }
    cache.adjust(seconds(1));
    EXPECT_FALSE(cache.manager->need_adjustment(seconds(2))) << length;
    EXPECT_GE(cache.room(Tier::kDevice, 0).total, 17) << "the floor of the constraint";
    EXPECT_GE(cache.room(Tier::kDevice, 1).total, 3);
  }
}

TEST(Adjust, WaitsForSamplesAndForTheCooldown) {
  AdjustCache cache(config(256 * kKiB));
  cache.feed(3, 22 * 16);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1))) << "three sequences of four";
  cache.adjust(seconds(1));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 32) << "nothing was needed, nothing changed";
  cache.feed(1, 22 * 16);
  cache.adjust(seconds(1));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 60);
  cache.feed(8, 16);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(10)));
  cache.adjust(seconds(10));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 60);
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(11)));
}

TEST(Adjust, ASmallDifferenceIsNone) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.rebalance.threshold = 10;
  AdjustCache cache(std::move(wanted));
  cache.feed(4, 22 * 16);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
  cache.adjust(seconds(1));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 32);
}

// Averages over the life of a sequence: one that grows by and by counts as it was most of the time.
TEST(Adjust, ASequenceCountsAsLongAsItWasOnAverage) {
  AdjustCache cache(config(256 * kKiB));
  for (int i = 0; i < 4; ++i) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    for (int step = 0; step < 9; ++step) ASSERT_TRUE(sequence.resize(16 - step).has_value());
    ASSERT_TRUE(sequence.resize(30 * 16).has_value());
  }
  cache.adjust(seconds(1));
  // 58.8 tokens, four blocks: 16 KiB beside 8.
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 44);
}

TEST(Adjust, DummiesCountNothing) {
  AdjustCache cache(config(256 * kKiB));
  cache.feed(20, 22 * 16, true);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(1)));
  cache.feed(4, 16);
  cache.feed(20, 22 * 16, true);
  cache.adjust(seconds(1));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 21);
}

// The host keeps what is reused, as the device keeps what runs; each is looked at by itself.
TEST(Adjust, ColderTiersFollowWhatIsReused) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.host_bytes = 96 * kKiB;
  AdjustCache cache(std::move(wanted));
  cache.feed_reuse(12, 160);
  const std::int32_t before = cache.room(Tier::kHost, 0).total;
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(1)));
  cache.adjust(seconds(1));
  // 160 tokens found by each but the first: 10 blocks of 4 KiB beside 8 KiB.
  EXPECT_GT(cache.room(Tier::kHost, 0).total, before);
  EXPECT_EQ(cache.room(Tier::kHost, 0).total, 20);
  EXPECT_EQ(cache.room(Tier::kHost, 1).total, 2);
}

// A host that wants more of what the device wants less of: skews that cancel where they are summed.
TEST(Adjust, OppositeSkewsDoNotCancel) {
  KvCacheConfig wanted = config(192 * kKiB);
  wanted.host_bytes = 192 * kKiB;
  wanted.disk_bytes = 192 * kKiB;
  const TemporaryDirectory directory;
  wanted.disk.directory = directory.path();
  wanted.disk.segment_bytes = 64 * kKiB;
  AdjustCache cache(std::move(wanted));
  cache.feed(6, 22 * 16);
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(1)));
  const std::int32_t disk = cache.room(Tier::kDisk, 0).total;
  const std::int32_t host = cache.room(Tier::kHost, 0).total;
  cache.adjust(seconds(1));
  EXPECT_GT(cache.room(Tier::kDevice, 0).total, 40);
  EXPECT_LT(cache.room(Tier::kHost, 0).total, host) << "nothing was reused: states";
  EXPECT_LT(cache.room(Tier::kDisk, 0).total, disk);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(100)));
}

// A device that loses attention pages sends them to a host that loses some itself, and that one to
// the disk: all of it in one call.
TEST(Adjust, SleepersFallThroughTiersThatAllLoseSlots) {
  const TemporaryDirectory directory;
  for (const bool has_disk : {false, true}) {
    KvCacheConfig wanted = config(256 * kKiB);
    wanted.host_bytes = 384 * kKiB;
    wanted.initial_pool_ratio = {0.75, 0.25};
    if (has_disk) wanted.disk_bytes = 768 * kKiB;
    wanted.disk.directory = directory.path();
    wanted.disk.segment_bytes = 64 * kKiB;
    AdjustCache cache(std::move(wanted));
    std::vector<Sequence> all;
    const std::int64_t length = has_disk ? 20 * 16 : 9 * 16;
    for (TokenId i = 0; i < 4; ++i) all.push_back(cache.sleeper(1000 * i, length));
    cache.feed(8, 16);
    const std::int32_t device = cache.room(Tier::kDevice, 0).total;
    const std::int32_t host = cache.room(Tier::kHost, 0).total;
    ASSERT_TRUE(cache.manager->need_adjustment(seconds(1)));
    cache.adjust(seconds(1));
    EXPECT_LT(cache.room(Tier::kDevice, 0).total, device / 2 + 1);
    EXPECT_LT(cache.room(Tier::kHost, 0).total, host);
    if (has_disk) {
      EXPECT_GT(cache.room(Tier::kDisk, 0).unavailable, 0);
    }
    for (TokenId i = 0; i < 4; ++i) {
      cache.wake(all[static_cast<std::size_t>(i)], 1000 * i, length + 1);
    }
  }
}

// States of sleepers on the last tier stand in no queue; the shrink finds them all the same.
void expect_states_survive(Tier last, KvCacheConfig wanted, TokenId num_sleepers, TokenId kept) {
  wanted.initial_pool_ratio = {0.4, 0.6};
  AdjustCache cache(std::move(wanted));
  // The oldest have left the device first. Those that are kept lie past the end to come.
  std::vector<Sequence> all;
  for (TokenId i = 0; i < num_sleepers; ++i) all.push_back(cache.sleeper(1000 * i, 16));
  all.erase(all.begin() + kept + 4, all.end());
  all.erase(all.begin(), all.begin() + kept);
  cache.feed_reuse(30, 160);
  cache.adjust(seconds(1));
  EXPECT_LE(cache.room(last, 1).total, kept);
  for (TokenId i = 0; i < 4; ++i) {
    cache.wake(all[static_cast<std::size_t>(i)], 1000 * (kept + i), 17);
  }
}

TEST(Adjust, SuspendedStatesOnALastHostSurvive) {
  KvCacheConfig wanted = config(128 * kKiB);
  wanted.host_bytes = 512 * kKiB;
  expect_states_survive(Tier::kHost, std::move(wanted), 24, 10);
}

TEST(Adjust, SuspendedStatesOnTheDiskSurvive) {
  const TemporaryDirectory directory;
  KvCacheConfig wanted = config(128 * kKiB);
  wanted.host_bytes = 64 * kKiB;
  wanted.disk_bytes = 1024 * kKiB;
  wanted.disk.directory = directory.path();
  wanted.disk.segment_bytes = 64 * kKiB;
  expect_states_survive(Tier::kDisk, std::move(wanted), 48, 26);
}

TEST(Adjust, WhatIsRefusedChangesNothing) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.host_bytes = 96 * kKiB;
  AdjustCache cache(std::move(wanted));
  std::vector<Sequence> all;
  for (TokenId i = 0; i < 3; ++i) all.push_back(cache.sleeper(1000 * i, 9 * 16));
  cache.feed(12, 5);
  const auto rooms = [&] {
    std::vector<std::int32_t> all_rooms;
    for (const Tier tier : {Tier::kDevice, Tier::kHost}) {
      for (const std::int32_t group : {0, 1}) {
        const TierRoom room = cache.room(tier, group);
        all_rooms.insert(all_rooms.end(), {room.total, room.free, room.evictable});
      }
    }
    return all_rooms;
  };
  const auto before = rooms();
  ASSERT_TRUE(cache.manager->need_adjustment(seconds(1)));
  // 27 pages are held, and a third of each tier is 22 and 8.
  all.push_back(cache.sleeper(3000, 9 * 16));
  const auto full = rooms();
  const auto refused = cache.manager->adjust(seconds(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(rooms(), full);
  EXPECT_TRUE(cache.manager->need_adjustment(seconds(1))) << "no cooldown for nothing";
  cache.manager->audit();

  cache.resume(all[0]);
  const auto active = cache.manager->adjust(seconds(1));
  ASSERT_FALSE(active.has_value());
  EXPECT_EQ(active.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(active.error().text(), HasSubstr("adjust: 1 sequence(s) active; suspend them first"));
  ASSERT_TRUE(all[0].suspend().has_value());
  for (TokenId i = 0; i < 4; ++i) cache.wake(all[static_cast<std::size_t>(i)], 1000 * i, 145);
  all.resize(1);
  cache.adjust(seconds(1));
  EXPECT_NE(rooms(), before);
  cache.wake(all[0], 0, 146);
}

// What is guaranteed stays so: the host keeps room for all that is in use.
TEST(Adjust, AGuaranteeHoldsTheHost) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.host_bytes = 512 * kKiB;
  wanted.guarantee_suspend = true;
  AdjustCache cache(std::move(wanted));
  std::vector<Sequence> all;
  for (TokenId i = 0; i < 3; ++i) all.push_back(cache.sleeper(1000 * i, 14 * 16));
  cache.feed(12, 5);
  const auto refused = cache.manager->adjust(seconds(1));
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("pages are in use"));
  all.resize(1);
  cache.adjust(seconds(1));
  cache.wake(all[0], 0, 14 * 16 + 1);
}

// Memory goes from losers to gainers: never more than the quota, not even for a moment.
TEST(Adjust, NeverTakesMoreThanTheQuota) {
  auto device = device::make_cpu_device();
  device->set_budget(device::MemoryKind::kDevice, 256 * kKiB);
  AdjustCache cache(config(256 * kKiB), std::move(device));
  cache.feed(4, 22 * 16);
  cache.adjust(seconds(1));
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 60);
  cache.feed(30, 16);
  cache.adjust(seconds(20));
  EXPECT_EQ(cache.room(Tier::kDevice, 1).total, 21);
}

// A step that is still under way when its sequence is suspended writes where it was told to: pages
// move once it has.
TEST(Adjust, WaitsForTheLastStep) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    device::SimOptions sim;
    sim.seed = seed;
    AdjustCache cache(config(256 * kKiB), std::make_unique<device::SimDevice>(sim));
    cache.feed(4, 16);
    Sequence low = cache.create({});
    cache.resume(low);
    ASSERT_TRUE(low.resize(14 * 16).has_value());
    Sequence high = cache.create({});
    cache.resume(high);
    const Tokens tokens = numbers(0, 14 * 16 + 1);
    const auto front = std::span(tokens).first(14 * 16);
    ASSERT_TRUE(high.resize(14 * 16).has_value());
    low.close();
    cache.engine.step(high, front, 0);
    ASSERT_TRUE(high.resize(std::nullopt, 14 * 16).has_value());
    ASSERT_TRUE(high.suspend().has_value());
    ASSERT_TRUE(cache.manager->need_adjustment(seconds(1)));
    cache.adjust(seconds(1));
    EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 21) << "seven pages had slots beyond";
    cache.resume(high);
    cache.compute(high, tokens);
    EXPECT_EQ(cache.engine.mismatches(), 0) << "seed " << seed;
  }
}

// A quota that changes later keeps the shares.
TEST(Adjust, SharesLastThroughAChangeOfQuota) {
  KvCacheConfig wanted = config(256 * kKiB);
  wanted.max_device_bytes = 512 * kKiB;
  AdjustCache cache(std::move(wanted));
  cache.feed(4, 22 * 16);
  cache.adjust(seconds(1));
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 512 * kKiB).has_value());
  EXPECT_EQ(cache.room(Tier::kDevice, 0).total, 118);
  EXPECT_EQ(cache.room(Tier::kDevice, 1).total, 5);
  EXPECT_FALSE(cache.manager->need_adjustment(seconds(100)));
}

}  // namespace
}  // namespace slackwater::cache
