#include "slackwater/hybrid/replay_state.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::hybrid {

using kernels::RecurrentPages;
using kernels::ReplayRecords;

namespace {

void set_zero(std::span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), std::byte{0}); }

std::int32_t num_records(const HybridConfig& config) {
  return config.replay.has_value() ? config.replay->num_records : 0;
}

std::int32_t hidden_size_of(const HybridConfig& config, std::string_view group_tag) {
  return group_tag == "target" ? config.mtp_hidden_size : 0;
}

bool is_local(const HybridConfig& config, std::int32_t layer) {
  const std::vector<std::int32_t>& local = config.cache.local_layers;
  return local.empty() || std::find(local.begin(), local.end(), layer) != local.end();
}

std::vector<std::int32_t> local_layers_of(const HybridConfig& config, std::string_view group_tag) {
  std::vector<std::int32_t> layers;
  for (const KdaLayer& layer : config.kda_layers) {
    if (layer.group_tag == group_tag && is_local(config, layer.layer))
      layers.push_back(layer.layer);
  }
  return layers;
}

const KdaShape& shape_of(const HybridConfig& config, std::string_view group_tag) {
  const auto at = std::find_if(config.kda_layers.begin(), config.kda_layers.end(),
                               [&](const KdaLayer& layer) { return layer.group_tag == group_tag; });
  SLACKWATER_CHECK(at != config.kda_layers.end(), "no KDA layer of tag '{}'", group_tag);
  return at->shape;
}

float* floats(const PageTable& table) { return reinterpret_cast<float*>(table.base); }

}  // namespace

std::vector<RecordBuffer> record_buffers(const KdaShape& shape, std::int32_t num_records,
                                         std::int32_t hidden_size) {
  std::vector<RecordBuffer> buffers = {
      {kKdaConvQ, shape.conv_record_bytes(num_records)},
      {kKdaConvK, shape.conv_record_bytes(num_records)},
      {kKdaConvV, shape.conv_record_bytes(num_records)},
      {kKdaQkgCache, shape.qkg_record_bytes(num_records)},
      {kKdaVCache, shape.v_record_bytes(num_records)},
      {kKdaBetaCache, shape.beta_record_bytes(num_records)},
  };
  if (hidden_size > 0) {
    buffers.push_back({kMtpHiddenCache, std::int64_t{num_records} * hidden_size * 4, true});
  }
  return buffers;
}

std::vector<cache::BufferConfig> page_buffers(const HybridConfig& config, const KdaLayer& layer,
                                              bool is_first_of_tag) {
  const std::int32_t hidden_size = hidden_size_of(config, layer.group_tag);
  std::vector<cache::BufferConfig> buffers = {
      {std::string(kSsmState), layer.shape.state_bytes()},
      {std::string(kConvState), layer.shape.window_bytes()}};
  if (is_first_of_tag && hidden_size > 0) {
    buffers.push_back({std::string(kMtpHidden), std::int64_t{hidden_size} * 4});
  }
  if (num_records(config) == 0 || config.placement != ReplayPlacement::kInPool) return buffers;
  for (const RecordBuffer& record : record_buffers(layer.shape, num_records(config), hidden_size)) {
    if (record.is_of_first_layer && !is_first_of_tag) continue;
    buffers.push_back({std::string(record.name), record.bytes_per_layer});
    buffers.back().is_transient = true;
  }
  return buffers;
}

std::vector<SlotEntry> slot_entries(const HybridConfig& config, std::string_view group_tag,
                                    LayerScope scope) {
  std::vector<SlotEntry> entries;
  const std::int32_t records = num_records(config);
  if (records > 0) {
    entries.push_back({.name = std::string(kPrevNumAcceptedTokens),
                       .bytes_per_layer = sizeof(std::int32_t),
                       .num_layers = 1,
                       .reset = set_zero,
                       .is_record = false,
                       .group_tag = std::string(group_tag)});
  }
  const auto is_counted = [&](const KdaLayer& layer) {
    return layer.group_tag == group_tag &&
           (scope == LayerScope::kAll || is_local(config, layer.layer));
  };
  const auto layers = static_cast<std::int32_t>(
      std::count_if(config.kda_layers.begin(), config.kda_layers.end(), is_counted));
  if (records > 0 && config.placement == ReplayPlacement::kBesidePool && layers > 0) {
    for (const RecordBuffer& record :
         record_buffers(shape_of(config, group_tag), records, hidden_size_of(config, group_tag))) {
      entries.push_back({.name = std::string(record.name),
                         .bytes_per_layer = record.bytes_per_layer,
                         .num_layers = record.is_of_first_layer ? 1 : layers,
                         .reset = nullptr,
                         .is_record = true,
                         .group_tag = std::string(group_tag)});
    }
  }
  for (const SlotEntry& entry : config.slot_entries) {
    if (entry.group_tag == group_tag) entries.push_back(entry);
  }
  return entries;
}

