#include "slackwater/storage/slot_layout.h"

#include <limits>
#include <random>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/seed.h"

namespace slackwater::storage {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

SlotLayout lay_out(const std::vector<BufferSpec>& buffers, PoolPolicy policy) {
  const auto layout = lay_out_slots(buffers, policy);
  EXPECT_TRUE(layout.has_value()) << layout.error().text();
  return layout.value_or(SlotLayout());
}

TEST(SlotLayout, OnePoolHoldsAllBuffersOfASlotTogether) {
  const SlotLayout layout =
      lay_out({{"state", 1000, 3}, {"window", 128, 3}, {"hidden", 64, 1}}, PoolPolicy::kOnePool);
  EXPECT_THAT(layout.pool_slot_bytes, ElementsAre(3456));
  ASSERT_EQ(layout.buffers.size(), 3u);
  EXPECT_EQ(layout.buffers[0].offset, 0);
  EXPECT_EQ(layout.buffers[0].layer_stride, 1000);
  EXPECT_EQ(layout.buffers[1].offset, 3008) << "a multiple of a cache line starts at one";
  EXPECT_EQ(layout.buffers[2].offset, 3392);
}

TEST(SlotLayout, BuffersOfOneSizeShareAPool) {
  const SlotLayout layout = lay_out(
      {{"key", 8192, 4}, {"key_scale", 256, 4}, {"value", 8192, 4}, {"value_scale", 256, 4}},
      PoolPolicy::kOnePerSize);
  EXPECT_THAT(layout.pool_slot_bytes, ElementsAre(65536, 2048)) << "the largest first";
  EXPECT_EQ(layout.buffers[0].pool, 0);
  EXPECT_EQ(layout.buffers[1].pool, 1);
  EXPECT_EQ(layout.buffers[2].pool, 0);
  EXPECT_EQ(layout.buffers[2].offset, 32768);
  EXPECT_EQ(layout.buffers[3].offset, 1024);
}

// What is transient lies past all else, in whatever order the buffers are given.
TEST(SlotLayout, TransientBuffersLieAtTheEnd) {
  const std::vector<BufferSpec> buffers = {
      {"records", 1000, 2, true}, {"state", 1000, 3}, {"counts", 24, 2, true}, {"hidden", 8, 1}};
  const SlotLayout one = lay_out(buffers, PoolPolicy::kOnePool);
  EXPECT_EQ(one.buffers[1].offset, 0);
  EXPECT_EQ(one.buffers[3].offset, 3000);
  EXPECT_THAT(one.durable_bytes, ElementsAre(3008));
  EXPECT_EQ(one.buffers[0].offset, 3008) << "at a cache line";
  EXPECT_EQ(one.buffers[2].offset, 5008);
  EXPECT_THAT(one.pool_slot_bytes, ElementsAre(5056));
  EXPECT_TRUE(has_transient(one));
  const SlotLayout per_size = lay_out(buffers, PoolPolicy::kOnePerSize);
  EXPECT_THAT(per_size.pool_slot_bytes, ElementsAre(5056, 64, 64));
  EXPECT_THAT(per_size.durable_bytes, ElementsAre(3008, 0, 64)) << "a pool of counts alone";
  EXPECT_EQ(per_size.buffers[0].offset, 3008);
  EXPECT_EQ(per_size.buffers[2].pool, 1);
}

TEST(SlotLayout, WithoutTransientBuffersAllBytesLast) {
  const std::vector<BufferSpec> buffers = {{"state", 1000, 3}, {"hidden", 8, 1}};
  for (const PoolPolicy policy : {PoolPolicy::kOnePool, PoolPolicy::kOnePerSize}) {
    const SlotLayout layout = lay_out(buffers, policy);
    EXPECT_EQ(layout.durable_bytes, layout.pool_slot_bytes);
    EXPECT_FALSE(has_transient(layout));
  }
}

// No byte belongs to two buffers, whatever their sizes.
TEST(SlotLayout, BuffersNeverOverlap) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 500; ++round) {
    std::vector<BufferSpec> buffers(1 + random() % 5);
    for (BufferSpec& buffer : buffers) {
      buffer.bytes_per_layer = static_cast<std::int64_t>(1 + random() % 200);
      if (random() % 2 == 0) buffer.bytes_per_layer *= kSlotAlignment;
      buffer.num_layers = static_cast<std::int32_t>(1 + random() % 4);
      buffer.is_transient = random() % 3 == 0;
    }
    const PoolPolicy policy = random() % 2 == 0 ? PoolPolicy::kOnePool : PoolPolicy::kOnePerSize;
    const SlotLayout layout = lay_out(buffers, policy);
    ASSERT_TRUE(std::is_sorted(layout.pool_slot_bytes.rbegin(), layout.pool_slot_bytes.rend()));
    std::vector<std::vector<int>> owners;
    for (const std::int64_t bytes : layout.pool_slot_bytes) {
      ASSERT_EQ(bytes % kSlotAlignment, 0);
      owners.emplace_back(static_cast<std::size_t>(bytes), 0);
    }
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      const BufferPlacement& placement = layout.buffers[b];
      ASSERT_EQ(placement.layer_stride, buffers[b].bytes_per_layer);
      const std::int64_t bytes = buffers[b].bytes_per_layer * buffers[b].num_layers;
      const std::int64_t durable = layout.durable_bytes[static_cast<std::size_t>(placement.pool)];
      ASSERT_TRUE(buffers[b].is_transient ? placement.offset >= durable
                                          : placement.offset + bytes <= durable);
      for (std::int64_t i = placement.offset; i < placement.offset + bytes; ++i) {
        ++owners.at(static_cast<std::size_t>(placement.pool)).at(static_cast<std::size_t>(i));
      }
    }
    for (const std::vector<int>& pool : owners) {
      ASSERT_LE(*std::max_element(pool.begin(), pool.end()), 1);
    }
  }
}

TEST(SlotLayout, RefusesWhatIsNoBuffer) {
  const auto text_of = [](const std::vector<BufferSpec>& buffers) {
    const auto layout = lay_out_slots(buffers, PoolPolicy::kOnePool);
    return layout.has_value() ? "laid out" : layout.error().text();
  };
  EXPECT_THAT(text_of({}), HasSubstr("at least one buffer"));
  EXPECT_THAT(text_of({{"state", 0, 1}}), HasSubstr("'state' has 0 bytes"));
  EXPECT_THAT(text_of({{"state", 8, 0}}), HasSubstr("each of 0 layers"));
  EXPECT_THAT(text_of({{"state", std::numeric_limits<std::int64_t>::max(), 2}}),
              HasSubstr("at most 281474976710656"));
}

}  // namespace
}  // namespace slackwater::storage
