#include "slackwater/cache/layer_groups.h"

#include <cmath>
#include <functional>
#include <limits>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater::cache {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

LayerConfig layer(std::int32_t number, LayerKind kind, std::vector<BufferConfig> buffers) {
  LayerConfig config;
  config.layer = number;
  config.kind = kind;
  config.buffers = std::move(buffers);
  return config;
}

// Full attention and a window, alternating.
KvCacheConfig usual() {
  KvCacheConfig config;
  config.device_bytes = 64 << 20;
  for (std::int32_t i = 0; i < 4; ++i) {
    const LayerKind kind = i % 2 == 0 ? LayerKind(FullAttention()) : SlidingWindow{64, 0};
    config.layers.push_back(layer(i, kind, {{"key", 4096}, {"value", 4096}}));
  }
  return config;
}

TEST(LayerGroups, LayersOfOneKindAndTagShareAGroup) {
  KvCacheConfig config = usual();
  config.layers.push_back(layer(4, SlidingWindow{64, 3}, {{"key", 512}}));
  config.layers.push_back(layer(5, SlidingWindow{64, 32}, {{"key", 512}}));
  config.layers.push_back(layer(6, FullAttention(), {{"key", 512}}));
  config.layers.back().group_tag = "draft";
  config.layers.push_back(layer(7, Recurrent(), {{"ssm_state", 1000}}));
  const auto groups = LayerGroups::build(config);
  ASSERT_TRUE(groups.has_value()) << groups.error().text();
  ASSERT_EQ(groups->size(), 5u);
  EXPECT_THAT(groups->groups()[0].layers, ElementsAre(0, 2));
  EXPECT_THAT(groups->groups()[1].layers, ElementsAre(1, 3));
  EXPECT_THAT(groups->groups()[2].layers, ElementsAre(4, 5)) << "sinks of one block each";
  EXPECT_THAT(groups->groups()[3].layers, ElementsAre(6));
  EXPECT_EQ(groups->groups()[3].name, "draft: full attention");
  EXPECT_EQ(groups->groups()[4].page_bytes, 1024) << "a multiple of a cache line";
}

TEST(LayerGroups, BuffersOfOneRoleLieSideBySide) {
  const KvCacheConfig config = usual();
  const auto groups = LayerGroups::build(config);
  ASSERT_TRUE(groups.has_value());
  const BufferLocation* value = groups->find(2, "value");
  ASSERT_NE(value, nullptr);
  EXPECT_EQ(value->layer_group, LayerGroupId(0));
  EXPECT_EQ(value->buffer, 1u);
  EXPECT_EQ(value->layer_index, 1);
  EXPECT_EQ(groups->group(LayerGroupId(0)).page_bytes, 4 * 4096);
  EXPECT_EQ(groups->find(2, "scale"), nullptr);
  EXPECT_EQ(groups->find(9, "value"), nullptr);
}

TEST(LayerGroups, SmallerBlocksLieWithinAPage) {
  KvCacheConfig config;
  config.device_bytes = 64 << 20;
  config.tokens_per_block = 128;
  config.layers = {layer(0, FullAttention(), {{"key", 1024, 64}, {"value", 2048}})};
  const auto groups = LayerGroups::build(config);
  ASSERT_TRUE(groups.has_value());
  EXPECT_EQ(groups->find(0, "key")->bytes, 2048);
  EXPECT_EQ(groups->find(0, "key")->num_subblocks, 2);
  EXPECT_EQ(groups->find(0, "value")->num_subblocks, 1);
}

// Ranks number groups alike, whichever layers they hold.
TEST(LayerGroups, AreNumberedFromTheWholeModel) {
  KvCacheConfig config = usual();
  config.local_layers = {2, 3};
  const auto groups = LayerGroups::build(config);
  ASSERT_TRUE(groups.has_value()) << groups.error().text();
  EXPECT_THAT(groups->groups()[0].layers, ElementsAre(0, 2));
  EXPECT_THAT(groups->groups()[0].local_layers, ElementsAre(2));
  EXPECT_EQ(groups->find(0, "key"), nullptr);
  config.local_layers = {0, 2};
  const auto missing = LayerGroups::build(config);
  ASSERT_FALSE(missing.has_value());
  EXPECT_THAT(missing.error().text(), HasSubstr("has no layer among the 2 local ones"));
}

