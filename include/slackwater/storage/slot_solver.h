#ifndef SLACKWATER_STORAGE_SLOT_SOLVER_H_
#define SLACKWATER_STORAGE_SLOT_SOLVER_H_

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "slackwater/base/error.h"

namespace slackwater::storage {

// From bytes to slots: how many slots each pool group of a tier gets.
//
// Memory is committed by grains. A pool of n slots of s bytes needs ceil(n * s / grain) grains,
// and a pool group the sum over its pools, because its pools share slot ids.
//
// Source: the slot solver of TensorRT-LLM's KV cache manager V2, as kvcm_v2.md 3.9 describes it;
// its worked numbers are our tests.
// Threads: pure functions.

// The sizes of the slots of one pool group, in bytes, one per pool; each is positive.
using SlotSizes = std::vector<std::int64_t>;

// Grains that `num_slots` slots of every pool need. Saturates at the largest 64-bit integer.
std::int64_t grains_for(std::span<const std::int64_t> slot_bytes, std::int64_t num_slots,
                        std::int64_t grain_bytes);

// The largest number of slots that `num_grains` grains hold; 0 when not even one fits.
std::int64_t slots_for(std::span<const std::int64_t> slot_bytes, std::int64_t num_grains,
                       std::int64_t grain_bytes);

// What a pool group asks of the solver.
struct GroupDemand {
  SlotSizes slot_bytes;
  double ratio = 0;            // its share of the bytes; positive, of any scale
  std::int64_t min_slots = 1;  // a floor that holds over every ratio
  std::int64_t max_slots = std::numeric_limits<std::int64_t>::max();
};

// Slots per group for `quota_bytes`, whole grains only. Groups are served in ascending order of
// ratio (equal ones in the order given), each with its share of the grains that are left, rounded
// to nearest even, and pays for what its slots use; the last one gets the rest. A group at or
// below its floor is pinned there and the others share again; then one at or above its ceiling is
// pinned there for good, and all others share again. At the end a group takes every slot that costs
// no further grain. So unless all groups are at their ceilings, what is left of the quota is less
// than one more slot of some group would cost.
//
// kInvalidArgument: no group, a size or ratio that is not positive and finite, min over max, a
// grain that is not positive. kResourceExhausted: the floors alone need more; the text says how
// much.
Result<std::vector<std::int64_t>> solve_slots(std::span<const GroupDemand> groups,
                                              std::int64_t quota_bytes, std::int64_t grain_bytes);

// The smallest quota, in bytes, with which solve_slots succeeds. Saturates.
std::int64_t min_quota_bytes(std::span<const GroupDemand> groups, std::int64_t grain_bytes);

// The grain of a device tier: 2 MiB below 2 GiB, doubled with every doubling of the quota, and
// 32 MiB from 16 GiB on.
std::int64_t device_grain_bytes(std::int64_t quota_bytes);
inline constexpr std::int64_t kHostGrainBytes = 4 << 10;
inline constexpr std::int64_t kDiskGrainBytes = 2 << 20;

// Ratios of pool groups from those of the layer groups that live in them: the sums.
// `group_of[l]` < num_groups is the pool group of layer group l.
std::vector<double> sum_ratios(std::span<const double> layer_group_ratios,
                               std::span<const std::int32_t> group_of, std::int32_t num_groups);

// Ratios in bytes of a cold tier that keep the proportions of slot counts: each layer group's hot
// ratio times cold bytes over hot bytes of one page, scaled to a sum of 1.
std::vector<double> cold_ratios(std::span<const double> hot_ratios,
                                std::span<const std::int64_t> hot_page_bytes,
                                std::span<const std::int64_t> cold_page_bytes);

// The least number of slots of which `num_slots` are at most the share `max_utilization`
// (0 < max_utilization <= 1): room for a batch that must stay below the gate for resuming.
std::int64_t slots_with_headroom(std::int64_t num_slots, double max_utilization);

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_SLOT_SOLVER_H_
