// Pools that change while requests are in the middle of anything.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

using testing::HasSubstr;

class EngineRebalanceSlow : public EverySetting {
 protected:
  // Shares that are looked at after every sequence, and are wrong to begin with: short answers need
  // more states than blocks.
  static EngineConfig restless() {
    EngineConfig config = EverySetting::config();
    config.pools.num_slots = 4;
    config.pools.num_blocks = 60;
    config.enable_rebalance = true;
    config.rebalance_check_interval = 3;
    config.rebalance = {
        .min_samples = 1, .update_interval = 1, .cooldown = Nanoseconds(0), .threshold = 1.01};
    config.enable_block_reuse = false;
    return config;
  }
};

TEST_P(EngineRebalanceSlow, InTheMiddleOfRoundsChangesNoToken) {
  DemoEngine engine(restless());
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 10; ++i) {
    const auto length = static_cast<std::int32_t>(8 + 9 * (i % 4));
    asked.emplace_back(engine.ask(warm_request(i, length)), warm_request(i, length));
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  const EngineStatistics statistics = engine->statistics();
  EXPECT_GT(statistics.rebalances, 0);
  EXPECT_GT(statistics.suspends, 0) << "everybody slept";
  expect_nothing_left(*engine);
}

TEST_P(EngineRebalanceSlow, ByHandWithStepsUnderWay) {
  EngineConfig config = restless();
  config.enable_rebalance = false;
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 6; ++i) {
    asked.emplace_back(engine.ask(warm_request(i, 20)), warm_request(i, 20));
  }
  bool goes_on = true;
  for (int i = 0; goes_on; ++i) {
    if (i % 4 == 3) {
      const Result<void> done = engine->rebalance_now();
      ASSERT_TRUE(done.has_value()) << done.error().text();
      engine->audit();
    }
    const Result<bool> stepped = engine->step();
    ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
    goes_on = *stepped;
  }
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

TEST_P(EngineRebalanceSlow, WithoutAHostTierEverybodyIsComputedAgain) {
  EngineConfig config = restless();
  config.pools.host_bytes = 0;
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 8; ++i) {
    const auto length = static_cast<std::int32_t>(8 + 9 * (i % 4));
    asked.emplace_back(engine.ask(warm_request(i, length)), warm_request(i, length));
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  EXPECT_GT(engine->statistics().rebalances, 0);
  EXPECT_GT(engine->statistics().recomputes, 0);
  EXPECT_EQ(engine->statistics().suspends, 0);
  expect_nothing_left(*engine);
}

SLACKWATER_WITH_EVERY_SETTING(EngineRebalanceSlow);

EngineConfig restless_config() {
  EngineConfig config = roomy();
  config.pools.num_slots = 4;
  config.pools.num_blocks = 60;
  config.enable_rebalance = true;
  config.rebalance_check_interval = 3;
  config.rebalance = {
      .min_samples = 1, .update_interval = 1, .cooldown = Nanoseconds(0), .threshold = 1.01};
  config.enable_block_reuse = false;
  return config;
}

std::int64_t rebalances_of(EngineConfig config) {
  DemoEngine engine(std::move(config));
  for (std::size_t i = 0; i < 8; ++i) engine.ask(warm_request(i, 12));
  engine.run();
  EXPECT_EQ(engine.count_differences(), 0);
  return engine->statistics().rebalances;
}

// Each gate alone keeps the pools as they are.
TEST(EngineRebalanceGatesSlow, EachOfThemIsEnough) {
  EXPECT_GT(rebalances_of(restless_config()), 0);
  EngineConfig off = restless_config();
  off.enable_rebalance = false;
  EXPECT_EQ(rebalances_of(off), 0);
  EngineConfig rare = restless_config();
  rare.rebalance_check_interval = 1 << 20;
  EXPECT_EQ(rebalances_of(rare), 0);
  EngineConfig young = restless_config();
  young.rebalance.min_samples = 1000;
  EXPECT_EQ(rebalances_of(young), 0);
  EngineConfig calm = restless_config();
  calm.rebalance.threshold = 1e9;
  EXPECT_EQ(rebalances_of(calm), 0);
  EngineConfig cool = restless_config();
  cool.rebalance.cooldown = std::chrono::hours(1);
  EXPECT_LE(rebalances_of(cool), 1);
}

// What cannot work is refused before anything is allocated.
TEST(EngineRebalanceGatesSlow, RecordsBesideThePoolAreRefused) {
  EngineConfig config = restless_config();
  config.placement = hybrid::ReplayPlacement::kBesidePool;
  config.speculation.drafter = DrafterKind::kNgram;
  DemoModels& demo = DemoModels::get();
  const auto device = device::make_cpu_device();
  const auto target = make_language_model(demo.model, demo.context);
  const EngineParts parts{device.get(), &demo.context, target.get(), nullptr, &demo.tokenizer};
  const auto refused = Engine::create(parts, config);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().text(), HasSubstr("rebalance"));

  // By hand it is refused as well, and nobody is disturbed.
  config.enable_rebalance = false;
  DemoEngine engine(config);
  const RequestId id = engine.ask(warm_request(1, 12));
  ASSERT_TRUE(engine->step().has_value());
  ASSERT_TRUE(engine->step().has_value());
  const Result<void> by_hand = engine->rebalance_now();
  ASSERT_FALSE(by_hand.has_value());
  EXPECT_EQ(by_hand.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(by_hand.error().text(), HasSubstr("use ReplayPlacement::kInPool"));
  engine.run();
  EXPECT_EQ(engine->statistics().suspends, 0);
  expect_as_alone(engine, id, warm_request(1, 12));
}

}  // namespace
}  // namespace slackwater::engine
