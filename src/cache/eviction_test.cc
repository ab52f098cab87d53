// Who leaves a tier, and where they go.

#include <memory>
#include <optional>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/cache_core.h"
#include "cache/manager_test_support.h"
#include "slackwater/device/cpu_device.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using testing::ElementsAre;

constexpr std::int64_t kBlock = 64;
constexpr std::int64_t kPage = 4096;

// Prompts of one block each, on a device of four pages.
class EvictionTest : public testing::Test {
 protected:
  void open(std::int64_t host_slots, std::int64_t disk_slots = 0) {
    KvCacheConfig config = test_config({FullAttention()}, kBlock, 4 * kPage);
    config.layers[0].buffers[0].bytes = kPage;
    config.host_bytes = host_slots * kPage;
    config.disk_bytes = disk_slots * (kPage + 512);
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 1 << 15;
    auto made = CacheCore::create(*device_, std::move(config));
    ASSERT_TRUE(made.has_value()) << made.error().text();
    core_ = *std::move(made);
    stream_ = *device_->make_stream("compute");
    ASSERT_EQ(core_->room(Tier::kDevice, LayerGroupId(0)).total, 4);
  }
  void TearDown() override {
    if (core_ == nullptr) return;
    for (SequenceState* const sequence : open_) core_->close(*sequence);
    core_->audit();
  }

  SequenceState& create(std::int64_t prompt, Priority priority) {
    SequenceOptions options;
    tokens_ = of(prompt);
    options.tokens = tokens_;
    options.priority = [priority](BlockOrdinal, LayerGroupId) { return priority; };
    return **core_->create_sequence(options);
  }
  // Computes a prompt, and closes it or lets it sleep.
  void run(std::int64_t prompt, Priority priority = kDefaultPriority, bool sleeps = false) {
    SequenceState& sequence = create(prompt, priority);
    ASSERT_TRUE(core_->resume(sequence, *stream_).has_value());
    ASSERT_TRUE(core_->resize(sequence, kBlock, std::nullopt).has_value());
    ASSERT_TRUE(core_->commit(sequence, of(prompt), {}).has_value());
    if (sleeps) {
      ASSERT_TRUE(core_->suspend(sequence).has_value());
      open_.push_back(&sequence);
    } else {
      core_->close(sequence);
    }
    core_->store().synchronize();
    core_->audit();
  }

  static Tokens of(std::int64_t prompt) {
    return numbers(static_cast<TokenId>(1000 * prompt), kBlock);
  }
  // "d", "h" or "f" for device, host and file; "-" where it is gone.
  char tier_of(std::int64_t prompt) {
    Tokens tokens = of(prompt);
    tokens.push_back(1'000'000);
    SequenceOptions options;
    options.tokens = tokens;
    SequenceState& probe = **core_->create_sequence(options);
    char tier = '-';
    if (probe.num_committed == kBlock) {
      const PageId page =
          core_->find_run({RunKey::Owner::kNode, 0, probe.leaf.value()})->pages.front();
      tier = "dhf"[index_of(core_->store().tier(page))];
    }
    core_->close(probe);
    return tier;
  }
  std::string tiers_of(std::int64_t first, std::int64_t last) {
    std::string tiers;
    for (std::int64_t prompt = first; prompt <= last; ++prompt) tiers += tier_of(prompt);
    return tiers;
  }

  const TemporaryDirectory directory_;
  std::unique_ptr<device::Device> device_ = device::make_cpu_device();
  std::unique_ptr<CacheCore> core_;
  std::unique_ptr<device::Stream> stream_;
  std::vector<SequenceState*> open_;
  Tokens tokens_;
};

// Four of the host's eight slots are kept free for pages that change places.
TEST_F(EvictionTest, PagesFallFromTierToTier) {
  open(8, 4);
  for (int prompt = 0; prompt < 4; ++prompt) run(prompt);
  EXPECT_EQ(tiers_of(0, 3), "dddd");
  for (int prompt = 4; prompt < 8; ++prompt) run(prompt);
  EXPECT_EQ(tiers_of(0, 7), "hhhhdddd");
  for (int prompt = 8; prompt < 10; ++prompt) run(prompt);
  EXPECT_EQ(tiers_of(0, 9), "ffhhhhdddd") << "the oldest of the host made room";
  for (int prompt = 10; prompt < 16; ++prompt) run(prompt);
  EXPECT_EQ(tiers_of(0, 15), "----ffffhhhhdddd") << "and the oldest of the disk are gone";
  EXPECT_EQ(core_->counters().pages_dropped, 4);
}

