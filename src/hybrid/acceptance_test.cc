// How many drafts were kept: said by the device or the host, in time, late, twice, or never.

#include <algorithm>
#include <array>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "hybrid/speaker_test_support.h"

namespace slackwater::hybrid {
namespace {

using testing::HasSubstr;

class AcceptanceTest : public Requirements {};

TEST_P(AcceptanceTest, TheDeviceGoesAheadOfTheHost) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  for (const auto& rounds : {std::vector{3, 1, 2}, {0, 3}, {2, 2, 3, 0}}) {
    for (const std::int32_t right : rounds) speaker.verify_ahead(3, right);
    const RequestPosition at = *world.manager->position(RequestId(1));
    EXPECT_TRUE(at.is_on_device);
    EXPECT_FALSE(at.is_acceptance_pending);
    speaker.read_rounds();
    EXPECT_EQ(world.manager->position(RequestId(1))->kept, speaker.num_tokens() - 1);
    ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
    world.manager->audit();
  }
  speaker.round(2, 1);
  speaker.expect_says_what_it_says_alone();
}

TEST_P(AcceptanceTest, WhatTheDeviceFoundFollowsASuspendedRequest) {
  for (const bool host_reads_while_it_sleeps : {false, true}) {
    World world(options(2));
    Speaker speaker(world, 1, numbers(3, 6));
    Speaker other(world, 2, numbers(50, 6));
    speaker.read_prompt();
    other.read_prompt();
    speaker.verify_ahead(3, 3);
    speaker.verify_ahead(3, 2);
    world.suspend(1);
    Speaker thief(world, 3, numbers(70, 5));
    thief.read_prompt();
    thief.verify_ahead(3, 1);
    if (host_reads_while_it_sleeps) speaker.read_rounds();
    world.suspend(2);
    world.resume(1);
    ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
    speaker.verify_ahead(3, 1);
    speaker.read_rounds();
    thief.read_rounds();
    for (Speaker* const awake : {&speaker, &thief}) awake->expect_says_what_it_says_alone();
    EXPECT_EQ(world.manager->counters().late_acceptances, 0) << "the device knew it in time";
    world.manager->audit();
  }
}

// The device writes where the request was; it was not there any more.
TEST_P(AcceptanceTest, FoundAfterTheSuspendItWaitsForTheHost) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 1);
  const BatchSetup setup = world.verify(1);
  world.suspend(1);
  static const std::int32_t num_accepted_tokens = 2;
  world.manager->record_acceptance(setup, &num_accepted_tokens);
  EXPECT_TRUE(world.manager->position(RequestId(1))->is_acceptance_pending);
  world.resume(1);
  EXPECT_EQ(world.refusal({world.next_row(1)}), ErrorCode::kFailedPrecondition);
  world.accept(1, 1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.set_up({world.next_row(1)});
  EXPECT_EQ(world.device_pending(1), 1);
  EXPECT_EQ(world.manager->counters().late_acceptances, 1);
  world.manager->audit();
}

TEST_P(AcceptanceTest, OfAnotherRoundOrEpochOrOfNobodyIsIgnoredAndCounted) {
  Puppets world(options(2));
  world.enter(1);
  world.verify(1);
  const RequestPosition at = *world.manager->position(RequestId(1));
  const auto tell = [&](std::uint64_t id, std::uint64_t epoch, std::uint64_t round) {
    const Acceptance told{RequestId(id), epoch, round, 2};
    return world.manager->update_resources(std::span(&told, 1)).has_value();
  };
  EXPECT_TRUE(tell(1, at.epoch, at.round + 1));
  EXPECT_TRUE(tell(1, at.epoch + 1, at.round));
  EXPECT_TRUE(tell(9, at.epoch, at.round));
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 3);
  EXPECT_TRUE(world.manager->position(RequestId(1))->is_acceptance_pending);
  EXPECT_TRUE(tell(1, at.epoch, at.round));
  EXPECT_EQ(world.pending(1), 2);
  // Once more: it is settled.
  EXPECT_TRUE(tell(1, at.epoch, at.round));
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 4);
  EXPECT_EQ(world.device_pending(1), 2);
  world.manager->audit();
}

