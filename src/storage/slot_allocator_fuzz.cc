// Random operations on a SlotAllocator and on a naive one, compared after each.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=2000000 slackwater_storage_test
//       --gtest_filter='SlotAllocatorModel*'

#include <algorithm>
#include <deque>
#include <optional>
#include <random>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/storage/slot_allocator.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::storage {
namespace {

using device::Event;
using device::EventSource;
using device::EventState;
using device::EventStatus;

// The contract, written down as slowly as it reads.
class NaiveAllocator {
 public:
  struct Free {
    std::int32_t slot;
    Event last_use;
  };

  std::optional<SlotGrant> allocate() {
    if (ready.empty()) {
      std::deque<Free> still_pending;
      for (std::size_t i = 0; i < pending.size(); ++i) {
        const bool is_done = i < 8 && pending[i].last_use.is_done();
        (is_done ? ready : still_pending)
            .push_back(is_done ? Free{pending[i].slot, {}} : pending[i]);
      }
      pending = still_pending;
    }
    Free taken{};
    if (!ready.empty()) {
      taken = ready.front();
      ready.pop_front();
    } else if (high_water < end()) {
      taken.slot = high_water++;
    } else if (!pending.empty()) {
      taken = pending.front();
      pending.pop_front();
    } else {
      return std::nullopt;
    }
    occupied.push_back(taken.slot);
    return SlotGrant{SlotId(taken.slot), taken.last_use};
  }

  void release(std::int32_t slot, const Event& last_use) {
    std::erase(occupied, slot);
    if (slot >= end()) {
      overflow.push_back({slot, last_use});
    } else {
      add({slot, last_use});
    }
  }

  void begin_shrink(std::int32_t new_capacity) {
    shrink_end = new_capacity;
    for (std::deque<Free>* queue : {&ready, &pending}) {
      for (const Free& free : *queue) {
        if (free.slot >= new_capacity) overflow.push_back(free);
      }
      std::erase_if(*queue, [&](const Free& free) { return free.slot >= new_capacity; });
    }
  }

  std::vector<SlotId> slots_to_vacate() const {
    std::vector<SlotId> slots;
    for (const std::int32_t slot : occupied) {
      if (slot >= end()) slots.emplace_back(slot);
    }
    std::sort(slots.begin(), slots.end());
    return slots;
  }

  void finish_shrink() {
    capacity = *shrink_end;
    high_water = std::min(high_water, capacity);
    overflow.clear();
    shrink_end.reset();
  }

  void cancel_shrink() {
    shrink_end.reset();
    std::sort(overflow.begin(), overflow.end(),
              [](const Free& a, const Free& b) { return a.slot < b.slot; });
    for (const Free& free : overflow) add(free);
    overflow.clear();
  }

  std::int32_t end() const { return shrink_end.value_or(capacity); }
  std::int32_t num_free() const {
    return end() -
           static_cast<std::int32_t>(std::count_if(occupied.begin(), occupied.end(),
                                                   [&](std::int32_t s) { return s < end(); }));
  }

  std::int32_t capacity = 0;
  std::int32_t high_water = 0;
  std::optional<std::int32_t> shrink_end;
  std::vector<std::int32_t> occupied;
  std::deque<Free> ready;
  std::deque<Free> pending;
  std::vector<Free> overflow;

 private:
  void add(const Free& free) {
    if (free.last_use.is_done()) {
      ready.push_back({free.slot, {}});
    } else {
      pending.push_back(free);
    }
  }
};

// Both allocators under one seed's mixture of operations.
class SlotAllocatorModel {
 public:
  explicit SlotAllocatorModel(std::uint64_t seed) : random_(seed), weights_(random_) {}

  // `done_before` is only for the message of a failure.
  void run(std::int64_t num_operations, std::int64_t done_before) {
    for (std::int64_t i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "after " << done_before + i << " operations");
      step();
      compare();
    }
  }

 private:
  enum Operation { kAllocate, kRelease, kReleasePending, kFinishEvent, kGrow, kShrink, kCount };

