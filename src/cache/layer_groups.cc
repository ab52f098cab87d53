#include "slackwater/cache/layer_groups.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "cache/kinds/group_kind.h"
#include "cache/residency.h"
#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"
#include "slackwater/storage/disk_tier.h"

namespace slackwater::cache {
namespace {

// The usual shape of a request, where nothing is known of the load.
constexpr SequenceDesc kUsualSequence = {2049, 2048};

bool is_local(const KvCacheConfig& config, std::int32_t layer) {
  return config.local_layers.empty() ||
         std::find(config.local_layers.begin(), config.local_layers.end(), layer) !=
             config.local_layers.end();
}

// Windows whose sinks fill the same blocks are of one kind.
LayerKind identity(const LayerKind& kind, std::int64_t tokens_per_block) {
  const auto* window = std::get_if<SlidingWindow>(&kind);
  if (window == nullptr) return kind;
  return SlidingWindow{window->window, ceil_div(window->num_sink_tokens, tokens_per_block)};
}

std::int64_t page_bytes_of(const KvCacheConfig& config, const BufferConfig& buffer) {
  const std::int64_t subblocks =
      buffer.tokens_per_block == 0 ? 1 : config.tokens_per_block / buffer.tokens_per_block;
  return buffer.bytes * subblocks;
}

std::int64_t grain_of(const KvCacheConfig& config, std::int64_t usual) {
  return config.grain_bytes > 0 ? config.grain_bytes : usual;
}

std::vector<std::unique_ptr<GroupKind>> kinds_of(const KvCacheConfig& config,
                                                 const LayerGroups& groups) {
  std::vector<std::unique_ptr<GroupKind>> kinds;
  for (const LayerGroupDesc& group : groups.groups()) {
    kinds.push_back(make_group_kind(group.kind, config.tokens_per_block));
  }
  return kinds;
}

// The pool group of each layer group: those with equal slots share one.
std::vector<std::size_t> pool_groups_of(const LayerGroups& groups) {
  std::vector<storage::SlotSizes> sizes;
  std::vector<std::size_t> places;
  for (const LayerGroupDesc& group : groups.groups()) {
    const auto at = std::find(sizes.begin(), sizes.end(), group.layout.pool_slot_bytes);
    places.push_back(static_cast<std::size_t>(at - sizes.begin()));
    if (at == sizes.end()) sizes.push_back(group.layout.pool_slot_bytes);
  }
  return places;
}

std::vector<std::int64_t> min_slots_of(const KvCacheConfig& config, const LayerGroups& groups) {
  const auto kinds = kinds_of(config, groups);
  const std::vector<std::size_t> pools = pool_groups_of(groups);
  std::int64_t largest = 0;
  for (const auto& kind : kinds) largest = std::max(largest, kind->own_floor());
  std::vector<std::int64_t> floors;
  for (const auto& kind : kinds) floors.push_back(kind->floor_beside(largest));

  for (const BatchDesc& batch : config.constraints) {
    for (std::size_t g = 0; g < groups.size(); ++g) {
      // Once per pool group, at the first layer group that lives in it.
      const auto first = std::find(pools.begin(), pools.end(), pools[g]) - pools.begin();
      if (first != static_cast<std::ptrdiff_t>(g)) continue;
      std::int64_t needed = 0;
      std::int64_t floor = 0;
      bool can_grow = false;
      for (std::size_t other = g; other < groups.size(); ++other) {
        if (pools[other] != pools[g]) continue;
        needed += kinds[other]->batch_slots(batch);
        floor += floors[other];
        can_grow |= kinds[other]->can_grow();
      }
      const double share = can_grow ? config.max_util_for_resume : 1.0;
      floors[g] += std::max<std::int64_t>(0, storage::slots_with_headroom(needed, share) - floor);
    }
  }
  return floors;
}

// Slots that decide the shares: those of the first batch that is given.
std::vector<std::int64_t> typical_slots(const KvCacheConfig& config, const LayerGroups& groups) {
  std::vector<BatchDesc> batches;
  if (config.typical_step.has_value()) {
    batches = {*config.typical_step};
  } else if (!config.constraints.empty()) {
    batches = config.constraints;
  } else {
    batches = {BatchDesc{{kUsualSequence}, 0}};
  }
  std::vector<std::int64_t> slots;
  for (const auto& kind : kinds_of(config, groups)) {
    std::int64_t most = 1;
    for (const BatchDesc& batch : batches) most = std::max(most, kind->batch_slots(batch));
    slots.push_back(most);
  }
  return slots;
}

// On the host. Only the guarantee asks for what the constraints need, beside the slots over which
// pages change places.
std::vector<std::int64_t> min_host_slots_of(const KvCacheConfig& config,
                                            std::span<const std::int64_t> min_slots) {
  std::vector<std::int64_t> slots(min_slots.size());
  if (!config.guarantee_suspend) return slots;
  for (std::size_t g = 0; g < slots.size(); ++g) slots[g] = min_slots[g] + kSwapSlots;
  return slots;
}

// Off the device, layer groups whose blobs are equal share a pool.
using DemandOfBlob = std::map<std::int64_t, storage::GroupDemand>;

std::vector<storage::GroupDemand> values_of(const DemandOfBlob& demands) {
  std::vector<storage::GroupDemand> values;
  for (const auto& [bytes, demand] : demands) values.push_back(demand);
  return values;
}

}  // namespace

Result<LayerGroups> LayerGroups::build(const KvCacheConfig& config) {
  LayerGroups result;
  std::vector<std::pair<LayerKind, std::string>> identities;
  for (const LayerConfig& layer : config.layers) {
    const std::pair key(identity(layer.kind, config.tokens_per_block), layer.group_tag);
    const auto at = std::find(identities.begin(), identities.end(), key);
    const auto place = static_cast<std::size_t>(at - identities.begin());
    if (at == identities.end()) {
      identities.push_back(key);
      LayerGroupDesc group;
      group.id = LayerGroupId(static_cast<std::int32_t>(place));
      group.kind = layer.kind;
      group.group_tag = layer.group_tag;
      group.name =
          layer.group_tag + ": " + make_group_kind(layer.kind, config.tokens_per_block)->describe();
      result.groups_.push_back(std::move(group));
    }
    result.groups_[place].layers.push_back(layer.layer);
    if (is_local(config, layer.layer)) result.groups_[place].local_layers.push_back(layer.layer);
  }
  for (LayerGroupDesc& group : result.groups_) {
    if (group.local_layers.empty()) {
      return make_error(ErrorCode::kInvalidArgument,
                        "layer group '{}' has no layer among the {} local ones; give each rank a "
                        "layer of every group",
                        group.name, config.local_layers.size());
    }
    result.place_buffers(config, group);
    SLACKWATER_ASSIGN_OR_RETURN(group.layout,
                                storage::lay_out_slots(group.buffers, config.pool_policy));
    for (const std::int64_t bytes : group.layout.pool_slot_bytes) group.page_bytes += bytes;
  }
  return result;
}

// Buffers of one role and size lie side by side, in the order of their layers.
void LayerGroups::place_buffers(const KvCacheConfig& config, LayerGroupDesc& group) {
  for (const LayerConfig& layer : config.layers) {
    if (std::find(group.local_layers.begin(), group.local_layers.end(), layer.layer) ==
        group.local_layers.end()) {
      continue;
    }
    for (const BufferConfig& buffer : layer.buffers) {
      const std::int64_t bytes = page_bytes_of(config, buffer);
      auto at = std::find_if(group.buffers.begin(), group.buffers.end(), [&](const auto& spec) {
        return spec.role == buffer.role && spec.bytes_per_layer == bytes &&
               spec.is_transient == buffer.is_transient;
      });
      if (at == group.buffers.end()) {
        group.buffers.push_back({buffer.role, bytes, 0, buffer.is_transient});
        at = std::prev(group.buffers.end());
      }
      BufferLocation location;
      location.layer = layer.layer;
      location.role = buffer.role;
      location.layer_group = group.id;
      location.buffer = static_cast<std::size_t>(at - group.buffers.begin());
      location.layer_index = at->num_layers++;
      location.bytes = bytes;
      location.num_subblocks = static_cast<std::int32_t>(bytes / buffer.bytes);
      buffers_.push_back(std::move(location));
    }
  }
}

const LayerGroupDesc& LayerGroups::group(LayerGroupId id) const {
  SLACKWATER_CHECK(0 <= id.value() && id.value() < std::ssize(groups_), "layer group {} of {}",
                   id.value(), groups_.size());
  return groups_[static_cast<std::size_t>(id.value())];
}

const BufferLocation* LayerGroups::find(std::int32_t layer, std::string_view role) const {
  const auto at = std::find_if(buffers_.begin(), buffers_.end(), [&](const BufferLocation& b) {
    return b.layer == layer && b.role == role;
  });
  return at == buffers_.end() ? nullptr : &*at;
}

GroupRoom plan_room(const KvCacheConfig& config, const LayerGroups& groups) {
  GroupRoom room;
  room.min_slots = min_slots_of(config, groups);
  room.min_host_slots = min_host_slots_of(config, room.min_slots);
  if (!config.initial_pool_ratio.empty()) {
    room.ratios = config.initial_pool_ratio;
    return room;
  }
  const std::vector<std::int64_t> slots = typical_slots(config, groups);
  const std::int64_t grain =
      grain_of(config, storage::device_grain_bytes(std::max<std::int64_t>(1, config.device_bytes)));
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const auto& sizes = groups.groups()[g].layout.pool_slot_bytes;
    const std::int64_t grains = storage::grains_for(sizes, slots[g], grain);
    room.ratios.push_back(static_cast<double>(grains) * static_cast<double>(grain));
  }
  const double sum = std::accumulate(room.ratios.begin(), room.ratios.end(), 0.0);
  for (double& ratio : room.ratios) ratio /= sum;
  return room;
}

