#include "cache/eviction_queue.h"

#include <bit>

#include "slackwater/base/check.h"

namespace slackwater::cache {

std::uint32_t EvictionQueue::new_entry(std::uint64_t subject, Priority priority) {
  std::uint32_t index = first_free_;
  if (index == kNone) {
    index = static_cast<std::uint32_t>(entries_.size());
    entries_.emplace_back();
  } else {
    first_free_ = entries_[index].next;
  }
  entries_[index] = {kNone, kNone, subject, priority, true, false};
  ++size_;
  return index;
}

QueuePlace EvictionQueue::push(std::uint64_t subject, Priority priority) {
  SLACKWATER_DCHECK(priority <= kMaxPriority, "priority {}", priority);
  const std::uint32_t index = new_entry(subject, priority);
  List& list = lists_[priority];
  entries_[index].previous = list.last;
  if (list.last == kNone) {
    list.first = index;
    is_filled_[priority / 64] |= std::uint64_t{1} << (priority % 64);
  } else {
    entries_[list.last].next = index;
  }
  list.last = index;
  return {index};
}

QueuePlace EvictionQueue::push_after(QueuePlace other, std::uint64_t subject) {
  const std::uint32_t index = new_entry(subject, entries_[other.index].priority);
  Entry& before = entries_[other.index];
  SLACKWATER_CHECK(before.is_taken, "place {} is not taken", other.index);
  Entry& entry = entries_[index];
  entry.previous = other.index;
  entry.next = before.next;
  if (before.next == kNone) {
    lists_[before.priority].last = index;
  } else {
    entries_[before.next].previous = index;
  }
  before.next = index;
  return {index};
}

void EvictionQueue::remove(QueuePlace place) {
  SLACKWATER_CHECK(place.index < entries_.size() && entries_[place.index].is_taken,
                   "place {} is not taken", place.index);
  SLACKWATER_CHECK(!entries_[place.index].is_hidden, "place {} is hidden", place.index);
  unlink(entries_[place.index]);
  free(place.index);
}

void EvictionQueue::unlink(Entry& entry) {
  List& list = lists_[entry.priority];
  (entry.previous == kNone ? list.first : entries_[entry.previous].next) = entry.next;
  (entry.next == kNone ? list.last : entries_[entry.next].previous) = entry.previous;
  if (list.first == kNone) {
    is_filled_[entry.priority / 64] &= ~(std::uint64_t{1} << (entry.priority % 64));
  }
  --size_;
}

void EvictionQueue::free(std::uint32_t index) {
  entries_[index] = {kNone, first_free_, 0, 0, false, false};
  first_free_ = index;
}

void EvictionQueue::hide(QueuePlace place) {
  Entry& entry = entries_[place.index];
  SLACKWATER_CHECK(entry.is_taken && !entry.is_hidden, "place {} cannot be hidden", place.index);
  unlink(entry);
  entry.is_hidden = true;
}

// It still knows its neighbours, and they are as they were when it was hidden.
void EvictionQueue::restore(QueuePlace place) {
  Entry& entry = entries_[place.index];
  SLACKWATER_CHECK(entry.is_hidden, "place {} is not hidden", place.index);
  List& list = lists_[entry.priority];
  (entry.previous == kNone ? list.first : entries_[entry.previous].next) = place.index;
  (entry.next == kNone ? list.last : entries_[entry.next].previous) = place.index;
  is_filled_[entry.priority / 64] |= std::uint64_t{1} << (entry.priority % 64);
  entry.is_hidden = false;
  ++size_;
}

void EvictionQueue::remove_hidden(QueuePlace place) {
  SLACKWATER_CHECK(entries_[place.index].is_hidden, "place {} is not hidden", place.index);
  free(place.index);
}

QueuePlace EvictionQueue::first_from(std::size_t priority) const {
  for (std::size_t word = priority / 64; word < is_filled_.size(); ++word) {
    const std::uint64_t bits = word == priority / 64
                                   ? is_filled_[word] & (~std::uint64_t{0} << (priority % 64))
                                   : is_filled_[word];
    if (bits == 0) continue;
    return {lists_[word * 64 + static_cast<std::size_t>(std::countr_zero(bits))].first};
  }
  return {};
}

QueuePlace EvictionQueue::first() const { return first_from(0); }

QueuePlace EvictionQueue::next(QueuePlace place) const {
  const Entry& entry = entries_[place.index];
  if (entry.next != kNone) return {entry.next};
  return first_from(std::size_t{entry.priority} + 1);
}

void EvictionQueue::check_invariants() const {
  std::size_t num_linked = 0;
  for (std::size_t priority = 0; priority < kNumPriorities; ++priority) {
    std::uint32_t before = kNone;
    for (std::uint32_t i = lists_[priority].first; i != kNone; i = entries_[i].next) {
      SLACKWATER_CHECK(entries_[i].is_taken && entries_[i].priority == priority &&
                           entries_[i].previous == before,
                       "I1: place {} in the list of priority {}", i, priority);
      before = i;
      ++num_linked;
    }
    SLACKWATER_CHECK(lists_[priority].last == before, "I1: the list of priority {} ends at {}",
                     priority, lists_[priority].last);
    const bool is_filled = (is_filled_[priority / 64] >> (priority % 64) & 1) != 0;
    SLACKWATER_CHECK(is_filled == (before != kNone), "I1: the bit of priority {}", priority);
  }
  std::size_t num_free = 0;
  for (std::uint32_t i = first_free_; i != kNone; i = entries_[i].next) ++num_free;
  SLACKWATER_CHECK(num_linked == size_ && num_linked + num_free == entries_.size(),
                   "I2: {} linked, {} free of {}", num_linked, num_free, entries_.size());
}

}  // namespace slackwater::cache
