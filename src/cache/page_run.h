#ifndef SLACKWATER_CACHE_PAGE_RUN_H_
#define SLACKWATER_CACHE_PAGE_RUN_H_

#include <array>
#include <cstdint>
#include <memory_resource>
#include <vector>

#include "cache/eviction_queue.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/priority.h"
#include "slackwater/device/event.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::cache {

using storage::kNumTiers;
using storage::PageId;
using storage::Tier;

constexpr std::size_t index_of(Tier tier) { return static_cast<std::size_t>(tier); }
constexpr std::size_t index_of(LayerGroupId group) {
  return static_cast<std::size_t>(group.value());
}

constexpr bool is_null(PageId page) { return page.life == 0; }

// Who needs a page. Locked: on the device and in use. Held only: kept, on whatever tier.
struct Pins {
  std::int32_t locks = 0;
  std::int32_t holds = 0;
  friend bool operator==(const Pins&, const Pins&) = default;
};

// Pages of one layer group in a row: those of the blocks of a tree node or of a sequence, or the
// snapshots of a node by position. The unit of eviction: its pages leave from one end.
//
// Who owns a run fills `pages`, `pins` and `positions`; all else is Residency's. A run that grows
// in a step takes memory that is kept for that.
struct PageRun {
  explicit PageRun(std::pmr::memory_resource* memory = std::pmr::get_default_resource())
      : pages(memory), pins(memory), positions(memory), written(memory), certificates(memory) {}

  LayerGroupId group;
  Priority priority = kDefaultPriority;
  bool is_by_position = false;  // snapshots, not blocks; they leave from the front
  bool is_pinned_by_page = false;
  std::pmr::vector<PageId> pages;            // life 0 where there is none
  std::pmr::vector<Pins> pins;               // [pages] where they are pinned one by one
  Pins whole;                                // where they are pinned together
  std::pmr::vector<std::int64_t> positions;  // [pages] of snapshots, ascending
  std::pmr::vector<device::Event> written;   // [pages] of snapshots: nobody sees them before
  std::pmr::vector<Digest128> certificates;  // [pages] what the store should say of those of a node
  device::Event last_use;  // of whoever unpinned; whoever takes a page waits for it

  std::array<std::int32_t, kNumTiers> num_on = {};
  std::array<std::int32_t, kNumTiers> num_evictable = {};
  std::array<QueuePlace, kNumTiers> places = {};
  // Pages at and past it are not on the tier, but for snapshots; found out when one is wanted.
  mutable std::array<std::uint32_t, kNumTiers> end_on = {};
  bool may_be_lost = false;  // a page has moved since somebody looked whether it arrived

  std::int32_t num_pages() const {
    return num_on[index_of(Tier::kDevice)] + num_on[index_of(Tier::kHost)] +
           num_on[index_of(Tier::kDisk)];
  }
  const Pins& pins_of(std::size_t index) const { return is_pinned_by_page ? pins[index] : whole; }
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_PAGE_RUN_H_