Result<MinQuotas> min_quotas(const KvCacheConfig& config) {
  SLACKWATER_ASSIGN_OR_RETURN(const LayerGroups groups, LayerGroups::build(config));
  const std::vector<std::int64_t> floors = min_slots_of(config, groups);
  const std::vector<std::int64_t> host_floors = min_host_slots_of(config, floors);
  const std::vector<std::size_t> pools = pool_groups_of(groups);
  const std::shared_ptr<storage::ColdPageCodec> codec =
      config.codec != nullptr ? config.codec : storage::make_concatenating_codec();
  std::vector<storage::GroupDemand> device;
  DemandOfBlob host;
  DemandOfBlob disk;
  for (std::size_t g = 0; g < groups.size(); ++g) {
    const LayerGroupDesc& group = groups.groups()[g];
    if (pools[g] == device.size()) device.push_back({group.layout.pool_slot_bytes, 1, 0});
    device[pools[g]].min_slots += floors[g];
    SLACKWATER_ASSIGN_OR_RETURN(const std::int64_t blob,
                                codec->cold_page_bytes(group.id, group.layout.pool_slot_bytes));
    host.try_emplace(blob, storage::GroupDemand{{blob}, 1, 0}).first->second.min_slots +=
        host_floors[g];
    disk[blob] = {{storage::disk_frame_bytes(blob)}, 1, 1};
  }
  MinQuotas least;
  // The grain follows the quota: the least quota is one that its own grain agrees with.
  least.device_bytes = config.device_bytes;
  while (true) {
    const std::int64_t usual =
        storage::device_grain_bytes(std::max<std::int64_t>(1, least.device_bytes));
    const std::int64_t bytes = storage::min_quota_bytes(device, grain_of(config, usual));
    if (bytes <= least.device_bytes) {
      if (least.device_bytes == config.device_bytes) least.device_bytes = bytes;
      break;
    }
    least.device_bytes = bytes;
  }
  for (auto& [blob, demand] : host) demand.min_slots = std::max<std::int64_t>(1, demand.min_slots);
  least.host_bytes =
      storage::min_quota_bytes(values_of(host), grain_of(config, storage::kHostGrainBytes));
  least.disk_bytes =
      storage::min_quota_bytes(values_of(disk), grain_of(config, storage::kDiskGrainBytes));
  return least;
}

