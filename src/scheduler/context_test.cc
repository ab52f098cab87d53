// Contexts: chunks, admissions that fail, and what the oldest of all may ask for.

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
constexpr SchedulerConfig kWhole = {.max_num_tokens = 64, .enable_chunked_prefill = false};
constexpr SchedulerConfig kEights = {
    .max_num_tokens = 64, .chunk_unit = 8, .max_context_length = 32};

// Of a pass that somebody older has part in, so that nobody is the oldest of all.
World& behind_a_talker(World& world) {
  world.add_talking(100, 1);
  return world;
}

TEST(SchedulerChunk, IsRoundedToUnitsUnlessItIsTheLast) {
  World world({.max_num_tokens = 64, .chunk_unit = 8});
  behind_a_talker(world);
  world.add_prompt(1, 20);
  world.add_prompt(2, 100);
  EXPECT_EQ(world.pass(), "c2@0+40 c1@0+20. g100+0") << "of 63, 20 are a whole rest";
  EXPECT_EQ(world.decided.num_tokens, 61);
}

TEST(SchedulerChunk, IsCappedByTheLongestContextOfAStep) {
  World world({.max_num_tokens = 200, .chunk_unit = 8, .max_context_length = 30});
  behind_a_talker(world);
  world.add_prompt(1, 100);
  world.add_reading(2, 70, 100);
  world.add_prompt(3, 31);
  EXPECT_EQ(world.pass(), "c1@0+24 c3@0+24 c2@70+30. g100+0");
}

TEST(SchedulerChunk, NeedsAUnitOfTheBudgetOrAShorterRest) {
  World world({.max_num_tokens = 9, .chunk_unit = 8});
  behind_a_talker(world);
  world.candidates[0].num_drafts = 1;
  world.add_prompt(1, 100);
  world.add_reading(2, 90, 98);
  world.add_reading(3, 90, 97);
  world.add_prompt(4, 7);
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "c3@90+7. g100+1") << "7 are left, and then none";
  // Whoever is not resident is not prepared for nothing.
  EXPECT_THAT(world.residency.take_calls(),
              ElementsAre(FakeCall{FakeCall::Kind::kAllocate, RequestId(100)},
                          FakeCall{FakeCall::Kind::kPrepare, RequestId(2)},
                          FakeCall{FakeCall::Kind::kPrepare, RequestId(3)},
                          FakeCall{FakeCall::Kind::kResize, RequestId(3)}));
  world.candidates.erase(world.candidates.begin() + 3);
  EXPECT_EQ(world.pass(), "c4@0+7. g100+1");
}

TEST(SchedulerChunk, OfNothingIsSkippedAndGivenBack) {
  World world({.max_num_tokens = 17, .chunk_unit = 8, .max_context_length = 8}, with_host(50));
  behind_a_talker(world);
  world.add_prompt(1, 8);
  world.candidates[0].num_drafts = 2;
  // 6 are left for who is on the device and has 20 to go.
  world.add_reading(2, 10, 30);
  world.add_prompt(3, 6);
  EXPECT_EQ(world.pass(), "c1@0+8. c3@0+6. g100+2");
  EXPECT_TRUE(world.is_active(2)) << "it was before";
}

TEST(SchedulerChunk, OnlyTheLastHasRoomForDraftsAsFarAsTheBudgetGoes) {
  World world(kEights);
  behind_a_talker(world);
  world.add_prompt(1, 40).num_drafts = 3;
  world.add_prompt(2, 29).num_drafts = 3;
  EXPECT_EQ(world.pass(), "c1@0+32 c2@0+29. g100+0");
  EXPECT_EQ(world.residency.at(RequestId(1)).capacity, 32);
  EXPECT_EQ(world.residency.at(RequestId(2)).capacity, 31) << "2 of 3 drafts are left";
  EXPECT_EQ(world.decided.num_tokens, 64);
}

TEST(SchedulerChunk, GoesOnWhereTheOneBeforeEnded) {
  World world(kEights);
  behind_a_talker(world);
  world.add_prompt(1, 70, 3);
  for (const char* expected : {"c1@3+32 g100+0", "c1@35+32 g100+0", "c1@67+3. g100+0"}) {
    EXPECT_EQ(world.pass(), expected);
    world.residency.advance(RequestId(1), world.decided.contexts[0].num_tokens);
    world.candidates[1].is_started = true;
  }
}

