// R7, R12 to R15 and R20 to R22: what a batch does to the slots, in which order, and at what cost.

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "hybrid/speaker_test_support.h"
#include "slackwater/base/numeric.h"
#include "testing/allocation_counter.h"

namespace slackwater::hybrid {
namespace {

using device::CopyFault;
using device::MemoryKind;
using device::SimDevice;
using device::SimOptions;
using storage::Tier;

// Its page becomes a snapshot, and it goes on in another slot.
void publish_prompt(Puppets& world, std::uint64_t id) {
  const Tokens prompt = numbers(static_cast<TokenId>(10 * id), 6);
  const Result<void> published =
      world.manager->publish(RequestId(id), prompt, {.written = {}, .with_snapshot = true});
  ASSERT_TRUE(published.has_value()) << published.error().text();
  ASSERT_EQ(world.manager->counters().snapshots_skipped, 0);
}

TEST_P(Requirements, R07ASlotIsReadBeforeItIsRestoredInto) {
  WorldOptions wanted = options(4);
  wanted.slot_entries = {{.name = "probe", .bytes_per_layer = 64, .num_layers = 3}};
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Puppets world(wanted, std::make_unique<SimDevice>(SimOptions{.seed = seed}));
    for (const std::uint64_t id : {1, 2, 3, 5}) world.enter(id);
    world.round(1, 2, 71);
    const std::vector<std::byte> first = world.contents(1);
    world.write(2, 72, 0);
    const std::vector<std::byte> second = world.contents(2);
    const SlotId before = world.slot_of(2);
    world.suspend(1);
    publish_prompt(world, 2);
    ASSERT_EQ(world.slot_of(2), before) << "it moves with the next setup";
    // Request 1 comes back where request 2 was; a newcomer takes the slot of request 5.
    world.resume(1);
    ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
    world.manager->free_resources(RequestId(5));
    world.start(6, numbers(60, 6), 60);
    const HybridCounters counters = world.manager->counters();
    world.set_up({world.next_row(1), World::context_row(6, 0, 6), world.next_row(2)});
    EXPECT_EQ(world.slot_of(1), before);
    EXPECT_NE(world.slot_of(2), before);
    EXPECT_EQ(world.manager->counters().restores - counters.restores, 1);
    EXPECT_EQ(world.manager->counters().relocations - counters.relocations, 1);
    EXPECT_EQ(world.manager->counters().resets - counters.resets, 1);
    EXPECT_EQ(world.contents(1), first) << "seed " << seed;
    EXPECT_EQ(world.contents(2), second) << "seed " << seed;
    EXPECT_EQ(world.device_pending(6), 0);
    world.manager->audit();
  }
}

// Whoever is not in the batch has moved just the same.
TEST_P(Requirements, R07WhoIsNotInTheBatchIsMovedBeforeItsOldSlotIsTaken) {
  Puppets world(options(3));
  for (const std::uint64_t id : {1, 2, 3}) world.enter(id);
  world.round(1, 2, 73);
  const std::vector<std::byte> first = world.contents(1);
  world.write(2, 74, 0);
  const std::vector<std::byte> second = world.contents(2);
  const SlotId before = world.slot_of(2);
  world.suspend(1);
  publish_prompt(world, 2);
  world.wake(1);
  ASSERT_EQ(world.slot_of(1), before);
  EXPECT_EQ(world.contents(1), first);
  EXPECT_EQ(world.contents(2), second);
  EXPECT_EQ(world.manager->counters().relocations, 1);
  world.set_up({world.next_row(2)});
  EXPECT_EQ(world.manager->counters().relocations, 1);
  world.manager->audit();
}

// c -> b -> a -> d: each goes where the one before it was.
TEST_P(Requirements, R07AChainOfRelocationsKeepsAll) {
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    Puppets world(options(4), std::make_unique<SimDevice>(SimOptions{.seed = seed}));
    std::vector<std::vector<std::byte>> own;
    std::vector<SlotId> before;
    for (const std::uint64_t id : {1, 2, 3}) {
      world.enter(id);
      world.write(id, static_cast<std::uint32_t>(74 + id), 0);
      own.push_back(world.contents(id));
      before.push_back(world.slot_of(id));
    }
    for (const std::uint64_t id : {1, 2, 3}) publish_prompt(world, id);
    world.set_up({world.next_row(3), world.next_row(1), world.next_row(2)});
    EXPECT_EQ(world.slot_of(3), before[1]);
    EXPECT_EQ(world.slot_of(2), before[0]);
    EXPECT_EQ(world.manager->counters().relocations, 3);
    for (const std::uint64_t id : {1, 2, 3}) {
      EXPECT_EQ(world.contents(id), own[id - 1]) << "request " << id << ", seed " << seed;
    }
    world.manager->audit();
  }
}

