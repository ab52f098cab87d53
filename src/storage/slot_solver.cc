#include "slackwater/storage/slot_solver.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::storage {
namespace {

// Sums and products of 64-bit sizes, which never overflow it here.
__extension__ typedef __int128 Wide;

constexpr std::int64_t kMax = std::numeric_limits<std::int64_t>::max();

std::int64_t saturate(Wide value) { return value > kMax ? kMax : static_cast<std::int64_t>(value); }

Result<void> check_demands(std::span<const GroupDemand> groups, std::int64_t quota_bytes,
                           std::int64_t grain_bytes) {
  constexpr ErrorCode kInvalid = ErrorCode::kInvalidArgument;
  if (groups.empty()) return make_error(kInvalid, "no pool group to share {} bytes", quota_bytes);
  if (grain_bytes <= 0) return make_error(kInvalid, "a grain of {} bytes", grain_bytes);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const GroupDemand& group = groups[g];
    if (group.slot_bytes.empty()) return make_error(kInvalid, "pool group {} has no pool", g);
    for (const std::int64_t bytes : group.slot_bytes) {
      if (bytes <= 0) return make_error(kInvalid, "pool group {}: slots of {} bytes", g, bytes);
    }
    if (!std::isfinite(group.ratio) || group.ratio <= 0) {
      return make_error(kInvalid, "pool group {}: ratio {}; it is positive", g, group.ratio);
    }
    if (group.min_slots < 0 || group.min_slots > group.max_slots) {
      return make_error(kInvalid, "pool group {}: at least {} and at most {} slots", g,
                        group.min_slots, group.max_slots);
    }
  }
  return {};
}

// Grains that the floors of all groups need together; saturates.
std::int64_t floor_grains(std::span<const GroupDemand> groups, std::int64_t grain_bytes) {
  Wide grains = 0;
  for (const GroupDemand& group : groups) {
    grains += grains_for(group.slot_bytes, group.min_slots, grain_bytes);
  }
  return saturate(grains);
}

// The passes of solve_slots over the groups that still share.
//
// Invariants:
//   I1  budget_ is what the pinned groups leave of the quota, in grains; it never falls below
//       what the floors of the open groups cost.
// Threads: one.
// Errors: none.
class Sharing {
 public:
  Sharing(std::span<const GroupDemand> groups, std::int64_t num_grains, std::int64_t grain_bytes)
      : groups_(groups),
        grain_bytes_(grain_bytes),
        budget_without_floors_(num_grains),
        slots_(groups.size()) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (groups[g].min_slots < groups[g].max_slots) {
        unlimited_.push_back(g);
      } else {
        limit(g);
      }
    }
    std::sort(unlimited_.begin(), unlimited_.end(), [&](std::size_t a, std::size_t b) {
      return std::pair(groups[a].ratio, a) < std::pair(groups[b].ratio, b);
    });
    open_all();
  }

  std::vector<std::int64_t> solve() {
    while (!open_.empty()) {
      share();
      // Floors first: they are owed. A ceiling leaves more for the others, so it frees the groups
      // that a floor held in a pass before.
      if (pin_floors()) continue;
      if (!pin_ceilings()) break;
      open_all();
    }
    for (std::size_t g = 0; g < groups_.size(); ++g) take_free_slots(g);
    return std::move(slots_);
  }

 private:
  std::int64_t grains_of(std::size_t g) const {
    return grains_for(groups_[g].slot_bytes, slots_[g], grain_bytes_);
  }

  void open_all() {
    open_ = unlimited_;
    budget_ = budget_without_floors_;
  }

  // One pass in ascending order of ratio, floors and ceilings ignored.
  void share() {
    std::int64_t left = budget_;
    double ratios_left = 0;
    for (const std::size_t g : open_) ratios_left += groups_[g].ratio;
    for (const std::size_t g : open_) {
      std::int64_t grains = left;
      // The last group's share is the whole rest, without a rounding error.
      if (g != open_.back()) {
        const double exact = static_cast<double>(left) * (groups_[g].ratio / ratios_left);
        grains = std::min(left, static_cast<std::int64_t>(std::nearbyint(exact)));
      }
      slots_[g] = slots_for(groups_[g].slot_bytes, grains, grain_bytes_);
      left -= grains_of(g);
      ratios_left -= groups_[g].ratio;
    }
  }

  bool pin_floors() {
    const std::size_t num_open = open_.size();
    std::erase_if(open_, [&](std::size_t g) {
      if (slots_[g] > groups_[g].min_slots) return false;
      slots_[g] = groups_[g].min_slots;
      budget_ -= grains_of(g);
      return true;
    });
    return open_.size() < num_open;
  }

  bool pin_ceilings() {
    const std::size_t num_unlimited = unlimited_.size();
    std::erase_if(unlimited_, [&](std::size_t g) {
      if (slots_[g] < groups_[g].max_slots) return false;
      limit(g);
      return true;
    });
    return unlimited_.size() < num_unlimited;
  }

  // Gives group `g` its ceiling, for good.
  void limit(std::size_t g) {
    slots_[g] = groups_[g].max_slots;
    budget_without_floors_ -= grains_of(g);
  }

  void take_free_slots(std::size_t g) {
    const std::int64_t paid = slots_for(groups_[g].slot_bytes, grains_of(g), grain_bytes_);
    slots_[g] = std::max(slots_[g], std::min(groups_[g].max_slots, paid));
  }

  const std::span<const GroupDemand> groups_;
  const std::int64_t grain_bytes_;
  std::vector<std::size_t> unlimited_;  // groups below their ceilings, in ascending order of ratio
  std::vector<std::size_t> open_;       // those of them that no floor holds
  std::int64_t budget_without_floors_;  // what the groups at their ceilings leave
  std::int64_t budget_ = 0;             // what those at their floors leave of that
  std::vector<std::int64_t> slots_;
};

}  // namespace

