// What of a request others may reuse: no more than is kept, no state that is not of the end.

#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "hybrid/speaker_test_support.h"

namespace slackwater::hybrid {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

class PublishTest : public Requirements {};

Tokens first_of(const Tokens& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// Tokens that a new request of this prompt would not have to compute, once all is written.
std::int64_t reused(World& world, const Tokens& prompt) {
  world.manager->synchronize();
  return world.manager->kv_cache().probe_reuse({}, prompt).reused;
}

// A stop string is found when its end is long past: what may be published lies between the page
// and the last draft that is kept.
TEST_P(PublishTest, NothingPastWhatIsKeptOrShortOfThePage) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 2);
  // The page is at 7, and 9 tokens are kept.
  std::int64_t refused = 0;
  for (const std::int64_t end : {5, 6, 10}) {
    const Tokens tokens = first_of(speaker.tokens(), end);
    const Result<void> done = world.manager->publish(
        RequestId(1), tokens, {.written = {}, .with_snapshot = true, .is_end = true});
    ASSERT_FALSE(done.has_value()) << end;
    EXPECT_EQ(done.error().code(), ErrorCode::kFailedPrecondition);
    EXPECT_THAT(done.error().text(), HasSubstr("its page is at 7, and 9 tokens are kept"));
    EXPECT_EQ(world.manager->counters().publishes_refused, ++refused);
    EXPECT_EQ(world.manager->sequence(RequestId(1)).num_committed(), 0);
  }
  // Within: the pending drafts up to there are folded in, the others given up.
  const Tokens tokens = first_of(speaker.tokens(), 8);
  ASSERT_TRUE(world.manager->publish(RequestId(1), tokens, {.written = {}, .is_end = true}));
  EXPECT_EQ(world.manager->counters().commits, 1);
  EXPECT_EQ(world.manager->position(RequestId(1))->kept, 8);
  world.manager->audit();
  world.manager->free_resources(RequestId(1));
  Tokens longer = tokens;
  longer.push_back(1);
  EXPECT_EQ(reused(world, longer), 8);
}

// What others see stays kept: fewer drafts than that cannot be committed any more.
TEST_P(PublishTest, ACommitDoesNotTakeBackWhatIsPublished) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 3);
  const Tokens tokens = first_of(speaker.tokens(), 9);
  ASSERT_TRUE(world.manager->publish(RequestId(1), tokens, {}).has_value());
  const Result<void> done = world.manager->commit_pending(RequestId(1), 1);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(done.error().text(), HasSubstr("up to 9, so commit 2 or more"));
  EXPECT_EQ(world.manager->position(RequestId(1))->num_pending, 3);
  EXPECT_TRUE(world.manager->commit_pending(RequestId(1), 2).has_value());
  EXPECT_EQ(world.manager->position(RequestId(1))->kept, 9);
}

// Blocks are of all models: those that a draft model has not written its part of stay its own.
TEST_P(PublishTest, NothingPastWhatADraftModelHasComputed) {
  WorldOptions wanted = options();
  wanted.has_draft_model = true;
  Puppets world(wanted);
  world.enter(1);
  const Tokens tokens = numbers(3, 6);
  const Result<void> early = world.manager->publish(RequestId(1), tokens, {});
  ASSERT_FALSE(early.has_value());
  EXPECT_THAT(early.error().text(), HasSubstr("0 tokens are kept and computed by all its models"));
  BatchSetup setup;
  const std::vector<BatchRow> rows = {World::context_row(1, 0, 6)};
  ASSERT_TRUE(world.manager->setup_state_indices(rows, "draft", setup).has_value());
  world.manager->step_queued(setup);
  EXPECT_TRUE(world.manager->publish(RequestId(1), tokens, {}).has_value());
  world.manager->audit();
}

