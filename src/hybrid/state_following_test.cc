// State follows its request where a batch is given up, a copy fails, or a model sits out a round:
// cases that the simulation of tests/sim has found.

#include <array>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::hybrid {
namespace {

using device::CopyFault;
using device::EventStatus;

class StateFollowingTest : public testing::TestWithParam<ReplayPlacement> {
 protected:
  void make(WorldOptions options = {}, std::uint64_t seed = 0) {
    options.placement = GetParam();
    options.host_bytes = 1 << 20;
    device::SimOptions sim;
    sim.seed = seed;
    sim.copy_fault = [this](std::int64_t) {
      return refuses_copies_ ? CopyFault::kRefuse : CopyFault::kNone;
    };
    world_ = std::make_unique<World>(options, std::make_unique<device::SimDevice>(sim));
  }
  HybridCacheManager& manager() { return *world_->manager; }

  void run(const std::vector<BatchRow>& rows, std::string_view tag = "target") {
    BatchSetup setup;
    const auto done = manager().setup_state_indices(rows, tag, setup);
    ASSERT_TRUE(done.has_value()) << done.error().text();
    ASSERT_TRUE(setup.lost.empty());
    queue(setup);
  }
  // The step itself does not matter where only counts and fates are looked at.
  void queue(const BatchSetup& setup) {
    world_->stream->run([] { return true; });
    manager().step_queued(setup);
  }
  // A request that has read its prompt.
  void start(std::uint64_t id, const Tokens& prompt) {
    world_->start(id, prompt, 40);
    run({World::context_row(id, 0, static_cast<std::int32_t>(prompt.size()))});
  }
  // A round from `first` on, of which `accepted` drafts are kept.
  void round(std::uint64_t id, std::int64_t first, std::int32_t drafts, std::int32_t accepted) {
    run({World::verify_row(id, first, drafts)});
    world_->accept(id, accepted);
    ASSERT_TRUE(manager().resize(RequestId(id), 40).has_value());
  }
  std::int32_t pending(std::uint64_t id, std::string_view tag = "target") {
    manager().synchronize();
    return *manager().replay_state(tag).pending(world_->slot_of(id, tag));
  }
  bool is_lost(std::uint64_t id, std::int64_t first) {
    const BatchSetup setup = world_->set_up({World::verify_row(id, first, 1)});
    return setup.lost == std::vector<RequestId>{RequestId(id)};
  }

  bool refuses_copies_ = false;
  std::unique_ptr<World> world_;
};

TEST_P(StateFollowingTest, AContextBatchThatIsNotQueuedHasLostNothing) {
  make();
  start(1, numbers(3, 6));
  round(1, 6, 3, 2);  // the page is at 7
  world_->set_up({World::context_row(1, 7, 2)});
  EXPECT_EQ(pending(1), 2);
  manager().audit();
  world_->suspend(1);
  world_->resume(1);
  world_->set_up({World::context_row(1, 7, 2)});
  EXPECT_FALSE(manager().state_index(RequestId(1)).has_value()) << "before it is queued";
  world_->set_up({World::verify_row(1, 9, 1)});
  EXPECT_EQ(pending(1), 2);
  EXPECT_EQ(manager().counters().restores, 1);
  world_->suspend(1);
  world_->resume(1);
  run({World::context_row(1, 7, 2)});
  EXPECT_EQ(pending(1), 0);
  EXPECT_EQ(manager().replay_state().registry().num_saved(), 0);
  manager().audit();
}

TEST_P(StateFollowingTest, WhatCannotBeFoldedIsSavedAsItIs) {
  WorldOptions options;
  options.suspend_policy = SuspendPolicy::kCommitIfKnown;
  make(options);
  start(1, numbers(3, 6));
  run({World::verify_row(1, 6, 3)});
  world_->suspend(1);
  world_->accept(1, 2);
  world_->resume(1);
  world_->suspend(1);  // not set up since it resumed
  world_->resume(1);
  ASSERT_TRUE(manager().resize(RequestId(1), 40).has_value());
  world_->set_up({World::verify_row(1, 9, 0)});
  EXPECT_EQ(pending(1), 2);
}

TEST_P(StateFollowingTest, AFailedRestoreIsKnownAfterAnotherSleep) {
  make();
  start(1, numbers(3, 6));
  round(1, 6, 3, 2);
  world_->suspend(1);
  manager().synchronize();
  world_->resume(1);
  refuses_copies_ = true;
  world_->set_up({World::verify_row(1, 9, 1)});
  refuses_copies_ = false;
  world_->suspend(1);
  world_->resume(1);
  manager().synchronize();
  EXPECT_TRUE(is_lost(1, 9));
}

// How much the device has done when it is published depends on the seed.
TEST_P(StateFollowingTest, WhatAFailedRestoreHasMadeIsSeenByNobody) {
  const Tokens prompt = numbers(3, 8);
  int num_published = 0;
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    make({}, seed);
    start(1, prompt);
    world_->suspend(1);
    manager().synchronize();
    world_->resume(1);
    refuses_copies_ = true;
    run({World::verify_row(1, 8, 0)});
    refuses_copies_ = false;
    num_published += manager().publish(RequestId(1), numbers(3, 9), {}).has_value() ? 1 : 0;
    manager().synchronize();
    EXPECT_EQ(manager().kv_cache().probe_reuse({}, numbers(3, 12)).content, 0) << "seed " << seed;
  }
  EXPECT_GT(num_published, 0);
}