TEST_F(EvictionTest, WithoutAHostPagesGoStraightToTheDisk) {
  open(0, 8);
  for (int prompt = 0; prompt < 6; ++prompt) run(prompt);
  EXPECT_EQ(tiers_of(0, 5), "ffdddd");
}

// Each fall is decided by priority first: what is dearer stays warmer.
TEST_F(EvictionTest, TheLowestPriorityFallsFarthest) {
  open(4);
  run(0, 90);
  run(1, 10);
  run(2, 50);
  run(3, 60);
  // Two of the host's four slots can be used.
  run(4, 95);
  run(5, 95);
  EXPECT_EQ(tiers_of(0, 5), "dhhddd") << "10 and 50 left";
  run(6, 95);
  EXPECT_EQ(tiers_of(0, 6), "d-hhddd") << "60 left, and 10 gave way to it";
  run(7, 95);
  EXPECT_EQ(tiers_of(0, 7), "h--hdddd");
}

// Of many that leave at once, the dearest get what room there is.
TEST_F(EvictionTest, TheDearestOfManyGetTheRoom) {
  open(4);
  run(0, 10);
  run(1, 90);
  run(2, 50);
  run(3, 60);
  SequenceState& large = create(9, 100);
  ASSERT_TRUE(core_->resume(large, *stream_).has_value());
  ASSERT_TRUE(core_->resize(large, 4 * kBlock, std::nullopt).has_value());
  core_->close(large);
  core_->store().synchronize();
  EXPECT_EQ(tiers_of(0, 3), "-h-h");
}

// What somebody holds is never dropped, whatever its priority: others are.
TEST_F(EvictionTest, HeldPagesTakeTheRoomOfOthers) {
  open(4);
  run(0, 0, true);
  run(1, 0, true);
  run(2, 100);
  run(3, 100);
  for (int prompt = 4; prompt < 8; ++prompt) run(prompt, 100);
  EXPECT_EQ(tiers_of(0, 7), "hh--dddd");
  // The host is full of what stays: nobody else gets in.
  run(8, 100);
  EXPECT_EQ(tiers_of(0, 8), "hh---dddd");
  EXPECT_EQ(core_->counters().pages_dropped, 3);
}

// A match holds what it found, through whatever pressure until it is resumed.
TEST_F(EvictionTest, WhatIsFoundIsPinned) {
  open(8);
  run(0, 0);
  Tokens longer = of(0);
  longer.push_back(7);
  SequenceOptions options;
  options.tokens = longer;
  SequenceState& found = **core_->create_sequence(options);
  ASSERT_EQ(found.num_committed, kBlock);
  for (int prompt = 1; prompt < 30; ++prompt) run(prompt, 100);
  ASSERT_TRUE(core_->resume(found, *stream_).has_value());
  EXPECT_EQ(found.num_committed, kBlock);
  core_->close(found);
}

// All pools are asked before anybody leaves: what one of them cannot give costs the others nothing.
TEST(Eviction, ARefusalDropsNothingInAnyPool) {
  KvCacheConfig config = test_config({FullAttention(), SlidingWindow{60, 0}}, 8);
  config.layers[0].buffers[0].bytes = 4096;
  config.layers[1].buffers[0].bytes = 8192;
  config.device_bytes = 24 * 4096 + 12 * 8192;
  config.initial_pool_ratio = {0.5, 0.5};
  TestCache cache(std::move(config));
  const auto room = [&](std::int32_t group) {
    return cache.manager->room(storage::Tier::kDevice, LayerGroupId(group));
  };
  ASSERT_GT(room(0).total, room(1).total) << "the second pool is the smaller one";
  // The first pool is full of what can go, the second one is all in use.
  Sequence running = cache.create({});
  cache.resume(running);
  const std::int64_t blocks = room(1).total - 4;
  ASSERT_TRUE(running.resize(8 * blocks).has_value());
  cache.run(numbers(5000, 32));
  const std::int32_t evictable = room(0).evictable;
  const std::int64_t dropped = cache.manager->counters().pages_dropped;
  ASSERT_GT(evictable, 0);
  const auto refused = running.resize(8 * room(0).total);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(room(0).evictable, evictable);
  EXPECT_EQ(cache.manager->counters().pages_dropped, dropped);
  EXPECT_EQ(cache.reusable(numbers(5000, 32)), 32);
}

}  // namespace
}  // namespace slackwater::cache