// Whoever goes on from a snapshot says what it would have said alone.
TEST_P(PublishTest, ASnapshotInTheMiddleOfSpeculationIsTheStateOfItsPosition) {
  World world(options(3));
  Speaker first(world, 1, numbers(3, 6));
  first.read_prompt();
  for (const std::int32_t right : {3, 2, 1}) {
    first.round(3, right);
    const std::int64_t committed = world.manager->sequence(RequestId(1)).num_committed();
    const std::int64_t kept = world.manager->position(RequestId(1))->kept;
    const Tokens more(first.tokens().begin() + committed, first.tokens().begin() + kept);
    const Result<void> done =
        world.manager->publish(RequestId(1), more, {.written = {}, .with_snapshot = true});
    ASSERT_TRUE(done.has_value()) << done.error().text();
    EXPECT_EQ(world.manager->counters().snapshots_skipped, 0);
    EXPECT_EQ(reused(world, first.tokens()), kept);
    world.manager->audit();
  }
  first.round(3, 3);
  first.expect_says_what_it_says_alone();
  EXPECT_EQ(world.manager->counters().relocations, 3) << "the page was handed over each time";
  // Another request goes on from there.
  RequestOptions follower{.request = RequestId(2), .tokens = {}, .scope = {}, .priority = {}};
  const std::int64_t kept = world.manager->sequence(RequestId(1)).num_committed();
  const Tokens prompt = first_of(first.tokens(), kept + 1);
  follower.tokens = prompt;
  ASSERT_TRUE(world.manager->add_request(follower).has_value());
  world.resume(2);
  ASSERT_TRUE(world.manager->resize(RequestId(2), 60).has_value());
  EXPECT_EQ(world.manager->position(RequestId(2))->kept, kept);
  const BatchSetup setup = world.set_up({World::context_row(2, kept, 1)});
  const World::Step step = world.step(setup, {{prompt.back()}});
  ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
  EXPECT_EQ(step.next->at(0).back(), first.tokens()[static_cast<std::size_t>(kept) + 1]);
  world.manager->audit();
}

TEST_P(PublishTest, ACommitLeavesTheHiddenStateOfItsLastDraft) {
  WorldOptions wanted = options(2);
  wanted.mtp_hidden_size = 16;
  World world(wanted);
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 3);
  world.manager->synchronize();
  ReplayState& state = world.manager->replay_state();
  const SlotId slot = world.slot_of(1);
  for (int i = 0; i < 3 * 16; ++i) state.mtp_hidden_cache(slot)[i] = static_cast<float>(100 + i);
  std::fill_n(state.mtp_hidden(slot), 16, -1.0f);
  ASSERT_FALSE(world.manager->commit_pending(RequestId(1), 4).has_value());
  ASSERT_TRUE(world.manager->commit_pending(RequestId(1), 2).has_value());
  world.manager->synchronize();
  EXPECT_EQ(state.mtp_hidden(slot)[0], 116.0f);
  EXPECT_EQ(state.mtp_hidden(slot)[15], 131.0f);
  EXPECT_EQ(*state.pending(slot), 0);
  EXPECT_EQ(world.manager->position(RequestId(1))->kept, 9);
  // Nothing pending: nothing to do.
  ASSERT_TRUE(world.manager->commit_pending(RequestId(1)).has_value());
  EXPECT_EQ(world.manager->counters().commits, 1);
}

// A commit at any point is not to be seen in what is said.
TEST_P(PublishTest, ACommitChangesNothingOfWhatIsSaid) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  for (const std::int32_t right : {3, 1, 2, 0, 3}) {
    speaker.round(3, right);
    ASSERT_TRUE(world.manager->commit_pending(RequestId(1)).has_value());
    EXPECT_EQ(world.manager->position(RequestId(1))->num_pending, 0);
  }
  speaker.round(2, 2);
  speaker.expect_says_what_it_says_alone();
  EXPECT_EQ(world.manager->counters().commits, 4);
  world.manager->audit();
}

TEST_P(PublishTest, SnapshotPointsAreThoseThatWereAskedFor) {
  WorldOptions wanted = options(2);
  wanted.change = [](HybridConfig& config) {
    config.snapshots.periodic_snapshot_interval = 10;
    config.snapshots.additional_snapshot_offsets_from_start = {3, 0, 99};
    config.snapshots.additional_snapshot_offsets_from_end = {0, 7, 99};
  };
  Puppets world(wanted);
  world.start(1, numbers(1, 25), 60);
  const auto points = world.manager->snapshot_points(RequestId(1), 25);
  ASSERT_TRUE(points.has_value());
  EXPECT_THAT(*points, ElementsAre(3, 10, 18, 20, 24, 25));
}

// A prompt with all its snapshots is one pass.
TEST_P(PublishTest, SnapshotsOfAPromptAreWrittenByTheRowThatCoversThem) {
  World world(options(5));
  const Tokens prompt = numbers(3, 14);
  Speaker speaker(world, 1, prompt);
  for (const std::int64_t at : {4, 9, 12}) {
    ASSERT_TRUE(world.manager->reserve_snapshot(RequestId(1), at).has_value()) << at;
  }
  const BatchSetup setup = world.set_up({World::context_row(1, 0, 14)});
  ASSERT_EQ(setup.rows[0].writes.size(), 4u);
  EXPECT_EQ(setup.rows[0].writes.back().page, setup.rows[0].slot);
  const World::Step step = world.step(setup, {prompt});
  ASSERT_TRUE(world.manager->publish(RequestId(1), prompt, {.written = step.done}));
  ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
  for (const std::int64_t at : {4, 9, 12}) {
    Tokens branch = first_of(prompt, at);
    branch.push_back(90);
    EXPECT_EQ(reused(world, branch), at);
  }
  world.manager->audit();
}

