// Faults that users of other engines have met, replayed on the manager of hybrid models with other
// numbers each time: positions, lengths and slots that are those of an earlier moment. Each comment
// names the public reports.

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cases/hybrid_cases_support.h"

namespace slackwater::hybrid {
namespace {

using storage::Tier;
using testing::HasSubstr;

// C05, stale numbers after suspend, resize, rewind, rebalance; those of the cache alone are in
// cache_cases_test.cc.
// KB-C05-01 (TensorRT-LLM 13592): a row of the batch before stays on a request while it sleeps, and
// makes its length one too long. A sleeps for some batches and comes back in another row; one token
// more or less than it has is refused, and nothing has changed then.
TEST(C05HybridStaleNumbers, ALengthIsThatOfTheLastRoundWhateverBatchesWentBy) {
  for (const ReplayPlacement placement : kPlacements) {
    for (int asleep = 0; asleep < 3; ++asleep) {
      SCOPED_TRACE(testing::Message() << to_string(placement) << ", " << asleep << " batches");
      World world({.placement = placement});
      Talker a(world, 1, numbers(3, 6));
      Talker c(world, 2, numbers(40, 9));
      a.read_prompt();
      c.read_prompt();
      run_batch(world, {{&a, a.drafts(3, 2)}, {&c, c.drafts(2, 1)}});
      const RequestPosition before = a.position();
      world.suspend(1);
      for (int i = 0; i < asleep; ++i) run_batch(world, {{&c, c.drafts(3, i)}});
      EXPECT_EQ(a.position().kept, before.kept);
      world.resume(1);
      a.make_room();
      EXPECT_EQ(a.position().kept, std::ssize(a.tokens()) - 1);
      for (const std::int64_t off : {-1, 1}) {
        std::vector<BatchRow> rows = {c.drafts(3, 0).row, a.drafts(3, 0).row};
        *rows[1].first_position += off;
        BatchSetup setup;
        const auto refused = world.manager->setup_state_indices(rows, setup);
        ASSERT_FALSE(refused.has_value());
        EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
        EXPECT_THAT(refused.error().text(), HasSubstr("so it goes on at"));
        EXPECT_FALSE(world.manager->state_index(a.id()).has_value());
      }
      run_batch(world, {{&c, c.drafts(3, 3)}, {&a, a.drafts(3, 1)}});
      run_batch(world, {{&a, a.drafts(1, 1)}, {&c, c.drafts(3, 0)}});
      for (const Talker* const who : {&a, &c}) {
        who->expect_says_what_it_says_alone();
        who->expect_page_is_its_own();
      }
      world.manager->audit();
    }
  }
}

// KB-C05-02 (TensorRT-LLM 17387): shrinking a pool that is used lightly fails at its last step, and
// one that is used much leaves somebody behind. From 24 slots to 6 and back with so many requests,
// all of them asleep; slots and what lies beside them follow the pool.
TEST(C05HybridStaleNumbers, APoolThatShrinksTakesWhatLiesBesideItAlong) {
  for (const std::uint64_t num_requests : {2u, 6u, 20u}) {
    SCOPED_TRACE(num_requests);
    WorldOptions options;
    options.placement = ReplayPlacement::kInPool;
    options.num_slots = 6;
    options.num_saves = 24;
    std::int64_t least = 0;
    options.change = [&least](HybridConfig& config) {
      least = config.cache.device_bytes;
      config.cache.device_bytes *= 4;
    };
    World world(options);
    const SlotRegistry& registry = world.manager->replay_state().registry();
    const std::int32_t num_slots = registry.num_slots();
    ASSERT_GE(num_slots, 20);
    std::vector<std::unique_ptr<Talker>> all;
    for (std::uint64_t id = 1; id <= num_requests; ++id) {
      all.push_back(std::make_unique<Talker>(world, id, numbers(static_cast<TokenId>(4 * id), 5)));
      all.back()->read_prompt();
      all.back()->round(3, static_cast<std::int32_t>(id) % 4);
    }
    for (std::uint64_t id = 1; id <= num_requests; ++id) world.suspend(id);
    for (const std::int64_t bytes : {least, 4 * least}) {
      const auto set = world.manager->set_quota(Tier::kDevice, bytes);
      ASSERT_TRUE(set.has_value()) << set.error().text();
      const LayerGroupId group = world.manager->replay_state().layer_group();
      EXPECT_GE(registry.num_slots(), world.manager->kv_cache().room(Tier::kDevice, group).total);
      EXPECT_EQ(registry.num_slots() < num_slots, bytes == least);
      world.manager->audit();
    }
    for (const auto& who : all) {
      world.resume(who->number());
      who->make_room();
      who->round(3, 2);
      who->expect_says_what_it_says_alone();
      who->expect_page_is_its_own();
    }
    world.manager->audit();
  }
}

// KB-C05-05 (TensorRT-LLM 18661, 19120): drafts are given back by another width than they were
// taken, and a length falls below what is committed. Room for `grown` drafts is taken, fewer are
// run, some are accepted, and all that is kept is published; awake or asleep by then, and with a
// draft model whose layers have never run. A round without drafts has no acceptance to wait for,
// and the room may be meant for the next one by then: it stays.
TEST(C05HybridStaleNumbers, RoomThatIsGivenBackIsThatWhichWasTaken) {
  for (const bool has_draft_model : {false, true}) {
    for (std::int32_t grown = 0; grown <= 3; ++grown) {
      for (std::int32_t run = 0; run <= grown; ++run) {
        for (std::int32_t accepted = 0; accepted <= run; ++accepted) {
          World world({.placement = ReplayPlacement::kInPool, .has_draft_model = has_draft_model});
          Talker a(world, 1, numbers(3, 30));
          a.read_prompt();
          const auto publish = [&] {
            const std::int64_t from = a.matched();
            const std::int64_t kept = a.position().kept;
            const auto done = world.manager->publish(
                a.id(), Tokens(a.tokens().begin() + from, a.tokens().begin() + kept), {});
            // What the draft model has not computed is nobody's to reuse.
            EXPECT_EQ(done.has_value(), !has_draft_model);
          };
          publish();
          for (const bool is_asleep : {false, true}) {
            SCOPED_TRACE(testing::Message() << grown << run << accepted << is_asleep);
            const std::int64_t kept = a.position().kept;
            ASSERT_TRUE(world.manager->resize(a.id(), kept + 1 + grown).has_value());
            const std::int32_t right = a.step(a.drafts(run, accepted));
            EXPECT_EQ(right, accepted);
            if (is_asleep) world.suspend(1);
            world.accept(1, right);
            const cache::Sequence& sequence = world.manager->sequence(a.id());
            EXPECT_EQ(a.position().kept, kept + 1 + accepted);
            EXPECT_EQ(sequence.capacity(), run > 0 ? a.position().kept : kept + 1 + grown);
            EXPECT_LE(sequence.history(), sequence.capacity());
            EXPECT_EQ(sequence.num_committed(), has_draft_model ? 0 : kept);
            if (is_asleep) world.resume(1);
            if (is_asleep) world.set_up({});
            publish();
            EXPECT_EQ(sequence.num_committed(), has_draft_model ? 0 : a.position().kept);
            world.manager->audit();
          }
          a.expect_says_what_it_says_alone();
        }
      }
    }
  }
}

// KB-C05-07 (TensorRT-LLM 12306, vllm-ascend 11466): no room for drafts at the greatest length. At
// 61 of 64 tokens three drafts do not fit: the row is refused before anything is touched, one of
// two drafts is run, and so is one of fewer at the very end.
TEST(C05HybridStaleNumbers, DraftsPastTheGreatestLengthAreRefusedBeforeAnythingIsTouched) {
  for (const ReplayPlacement placement : kPlacements) {
    World world({.placement = placement});
    Talker a(world, 1, numbers(3, 61), 70);
    ASSERT_TRUE(world.manager->resize(a.id(), 64).has_value());
    a.step(a.chunk(61));
    const std::vector<std::byte> before = all_bytes_of(world, a.slot());
    BatchSetup setup;
    const BatchRow row = a.drafts(3, 0).row;
    const auto refused = world.manager->setup_state_indices({&row, 1}, setup);
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(refused.error().text(), HasSubstr("up to position 65 in a capacity of 64"));
    EXPECT_EQ(all_bytes_of(world, a.slot()), before);
    world.accept(1, a.step(a.drafts(2, 1)));
    ASSERT_TRUE(world.manager->resize(a.id(), 64).has_value());
    world.accept(1, a.step(a.drafts(0, 0)));
    EXPECT_EQ(a.position().kept, 64);
    a.expect_says_what_it_says_alone();
    a.expect_page_is_its_own();
    world.manager->audit();
  }
}

// KB-C05-09 (vLLM 46595, LMCache 1361): a tracker outside guesses whether slots that it is told of
// are new or more of the old. One that knows nothing but what setups and state_index() say has the
// cache's own after every event: two preemptions, the second before the prompt is read again.
TEST(C05HybridStaleNumbers, WhoFollowsTheSetupsKnowsEverySlot) {
  for (const ReplayPlacement placement : kPlacements) {
    World world({.placement = placement});
    Talker a(world, 1, numbers(3, 40), 56);
    Talker c(world, 2, numbers(40, 9));
    c.read_prompt();
    std::map<RequestId, SlotId> known;
    const auto follow = [&] {
      for (const Talker* const who : {&a, &c}) {
        known.erase(who->id());
        const auto slot = world.manager->state_index(who->id());
        if (slot.has_value()) known[who->id()] = *slot;
        const LayerGroupId group = world.manager->replay_state().layer_group();
        const std::span<const SlotId> own = world.manager->sequence(who->id()).slots(group);
        EXPECT_EQ(known.contains(who->id()), slot.has_value());
        EXPECT_TRUE(!slot.has_value() || *slot == own[0]);
      }
      world.manager->audit();
    };
    const auto preempt = [&](std::int64_t kept) {
      a.restart(kept);
      follow();
      EXPECT_FALSE(known.contains(a.id()));
      c.round(3, 1);
      world.resume(1);
      a.make_room();
      follow();
      EXPECT_FALSE(known.contains(a.id())) << "known before it is set up";
    };
    a.step(a.chunk(40));
    follow();
    preempt(40);
    a.step(a.chunk(17));
    follow();
    preempt(40);
    a.step(a.chunk(25));
    a.read_prompt();
    follow();
    a.round(3, 2);
    follow();
    EXPECT_EQ(known.size(), 2u);
    for (const Talker* const who : {&a, &c}) {
      who->expect_says_what_it_says_alone();
      who->expect_page_is_its_own();
    }
  }
}

}  // namespace
}  // namespace slackwater::hybrid
