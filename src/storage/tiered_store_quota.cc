// How many slots each pool of a TieredStore has, and how that changes while it runs.

#include <algorithm>
#include <limits>

#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"
#include "slackwater/storage/tiered_store.h"
#include "storage/staging.h"

namespace slackwater::storage {
namespace {

constexpr std::int64_t kMostSlots = std::numeric_limits<std::int32_t>::max();

// Far beyond any disk, and far from where sums overflow.
constexpr std::int64_t kMostDiskBytes = std::int64_t{1} << 60;

std::int64_t saturating_add(std::int64_t a, std::int64_t b) {
  return std::min(kMostSlots, a + std::min(b, kMostSlots));
}

}  // namespace

std::vector<double> TieredStore::ratios() const {
  std::vector<double> ratios;
  for (const LayerGroup& group : layer_groups_) ratios.push_back(group.spec.ratio);
  return ratios;
}

// The least slots of a pool group, whatever its share.
std::int32_t TieredStore::min_slots_left(Tier tier, std::size_t group) const {
  std::int64_t slots = 0;
  for (const LayerGroup& layers : layer_groups_) {
    if (tier == Tier::kDevice && layers.hot == group) {
      slots = saturating_add(slots, layers.spec.min_slots);
    } else if (tier == Tier::kHost && layers.cold == group) {
      slots = saturating_add(slots, layers.spec.min_host_slots);
    }
  }
  return static_cast<std::int32_t>(tier == Tier::kDevice ? slots
                                                         : std::max<std::int64_t>(1, slots));
}

std::vector<GroupDemand> TieredStore::demands(Tier tier, std::span<const double> ratios) const {
  std::vector<double> of_layers(ratios.begin(), ratios.end());
  std::vector<std::int32_t> group_of;
  if (tier == Tier::kDevice) {
    for (const LayerGroup& layers : layer_groups_) {
      group_of.push_back(static_cast<std::int32_t>(layers.hot));
    }
  } else {
    std::vector<std::int64_t> hot;
    std::vector<std::int64_t> cold;
    for (const LayerGroup& layers : layer_groups_) {
      group_of.push_back(static_cast<std::int32_t>(layers.cold));
      cold.push_back(tier == Tier::kDisk ? disk_->frame_size(layers.cold) : layers.cold_bytes);
      std::int64_t bytes = 0;
      for (const std::int64_t slot : layers.spec.layout.pool_slot_bytes) bytes += slot;
      hot.push_back(bytes);
    }
    of_layers = cold_ratios(of_layers, hot, cold);
  }
  const auto num_groups = static_cast<std::int32_t>(num_pool_groups(tier));
  const std::vector<double> of_groups = sum_ratios(of_layers, group_of, num_groups);
  std::vector<GroupDemand> demands(of_groups.size());
  for (std::size_t g = 0; g < demands.size(); ++g) {
    GroupDemand& demand = demands[g];
    demand.ratio = of_groups[g];
    demand.min_slots = min_slots_left(tier, g);
    demand.max_slots = kMostSlots;
    if (tier == Tier::kDevice) {
      demand.slot_bytes = hot_sizes_[g];
      std::int64_t most = 0;
      for (const LayerGroup& layers : layer_groups_) {
        if (layers.hot == g) most = saturating_add(most, layers.spec.max_slots);
      }
      demand.max_slots = std::max(demand.min_slots, most);
    } else if (tier == Tier::kHost) {
      demand.slot_bytes = {cold_bytes_[g]};
    } else {
      demand.slot_bytes = {disk_->frame_size(g)};
    }
    if (tier != Tier::kDisk) {
      const std::int64_t room = tiers_[static_cast<std::size_t>(tier)].pools[g]->max_slots();
      demand.max_slots = std::min(demand.max_slots, room);
    }
  }
  return demands;
}

Result<std::vector<std::int64_t>> TieredStore::solve(Tier tier, std::int64_t quota,
                                                     std::span<const double> ratios) const {
  return solve_slots(demands(tier, ratios), quota, tiers_[static_cast<std::size_t>(tier)].grain)
      .map_error([&](const Error& error) { return error.with_context(to_string(tier)); });
}

Result<void> TieredStore::set_quota(Tier tier, std::int64_t bytes) {
  SLACKWATER_RETURN_IF_ERROR(plan_quota(tier, bytes));
  return resize(tier, bytes, ratios());
}

Result<std::vector<std::int64_t>> TieredStore::plan_quota(Tier tier, std::int64_t bytes) const {
  const TierState& state = tiers_[static_cast<std::size_t>(tier)];
  if (!has_tier(tier) || bytes <= 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "a quota of {} bytes for the {} tier, which has {}; a tier is there from the "
                      "start or never",
                      bytes, to_string(tier), state.quota);
  }
  const std::int64_t most = tier == Tier::kDisk ? kMostDiskBytes : state.max_bytes;
  if (bytes > most) {
    return make_error(ErrorCode::kOutOfRange,
                      "a quota of {} bytes for the {} tier; the store was made for at most {}",
                      bytes, to_string(tier), most);
  }
  return solve(tier, raised_quota(tier, bytes, ratios()), ratios());
}

