#ifndef SLACKWATER_STORAGE_SLOT_ALLOCATOR_H_
#define SLACKWATER_STORAGE_SLOT_ALLOCATOR_H_

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "slackwater/base/check.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/mutant.h"
#include "slackwater/device/event.h"

namespace slackwater::storage {

// A slot, and the event after which its bytes may be touched.
struct SlotGrant {
  SlotId slot;
  device::Event ready;
};

// Which slots of a pool group are free, and when.
//
// A slot is handed out together with the event of its last use: whoever takes it waits for that
// event on its own stream. So a slot can be released while a step or a copy still reads it, and
// nobody waits on the host.
//
// Life of a slot id:
//   fresh     -> occupied   first allocation, ids ascending
//   occupied  -> ready      released, and its last use has ended
//   occupied  -> pending    released, its last use is still under way
//   pending   -> ready      seen done by a later call
//   ready, pending -> occupied   allocated again
//   occupied, ready, pending -> overflow   while a shrink is under way, ids past the new end
//   overflow  -> gone       when the shrink ends;  -> ready or pending when it is cancelled
//
// Allocation prefers ready slots, longest released first; then fresh ids, ascending; then the
// pending slot that was released first. A pending slot counts as ready once its event was looked
// at, and a call looks at the eight that were released first: the order never depends on how many
// wait, and a stuck event holds up nobody.
//
// Source: the slot allocator of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 3.11.
// Invariants (check_invariants, O(slots)):
//   I1  ready + pending + overflow + occupied == high_water <= capacity
//   I2  every id below high_water is in exactly one of these states; ids above it are fresh
//   I3  overflow > 0 only while a shrink is under way, and only ids past its end are in it
//   I4  no id at or past the end of a shrink under way is handed out
// Ownership: owns the numbers, not the bytes; holds the event of each free slot's last use.
// Threads: one thread at a time.
// Errors: allocate() returns nothing when no slot is left. Releasing what is not occupied, and a
// shrink out of order, are CHECKs.
// Cost: allocate and release are O(1), no heap allocation; 16 bytes a slot.
class SlotAllocator {
 public:
  // `capacity` >= 0.
  explicit SlotAllocator(std::int32_t capacity = 0);

  std::optional<SlotGrant> allocate();
  // The slot is free once `last_use` and all noted uses are done, whatever their status; true when
  // that is so already.
  bool release(SlotId slot, const device::Event& last_use = {});

  // One more use of an occupied slot, under way until `event` is done. Its release counts it too.
  void note_use(SlotId slot, const device::Event& event);

  // A number of the owner's that an occupied slot carries; 0 when it is handed out.
  void set_tag(SlotId slot, std::int32_t tag);
  std::int32_t tag(SlotId slot) const;

  std::int32_t capacity() const { return capacity_; }
  std::int32_t high_water() const { return high_water_; }
  std::int32_t num_occupied() const { return num_occupied_; }
  // What allocate() can still hand out.
  std::int32_t num_free() const { return issue_end() - (num_occupied_ - num_occupied_past_end_); }
  std::int32_t num_overflow() const { return num_overflow_; }
  bool is_occupied(SlotId slot) const;
  // A hint that a slot will be released soon.
  void prefetch(SlotId slot) const { __builtin_prefetch(entries_.data() + slot.value()); }
  bool is_shrinking() const { return shrink_end_.has_value(); }

  // `capacity` >= the present one. CHECK: no shrink is under way.
  void grow(std::int32_t capacity);

  // Shrinks in two steps, between which occupied slots past the end are vacated: by moving their
  // contents to slots that allocate() hands out, or by releasing them.
  //   begin: no slot at or past `capacity` is handed out any more
  //   finish: CHECK that all of them are vacated; the events returned are those of their last
  //           uses, which the caller waits for before it takes the bytes away
  //   cancel: ids past the end are handed out again; those vacated queue up last
  void begin_shrink(std::int32_t capacity);
  // Occupied slots at or past the end of the shrink under way, ascending.
  std::vector<SlotId> slots_to_vacate() const;
  std::vector<device::Event> finish_shrink();
  void cancel_shrink();

  // A line for people.
  std::string describe() const;
  // Aborts with the invariant's number and the figures when one does not hold.
  void check_invariants() const;

 private:
  enum class State : std::uint8_t { kFresh, kOccupied, kReady, kPending, kOverflow };

