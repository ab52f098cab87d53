#include "slackwater/storage/slot_allocator.h"

#include <vector>

#include <gtest/gtest.h>

#include "testing/allocation_counter.h"

namespace slackwater::storage {
namespace {

using device::Event;
using device::EventSource;
using device::EventState;
using device::EventStatus;

EventSource make_source() { return EventSource(Event(new EventState("the test"))); }

// Allocates a slot that must be there; returns its number.
std::int32_t take(SlotAllocator& slots) {
  const auto grant = slots.allocate();
  EXPECT_TRUE(grant.has_value());
  return grant.has_value() ? grant->slot.value() : -1;
}

std::vector<std::int32_t> take_all(SlotAllocator& slots) {
  std::vector<std::int32_t> taken;
  while (const auto grant = slots.allocate()) taken.push_back(grant->slot.value());
  return taken;
}

TEST(SlotAllocator, HandsOutFreshSlotsInAscendingOrder) {
  SlotAllocator slots(3);
  EXPECT_EQ(slots.num_free(), 3);
  EXPECT_EQ(take_all(slots), (std::vector<std::int32_t>{0, 1, 2}));
  EXPECT_EQ(slots.num_free(), 0);
  EXPECT_EQ(slots.num_occupied(), 3);
  EXPECT_FALSE(slots.allocate().has_value());
  slots.check_invariants();
}

TEST(SlotAllocator, PrefersTheReadySlotThatWasReleasedFirst) {
  SlotAllocator slots(5);
  for (int i = 0; i < 4; ++i) take(slots);
  EXPECT_TRUE(slots.release(SlotId(2)));
  EXPECT_TRUE(slots.release(SlotId(0)));
  EXPECT_EQ(take_all(slots), (std::vector<std::int32_t>{2, 0, 4})) << "ready before fresh";
}

TEST(SlotAllocator, TakesAPendingSlotOnlyWhenNothingElseIsLeft) {
  SlotAllocator slots(3);
  take(slots);
  take(slots);
  EventSource last_use = make_source();
  EXPECT_FALSE(slots.release(SlotId(0), last_use.event()));
  EXPECT_EQ(take(slots), 2) << "fresh before pending";
  const auto grant = slots.allocate();
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->slot, SlotId(0));
  EXPECT_EQ(grant->ready, last_use.event()) << "whoever takes it waits for its last use";
}

TEST(SlotAllocator, AFinishedLastUseMakesASlotReady) {
  SlotAllocator slots(3);
  take(slots);
  take(slots);
  EventSource last_use = make_source();
  slots.release(SlotId(1), last_use.event());
  last_use.complete(EventStatus::kFailed);
  const auto grant = slots.allocate();
  ASSERT_TRUE(grant.has_value());
  EXPECT_EQ(grant->slot, SlotId(1)) << "ready before fresh, whatever became of the work";
  EXPECT_TRUE(grant->ready.is_null());
}

TEST(SlotAllocator, AStuckEventHoldsUpNobody) {
  SlotAllocator slots(3);
  EXPECT_EQ(take_all(slots).size(), 3u);
  const EventSource stuck = make_source();
  EventSource quick = make_source();
  slots.release(SlotId(0), stuck.event());
  slots.release(SlotId(1), quick.event());
  slots.release(SlotId(2), stuck.event());
  quick.complete(EventStatus::kSucceeded);
  EXPECT_EQ(take_all(slots), (std::vector<std::int32_t>{1, 0, 2}));
}

// kvcm_v2 7.1, shrink_underused_pool.
TEST(SlotAllocator, ShrinksAnUnderusedPoolByCuttingIt) {
  SlotAllocator slots(184064);
  for (int i = 0; i < 2048; ++i) take(slots);
  slots.begin_shrink(122624);
  EXPECT_EQ(slots.num_overflow(), 0);
  EXPECT_TRUE(slots.slots_to_vacate().empty());
  EXPECT_TRUE(slots.finish_shrink().empty());
  EXPECT_EQ(slots.high_water(), 2048);
  EXPECT_EQ(slots.capacity(), 122624);
  slots.check_invariants();
}

// kvcm_v2 7.1, shrink_touched_pool.
TEST(SlotAllocator, ShrinksATouchedPoolWithItsFreeSlotsInOverflow) {
  SlotAllocator slots(16);
  for (const std::int32_t slot : take_all(slots)) slots.release(SlotId(slot));
  slots.begin_shrink(8);
  EXPECT_EQ(slots.num_overflow(), 8);
  slots.check_invariants();
  EXPECT_TRUE(slots.finish_shrink().empty());
  EXPECT_EQ(slots.high_water(), 8);
  EXPECT_EQ(take_all(slots).size(), 8u);
}

TEST(SlotAllocator, AShrinkNamesTheSlotsToVacateAndWaitsForThem) {
  SlotAllocator slots(6);
  take_all(slots);
  slots.release(SlotId(1));
  slots.begin_shrink(4);
  EXPECT_EQ(slots.slots_to_vacate(), (std::vector<SlotId>{SlotId(4), SlotId(5)}));
  EXPECT_EQ(slots.num_free(), 1);
  EXPECT_EQ(take(slots), 1) << "the page of slot 4 moves here";
  EXPECT_FALSE(slots.allocate().has_value()) << "nothing past the end is handed out";
  const EventSource copy = make_source();
  slots.release(SlotId(4), copy.event());
  slots.release(SlotId(5));
  slots.check_invariants();
  EXPECT_EQ(slots.finish_shrink(), std::vector<Event>{copy.event()});
  EXPECT_EQ(slots.capacity(), 4);
  slots.check_invariants();
}

TEST(SlotAllocator, ACancelledShrinkGivesEverythingBack) {
  SlotAllocator slots(6);
  take_all(slots);
  slots.release(SlotId(5));
  const EventSource last_use = make_source();
  slots.begin_shrink(3);
  slots.release(SlotId(3), last_use.event());
  EXPECT_EQ(slots.num_free(), 0);
  slots.cancel_shrink();
  slots.check_invariants();
  EXPECT_EQ(slots.num_free(), 2);
  EXPECT_EQ(take_all(slots), (std::vector<std::int32_t>{5, 3}));
}

TEST(SlotAllocator, GrowsWithFreshSlots) {
  SlotAllocator slots(1);
  EXPECT_EQ(take(slots), 0);
  slots.grow(3);
  EXPECT_EQ(take_all(slots), (std::vector<std::int32_t>{1, 2}));
  slots.grow(3);
  slots.check_invariants();
}

TEST(SlotAllocator, KnowsWhichSlotsAreOccupied) {
  SlotAllocator slots(2);
  take(slots);
  EXPECT_TRUE(slots.is_occupied(SlotId(0)));
  EXPECT_FALSE(slots.is_occupied(SlotId(1)));
  EXPECT_FALSE(slots.is_occupied(SlotId(2)));
  EXPECT_FALSE(slots.is_occupied(SlotId(-1)));
}

TEST(SlotAllocator, AllocatesNothingOnTheHeap) {
  SlotAllocator slots(64);
  const EventSource last_use = make_source();
  const std::int64_t before = num_heap_allocations();
  for (int round = 0; round < 100; ++round) {
    const auto grant = slots.allocate();
    slots.release(grant->slot, round % 2 == 0 ? last_use.event() : Event());
  }
  EXPECT_EQ(num_heap_allocations(), before);
}

TEST(SlotAllocatorDeathTest, MistakesOfTheCallerAreNamed) {
  SlotAllocator slots(4);
  take(slots);
  EXPECT_DEATH(slots.release(SlotId(1)), "release of slot 1, which is not occupied; 1 are of 4");
  EXPECT_DEATH(slots.release(SlotId(7)), "release of slot 7");
  EXPECT_DEATH(slots.grow(3), "growth from 4 to 3");
  EXPECT_DEATH(slots.finish_shrink(), "did not begin");
  EXPECT_DEATH(slots.begin_shrink(5), "from 4 to 5");
  slots.begin_shrink(0);
  EXPECT_DEATH(slots.finish_shrink(), "ends with 1 occupied");
  EXPECT_DEATH(slots.grow(9), "during a shrink");
  EXPECT_DEATH(slots.begin_shrink(0), "within another");
}

}  // namespace
}  // namespace slackwater::storage