std::int64_t grains_for(std::span<const std::int64_t> slot_bytes, std::int64_t num_slots,
                        std::int64_t grain_bytes) {
  SLACKWATER_CHECK(num_slots >= 0 && grain_bytes > 0, "{} slots, grain {}", num_slots, grain_bytes);
  Wide grains = 0;
  for (const std::int64_t bytes : slot_bytes) {
    grains += (static_cast<Wide>(num_slots) * bytes + grain_bytes - 1) / grain_bytes;
  }
  return saturate(grains);
}

std::int64_t slots_for(std::span<const std::int64_t> slot_bytes, std::int64_t num_grains,
                       std::int64_t grain_bytes) {
  SLACKWATER_CHECK(!slot_bytes.empty() && num_grains >= 0 && grain_bytes > 0,
                   "{} pools, {} grains of {}", slot_bytes.size(), num_grains, grain_bytes);
  Wide sum = 0;
  for (const std::int64_t bytes : slot_bytes) sum += bytes;
  // Without rounding to grains more slots would fit, never fewer.
  std::int64_t low = 0;
  std::int64_t high = saturate(static_cast<Wide>(num_grains) * grain_bytes / sum);
  while (low < high) {
    const std::int64_t middle = high - (high - low) / 2;
    if (grains_for(slot_bytes, middle, grain_bytes) <= num_grains) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return low;
}

std::int64_t min_quota_bytes(std::span<const GroupDemand> groups, std::int64_t grain_bytes) {
  return saturate(static_cast<Wide>(floor_grains(groups, grain_bytes)) * grain_bytes);
}

Result<std::vector<std::int64_t>> solve_slots(std::span<const GroupDemand> groups,
                                              std::int64_t quota_bytes, std::int64_t grain_bytes) {
  SLACKWATER_RETURN_IF_ERROR(check_demands(groups, quota_bytes, grain_bytes));
  const std::int64_t budget = std::max<std::int64_t>(0, quota_bytes) / grain_bytes;
  if (floor_grains(groups, grain_bytes) > budget) {
    return make_error(ErrorCode::kResourceExhausted,
                      "a quota of {} bytes is {} grains of {}; the least slots of {} pool groups "
                      "need {} bytes",
                      quota_bytes, budget, grain_bytes, groups.size(),
                      min_quota_bytes(groups, grain_bytes));
  }
  return Sharing(groups, budget, grain_bytes).solve();
}

std::int64_t device_grain_bytes(std::int64_t quota_bytes) {
  constexpr std::int64_t kSmallest = 2 << 20;
  constexpr int kMostDoublings = 4;
  const std::int64_t gibibytes = quota_bytes >> 30;
  if (gibibytes < 1) return kSmallest;
  const int doublings = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(gibibytes))) - 1;
  return kSmallest << std::min(doublings, kMostDoublings);
}

std::vector<double> sum_ratios(std::span<const double> layer_group_ratios,
                               std::span<const std::int32_t> group_of, std::int32_t num_groups) {
  SLACKWATER_CHECK(layer_group_ratios.size() == group_of.size(), "{} ratios of {} layer groups",
                   layer_group_ratios.size(), group_of.size());
  std::vector<double> sums(static_cast<std::size_t>(num_groups));
  for (std::size_t l = 0; l < group_of.size(); ++l) {
    SLACKWATER_CHECK(0 <= group_of[l] && group_of[l] < num_groups, "pool group {} of {}",
                     group_of[l], num_groups);
    sums[static_cast<std::size_t>(group_of[l])] += layer_group_ratios[l];
  }
  return sums;
}

std::vector<double> cold_ratios(std::span<const double> hot_ratios,
                                std::span<const std::int64_t> hot_page_bytes,
                                std::span<const std::int64_t> cold_page_bytes) {
  SLACKWATER_CHECK(
      hot_ratios.size() == hot_page_bytes.size() && hot_ratios.size() == cold_page_bytes.size(),
      "{} ratios, {} hot and {} cold sizes", hot_ratios.size(), hot_page_bytes.size(),
      cold_page_bytes.size());
  std::vector<double> ratios(hot_ratios.size());
  double sum = 0;
  for (std::size_t l = 0; l < ratios.size(); ++l) {
    ratios[l] = hot_ratios[l] * static_cast<double>(cold_page_bytes[l]) /
                static_cast<double>(hot_page_bytes[l]);
    sum += ratios[l];
  }
  for (double& ratio : ratios) ratio /= sum;
  return ratios;
}

std::int64_t slots_with_headroom(std::int64_t num_slots, double max_utilization) {
  SLACKWATER_CHECK(0 < max_utilization && max_utilization <= 1, "utilization {}", max_utilization);
  const double exact = static_cast<double>(num_slots) / max_utilization;
  auto slots = static_cast<std::int64_t>(std::ceil(exact));
  // The quotient may round down onto an integer that is one too small.
  while (static_cast<double>(num_slots) > static_cast<double>(slots) * max_utilization) ++slots;
  return slots;
}

}  // namespace slackwater::storage
