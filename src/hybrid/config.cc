#include "slackwater/hybrid/config.h"

#include <algorithm>
#include <set>
#include <utility>

#include "slackwater/base/mutant.h"
#include "slackwater/hybrid/replay_state.h"

namespace slackwater::hybrid {
namespace {

constexpr std::int32_t kMostHeads = 1 << 16;
constexpr std::int32_t kMostDrafts = 1 << 10;
constexpr std::int32_t kMostRequests = 1 << 20;

Result<void> check_shape(const KdaLayer& layer) {
  const KdaShape& shape = layer.shape;
  if (shape.num_heads < 1 || shape.num_heads > kMostHeads || shape.head_dim < 1 ||
      shape.head_dim > kernels::kMaxKdaHeadDim || shape.head_dim % kernels::kValueTile != 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "KDA layer {} has {} heads of {}; use 1 to {} heads of a multiple of {} up to "
        "{}",
        layer.layer, shape.num_heads, shape.head_dim, kMostHeads, kernels::kValueTile,
        kernels::kMaxKdaHeadDim);
  }
  if (shape.conv_taps != kernels::kConvTaps) {
    return make_error(ErrorCode::kInvalidArgument,
                      "KDA layer {} has a convolution over {} tokens; kernels take {}", layer.layer,
                      shape.conv_taps, kernels::kConvTaps);
  }
  if (shape.conv_dtype != DType::kF32 && shape.conv_dtype != DType::kBf16) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "the window of KDA layer {} is {}; use F32, or BF16 to keep what others wrote", layer.layer,
        to_string(shape.conv_dtype));
  }
  return {};
}

Result<void> check_layers(const HybridConfig& config) {
  for (const KdaLayer& layer : config.kda_layers) {
    SLACKWATER_RETURN_IF_ERROR(check_shape(layer));
    for (const KdaLayer& other : config.kda_layers) {
      if (other.group_tag != layer.group_tag || other.shape == layer.shape) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "KDA layers {} and {} of tag '{}' differ in shape; layers of one tag share "
                        "their slots, so give them tags of their own",
                        other.layer, layer.layer, layer.group_tag);
    }
  }
  if (!config.kda_layers.empty() && config.cache.pool_policy != storage::PoolPolicy::kOnePool) {
    return make_error(ErrorCode::kInvalidArgument,
                      "recurrent layers with a pool per size of buffers; kernels go through state "
                      "and window with one stride, so use PoolPolicy::kOnePool");
  }
  if (config.mtp_hidden_size < 0) {
    return make_error(ErrorCode::kInvalidArgument, "a hidden state of {} floats; use 0 for none",
                      config.mtp_hidden_size);
  }
  if (config.lookahead < 0) {
    return make_error(ErrorCode::kInvalidArgument, "{} positions ahead of what is kept; use 0",
                      config.lookahead);
  }
  return {};
}

Result<void> check_counts(const HybridConfig& config) {
  for (const std::int32_t count : {config.max_batch_size, config.pipeline_size}) {
    if (count >= 1 && count <= kMostRequests) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "batches of {} requests, {} of them at a time; use 1 to {} of both",
                      config.max_batch_size, config.pipeline_size, kMostRequests);
  }
  if (config.num_dummies < 0 || config.num_dummies > kMostRequests) {
    return make_error(ErrorCode::kInvalidArgument, "{} dummies; use 0 to {}", config.num_dummies,
                      kMostRequests);
  }
  if (config.speculation.has_value() &&
      (config.speculation->max_drafts < 1 || config.speculation->max_drafts > kMostDrafts)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "speculation with {} drafts; use 1 to {}, or none at all",
                      config.speculation->max_drafts, kMostDrafts);
  }
  const SnapshotOptions& snapshots = config.snapshots;
  if (snapshots.periodic_snapshot_interval < 0) {
    return make_error(ErrorCode::kInvalidArgument, "snapshots every {} tokens; use 0 for none",
                      snapshots.periodic_snapshot_interval);
  }
  for (const auto* offsets : {&snapshots.additional_snapshot_offsets_from_start,
                              &snapshots.additional_snapshot_offsets_from_end}) {
    for (const std::int64_t offset : *offsets) {
      if (offset >= 0) continue;
      return make_error(ErrorCode::kInvalidArgument,
                        "a snapshot {} tokens from an end of the prompt; use 0 or more", offset);
    }
  }
  return {};
}

Result<void> check_replay(const HybridConfig& config) {
  if (!config.replay.has_value()) return {};
  if (!config.speculation.has_value()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "replay of drafts without speculation; give max_drafts, or leave replay out");
  }
  if (config.replay->num_records != config.speculation->max_drafts) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} replay records a slot for rounds of up to {} drafts; they are the same "
                      "number",
                      config.replay->num_records, config.speculation->max_drafts);
  }
  const auto is_target = [](const KdaLayer& layer) { return layer.group_tag == "target"; };
  if (!config.kda_layers.empty() &&
      std::none_of(config.kda_layers.begin(), config.kda_layers.end(), is_target)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "replay on {} KDA layers, none of them of tag 'target', whose rounds decide "
                      "what is kept; give the target's layers, or leave replay out",
                      config.kda_layers.size());
  }
  if (config.has_mamba2_replay) {
    return make_error(ErrorCode::kInvalidArgument,
                      "replay on KDA layers and Mamba-2 replay at once; a model has one of them");
  }
  for (const KdaLayer& layer : config.kda_layers) {
    if (layer.shape.conv_layout == ConvLayout::kQThenKThenV) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "replay with an interleaved window in KDA layer {}; records are kept for "
                      "equal sections q, k, v, one after another",
                      layer.layer);
  }
  return {};
}

