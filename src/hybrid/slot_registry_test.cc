// What is indexed by slots: whole slots move, in any permutation, and what fails is told.

#include "slackwater/hybrid/slot_registry.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "hybrid/requirements_test_support.h"
#include "slackwater/base/numeric.h"
#include "testing/seed.h"

namespace slackwater::hybrid {
namespace {

using device::CopyFault;
using device::EventStatus;
using device::MemoryKind;
using device::SimDevice;
using device::SimOptions;
using testing::HasSubstr;

SlotRegistryOptions small_registry(std::int32_t num_slots) {
  SlotRegistryOptions options;
  options.name = "test slots";
  options.entries = {
      {.name = "record", .bytes_per_layer = 100, .num_layers = 3, .is_record = true},
      {.name = "count",
       .bytes_per_layer = 4,
       .reset = [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0}); }},
  };
  options.num_slots = num_slots;
  options.save_bytes = 4 * save_bytes_of(options.entries);
  options.grain_bytes = 4096;
  return options;
}

struct TestRegistry {
  explicit TestRegistry(std::int32_t num_slots, SimOptions sim = {})
      : TestRegistry(small_registry(num_slots), std::move(sim)) {}
  explicit TestRegistry(SlotRegistryOptions options, SimOptions sim = {})
      : device(std::move(sim)), stream(*device.make_stream("steps")) {
    auto made = SlotRegistry::create(device, std::move(options));
    EXPECT_TRUE(made.has_value()) << made.error().text();
    registry = *std::move(made);
  }

  void fill(std::int32_t slot, int value) {
    registry->synchronize();
    std::ranges::fill(registry->slot(SlotId(slot)), static_cast<std::byte>(value));
  }
  bool holds(std::int32_t slot, int value) {
    stream->synchronize();
    registry->synchronize();
    return std::ranges::all_of(registry->slot(SlotId(slot)), [&](std::byte byte) {
      return byte == static_cast<std::byte>(value);
    });
  }
  SavedSlot save(std::int32_t slot) {
    EXPECT_TRUE(registry->reserve_save().has_value());
    return registry->save(SlotId(slot), {}, true, *stream);
  }
  void apply(const SlotChanges& changes) { registry->apply(changes, *stream, applied); }

  SimDevice device;
  std::unique_ptr<device::Stream> stream;
  std::unique_ptr<SlotRegistry> registry;
  SlotRegistry::Applied applied;
};

TEST(SlotRegistry, ARingOfRelocationsKeepsAll) {
  for (std::uint64_t seed = 0; seed < 16; ++seed) {
    TestRegistry test(5, {.seed = seed});
    for (std::int32_t slot = 0; slot < 5; ++slot) test.fill(slot, 10 + slot);
    // A ring of three, and one of two beside it.
    SlotChanges changes;
    for (const auto& [from, to] : {std::pair(0, 1), {1, 2}, {2, 0}, {3, 4}, {4, 3}}) {
      changes.relocations.push_back({SlotId(from), SlotId(to)});
    }
    test.apply(changes);
    EXPECT_EQ(test.applied.moved.wait(), EventStatus::kSucceeded);
    for (const auto& [slot, value] : {std::pair(1, 10), {2, 11}, {0, 12}, {4, 13}, {3, 14}}) {
      EXPECT_TRUE(test.holds(slot, value)) << "slot " << slot << ", seed " << seed;
    }
  }
}

