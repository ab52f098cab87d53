// Room for those who generate: who is suspended, who is computed again, and who is not.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler_test_support.h"

namespace slackwater::scheduler {
namespace {

using testing::ElementsAre;

// Pages of one token. A host large enough for everybody, and none.
FakePools with_host(std::int64_t pages) {
  return {.pages = pages, .host_pages = 1000, .host_slots = 100};
}
FakePools without_host(std::int64_t pages) { return {.pages = pages}; }
// A host that is as good as full: nothing that is suspended makes room.
FakePools full_host(std::int64_t pages) {
  return {.pages = pages, .host_pages = 0, .host_slots = 1};
}
constexpr SchedulerConfig kNoRecompute = {.enable_recompute_pause = false};

TEST(SchedulerEviction, WithoutAVictimTheRequestSuspendsItself) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10).is_in_flight = true;
  world.add_talking(2, 10);
  world.add_prompt(3, 5);
  EXPECT_EQ(world.pass(), "s2");
  EXPECT_FALSE(world.is_active(2));
}

TEST(SchedulerEviction, TheYoungestIsSuspendedAndThenThereIsRoom) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 5);
  world.add_talking(3, 5);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 s3");
}

TEST(SchedulerEviction, OneAfterTheOtherUntilThereIsRoomAndNoFurther) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 8, 4);
  for (std::uint64_t id = 2; id <= 5; ++id) world.add_talking(id, 3);
  // 13 for 1 are 12 - 3 - 3 from the tail. 2 and 3 grow within what is left.
  EXPECT_EQ(world.pass(), "g1+4 g2+0 s5 s4 s3");
  EXPECT_FALSE(world.is_active(3));
}

TEST(SchedulerEviction, InsufficientVictimsStaySuspendedBesideTheRequest) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 12).is_in_flight = true;
  world.add_asleep(2, 8);  // wants 9 of the 8 that 1 leaves
  world.add_talking(3, 4);
  world.add_talking(4, 4);
  EXPECT_EQ(world.pass(), "s4 s3");
  for (const std::uint64_t id : {2, 3, 4}) EXPECT_FALSE(world.is_active(id)) << id;
}

TEST(SchedulerEviction, WhoIsAsleepIsNoVictim) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  world.add_asleep(3, 5);
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "g1+0 s2");
  EXPECT_THAT(world.residency.take_calls(),
              ElementsAre(FakeCall{FakeCall::Kind::kAllocate, RequestId(1)},
                          FakeCall{FakeCall::Kind::kSuspend, RequestId(2)},
                          FakeCall{FakeCall::Kind::kAllocate, RequestId(1)}));
}

TEST(SchedulerEviction, WhoIsInFlightMayBeSuspended) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10).is_in_flight = true;
  EXPECT_EQ(world.pass(), "g1+0 s2");
}

TEST(SchedulerEviction, AContextPastItsFirstChunkIsAVictim) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_reading(2, 10, 15);
  EXPECT_EQ(world.pass(), "g1+0 s2");
}

TEST(SchedulerEviction, AFirstChunkIsNoVictimAndNeitherIsWhoIsAboutToComplete) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 8);
  world.add_talking(2, 6).phase = RequestPhase::kToComplete;
  // In flight with its first chunk.
  world.add_talking(3, 6);
  world.candidates[2].phase = RequestPhase::kContext;
  world.candidates[2].is_started = false;
  world.candidates[2].is_in_flight = true;
  EXPECT_EQ(world.pass(), "s1");
}

TEST(SchedulerEviction, FromTheTailAndNeverFromTheFront) {
  World world(kNoRecompute, with_host(22));
  for (std::uint64_t id = 1; id <= 3; ++id) world.add_talking(id, 4);
  world.add_talking(4, 10);
  // 1, 2 and 3 take the room that 4 leaves; 4 is the only victim.
  EXPECT_EQ(world.pass(), "g1+0 g2+0 g3+0 s4");
}

TEST(SchedulerEviction, BehindAVictimNobodyIsVisitedInThePass) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  world.add_asleep(3, 1);
  world.add_prompt(4, 1);
  EXPECT_EQ(world.pass(), "g1+0 s2");
  EXPECT_FALSE(world.is_active(3));
}

TEST(SchedulerEviction, EveryoneIsTriedAgainInTheOrderOfArrival) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 10);
  world.add_asleep(2, 4);
  world.add_asleep(3, 8);
  world.add_asleep(4, 2);
  // There is no queue: 2 comes first, though 4 went to sleep last.
  EXPECT_EQ(world.pass(), "g1+0 g2+0");
  world.candidates.erase(world.candidates.begin() + 2);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 g4+0");
}

TEST(SchedulerEviction, ATryWithoutDraftsComesBeforeSelfSuspensionAndAfterTheVictims) {
  World world(kNoRecompute, with_host(20));
  world.add_talking(1, 8).is_in_flight = true;
  world.add_talking(2, 8, 7);
  world.add_talking(3, 4);
  EXPECT_EQ(world.pass(), "g2+0 s3") << "16 with drafts, 9 without, of 12";
  EXPECT_EQ(world.decided.num_tokens, 1);
}

TEST(SchedulerEviction, AGenerationThatFindsNoRoomEndsThePhaseForThoseBehind) {
  World world(kNoRecompute, with_host(20));
  world.add_prompt(1, 3).is_in_flight = true;
  world.add_talking(2, 12).is_in_flight = true;
  world.add_talking(3, 8);
  world.add_asleep(4, 1);
  world.add_prompt(5, 1);
  EXPECT_EQ(world.pass(), "s3");
}

