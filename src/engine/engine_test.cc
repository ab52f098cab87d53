// Many requests at once, in little memory: each gets the tokens it would get alone.

#include "slackwater/engine/engine.h"

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace slackwater::engine {
namespace {

struct Case {
  DrafterKind drafter;
  LoopKind loop;
  float temperature;
};

class EveryLoop : public testing::TestWithParam<Case> {};

EngineConfig config_of(const Case& param) {
  EngineConfig config = roomy();
  config.speculation.drafter = param.drafter;
  config.loop = param.loop;
  return config;
}

TEST_P(EveryLoop, GivesEachRequestTheTokensItWouldGetAlone) {
  DemoEngine engine(config_of(GetParam()));
  for (std::size_t i = 0; i < 8; ++i) {
    GenerationRequest request = demo_request(i);
    request.sampling.temperature = GetParam().temperature;
    request.sampling.seed = i;
    engine.ask(request);
  }
  engine.run();
  EXPECT_EQ(engine.count_differences(), 0);
  EXPECT_EQ(engine->statistics().finished, 8);
  engine->audit();
}

TEST_P(EveryLoop, StillDoesWithRoomForAFewOnly) {
  EngineConfig config = config_of(GetParam());
  config.pools.num_slots = 4;
  config.pools.num_blocks = 6;
  DemoEngine engine(config);
  for (std::size_t i = 0; i < 8; ++i) {
    GenerationRequest request = demo_request(i, 40);
    request.sampling.temperature = GetParam().temperature;
    request.sampling.seed = i;
    engine.ask(request);
  }
  engine.run();
  EXPECT_EQ(engine.count_differences(), 0);
  EXPECT_EQ(engine->statistics().finished, 8);
  EXPECT_GT(engine->statistics().suspends, 0);
  engine->audit();
}

INSTANTIATE_TEST_SUITE_P(All, EveryLoop,
                         testing::Values(Case{DrafterKind::kNone, LoopKind::kPlain, 0},
                                         Case{DrafterKind::kNgram, LoopKind::kPlain, 0},
                                         Case{DrafterKind::kMtp, LoopKind::kPlain, 0},
                                         Case{DrafterKind::kDraftModel, LoopKind::kPlain, 0},
                                         Case{DrafterKind::kNone, LoopKind::kOverlap, 0.8F},
                                         Case{DrafterKind::kNgram, LoopKind::kOverlap, 0.8F},
                                         Case{DrafterKind::kMtp, LoopKind::kOverlap, 0.8F},
                                         Case{DrafterKind::kDraftModel, LoopKind::kOverlap, 0.8F}),
                         [](const testing::TestParamInfo<Case>& tested) {
                           return std::string(to_string(tested.param.drafter)) + "_" +
                                  std::string(to_string(tested.param.loop));
                         });

}  // namespace
}  // namespace slackwater::engine