// Suspended with a step on the way, whose slot the next owner writes; then back again.
void suspend_behind_a_step(Puppets& world, std::function<void()> delay) {
  world.enter(1);
  world.round(1, 1, 121);
  world.enter(2);
  world.verify(1);
  world.queue_write(1, 122, 1, std::move(delay));
  const SlotId before = world.slot_of(1);
  world.suspend(1);
  world.start(3, numbers(30, 6), 60);
  world.read_prompt(3, 6);
  ASSERT_EQ(world.slot_of(3), before);
  world.verify(3);
  world.queue_write(3, 123, 0);
  world.accept(3, 3);
  world.accept(1, 2);
  world.suspend(2);
  const BatchSetup setup = world.wake(1);
  world.verify(1);
  // Behind the restore: what the next step would find.
  std::vector<std::byte> found;
  world.stream->run([&] {
    found = read_slot(world.state(), setup.rows[0].slot);
    return true;
  });
  world.manager->synchronize();
  Puppets expected(WorldOptions{
      .placement = world.manager->config().placement, .num_slots = 2, .host_bytes = 0});
  expected.enter(1);
  expected.write(1, 122, 2);
  EXPECT_EQ(found, expected.contents(1));
  EXPECT_EQ(world.device_pending(3), 3);
}

TEST_P(Requirements, R12TheSaveWaitsForTheStepAndTheNextOwnerForTheSave) {
  Puppets world(options(2));
  const auto begin = std::chrono::steady_clock::now();
  suspend_behind_a_step(world, [] { std::this_thread::sleep_for(std::chrono::milliseconds(60)); });
  EXPECT_GE(std::chrono::steady_clock::now() - begin, std::chrono::milliseconds(60));
}

TEST_P(Requirements, R12InWhateverOrderTheDeviceWorks) {
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Puppets world(options(2), std::make_unique<SimDevice>(SimOptions{.seed = seed}));
    suspend_behind_a_step(world, {});
  }
}

TEST_P(Requirements, R13LateAcceptanceWaitsForNoCopy) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    SimOptions sim{.seed = seed};
    sim.copy_fault = [](std::int64_t) { return CopyFault::kDelay; };
    Puppets world(options(2), std::make_unique<SimDevice>(sim));
    suspend_behind_a_step(world, {});
    EXPECT_EQ(world.manager->counters().late_acceptances, 1);
  }
}

TEST_P(Requirements, R13WhatIsSavedLiesInPinnedMemoryThatIsKeptForIt) {
  WorldOptions wanted = options(2);
  wanted.host_bytes = 0;
  wanted.num_saves = 7;
  Puppets world(wanted);
  const SlotRegistry& registry = world.state().registry();
  EXPECT_EQ(registry.max_saves(), 7);
  const auto pinned =
      static_cast<std::int64_t>(world.device->usage(MemoryKind::kPinnedHost).committed_bytes);
  EXPECT_EQ(pinned, round_up<std::int64_t>(7 * registry.bytes_per_save(), 4096));
  // A suspend takes nothing more.
  world.enter(1);
  world.suspend(1);
  EXPECT_EQ(static_cast<std::int64_t>(world.device->usage(MemoryKind::kPinnedHost).committed_bytes),
            pinned);
}

