#ifndef SLACKWATER_CACHE_EVICTION_QUEUE_H_
#define SLACKWATER_CACHE_EVICTION_QUEUE_H_

#include <array>
#include <cstdint>
#include <vector>

#include "slackwater/base/strong_int.h"
#include "slackwater/cache/priority.h"

namespace slackwater::cache {

// A place in an EvictionQueue; the default is none.
struct QueuePlace {
  std::uint32_t index = 0xFFFFFFFF;
  bool is_null() const { return index == 0xFFFFFFFF; }
  friend bool operator==(const QueuePlace&, const QueuePlace&) = default;
};

// Who leaves a pool first: the lowest priority, and within it whoever came first. Runs of pages
// stand in it, not pages: whoever owns a run takes its pages from one end.
//
// Source: kvcm_v2.md 3.11.
// Invariants (check_invariants, O(entries)):
//   I1  the order is by priority, then by when an entry was added at the end.
//   I2  every entry is in exactly one list, or in the list of free places; none is hidden.
// Ownership: owns the places; a subject is a number of the caller's.
// Threads: one at a time.
// Errors: none. CHECK: a place that is used is taken.
// Cost: O(1), no heap allocation once it has had as many entries; 24 bytes an entry.
class EvictionQueue {
 public:
  QueuePlace push(std::uint64_t subject, Priority priority);
  // Directly after another one of the same priority: leaves right after it.
  QueuePlace push_after(QueuePlace other, std::uint64_t subject);
  void remove(QueuePlace place);

  // Out of the order for a while: restore() puts it back where it was. Those that were hidden come
  // back last one first, and nothing else changes in between; or they are all removed.
  void hide(QueuePlace place);
  void restore(QueuePlace place);
  void remove_hidden(QueuePlace place);
  bool is_hidden(QueuePlace place) const { return entries_[place.index].is_hidden; }

  // In the order in which they leave.
  QueuePlace first() const;
  QueuePlace next(QueuePlace place) const;

  std::uint64_t subject(QueuePlace place) const { return entries_[place.index].subject; }
  Priority priority(QueuePlace place) const { return entries_[place.index].priority; }
  std::size_t size() const { return size_; }

  void check_invariants() const;

 private:
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  static constexpr std::size_t kNumPriorities = kMaxPriority + 1;

  struct Entry {
    std::uint32_t previous = kNone;
    std::uint32_t next = kNone;  // of a free place, the next free one
    std::uint64_t subject = 0;
    Priority priority = 0;
    bool is_taken = false;
    bool is_hidden = false;
  };
  struct List {
    std::uint32_t first = kNone;
    std::uint32_t last = kNone;
  };

  std::uint32_t new_entry(std::uint64_t subject, Priority priority);
  QueuePlace first_from(std::size_t priority) const;
  void unlink(Entry& entry);
  void free(std::uint32_t index);

  std::array<List, kNumPriorities> lists_;
  std::array<std::uint64_t, 2> is_filled_ = {};  // bit per priority
  std::vector<Entry> entries_;
  std::uint32_t first_free_ = kNone;
  std::size_t size_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_EVICTION_QUEUE_H_
