// Shares and floors of pools. Behaviour of TensorRT-LLM's KV cache manager V2 (TestInitRatioConfig,
// TestClampMaxSeqLenForMem, TestComplexModels). Where that one raises a quota to its floor, ours is
// refused with the number; the tests ask for that number.

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

const LayerKind kFull = FullAttention();

LayerConfig layer(std::int32_t number, LayerKind kind, std::int64_t bytes) {
  LayerConfig config;
  config.layer = number;
  config.kind = kind;
  config.buffers = {{"kv", bytes}};
  return config;
}

double share(const KvCacheConfig& config, std::size_t group) {
  const auto groups = LayerGroups::build(config);
  return plan_room(config, *groups).ratios[group];
}

// The quota that a test of the other manager would be raised to.
KvCacheConfig at_floor(KvCacheConfig config) {
  config.device_bytes = 1;
  config.device_bytes = min_quotas(config)->device_bytes;
  return config;
}

std::int32_t slots(const KvCacheManager& manager, std::int32_t group) {
  return manager.room(Tier::kDevice, LayerGroupId(group)).total;
}

// small_quota: there 5,619,712 bytes are raised to the minimum.
TEST(Quota, BelowTheFloorIsRefusedWithTheNumberThatWorks) {
  const auto make = [] {
    KvCacheConfig config;
    config.tokens_per_block = 32;
    for (std::int32_t i = 0; i < 36; ++i) {
      config.layers.push_back(
          layer(i, i % 2 == 0 ? LayerKind(SlidingWindow{128, 48}) : kFull, 32 * 4096));
    }
    config.device_bytes = 5'619'712;
    return config;
  };
  const auto device = device::make_cpu_device();
  const auto refused = KvCacheManager::create(*device, make());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  const std::int64_t least = min_quotas(make())->device_bytes;
  EXPECT_THAT(refused.error().text(), testing::HasSubstr("use " + std::to_string(least)));
  KvCacheConfig enough = make();
  enough.device_bytes = least;
  EXPECT_TRUE(KvCacheManager::create(*device, std::move(enough)).has_value());
}

// default_init_ratio: one sequence of 2049 tokens.
TEST(InitialRatio, OfOneUsualSequence) {
  KvCacheConfig config;
  config.device_bytes = 1 << 30;
  config.grain_bytes = 4096;
  config.layers = {layer(0, kFull, 4096), layer(1, SlidingWindow{128, 0}, 8192)};
  // 65 blocks of 4 KiB, and of the window the 5 blocks that 2049 tokens do not leave behind.
  EXPECT_NEAR(share(config, 0), 65 * 4096.0 / (65 * 4096 + 5 * 8192), 1e-9);
}

// typical_step_short_sequences and _long_sequences: the longer, the less for the window.
TEST(InitialRatio, FollowsTheTypicalStep) {
  KvCacheConfig config;
  config.device_bytes = 1 << 30;
  config.layers = {layer(0, SlidingWindow{128, 0}, 128 << 10), layer(1, kFull, 64 << 10)};
  config.typical_step = BatchDesc{std::vector<SequenceDesc>(8, {128, 127}), 0};
  const double of_short = share(config, 0);
  config.typical_step = BatchDesc{std::vector<SequenceDesc>(8, {8192, 8191}), 0};
  const double of_long = share(config, 0);
  EXPECT_NEAR(of_short, 0.6, 0.15);
  EXPECT_LT(of_long, 0.15);
}

// zero_capacity_request_reserves_only_an_ssm_slot.
TEST(Constraints, ASequenceWithoutTokensReservesAState) {
  KvCacheConfig config;
  config.layers = {layer(0, kFull, 4096), layer(1, Recurrent(), 8192)};
  config.constraints = {BatchDesc{{{0, 0}, {0, 0}}, 0}};
  const auto groups = LayerGroups::build(config);
  EXPECT_THAT(plan_room(config, *groups).min_slots, testing::ElementsAre(1, 2));
  // Two and two: a window's floor is two slots, and the two sequences add nothing to it.
  config.layers[0].kind = SlidingWindow{32, 0};
  const auto windows = LayerGroups::build(config);
  EXPECT_THAT(plan_room(config, *windows).min_slots, testing::ElementsAre(2, 2));
  config.constraints = {BatchDesc{{{1, 0}, {1, 0}, {0, 0}, {1, 0}}, 0}};
  config.max_util_for_resume = 1;
  EXPECT_THAT(plan_room(config, *windows).min_slots, testing::ElementsAre(3, 4));
}

