#include "slackwater/engine/residency_view.h"

#include <algorithm>

#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::engine {
namespace {

PoolUse use_of(const cache::PoolView& pool, const std::vector<cache::GroupView>& groups) {
  PoolUse use;
  use.tier = pool.tier;
  use.num_slots = pool.room.total;
  use.num_in_use = pool.room.unavailable;
  use.num_evictable = pool.room.evictable;
  for (const LayerGroupId id : pool.groups) {
    const cache::GroupView& group = groups[static_cast<std::size_t>(id.value())];
    use.name += (use.name.empty() ? "" : ", ") + group.name;
    use.holds_blocks |= group.has_block_pages;
  }
  return use;
}

}  // namespace

ResidencyView residency_of(hybrid::HybridCacheManager& state) {
  const cache::CacheView all = state.kv_cache().view();
  ResidencyView view;
  for (const cache::PoolView& pool : all.pools) view.pools.push_back(use_of(pool, all.groups));
  for (const cache::SequenceView& sequence : all.sequences) {
    RequestPages& pages = view.requests.emplace_back();
    pages.request = sequence.request;
    for (const cache::SequenceGroupView& group : sequence.groups) {
      for (std::size_t tier = 0; tier < storage::kNumTiers; ++tier) {
        pages.pages[tier] += group.own[tier] + group.shared[tier];
      }
    }
  }
  std::sort(view.requests.begin(), view.requests.end(),
            [](const RequestPages& a, const RequestPages& b) { return a.request < b.request; });
  return view;
}

}  // namespace slackwater::engine
