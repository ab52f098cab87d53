// R1 to R6 and R8 to R11: what a suspend keeps, where it comes back, and when it is given up.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"

namespace slackwater::hybrid {
namespace {

using storage::Tier;

TEST_P(Requirements, R01SuspendKeepsEveryEntryOfEveryLayer) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 11);
  const SlotId before = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.suspend(1);
  // Whoever gets the slot next writes over all of it.
  world.enter(3);
  ASSERT_EQ(world.slot_of(3), before);
  world.write(3, 12, 3);
  ASSERT_NE(world.contents(3), own);
  world.suspend(2);
  world.wake(1);
  EXPECT_EQ(world.contents(1), own);
  EXPECT_EQ(world.device_pending(1), 2);
  EXPECT_EQ(world.manager->counters().saves, 2);
  EXPECT_EQ(world.manager->counters().restores, 1);
  // Copies are of whole slots.
  const std::int64_t bytes = world.manager->counters().bytes_saved;
  EXPECT_EQ(bytes, 2 * world.state().registry().slot_stride());
  EXPECT_GE(bytes, 2 * world.state().registry().bytes_per_slot());
}

// Each of `ids` is active and set up.
void rebalance(Puppets& world, const std::vector<std::uint64_t>& ids, bool is_allowed) {
  for (const std::uint64_t id : ids) world.suspend(id);
  const std::int64_t quota = world.manager->kv_cache().quota(Tier::kDevice);
  const Result<void> changed = world.manager->set_quota(Tier::kDevice, quota + quota / 2);
  EXPECT_EQ(changed.has_value(), is_allowed);
  for (const std::uint64_t id : ids) world.wake(id);
}

TEST_P(Requirements, R02EveryPathThatSuspendsSavesEachActiveRequestOnce) {
  WorldOptions wanted = options(3);
  wanted.change = [](HybridConfig& config) {
    config.cache.max_device_bytes = 2 * config.cache.device_bytes;
  };
  Puppets world(wanted);
  const auto saves = [&] { return world.manager->counters().saves; };
  for (const std::uint64_t id : {1, 2, 3}) {
    world.enter(id);
    world.round(id, static_cast<std::int32_t>(id), static_cast<std::uint32_t>(20 + id));
  }
  std::vector<std::vector<std::byte>> own;
  for (const std::uint64_t id : {1, 2, 3}) own.push_back(world.contents(id));
  // A victim, for somebody who needs room.
  world.suspend(1);
  EXPECT_EQ(saves(), 1);
  world.enter(4);
  // One that finds no room to go on, and gives way itself.
  ASSERT_FALSE(world.manager->resize(RequestId(2), 1 << 20).has_value());
  world.suspend(2);
  EXPECT_EQ(saves(), 2);
  // An admission that is rolled back: of a newcomer, and of one that comes back. Neither was set
  // up, so the slot holds nothing of its own.
  RequestOptions newcomer{.request = RequestId(5), .tokens = {}, .scope = {}, .priority = {}};
  const Tokens prompt = numbers(50, 6);
  newcomer.tokens = prompt;
  ASSERT_TRUE(world.manager->add_request(newcomer).has_value());
  for (const std::uint64_t id : {5, 2}) {
    world.resume(id);
    ASSERT_FALSE(world.manager->resize(RequestId(id), 1 << 20).has_value());
    world.suspend(id);
  }
  EXPECT_EQ(saves(), 2);
  EXPECT_EQ(world.num_saved(), 2);
  // Everybody, for a rebalance.
  rebalance(world, {3, 4}, is_in_pool());
  EXPECT_EQ(saves(), 4);
  EXPECT_EQ(world.contents(3), own[2]);
  world.suspend(3);
  world.suspend(4);
  for (const std::uint64_t id : {1, 2}) {
    world.wake(id);
    EXPECT_EQ(world.contents(id), own[id - 1]) << "request " << id;
  }
  EXPECT_EQ(saves(), 6);
  world.manager->audit();
}