TEST(SchedulerContext, BeginsAfterWhatIsKnownOfItsTokens) {
  World world(kWhole);
  behind_a_talker(world);
  world.add_prompt(1, 100, 64);
  world.add_prompt(2, 27);
  // The budget is asked for what is left to compute.
  EXPECT_EQ(world.pass(), "c1@64+36. c2@0+27. g100+0");
}

TEST(SchedulerContext, ThatFindsNoPlaceEndsThePhase) {
  for (const SchedulerConfig& config : {kWhole, kEights}) {
    World world(config, {.slots = 2});
    behind_a_talker(world);
    world.add_prompt(1, 8);
    world.add_prompt(2, 8);
    world.add_reading(3, 8, 16).is_in_flight = true;
    world.add_prompt(4, 8);
    EXPECT_EQ(world.pass(), "g100+0") << "both places are taken";
    world.residency.free(RequestId(3));
    world.candidates.erase(world.candidates.begin() + 3);
    EXPECT_EQ(world.pass(), "c1@0+8. g100+0");
  }
}

TEST(SchedulerContext, ThatFindsNoRoomIsPassedOverForASmallerOne) {
  for (const SchedulerConfig& config : {kWhole, kEights}) {
    World world(config, with_host(20));
    behind_a_talker(world);
    world.add_prompt(1, 24);
    world.add_prompt(2, 16);
    EXPECT_EQ(world.pass(), "c2@0+16. g100+0");
    EXPECT_FALSE(world.is_active(1)) << "it has given everything back";
    EXPECT_EQ(world.decided.num_tokens, 17) << "and used no budget";
    EXPECT_EQ(world.residency.at(RequestId(1)).computed, 0);
  }
}

TEST(SchedulerContext, AFailedFirstChunkBeginsAnewTheNextTime) {
  World world(kEights, with_host(20));
  behind_a_talker(world);
  world.add_prompt(1, 40, 16);
  EXPECT_EQ(world.pass(), "g100+0");
  world.residency.at(RequestId(1)).matched = 24;  // somebody published meanwhile
  world.candidates[0].is_in_flight = true;
  world.residency.change_pools({.pages = 60});
  EXPECT_EQ(world.pass(), "c1@24+16.");
}

TEST(SchedulerContext, ThatWasAsleepAndFindsNoRoomSleepsOn) {
  World world(kEights, with_host(20));
  behind_a_talker(world);
  world.residency.place(RequestId(1), 16, false);
  world.candidates.push_back({.request = RequestId(1),
                              .phase = RequestPhase::kContext,
                              .context_end = 30,
                              .is_started = true});
  world.add_prompt(2, 12);
  EXPECT_EQ(world.pass(), "c2@0+12. g100+0 s1") << "it was resumed for nothing";
  EXPECT_FALSE(world.is_active(1));
}

TEST(SchedulerContext, FailureLetsGenerationRunAndGenerationFailureEndsContexts) {
  World world(kEights, with_host(20));
  behind_a_talker(world);
  world.add_prompt(1, 24);
  world.add_talking(2, 3);
  EXPECT_EQ(world.pass(), "g100+0 g2+0") << "1 is before 2 and finds no room";
  World failing(kEights, with_host(20));
  behind_a_talker(failing);
  failing.add_prompt(1, 2);
  failing.add_asleep(2, 19);
  failing.add_prompt(3, 2);
  EXPECT_EQ(failing.pass(), "c1@0+2. g100+0");
}

TEST(SchedulerContext, WithoutAHostTakesFromWhoeverWaitsBehindIt) {
  for (const SchedulerConfig& config : {kWhole, kEights}) {
    World world(config, without_host(20));
    behind_a_talker(world);
    world.add_prompt(1, 10);
    world.add_reading(2, 5, 10);
    world.add_reading(3, 5, 10);
    EXPECT_EQ(world.pass(), "c1@0+10. g100+0 r3") << "and 2 finds no room for its rest";
  }
}

TEST(SchedulerContext, WithoutAHostThatIsStillWithoutRoomEndsThePhase) {
  World world(kEights, without_host(20));
  behind_a_talker(world);
  world.add_reading(1, 8, 16).is_in_flight = true;
  world.add_prompt(2, 15);
  world.add_reading(3, 5, 10);
  world.add_prompt(4, 3);
  EXPECT_EQ(world.pass(), "g100+0 r3");
  EXPECT_FALSE(world.is_active(2));
}