std::int64_t clamp_sequence_length(const KvCacheConfig& config, const LayerGroups& groups,
                                   std::span<const std::int64_t> slots, std::int64_t batch_size,
                                   std::int64_t upper_bound) {
  const auto kinds = kinds_of(config, groups);
  const std::vector<std::size_t> pools = pool_groups_of(groups);
  const auto fits = [&](std::int64_t blocks) {
    std::vector<std::int64_t> needed(groups.size());
    for (std::size_t g = 0; g < groups.size(); ++g) {
      const std::int64_t tokens = blocks * config.tokens_per_block;
      const std::int64_t last = kinds[g]->batch_slots({{{tokens, tokens}}, 0});
      const std::int64_t other = kinds[g]->batch_slots({{{1, 0}}, 0});
      if (other > 0 && batch_size - 1 > slots[g] / other) return false;
      needed[pools[g]] += last + (batch_size - 1) * other;
    }
    for (std::size_t g = 0; g < groups.size(); ++g) {
      if (needed[pools[g]] > slots[g]) return false;
    }
    return true;
  };
  if (batch_size < 1 || upper_bound < 1) return 0;
  std::int64_t low = 0;
  std::int64_t high = ceil_div<std::int64_t>(upper_bound, config.tokens_per_block);
  while (low < high) {
    const std::int64_t middle = low + (high - low + 1) / 2;
    if (fits(middle)) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  return std::min(low * config.tokens_per_block, upper_bound);
}

}  // namespace slackwater::cache