// Against a table of who is where: any partial permutation, with restores and resets in between.
TEST(SlotRegistry, AnyBatchOfChangesIsOnePermutation) {
  std::mt19937_64 random(test_seed());
  constexpr std::int32_t kSlots = 7;
  TestRegistry test(kSlots, {.seed = random()});
  std::vector<int> values;
  for (std::int32_t slot = 0; slot < kSlots; ++slot) {
    values.push_back(1 + slot);
    test.fill(slot, values.back());
  }
  for (int i = 0; i < 300; ++i) {
    std::vector<std::int32_t> to(kSlots);
    for (std::int32_t slot = 0; slot < kSlots; ++slot) to[static_cast<std::size_t>(slot)] = slot;
    std::shuffle(to.begin(), to.end(), random);
    std::vector<int> now = values;
    SlotChanges changes;
    const auto saved_slot = static_cast<std::int32_t>(random() % kSlots);
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      const auto from = static_cast<std::size_t>(slot);
      if (slot == saved_slot) {
        changes.restores.push_back({test.save(slot), SlotId(to[from])});
      } else if (to[from] != slot && random() % 8 != 0) {
        changes.relocations.push_back({SlotId(slot), SlotId(to[from])});
      } else {
        continue;
      }
      now[static_cast<std::size_t>(to[from])] = values[from];
    }
    test.apply(changes);
    values = now;
    test.registry->release_save();
    for (std::int32_t slot = 0; slot < kSlots; ++slot) {
      ASSERT_TRUE(test.holds(slot, values[static_cast<std::size_t>(slot)]))
          << "slot " << slot << " after " << i << " operations";
    }
    test.registry->check_invariants();
  }
}

TEST(SlotRegistry, CountsItsBytes) {
  TestRegistry test(4);
  const SlotRegistry& registry = *test.registry;
  EXPECT_EQ(registry.bytes_per_slot(), 304);
  EXPECT_EQ(registry.slot_stride(), save_bytes_of(registry.entries()));
  EXPECT_EQ(registry.max_saves(), 4);
  // Four slots and a scratch one, in whole grains.
  EXPECT_EQ(registry.bytes(), round_up<std::int64_t>(5 * registry.slot_stride(), 4096));
  EXPECT_EQ(static_cast<std::int64_t>(test.device.usage(MemoryKind::kDevice).committed_bytes),
            registry.bytes());
  EXPECT_EQ(registry.entries().back().name, "record") << "records lie last";
  EXPECT_EQ(registry.view("record").layer_stride, 100);
  EXPECT_EQ(registry.view("nothing").base, nullptr);
}

TEST(SlotRegistry, ASaveWithoutRecordsLeavesThemOut) {
  TestRegistry test(2);
  test.fill(0, 7);
  test.fill(1, 9);
  ASSERT_TRUE(test.registry->reserve_save().has_value());
  const SavedSlot saved = test.registry->save(SlotId(0), {}, false, *test.stream);
  EXPECT_LT(saved.bytes, 304);
  SlotChanges changes;
  changes.restores.push_back({saved, SlotId(1)});
  test.apply(changes);
  test.stream->synchronize();
  EXPECT_EQ(*test.registry->address("count", SlotId(1)), std::byte{7});
  EXPECT_EQ(*test.registry->address("record", SlotId(1)), std::byte{9});
}