// Started requests reserve one save each, so that no suspend is ever refused.
TEST_P(Requirements, R13WhoCouldNotBeSavedDoesNotStart) {
  WorldOptions wanted = options(3);
  wanted.num_saves = 2;
  Puppets world(wanted);
  world.enter(1);
  world.enter(2);
  const Tokens prompt = numbers(30, 6);
  RequestOptions third{.request = RequestId(3), .tokens = prompt, .scope = {}, .priority = {}};
  ASSERT_TRUE(world.manager->add_request(third).has_value());
  const Result<device::Event> refused = world.manager->resume_request(RequestId(3));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_NE(refused.error().text().find("request 3: host memory for 2 saves"), std::string::npos)
      << refused.error().text();
  world.suspend(1);
  EXPECT_FALSE(world.manager->resume_request(RequestId(3)).has_value());
  world.manager->free_resources(RequestId(1));
  world.resume(3);
  world.manager->audit();
}

TEST_P(Requirements, R14AResumeThatFailsLosesNothing) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 141);
  const std::vector<std::byte> own = world.contents(1);
  world.suspend(1);
  world.enter(2);
  world.enter(3);
  world.round(2, 1, 142);
  world.round(3, 1, 143);
  for (int k = 0; k < 5; ++k) {
    const Result<device::Event> refused = world.manager->resume_request(RequestId(1));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
    EXPECT_EQ(world.num_saved(), 1);
  }
  world.suspend(3);
  world.wake(1);
  EXPECT_EQ(world.contents(1), own);
  EXPECT_EQ(world.manager->counters().restores, 1);
  world.manager->audit();
}

TEST_P(Requirements, R14ABatchThatIsNotQueuedLosesNothing) {
  Puppets world(options(2));
  world.enter(1);
  world.round(1, 3, 144);
  const SlotId first = world.slot_of(1);
  const std::vector<std::byte> own = world.contents(1);
  world.enter(2);
  world.round(2, 2, 145);
  // Resumed, and given up before it was set up: its slot is never saved.
  world.suspend(1);
  world.enter(3);
  world.suspend(2);
  world.resume(1);
  world.suspend(1);
  EXPECT_EQ(world.manager->counters().saves, 2);
  // Set up, and not queued; then once more, elsewhere.
  world.wake(1);
  const SlotId second = world.slot_of(1);
  EXPECT_NE(second, first);
  EXPECT_EQ(world.contents(1), own);
  world.set_up({world.next_row(1)});
  world.suspend(1);
  EXPECT_EQ(world.manager->counters().saves, 3);
  world.enter(4);
  world.round(4, 3, 146);
  ASSERT_EQ(world.slot_of(4), second);
  world.manager->free_resources(RequestId(3));
  world.wake(1);
  EXPECT_EQ(world.slot_of(1), first);
  EXPECT_EQ(world.contents(1), own);
  world.manager->audit();
}

// What a round asks of the manager, without a step. With `counts` the device knows first.
void plain_round(Puppets& world, BatchSetup& setup, std::vector<BatchRow>& rows,
                 std::vector<Acceptance>& acceptances, const std::int32_t* counts = nullptr) {
  for (BatchRow& row : rows) row.first_position = world.kept(row.request.value());
  ASSERT_TRUE(world.manager->setup_state_indices(rows, setup).has_value());
  world.manager->step_queued(setup);
  if (counts != nullptr) world.manager->record_acceptance(setup, counts);
  for (std::size_t i = 0; i < setup.rows.size(); ++i) {
    acceptances[i].round = setup.rows[i].round;
    acceptances[i].num_accepted = static_cast<std::int32_t>(i % 2);
  }
  ASSERT_TRUE(world.manager->update_resources(acceptances).has_value());
  for (const BatchRow& row : rows) {
    const std::int64_t room = world.kept(row.request.value()) + 4;
    ASSERT_TRUE(world.manager->resize(row.request, room).has_value());
  }
}