TEST(SchedulerEviction, WithoutAHostNobodyIsSuspended) {
  World world(kNoRecompute, without_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  EXPECT_EQ(world.pass(), "");
  EXPECT_TRUE(world.is_active(1));
  EXPECT_TRUE(world.is_active(2));
}

TEST(SchedulerRecompute, TheYoungestGivesUpWhatItHasAndTheRequestRunsAtOnce) {
  World world({}, without_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 5);
  world.add_talking(3, 5);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 r3");
  EXPECT_FALSE(world.is_active(3));
}

TEST(SchedulerRecompute, SeveralGiveUpWhereOneIsNotEnough) {
  World world({}, without_host(20));
  world.add_talking(1, 8, 8);
  for (std::uint64_t id = 2; id <= 5; ++id) world.add_talking(id, 3);
  EXPECT_EQ(world.pass(), "g1+8 r5 r4 r3") << "17 and 3 are 20";
}

TEST(SchedulerRecompute, OffItIsNotUsed) {
  World world(kNoRecompute, full_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  EXPECT_EQ(world.pass(), "s2 s1");
}

TEST(SchedulerRecompute, PassesOverWhoIsInFlightOrAboutToComplete) {
  World world({}, without_host(20));
  world.add_talking(1, 6);
  world.add_talking(2, 4);
  world.add_talking(3, 5).is_in_flight = true;
  world.add_talking(4, 5).phase = RequestPhase::kToComplete;
  EXPECT_EQ(world.pass(), "g1+0 r2");
}

TEST(SchedulerRecompute, TakesFromWhoIsHeldBackAndNotFromWhoseStepRuns) {
  World world({}, without_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 5).is_held_back = true;
  world.add_talking(3, 5).is_running = true;
  EXPECT_EQ(world.pass(), "g1+0 g3+0 r2");
  World asleep(kNoRecompute, with_host(20));
  asleep.add_talking(1, 10);
  asleep.add_talking(2, 5).is_held_back = true;
  asleep.add_talking(3, 5).is_running = true;
  EXPECT_EQ(asleep.pass(), "g1+0 s3") << "both may be suspended; 2 has to wait for its turn";
}

TEST(SchedulerRecompute, HasAFrontierOfItsOwnAndReachesWhoIsAsleep) {
  World world({}, full_host(20));
  world.add_talking(1, 10);
  world.add_asleep(2, 5);
  world.add_asleep(3, 5);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 r3");
}

TEST(SchedulerRecompute, FallsBackOnWhoWasSuspendedInThePass) {
  World world({}, full_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  // First suspended, which moved nothing; then it had to give up, and is listed once.
  EXPECT_EQ(world.pass(), "g1+0 r2");
}

TEST(SchedulerRecompute, TakesTheYoungestFirstWhetherItSleepsOrNot) {
  World world({}, full_host(20));
  world.add_talking(1, 8);
  world.add_asleep(2, 6);
  world.add_talking(3, 6);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 r3");
}

TEST(SchedulerRecompute, WithAHostIsForWhoeverHasNobodyAhead) {
  World world({}, with_host(20));
  world.add_talking(1, 9);
  world.add_talking(2, 10);
  world.add_asleep(3, 5);
  // 1 runs; 2 can wait for it, and what 3 has lies on the host.
  EXPECT_EQ(world.pass(), "g1+0 s2");
  for (int kind = 0; kind < 3; ++kind) {
    World ahead({}, full_host(20));
    Candidate& first = ahead.add_talking(1, 10);
    if (kind == 0) first.phase = RequestPhase::kToComplete;
    if (kind == 1) first.is_in_flight = true;
    if (kind == 2) first.is_held_back = true;
    ahead.add_talking(2, 5);
    ahead.add_asleep(3, 5);
    EXPECT_EQ(ahead.pass(), "s2");
  }
  World alone({}, full_host(20));
  alone.add_talking(2, 15);
  alone.add_asleep(3, 5);
  EXPECT_EQ(alone.pass(), "g2+0 r3");
}

TEST(SchedulerRecompute, DoesNotEndThePassForThoseBehind) {
  World world({}, without_host(20));
  world.add_talking(1, 9);
  world.add_talking(2, 3).is_in_flight = true;
  world.add_talking(3, 4);
  world.add_talking(4, 4).is_in_flight = true;
  world.add_prompt(5, 2);
  EXPECT_EQ(world.pass(), "c5@0+2. g1+0 r3");
}

TEST(SchedulerRecompute, WhoGaveUpIsNotAskedAgainInThePass) {
  World world({}, without_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "g1+0 r2");
  EXPECT_THAT(world.residency.take_calls(),
              ElementsAre(FakeCall{FakeCall::Kind::kAllocate, RequestId(1)},
                          FakeCall{FakeCall::Kind::kRecompute, RequestId(2)},
                          FakeCall{FakeCall::Kind::kAllocate, RequestId(1)}));
}

TEST(SchedulerRecompute, TakesBackWhatAPromptHoldsThatNeverBegan) {
  World world({}, without_host(20));
  world.add_talking(1, 10);
  world.add_prompt(2, 8, 10);  // prepared in a pass whose batch was not queued
  ASSERT_TRUE(world.residency.prepare_context(RequestId(2)).has_value());
  world.candidates[1].context_end = 18;
  EXPECT_EQ(world.pass(), "g1+0") << "it has nothing to compute again";
  EXPECT_FALSE(world.is_active(2));
}

TEST(SchedulerRecompute, NobodyElderGivesUpAnything) {
  World world({}, without_host(20));
  world.add_talking(1, 10);
  world.add_talking(2, 9);
  world.add_talking(3, 1);
  EXPECT_EQ(world.pass(), "g1+0 r3") << "2 wants one more page, which only 1 could give";
  EXPECT_TRUE(world.is_active(2));
}

}  // namespace
}  // namespace slackwater::scheduler
