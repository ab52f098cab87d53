// Pages that come to a warmer tier ahead of a resume or a match.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr std::int64_t kPage = 4096;
constexpr std::int64_t kBlock = 16;

// Slots of three tiers that are all alike: attention pages and states compete for them.
class Prefetch : public testing::Test {
 protected:
  KvCacheConfig config(std::int64_t device, std::int64_t host, std::int64_t disk) const {
    KvCacheConfig config = test_config({FullAttention(), Recurrent()}, kBlock, device * kPage);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kPage;
    config.grain_bytes = kPage;
    config.host_bytes = host * kPage;
    config.disk_bytes = disk * (kPage + 512);
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 1 << 15;
    return config;
  }

  // Three blocks and a state that have been computed, all its own, and sleep.
  Sequence sleeper(TestCache& cache, TokenId first) {
    constexpr std::int64_t kTokens = 3 * kBlock - 1;
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    EXPECT_TRUE(sequence.resize(kTokens).has_value());
    cache.engine.step(sequence, numbers(first, kTokens), 0);
    EXPECT_TRUE(sequence.resize(std::nullopt, kTokens).has_value());
    EXPECT_TRUE(sequence.suspend().has_value());
    return sequence;
  }
  std::vector<Sequence> sleepers(TestCache& cache, int count) {
    std::vector<Sequence> all;
    for (int i = 0; i < count; ++i) all.push_back(sleeper(cache, first_of(i)));
    cache.manager->synchronize();
    return all;
  }
  static TokenId first_of(int i) { return static_cast<TokenId>(1000 * i); }

  void wake(TestCache& cache, Sequence& sequence, int i) {
    cache.resume(sequence);
    cache.compute(sequence, numbers(first_of(i), 3 * kBlock));
    ASSERT_TRUE(sequence.suspend().has_value());
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }

  // Pages on the device, the host and the disk. Four slots of the host are kept free.
  static std::vector<std::int32_t> pages(const TestCache& cache) {
    std::vector<std::int32_t> counts;
    for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      const TierRoom room = cache.manager->room(tier, LayerGroupId(0));
      counts.push_back(room.total - room.free);
    }
    return counts;
  }

  TemporaryDirectory directory_;
};

TEST_F(Prefetch, BringsWhatASleeperNeedsToTheHostAndToTheDevice) {
  TestCache cache(config(4, 8, 64));
  std::vector<Sequence> all = sleepers(cache, 4);
  ASSERT_THAT(pages(cache), ElementsAre(4, 4, 8));
  // Whoever is on the host makes room.
  ASSERT_TRUE(all[0].prefetch(Tier::kHost).has_value());
  cache.manager->audit();
  EXPECT_THAT(pages(cache), ElementsAre(4, 4, 8));
  all.erase(all.begin() + 1, all.end());
  EXPECT_THAT(pages(cache), ElementsAre(0, 4, 0)) << "all of it was there";
  ASSERT_TRUE(all[0].prefetch(Tier::kDevice).has_value());
  cache.manager->audit();
  EXPECT_THAT(pages(cache), ElementsAre(4, 0, 0));
  EXPECT_EQ(cache.manager->room(Tier::kDevice, LayerGroupId(0)).unavailable, 0)
      << "they are not locked";
  ASSERT_TRUE(all[0].prefetch(Tier::kHost).has_value()) << "warmer ones stay";
  ASSERT_TRUE(all[0].prefetch(Tier::kDisk).has_value());
  EXPECT_THAT(pages(cache), ElementsAre(4, 0, 0));
  wake(cache, all[0], 0);
}