// typical_covers_constraint_ratio_unchanged: a batch that the typical step has room for anyway
// changes no share and no slot; one that it has no room for does.
TEST(Constraints, ThatTheTypicalStepCoversChangeNothing) {
  const auto slots_with = [](std::vector<BatchDesc> constraints) {
    KvCacheConfig config;
    config.tokens_per_block = 32;
    config.grain_bytes = 4096;
    config.device_bytes = 1 << 20;
    config.layers = {layer(0, SlidingWindow{32, 0}, 8192), layer(1, kFull, 4096)};
    config.typical_step = BatchDesc{std::vector<SequenceDesc>(8, {512, 511}), 0};
    config.constraints = std::move(constraints);
    EXPECT_NEAR(share(config, 0), 2 / (2 + 16.0), 1e-9) << "the typical step alone decides";
    const TestCache cache(std::move(config));
    return std::pair(slots(*cache.manager, 0), slots(*cache.manager, 1));
  };
  const auto alone = slots_with({});
  EXPECT_GE(alone.first, 8);
  EXPECT_GE(alone.second, 8 * 16);
  EXPECT_EQ(slots_with({BatchDesc{{{256, 255}, {256, 255}}, 0}}), alone);
  EXPECT_NE(slots_with({BatchDesc{{{1024, 0}}, 0}}), alone);
}

// constraints_floor_typical_step, multiple_constraints_take_max,
// constraint_floor_overrides_infeasible_initial_pool_ratio.
TEST(Constraints, AreFloorsWhateverTheRatio) {
  KvCacheConfig config;
  config.tokens_per_block = 32;
  config.grain_bytes = 4096;
  config.layers = {layer(0, kFull, 4096), layer(1, SlidingWindow{32, 0}, 8192)};
  config.typical_step = BatchDesc{{{32, 0}}, 0};
  config.constraints = {BatchDesc{{{320, 0}}, 0}, BatchDesc{{{32, 0}, {32, 0}, {640, 639}}, 0}};
  config.max_util_for_resume = 1;
  config = at_floor(std::move(config));
  config.initial_pool_ratio = {0.2, 0.8};
  TestCache cache(std::move(config));
  EXPECT_GE(slots(*cache.manager, 0), 22) << "the second batch";
  EXPECT_GE(slots(*cache.manager, 1), 10) << "the first";
}

// initial_ratio_is_per_layer_group_when_hot_group_is_shared.
TEST(InitialRatio, IsPerLayerGroupWhereSlotsAreShared) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{32, 0}}, 32, 64 << 10);
  config.initial_pool_ratio = {0.25, 0.75};
  TestCache cache(std::move(config));
  EXPECT_EQ(slots(*cache.manager, 0), slots(*cache.manager, 1));
  EXPECT_EQ(slots(*cache.manager, 0), 64 * 1024 / 256);
}

