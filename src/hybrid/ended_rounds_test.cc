// Rounds that were queued behind the last one of a request: they ran no token, and are no part of
// where it stands.

#include <cstdint>
#include <span>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"

namespace slackwater::hybrid {
namespace {

using testing::HasSubstr;

class EndedRoundsTest : public Requirements {
 protected:
  static Result<void> tell_end(Puppets& world, std::uint64_t round, std::int32_t accepted = 0) {
    const Acceptance told{RequestId(1), 0, round, accepted, /*has_ended=*/true};
    return world.manager->update_resources(std::span(&told, 1));
  }
  // A round of the golden token alone, ahead of what the host has read.
  static void round_without_drafts(Puppets& world) { world.verify(1, 0); }
};

TEST_P(EndedRoundsTest, ARoundWithoutDraftsBehindTheLastOneIsTakenBack) {
  Puppets world(options());
  world.enter(1);
  round_without_drafts(world);
  round_without_drafts(world);
  EXPECT_EQ(world.kept(1), 8) << "as if both had run";
  ASSERT_TRUE(tell_end(world, 1).has_value());
  EXPECT_EQ(world.kept(1), 7);
  EXPECT_EQ(world.manager->position(RequestId(1))->page_position, 7);
  // So its end can be published, which is where its page is.
  const Result<void> done = world.manager->publish(
      RequestId(1), numbers(10, 7), {.written = {}, .with_snapshot = true, .is_end = true});
  EXPECT_TRUE(done.has_value()) << done.error().text();
  EXPECT_EQ(world.manager->counters().publishes_refused, 0);
  EXPECT_EQ(world.manager->counters().snapshots_skipped, 0);
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 0);
  world.manager->audit();
}

TEST_P(EndedRoundsTest, OneWithDraftsBehindOneWithoutIsClosed) {
  Puppets world(options());
  world.enter(1);
  round_without_drafts(world);
  const BatchSetup second = world.verify(1, 2);
  static const std::int32_t none = 0;
  world.manager->record_acceptance(second, &none);
  ASSERT_TRUE(tell_end(world, 1).has_value());
  EXPECT_EQ(world.kept(1), 7);
  EXPECT_FALSE(world.manager->position(RequestId(1))->is_on_device);
  const Result<void> done = world.manager->publish(
      RequestId(1), numbers(10, 7), {.written = {}, .with_snapshot = true, .is_end = true});
  EXPECT_TRUE(done.has_value()) << done.error().text();
  world.manager->audit();
}

TEST_P(EndedRoundsTest, TheLastRoundItselfAndThoseBeforeItStay) {
  Puppets world(options());
  world.enter(1);
  for (int i = 0; i < 3; ++i) round_without_drafts(world);
  ASSERT_TRUE(tell_end(world, 3).has_value());
  EXPECT_EQ(world.kept(1), 9);
  // Told again, nothing is taken back twice.
  ASSERT_TRUE(tell_end(world, 3).has_value());
  EXPECT_EQ(world.kept(1), 9);
  world.manager->audit();
}

TEST_P(EndedRoundsTest, ASuspendedRequestsRoundsAreTakenBackToo) {
  Puppets world(options());
  world.enter(1);
  round_without_drafts(world);
  round_without_drafts(world);
  world.suspend(1);
  ASSERT_TRUE(tell_end(world, 1).has_value());
  EXPECT_EQ(world.kept(1), 7);
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.set_up({world.next_row(1)});
  world.manager->audit();
}

TEST_P(EndedRoundsTest, AnEndThatIsToldTooLateIsRefusedAndChangesNothing) {
  Puppets world(options());
  world.enter(1);
  for (int i = 0; i < 6; ++i) round_without_drafts(world);
  const Result<void> refused = tell_end(world, 1);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refused.error().text(),
              HasSubstr("round 1 of request 1 is said to be its last, and 5 were queued behind it, "
                        "of which 4 are known"));
  EXPECT_EQ(world.kept(1), 12);
  EXPECT_TRUE(tell_end(world, 2).has_value());
  EXPECT_EQ(world.kept(1), 8);
}

INSTANTIATE_TEST_SUITE_P(Placements, EndedRoundsTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const testing::TestParamInfo<ReplayPlacement>& tested) {
                           return tested.param == ReplayPlacement::kInPool ? "InPool"
                                                                           : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