TEST(SlotRegistry, GrowsAndShrinksInPlace) {
  SlotRegistryOptions options = small_registry(2);
  options.max_slots = 40;
  TestRegistry test(std::move(options));
  std::byte* const base = test.registry->slot(SlotId(0)).data();
  test.fill(0, 5);
  test.fill(1, 6);
  ASSERT_TRUE(test.registry->resize(40).has_value());
  EXPECT_EQ(test.registry->slot(SlotId(0)).data(), base);
  EXPECT_TRUE(test.holds(0, 5));
  EXPECT_TRUE(test.holds(39, 0)) << "what is new is zero";
  test.fill(1, 8);
  ASSERT_TRUE(test.registry->resize(1).has_value());
  ASSERT_TRUE(test.registry->resize(2).has_value());
  EXPECT_TRUE(test.holds(0, 5));
  EXPECT_TRUE(test.holds(1, 0));
  const Result<void> beyond = test.registry->resize(41);
  ASSERT_FALSE(beyond.has_value());
  EXPECT_EQ(beyond.error().code(), ErrorCode::kOutOfRange);
  EXPECT_THAT(beyond.error().text(), HasSubstr("41 slots of test slots, which was made for at most"
                                               " 40"));
  test.device.set_budget(MemoryKind::kDevice, 4096);
  EXPECT_EQ(test.registry->resize(40).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(test.registry->num_slots(), 2);
  test.registry->check_invariants();
}

TEST(SlotRegistry, RefusesWhatCannotWork) {
  SimDevice device({});
  const auto refusal = [&](const std::function<void(SlotRegistryOptions&)>& change) {
    SlotRegistryOptions options = small_registry(2);
    change(options);
    const auto made = SlotRegistry::create(device, std::move(options));
    EXPECT_FALSE(made.has_value());
    if (made.has_value()) return std::string();
    EXPECT_EQ(made.error().code(), ErrorCode::kInvalidArgument);
    return made.error().text();
  };
  EXPECT_THAT(refusal([](auto& options) { options.entries[0].bytes_per_layer = 0; }),
              HasSubstr("entry 'record' of test slots with 3 layers of 0 bytes"));
  EXPECT_THAT(refusal([](auto& options) { options.entries[1].name = "record"; }),
              HasSubstr("two entries 'record' of test slots; give each its name"));
  EXPECT_THAT(refusal([](auto& options) { options.save_bytes = 1; }),
              HasSubstr("1 bytes of host memory for what test slots saves; one slot has "));
  EXPECT_EQ(device.usage(MemoryKind::kDevice).committed_bytes, 0u);
  EXPECT_EQ(device.usage(MemoryKind::kPinnedHost).committed_bytes, 0u);
}

TEST(SlotRegistry, ReservesNoMoreSavesThanFit) {
  TestRegistry test(8);
  for (int i = 0; i < 4; ++i) ASSERT_TRUE(test.registry->reserve_save().has_value());
  const Result<void> refused = test.registry->reserve_save();
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kResourceExhausted);
  EXPECT_THAT(refused.error().text(), HasSubstr("host memory for 4 saves"));
  // All four at once, and none is ever refused.
  std::vector<SavedSlot> saved;
  for (std::int32_t slot = 0; slot < 4; ++slot) {
    saved.push_back(test.registry->save(SlotId(slot), {}, true, *test.stream));
  }
  EXPECT_EQ(test.registry->num_saved(), 4);
  for (const SavedSlot& of : saved) test.registry->drop(of);
  EXPECT_EQ(test.registry->num_saved(), 0);
  EXPECT_EQ(test.registry->counters().drops, 4);
  for (int i = 0; i < 4; ++i) test.registry->release_save();
}

// Bytes that a restore still reads are nobody else's.
TEST(SlotRegistry, SavedBytesStayUntilTheRestoreHasReadThem) {
  for (std::uint64_t seed = 0; seed < 64; ++seed) {
    SlotRegistryOptions options = small_registry(3);
    options.save_bytes = save_bytes_of(options.entries);  // room for one
    TestRegistry test(std::move(options), {.seed = seed});
    test.fill(0, 3);
    test.fill(1, 4);
    SlotChanges changes;
    changes.restores.push_back({test.save(0), SlotId(2)});
    test.apply(changes);
    const SavedSlot second = test.registry->save(SlotId(1), {}, true, *test.stream);
    EXPECT_TRUE(test.holds(2, 3)) << "seed " << seed;
    test.registry->drop(second);
    test.registry->release_save();
  }
}

TEST(SlotRegistry, AFailedCopyIsToldToWhomItConcerns) {
  for (const CopyFault fault : {CopyFault::kRefuse, CopyFault::kTear}) {
    for (std::int64_t failed = 0; failed < 4; ++failed) {
      SimOptions sim{.seed = 5};
      sim.copy_fault = [=](std::int64_t index) {
        return index == failed ? fault : CopyFault::kNone;
      };
      TestRegistry test(4, std::move(sim));
      const SavedSlot first = test.save(0);   // copy 0
      const SavedSlot second = test.save(1);  // copy 1
      SlotChanges changes;
      changes.restores = {{first, SlotId(2)}, {second, SlotId(3)}};
      test.apply(changes);  // copies 2 and 3
      test.stream->synchronize();
      for (std::int64_t i = 0; i < 2; ++i) {
        EXPECT_EQ(test.applied.restored[static_cast<std::size_t>(i)].wait(),
                  failed % 2 == i ? EventStatus::kFailed : EventStatus::kSucceeded)
            << "copy " << failed << ", restore " << i;
      }
      EXPECT_EQ(test.registry->num_saved(), 0) << "its memory goes back all the same";
      test.registry->release_save();
      test.registry->release_save();
      test.registry->check_invariants();
    }
  }
}