// From the disk, without a stop on the host that has no room.
TEST_F(Prefetch, ComesStraightFromTheDisk) {
  for (const std::int64_t host : {0, 8}) {
    TestCache cache(config(8, host, 64));
    std::vector<Sequence> all = sleepers(cache, 5);
    const std::int32_t on_disk = pages(cache)[2];
    ASSERT_GE(on_disk, 4);
    ASSERT_TRUE(all[0].prefetch(Tier::kDevice).has_value());
    cache.manager->audit();
    EXPECT_THAT(pages(cache), ElementsAre(8, host / 2, on_disk)) << "others went";
    for (int i = 0; i < 5; ++i) wake(cache, all[static_cast<std::size_t>(i)], i);
  }
}

// Half of it is there: that half is not what leaves for the other one.
TEST_F(Prefetch, WhatIsThereAlreadyDoesNotLeaveForTheRest) {
  TestCache cache(config(4, 12, 64));
  std::vector<Sequence> all = sleepers(cache, 3);
  ASSERT_THAT(pages(cache), ElementsAre(4, 8, 0));
  // Two pages more: two of the first sleeper go to disk, and two stay, as the next to leave.
  Sequence more = cache.create({});
  cache.resume(more);
  ASSERT_TRUE(more.resize(kBlock).has_value());
  ASSERT_THAT(pages(cache), ElementsAre(4, 8, 2));
  ASSERT_TRUE(all[0].prefetch(Tier::kHost).has_value());
  cache.manager->audit();
  ASSERT_THAT(pages(cache), ElementsAre(4, 8, 2));
  more.close();
  all.erase(all.begin() + 1, all.end());
  EXPECT_THAT(pages(cache), ElementsAre(0, 4, 0));
  wake(cache, all[0], 0);
}

// All tiers are full: pages change places over the slots that are kept for that, be it one.
TEST_F(Prefetch, ChangesPlacesWhereEverythingIsFull) {
  for (const std::int64_t host : {8, 2}) {
    SCOPED_TRACE(testing::Message() << host << " slots on the host");
    TestCache cache(config(4, host, 8));
    const std::int32_t disk = cache.manager->room(Tier::kDisk, LayerGroupId(0)).total;
    std::vector<Sequence> all = sleepers(cache, (4 + static_cast<int>(host) / 2 + disk) / 4);
    // What is left over is filled by one that holds a state, or that and some blocks.
    const std::int32_t left = disk - pages(cache)[2];
    Sequence filler = cache.create({});
    if (left > 0) {
      cache.resume(filler);
      ASSERT_TRUE(filler.resize((left - 1) * kBlock).has_value());
      ASSERT_TRUE(filler.suspend().has_value());
    }
    const std::vector<std::int32_t> full = pages(cache);
    ASSERT_THAT(full, ElementsAre(4, host / 2, disk));
    for (const Tier tier : {Tier::kHost, Tier::kDevice, Tier::kHost, Tier::kDevice}) {
      for (Sequence& sequence : all) {
        // More than a small host holds is refused.
        const bool has_room = tier == Tier::kDevice || host > 2;
        const auto brought = sequence.prefetch(tier);
        ASSERT_TRUE(brought.has_value() || !has_room) << brought.error().text();
        cache.manager->audit();
        ASSERT_EQ(pages(cache), full);
      }
    }
    for (std::size_t i = 0; i < all.size(); ++i) wake(cache, all[i], static_cast<int>(i));
  }
}

// One that is using seven of the eight slots of the device.
Sequence running(TestCache& cache) {
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  EXPECT_TRUE(sequence.resize(6 * kBlock).has_value());
  return sequence;
}