TEST_P(StateFollowingTest, AHandOverWhoseCopyFailsCostsARecompute) {
  WorldOptions options;
  options.change = [](HybridConfig& config) { config.cache.device_bytes *= 2; };
  make(options);
  const Tokens prompt = numbers(3, 8);
  start(1, prompt);
  const SlotId before = world_->slot_of(1);
  refuses_copies_ = true;
  ASSERT_TRUE(manager().publish(RequestId(1), prompt, {.with_snapshot = true}).has_value());
  refuses_copies_ = false;
  const LayerGroupId group = manager().replay_state().layer_group();
  ASSERT_NE(manager().sequence(RequestId(1)).slots(group)[0], before);
  manager().synchronize();
  EXPECT_TRUE(is_lost(1, 8));
}

TEST_P(StateFollowingTest, ASnapshotThatARowRanOverIsNotPublished) {
  WorldOptions options;
  options.change = [](HybridConfig& config) { config.cache.device_bytes *= 2; };
  make(options);
  const Tokens prompt = numbers(3, 12);
  world_->start(1, prompt, 40);
  ASSERT_TRUE(manager().reserve_snapshot(RequestId(1), 8).has_value());
  run({World::context_row(1, 0, 7)});
  run({World::verify_row(1, 7, 0)});
  run({World::context_row(1, 8, 4)});
  ASSERT_TRUE(manager().publish(RequestId(1), prompt, {}).has_value());
  manager().synchronize();
  EXPECT_EQ(manager().kv_cache().counters().snapshots_published, 0);
}

TEST_P(StateFollowingTest, ADraftModelThatSitsOutARoundKeepsWhatItHad) {
  WorldOptions options;
  options.has_draft_model = true;
  make(options);
  start(1, numbers(3, 6));
  const auto draft_row = [](std::int64_t first, RowKind kind) {
    BatchRow row = World::verify_row(1, first, 0);
    row.kind = kind;
    return row;
  };
  run({World::context_row(1, 0, 6)}, "draft");
  run({draft_row(6, RowKind::kGeneration)}, "draft");
  run({draft_row(7, RowKind::kDraft)}, "draft");
  run({draft_row(8, RowKind::kDraft)}, "draft");
  round(1, 6, 3, 1);  // of two records of the draft model one counts
  EXPECT_EQ(pending(1, "draft"), 1);
  round(1, 8, 3, 3);
  EXPECT_EQ(pending(1, "draft"), 1) << "what was rejected stays so";
  const std::array<std::int32_t, 1> kept = {1};
  BatchSetup setup = world_->set_up({World::verify_row(1, 12, 2)});
  queue(setup);
  manager().record_acceptance(setup, kept.data());
  EXPECT_EQ(pending(1), 0);
  EXPECT_EQ(pending(1, "draft"), 1);
  world_->accept(1, 0);
  manager().audit();
}

TEST_P(StateFollowingTest, DraftsThatNoRoundHasVerifiedAreNeverCounted) {
  WorldOptions options;
  options.has_draft_model = true;
  make(options);
  start(1, numbers(3, 6));
  BatchRow draft = World::verify_row(1, 7, 0);
  draft.kind = RowKind::kDraft;
  run({World::context_row(1, 0, 6)}, "draft");
  run({World::verify_row(1, 6, 0)}, "draft");
  run({draft}, "draft");
  run({World::context_row(1, 6, 1)});  // the target goes on without the draft
  round(1, 7, 2, 2);
  EXPECT_EQ(pending(1), 2);
  EXPECT_EQ(pending(1, "draft"), 0);
  manager().audit();
}

TEST_P(StateFollowingTest, ADraftModelsSaveOutlivesRoundsOfTheTarget) {
  WorldOptions options;
  options.has_draft_model = true;
  make(options);
  start(1, numbers(3, 6));
  run({World::context_row(1, 0, 6)}, "draft");
  world_->suspend(1);
  world_->resume(1);
  round(1, 6, 1, 1);
  run({World::verify_row(1, 6, 0)}, "draft");
  EXPECT_EQ(manager().counters().certificate_failures, 0);
  EXPECT_EQ(manager().counters().restores, 2);
}

INSTANTIATE_TEST_SUITE_P(Placements, StateFollowingTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
