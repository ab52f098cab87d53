// Many requests over few slots, on a device that runs work in the worst order, each compared with
// itself alone.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=1000000 slackwater_sim_test

#include "simulation.h"

#include <algorithm>
#include <cstdint>

#include <gtest/gtest.h>

#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::hybrid {
namespace {

TEST(HybridSimulation, StateFollowsItsRequest) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_operations = test_operations(200'000);
  // At most 1,000 seeds, of at least so many operations.
  const std::int64_t per_seed = std::max<std::int64_t>(1000, num_operations / 1000);
  SimulationTally sum;
  for (std::int64_t done = 0, round = 0; done < num_operations; done += per_seed, ++round) {
    Simulation simulation({.seed = seed + static_cast<std::uint64_t>(round)});
    simulation.run(per_seed, done);
    if (testing::Test::HasFailure()) return;
    sum.add(simulation.tally());
  }
  fmt::print(stderr, "{}", sum.describe());
  // All of it has happened: a schedule that leaves something out shows nothing of it.
  for (const std::int64_t count : {sum.steps,
                                   sum.rounds,
                                   sum.drafts_accepted,
                                   sum.on_device,
                                   sum.unqueued,
                                   sum.reused,
                                   sum.restarts,
                                   sum.rewinds,
                                   sum.refusals,
                                   sum.rebalances,
                                   sum.hand_overs,
                                   sum.publishes,
                                   sum.snapshots,
                                   sum.dummies,
                                   sum.faults,
                                   sum.failed_steps,
                                   sum.states_compared,
                                   sum.pending_at_rebalance,
                                   sum.unaccepted_at_rebalance,
                                   sum.counters.suspends,
                                   sum.counters.resumes_in_old_slot,
                                   sum.counters.resumes_in_new_slot,
                                   sum.counters.late_acceptances,
                                   sum.counters.restores,
                                   sum.counters.relocations,
                                   sum.counters.commits,
                                   sum.counters.lost_requests,
                                   sum.counters.ignored_acceptances,
                                   sum.counters.publishes_refused}) {
    EXPECT_GT(count, 0);
  }
  EXPECT_GT(sum.steps, num_operations / 10);
}

// Everybody is put to sleep in the middle of speculation, the shares of the pools change, and all
// go on: a hundred times and more.
TEST(HybridSimulation, NothingChangesWhenThePoolsAreRebalanced) {
  const std::uint64_t seed = test_seed();
  SimulationTally sum;
  for (std::int64_t round = 0; round < 8 || sum.rebalances < 100; ++round) {
    Simulation simulation({.seed = seed + static_cast<std::uint64_t>(round),
                           .placement = ReplayPlacement::kInPool,
                           .has_faults = false,
                           .rebalance_every = 8});
    simulation.run(400, round * 400);
    if (testing::Test::HasFailure()) return;
    sum.add(simulation.tally());
  }
  fmt::print(stderr, "{}", sum.describe());
  EXPECT_GE(sum.rebalances, 100);
  EXPECT_GE(sum.pending_at_rebalance, 100);
  EXPECT_GE(sum.unaccepted_at_rebalance, 100);
  EXPECT_EQ(sum.counters.lost_requests, 0);
}

}  // namespace
}  // namespace slackwater::hybrid
