// Configuration, budgets, outputs, and the end of a pass. Pages hold one token here, so that rooms
// and tokens are the same numbers.

#include "slackwater/scheduler/scheduler.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "scheduler/scheduler_test_support.h"
#include "testing/allocation_counter.h"

namespace slackwater::scheduler {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(SchedulerConfig, RefusesBeams) {
  SchedulerConfig config;
  config.beam_width = 2;
  EXPECT_EQ(validate(config).error().code(), ErrorCode::kUnimplemented);
  config.beam_width = 0;
  EXPECT_EQ(validate(config).error().code(), ErrorCode::kInvalidArgument);
}

TEST(SchedulerConfig, RefusesWhatCanNeverMoveAndNamesFieldValueAndLimit) {
  struct Case {
    SchedulerConfig config;
    const char* text;
  };
  const Case cases[] = {
      {{.max_num_tokens = 0}, "max_num_tokens is 0; at least 1"},
      {{.max_batch_size = 0}, "max_batch_size is 0; at least 1"},
      {{.chunk_unit = 0}, "chunk_unit is 0; at least 1"},
      {{.max_idle_passes = -3}, "max_idle_passes is -3; at least 1"},
      {{.chunk_unit = 32, .max_context_length = 31}, "max_context_length is 31; at least chunk_un"},
      {{.max_num_tokens = 31, .chunk_unit = 32}, "max_num_tokens is 31, less than chunk_unit"},
  };
  for (const Case& bad : cases) {
    const Result<void> refused = validate(bad.config);
    ASSERT_FALSE(refused.has_value()) << bad.text;
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().text(), HasSubstr(bad.text));
  }
  EXPECT_TRUE(validate({}).has_value());
  // Whoever does not cut has no use for units.
  EXPECT_TRUE(validate({.max_num_tokens = 31, .enable_chunked_prefill = false}).has_value());
}

TEST(SchedulerBudget, PlentyOfRoomRunsEverybody) {
  World world;
  world.add_prompt(1, 40);
  world.add_talking(2, 7, 3);
  world.add_prompt(3, 5);
  world.add_talking(4, 9);
  EXPECT_EQ(world.pass(), "c1@0+40. c3@0+5. g2+3 g4+0");
  EXPECT_EQ(world.decided.num_tokens, 50);
}

TEST(SchedulerBudget, AnExactFitFits) {
  World world({.max_num_tokens = 44, .max_batch_size = 2, .chunk_unit = 4});
  world.add_talking(1, 7, 3);
  world.add_prompt(2, 40);
  EXPECT_EQ(world.pass(), "c2@0+40. g1+3");
  EXPECT_EQ(world.decided.num_tokens, 44);
}

TEST(SchedulerBudget, ABatchHasItsRequestsAndNoMore) {
  World world({.max_batch_size = 3});
  for (std::uint64_t id = 1; id <= 2; ++id) world.add_talking(id, 7);
  for (std::uint64_t id = 3; id <= 4; ++id) world.add_prompt(id, 10);
  EXPECT_EQ(world.pass(), "c3@0+10. g1+0 g2+0");
  for (std::uint64_t id = 5; id <= 6; ++id) world.add_talking(id, 7);
  EXPECT_EQ(world.pass(), "g1+0 g2+0 g5+0") << "who generates comes before who reads";
}

TEST(SchedulerBudget, ARoundCostsItsGoldenTokenAndItsDrafts) {
  World world({.max_num_tokens = 8, .chunk_unit = 4});
  for (std::uint64_t id = 1; id <= 3; ++id) world.add_talking(id, 7, 3);
  EXPECT_EQ(world.pass(), "g1+3 g2+3");
  EXPECT_EQ(world.decided.num_tokens, 8);
}

TEST(SchedulerBudget, ARoundThatDoesNotFitEndsTheGeneratingPhase) {
  World world({.max_num_tokens = 7, .chunk_unit = 1});
  world.add_talking(1, 7, 1);
  world.add_prompt(2, 2);
  world.add_talking(3, 7, 7);
  world.add_talking(4, 7);
  world.add_prompt(5, 2);
  // Only 2 is known to read: the list was left at 3.
  EXPECT_EQ(world.pass(), "c2@0+2. g1+1");
}

TEST(SchedulerBudget, TheFirstRoundOfAPassRunsWithFewerDrafts) {
  World world({.max_num_tokens = 4, .chunk_unit = 4});
  world.add_talking(1, 7, 7).is_in_flight = true;
  world.add_talking(2, 7, 7);
  world.add_talking(3, 7);
  EXPECT_EQ(world.pass(), "g2+3");
  EXPECT_EQ(world.decided.num_tokens, 4);
  World least({.max_num_tokens = 1, .chunk_unit = 1});
  least.add_talking(1, 7, 7);
  EXPECT_EQ(least.pass(), "g1+0");
}