// --- What comes next: entries of others, through the manager.

class SlotEntries : public testing::TestWithParam<ReplayPlacement> {
 protected:
  WorldOptions options(SlotEntry entry) const {
    WorldOptions made;
    made.placement = GetParam();
    made.num_slots = 3;
    made.host_bytes = 2 << 20;
    made.slot_entries = {std::move(entry)};
    return made;
  }
};

// Suspended, robbed, resumed elsewhere, relocated: its entry is its own.
void expect_entry_follows(Puppets& world, std::string_view name) {
  const auto entry = [&](std::uint64_t id) {
    world.manager->synchronize();
    const SlotRegistry& registry = world.state().registry();
    const auto at = std::ranges::find(registry.entries(), name, &SlotEntry::name);
    const std::byte* const from = registry.address(name, world.slot_of(id));
    return std::vector<std::byte>(from, from + at->bytes_per_layer * at->num_layers);
  };
  for (const std::uint64_t id : {1, 2, 3}) {
    world.enter(id);
    world.round(id, 1, static_cast<std::uint32_t>(id));
  }
  const std::vector<std::byte> own = entry(1);
  const SlotId before = world.slot_of(1);
  world.suspend(1);
  world.enter(4);
  world.round(4, 3, 4);
  ASSERT_EQ(world.slot_of(4), before);
  world.manager->free_resources(RequestId(2));
  world.wake(1);
  EXPECT_NE(world.slot_of(1), before);
  EXPECT_EQ(entry(1), own);
  // Its page becomes a snapshot; it goes on elsewhere.
  world.manager->free_resources(RequestId(3));
  const SlotId second = world.slot_of(1);
  const Tokens prompt = numbers(10, 7);
  ASSERT_TRUE(world.manager->commit_pending(RequestId(1), 0).has_value());
  ASSERT_TRUE(world.manager->publish(RequestId(1), prompt, {.written = {}, .with_snapshot = true}));
  world.set_up({world.next_row(1)});
  EXPECT_NE(world.slot_of(1), second);
  EXPECT_EQ(entry(1), own);
  EXPECT_EQ(world.manager->counters().relocations, 1);
  world.manager->audit();
}

TEST_P(SlotEntries, PerTokenStatesFollowTheirRequest) {
  const KdaShape shape = WorldOptions().shape;
  Puppets world(options({.name = "kda_state_tok",
                         .bytes_per_layer = 3 * shape.state_bytes(),
                         .num_layers = 2,
                         .is_record = true}));
  expect_entry_follows(world, "kda_state_tok");
}

TEST_P(SlotEntries, AMamba2HistoryFollowsItsRequest) {
  // Two halves that take turns, and which of them counts.
  Puppets world(options(
      {.name = "mamba2_history",
       .bytes_per_layer = 2 * 512 + 4,
       .num_layers = 2,
       .reset = [](std::span<std::byte> bytes) { std::ranges::fill(bytes, std::byte{0}); }}));
  expect_entry_follows(world, "mamba2_history");
}

TEST_P(SlotEntries, ASeedIsDrawnForWhoIsNewAndStaysWithWhoSleeps) {
  auto next = std::make_shared<std::uint64_t>(100);
  Puppets world(options(
      {.name = "rand_seed", .bytes_per_layer = 8, .reset = [next](std::span<std::byte> bytes) {
         const std::uint64_t drawn = (*next)++;
         std::memcpy(bytes.data(), &drawn, sizeof drawn);
       }}));
  const auto seed = [&](std::uint64_t id) {
    world.manager->synchronize();
    std::uint64_t found = 0;
    std::memcpy(&found, world.state().registry().address("rand_seed", world.slot_of(id)), 8);
    return found;
  };
  for (const std::uint64_t id : {1, 2, 3}) {
    world.enter(id);
    EXPECT_EQ(seed(id), 99 + id);
  }
  world.verify(1);
  world.accept(1, 2);
  EXPECT_EQ(seed(1), 100u) << "drawn once";
  world.suspend(1);
  world.enter(4);
  EXPECT_EQ(seed(4), 103u);
  world.suspend(2);
  world.wake(1);
  EXPECT_EQ(seed(1), 100u);
  // Who comes back as context is new.
  const Tokens prompt = numbers(10, 6);
  ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.read_prompt(1, 6);
  EXPECT_EQ(seed(1), 104u);
  EXPECT_EQ(seed(3), 102u);
}