TEST(PlanRoom, OneUsualSequenceDecidesWhereNothingIsSaid) {
  KvCacheConfig config = usual();
  config.grain_bytes = 4096;
  const auto groups = LayerGroups::build(config);
  const GroupRoom room = plan_room(config, *groups);
  // 2049 tokens: 65 blocks in full attention, and the 3 that the window has not left behind.
  EXPECT_THAT(room.min_slots, ElementsAre(3, 3));
  EXPECT_NEAR(room.ratios[0], 65.0 / 68, 1e-12);
  EXPECT_NEAR(room.ratios[1], 3.0 / 68, 1e-12);
}

// kvcm_v2.md 7.1, constraint_reserves_resume_headroom: 32 sequences of one token at 0.95 need 34
// slots of a pool that both groups share.
TEST(PlanRoom, AConstraintStaysBelowTheGateForResuming) {
  KvCacheConfig config;
  config.device_bytes = 1 << 30;
  config.max_util_for_resume = 0.95;
  config.layers = {layer(0, FullAttention(), {{"key", 4096}})};
  config.constraints = {BatchDesc{std::vector<SequenceDesc>(32, {1, 0}), 0}};
  const auto groups = LayerGroups::build(config);
  EXPECT_THAT(plan_room(config, *groups).min_slots, ElementsAre(34));
}

// Recurrent layers do not grow, so they need no headroom: zero_capacity_request_reserves_only_an_
// ssm_slot.
TEST(PlanRoom, ASequenceWithoutTokensNeedsAState) {
  KvCacheConfig config;
  config.device_bytes = 1 << 30;
  config.layers = {layer(0, Recurrent(), {{"ssm_state", 4096}}),
                   layer(1, FullAttention(), {{"key", 512}})};
  config.constraints = {BatchDesc{{{0, 0}, {0, 0}}, 0}};
  const auto groups = LayerGroups::build(config);
  EXPECT_THAT(plan_room(config, *groups).min_slots, ElementsAre(2, 1));
}

TEST(PlanRoom, GroupsThatShareSlotsShareAFloor) {
  KvCacheConfig config = usual();
  config.constraints = {BatchDesc{{{320, 0}}, 0}};
  const auto groups = LayerGroups::build(config);
  // Floors 3 + 3 of one pool group; the batch needs 10 + 10 and headroom: ceil(20 / 0.97) = 21.
  const GroupRoom room = plan_room(config, *groups);
  EXPECT_EQ(room.min_slots[0] + room.min_slots[1], 21);
}

TEST(ClampSequenceLength, TakesWhatTheOthersLeave) {
  KvCacheConfig config;
  config.device_bytes = 1 << 30;
  config.layers = {layer(0, FullAttention(), {{"key", 4096}})};
  const auto full = LayerGroups::build(config);
  const std::vector<std::int64_t> four = {4};
  EXPECT_EQ(clamp_sequence_length(config, *full, four, 1, 0), 0);
  EXPECT_EQ(clamp_sequence_length(config, *full, four, 4, 1000), 32);
  EXPECT_EQ(clamp_sequence_length(config, *full, four, 4, 20), 20);
  EXPECT_EQ(clamp_sequence_length(config, *full, four, 5, 1000), 0);
  config.layers = {layer(0, SlidingWindow{33, 0}, {{"key", 4096}})};
  const auto window = LayerGroups::build(config);
  EXPECT_EQ(clamp_sequence_length(config, *window, std::vector<std::int64_t>{2}, 1, 5000), 5000)
      << "a window reuses its slots";
}

struct Impossible {
  std::function<void(KvCacheConfig&)> spoil;
  const char* text;
  ErrorCode code = ErrorCode::kInvalidArgument;
};

void expect_refused(std::span<const Impossible> cases) {
  EXPECT_TRUE(validate(usual()).has_value());
  for (const Impossible& wrong : cases) {
    KvCacheConfig config = usual();
    wrong.spoil(config);
    const Result<void> result = validate(config);
    ASSERT_FALSE(result.has_value()) << wrong.text;
    EXPECT_THAT(result.error().text(), HasSubstr(wrong.text));
    EXPECT_EQ(result.error().code(), wrong.code) << wrong.text;
  }
}