// Decided from all layers of the model, so that a rank without one of them refuses as well.
Result<void> check_rebalance(const HybridConfig& config) {
  if (!config.enable_rebalance) return {};
  if (has_fixed_views(config.kv_dtype)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rebalance with attention pages of '{}', which are read through fixed views "
                      "of the pools; turn enable_rebalance off, or choose another dtype",
                      config.kv_dtype);
  }
  if (config.kda_layers.empty() || config.placement == ReplayPlacement::kInPool) return {};
  if (config.replay.has_value() && !SLACKWATER_MUTANT(hybrid_allow_rebalance)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "rebalance with replay records {}: it can give the recurrent pool more slots than there "
        "are records for; turn enable_rebalance off, or use ReplayPlacement::kInPool",
        to_string(config.placement));
  }
  if (config.enable_block_reuse) {
    return make_error(ErrorCode::kInvalidArgument,
                      "rebalance with block reuse on a model with recurrent layers, placement {}; "
                      "turn one of the two off, or use ReplayPlacement::kInPool",
                      to_string(config.placement));
  }
  return {};
}

// The tags of recurrent layers, in the order of the configuration.
std::vector<std::string> tags_of(const HybridConfig& config) {
  std::vector<std::string> tags;
  for (const KdaLayer& layer : config.kda_layers) {
    if (std::find(tags.begin(), tags.end(), layer.group_tag) == tags.end()) {
      tags.push_back(layer.group_tag);
    }
  }
  return tags;
}

Result<void> check_saves(const HybridConfig& config) {
  const std::vector<std::string> tags = tags_of(config);
  for (const SlotEntry& entry : config.slot_entries) {
    if (std::find(tags.begin(), tags.end(), entry.group_tag) != tags.end()) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "slot entry '{}' of tag '{}', which no recurrent layer has", entry.name,
                      entry.group_tag);
  }
  for (const std::string& tag : tags) {
    SLACKWATER_RETURN_IF_ERROR(check_entries(slot_entries(config, tag), tag + " state"));
  }
  if (config.save_bytes < 0) {
    return make_error(ErrorCode::kInvalidArgument, "{} bytes for saves; use 0 for none",
                      config.save_bytes);
  }
  if (config.save_bytes == 0) return {};
  std::int64_t one_save = 0;
  for (const std::string& tag : tags) {
    one_save += save_bytes_of(slot_entries(config, tag, LayerScope::kAll));
  }
  if (config.save_bytes >= one_save) return {};
  return make_error(
      ErrorCode::kInvalidArgument,
      "{} bytes of host memory for saves, one save has {}; give that for each request "
      "that may start, or 0, and nobody is suspended",
      config.save_bytes, one_save);
}

}  // namespace

std::string_view to_string(ReplayPlacement placement) {
  return placement == ReplayPlacement::kBesidePool ? "beside the pool" : "in the pool";
}

bool has_fixed_views(std::string_view kv_dtype) { return kv_dtype == "fp8_ds_mla"; }

Result<void> validate(const HybridConfig& config) {
  SLACKWATER_RETURN_IF_ERROR(check_layers(config));
  SLACKWATER_RETURN_IF_ERROR(check_counts(config));
  SLACKWATER_RETURN_IF_ERROR(check_replay(config));
  SLACKWATER_RETURN_IF_ERROR(check_rebalance(config));
  return check_saves(config);
}

cache::KvCacheConfig make_cache_config(HybridConfig& config) {
  const std::vector<std::int32_t> local = config.cache.local_layers;
  cache::KvCacheConfig made = std::move(config.cache);
  config.cache = {};
  config.cache.local_layers = local;
  config.cache.tokens_per_block = made.tokens_per_block;
  config.cache.model = made.model;
  config.cache.host_bytes = made.host_bytes;
  config.cache.max_device_bytes = made.max_device_bytes;
  std::set<std::string> seen;
  for (const KdaLayer& layer : config.kda_layers) {
    const bool is_here =
        local.empty() || std::find(local.begin(), local.end(), layer.layer) != local.end();
    const bool is_first = is_here && seen.insert(layer.group_tag).second;
    made.layers.push_back({.layer = layer.layer,
                           .kind = cache::Recurrent{},
                           .buffers = page_buffers(config, layer, is_first),
                           .group_tag = layer.group_tag});
  }
  if (!config.kda_layers.empty()) {
    const std::int64_t sequences =
        std::int64_t{config.max_batch_size} * config.pipeline_size + config.num_dummies;
    made.constraints.push_back(
        {std::vector<cache::SequenceDesc>(static_cast<std::size_t>(sequences)), 0});
    // With replay a page may stand for less than is committed.
    made.explicit_states = true;
    made.snapshot_interval = config.snapshots.periodic_snapshot_interval;
  }
  return made;
}

}  // namespace slackwater::hybrid
