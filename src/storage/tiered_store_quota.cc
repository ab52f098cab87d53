// How many slots each pool of a TieredStore has, and how that changes while it runs.

#include <algorithm>
#include <limits>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
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

// Every pool's bytes of all slots that are left: one batch a pool.
void copy_slots(device::Stream& stream, const PoolGroup& pools, std::span<SlotMove* const> moves) {
  for (std::size_t pool = 0; pool < pools.slot_bytes().size(); ++pool) {
    device::CopyBatch copy;
    copy.piece_bytes = static_cast<std::size_t>(pools.slot_bytes()[pool]);
    copy.pieces.reserve(moves.size());
    for (const SlotMove* move : moves) {
      copy.pieces.push_back({pools.address(pool, move->to.slot), pools.address(pool, move->from)});
    }
    stream.copy(std::move(copy));
  }
}

}  // namespace

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
  return resize(tier, bytes, tiers_[static_cast<std::size_t>(tier)].ratios);
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
  return solve(tier, raised_quota(tier, bytes, state.ratios), state.ratios);
}

// What the floors of the others leave of the largest quota.
std::int64_t TieredStore::max_device_slots(LayerGroupId group) const {
  const TierState& state = tiers_[static_cast<std::size_t>(Tier::kDevice)];
  const std::size_t own = layers_of(group).hot;
  const std::vector<GroupDemand> all = demands(Tier::kDevice, state.ratios);
  std::int64_t grains = ceil_div(state.max_bytes, state.grain);
  for (std::size_t g = 0; g < all.size(); ++g) {
    if (g != own) grains -= grains_for(all[g].slot_bytes, all[g].min_slots, state.grain);
  }
  const std::int64_t slots =
      slots_for(all[own].slot_bytes, std::max<std::int64_t>(0, grains), state.grain);
  return std::clamp(slots, all[own].min_slots, all[own].max_slots);
}

// Whole grains, and what the floors cost.
std::int64_t TieredStore::raised_quota(Tier tier, std::int64_t asked,
                                       std::span<const double> ratios) const {
  const std::int64_t grain = tiers_[static_cast<std::size_t>(tier)].grain;
  return std::max(round_up(asked, grain), min_quota_bytes(demands(tier, ratios), grain));
}

Result<std::vector<std::int64_t>> TieredStore::plan_ratios(Tier tier,
                                                           std::span<const double> ratios) const {
  if (ratios.size() != layer_groups_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "{} ratios for {} layer groups", ratios.size(),
                      layer_groups_.size());
  }
  if (!has_tier(tier)) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "shares of the {} tier; a tier is there from the start or never",
                      to_string(tier));
  }
  return solve(tier, raised_quota(tier, quota(tier), ratios), ratios);
}

Result<void> TieredStore::set_ratios(Tier tier, std::span<const double> ratios) {
  SLACKWATER_RETURN_IF_ERROR(plan_ratios(tier, ratios));
  SLACKWATER_RETURN_IF_ERROR(resize(tier, quota(tier), ratios));
  tiers_[static_cast<std::size_t>(tier)].ratios.assign(ratios.begin(), ratios.end());
  return {};
}

// Losers first, so that the tier is never larger than both quotas, and that the others find their
// memory.
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
  // What the losers leave and nobody takes goes back at the end, however that comes.
  const bool has_none = tier == Tier::kDisk || SLACKWATER_MUTANT(memory_is_not_handed_over);
  const auto handover = has_none ? nullptr : device_.make_handover(state.pools.front()->kind());
  const bool first = SLACKWATER_MUTANT(pools_grow_first);
  for (const bool grows : {first, !first}) {
    if (grows) state.quota = std::max(state.quota, quota);
    for (std::size_t g = 0; g < slots.size(); ++g) {
      if (slots[g] == num_slots(tier, g) || (slots[g] > num_slots(tier, g)) != grows) continue;
      SLACKWATER_RETURN_IF_ERROR(
          resize_group(tier, g, static_cast<std::int32_t>(slots[g]), handover.get()));
    }
  }
  state.quota = quota;
  return {};
}

Result<void> TieredStore::resize_group(Tier tier, std::size_t group, std::int32_t num_slots,
                                       device::Handover* handover) {
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
  if (grows) return pools.grow(num_slots, handover);
  return pools.shrink(
      num_slots, [&](std::span<SlotMove> moves) { move_slots(tier, group, moves); }, handover);
}

// Pages leave slots that go away for others of their tier. Those whose bytes are there are copied
// as one batch and share its fate; each of the others waits for its own.
void TieredStore::move_slots(Tier tier, std::size_t group, std::span<SlotMove> moves) {
  const PoolGroup& pools = *tiers_[static_cast<std::size_t>(tier)].pools[group];
  const auto page_in = [&](const SlotMove& move) {
    return static_cast<std::uint32_t>(pools.slots().tag(move.from));
  };
  const auto queue = [&](std::span<SlotMove*> batch, const device::Event& source) {
    std::vector<device::Event> before;
    std::vector<ColdPair> pairs;
    for (const SlotMove* move : batch) {
      if (!move->to.ready.is_done()) before.push_back(move->to.ready);
      pairs.push_back({move->to.slot, nullptr});
    }
    const device::Event moved =
        copies_->submit(before, std::span(&source, 1), pairs,
                        [&](device::Stream& stream, std::span<const ColdPair> share) {
                          const auto first = static_cast<std::size_t>(share.data() - pairs.data());
                          copy_slots(stream, pools, batch.subspan(first, share.size()));
                        });
    for (SlotMove* move : batch) move->moved = moved;
  };
  // What a manager forgets that looks for sleepers block by block; on the disk in move_frame().
  const auto forgets = [&](std::uint32_t index) {
    return tier == Tier::kHost && !has_tier(Tier::kDisk) &&
           layer_groups_[pages_[index].layer_group].spec.name.ends_with("recurrent");
  };
  std::vector<SlotMove*> settled;
  for (SlotMove& move : moves) {
    const device::Event ready = pages_[page_in(move)].ready;
    SlotMove* alone = &move;
    if (ready.status() == device::EventStatus::kSucceeded) {
      settled.push_back(alone);
    } else {
      queue(std::span(&alone, 1), ready);
    }
  }
  if (!settled.empty()) queue(settled, {});
  for (const SlotMove& move : moves) {
    const std::uint32_t index = page_in(move);
    if (SLACKWATER_MUTANT(adjust_forgets_states) && forgets(index)) continue;
    pages_[index].ready = move.moved;
    --num_pages_[static_cast<std::size_t>(tier)];
    place(index, tier, move.to.slot);
  }
}

}  // namespace slackwater::storage
