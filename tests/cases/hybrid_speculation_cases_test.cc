// Faults that users of other engines have met, replayed on the manager of hybrid models with other
// numbers each time: drafts that are accepted, rejected and taken back. Each comment names the
// public reports.

#include <algorithm>
#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cases/hybrid_cases_support.h"

namespace slackwater::hybrid {
namespace {

using testing::HasSubstr;

// C14, speculative accept, reject, rewind: after any sequence of them, state and records are those
// of plain decoding of the same tokens.
// KB-C14-01 (vLLM 39273, 52942): a step without drafts reads another state than the round before
// has left. All pairs of rounds of 0 to 3 drafts, of which any number is accepted, asleep between
// them or not.
TEST(C14HybridSpeculation, ARoundFollowsAnyOtherWithAnyNumberOfDrafts) {
  for (const ReplayPlacement placement : kPlacements) {
    World world({.placement = placement, .tokens_per_request = 112});
    std::uint64_t id = 0;
    for (std::int32_t first = 0; first <= 3; ++first) {
      for (std::int32_t right = 0; right <= first; ++right) {
        for (const bool sleeps : {false, true}) {
          ++id;
          Talker a(world, id, numbers(static_cast<TokenId>(id), 5), 100);
          a.read_prompt();
          for (std::int32_t second = 0; second <= 3; ++second) {
            for (std::int32_t again = 0; again <= second; ++again) {
              SCOPED_TRACE(testing::Message() << first << right << second << again << sleeps);
              a.round(first, right);
              a.expect_page_is_its_own();
              if (sleeps) world.suspend(id);
              if (sleeps) world.resume(id);
              a.round(second, again);
              a.expect_page_is_its_own();
            }
          }
          a.expect_says_what_it_says_alone();
          world.manager->audit();
          world.manager->free_resources(a.id());
        }
      }
    }
  }
}

// What `who` has said so far becomes reusable, with the state at its end.
std::int64_t publish_all(World& world, Talker& who) {
  const std::int64_t kept = who.position().kept;
  PublishOptions options;
  options.written = world.stream->record();
  options.with_snapshot = true;
  const auto done = world.manager->publish(
      who.id(), Tokens(who.tokens().begin() + who.matched(), who.tokens().begin() + kept), options);
  EXPECT_TRUE(done.has_value()) << done.error().text();
  world.manager->synchronize();
  who.make_room();
  return kept;
}

// KB-C14-03 (SGLang 32852): a snapshot that was just taken is written over by the next round. One
// is taken after every round, with drafts pending; all of them still are what they were when the
// request has gone on, and so is what lies beside its slot, which the page has left behind.
TEST(C14HybridSpeculation, ASnapshotStaysWhatItIsWhenTheRequestGoesOn) {
  for (const ReplayPlacement placement : kPlacements) {
    WorldOptions options;
    options.placement = placement;
    options.change = [](HybridConfig& config) { config.cache.device_bytes *= 4; };
    World world(options);
    Talker a(world, 1, numbers(3, 6));
    a.read_prompt();
    std::vector<std::int64_t> taken;
    for (const std::int32_t right : {3, 1, 2, 0, 3}) {
      a.round(3, right);
      taken.push_back(publish_all(world, a));
    }
    a.round(3, 2);
    a.round(3, 3);
    a.expect_says_what_it_says_alone();
    a.expect_page_is_its_own();
    EXPECT_GT(world.manager->counters().relocations, 0);
    std::uint64_t id = 10;
    for (const std::int64_t end : taken) {
      SCOPED_TRACE(end);
      // Up to there it is the same.
      Tokens prompt(a.tokens().begin(), a.tokens().begin() + end);
      const TokenId next = a.tokens()[static_cast<std::size_t>(end)];
      prompt.push_back((next + 1) % KdaModel::kVocabulary);
      Talker c(world, ++id, prompt);
      EXPECT_EQ(c.matched(), end);
      world.set_up({c.chunk(1).row});
      c.expect_page_is_after(end);
      c.read_prompt();
      c.round(3, 1);
      c.expect_says_what_it_says_alone();
      world.manager->free_resources(c.id());
    }
    world.manager->audit();
  }
}

// KB-C14-05 (llama.cpp 28007, 28425): a state cannot be trimmed, the refusal is ignored, and
// attention is trimmed alone. To go back behind the page is refused, and both are where they were;
// a restart goes on from the best snapshot before.
TEST(C14HybridSpeculation, GoingBackIsRefusedAndRestartsFromTheBestSnapshotBefore) {
  for (const ReplayPlacement placement : kPlacements) {
    for (const std::int64_t back_to : {7, 12, 13, 16}) {
      SCOPED_TRACE(back_to);
      WorldOptions options;
      options.placement = placement;
      options.change = [](HybridConfig& config) { config.cache.device_bytes *= 4; };
      World world(options);
      Talker a(world, 1, numbers(3, 6));
      a.read_prompt();
      a.round(3, 2);
      a.round(2, 2);
      ASSERT_EQ(publish_all(world, a), 12);
      a.round(3, 3);
      a.round(3, 2);
      ASSERT_EQ(a.position().kept, 19);
      const std::vector<std::byte> before = all_bytes_of(world, a.slot());
      for (const RowKind kind : {RowKind::kContext, RowKind::kGeneration}) {
        BatchRow row = a.drafts(1, 0).row;
        row.kind = kind;
        row.first_position = back_to;
        BatchSetup setup;
        const auto refused = world.manager->setup_state_indices({&row, 1}, setup);
        ASSERT_FALSE(refused.has_value());
        EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(refused.error().text(), HasSubstr("restart it to begin elsewhere"));
      }
      EXPECT_EQ(all_bytes_of(world, a.slot()), before);
      EXPECT_EQ(a.position().kept, 19);
      EXPECT_EQ(world.manager->sequence(a.id()).num_committed(), 12);
      a.restart(back_to);
      EXPECT_EQ(a.matched(), back_to > 12 ? 12 : 0);
      world.resume(1);
      a.make_room();
      a.read_prompt();
      a.round(3, 2);
      a.expect_says_what_it_says_alone();
      a.expect_page_is_its_own();
      world.manager->audit();
    }
  }
}

// KB-C14-06 (vLLM 55178): the last token of a prompt is padded to the rows of those who draft, and
// its state is that after the padding. Rows are ragged here: beside three drafts of another request
// a tail of 1 to 4 tokens ends exactly where it ends.
TEST(C14HybridSpeculation, APromptsTailBesideDraftsEndsWhereItEnds) {
  for (const ReplayPlacement placement : kPlacements) {
    for (std::int64_t tail = 1; tail <= 4; ++tail) {
      SCOPED_TRACE(tail);
      World world({.placement = placement, .num_dummies = 1});
      Talker a(world, 1, numbers(3, 6));
      Talker c(world, 2, numbers(40, 9));
      a.read_prompt();
      a.round(3, 2);
      c.step(c.chunk(9 - tail));
      BatchSetup setup;
      run_batch(world, {{&c, c.chunk(tail)}, {&a, a.drafts(3, 1)}}, setup);
      EXPECT_EQ(c.position().kept, 9);
      EXPECT_EQ(c.position().num_pending, 0);
      c.expect_page_is_after(9);
      run_batch(world, {{&a, a.drafts(0, 0)}, {&c, c.drafts(3, 3)}}, setup);
      run_batch(world, {{&a, a.drafts(3, 3)}, {&c, c.drafts(1, 0)}}, setup);
      for (const Talker* const who : {&a, &c}) {
        who->expect_says_what_it_says_alone();
        who->expect_page_is_its_own();
      }
      world.manager->audit();
    }
  }
}

// KB-C14-08 (SGLang 19415): what a long chunk of a prompt has set stays on the batch, and the
// verify step uses it. A chunk of 40 tokens with snapshots on its way, then rounds with the same
// BatchSetup: only the row's own page is written, at its own count.
TEST(C14HybridSpeculation, NothingOfALongChunkIsLeftInTheSetupOfARound) {
  for (const ReplayPlacement placement : kPlacements) {
    WorldOptions options;
    options.placement = placement;
    options.change = [](HybridConfig& config) { config.cache.device_bytes *= 4; };
    World world(options);
    Talker a(world, 1, numbers(3, 41));
    for (const std::int64_t at : {8, 21, 40}) {
      ASSERT_TRUE(world.manager->reserve_snapshot(a.id(), at).has_value());
    }
    BatchSetup setup;
    run_batch(world, {{&a, a.chunk(41)}}, setup);
    ASSERT_EQ(setup.rows[0].writes.size(), 4u);
    for (const std::int32_t drafts : {3, 0, 2}) {
      run_batch(world, {{&a, a.drafts(drafts, drafts)}}, setup);
      ASSERT_EQ(setup.rows[0].writes.size(), 1u);
      EXPECT_EQ(setup.rows[0].writes[0].count, 1);
      EXPECT_EQ(setup.rows[0].writes[0].page, a.slot());
      EXPECT_EQ(setup.rows[0].row.num_tokens, 1 + drafts);
    }
    a.expect_says_what_it_says_alone();
    a.expect_page_is_its_own();
    world.manager->audit();
  }
}

// KB-C14-10 (vLLM 39562, 43382): fewer drafts than in the step before, and a count of slots that
// was thought to grow only. From 7 drafts to none and back around every boundary of blocks of 4,
// with as much room as each round asks for.
TEST(C14HybridSpeculation, DraftsMayBecomeFewerAndMoreAroundABoundary) {
  for (const ReplayPlacement placement : kPlacements) {
    for (std::int64_t prompt = 2; prompt <= 6; ++prompt) {
      SCOPED_TRACE(prompt);
      World world({.placement = placement, .max_drafts = 7});
      Talker a(world, 1, numbers(3, prompt));
      a.read_prompt();
      for (const std::int32_t drafts : {7, 0, 7, 0, 0, 5, 1, 7}) {
        const std::int64_t kept = a.position().kept;
        ASSERT_TRUE(world.manager->resize(a.id(), kept + 1 + drafts).has_value());
        const std::int32_t right = a.step(a.drafts(drafts, drafts / 2));
        EXPECT_EQ(right, drafts / 2);
        world.accept(1, right);
        EXPECT_EQ(world.manager->sequence(a.id()).capacity(), a.position().kept);
        EXPECT_EQ(world.manager->sequence(a.id()).num_blocks(), (a.position().kept + 3) / 4);
        a.expect_page_is_its_own();
        world.manager->audit();
      }
      a.expect_says_what_it_says_alone();
    }
  }
}

// KB-C14-11 (vLLM 46899, 40768): drafts of a step that a request was left out of are taken for real
// ones later. No draft is kept here: a batch that is set up and not queued has left nothing, and
// another one runs others. The scheduler must forget the drafts of whom it leaves out.
TEST(C14HybridSpeculation, ABatchThatIsNotQueuedLeavesNoDraftsBehind) {
  for (const ReplayPlacement placement : kPlacements) {
    World world({.placement = placement});
    Talker a(world, 1, numbers(3, 6));
    Talker c(world, 2, numbers(40, 9));
    a.read_prompt();
    c.read_prompt();
    a.round(3, 2);
    world.suspend(1);
    c.round(3, 1);
    world.resume(1);
    a.make_room();
    const RequestPosition before = a.position();
    for (const std::int32_t drafts : {3, 1, 2}) {
      world.set_up({a.drafts(drafts, 0).row, c.drafts(3, 0).row});
      c.round(2, 2);
      EXPECT_EQ(a.position().kept, before.kept);
      EXPECT_EQ(a.position().num_pending, before.num_pending);
      EXPECT_EQ(a.position().round, before.round);
      world.suspend(1);
      world.resume(1);
      a.make_room();
    }
    a.round(1, 1);
    a.round(3, 3);
    for (const Talker* const who : {&a, &c}) {
      who->expect_says_what_it_says_alone();
      who->expect_page_is_its_own();
    }
    world.manager->audit();
  }
}

// KB-C14-12 (vLLM 48245, 47900, 49620): a request is preempted with steps in flight, and what they
// say is counted against what it has become. Two rounds are in flight, the second on what the first
// accepts on the device; the request is preempted, comes back, and is preempted again before the
// first of them ends. Their acceptances are of another epoch: ignored, and counted.
TEST(C14HybridSpeculation, ResultsOfAnEarlierLifeAreIgnoredAndCounted) {
  for (const ReplayPlacement placement : kPlacements) {
    for (std::int32_t right = 0; right <= 3; ++right) {
      SCOPED_TRACE(right);
      World world({.placement = placement});
      Talker a(world, 1, numbers(3, 6));
      a.read_prompt();
      a.round(3, 1);
      const std::int64_t kept = a.position().kept;
      device::EventSource gate = world.device->make_event("the test");
      world.stream->wait(gate.event());
      const std::int32_t golden_and_accepted = 1 + right;
      std::vector<Acceptance> late;
      for (int round = 0; round < 2; ++round) {
        Talker::Share share = a.drafts(3, right);
        if (round > 0) share.row.first_position.reset();
        const BatchSetup setup = world.set_up({share.row});
        world.step(setup, {share.tokens});
        world.manager->record_acceptance(setup, &golden_and_accepted);
        late.push_back({a.id(), setup.rows[0].epoch, setup.rows[0].round, right});
      }
      for (int life = 0; life < 2; ++life) {
        a.restart(kept + 1);
        world.resume(1);
        a.make_room();
        EXPECT_EQ(a.position().kept, a.matched());
      }
      const std::int64_t ignored = world.manager->counters().ignored_acceptances;
      ASSERT_TRUE(world.manager->update_resources(late).has_value());
      EXPECT_EQ(world.manager->counters().ignored_acceptances, ignored + 2);
      EXPECT_EQ(a.position().kept, a.matched());
      EXPECT_EQ(a.position().num_pending, 0);
      gate.complete(device::EventStatus::kSucceeded);
      a.read_prompt();
      // Said again while a round of the new life awaits its own.
      const std::int32_t accepted = a.step(a.drafts(3, 2));
      ASSERT_TRUE(world.manager->update_resources(late).has_value());
      EXPECT_EQ(world.manager->counters().ignored_acceptances, ignored + 4);
      EXPECT_TRUE(a.position().is_acceptance_pending);
      world.accept(1, accepted);
      a.make_room();
      a.round(2, 0);
      a.expect_says_what_it_says_alone();
      a.expect_page_is_its_own();
      world.manager->audit();
    }
  }
}

}  // namespace
}  // namespace slackwater::hybrid