TEST_P(AcceptanceTest, OfMoreThanThereWereChangesNothing) {
  Puppets world(options(3));
  for (const std::uint64_t id : {1, 2}) {
    world.enter(id);
    world.verify(id, 2);
  }
  for (const std::int32_t wrong : {3, -1}) {
    const std::array<Acceptance, 2> told = {Acceptance{RequestId(1), 0, 1, 2},
                                            Acceptance{RequestId(2), 0, 1, wrong}};
    const Result<void> refused = world.manager->update_resources(told);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(
        refused.error().text(),
        HasSubstr(fmt::format("{} drafts accepted in round 1 of request 2, which had 2", wrong)));
    EXPECT_TRUE(world.manager->position(RequestId(1))->is_acceptance_pending);
  }
}

// Each of them is looked at before any of them counts.
TEST_P(AcceptanceTest, OfSeveralRoundsInOneCallIsCheckedWhole) {
  Puppets world(options(2));
  world.enter(1);
  static const std::int32_t found = 2;
  world.manager->record_acceptance(world.verify(1, 3), &found);
  BatchRow row = world.next_row(1, 1);
  row.first_position.reset();
  const BatchSetup second = world.set_up({row});
  world.manager->step_queued(second);
  world.manager->record_acceptance(second, &found);
  std::array<Acceptance, 2> told = {Acceptance{RequestId(1), 0, 1, 1},
                                    Acceptance{RequestId(1), 0, 2, 2}};
  EXPECT_FALSE(world.manager->update_resources(told).has_value());
  EXPECT_EQ(world.kept(1), 6);
  told[1].num_accepted = 1;
  EXPECT_TRUE(world.manager->update_resources(told).has_value());
  EXPECT_EQ(world.kept(1), 6 + 2 + 2);
  EXPECT_EQ(world.device_pending(1), 1);
  world.manager->audit();
}

TEST_P(AcceptanceTest, AFailedStepsRowsComeBackAsContext) {
  Puppets world(options(3));
  for (const std::uint64_t id : {1, 2, 3}) world.enter(id);
  world.round(1, 2, 1);
  const BatchSetup setup = world.set_up({world.next_row(1), world.next_row(2)});
  world.manager->step_queued(setup);
  world.manager->fail_step(setup);
  world.manager->fail_step(setup);
  EXPECT_EQ(world.manager->counters().lost_requests, 2);
  EXPECT_FALSE(world.manager->position(RequestId(1))->is_acceptance_pending);
  BatchSetup next;
  const std::vector<BatchRow> rows = {world.next_row(1), world.next_row(3)};
  ASSERT_TRUE(world.manager->setup_state_indices(rows, next).has_value());
  EXPECT_EQ(next.lost, std::vector<RequestId>{RequestId(1)});
  ASSERT_EQ(next.rows.size(), 1u);
  EXPECT_EQ(next.rows[0].row.request, RequestId(3));
  // It may sleep, and does not wake up as if nothing had been.
  world.suspend(1);
  EXPECT_EQ(world.manager->resume_request(RequestId(1)).error().code(), ErrorCode::kDataLoss);
  const Tokens prompt = numbers(10, 6);
  EXPECT_EQ(world.manager->publish(RequestId(2), prompt, {}).error().code(), ErrorCode::kDataLoss);
  ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.read_prompt(1, 6);
  const Acceptance late{RequestId(1), 0, 2, 1};
  ASSERT_TRUE(world.manager->update_resources(std::span(&late, 1)).has_value());
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 1);
  world.round(1, 1, 2);
  world.manager->audit();
}