  // A slot's place in the lists of free slots.
  struct Entry {
    device::Event last_use;     // uses known so far; of a free slot, all
    std::int32_t next = kNone;  // of a free slot; of an occupied one, its tag
    State state = State::kFresh;
  };
  static constexpr std::int32_t kNone = -1;  // the end of a list; never leaves this class

  // A queue of slots, linked through `entries_`.
  struct Queue {
    std::int32_t first = kNone;
    std::int32_t last = kNone;
    std::int32_t size = 0;
  };

  std::int32_t issue_end() const { return shrink_end_.value_or(capacity_); }
  Entry& entry(std::int32_t slot) { return entries_[static_cast<std::size_t>(slot)]; }
  const Entry& entry(std::int32_t slot) const { return entries_[static_cast<std::size_t>(slot)]; }
  std::optional<SlotGrant> allocate_other();
  void add_use(SlotId slot, const device::Event& event);
  void occupy(std::int32_t slot);
  void push(Queue& queue, std::int32_t slot, State state);
  void remove_after(Queue& queue, std::int32_t before);
  void note_finished();
  bool add_free(std::int32_t slot);
  SlotGrant take_first(Queue& queue);
  void set_aside(Queue& queue, std::int32_t end);

  std::int32_t capacity_ = 0;
  std::int32_t high_water_ = 0;
  std::int32_t num_occupied_ = 0;
  std::int32_t num_occupied_past_end_ = 0;  // of a shrink under way
  std::int32_t num_overflow_ = 0;
  std::optional<std::int32_t> shrink_end_;
  Queue ready_;
  Queue pending_;
  std::vector<Entry> entries_;  // [capacity]
};

// Small enough to be worth more where they are called.

inline bool SlotAllocator::is_occupied(SlotId slot) const {
  return 0 <= slot.value() && slot.value() < capacity_ &&
         entry(slot.value()).state == State::kOccupied;
}

inline std::optional<SlotGrant> SlotAllocator::allocate() {
  return ready_.size > 0 ? take_first(ready_) : allocate_other();
}

inline void SlotAllocator::note_use(SlotId slot, const device::Event& event) {
  SLACKWATER_CHECK(is_occupied(slot),
                   "use or release of slot {}, which is not occupied; {} are of {}", slot.value(),
                   num_occupied_, capacity_);
  if (!event.is_null()) add_use(slot, event);
}

inline bool SlotAllocator::release(SlotId slot, const device::Event& last_use) {
  note_use(slot, last_use);
  --num_occupied_;
  if (slot.value() < issue_end()) return add_free(slot.value());
  entry(slot.value()).state = State::kOverflow;
  --num_occupied_past_end_;
  ++num_overflow_;
  return entry(slot.value()).last_use.is_done();
}

inline void SlotAllocator::set_tag(SlotId slot, std::int32_t tag) {
  SLACKWATER_DCHECK(is_occupied(slot), "a tag for slot {}, which is not occupied", slot.value());
  entry(slot.value()).next = tag;
}

inline void SlotAllocator::occupy(std::int32_t slot) {
  entry(slot).state = State::kOccupied;
  entry(slot).next = 0;
  ++num_occupied_;
}

inline void SlotAllocator::push(Queue& queue, std::int32_t slot, State state) {
  Entry& added = entry(slot);
  added.state = state;
  added.next = kNone;
  if (queue.size++ == 0) {
    queue.first = slot;
  } else {
    entry(queue.last).next = slot;
  }
  queue.last = slot;
}

// Unlinks the slot that follows `before`, or the first one for kNone.
inline void SlotAllocator::remove_after(Queue& queue, std::int32_t before) {
  const std::int32_t slot = before == kNone ? queue.first : entry(before).next;
  const std::int32_t next = entry(slot).next;
  (before == kNone ? queue.first : entry(before).next) = next;
  if (queue.last == slot) queue.last = before;
  --queue.size;
}

// Queues a slot that belongs to no list, by what has become of its last use; true when that is
// over.
inline bool SlotAllocator::add_free(std::int32_t slot) {
  const bool is_over = entry(slot).last_use.is_done() || SLACKWATER_MUTANT(slot_forgets_last_use);
  if (is_over) {
    entry(slot).last_use = {};
    push(ready_, slot, State::kReady);
  } else {
    push(pending_, slot, State::kPending);
  }
  return is_over;
}

inline SlotGrant SlotAllocator::take_first(Queue& queue) {
  const std::int32_t slot = queue.first;
  remove_after(queue, kNone);
  occupy(slot);
  return {SlotId(slot), std::exchange(entry(slot).last_use, {})};
}

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_SLOT_ALLOCATOR_H_