TEST(SchedulerBudget, AContextAndItsDraftsAreOneUnit) {
  const SchedulerConfig whole = {.max_num_tokens = 20, .enable_chunked_prefill = false};
  for (const bool fits : {true, false}) {
    World world(whole);
    world.add_talking(1, 7);
    world.add_prompt(2, 16).num_drafts = fits ? 3 : 4;
    world.add_prompt(3, 1);
    EXPECT_EQ(world.pass(), fits ? "c2@0+16. g1+0" : "g1+0") << "the one that waits is waited for";
    EXPECT_EQ(world.decided.num_tokens, fits ? 20 : 1);
    EXPECT_EQ(world.is_active(2), fits);
  }
}

TEST(SchedulerOutputs, ChunksThatEndNothingComeFirst) {
  World world({.max_num_tokens = 100, .chunk_unit = 8, .max_context_length = 16});
  world.add_prompt(1, 10);
  world.add_prompt(2, 40);
  world.add_prompt(3, 9);
  world.add_prompt(4, 50);
  world.add_prompt(5, 8);
  EXPECT_EQ(world.pass(), "c2@0+16 c4@0+16 c1@0+10. c3@0+9. c5@0+8.");
}

TEST(SchedulerOutputs, APassForgetsTheOneBefore) {
  World world;
  world.add_talking(1, 7, 3);
  EXPECT_EQ(world.pass(), "g1+3");
  EXPECT_EQ(world.pass(), "g1+3");
  EXPECT_EQ(world.decided.num_tokens, 4);
  world.candidates.clear();
  EXPECT_EQ(world.pass(), "");
  EXPECT_TRUE(world.decided.is_empty());
}

TEST(SchedulerState, WhoWantsNothingOrIsInFlightIsPassedOver) {
  World world;
  world.add_talking(1, 7).phase = RequestPhase::kToComplete;
  world.add_talking(2, 7).is_in_flight = true;
  world.add_reading(3, 8, 20).is_in_flight = true;
  world.add_prompt(4, 20).is_in_flight = true;
  world.add_talking(5, 7);
  world.add_talking(6, 7).is_held_back = true;
  world.add_prompt(7, 7).is_held_back = true;
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "g5+0");
  EXPECT_THAT(world.residency.take_calls(),
              ElementsAre(FakeCall{FakeCall::Kind::kAllocate, RequestId(5)}));
}

TEST(SchedulerLoss, IsListedAndConcernsNobodyElse) {
  World world({}, {.host_pages = 10, .host_slots = 4});
  world.add_talking(1, 7);
  world.add_asleep(2, 7);
  world.add_talking(3, 7);
  world.add_prompt(4, 10);
  world.add_prompt(5, 10);
  world.add_prompt(6, 10);
  world.refuse_next(2, FakeCall::Kind::kAllocate, ErrorCode::kDataLoss);
  world.refuse_next(4, FakeCall::Kind::kPrepare, ErrorCode::kDataLoss);
  world.refuse_next(5, FakeCall::Kind::kResize, ErrorCode::kDataLoss);
  world.residency.set_recording(true);
  EXPECT_EQ(world.pass(), "c6@0+10. g1+0 g3+0 l2 l4 l5");
  int num_asked = 0;
  for (const FakeCall& call : world.residency.calls()) {
    if (call.request == RequestId(2) || call.request == RequestId(4)) ++num_asked;
  }
  EXPECT_EQ(num_asked, 2) << "who was lost is not asked again in the pass";
}

TEST(SchedulerLoss, OfTheOldestLetsTheOthersRun) {
  for (const auto call : {FakeCall::Kind::kPrepare, FakeCall::Kind::kResize}) {
    World world;
    world.add_prompt(1, 10);
    world.add_talking(2, 7);
    world.refuse_next(1, call, ErrorCode::kDataLoss);
    EXPECT_EQ(world.pass(), "g2+0 l1");
    EXPECT_EQ(world.pass(), "c1@0+10. g2+0");
  }
}

TEST(SchedulerLoss, IsNoVictimLaterInThePass) {
  World world({}, {.pages = 20, .host_pages = 20, .host_slots = 4});
  world.add_talking(1, 10);
  world.add_talking(2, 10);
  world.refuse_next(1, FakeCall::Kind::kAllocate, ErrorCode::kDataLoss);
  EXPECT_EQ(world.pass(), "g2+0 l1");
}