// A model of its own proposes; its records count as far as the target says.
TEST_P(AcceptanceTest, ADraftModelKeepsWhatTheTargetKept) {
  for (const bool has_slept : {false, true}) {
    WorldOptions wanted = options(2);
    wanted.has_draft_model = true;
    Puppets world(wanted);
    world.enter(1);
    const auto run_draft = [&](RowKind kind, std::int64_t first, std::int32_t count) {
      BatchSetup setup;
      const std::vector<BatchRow> rows = {{.request = RequestId(1),
                                           .kind = kind,
                                           .first_position = first,
                                           .num_tokens = count,
                                           .num_written = count}};
      const Result<void> done = world.manager->setup_state_indices(rows, "draft", setup);
      ASSERT_TRUE(done.has_value()) << done.error().text();
      world.manager->step_queued(setup);
      if (kind == RowKind::kDraft) {
        EXPECT_TRUE(setup.rows[0].writes.empty());
      }
    };
    run_draft(RowKind::kContext, 0, 6);
    std::int64_t golden = 6;
    std::int64_t drafts_at = 6;  // where the draft model goes on
    for (const std::int32_t accepted : {1, 3, 0, 3, 2}) {
      SCOPED_TRACE(testing::Message() << "round at " << golden << ", " << accepted << " accepted");
      run_draft(RowKind::kGeneration, drafts_at, static_cast<std::int32_t>(golden + 1 - drafts_at));
      for (std::int32_t draft = 1; draft < 3; ++draft) {
        run_draft(RowKind::kDraft, golden + draft, 1);
      }
      world.verify(1);
      if (has_slept) world.suspend(1);
      world.accept(1, accepted);
      if (has_slept) world.resume(1);
      ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
      const std::vector<SlotView> slots = world.manager->view().requests[0].slots;
      EXPECT_EQ(slots[0].num_pending, accepted);
      EXPECT_EQ(slots[1].group_tag, "draft");
      EXPECT_EQ(slots[1].num_pending, std::min(accepted, 2)) << "the last draft was not run";
      EXPECT_EQ(slots[1].page_position, golden + 1);
      golden += 1 + accepted;
      drafts_at = slots[1].page_position + slots[1].num_pending;
      EXPECT_EQ(golden - drafts_at, accepted == 3 ? 1 : 0);
      world.manager->audit();
    }
  }
}

// A suspend folds in what the target had pending, in the middle of the draft model's proposals.
TEST_P(AcceptanceTest, ACommitLeavesTheRecordsOfADraftModelToTheRound) {
  WorldOptions wanted = options(2);
  wanted.has_draft_model = true;
  wanted.suspend_policy = SuspendPolicy::kCommitIfKnown;
  Puppets world(wanted);
  world.enter(1);
  BatchSetup setup;
  const auto run_draft = [&](RowKind kind, std::int64_t first, std::int32_t count) {
    const std::vector<BatchRow> rows = {{.request = RequestId(1),
                                         .kind = kind,
                                         .first_position = first,
                                         .num_tokens = count,
                                         .num_written = count}};
    const Result<void> done = world.manager->setup_state_indices(rows, "draft", setup);
    ASSERT_TRUE(done.has_value()) << done.error().text();
    world.manager->step_queued(setup);
  };
  run_draft(RowKind::kContext, 0, 6);
  run_draft(RowKind::kGeneration, 6, 1);
  world.verify(1);
  world.accept(1, 2);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  run_draft(RowKind::kGeneration, 7, 3);
  run_draft(RowKind::kDraft, 10, 1);
  world.suspend(1);
  EXPECT_EQ(world.manager->counters().commits, 1);
  world.resume(1);
  run_draft(RowKind::kDraft, 11, 1);
  EXPECT_EQ(setup.rows[0].num_pending, 1);
  world.manager->audit();
}

// Between the setup and the step nothing else is done with a request: what the row begins with has
// changed then.
TEST_P(AcceptanceTest, ASetupIsStaleOnceSomethingElseIsDone) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 50);
  const BatchSetup folded = world.set_up({World::verify_row(1, 9, 1)});
  EXPECT_TRUE(world.manager->is_current(folded));
  ASSERT_TRUE(world.manager->commit_pending(RequestId(1)).has_value());
  EXPECT_FALSE(world.manager->is_current(folded));
  EXPECT_DEATH(world.manager->step_queued(folded), "after something else was done");
  const BatchSetup slept = world.set_up({World::verify_row(1, 9, 1)});
  world.suspend(1);
  EXPECT_FALSE(world.manager->is_current(slept));
  world.resume(1);
  EXPECT_FALSE(world.manager->is_current(slept));
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  const BatchSetup anew = world.set_up({World::verify_row(1, 9, 1)});
  EXPECT_TRUE(world.manager->is_current(anew));
  world.manager->step_queued(anew);
  EXPECT_FALSE(world.manager->is_current(anew));
}