// constraint_guarantees_batch_can_run, with 0, 64, 50 and 256 tokens in common.
TEST(Constraints, TheBatchCanRun) {
  for (const std::int64_t system : {0, 64, 50, 256}) {
    KvCacheConfig config = test_config({kFull, SlidingWindow{64, 0}, Recurrent()}, 32, 1);
    config.layers[2].buffers = {{"state", 4096}};
    config.max_util_for_resume = 0.97;
    const std::int64_t length = system + 100;
    config.constraints = {BatchDesc{std::vector<SequenceDesc>(6, {length, 0}), system}};
    // Windows keep the common prompt until its blocks are stale: the batch begins with it known.
    TestCache cache(at_floor(std::move(config)));
    const Tokens common = numbers(0, system);
    std::vector<Sequence> batch;
    for (int i = 0; i < 6; ++i) {
      Tokens prompt = common;
      for (const TokenId token : numbers(1000 * (i + 1), 100)) prompt.push_back(token);
      batch.push_back(cache.create(prompt));
      cache.resume(batch.back());
      cache.compute(batch.back(), prompt);
    }
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// TestClampMaxSeqLenForMem.
TEST(ClampMaxSeqLen, TakesWhatTheOthersLeave) {
  // A batch of one sequence of 4 blocks is the floor, and its grain holds 8 slots.
  KvCacheConfig config = test_config({kFull}, 64, 1);
  config.constraints = {BatchDesc{{{4 * 64, 0}}, 0}};
  TestCache cache(at_floor(std::move(config)));
  const auto clamp = [&](std::int64_t batch, std::int64_t bound) {
    return cache.manager->clamp_max_seq_len(batch, bound);
  };
  const std::int64_t all = slots(*cache.manager, 0);
  ASSERT_EQ(all, 8) << "a grain";
  EXPECT_EQ(clamp(1, 0), 0);
  EXPECT_EQ(clamp(8, 1000), 64);
  EXPECT_EQ(clamp(8, 10), 10);
  EXPECT_EQ(clamp(9, 1000), 0);
  EXPECT_EQ(clamp(6, 1000), 3 * 64);
}

// Of the least size, where a page is a grain; that of the last layer is `last` of them.
KvCacheConfig pages_of_a_grain(std::vector<LayerKind> kinds, std::int64_t last = 1) {
  KvCacheConfig config = test_config(std::move(kinds), 32, 1);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = config.grain_bytes;
  config.layers.back().buffers[0].bytes *= last;
  return at_floor(std::move(config));
}

// zero_upper_bound, single_feasible_block and batch_consumes_remaining_slots: a block of 32 tokens
// is all the room there is.
TEST(ClampMaxSeqLen, ASingleBlockIsAllThereIs) {
  TestCache cache(pages_of_a_grain({kFull}));
  ASSERT_EQ(slots(*cache.manager, 0), 1);
  const auto clamp = [&](std::int64_t batch, std::int64_t bound) {
    return cache.manager->clamp_max_seq_len(batch, bound);
  };
  EXPECT_EQ(clamp(1, 0), 0);
  EXPECT_EQ(clamp(1, 32), 32);
  EXPECT_EQ(clamp(1, 10'000), 32);
  EXPECT_EQ(clamp(2, 32), 0);
  EXPECT_EQ(clamp(2, 10'000), 0);
}

// sliding_window_reuses_slot: a window and full attention have 4 slots together, two as the floor
// of each. The window needs one however long the sequence is, which leaves three blocks.
TEST(ClampMaxSeqLen, AWindowUsesItsSlotAgain) {
  TestCache cache(pages_of_a_grain({kFull, SlidingWindow{32, 0}}));
  ASSERT_EQ(slots(*cache.manager, 0), 4);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(1, 10'000), 96);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(1, 90), 90);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(3, 10'000), 0) << "two more take all four";
  // Alone it never ends.
  TestCache windows(pages_of_a_grain({SlidingWindow{32, 0}}));
  ASSERT_EQ(slots(*windows.manager, 0), 2);
  EXPECT_EQ(windows.manager->clamp_max_seq_len(1, 96), 96);
  EXPECT_EQ(windows.manager->clamp_max_seq_len(2, 96), 96);
  EXPECT_EQ(windows.manager->clamp_max_seq_len(3, 96), 0);
}

// multiple_pool_groups: the same 4 slots beside another pool, with two slots for another window.
TEST(ClampMaxSeqLen, EveryPoolGroupHasToHaveRoom) {
  TestCache cache(pages_of_a_grain({kFull, SlidingWindow{32, 0}, SlidingWindow{16, 0}}, 2));
  ASSERT_EQ(slots(*cache.manager, 0), 4);
  ASSERT_EQ(slots(*cache.manager, 1), 4);
  ASSERT_EQ(slots(*cache.manager, 2), 2);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(1, 10'000), 96);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(2, 10'000), 32);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(3, 10'000), 0);
}

TEST(ClampMaxSeqLen, TheScarcestPoolDecides) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{1, 0}}, 32, 1);
  config.layers[1].buffers = {{"kv", 4096}};
  config.grain_bytes = 4096;
  TestCache cache(at_floor(std::move(config)));
  ASSERT_EQ(slots(*cache.manager, 0), 16);
  ASSERT_EQ(slots(*cache.manager, 1), 1);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(1, 100'000), 16 * 32);
  EXPECT_EQ(cache.manager->clamp_max_seq_len(2, 100'000), 15 * 32)
      << "a window of 1 that has left all blocks behind needs no slot, so the other one has it";
}

// complex_model_0 and _1: large slots, few grains, several windows; construction ends, with every
// floor met.
TEST(ComplexModels, AreLaidOut) {
  for (const std::int64_t quota : {std::int64_t{1} << 30, std::int64_t{212'549'334}}) {
    KvCacheConfig config;
    config.tokens_per_block = 128;
    const LayerKind kinds[] = {SlidingWindow{1024, 0}, SlidingWindow{512, 128}, kFull};
    const std::int64_t bytes[] = {126'720, 491'520, 122'880};
    for (std::int32_t i = 0; i < 12; ++i) {
      config.layers.push_back(layer(i, kinds[i % 3], bytes[i % 3]));
    }
    config.typical_step = BatchDesc{std::vector<SequenceDesc>(4, {4096, 4000}), 0};
    config.constraints = {BatchDesc{{{2048, 0}}, 0},
                          BatchDesc{std::vector<SequenceDesc>(8, {256, 128}), 128}};
    config.device_bytes = quota;
    const auto groups = LayerGroups::build(config);
    const GroupRoom room = plan_room(config, *groups);
    EXPECT_NEAR(std::accumulate(room.ratios.begin(), room.ratios.end(), 0.0), 1, 1e-9);
    config.device_bytes = std::max(quota, min_quotas(config)->device_bytes);
    TestCache cache(std::move(config));
    for (std::size_t g = 0; g < groups->size(); ++g) {
      EXPECT_GE(slots(*cache.manager, static_cast<std::int32_t>(g)), room.min_slots[g]);
    }
  }
}

}  // namespace
}  // namespace slackwater::cache