  void step() {
    switch (static_cast<Operation>(weights_.draw(random_))) {
      case kAllocate: return allocate();
      case kRelease: return release({});
      case kReleasePending: {
        open_.emplace_back(Event(new EventState("the model")));
        return release(open_.back().event());
      }
      case kFinishEvent: return finish_event();
      case kGrow: return grow();
      case kShrink: return shrink();
      case kCount: break;
    }
  }

  std::size_t below(std::size_t bound) { return static_cast<std::size_t>(random_() % bound); }

  void allocate() {
    const auto got = real_.allocate();
    const auto want = naive_.allocate();
    ASSERT_EQ(got.has_value(), want.has_value());
    if (!got.has_value()) return;
    ASSERT_EQ(got->slot, want->slot);
    ASSERT_EQ(got->ready, want->ready);
  }

  void release(const Event& last_use) {
    if (naive_.occupied.empty()) return;
    const std::int32_t slot = naive_.occupied[below(naive_.occupied.size())];
    real_.release(SlotId(slot), last_use);
    naive_.release(slot, last_use);
  }

  void finish_event() {
    if (open_.empty()) return;
    std::swap(open_[below(open_.size())], open_.back());
    open_.back().complete(random_() % 2 == 0 ? EventStatus::kSucceeded : EventStatus::kFailed);
    open_.pop_back();
  }

  void grow() {
    if (naive_.shrink_end.has_value() || naive_.capacity > 200) return;
    const auto added = static_cast<std::int32_t>(below(20));
    real_.grow(naive_.capacity + added);
    naive_.capacity += added;
  }

  // Begins a shrink, or takes the one under way a step further.
  void shrink() {
    if (!naive_.shrink_end.has_value()) {
      const auto capacity =
          static_cast<std::int32_t>(below(static_cast<std::size_t>(naive_.capacity) + 1));
      real_.begin_shrink(capacity);
      naive_.begin_shrink(capacity);
      return;
    }
    const std::vector<SlotId> to_vacate = naive_.slots_to_vacate();
    ASSERT_EQ(real_.slots_to_vacate(), to_vacate);
    if (random_() % 4 == 0) {
      real_.cancel_shrink();
      naive_.cancel_shrink();
    } else if (to_vacate.empty()) {
      std::size_t num_open = 0;
      for (const auto& free : naive_.overflow) num_open += free.last_use.is_done() ? 0 : 1;
      ASSERT_EQ(real_.finish_shrink().size(), num_open);
      naive_.finish_shrink();
    } else {
      for (const SlotId slot : to_vacate) {
        real_.release(slot);
        naive_.release(slot.value(), {});
      }
    }
  }

  void compare() const {
    real_.check_invariants();
    ASSERT_EQ(real_.capacity(), naive_.capacity);
    ASSERT_EQ(real_.high_water(), naive_.high_water);
    ASSERT_EQ(real_.num_occupied(), static_cast<std::int32_t>(naive_.occupied.size()));
    ASSERT_EQ(real_.num_overflow(), static_cast<std::int32_t>(naive_.overflow.size()));
    ASSERT_EQ(real_.num_free(), naive_.num_free());
    ASSERT_EQ(real_.is_shrinking(), naive_.shrink_end.has_value());
    for (const std::int32_t slot : naive_.occupied) ASSERT_TRUE(real_.is_occupied(SlotId(slot)));
  }

  std::mt19937_64 random_;
  OperationWeights<kCount> weights_;
  SlotAllocator real_;
  NaiveAllocator naive_;
  std::vector<EventSource> open_;
};

TEST(SlotAllocatorModel, AgreesWithTheNaiveOne) {
  const std::uint64_t seed = test_seed();
  constexpr std::int64_t kPerSeed = 1000;
  const std::int64_t num_operations = test_operations(100'000);
  for (std::int64_t done = 0, round = 0; done < num_operations; done += kPerSeed, ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + static_cast<std::uint64_t>(round));
    SlotAllocatorModel(seed + static_cast<std::uint64_t>(round)).run(kPerSeed, done);
    if (testing::Test::HasFailure()) return;
  }
}

}  // namespace
}  // namespace slackwater::storage
