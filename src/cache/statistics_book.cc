#include "cache/statistics_book.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::cache {
namespace {

// Calls `change` with every counter of `sum` and the same one of `more`, peaks left out.

template <class Change>
void for_each_counter(PageFlow& sum, const PageFlow& more, const Change& change) {
  change(sum.pages, more.pages);
  change(sum.bytes, more.bytes);
}

template <class Change>
void for_each_counter(SnapshotStatistics& sum, const SnapshotStatistics& more,
                      const Change& change) {
  change(sum.lookups, more.lookups);
  change(sum.hits, more.hits);
  change(sum.misses, more.misses);
  change(sum.tokens_reused, more.tokens_reused);
  change(sum.tokens_not_reused, more.tokens_not_reused);
  change(sum.hits_at_boundary, more.hits_at_boundary);
  change(sum.hits_inside_block, more.hits_inside_block);
}

template <class Change>
void for_each_counter(GroupUse& sum, const GroupUse& more, const Change& change) {
  change(sum.pages_allocated, more.pages_allocated);
  change(sum.pages_missed, more.pages_missed);
  change(sum.pages_recomputed, more.pages_recomputed);
  change(sum.pages_generated, more.pages_generated);
  change(sum.pages_reused_full, more.pages_reused_full);
  change(sum.pages_reused_partial, more.pages_reused_partial);
  for_each_counter(sum.copied, more.copied, change);
  for_each_counter(sum.copied_from_host, more.copied_from_host, change);
  for_each_counter(sum.snapshots, more.snapshots, change);
}

template <class Change>
void for_each_counter(TokenUse& sum, const TokenUse& more, const Change& change) {
  change(sum.queried, more.queried);
  change(sum.reused, more.reused);
  change(sum.recompute_queried, more.recompute_queried);
  change(sum.recompute_reused, more.recompute_reused);
  for (std::size_t t = 0; t < kNumTiers; ++t) {
    change(sum.tiers[t].queried, more.tiers[t].queried);
    change(sum.tiers[t].found, more.tiers[t].found);
  }
}

template <class Change>
void for_each_counter(GroupStatistics& sum, const GroupStatistics& more, const Change& change) {
  for_each_counter(sum.use, more.use, change);
  for (std::size_t from = 0; from < kNumTiers; ++from) {
    for (std::size_t to = 0; to < kNumTiers; ++to) {
      for_each_counter(sum.moved[from][to], more.moved[from][to], change);
    }
  }
  for_each_counter(sum.dropped, more.dropped, change);
  change(sum.certificate_failures, more.certificate_failures);
}

constexpr std::array<Tier, kNumTiers> kTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

constexpr auto kAdd = [](std::int64_t& sum, std::int64_t more) { sum += more; };
constexpr auto kSubtract = [](std::int64_t& sum, std::int64_t less) { sum -= less; };

}  // namespace

void add_use(GroupUse& sum, const GroupUse& more) { for_each_counter(sum, more, kAdd); }
void add_use(TokenUse& sum, const TokenUse& more) { for_each_counter(sum, more, kAdd); }

StatisticsBook::StatisticsBook(const storage::TieredStore& store,
                               std::span<const std::int64_t> page_bytes)
    : store_(store), page_bytes_(page_bytes.begin(), page_bytes.end()) {
  total_.groups.resize(page_bytes.size());
  taken_ = total_;
  for (const Tier tier : kTiers) {
    peaks_[index_of(tier)].resize(store.num_pool_groups(tier));
  }
  peaks_since_taken_ = peaks_;
  least_free_ = peaks_;
  slots_have_changed();
}

void StatisticsBook::slots_have_changed() {
  for (auto& of_tier : least_free_) {
    std::fill(of_tier.begin(), of_tier.end(), std::numeric_limits<std::int32_t>::max());
  }
}

std::int64_t StatisticsBook::page_bytes(LayerGroupId group, Tier tier) const {
  return tier == Tier::kDevice ? page_bytes_[index_of(group)] : store_.cold_page_bytes(group);
}

std::int32_t StatisticsBook::num_occupied(LayerGroupId group, Tier tier) const {
  if (!store_.has_tier(tier)) return 0;
  const storage::PoolStats pool = store_.pool_stats(tier, group);
  return pool.num_slots - pool.num_free;
}

void StatisticsBook::page_moved(LayerGroupId group, Tier from, Tier to) {
  PageFlow& moved = of(group).moved[index_of(from)][index_of(to)];
  ++moved.pages;
  moved.bytes += store_.cold_page_bytes(group);
  if (SLACKWATER_MUTANT(move_is_counted_twice)) ++moved.pages;
  note_slots(group, to);
}

void StatisticsBook::page_dropped(LayerGroupId group, Tier from) {
  PageFlow& dropped = of(group).dropped;
  ++dropped.pages;
  dropped.bytes += page_bytes(group, from);
}