// Every setting that cannot work is refused with the number that would.
TEST(Validate, RefusesImpossibleLayers) {
  const Impossible cases[] = {
      {[](auto& c) { c.tokens_per_block = 0; }, "0 tokens per block; use a power of two"},
      {[](auto& c) { c.tokens_per_block = 48; }, "48 tokens per block; use a power of two"},
      {[](auto& c) { c.layers.clear(); }, "no layers"},
      {[](auto& c) { c.layers[1].layer = 0; }, "layer 0 is named twice"},
      {[](auto& c) { c.layers[0].buffers.clear(); }, "layer 0 has no buffers"},
      {[](auto& c) { c.layers[0].buffers[1].role = "key"; }, "two buffers 'key'"},
      {[](auto& c) { c.layers[0].buffers[0].bytes = 0; }, "'key' of layer 0 has 0 bytes"},
      {[](auto& c) { c.layers[0].buffers[0].tokens_per_block = 24; }, "do not divide the 32"},
      {[](auto& c) {
         c.layers[0].kind = Recurrent();
         c.layers[0].buffers[0].tokens_per_block = 16;
       },
       "a state has no blocks"},
      {[](auto& c) {
         c.layers[1].kind = SlidingWindow{0, 0};
       },
       "sliding window of 0 tokens"},
      {[](auto& c) {
         c.layers[1].kind = SlidingWindow{64, -1};
       },
       "-1 sink tokens"},
      {[](auto& c) {
         c.local_layers = {0, 1, 99};
       },
       "local layer 99"},
  };
  expect_refused(cases);
}

TEST(Validate, RefusesImpossibleNumbers) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Impossible cases[] = {
      {[](auto& c) { c.device_bytes = 0; }, "a device tier of 0 bytes"},
      {[](auto& c) { c.host_bytes = -1; }, "a host tier of -1 bytes"},
      {[](auto& c) { c.disk_bytes = 1 << 30; }, "without a directory"},
      {[](auto& c) { c.grain_bytes = -4096; }, "a grain of -4096 bytes"},
      {[](auto& c) { c.max_util_for_resume = 0; }, "max_util_for_resume must be in (0, 1]"},
      {[](auto& c) { c.max_util_for_resume = 1.01; }, "max_util_for_resume must be in"},
      {[](auto& c) { c.max_util_for_resume = -0.5; }, "max_util_for_resume must be in"},
      {[nan](auto& c) { c.max_util_for_resume = nan; }, "max_util_for_resume must be in"},
      {[](auto& c) { c.reuse_match_backoff = -1; }, "a reuse_match_backoff of -1"},
      {[](auto& c) { c.snapshot_interval = -1; }, "a snapshot_interval of -1"},
      {[](auto& c) { c.initial_pool_ratio = {1}; }, "has length 1; there are 2 layer groups"},
      {[](auto& c) {
         c.initial_pool_ratio = {1, 0};
       },
       "each must be positive"},
      {[](auto& c) {
         c.initial_pool_ratio = {1.5, -0.5};
       },
       "each must be positive"},
      {[nan](auto& c) {
         c.initial_pool_ratio = {nan, 0.5};
       },
       "each must be positive"},
      {[](auto& c) {
         c.initial_pool_ratio = {0.5, 0.4};
       },
       "has the sum 0.9, not 1"},
      {[](auto& c) {
         c.constraints = {BatchDesc{{{10, 11}}, 0}};
       },
       "a history of 11 tokens"},
      {[](auto& c) {
         c.typical_step = BatchDesc{{{10, -1}}, 0};
       },
       "a typical step with"},
      {[](auto& c) {
         c.typical_step = BatchDesc{{}, -1};
       },
       "a system prompt of -1"},
      {[](auto& c) { c.device_bytes = 1 << 20; }, "below what its floors need; use 2097152"},
      {[](auto& c) { c.host_bytes = 4096; },
       "a host tier of 4096 bytes is below what its floors "
       "need; use 16384"},
      {[](auto& c) { c.sliding_window_scratch_pages = true; }, "scratch pages",
       ErrorCode::kUnimplemented},
      {[](auto& c) { c.max_beam_width = 2; }, "beams are not built", ErrorCode::kUnimplemented},
      {[](auto& c) { c.max_beam_width = 0; }, "max_beam_width is 0"},
  };
  expect_refused(cases);
}

// The number in the text works.
TEST(Validate, TheQuotaItNamesIsEnough) {
  KvCacheConfig config = usual();
  config.constraints = {BatchDesc{std::vector<SequenceDesc>(40, {4096, 0}), 0}};
  config.device_bytes = 1;
  const auto least = min_quotas(config);
  ASSERT_TRUE(least.has_value());
  config.device_bytes = least->device_bytes - 1;
  EXPECT_FALSE(validate(config).has_value());
  config.device_bytes = least->device_bytes;
  EXPECT_TRUE(validate(config).has_value());
}

}  // namespace
}  // namespace slackwater::cache
