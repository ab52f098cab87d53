#ifndef SLACKWATER_CACHE_LAYER_GROUPS_H_
#define SLACKWATER_CACHE_LAYER_GROUPS_H_

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/config.h"
#include "slackwater/storage/slot_layout.h"

namespace slackwater::cache {

// Where one (layer, role) lies in the slots of its layer group.
struct BufferLocation {
  std::int32_t layer = 0;
  std::string role;
  LayerGroupId layer_group;
  std::size_t buffer = 0;          // of the group's layout
  std::int32_t layer_index = 0;    // within that buffer
  std::int64_t bytes = 0;          // of one page, all its smaller blocks together
  std::int32_t num_subblocks = 1;  // smaller blocks in a page, one after another
};

// Layers whose pages are born and die together.
struct LayerGroupDesc {
  LayerGroupId id;
  std::string name;  // "target: full attention"
  LayerKind kind;
  std::string group_tag;
  std::vector<std::int32_t> layers;        // in the order of the configuration
  std::vector<std::int32_t> local_layers;  // those whose bytes lie here
  std::vector<storage::BufferSpec> buffers;
  storage::SlotLayout layout;
  std::int64_t page_bytes = 0;  // over all pools
};

// The layer groups of a model, and where each buffer lies.
//
// Layers share a group when they have the same tag and the same kind; sliding windows also the
// same number of blocks of sink tokens. Groups are numbered in the order of their first layer in
// the whole model, so that all ranks number alike.
//
// Source: kvcm_v2.md 1.1 and 2.4.
// Invariants:
//   I1  every local layer is in exactly one group, and every buffer in exactly one place.
// Threads: immutable.
// Errors: kInvalidArgument for a group without a layer here. What validate() refuses before it
// builds groups is not looked at again.
class LayerGroups {
 public:
  static Result<LayerGroups> build(const KvCacheConfig& config);

  std::span<const LayerGroupDesc> groups() const { return groups_; }
  const LayerGroupDesc& group(LayerGroupId id) const;
  std::size_t size() const { return groups_.size(); }
  std::span<const BufferLocation> buffers() const { return buffers_; }
  // Nothing for a layer or role that is not here.
  const BufferLocation* find(std::int32_t layer, std::string_view role) const;

 private:
  void place_buffers(const KvCacheConfig& config, LayerGroupDesc& group);

  std::vector<LayerGroupDesc> groups_;
  std::vector<BufferLocation> buffers_;
};

// Slots and shares of the layer groups, as the solver wants them.
//
// Source: kvcm_v2.md 3.9.
struct GroupRoom {
  std::vector<std::int64_t> min_slots;       // [layer groups] on the device
  std::vector<std::int64_t> min_host_slots;  // [layer groups] on the host, if there is one
  std::vector<double> ratios;                // [layer groups] of the device's bytes, sum 1
};
GroupRoom plan_room(const KvCacheConfig& config, const LayerGroups& groups);

// The least quota that each tier can have, in bytes; what validate() would name.
struct MinQuotas {
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;  // if there is a host tier at all
  std::int64_t disk_bytes = 0;
};
Result<MinQuotas> min_quotas(const KvCacheConfig& config);

// The longest sequence, at most `upper_bound` tokens, for which there is room beside
// `batch_size - 1` sequences of one token, with `slots` [layer groups] slots of the device; groups
// that share slots name the same number. 0 if there is none.
std::int64_t clamp_sequence_length(const KvCacheConfig& config, const LayerGroups& groups,
                                   std::span<const std::int64_t> slots, std::int64_t batch_size,
                                   std::int64_t upper_bound);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LAYER_GROUPS_H_