TEST_P(Requirements, R02WithoutReplayNothingIsSaved) {
  WorldOptions wanted = options(2);
  wanted.max_drafts = 0;
  auto sim = std::make_unique<device::SimDevice>(device::SimOptions{.seed = 3});
  device::SimDevice& device = *sim;
  Puppets world(wanted, std::move(sim));
  world.enter(1);
  world.enter(2);
  world.manager->synchronize();
  const std::int64_t copies = device.num_copies();
  for (const std::uint64_t id : {1, 2}) world.suspend(id);
  world.manager->synchronize();
  EXPECT_EQ(device.num_copies(), copies);
  EXPECT_EQ(world.manager->counters().suspends, 2);
  EXPECT_EQ(world.manager->counters().saves, 0);
  EXPECT_EQ(world.manager->counters().bytes_saved, 0);
  for (const std::uint64_t id : {1, 2}) {
    world.resume(id);
    world.set_up({world.next_row(id, 0)});
  }
  EXPECT_EQ(world.manager->counters().restores, 0);
  world.manager->audit();
}

TEST_P(Requirements, R03ASuspendedRequestHasNoSlot) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 1, 31);
  world.enter(2);
  world.suspend(1);
  EXPECT_EQ(world.manager->state_index(RequestId(1)), std::nullopt);
  const SlotView seen = world.manager->view().requests[0].slots[0];
  EXPECT_EQ(seen.slot, std::nullopt);
  EXPECT_TRUE(seen.is_saved);
  // Resumed, it has none either until it is set up.
  world.enter(3);
  world.suspend(2);
  world.resume(1);
  EXPECT_EQ(world.manager->state_index(RequestId(1)), std::nullopt);
  world.set_up({world.next_row(1)});
  EXPECT_TRUE(world.manager->state_index(RequestId(1)).has_value());
  EXPECT_EQ(world.manager->counters().relocations, 0);
  EXPECT_EQ(world.manager->counters().resumes_in_new_slot, 1);
}

TEST_P(Requirements, R04ARequestThatComesBackInAnotherSlotHasItsOwnEntries) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 41);
  const SlotId before = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.suspend(1);
  world.enter(3);
  world.round(3, 1, 42);
  ASSERT_EQ(world.slot_of(3), before);
  const std::vector<std::byte> others = world.contents(3);
  world.suspend(2);
  const BatchSetup setup = world.wake(1);
  EXPECT_NE(world.slot_of(1), before);
  EXPECT_EQ(setup.rows[0].slot, world.slot_of(1));
  EXPECT_EQ(setup.rows[0].num_pending, 3);
  EXPECT_EQ(setup.rows[0].ready.wait(), device::EventStatus::kSucceeded);
  EXPECT_EQ(world.contents(1), own);
  EXPECT_EQ(world.contents(3), others);
  EXPECT_EQ(world.manager->counters().resumes_in_new_slot, 1);
  world.manager->audit();
}

TEST_P(Requirements, R05ARequestThatComesBackInItsOldSlotHasItsOwnEntries) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 51);
  const SlotId before = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.suspend(1);
  world.enter(3);
  world.round(3, 3, 52);
  ASSERT_EQ(world.slot_of(3), before);
  world.manager->free_resources(RequestId(3));
  world.wake(1);
  EXPECT_EQ(world.slot_of(1), before);
  EXPECT_EQ(world.contents(1), own);
  EXPECT_EQ(world.device_pending(1), 2);
  EXPECT_EQ(world.manager->counters().resumes_in_old_slot, 1);
  EXPECT_EQ(world.manager->counters().relocations, 0);
  world.manager->audit();
}

TEST_P(Requirements, R06LateAcceptanceGoesToWhatWasSavedNotToTheOldSlot) {
  for (const bool in_old_slot : {false, true}) {
    Puppets world(options(2));
    world.enter(1);
    world.round(1, 3, 61);  // P = 3 until the acceptance of the next round
    const SlotId before = world.slot_of(1);
    world.verify(1);
    world.write(1, 62, 3);
    const std::vector<std::byte> own = world.contents(1);
    world.enter(2);
    world.suspend(1);
    world.enter(3);
    world.round(3, 2, 63);
    ASSERT_EQ(world.slot_of(3), before);
    world.accept(1, 1);
    EXPECT_EQ(world.manager->view().requests[0].slots[0].accepted_override, 1);
    EXPECT_EQ(world.device_pending(3), 2) << "the old slot is somebody else's";
    EXPECT_EQ(world.pending(1), 1);
    if (in_old_slot) {
      world.manager->free_resources(RequestId(3));
    } else {
      world.suspend(2);
    }
    world.wake(1);
    EXPECT_EQ(world.slot_of(1) == before, in_old_slot);
    EXPECT_EQ(world.device_pending(1), 1);
    // All but P is as it was saved.
    *world.state().pending(world.slot_of(1)) = 3;
    EXPECT_EQ(world.contents(1), own);
    EXPECT_EQ(world.manager->counters().late_acceptances, 1);
  }
}