ReplayState::ReplayState(const HybridConfig& config, std::string group_tag, LayerGroupId group,
                         std::unique_ptr<SlotRegistry> registry)
    : group_tag_(std::move(group_tag)),
      group_(group),
      shape_(shape_of(config, group_tag_)),
      placement_(config.placement),
      max_records_(num_records(config)),
      hidden_size_(hidden_size_of(config, group_tag_)),
      layers_(local_layers_of(config, group_tag_)),
      registry_(std::move(registry)) {
  if (!has_replay()) return;
  for (const RecordBuffer& record : record_buffers(shape_, max_records_, hidden_size_)) {
    record_names_.emplace_back(record.name);
  }
}

void ReplayState::bind(const cache::KvCacheManager& manager) {
  tables_.clear();
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    std::vector<NamedTable>& tables = tables_.emplace_back();
    const auto add = [&](std::string_view role) {
      const Result<PageTable> table = manager.page_table(layers_[i], role);
      SLACKWATER_CHECK(table.has_value(), "{}", table.error().text());
      tables.push_back({std::string(role), *table});
    };
    add(kSsmState);
    add(kConvState);
    if (i == 0 && hidden_size_ > 0) add(kMtpHidden);
    for (const std::string& name : record_names_) {
      if (name == kMtpHiddenCache && i > 0) continue;
      if (placement_ == ReplayPlacement::kInPool) {
        add(name);
        continue;
      }
      PageTable table = registry_->view(name);
      table.base += static_cast<std::int64_t>(i) * table.layer_stride;
      tables.push_back({name, table});
    }
  }
}

std::int32_t ReplayState::num_slots() const {
  if (tables_.empty()) return registry_->num_slots();
  return std::min(registry_->num_slots(), tables_[0][0].table.num_slots);
}

const PageTable& ReplayState::table(std::size_t layer, std::string_view name) const {
  SLACKWATER_CHECK(layer < tables_.size(), "layer {} of {}", layer, tables_.size());
  const std::vector<NamedTable>& tables = tables_[layer];
  const auto at = std::find_if(tables.begin(), tables.end(),
                               [&](const NamedTable& other) { return other.name == name; });
  SLACKWATER_CHECK(at != tables.end(), "no buffer '{}' of layer {}", name, layers_[layer]);
  return at->table;
}

RecurrentPages ReplayState::pages(std::size_t index) const {
  SLACKWATER_CHECK(shape_.conv_dtype == DType::kF32, "windows of {}; kernels take F32",
                   to_string(shape_.conv_dtype));
  const PageTable& state = table(index, kSsmState);
  const PageTable& window = table(index, kConvState);
  SLACKWATER_CHECK(state.slot_stride == window.slot_stride,
                   "states {} bytes apart and windows {}; keep them in one pool", state.slot_stride,
                   window.slot_stride);
  return {.state_base = floats(state),
          .window_base = floats(window),
          .slot_stride = state.slot_stride / 4,
          .num_slots = num_slots()};
}

ReplayRecords ReplayState::records(std::size_t index) const {
  if (!has_replay()) return {};
  const PageTable& conv_q = table(index, kKdaConvQ);
  return {.conv_base = {floats(conv_q), floats(table(index, kKdaConvK)),
                        floats(table(index, kKdaConvV))},
          .qkg_base = floats(table(index, kKdaQkgCache)),
          .v_base = floats(table(index, kKdaVCache)),
          .beta_base = floats(table(index, kKdaBetaCache)),
          .slot_stride = conv_q.slot_stride / 4,
          .num_slots = num_slots(),
          .max_records = max_records_};
}

std::int32_t* ReplayState::pending(SlotId slot) const {
  return reinterpret_cast<std::int32_t*>(registry_->address(kPrevNumAcceptedTokens, slot));
}

float* ReplayState::mtp_hidden(SlotId slot) const {
  if (hidden_size_ == 0) return nullptr;
  return reinterpret_cast<float*>(layer_address(table(0, kMtpHidden), slot));
}

float* ReplayState::mtp_hidden_cache(SlotId slot) const {
  if (hidden_size_ == 0 || !has_replay()) return nullptr;
  return reinterpret_cast<float*>(layer_address(table(0, kMtpHiddenCache), slot));
}

void ReplayState::reseed(SlotId slot) const {
  const std::int64_t count = shape_.width() * shape_.window_rows();
  for (std::size_t layer = 0; layer < layers_.size() && has_replay(); ++layer) {
    const std::byte* const window = layer_address(table(layer, kConvState), slot);
    std::int64_t section = 0;
    for (const std::string_view name : {kKdaConvQ, kKdaConvK, kKdaConvV}) {
      auto* const to = reinterpret_cast<float*>(layer_address(table(layer, name), slot));
      const std::int64_t first = count * section++;
      if (shape_.conv_dtype == DType::kF32) {
        std::memcpy(to, window + first * 4, static_cast<std::size_t>(count) * sizeof(float));
        continue;
      }
      const auto* const from = reinterpret_cast<const Bf16*>(window) + first;
      for (std::int64_t i = 0; i < count; ++i) to[i] = bf16_to_f32(from[i]);
    }
  }
}

}  // namespace slackwater::hybrid