void StatisticsBook::certificate_failed(LayerGroupId group) { ++of(group).certificate_failures; }

void StatisticsBook::note_slots(LayerGroupId group, Tier tier) {
  const std::size_t pool = store_.pool_group(tier, group);
  // Slots of the host that are kept free come and go, and are not among those counted here.
  const std::int32_t free = store_.num_usable(tier, pool);
  std::int32_t& least = least_free_[index_of(tier)][pool];
  if (free >= least && tier != Tier::kHost) return;
  least = free;
  const std::int32_t occupied = num_occupied(group, tier);
  for (Peaks* const peaks : {&peaks_, &peaks_since_taken_}) {
    std::int32_t& peak = (*peaks)[index_of(tier)][pool];
    peak = std::max(peak, occupied);
  }
}

void StatisticsBook::add(LayerGroupId group, const GroupUse& use) { add_use(of(group).use, use); }
void StatisticsBook::add(const TokenUse& tokens) { add_use(total_.tokens, tokens); }

CacheStatistics StatisticsBook::with_peaks(CacheStatistics statistics, const Peaks& peaks) const {
  for (std::size_t g = 0; g < statistics.groups.size(); ++g) {
    const LayerGroupId group(static_cast<std::int32_t>(g));
    for (const Tier tier : kTiers) {
      statistics.groups[g].peak_slots[index_of(tier)] =
          peaks[index_of(tier)][store_.pool_group(tier, group)];
    }
  }
  return statistics;
}

CacheStatistics StatisticsBook::take() {
  CacheStatistics since = with_peaks(total_, peaks_since_taken_);
  for_each_counter(since.tokens, taken_.tokens, kSubtract);
  for (std::size_t g = 0; g < since.groups.size(); ++g) {
    for_each_counter(since.groups[g], taken_.groups[g], kSubtract);
    const LayerGroupId group(static_cast<std::int32_t>(g));
    for (const Tier tier : kTiers) {
      peaks_since_taken_[index_of(tier)][store_.pool_group(tier, group)] =
          num_occupied(group, tier);
    }
  }
  taken_ = total_;
  slots_have_changed();
  return since;
}

void StatisticsBook::check_invariants(std::int64_t num_dropped) const {
  const auto check = [](std::int64_t value, std::int64_t) {
    SLACKWATER_CHECK(value >= 0, "I1: a counter of {}", value);
  };
  CacheStatistics copy = total_;
  for_each_counter(copy.tokens, copy.tokens, check);
  SLACKWATER_CHECK(copy.tokens.reused <= copy.tokens.queried, "I1: {} of {} tokens reused",
                   copy.tokens.reused, copy.tokens.queried);
  std::int64_t found = 0;
  for (const TierTokens& tier : copy.tokens.tiers) {
    SLACKWATER_CHECK(tier.found <= tier.queried, "I1: {} of {} tokens found", tier.found,
                     tier.queried);
    found += tier.found;
  }
  SLACKWATER_CHECK(found == copy.tokens.reused, "I1: {} tokens found on all tiers, {} reused",
                   found, copy.tokens.reused);
  std::array<std::array<PageFlow, kNumTiers>, kNumTiers> moved;
  std::int64_t dropped = 0;
  for (GroupStatistics& group : copy.groups) {
    for_each_counter(group, group, check);
    const SnapshotStatistics& snapshots = group.use.snapshots;
    SLACKWATER_CHECK(snapshots.hits + snapshots.misses == snapshots.lookups &&
                         snapshots.hits_at_boundary + snapshots.hits_inside_block == snapshots.hits,
                     "I1: {} hits and {} misses of {} look-ups", snapshots.hits, snapshots.misses,
                     snapshots.lookups);
    dropped += group.dropped.pages;
    for (std::size_t from = 0; from < kNumTiers; ++from) {
      for (std::size_t to = 0; to < kNumTiers; ++to) {
        for_each_counter(moved[from][to], group.moved[from][to], kAdd);
      }
    }
  }
  SLACKWATER_CHECK(dropped == num_dropped, "I2: {} pages dropped, {} counted", num_dropped,
                   dropped);
  const storage::TieredStoreStats stats = store_.stats();
  std::int64_t bytes = 0;
  for (std::size_t from = 0; from < kNumTiers; ++from) {
    for (std::size_t to = 0; to < kNumTiers; ++to) {
      bytes += moved[from][to].bytes;
      SLACKWATER_CHECK(moved[from][to].pages == stats.pages_by_way[from][to],
                       "I2: {} pages moved from tier {} to {}, {} counted",
                       stats.pages_by_way[from][to], from, to, moved[from][to].pages);
    }
  }
  SLACKWATER_CHECK(bytes == stats.bytes_moved, "I2: {} bytes moved, {} counted", stats.bytes_moved,
                   bytes);
}

}  // namespace slackwater::cache