TEST(SchedulerContext, WithAHostTakesFromNobody) {
  World world(kEights, with_host(20));
  behind_a_talker(world);
  world.add_prompt(1, 16);
  world.add_reading(2, 10, 11);
  EXPECT_EQ(world.pass(), "c2@10+1. g100+0");
}

TEST(SchedulerContext, TakesNothingFromWhoRunsInTheSamePass) {
  World world(kEights, without_host(20));
  behind_a_talker(world);
  world.add_prompt(1, 16);
  world.add_talking(2, 10);
  EXPECT_EQ(world.pass(), "g100+0 g2+0");
}

TEST(SchedulerOldest, AContextHasAUnitBeforeTheYoungerGenerate) {
  World world({.max_num_tokens = 10, .max_batch_size = 2, .chunk_unit = 8});
  world.add_prompt(1, 100);
  for (std::uint64_t id = 2; id <= 9; ++id) world.add_talking(id, 7, 1);
  EXPECT_EQ(world.pass(), "c1@0+8 g2+1");
  EXPECT_EQ(world.decided.num_tokens, 10);
}

TEST(SchedulerOldest, AContextHasWhatTheOthersLeaveAsWell) {
  World world(kEights);
  world.add_prompt(1, 100);
  for (std::uint64_t id = 2; id <= 6; ++id) world.add_talking(id, 7, 7);
  EXPECT_EQ(world.pass(), "c1@0+24 g2+7 g3+7 g4+7 g5+7 g6+7");
  EXPECT_EQ(world.decided.num_tokens, 64);
  World last(kEights);
  last.add_prompt(1, 30).num_drafts = 3;
  last.add_talking(2, 7, 7);
  last.add_prompt(3, 90);
  EXPECT_EQ(last.pass(), "c3@0+16 c1@0+30. g2+7");
  EXPECT_EQ(last.residency.at(RequestId(1)).capacity, 33);
  EXPECT_EQ(last.decided.num_tokens, 57);
}

TEST(SchedulerOldest, AContextKeepsItsUnitWhereThereIsNoRoomForMore) {
  World world(kEights, with_host(20));
  world.add_prompt(1, 100);
  world.add_talking(2, 7);
  EXPECT_EQ(world.pass(), "c1@0+8 g2+0");
  EXPECT_EQ(world.decided.num_tokens, 9);
  EXPECT_EQ(world.residency.at(RequestId(1)).capacity, 8);
}

TEST(SchedulerOldest, AContextTakesRoomFromTheYoungestThatGenerate) {
  World world(kEights, with_host(20));
  world.add_prompt(1, 100);
  world.add_talking(2, 4);
  world.add_talking(3, 4);
  world.add_talking(4, 7);
  EXPECT_EQ(world.pass(), "c1@0+8 g2+0 g3+0 s4");
  World none(kEights, without_host(20));
  none.add_prompt(1, 100);
  none.add_talking(2, 4);
  none.add_talking(3, 4);
  none.add_talking(4, 7);
  EXPECT_EQ(none.pass(), "c1@0+8 g2+0 g3+0 r4");
}

TEST(SchedulerOldest, AContextTakesAPlaceToo) {
  World world(kEights, {.slots = 2, .host_pages = 10, .host_slots = 10});
  world.add_prompt(1, 8);
  world.add_talking(2, 4);
  world.add_talking(3, 4);
  EXPECT_EQ(world.pass(), "c1@0+8. g2+0 s3");
  // Room on the host for what two have beside their pages.
  World saves(kEights, {.host_pages = 10, .host_slots = 10, .saves = 2});
  saves.add_prompt(1, 8);
  saves.add_talking(2, 4);
  saves.add_talking(3, 4);
  EXPECT_EQ(saves.pass(), "c1@0+8. s2 r3") << "a save is not given back by a suspend";
}