TEST_P(Requirements, R06LateAcceptanceLeavesTheSavedRecordsAsTheyWere) {
  Puppets world(options(2));
  world.enter(1);
  world.verify(1);
  world.write(1, 64, 0);
  const std::vector<std::byte> own = world.contents(1);
  world.suspend(1);
  world.accept(1, 3);
  world.wake(1);
  std::vector<std::byte> expected = own;
  world.manager->synchronize();
  const auto place = reinterpret_cast<std::byte*>(world.state().pending(world.slot_of(1))) -
                     world.state().registry().slot(world.slot_of(1)).data();
  expected[static_cast<std::size_t>(place)] = std::byte{3};
  EXPECT_EQ(world.contents(1), expected);
}

TEST_P(Requirements, R08ARequestThatComesBackAsContextLosesWhatWasSaved) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 81);
  const Tokens prompt = numbers(10, 6);
  world.suspend(1);
  ASSERT_EQ(world.num_saved(), 1);
  ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
  EXPECT_EQ(world.num_saved(), 0);
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.read_prompt(1, 6);
  EXPECT_EQ(world.device_pending(1), 0);
  EXPECT_EQ(world.manager->counters().restores, 0);
  EXPECT_EQ(world.manager->position(RequestId(1))->epoch, 1u);
  // What is saved next is its new state.
  world.round(1, 1, 82);
  const std::vector<std::byte> own = world.contents(1);
  world.suspend(1);
  world.enter(2);
  world.round(2, 3, 83);
  world.enter(3);
  world.round(3, 3, 84);
  world.suspend(2);
  world.wake(1);
  EXPECT_EQ(world.contents(1), own);
  world.manager->audit();
}

// Without a restart: a context row goes on from the page alone, once its step is queued. A batch
// that is given up has lost nothing.
TEST_P(Requirements, R08AContextRowGivesUpPendingDrafts) {
  for (const bool has_slept : {false, true}) {
    for (const bool is_queued : {false, true}) {
      Puppets world(options(2));
      world.enter(1);
      world.round(1, 2, 85);
      ASSERT_EQ(world.kept(1), 9);
      if (has_slept) {
        world.suspend(1);
        world.resume(1);
        ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
      }
      const BatchSetup setup = world.set_up({World::context_row(1, 7, 5)});
      EXPECT_EQ(setup.rows[0].num_pending, 0);
      EXPECT_EQ(world.manager->counters().restores, 0);
      if (!is_queued) {
        EXPECT_EQ(world.num_saved(), has_slept ? 1 : 0);
        EXPECT_EQ(world.kept(1), 9);
        EXPECT_EQ(world.pending(1), 2);
        const BatchSetup again = world.set_up({World::verify_row(1, 9, 0)});
        EXPECT_EQ(again.rows[0].num_pending, 2);
        EXPECT_EQ(world.device_pending(1), 2);
        world.manager->audit();
        continue;
      }
      world.manager->step_queued(setup);
      EXPECT_EQ(world.device_pending(1), 0);
      EXPECT_EQ(world.num_saved(), 0);
      EXPECT_EQ(world.kept(1), 12);
      EXPECT_EQ(world.pending(1), 0);
      world.manager->audit();
    }
  }
}

TEST_P(Requirements, R09FreeAndCancelDropWhatWasSaved) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 91);
  world.enter(2);
  world.round(2, 2, 92);
  EXPECT_EQ(world.num_reserved(), 2);
  world.suspend(1);
  world.manager->free_resources(RequestId(1));
  EXPECT_EQ(world.num_saved(), 0);
  EXPECT_EQ(world.num_reserved(), 1);
  EXPECT_FALSE(world.manager->has_request(RequestId(1)));
  // Whoever has its number next sees nothing of it.
  world.enter(1);
  EXPECT_EQ(world.device_pending(1), 0);
  EXPECT_EQ(world.manager->counters().restores, 0);
  // While its acceptance is under way.
  world.verify(1);
  const RequestPosition at = *world.manager->position(RequestId(1));
  world.suspend(1);
  world.manager->free_resources(RequestId(1));
  const Acceptance late{RequestId(1), at.epoch, at.round, 2};
  ASSERT_TRUE(world.manager->update_resources(std::span(&late, 1)).has_value());
  EXPECT_EQ(world.manager->counters().ignored_acceptances, 1);
  world.manager->free_resources(RequestId(2));
  world.manager->free_resources(RequestId(2));
  EXPECT_EQ(world.num_saved(), 0);
  EXPECT_EQ(world.num_reserved(), 0);
  world.manager->audit();
}

