// Many requests over pools that are too small for them, on a device that runs work in the worst
// order, with everything that may happen to a request; each is compared with itself alone.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=100000 slackwater_engine_sim_test

#include <cstdint>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "engine_simulation.h"
#include "model/forward_test_support.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::engine {
namespace {

// Steps of one seed before it drains.
constexpr std::int64_t kStepsPerSeed = 160;

TEST(EngineSimulation, GivesEveryRequestTheTokensItWouldGetAlone) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_steps = test_operations(60'000);
  EngineTally sum;
  for (std::uint64_t round = seed; sum.engine.steps < num_steps; ++round) {
    EngineSimulation simulation({.seed = round, .has_faults = round % 2 == 1});
    simulation.run(kStepsPerSeed);
    if (testing::Test::HasFailure()) return;
    sum.add(simulation.tally());
  }
  fmt::print(stderr, "{}", sum.describe());
  if (num_steps < 20'000) return;
  // All of it has happened: a schedule that leaves something out shows nothing of it.
  const EngineStatistics& engine = sum.engine;
  for (const std::int64_t count : {sum.tokens,
                                   sum.reused,
                                   sum.cancels,
                                   sum.holds,
                                   sum.second_turns,
                                   sum.several_choices,
                                   sum.stopped,
                                   sum.errors,
                                   sum.refusals,
                                   sum.left_behind,
                                   sum.bundles,
                                   sum.restarts,
                                   sum.faults,
                                   engine.suspends,
                                   engine.suspends_in_flight,
                                   engine.recomputes,
                                   engine.losses,
                                   engine.rebalances,
                                   engine.failed_steps,
                                   engine.drafts_accepted,
                                   engine.recomputed_tokens,
                                   engine.hybrid.resumes_in_old_slot,
                                   engine.hybrid.resumes_in_new_slot,
                                   engine.hybrid.late_acceptances,
                                   engine.hybrid.restores,
                                   engine.hybrid.commits,
                                   engine.hybrid.lost_requests,
                                   engine.cache.snapshots_published}) {
    EXPECT_GT(count, 0);
  }
}

// The shape of a public stress run: 360 requests that are suspended 585 times and more.
class StressSimulation : public testing::TestWithParam<std::pair<DrafterKind, LoopKind>> {};

TEST_P(StressSimulation, SuspendsAllTheTimeAndChangesNoToken) {
  EngineSimulation simulation({.seed = test_seed(),
                               .drafter = GetParam().first,
                               .loop = GetParam().second,
                               .has_faults = false,
                               .is_under_pressure = true});
  simulation.run_requests(360);
  fmt::print(stderr, "{}", simulation.tally().describe());
  const EngineTally& tally = simulation.tally();
  EXPECT_GE(tally.requests, 360);
  EXPECT_GE(tally.engine.suspends, 585);
  EXPECT_EQ(tally.engine.losses, 0);
}

INSTANTIATE_TEST_SUITE_P(
    All, StressSimulation,
    testing::Values(std::pair(DrafterKind::kNone, LoopKind::kPlain),
                    std::pair(DrafterKind::kNgram, LoopKind::kPlain),
                    std::pair(DrafterKind::kMtp, LoopKind::kPlain),
                    std::pair(DrafterKind::kDraftModel, LoopKind::kPlain),
                    std::pair(DrafterKind::kNone, LoopKind::kOverlap),
                    std::pair(DrafterKind::kNgram, LoopKind::kOverlap),
                    std::pair(DrafterKind::kMtp, LoopKind::kOverlap),
                    std::pair(DrafterKind::kDraftModel, LoopKind::kOverlap)),
    [](const testing::TestParamInfo<std::pair<DrafterKind, LoopKind>>& tested) {
      return std::string(to_string(tested.param.first)) + "_" +
             std::string(to_string(tested.param.second));
    });

// The demo models, loaded once.
SimulatedModels make_demo_models(kernels::ExecutionContext& context,
                                 kernels::ExecutionContext& alone) {
  struct Demo {
    ThreadPool pool{1};
    kernels::ExecutionContext context{pool};
    model::Model target = model::load_model(model::source_path("models/demo"), context);
    model::Model draft = model::load_model(model::source_path("models/demo-draft"), context);
    model::Tokenizer tokenizer =
        *model::Tokenizer::load(model::source_path("models/demo"), target.config().vocab_size);
  };
  static const auto* const demo = new Demo;
  SimulatedModels models;
  models.target = make_language_model(demo->target, context);
  models.draft = make_language_model(demo->draft, context);
  models.alone = make_language_model(demo->target, alone);
  models.tokenizer = &demo->tokenizer;
  models.text = *demo->tokenizer.encode(
      "In the beginning God created the heaven and the earth. And the earth was without form, and "
      "void; and darkness was upon the face of the deep.\nriver (noun): a large natural stream of "
      "water\nlake (noun): a body of water\nthe sea and the shore, the sea and the shore, the sea");
  models.num_wrong = models.num_wrong_drafts = [] { return std::int64_t{0}; };
  models.first_wrong = [] { return std::string("not told"); };
  return models;
}

TEST(EngineSimulation, HoldsForTheDemoModelsToo) {
  const std::uint64_t seed = test_seed();
  EngineTally sum;
  for (std::uint64_t round = seed; round < seed + 8; ++round) {
    EngineSimulation simulation({.seed = round,
                                 .drafter = static_cast<DrafterKind>(round % 4),
                                 .loop = static_cast<LoopKind>(round / 4 % 2),
                                 .has_faults = round % 3 == 0,
                                 .make_models = make_demo_models});
    simulation.run(30);
    if (testing::Test::HasFailure()) return;
    sum.add(simulation.tally());
  }
  fmt::print(stderr, "{}", sum.describe());
  EXPECT_GT(sum.answers, 0);
  EXPECT_GT(sum.stopped, 0);
}

}  // namespace
}  // namespace slackwater::engine