TEST(SchedulerOldest, AWholePromptIsAdmittedAsOne) {
  World world(kWhole, with_host(100));
  world.add_prompt(1, 60).num_drafts = 7;
  for (std::uint64_t id = 2; id <= 4; ++id) world.add_talking(id, 7);
  EXPECT_EQ(world.pass(), "c1@0+60.") << "the drafts have the last 4 of the budget";
  EXPECT_EQ(world.residency.at(RequestId(1)).capacity, 64);
  World too_long(kWhole);
  too_long.add_prompt(1, 65);
  EXPECT_EQ(too_long.pass(), "");
  EXPECT_FALSE(too_long.is_active(1));
}

TEST(SchedulerOldest, IsTriedWithoutDraftsBeforeItGivesUp) {
  World world(kEights, with_host(20));
  world.add_prompt(1, 18).num_drafts = 3;
  EXPECT_EQ(world.pass(), "c1@0+8") << "more is room for 21";
  World rest(kEights, with_host(20));
  rest.add_reading(1, 16, 20).num_drafts = 3;
  EXPECT_EQ(rest.pass(), "c1@16+4.");
  EXPECT_EQ(rest.decided.num_tokens, 4);
}

TEST(SchedulerOldest, WithoutRoomStopsThePassSoThatWhatIsInFlightComesBack) {
  World world(kEights, without_host(20));
  world.add_prompt(1, 16);
  world.add_talking(2, 9).is_in_flight = true;
  world.add_talking(3, 5);
  world.add_talking(4, 5).is_in_flight = true;
  EXPECT_EQ(world.pass(), "r3") << "8 want more than 20 - 9 - 5";
  EXPECT_FALSE(world.is_active(1));
  world.candidates[1].is_in_flight = world.candidates[3].is_in_flight = false;
  world.candidates.erase(world.candidates.begin() + 2);
  EXPECT_EQ(world.pass(), "c1@0+8 g2+0 r4");
}

TEST(SchedulerOldest, WithoutAPlaceStopsThePass) {
  World world(kEights, {.slots = 1});
  world.add_prompt(1, 16);
  world.add_talking(2, 9).is_in_flight = true;
  world.add_prompt(3, 8);
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "");
  EXPECT_THAT(world.residency.take_calls(),
              ElementsAre(FakeCall{FakeCall::Kind::kPrepare, RequestId(1)}));
}

TEST(SchedulerOldest, InFlightItAsksForNothingAndTheOthersRunAsUsual) {
  World world(kEights, with_host(100));
  world.add_reading(1, 8, 100).is_in_flight = true;
  world.add_prompt(2, 70);
  world.add_talking(3, 7);
  EXPECT_EQ(world.pass(), "c2@0+32 g3+0");
}

TEST(SchedulerOldest, LostWhileItGrowsLeavesTheOthersAsTheyAre) {
  World world(kEights);
  world.add_prompt(1, 100);
  world.add_talking(2, 7);
  // Its unit has been given; the longer chunk is refused.
  struct Later : RequestResidency {
    explicit Later(FakeResidency& of) : fake(of) {}
    Result<std::int64_t> prepare_context(RequestId r) override { return fake.prepare_context(r); }
    Result<void> resize_context(RequestId r, std::int64_t n, std::int32_t d) override {
      if (++calls == 2) fake.refuse_next(r, FakeCall::Kind::kResize, code);
      return fake.resize_context(r, n, d);
    }
    void release_context(RequestId r) override { fake.release_context(r); }
    Result<void> allocate_generation(RequestId r, std::int32_t d) override {
      return fake.allocate_generation(r, d);
    }
    void suspend(RequestId r) override { fake.suspend(r); }
    void recompute(RequestId r) override { fake.recompute(r); }
    bool is_active(RequestId r) const override { return fake.is_active(r); }
    bool can_evict() const override { return fake.can_evict(); }
    FakeResidency& fake;
    int calls = 0;
    ErrorCode code = ErrorCode::kDataLoss;
  } later(world.residency);
  ASSERT_TRUE(world.scheduler.schedule(world.candidates, later, false, world.decided).has_value());
  EXPECT_EQ(describe(world.decided), "g2+0 l1");
  EXPECT_EQ(world.decided.num_tokens, 1);
  later.calls = 0;
  later.code = ErrorCode::kUnavailable;
  EXPECT_FALSE(world.scheduler.schedule(world.candidates, later, false, world.decided).has_value());
  EXPECT_EQ(describe(world.decided), "");
  EXPECT_FALSE(world.is_active(1));
}

}  // namespace
}  // namespace slackwater::scheduler
