#ifndef SLACKWATER_CACHE_STATISTICS_BOOK_H_
#define SLACKWATER_CACHE_STATISTICS_BOOK_H_

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "cache/page_run.h"
#include "slackwater/cache/cache_statistics.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

// Adds what a request did to other uses.
void add_use(GroupUse& sum, const GroupUse& more);
void add_use(TokenUse& sum, const TokenUse& more);

// The totals of a cache, and what of them was taken before.
//
// Source: kvcm_v2.md 3.15.
// Invariants (check_invariants):
//   I1  nothing is negative, and of what was asked for no more was found.
//   I2  pages moved, by ways, are those that the store has moved.
// Ownership: none; the store outlives it.
// Threads: one that counts, or any number that read.
// Errors: none.
// Cost: O(1) to count, no heap allocation.
class StatisticsBook {
 public:
  // `device_page_bytes` [layer groups].
  StatisticsBook(const storage::TieredStore& store, std::span<const std::int64_t> page_bytes);

  void page_moved(LayerGroupId group, Tier from, Tier to);
  void page_dropped(LayerGroupId group, Tier from);
  void certificate_failed(LayerGroupId group);
  // Slots of a tier have been occupied.
  void note_slots(LayerGroupId group, Tier tier);
  // There are more slots, or fewer.
  void slots_have_changed();
  void add(LayerGroupId group, const GroupUse& use);
  void add(const TokenUse& tokens);

  std::int64_t page_bytes(LayerGroupId group, Tier tier) const;

  CacheStatistics total() const { return with_peaks(total_, peaks_); }
  // Since the last time; peaks begin anew with what is occupied now.
  CacheStatistics take();

  // `num_dropped`: pages that have left the last tier, counted by whoever drops them.
  void check_invariants(std::int64_t num_dropped) const;

 private:
  GroupStatistics& of(LayerGroupId group) { return total_.groups[index_of(group)]; }
  using Peaks = std::array<std::vector<std::int32_t>, kNumTiers>;  // [tiers][pool groups]
  CacheStatistics with_peaks(CacheStatistics statistics, const Peaks& peaks) const;
  std::int32_t num_occupied(LayerGroupId group, Tier tier) const;

  const storage::TieredStore& store_;
  const std::vector<std::int64_t> page_bytes_;  // [layer groups] on the device
  CacheStatistics total_;                       // without peaks
  CacheStatistics taken_;
  Peaks peaks_;
  Peaks peaks_since_taken_;
  // The fewest free slots since a peak was looked at: no peak is higher before there are fewer.
  Peaks least_free_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_STATISTICS_BOOK_H_