// The room of a row that is set up stays, whatever the host learns of the round before.
TEST_P(AcceptanceTest, ARowThatIsSetUpAheadKeepsItsRoom) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.verify_ahead(3, 1);
  BatchRow ahead = World::verify_row(1, 0, 3);
  ahead.first_position.reset();
  const BatchSetup setup = world.set_up({ahead});
  speaker.read_rounds();
  EXPECT_GE(world.manager->sequence(RequestId(1)).capacity(), 8 + 4);
  EXPECT_TRUE(world.manager->is_current(setup));
}

// A round without drafts behind one of the device's has nothing to be told.
TEST_P(AcceptanceTest, ARoundWithoutDraftsAheadOfTheHostIsSettledWithTheOneBefore) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.verify_ahead(3, 2);
  speaker.verify_ahead(0, 0);
  const Acceptance first{RequestId(1), 0, 1, 2, false};
  ASSERT_TRUE(world.manager->update_resources({&first, 1}).has_value());
  const RequestPosition at = *world.manager->position(RequestId(1));
  EXPECT_FALSE(at.is_on_device);
  EXPECT_EQ(at.kept, 10);
  const Acceptance second{RequestId(1), 0, 2, 0, false};
  ASSERT_TRUE(world.manager->update_resources({&second, 1}).has_value());
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 0);
  world.manager->audit();
}

// A stop found on the device: what was queued behind it only folds in what was kept.
TEST_P(AcceptanceTest, RoundsBehindAStopFoldInWhatWasKept) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.verify_ahead(3, 2);
  BatchRow ahead = World::verify_row(1, 0, 3);
  ahead.first_position.reset();
  const BatchSetup setup = world.set_up({ahead});
  ReplayState& state = world.manager->replay_state();
  // The device knows that it has ended: no token is run.
  const auto none = std::make_shared<std::int32_t>(0);
  for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
    world.context.enqueue(
        *world.stream, [pages = state.pages(layer), &state, records = state.records(layer),
                        slot = setup.rows[0].slot, &world](kernels::ExecutionContext& on) {
          const kernels::StateWrite write{.count = 0, .page = slot};
          kernels::SequenceRow row;
          row.first_position = 1 << 20;
          row.state_page = slot;
          row.num_pending = *state.pending(slot);
          row.writes = {&write, 1};
          kernels::KdaStepArgs args;
          args.num_heads = state.shape().num_heads;
          args.head_dim = state.shape().head_dim;
          args.qkv_stride = args.decay_stride = args.o_stride = state.shape().width();
          args.beta_stride = state.shape().num_heads;
          args.pages = pages;
          args.records = records;
          args.rows = {&row, 1};
          kernels::kda_step(on, args);
          return true;
        });
  }
  world.manager->step_queued(setup);
  world.manager->record_acceptance(setup, none.get());
  const Acceptance stop{RequestId(1), 0, 1, 2, true};
  ASSERT_TRUE(world.manager->update_resources({&stop, 1}).has_value());
  const RequestPosition at = *world.manager->position(RequestId(1));
  EXPECT_EQ(at.kept, 9);
  EXPECT_EQ(at.page_position, 9);
  EXPECT_EQ(at.num_pending, 0);
  EXPECT_FALSE(at.is_on_device);
  world.manager->audit();
}

// Tokens that a draft model has folded in cannot be given up by the target alone.
TEST_P(AcceptanceTest, WhatADraftModelHasFoldedInIsNotTakenBack) {
  WorldOptions wanted = options(2);
  wanted.has_draft_model = true;
  Puppets world(wanted);
  world.enter(1);
  BatchSetup setup;
  const auto run_draft = [&](std::int64_t first, std::int32_t count) {
    const std::vector<BatchRow> rows = {{.request = RequestId(1),
                                         .kind = RowKind::kGeneration,
                                         .first_position = first,
                                         .num_tokens = count,
                                         .num_written = count}};
    const Result<void> done = world.manager->setup_state_indices(rows, "draft", setup);
    ASSERT_TRUE(done.has_value()) << done.error().text();
    world.manager->step_queued(setup);
  };
  run_draft(0, 6);
  world.verify(1);
  world.accept(1, 3);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  run_draft(6, 5);
  EXPECT_EQ(world.manager->position(RequestId(1), "draft")->page_position, 11);
  const Result<void> done = world.manager->commit_pending(RequestId(1), 1);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_THAT(done.error().text(), HasSubstr("the model of tag 'draft' has run to 11"));
  const std::vector<BatchRow> back = {World::context_row(1, 7, 2)};
  const Result<void> rewound = world.manager->setup_state_indices(back, setup);
  ASSERT_FALSE(rewound.has_value());
  EXPECT_EQ(rewound.error().code(), ErrorCode::kFailedPrecondition);
  EXPECT_TRUE(world.manager->commit_pending(RequestId(1)).has_value());
  world.manager->audit();
}

