// Faults that users of other engines have met, replayed on the manager of hybrid models with other
// numbers each time: whose state a slot holds. Each comment names the public reports.

#include <algorithm>
#include <cstring>
#include <memory>
#include <numeric>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cases/hybrid_cases_support.h"

namespace slackwater::hybrid {
namespace {

using storage::Tier;

// C01, state identity after slot reuse: a slot that changes owner carries nothing over.
// KB-C01-01 (vLLM 56524): slots of states are handed out as they were left. One slot; its owner
// leaves with drafts pending, and everything in it is a NaN when the next one comes.
TEST(C01HybridIdentity, WhoGetsASlotBeginsWithNothingOfItsFormerOwner) {
  for (const ReplayPlacement placement : kPlacements) {
    for (std::int32_t pending = 0; pending <= 3; ++pending) {
      SCOPED_TRACE(testing::Message() << to_string(placement) << ", " << pending << " pending");
      World world({.placement = placement, .num_slots = 1});
      Talker a(world, 1, numbers(3, 6));
      a.read_prompt();
      a.round(3, pending);
      const SlotId slot = a.slot();
      world.manager->free_resources(a.id());
      world.manager->synchronize();
      ReplayState& state = world.manager->replay_state();
      EXPECT_EQ(*state.pending(slot), pending);
      for (std::size_t layer = 0; layer < 2; ++layer) {
        std::memset(layer_address(state.table(layer, kSsmState), slot), 0xFF,
                    static_cast<std::size_t>(state.shape().state_bytes()));
        std::memset(layer_address(state.table(layer, kConvState), slot), 0xFF,
                    static_cast<std::size_t>(state.shape().window_bytes()));
        for (const RecordBuffer& buffer : record_buffers(state.shape(), 3, 0)) {
          std::memset(layer_address(state.table(layer, buffer.name), slot), 0xFF,
                      static_cast<std::size_t>(buffer.bytes_per_layer));
        }
      }
      Talker c(world, 2, numbers(50, 4));
      c.step(c.chunk(1 + pending % 3));
      ASSERT_EQ(c.slot(), slot);
      world.manager->synchronize();
      EXPECT_EQ(*state.pending(slot), 0);
      c.expect_page_is_its_own();
      c.read_prompt();
      c.round(3, 2);
      c.round(2, 1);
      c.expect_says_what_it_says_alone();
      c.expect_page_is_its_own();
      world.manager->audit();
    }
  }
}

// A pool whose slots hold a page of attention or a state, as it comes.
std::unique_ptr<World> world_of_shared_slots(ReplayPlacement placement, std::int64_t num_slots) {
  WorldOptions options;
  options.placement = placement;
  options.num_slots = 2;
  const World probe(options);
  const auto& groups = probe.manager->kv_cache().layer_groups();
  const LayerGroupId states = probe.manager->replay_state().layer_group();
  const std::int64_t page_bytes = groups.group(states).page_bytes;
  options.change = [page_bytes, num_slots](HybridConfig& config) {
    config.cache.layers[0].buffers[0].bytes = page_bytes;
    config.cache.constraints.clear();
    config.cache.device_bytes = num_slots * page_bytes;
    config.cache.host_bytes = 0;
  };
  return std::make_unique<World>(options);
}

// KB-C01-02 (vLLM 35219): what a state leaves in a slot is no number for attention, and the other
// way round. Slots go from one kind to the other; pages of attention are filled with NaN. That
// attention reads no row past a length is for the kernel to show (Mla tests, with NaN padding).
TEST(C01HybridIdentity, ASlotThatWasAPageOfAttentionHoldsNothingForAState) {
  for (const ReplayPlacement placement : kPlacements) {
    const auto world = world_of_shared_slots(placement, 8);
    cache::KvCacheManager& cache = world->manager->kv_cache();
    const LayerGroupId states = world->manager->replay_state().layer_group();
    std::set<SlotId> of_states, of_attention;
    for (std::uint64_t turn = 0; turn < 6; ++turn) {
      // With 4 tokens a block, five blocks of attention and a state.
      Talker a(*world, 1 + turn, numbers(static_cast<TokenId>(10 * turn), 9), 20);
      const std::span<const SlotId> blocks =
          world->manager->sequence(a.id()).slots(LayerGroupId(1 - states.value()));
      const PageTable table = *cache.page_table(0, "kv_latent");
      ASSERT_EQ(std::ssize(blocks), 5);
      for (const SlotId slot : blocks) {
        of_attention.insert(slot);
        std::memset(layer_address(table, slot), 0xFF, static_cast<std::size_t>(table.slot_stride));
      }
      a.read_prompt();
      of_states.insert(a.slot());
      a.round(3, static_cast<std::int32_t>(turn) % 4);
      a.round(2, 1);
      a.expect_says_what_it_says_alone();
      a.expect_page_is_its_own();
      world->manager->audit();
      world->manager->free_resources(a.id());
    }
    std::vector<SlotId> both;
    std::set_intersection(of_states.begin(), of_states.end(), of_attention.begin(),
                          of_attention.end(), std::back_inserter(both));
    EXPECT_FALSE(both.empty()) << "no slot was ever of both kinds";
  }
}

// KB-C01-04 (vLLM 33937): requests without a slot all go to that of the placeholder. Two whose end
// is published have no page any more: their rows are refused, and nothing is read or written.
TEST(C01HybridIdentity, ARequestWithoutASlotIsRefusedAndNotGivenSomebodyElses) {
  for (const ReplayPlacement placement : kPlacements) {
    World world({.placement = placement});
    Talker a(world, 1, numbers(3, 6));
    Talker c(world, 2, numbers(40, 7));
    Talker other(world, 3, numbers(70, 5));
    other.read_prompt();
    other.round(3, 2);
    for (Talker* const who : {&a, &c}) {
      who->read_prompt();
      who->round(2, 1);
      const std::int64_t kept = who->position().kept;
      const Tokens said(who->tokens().begin(), who->tokens().begin() + kept);
      PublishOptions end;
      end.written = world.stream->record();
      end.is_end = true;
      const auto published = world.manager->publish(who->id(), said, end);
      ASSERT_TRUE(published.has_value()) << published.error().text();
    }
    std::vector<std::vector<std::byte>> before;
    const std::int32_t num_slots = world.manager->replay_state().num_slots();
    for (std::int32_t i = 0; i < num_slots; ++i) {
      before.push_back(all_bytes_of(world, SlotId(i)));
    }
    BatchSetup setup;
    for (Talker* const who : {&a, &c}) {
      EXPECT_FALSE(world.manager->state_index(who->id()).has_value());
      const std::vector<BatchRow> rows = {other.drafts(3, 0).row, who->drafts(1, 0).row};
      const auto refused = world.manager->setup_state_indices(rows, setup);
      ASSERT_FALSE(refused.has_value());
      EXPECT_EQ(refused.error().code(), ErrorCode::kFailedPrecondition) << refused.error().text();
    }
    for (std::int32_t i = 0; i < num_slots; ++i) {
      EXPECT_EQ(all_bytes_of(world, SlotId(i)), before[static_cast<std::size_t>(i)]) << i;
    }
    other.round(3, 1);
    other.expect_says_what_it_says_alone();
    world.manager->audit();
  }
}

// KB-C01-05 (TensorRT-LLM 13151, 13278): padding in any slot that looks free, and acceptance that
// is written past the rows of the batch. Four requests, of which one is out of the next batch,
// suspended or not; that is padded to four, and its acceptance has four entries.
TEST(C01HybridIdentity, WhoIsNotInABatchIsNotTouchedByItsPadding) {
  for (const ReplayPlacement placement : kPlacements) {
    for (const bool is_suspended : {false, true}) {
      SCOPED_TRACE(testing::Message() << to_string(placement) << is_suspended);
      World world({.placement = placement, .num_slots = 6, .num_dummies = 1});
      std::vector<std::unique_ptr<Talker>> all;
      for (std::uint64_t id = 1; id <= 4; ++id) {
        all.push_back(
            std::make_unique<Talker>(world, id, numbers(static_cast<TokenId>(20 * id), 5)));
        all.back()->read_prompt();
      }
      std::vector<Part> parts;
      for (const auto& who : all) parts.push_back({who.get(), who->drafts(3, 2)});
      BatchSetup setup;  // the same one for all batches
      run_batch(world, parts, setup);
      Talker& e = *all[3];
      const SlotId slot = e.slot();
      const std::vector<std::byte> parked = all_bytes_of(world, slot);
      if (is_suspended) world.suspend(4);

      parts.clear();
      for (int i = 0; i < 3; ++i) parts.push_back({all[i].get(), all[i]->drafts(3, i + 1)});
      std::vector<BatchRow> rows;
      std::vector<Tokens> tokens;
      for (const Part& part : parts) {
        rows.push_back(part.share.row);
        tokens.push_back(part.share.tokens);
      }
      ASSERT_TRUE(world.manager->setup_state_indices(rows, setup).has_value());
      ASSERT_TRUE(world.manager->pad_to(4, setup).has_value());
      ASSERT_EQ(setup.rows.size(), 4u);
      EXPECT_TRUE(setup.rows[3].is_dummy);
      for (const auto& who : all) {
        if (who.get() == &e && is_suspended) continue;
        EXPECT_NE(setup.rows[3].slot, who->slot());
      }
      tokens.push_back({0});
      const World::Step step = world.step(setup, tokens);
      const std::int32_t golden_and_accepted[] = {2, 3, 4, 4};
      world.manager->record_acceptance(setup, golden_and_accepted);
      ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
      for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(all[i]->hear(parts[i].share, step.next->at(i)), i + 1);
        world.accept(all[i]->number(), i + 1);
        all[i]->make_room();
      }
      if (is_suspended) {
        world.resume(4);
        e.make_room();
        world.set_up({e.drafts(3, 0).row});
      }
      EXPECT_EQ(all_bytes_of(world, e.slot()), parked);
      for (const auto& who : all) {
        who->round(3, 2);
        who->expect_says_what_it_says_alone();
        who->expect_page_is_its_own();
      }
      world.manager->audit();
    }
  }
}

// KB-C01-07 (vLLM 17103, vllm-omni 6442): memory is given back and taken again, and the index still
// knows what lay there. The device loses three quarters of its bytes and gets them back; what is
// known of a prompt afterwards is what has survived, with a host or without, and whoever slept
// through it has what it had. Records lie in the pool, whose memory changes.
TEST(C01HybridIdentity, WhatIsFoundAfterMemoryWasGivenBackIsThere) {
  for (const std::int64_t host_bytes : {std::int64_t{64} << 20, std::int64_t{0}}) {
    WorldOptions options;
    options.placement = ReplayPlacement::kInPool;
    options.num_slots = 3;
    options.host_bytes = host_bytes;
    std::int64_t least = 0;
    options.change = [&least](HybridConfig& config) {
      least = config.cache.device_bytes;
      config.cache.device_bytes *= 4;
    };
    World world(options);
    Talker asleep(world, 1, numbers(3, 6));
    asleep.read_prompt();
    asleep.round(3, 2);
    std::vector<std::int64_t> published;
    for (std::uint64_t id = 2; id <= 6; ++id) {
      Talker a(world, id, numbers(static_cast<TokenId>(10 * id), 9));
      a.read_prompt();
      a.round(3, 3);
      published.push_back(a.position().kept);
      PublishOptions end;
      end.is_end = end.with_snapshot = true;
      const Tokens said(a.tokens().begin(), a.tokens().begin() + published.back());
      const auto done = world.manager->publish(a.id(), said, end);
      ASSERT_TRUE(done.has_value()) << done.error().text();
      world.manager->synchronize();
      world.manager->free_resources(a.id());
    }
    world.suspend(1);
    for (const std::int64_t bytes : {least, 4 * least}) {
      const auto set = world.manager->set_quota(Tier::kDevice, bytes);
      ASSERT_TRUE(set.has_value()) << set.error().text();
      world.manager->audit();
    }
    std::int64_t found = 0;
    for (std::uint64_t id = 2; id <= 6; ++id) {
      const Talker before(world, 100 + id, numbers(static_cast<TokenId>(10 * id), 9));
      const Tokens prompt(before.future().begin(), before.future().begin() + 15);
      world.manager->free_resources(before.id());
      Talker again(world, 200 + id, prompt);
      found += again.matched();
      again.read_prompt();
      again.round(3, 1);
      again.expect_says_what_it_says_alone();
      again.expect_page_is_its_own();
      world.manager->free_resources(again.id());
    }
    const std::int64_t all = std::accumulate(published.begin(), published.end(), std::int64_t{0});
    EXPECT_GT(found, 0);
    EXPECT_EQ(found == all, host_bytes > 0) << found << " of " << all;
    world.resume(1);
    asleep.make_room();
    asleep.round(3, 3);
    asleep.expect_says_what_it_says_alone();
    asleep.expect_page_is_its_own();
    world.manager->audit();
  }
}

}  // namespace
}  // namespace slackwater::hybrid