// Whole grains, and what the floors cost.
std::int64_t TieredStore::raised_quota(Tier tier, std::int64_t asked,
                                       std::span<const double> ratios) const {
  const std::int64_t grain = tiers_[static_cast<std::size_t>(tier)].grain;
  return std::max(round_up(asked, grain), min_quota_bytes(demands(tier, ratios), grain));
}

Result<void> TieredStore::set_ratios(std::span<const double> ratios) {
  if (ratios.size() != layer_groups_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{} ratios for {} layer groups", ratios.size(),
                      layer_groups_.size());
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!has_tier(tier)) continue;
    SLACKWATER_RETURN_IF_ERROR(solve(tier, quota(tier), ratios));
  }
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!has_tier(tier)) continue;
    SLACKWATER_RETURN_IF_ERROR(resize(tier, quota(tier), ratios));
  }
  for (std::size_t l = 0; l < ratios.size(); ++l) layer_groups_[l].spec.ratio = ratios[l];
  return {};
}

// Losers first, so that the tier is never larger than both quotas.
Result<void> TieredStore::resize(Tier tier, std::int64_t asked, std::span<const double> ratios) {
  TierState& state = tiers_[static_cast<std::size_t>(tier)];
  const std::int64_t quota = raised_quota(tier, asked, ratios);
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<std::int64_t> slots, solve(tier, quota, ratios));
  for (std::size_t g = 0; g < slots.size(); ++g) {
    const std::int32_t reserved = tier == Tier::kHost ? reserved_[g] : 0;
    const std::int32_t held = num_slots(tier, g) - num_free(tier, g) + reserved;
    if (slots[g] < num_slots(tier, g) && held > slots[g]) {
      return make_error(ErrorCode::kResourceExhausted,
                        "{} slots of pool group {} of the {} tier are held or reserved, {} bytes "
                        "leave {}; release {} first",
                        held, g, to_string(tier), quota, slots[g], held - slots[g]);
    }
  }
  for (std::size_t g = 0; g < slots.size(); ++g) {
    if (slots[g] >= num_slots(tier, g)) continue;
    SLACKWATER_RETURN_IF_ERROR(resize_group(tier, g, static_cast<std::int32_t>(slots[g])));
  }
  state.quota = std::max(state.quota, quota);
  for (std::size_t g = 0; g < slots.size(); ++g) {
    if (slots[g] <= num_slots(tier, g)) continue;
    SLACKWATER_RETURN_IF_ERROR(resize_group(tier, g, static_cast<std::int32_t>(slots[g])));
  }
  state.quota = quota;
  return {};
}

Result<void> TieredStore::resize_group(Tier tier, std::size_t group, std::int32_t num_slots) {
  const bool grows = num_slots > this->num_slots(tier, group);
  if (tier == Tier::kDisk) {
    // Frames that move go over the staging memory.
    if (!grows) SLACKWATER_RETURN_IF_ERROR(staging_->prepare());
    // A disk that has less than asked for makes a smaller tier, and has warned.
    if (grows) return static_cast<void>(disk_->grow(group, num_slots)), Result<void>();
    return disk_->shrink(group, num_slots, [this, group](SlotId from, const SlotGrant& to) {
      move_frame(group, from, to);
    });
  }
  PoolGroup& pools = *tiers_[static_cast<std::size_t>(tier)].pools[group];
  if (grows) return pools.grow(num_slots);
  return pools.shrink(num_slots, [&](SlotId from, const SlotGrant& to) {
    const auto index = static_cast<std::uint32_t>(pools.slots().tag(from));
    Page& page = pages_[index];
    const std::array<device::Event, 1> before = {to.ready};
    const std::array<device::Event, 1> sources = {page.ready};
    const device::Event moved = copies_->submit(
        before, sources, {}, [&](device::Stream& stream, std::span<const ColdPair>) {
          for (std::size_t pool = 0; pool < pools.slot_bytes().size(); ++pool) {
            const auto bytes = static_cast<std::size_t>(pools.slot_bytes()[pool]);
            stream.copy({bytes, {{pools.address(pool, to.slot), pools.address(pool, from)}}});
          }
        });
    page.ready = moved;
    --num_pages_[static_cast<std::size_t>(tier)];
    place(index, tier, to.slot);
    return moved;
  });
}

}  // namespace slackwater::storage