TEST(SchedulerError, TakesBackWhatThePassHasScheduled) {
  for (const auto call : {FakeCall::Kind::kPrepare, FakeCall::Kind::kResize}) {
    World world;
    world.add_prompt(1, 100);
    world.add_talking(2, 7);
    world.add_reading(3, 8, 20);
    world.add_prompt(4, 10);
    world.add_prompt(5, 10);
    world.refuse_next(5, call, ErrorCode::kUnavailable);
    const Result<void> failed = world.schedule();
    ASSERT_FALSE(failed.has_value());
    EXPECT_EQ(failed.error().code(), ErrorCode::kUnavailable);
    EXPECT_TRUE(world.decided.is_empty());
    EXPECT_EQ(world.decided.num_tokens, 0);
    for (const std::uint64_t begun : {1, 4, 5}) EXPECT_FALSE(world.is_active(begun)) << begun;
    for (const std::uint64_t stays : {2, 3}) EXPECT_TRUE(world.is_active(stays)) << stays;
    EXPECT_EQ(world.pass(), "c1@0+100. c3@8+12. c4@0+10. c5@0+10. g2+0");
  }
}

TEST(SchedulerError, KeepsTheListOfWhoWasSuspended) {
  World world({}, {.pages = 20, .host_pages = 40, .host_slots = 4});
  world.add_talking(1, 10);
  world.add_talking(2, 5);
  world.add_talking(3, 5);
  // There is no room for 1; once 3 is asleep there is. Then 2 meets an error.
  world.refuse_next(2, FakeCall::Kind::kAllocate, ErrorCode::kUnavailable);
  EXPECT_FALSE(world.schedule().has_value());
  EXPECT_EQ(describe(world.decided), "s3");
}

// The one request there is needs more than there is.
World stuck_world(std::int32_t max_idle_passes) {
  World world({.max_idle_passes = max_idle_passes},
              {.pages = 20, .host_pages = 4, .host_slots = 4});
  world.add_prompt(7, 32);
  return world;
}

TEST(SchedulerStuck, SaysSoAfterSoManyPassesAndNamesTheRemedies) {
  World world = stuck_world(3);
  EXPECT_EQ(world.pass(), "");
  EXPECT_EQ(world.pass(), "");
  const Result<void> stuck = world.schedule();
  ASSERT_FALSE(stuck.has_value());
  EXPECT_EQ(stuck.error().code(), ErrorCode::kResourceExhausted);
  for (const char* part :
       {"none of 1 requests could be scheduled in 3 passes", "request 7", "host tier more bytes",
        "max_num_tokens (it is 512)", "fewer or smaller requests"}) {
    EXPECT_THAT(stuck.error().text(), HasSubstr(part));
  }
  EXPECT_FALSE(world.schedule().has_value()) << "until something moves";
  world.residency.change_pools({.pages = 32});
  EXPECT_EQ(world.pass(), "c7@0+32.");
}

TEST(SchedulerStuck, CountsPassesInARowOnly) {
  World world = stuck_world(3);
  for (int round = 0; round < 4; ++round) {
    EXPECT_EQ(world.pass(), "");
    EXPECT_EQ(world.pass(), "");
    world.add_talking(1, 3);
    std::swap(world.candidates[0], world.candidates[1]);
    EXPECT_EQ(world.pass(), "g1+0");
    world.candidates.erase(world.candidates.begin());
    world.residency.free(RequestId(1));
  }
}

TEST(SchedulerStuck, DoesNotCountWhatWaitsForWorkUnderWay) {
  World world = stuck_world(1);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(world.pass(true), "");
  // What is in flight or about to complete is under way, whoever tells.
  world.add_asleep(8, 3).is_in_flight = true;
  EXPECT_EQ(world.pass(), "");
  world.candidates.back().is_in_flight = false;
  world.candidates.back().is_held_back = true;
  world.candidates.back().is_started = false;
  EXPECT_EQ(world.pass(), "");
  world.candidates.back().is_held_back = false;
  world.candidates.back().phase = RequestPhase::kToComplete;
  EXPECT_EQ(world.pass(), "");
  world.candidates.pop_back();
  EXPECT_THAT(world.pass(), HasSubstr("error: stuck"));
}

TEST(SchedulerStuck, NobodyWaitingIsNotStuck) {
  World world({.max_idle_passes = 1});
  for (int i = 0; i < 5; ++i) EXPECT_EQ(world.pass(), "");
}

TEST(SchedulerCost, APassTakesNothingFromTheHeapAfterTheFirst) {
  World world({.max_num_tokens = 4096, .max_batch_size = 64},
              {.pages = 600, .host_pages = 10000, .host_slots = 1000});
  for (std::uint64_t id = 1; id <= 40; ++id) world.add_talking(id, 12, 3);
  for (std::uint64_t id = 41; id <= 80; ++id) world.add_prompt(id, 64);
  ASSERT_TRUE(world.schedule().has_value());
  EXPECT_FALSE(world.decided.suspended.empty());
  EXPECT_FALSE(world.decided.generations.empty());
  const std::int64_t before = num_heap_allocations();
  for (int i = 0; i < 10; ++i) ASSERT_TRUE(world.schedule().has_value());
  EXPECT_EQ(num_heap_allocations(), before);
}

}  // namespace
}  // namespace slackwater::scheduler
