// Room that is not used goes back, wherever it lies.

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;

const LayerKind kFull = FullAttention();
const LayerKind kWindow = SlidingWindow{6, 0};
const LayerKind kState = Recurrent();

// Slots of all layer groups that are occupied on a tier.
std::int64_t num_occupied(const KvCacheManager& manager, Tier tier) {
  std::int64_t occupied = 0;
  for (const LayerGroupDesc& group : manager.layer_groups().groups()) {
    const TierRoom room = manager.room(tier, group.id);
    occupied += room.total - room.free;
  }
  return occupied;
}

std::int64_t num_occupied(const KvCacheManager& manager) {
  return num_occupied(manager, Tier::kDevice) + num_occupied(manager, Tier::kHost) +
         num_occupied(manager, Tier::kDisk);
}

class SequenceTrim : public testing::Test {
 protected:
  // Blocks of 4 tokens; every group has slots of its own.
  KvCacheConfig config() const {
    KvCacheConfig config = test_config({kFull, kWindow, kState}, 4, 96 << 10);
    config.layers[0].buffers[0].bytes = 1024;
    config.layers[1].buffers[0].bytes = 2048;
    config.layers[2].buffers[0].bytes = 512;
    config.typical_step = BatchDesc{{{40, 10}, {40, 10}}, 0};
    return config;
  }
  // A sequence with 10 tokens computed and room for 40, suspended, with its pages on `tier`.
  Sequence sleeper(TestCache& cache, Tier tier) {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 10));
    EXPECT_TRUE(sequence.resize(40).has_value());
    EXPECT_TRUE(sequence.suspend().has_value());
    if (tier != Tier::kDevice) push_out(cache);
    return sequence;
  }
  // Others want all of the device, for a while.
  static void push_out(TestCache& cache) {
    std::vector<Sequence> others;
    while (true) {
      Sequence other = cache.create({});
      if (!other.resume(cache.engine.stream()).has_value()) break;
      std::int64_t capacity = 0;
      while (other.resize(capacity + 4).has_value()) capacity += 4;
      others.push_back(std::move(other));
    }
    others.clear();
    cache.manager->synchronize();
    cache.manager->audit();
  }

  TemporaryDirectory directory_;
};

// 8 blocks past the 3 that 10 tokens need, less the one that 12 tokens would need too.
TEST_F(SequenceTrim, GivesBackPagesOnWhateverTierTheyLie) {
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    SCOPED_TRACE(storage::to_string(tier));
    KvCacheConfig wanted = config();
    if (tier == Tier::kHost) wanted.host_bytes = 256 << 10;
    if (tier == Tier::kDisk) wanted.disk_bytes = 1 << 20;
    wanted.disk.directory = directory_.path() / storage::to_string(tier);
    wanted.disk.direct = false;
    TestCache cache(std::move(wanted));
    Sequence sequence = sleeper(cache, tier);
    const std::int64_t before = num_occupied(*cache.manager);
    ASSERT_GT(num_occupied(*cache.manager, tier), 2 * 7) << "most of them";
    ASSERT_TRUE(sequence.trim(13).has_value());
    EXPECT_EQ(sequence.capacity(), 13);
    EXPECT_EQ(num_occupied(*cache.manager), before - 2 * 6) << "of two groups with blocks";
    cache.manager->audit();
    ASSERT_TRUE(sequence.trim(10).has_value());
    EXPECT_EQ(num_occupied(*cache.manager), before - 2 * 7);
    EXPECT_EQ(sequence.history(), 10);
    cache.manager->audit();
    cache.resume(sequence);
    EXPECT_EQ(std::ssize(sequence.slots(LayerGroupId(0))), 3);
    cache.compute(sequence, numbers(0, 30));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

TEST_F(SequenceTrim, OfAnActiveSequenceIsAResizeThatShrinks) {
  TestCache cache(config());
  std::vector<SlotId> table(20);
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 10));
  const std::int64_t before = num_occupied(*cache.manager, Tier::kDevice);
  ASSERT_TRUE(sequence.set_index_table(LayerGroupId(0), table).has_value());
  ASSERT_TRUE(sequence.resize(40).has_value());
  ASSERT_TRUE(sequence.trim(11).has_value());
  cache.manager->audit();
  EXPECT_EQ(num_occupied(*cache.manager, Tier::kDevice), before);
  EXPECT_EQ(std::ssize(sequence.slots(LayerGroupId(0))), 3);
  EXPECT_EQ(table[3], kNoSlot);
  cache.compute(sequence, numbers(0, 30));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// The pages were never allocated, as after a resize.
TEST_F(SequenceTrim, CountsAsAShrink) {
  for (const bool is_suspended : {false, true}) {
    TestCache cache(config());
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 10));
    const RequestStatistics before = sequence.pending_statistics();
    ASSERT_TRUE(sequence.resize(40).has_value());
    ASSERT_NE(sequence.pending_statistics(), before);
    if (is_suspended) {
      ASSERT_TRUE(sequence.suspend().has_value());
    }
    ASSERT_TRUE(sequence.trim(10).has_value());
    EXPECT_EQ(sequence.pending_statistics(), before);
  }
}

TEST_F(SequenceTrim, ARefusedOneChangesNothing) {
  for (const bool is_suspended : {false, true}) {
    TestCache cache(config());
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 10));
    ASSERT_TRUE(sequence.resize(40, 14).has_value());
    if (is_suspended) {
      ASSERT_TRUE(sequence.suspend().has_value());
    }
    const std::int64_t before = num_occupied(*cache.manager, Tier::kDevice);
    const auto above = sequence.trim(41);
    ASSERT_FALSE(above.has_value());
    EXPECT_EQ(above.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(above.error().text(), HasSubstr("a trim to 41 tokens of a capacity of 40"));
    const auto below = sequence.trim(13);
    ASSERT_FALSE(below.has_value());
    EXPECT_EQ(below.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(below.error().text(), HasSubstr("a trim to 13 tokens with a history of 14"));
    EXPECT_EQ(sequence.trim(-1).error().code(), ErrorCode::kInvalidArgument);
    EXPECT_EQ(sequence.capacity(), 40);
    EXPECT_EQ(num_occupied(*cache.manager, Tier::kDevice), before);
    cache.manager->audit();
    EXPECT_TRUE(sequence.trim(40).has_value()) << "what it has";
    sequence.close();
    EXPECT_EQ(sequence.trim(0).error().code(), ErrorCode::kFailedPrecondition);
  }
}

// What was matched and never resumed has no room to give.
TEST_F(SequenceTrim, OfAMatchIsNothing) {
  TestCache cache(config());
  cache.run(numbers(0, 10));
  Sequence sequence = cache.create(numbers(0, 20));
  ASSERT_EQ(sequence.capacity(), 10);
  ASSERT_TRUE(sequence.trim(10).has_value());
  EXPECT_EQ(sequence.trim(9).error().code(), ErrorCode::kInvalidArgument);
  cache.manager->audit();
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

}  // namespace
}  // namespace slackwater::cache