// Three requests that decode with drafts, and are never suspended.
struct Decoding {
  explicit Decoding(Puppets& of) : world(of) {
    for (const std::uint64_t id : {1, 2, 3}) {
      world.enter(id);
      // Once as long as it gets, so that its index tables have grown.
      EXPECT_TRUE(world.manager->resize(RequestId(id), 200).has_value());
      rows.push_back(world.next_row(id));
      acceptances.push_back({RequestId(id), 0, 0, 0});
    }
    for (int i = 0; i < 8; ++i) plain_round(world, setup, rows, acceptances);
    world.manager->synchronize();
  }
  void round() { plain_round(world, setup, rows, acceptances); }
  void round_of_the_device() {
    plain_round(world, setup, rows, acceptances, accepted_tokens.data());
  }

  Puppets& world;
  BatchSetup setup;
  std::vector<BatchRow> rows;
  std::vector<Acceptance> acceptances;
  std::array<std::int32_t, 3> accepted_tokens = {1, 2, 1};  // golden tokens included
};

TEST_P(Requirements, R15WhoIsNeverSuspendedCopiesNothing) {
  WorldOptions wanted = options(3);
  wanted.tokens_per_request = 256;
  auto sim = std::make_unique<SimDevice>(SimOptions{.seed = 15});
  SimDevice& device = *sim;
  Puppets world(wanted, std::move(sim));
  Decoding decoding(world);
  const std::int64_t copies = device.num_copies();
  const HybridCounters before = world.manager->counters();
  for (int i = 0; i < 60; ++i) decoding.round();
  world.manager->synchronize();
  EXPECT_EQ(device.num_copies(), copies);
  const HybridCounters now = world.manager->counters();
  EXPECT_EQ(now.saves, 0);
  EXPECT_EQ(now.restores, 0);
  EXPECT_EQ(now.relocations, 0);
  EXPECT_EQ(now.drops, 0);
  EXPECT_EQ(now.resets, before.resets);
}

// Work is done when it is queued: a queue's own memory is not what is counted here.
class ImmediateStream final : public device::Stream {
 public:
  ImmediateStream() : Stream("at once") {}
  void wait(const device::Event& event) override {
    num_waits += event.is_null() ? 0 : 1;
    event.wait();
  }
  void run(Item item) override { item(); }
  void copy(device::CopyBatch batch) override {
    for (const device::CopyPiece& piece : batch.pieces) {
      std::copy_n(piece.source, batch.piece_bytes, piece.target);
    }
  }

  int num_waits = 0;

 private:
  device::Event record_now() override { return {}; }
  device::Event mark_now() override { return {}; }
};

TEST_P(Requirements, R15WhoIsNeverSuspendedWaitsForNothingAndTakesNothingFromTheHeap) {
  WorldOptions wanted = options(3);
  wanted.tokens_per_request = 256;
  Puppets world(wanted);
  ImmediateStream stream;
  world.manager = *HybridCacheManager::create(*world.device, stream, nullptr, world_config(wanted));
  Decoding decoding(world);
  decoding.round_of_the_device();
  stream.num_waits = 0;
  std::int64_t allocated = 0;
  for (int i = 0; i < 60; ++i) {
    const std::int64_t before = num_heap_allocations();
    i % 2 == 0 ? decoding.round() : decoding.round_of_the_device();
    allocated += num_heap_allocations() - before;
    world.manager->synchronize();
  }
  EXPECT_EQ(allocated, 0);
  EXPECT_EQ(stream.num_waits, 0);
  world.manager.reset();  // before its stream
}