// A save or a restore that fails costs a recompute, never an error: the request comes back as
// context, and the others go on.
TEST_P(SlotEntries, AFailedCopyCostsItsRequestARecompute) {
  std::int64_t num_lost = 0;
  std::int64_t last = 1;
  for (std::int64_t failed = 0; failed < last; ++failed) {
    SCOPED_TRACE(testing::Message() << "copy " << failed << " fails");
    SimOptions sim{.seed = 9};
    sim.copy_fault = [=](std::int64_t index) {
      return index == failed ? CopyFault::kTear : CopyFault::kNone;
    };
    auto device = std::make_unique<SimDevice>(std::move(sim));
    const SimDevice& copies = *device;
    WorldOptions wanted = options({.name = "probe", .bytes_per_layer = 32});
    wanted.num_slots = 2;
    Puppets world(wanted, std::move(device));
    world.enter(1);
    world.round(1, 2, 91);
    const std::vector<std::byte> own = world.contents(1);
    world.enter(2);
    world.round(2, 1, 92);
    const std::vector<std::byte> others = world.contents(2);
    world.suspend(1);
    world.enter(3);
    world.manager->free_resources(RequestId(3));
    const Result<device::Event> resumed = world.manager->resume_request(RequestId(1));
    bool is_lost = !resumed.has_value();
    if (!is_lost && world.manager->resize(RequestId(1), 60).has_value()) {
      const BatchSetup setup = world.set_up({world.next_row(1), world.next_row(2)});
      ASSERT_EQ(setup.rows.size() + setup.lost.size(), 2u);
      is_lost = !setup.lost.empty() || setup.rows[0].ready.wait() == EventStatus::kFailed;
      EXPECT_NE(setup.rows.back().ready.wait(), EventStatus::kFailed) << "nobody else is lost";
      if (!is_lost) {
        EXPECT_EQ(world.contents(1), own);
      }
      // Whoever was told says the same next time.
      if (is_lost) {
        world.set_up({world.next_row(2)});
        BatchSetup again;
        const std::vector<BatchRow> rows = {world.next_row(1)};
        ASSERT_TRUE(world.manager->setup_state_indices(rows, again).has_value());
        EXPECT_EQ(again.lost, std::vector<RequestId>{RequestId(1)});
      }
    }
    EXPECT_EQ(world.contents(2), others);
    num_lost += is_lost ? 1 : 0;
    if (is_lost) {
      const Tokens prompt = numbers(10, 6);
      ASSERT_TRUE(world.manager->restart_request(RequestId(1), prompt).has_value());
      world.resume(1);
      ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
      world.read_prompt(1, 6);
      EXPECT_EQ(world.device_pending(1), 0);
    }
    world.manager->audit();
    last = copies.num_copies();
  }
  EXPECT_GE(num_lost, 2);
}

// What was restored in vain is not saved as if it had come.
TEST_P(SlotEntries, WhatDidNotArriveStaysLostThroughTheNextSuspend) {
  auto is_broken = std::make_shared<bool>(false);
  SimOptions sim{.seed = 4};
  sim.copy_fault = [=](std::int64_t) { return *is_broken ? CopyFault::kRefuse : CopyFault::kNone; };
  WorldOptions wanted = options({.name = "probe", .bytes_per_layer = 32});
  Puppets world(wanted, std::make_unique<SimDevice>(std::move(sim)));
  world.enter(1);
  world.round(1, 2, 93);
  world.suspend(1);
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  world.manager->synchronize();
  *is_broken = true;
  world.set_up({world.next_row(1)});
  *is_broken = false;
  world.suspend(1);
  world.manager->synchronize();
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  EXPECT_EQ(world.set_up({world.next_row(1)}).lost, std::vector<RequestId>{RequestId(1)});
  EXPECT_EQ(world.manager->counters().lost_requests, 1);
}

INSTANTIATE_TEST_SUITE_P(Placements, SlotEntries,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