void expect_no_room(const Error& error) {
  EXPECT_EQ(error.code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(error.text(), HasSubstr("need 4 slots"));
}

// Who was to leave next still is.
TEST_F(Prefetch, ARefusedSleeperKeepsItsPlace) {
  TestCache cache(config(8, 12, 64));
  std::vector<Sequence> all = sleepers(cache, 2);
  Sequence other = running(cache);
  ASSERT_THAT(pages(cache), ElementsAre(8, 7, 0));
  expect_no_room(all[0].prefetch(Tier::kDevice).error());
  cache.manager->audit();
  EXPECT_THAT(pages(cache), ElementsAre(8, 7, 0));
  // Three pages leave the device, and two the host for them.
  ASSERT_TRUE(other.suspend().has_value());
  Sequence more = cache.create({});
  cache.resume(more);
  ASSERT_TRUE(more.resize(2 * kBlock).has_value());
  cache.manager->audit();
  other.close();
  more.close();
  all.erase(all.begin() + 1);
  EXPECT_THAT(pages(cache), ElementsAre(0, 2, 2));
  wake(cache, all[0], 0);
}

TEST_F(Prefetch, ARefusedPromptKeepsItsPlace) {
  TestCache cache(config(8, 12, 0));
  for (const TokenId first : {0, 1000}) cache.run(numbers(first, 3 * kBlock));
  const auto known = [&](TokenId first) {
    return cache.manager->probe_reuse({}, numbers(first, 3 * kBlock + 1)).reused;
  };
  Sequence other = running(cache);
  ASSERT_EQ(known(0) + known(1000), 6 * kBlock);
  expect_no_room(cache.manager->prefetch({}, numbers(0, 3 * kBlock + 1), Tier::kDevice).error());
  cache.manager->audit();
  ASSERT_TRUE(other.resize(7 * kBlock).has_value());
  ASSERT_TRUE(other.suspend().has_value());
  Sequence more = cache.create({});
  cache.resume(more);
  ASSERT_TRUE(more.resize(kBlock).has_value());
  cache.manager->audit();
  EXPECT_LT(known(0), 3 * kBlock);
  EXPECT_EQ(known(1000), 3 * kBlock);
}

TEST_F(Prefetch, NeedsASleeperAndATier) {
  TestCache cache(config(8, 8, 0));
  Sequence sequence = cache.create({});
  const auto refused = [&](const Result<void>& result, const char* text) {
    ASSERT_FALSE(result.has_value()) << text;
    EXPECT_EQ(result.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(result.error().text(), HasSubstr(text));
    cache.manager->audit();
  };
  refused(sequence.prefetch(Tier::kDisk), "prefetch to the disk, which has no bytes");
  const auto of_prompt = cache.manager->prefetch({}, numbers(0, 9), Tier::kDisk);
  ASSERT_FALSE(of_prompt.has_value());
  EXPECT_EQ(of_prompt.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(sequence.prefetch(Tier::kHost).has_value()) << "nothing to bring";
  cache.resume(sequence);
  refused(sequence.prefetch(Tier::kHost), "prefetch of a sequence that is active");
  sequence.close();
  refused(sequence.prefetch(Tier::kHost), "prefetch of a sequence that is closed");
}

// What somebody might match comes before anybody does, its state too, and is nobody's.
TEST_F(Prefetch, BringsAPromptAndHoldsNothing) {
  KvCacheConfig wanted = config(8, 40, 0);
  wanted.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(wanted));
  const Tokens prompt = numbers(0, 2 * kBlock + 5);
  cache.run(prompt);
  Sequence other = cache.create({});
  cache.resume(other);
  ASSERT_TRUE(other.resize(7 * kBlock).has_value());
  other.close();
  cache.manager->synchronize();
  ASSERT_THAT(pages(cache), ElementsAre(0, 4, 0)) << "three blocks and a state";
  Tokens longer = prompt;
  longer.push_back(7);
  const auto found = cache.manager->prefetch({}, longer, Tier::kDevice);
  ASSERT_TRUE(found.has_value()) << found.error().text();
  EXPECT_EQ(found->reused, std::ssize(prompt));
  cache.manager->audit();
  EXPECT_THAT(pages(cache), ElementsAre(4, 0, 0));
  const TierRoom room = cache.manager->room(Tier::kDevice, LayerGroupId(0));
  EXPECT_EQ(room.evictable, 4);
  EXPECT_EQ(cache.manager->num_open_sequences(), 0u);
  Sequence again = cache.create(longer);
  EXPECT_EQ(again.num_committed(), std::ssize(prompt));
  cache.resume(again);
  cache.compute(again, longer);
  EXPECT_EQ(cache.engine.mismatches(), 0);
  again.close();
  EXPECT_EQ(cache.manager->prefetch({}, numbers(777, 40), Tier::kDevice)->reused, 0);
  cache.manager->audit();
}

// Whoever is prefetched counts as used just now.
TEST_F(Prefetch, APromptThatWasBroughtLeavesAfterOthers) {
  TestCache cache(config(12, 0, 0));
  for (TokenId first : {0, 1000}) {
    cache.run(numbers(first, 3 * kBlock));
  }
  cache.manager->synchronize();
  const auto known = [&](TokenId first) {
    return cache.manager->probe_reuse({}, numbers(first, 3 * kBlock + 1)).reused;
  };
  ASSERT_EQ(known(0) + known(1000), 6 * kBlock);
  ASSERT_TRUE(cache.manager->prefetch({}, numbers(0, 3 * kBlock + 1), Tier::kDevice).has_value());
  Sequence other = cache.create({});
  cache.resume(other);
  ASSERT_TRUE(other.resize(5 * kBlock).has_value());
  EXPECT_EQ(known(0), 3 * kBlock);
  EXPECT_LT(known(1000), 3 * kBlock);
}

// A prompt that is matched in part: the block and the state that are copied at the first resume
// come too.
TEST_F(Prefetch, BringsWhatTheFirstResumeCopies) {
  KvCacheConfig wanted = config(8, 4, 64);
  wanted.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(wanted));
  const Tokens prompt = numbers(0, kBlock + 5);
  cache.run(prompt);
  Tokens longer = prompt;
  longer.push_back(7);
  Sequence waiting = cache.create(longer);
  ASSERT_EQ(waiting.num_committed(), std::ssize(prompt));
  std::vector<Sequence> all = sleepers(cache, 3);
  all.clear();
  const std::vector<std::int32_t> cold = pages(cache);
  ASSERT_EQ(cold[0] + cold[1] + cold[2], 3) << "a block, another one in part, and a state";
  ASSERT_GT(cold[2], 0);
  ASSERT_TRUE(waiting.prefetch(Tier::kDevice).has_value());
  cache.manager->audit();
  EXPECT_THAT(pages(cache), ElementsAre(3, 0, 0));
  cache.resume(waiting);
  EXPECT_THAT(pages(cache), ElementsAre(5, 0, 0)) << "two of its own";
  cache.compute(waiting, longer);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// A page that does not arrive is known when it is wanted, and refused from then on.
TEST_F(Prefetch, PagesThatAreLostOnTheWayAreNotServed) {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    bool fails = false;
    device::SimOptions options;
    options.seed = seed;
    options.copy_fault = [&fails](std::int64_t) {
      return fails ? device::CopyFault::kRefuse : device::CopyFault::kNone;
    };
    TestCache cache(config(4, 12, 0), std::make_unique<device::SimDevice>(options));
    std::vector<Sequence> all = sleepers(cache, 2);
    all.erase(all.begin() + 1);
    ASSERT_THAT(pages(cache), ElementsAre(0, 4, 0));
    fails = true;
    const auto brought = all[0].prefetch(Tier::kDevice);
    cache.manager->synchronize();
    fails = false;
    ASSERT_TRUE(brought.has_value()) << brought.error().text();
    EXPECT_EQ(all[0].prefetch(Tier::kDevice).error().code(), ErrorCode::kDataLoss);
    EXPECT_EQ(all[0].resume(cache.engine.stream()).error().code(), ErrorCode::kDataLoss);
    all.clear();
    cache.manager->audit();
    cache.run(numbers(0, 3 * kBlock));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

}  // namespace
}  // namespace slackwater::cache