TEST_P(PublishTest, APlaceThatNoStepHasWrittenIsNotPublished) {
  Puppets world(options(5));
  world.start(1, numbers(10, 10), 60);
  ASSERT_TRUE(world.manager->reserve_snapshot(RequestId(1), 8).has_value());
  world.read_prompt(1, 6);
  // Behind the page nobody will write.
  const Result<void> behind = world.manager->reserve_snapshot(RequestId(1), 5);
  ASSERT_FALSE(behind.has_value());
  EXPECT_EQ(behind.error().code(), ErrorCode::kInvalidArgument);
  // Given up by a suspend, and asked for again: what was written before counts for nothing.
  world.manager->step_queued(world.set_up({World::context_row(1, 6, 1)}));
  world.suspend(1);
  world.resume(1);
  // The row was set up before there was a place.
  const BatchSetup setup = world.set_up({World::context_row(1, 7, 3)});
  ASSERT_TRUE(world.manager->reserve_snapshot(RequestId(1), 8).has_value());
  world.manager->step_queued(setup);
  const Tokens prompt = numbers(10, 10);
  ASSERT_TRUE(world.manager->publish(RequestId(1), prompt, {}).has_value());
  Tokens branch = first_of(prompt, 8);
  branch.push_back(90);
  EXPECT_EQ(reused(world, branch), 0);
  world.manager->audit();
}

TEST_P(PublishTest, ARestartForgetsThePlacesOfItsSnapshots) {
  Puppets world(options(5));
  const Tokens prompt = numbers(10, 10);
  world.start(1, prompt, 60);
  ASSERT_TRUE(world.manager->reserve_snapshot(RequestId(1), 8).has_value());
  world.manager->step_queued(world.set_up({World::context_row(1, 0, 9)}));
  ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  // What its last life wrote is not in the page that it gets now.
  const BatchSetup setup = world.set_up({World::context_row(1, 0, 10)});
  EXPECT_EQ(setup.rows[0].writes.size(), 1u);
  ASSERT_TRUE(world.manager->reserve_snapshot(RequestId(1), 8).has_value());
  world.manager->step_queued(setup);
  ASSERT_TRUE(world.manager->publish(RequestId(1), prompt, {}).has_value());
  Tokens branch = first_of(prompt, 8);
  branch.push_back(90);
  EXPECT_EQ(reused(world, branch), 0);
  world.manager->audit();
}

TEST_P(PublishTest, DummiesAreFoundWhereTheyAre) {
  WorldOptions wanted = options(4);
  wanted.num_dummies = 2;
  wanted.change = [](HybridConfig& config) {
    config.cache.max_device_bytes = 2 * config.cache.device_bytes;
  };
  Puppets world(wanted);
  world.enter(1);
  world.round(1, 2, 1);
  const std::vector<std::byte> own = world.contents(1);
  BatchSetup setup = world.set_up({world.next_row(1)});
  EXPECT_EQ(world.manager->pad_to(4, setup).error().code(), ErrorCode::kOutOfRange);
  ASSERT_TRUE(world.manager->pad_to(3, setup).has_value());
  EXPECT_TRUE(setup.rows[2].is_dummy);
  std::vector<SlotId> slots = {setup.rows[1].slot, setup.rows[2].slot};
  EXPECT_NE(slots[0], slots[1]);
  EXPECT_EQ(std::count(slots.begin(), slots.end(), setup.rows[0].slot), 0);
  // While they sleep, others take their slots.
  world.manager->suspend_dummies();
  BatchSetup without = world.set_up({world.next_row(1)});
  EXPECT_EQ(world.manager->pad_to(2, without).error().code(), ErrorCode::kResourceExhausted);
  world.suspend(1);
  if (is_in_pool()) {
    const std::int64_t quota = world.manager->kv_cache().quota(storage::Tier::kDevice);
    ASSERT_TRUE(world.manager->set_quota(storage::Tier::kDevice, quota + quota / 2).has_value());
  }
  world.enter(2);
  world.enter(3);
  world.wake(1);
  world.manager->resume_dummies();
  BatchSetup again = world.set_up({world.next_row(1)});
  const Result<void> padded = world.manager->pad_to(2, again);
  if (!padded.has_value()) {
    EXPECT_EQ(padded.error().code(), ErrorCode::kResourceExhausted);
    world.manager->free_resources(RequestId(2));
    world.manager->free_resources(RequestId(3));
    world.manager->resume_dummies();
    ASSERT_TRUE(world.manager->pad_to(2, again).has_value());
  }
  EXPECT_NE(again.rows[1].slot, again.rows[0].slot);
  EXPECT_EQ(world.contents(1), own);
  world.manager->audit();  // no two share a slot
}

INSTANTIATE_TEST_SUITE_P(Placements, PublishTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