TEST_P(Requirements, R20ARoundWithoutDraftsFoldsInWhatIsPending) {
  Puppets world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  speaker.round(3, 3);
  EXPECT_EQ(world.device_pending(1), 3);
  const std::int64_t page = world.manager->position(RequestId(1))->page_position;
  speaker.verify(0, 0);
  // Nobody has to say anything: it is not pending, and P is 0 on the device too.
  const RequestPosition at = *world.manager->position(RequestId(1));
  EXPECT_FALSE(at.is_acceptance_pending);
  EXPECT_EQ(at.page_position, page + 4);
  EXPECT_EQ(at.kept, page + 4);
  EXPECT_EQ(world.device_pending(1), 0);
  world.suspend(1);
  world.resume(1);
  speaker.round(0, 0);
  speaker.round(3, 1);
  speaker.round(0, 0);
  speaker.round(2, 2);
  speaker.expect_says_what_it_says_alone();
  world.manager->audit();
}

TEST_P(Requirements, R21UntilItsAcceptanceIsKnownARequestCanOnlyRest) {
  Puppets world(options(2));
  const auto is_refused = [](const Result<void>& result) {
    return !result.has_value() && result.error().code() == ErrorCode::kFailedPrecondition;
  };
  for (const int end : {0, 1, 2, 3}) {
    world.enter(1);
    world.round(1, 2, 211);
    world.verify(1);
    ASSERT_TRUE(world.manager->position(RequestId(1))->is_acceptance_pending);
    EXPECT_EQ(world.refusal({world.verify_row(1, 10, 3)}), ErrorCode::kFailedPrecondition);
    EXPECT_EQ(world.refusal({World::context_row(1, 10, 1)}), ErrorCode::kFailedPrecondition);
    // The device does not know it either.
    BatchRow row = World::verify_row(1, 10, 3);
    row.first_position.reset();
    EXPECT_EQ(world.refusal({row}), ErrorCode::kFailedPrecondition);
    EXPECT_TRUE(is_refused(world.manager->commit_pending(RequestId(1))));
    const Tokens prompt = numbers(10, 6);
    EXPECT_TRUE(is_refused(world.manager->publish(RequestId(1), prompt, {})));
    EXPECT_EQ(world.manager->sequence(RequestId(1)).num_committed(), 0);
    if (end == 0) world.accept(1, 0);
    if (end == 1) {
      world.suspend(1);
      world.resume(1);
      EXPECT_EQ(world.refusal({world.verify_row(1, 10, 3)}), ErrorCode::kFailedPrecondition);
      EXPECT_TRUE(is_refused(world.manager->publish(RequestId(1), prompt, {})));
      world.accept(1, 3);
      ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
      world.set_up({world.next_row(1)});
    }
    if (end == 2) {
      ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
      EXPECT_FALSE(world.manager->position(RequestId(1))->is_acceptance_pending);
    }
    world.manager->free_resources(RequestId(1));
    world.manager->audit();
  }
}

TEST_P(Requirements, R22RoomForDraftsThatWereNotKeptGoesBackWhileItSleeps) {
  WorldOptions wanted = options(2);
  wanted.host_bytes = 0;
  Puppets world(wanted);
  const LayerGroupId attention = world.manager->kv_cache().layer_groups().groups()[0].id;
  const auto free_pages = [&] {
    return world.manager->kv_cache().room(Tier::kDevice, attention).free;
  };
  world.enter(1, 10);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 14).has_value());
  world.verify(1);
  world.suspend(1);
  const std::int32_t before = free_pages();
  EXPECT_EQ(world.manager->sequence(RequestId(1)).capacity(), 14);
  world.accept(1, 0);
  // 11 of 14 tokens are kept, in blocks of 4.
  EXPECT_EQ(world.manager->sequence(RequestId(1)).capacity(), 11);
  EXPECT_EQ(free_pages(), before + 1);
  EXPECT_EQ(world.manager->sequence(RequestId(1)).status(), cache::SequenceStatus::kSuspended);
  // Of an active one as well.
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 15).has_value());
  world.verify(1);
  world.accept(1, 1);
  EXPECT_EQ(world.manager->sequence(RequestId(1)).capacity(), 13);
}

}  // namespace
}  // namespace slackwater::hybrid
