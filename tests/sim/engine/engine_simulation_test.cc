// Many requests over pools that are too small for them, on a device that runs work in the worst
// order, with everything that may happen to a request; each is compared with itself alone.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=100000 slackwater_engine_sim_test

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "engine_simulation.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::engine {
namespace {

// Steps of one seed before it drains.
constexpr std::int64_t kStepsPerSeed = 160;

TEST(EngineSimulation, GivesEveryRequestTheTokensItWouldGetAlone) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_steps = test_operations(20'000);
  EngineTally sum;
  for (std::uint64_t round = 0; sum.engine.steps < num_steps; ++round) {
    EngineSimulation simulation({.seed = seed + round, .has_faults = (seed + round) % 2 == 1});
    simulation.run(kStepsPerSeed);
    if (testing::Test::HasFailure()) return;
    sum.add(simulation.tally());
  }
  fmt::print(stderr, "{}", sum.describe());
}

}  // namespace
}  // namespace slackwater::engine