// Nothing is computed past what is kept.
TEST_P(AcceptanceTest, AHistoryPastWhatIsKeptIsRefused) {
  Puppets world(options(2));
  world.enter(1);
  const Result<void> done = world.manager->resize(RequestId(1), 60, 7);
  ASSERT_FALSE(done.has_value());
  EXPECT_EQ(done.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(done.error().text(), HasSubstr("7 tokens of request 1, of which 6"));
  EXPECT_TRUE(world.manager->resize(RequestId(1), 60, 6).has_value());
}

TEST_P(AcceptanceTest, ADraftModelsRowNeedsItsPosition) {
  WorldOptions wanted = options(2);
  wanted.has_draft_model = true;
  Puppets world(wanted);
  world.enter(1);
  BatchSetup setup;
  std::vector<BatchRow> rows = {World::context_row(1, 0, 6)};
  ASSERT_TRUE(world.manager->setup_state_indices(rows, "draft", setup).has_value());
  world.manager->step_queued(setup);
  static const std::int32_t found = 2;
  world.manager->record_acceptance(world.verify(1), &found);
  rows = {world.next_row(1, 0)};
  rows[0].first_position.reset();
  const Result<void> refused = world.manager->setup_state_indices(rows, "draft", setup);
  ASSERT_FALSE(refused.has_value());
  EXPECT_THAT(refused.error().text(), HasSubstr("layers of 'draft' without a position"));
}

TEST_P(AcceptanceTest, RowsBeginWhereTheirPagesAndDraftsEnd) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 1);
  for (const std::int64_t wrong : {0, 7, 8, 10}) {
    EXPECT_EQ(world.refusal({World::verify_row(1, wrong, 1)}), ErrorCode::kInvalidArgument);
  }
  EXPECT_EQ(world.refusal({World::context_row(1, 9, 1)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.refusal({World::verify_row(1, 9, 4)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.refusal({world.next_row(1), world.next_row(1)}), ErrorCode::kInvalidArgument);
  EXPECT_EQ(world.refusal({World::verify_row(7, 9, 1)}), ErrorCode::kNotFound);
  EXPECT_EQ(world.device_pending(1), 2);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 11).has_value());
  EXPECT_EQ(world.refusal({world.next_row(1, 2)}), ErrorCode::kInvalidArgument) << "no room";
  world.set_up({world.next_row(1, 1)});
}

TEST_P(AcceptanceTest, CommitIfKnownFoldsInWhatIsKnown) {
  WorldOptions wanted = options(2);
  wanted.suspend_policy = SuspendPolicy::kCommitIfKnown;
  World world(wanted);
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 2);
  EXPECT_EQ(world.manager->position(RequestId(1))->num_pending, 2);
  world.suspend(1);
  EXPECT_EQ(world.manager->position(RequestId(1))->num_pending, 0);
  EXPECT_EQ(world.manager->counters().commits, 1);
  const std::int64_t without_records = world.manager->counters().bytes_saved;
  world.resume(1);
  // Not set up: nothing to fold, and no reason to refuse.
  world.suspend(1);
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  speaker.verify(3, 1);
  world.suspend(1);
  EXPECT_EQ(world.manager->counters().commits, 1) << "nobody knows how many yet";
  if (!is_in_pool()) {
    EXPECT_GT(world.manager->counters().bytes_saved, 2 * without_records);
  }
  speaker.accept();
  for (int i = 0; i < 2; ++i) {
    world.resume(1);
    world.suspend(1);
  }
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  speaker.round(3, 3);
  speaker.round(1, 0);
  speaker.expect_says_what_it_says_alone();
  world.manager->audit();
}

INSTANTIATE_TEST_SUITE_P(Placements, AcceptanceTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
