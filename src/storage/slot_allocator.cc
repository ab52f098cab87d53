#include "slackwater/storage/slot_allocator.h"

#include <algorithm>
#include <array>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::storage {
namespace {

// Pending slots looked at by one allocation.
constexpr int kLooksPerCall = 8;

}  // namespace

SlotAllocator::SlotAllocator(std::int32_t capacity) { grow(capacity); }

// Where no slot is known to be ready.
std::optional<SlotGrant> SlotAllocator::allocate_other() {
  if (pending_.size > 0) note_finished();
  if (ready_.size > 0) return take_first(ready_);
  if (high_water_ < issue_end()) {
    const std::int32_t slot = high_water_++;
    occupy(slot);
    return SlotGrant{SlotId(slot), {}};
  }
  if (pending_.size > 0) return take_first(pending_);
  return std::nullopt;
}

void SlotAllocator::add_use(SlotId slot, const device::Event& event) {
  device::Event& last_use = entry(slot.value()).last_use;
  if (last_use.is_null()) {
    last_use = event;
  } else {
    const std::array<device::Event, 2> both = {last_use, event};
    last_use = device::merge(both);
  }
}

std::int32_t SlotAllocator::tag(SlotId slot) const {
  SLACKWATER_DCHECK(is_occupied(slot), "the tag of slot {}, which is not occupied", slot.value());
  return entry(slot.value()).next;
}

void SlotAllocator::grow(std::int32_t capacity) {
  SLACKWATER_CHECK(!is_shrinking(), "growth to {} slots during a shrink", capacity);
  SLACKWATER_CHECK(capacity >= capacity_, "growth from {} to {} slots", capacity_, capacity);
  entries_.resize(static_cast<std::size_t>(capacity));
  capacity_ = capacity;
}

void SlotAllocator::begin_shrink(std::int32_t capacity) {
  SLACKWATER_CHECK(!is_shrinking(), "a shrink to {} slots within another", capacity);
  SLACKWATER_CHECK(0 <= capacity && capacity <= capacity_, "a shrink from {} to {} slots",
                   capacity_, capacity);
  shrink_end_ = capacity;
  set_aside(ready_, capacity);
  set_aside(pending_, capacity);
  num_occupied_past_end_ = static_cast<std::int32_t>(slots_to_vacate().size());
}

std::vector<SlotId> SlotAllocator::slots_to_vacate() const {
  std::vector<SlotId> slots;
  for (std::int32_t slot = issue_end(); slot < high_water_; ++slot) {
    if (entry(slot).state == State::kOccupied) slots.emplace_back(slot);
  }
  return slots;
}

std::vector<device::Event> SlotAllocator::finish_shrink() {
  SLACKWATER_CHECK(is_shrinking(), "the end of a shrink that did not begin");
  SLACKWATER_CHECK(num_occupied_past_end_ == 0, "a shrink to {} slots ends with {} occupied",
                   *shrink_end_, num_occupied_past_end_);
  std::vector<device::Event> last_uses;
  for (std::int32_t slot = *shrink_end_; slot < high_water_; ++slot) {
    device::Event& last_use = entry(slot).last_use;
    if (!last_use.is_done()) last_uses.push_back(std::move(last_use));
  }
  capacity_ = *shrink_end_;
  high_water_ = std::min(high_water_, capacity_);
  num_overflow_ = 0;
  entries_.resize(static_cast<std::size_t>(capacity_));
  shrink_end_.reset();
  return last_uses;
}

void SlotAllocator::cancel_shrink() {
  SLACKWATER_CHECK(is_shrinking(), "a shrink is cancelled that did not begin");
  const std::int32_t end = *shrink_end_;
  shrink_end_.reset();
  num_occupied_past_end_ = 0;
  for (std::int32_t slot = end; slot < high_water_; ++slot) {
    if (entry(slot).state != State::kOverflow) continue;
    --num_overflow_;
    add_free(slot);
  }
}

// Moves slots whose last use has ended from pending to ready, among the first few.
void SlotAllocator::note_finished() {
  std::int32_t before = kNone;
  std::int32_t slot = pending_.first;
  for (int looks = 0; looks < kLooksPerCall && slot != kNone; ++looks) {
    const std::int32_t next = entry(slot).next;
    if (entry(slot).last_use.is_done()) {
      remove_after(pending_, before);
      add_free(slot);
    } else {
      before = slot;
    }
    slot = next;
  }
}

// Takes the slots at or past `end` out of a queue; the others keep their order.
void SlotAllocator::set_aside(Queue& queue, std::int32_t end) {
  std::int32_t before = kNone;
  std::int32_t slot = queue.first;
  while (slot != kNone) {
    const std::int32_t next = entry(slot).next;
    if (slot >= end) {
      remove_after(queue, before);
      entry(slot).state = State::kOverflow;
      ++num_overflow_;
    } else {
      before = slot;
    }
    slot = next;
  }
}

void SlotAllocator::check_invariants() const {
  std::array<std::int32_t, 5> count = {};
  for (std::int32_t slot = 0; slot < capacity_; ++slot) {
    const State state = entry(slot).state;
    ++count[static_cast<std::size_t>(state)];
    SLACKWATER_CHECK((state == State::kFresh) == (slot >= high_water_), "I2: slot {}, {} issued",
                     slot, high_water_);
    SLACKWATER_CHECK(state != State::kOverflow || (is_shrinking() && slot >= issue_end()),
                     "I3: slot {} in overflow, {} are issued", slot, issue_end());
  }
  const auto of = [&](State state) { return count[static_cast<std::size_t>(state)]; };
  SLACKWATER_CHECK(of(State::kOccupied) == num_occupied_, "I1: {} occupied, {} counted",
                   of(State::kOccupied), num_occupied_);
  SLACKWATER_CHECK(of(State::kOverflow) == num_overflow_, "I1: {} in overflow, {} counted",
                   of(State::kOverflow), num_overflow_);
  SLACKWATER_CHECK(ready_.size + pending_.size + num_overflow_ + num_occupied_ == high_water_ &&
                       high_water_ <= capacity_,
                   "I1: {} ready + {} pending + {} overflow + {} occupied, {} issued of {}",
                   ready_.size, pending_.size, num_overflow_, num_occupied_, high_water_,
                   capacity_);
  const auto check_queue = [&](const Queue& queue, State state) {
    std::int32_t size = 0;
    for (std::int32_t slot = queue.first; slot != kNone; slot = entry(slot).next, ++size) {
      SLACKWATER_CHECK(size < queue.size && entry(slot).state == state, "I2: slot {} in a queue",
                       slot);
      SLACKWATER_CHECK(slot < issue_end(), "I4: slot {} can be handed out of {}", slot,
                       issue_end());
    }
    SLACKWATER_CHECK(size == queue.size && size == of(state), "I2: a queue of {}, {} in it",
                     queue.size, size);
  };
  check_queue(ready_, State::kReady);
  check_queue(pending_, State::kPending);
}

}  // namespace slackwater::storage