TEST_P(Requirements, R09ShutdownDropsWhatWasSaved) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 93);
  world.enter(2);
  world.suspend(1);
  ASSERT_TRUE(world.manager->shutdown().has_value());
  EXPECT_EQ(world.num_saved(), 0);
  EXPECT_EQ(world.num_reserved(), 0);
  EXPECT_EQ(world.manager->counters().drops, 1);
  EXPECT_TRUE(world.manager->shutdown().has_value());
  const Tokens prompt = numbers(1, 4);
  RequestOptions request{.request = RequestId(7), .tokens = prompt, .scope = {}, .priority = {}};
  const Result<void> added = world.manager->add_request(request);
  ASSERT_FALSE(added.has_value());
  EXPECT_EQ(added.error().code(), ErrorCode::kFailedPrecondition);
}

TEST_P(Requirements, R10ASecondSuspendLeavesWhatWasSavedAsItIs) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 2, 101);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.suspend(1);
  world.enter(3);
  world.write(3, 102, 1);
  const auto code_of = [&](std::uint64_t id) {
    return world.manager->suspend_request(RequestId(id)).error().code();
  };
  EXPECT_EQ(code_of(1), ErrorCode::kFailedPrecondition);
  EXPECT_EQ(code_of(9), ErrorCode::kNotFound);
  EXPECT_EQ(world.manager->counters().saves, 1);
  EXPECT_EQ(world.manager->counters().suspends, 1);
  world.suspend(2);
  world.wake(1);
  EXPECT_EQ(world.contents(1), own);
}

// The eighth buffer is one line in the configuration: every operation covers it.
TEST_P(Requirements, R11OneMoreBufferIsSavedRestoredAndMoved) {
  WorldOptions wanted = options(3);
  wanted.slot_entries = {{.name = "kda_state_tok", .bytes_per_layer = 96, .num_layers = 2}};
  Puppets world(wanted);
  const auto fill = [&](std::uint64_t id, int value) {
    world.manager->synchronize();
    for (const std::int32_t layer : {0, 1}) {
      std::byte* const from =
          world.state().registry().address("kda_state_tok", world.slot_of(id), layer);
      std::fill_n(from, 96, static_cast<std::byte>(value + layer));
    }
  };
  const auto holds = [&](std::uint64_t id, int value) {
    world.manager->synchronize();
    bool is_all = true;
    for (const std::int32_t layer : {0, 1}) {
      const std::byte* const from =
          world.state().registry().address("kda_state_tok", world.slot_of(id), layer);
      is_all &= std::all_of(from, from + 96, [&](std::byte byte) {
        return byte == static_cast<std::byte>(value + layer);
      });
    }
    return is_all;
  };
  for (const std::uint64_t id : {1, 2, 3}) {
    world.enter(id);
    fill(id, static_cast<int>(16 * id));
  }
  const SlotId before = world.slot_of(1);
  world.suspend(1);
  // Moved: the page becomes a snapshot, and the state goes on where request 1 was.
  const Tokens prompt = numbers(20, 6);
  ASSERT_TRUE(world.manager->publish(RequestId(2), prompt, {.written = {}, .with_snapshot = true}));
  world.set_up({world.next_row(2)});
  ASSERT_EQ(world.slot_of(2), before);
  EXPECT_TRUE(holds(2, 32));
  // In another slot.
  world.wake(1);
  EXPECT_NE(world.slot_of(1), before);
  EXPECT_TRUE(holds(1, 16));
  // In the old one.
  const SlotId now = world.slot_of(1);
  world.suspend(1);
  world.enter(4);
  ASSERT_EQ(world.slot_of(4), now);
  fill(4, 64);
  world.manager->free_resources(RequestId(4));
  world.wake(1);
  EXPECT_EQ(world.slot_of(1), now);
  EXPECT_TRUE(holds(1, 16));
  EXPECT_TRUE(holds(2, 32));
  EXPECT_TRUE(holds(3, 48));
}

INSTANTIATE_TEST_SUITE_P(Placements, Requirements,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
