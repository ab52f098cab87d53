#include "cache/log_config.h"

#include <memory>
#include <utility>
#include <vector>

#include <nlohmann/json.hpp>

#include "cache/kinds/layer_kind_json.h"
#include "cache/replay_device.h"
#include "slackwater/cache/layer_groups.h"

namespace slackwater::cache {
namespace {

using nlohmann::json;

json of_batch(const BatchDesc& batch) {
  json sequences = json::array();
  for (const SequenceDesc& sequence : batch.sequences) {
    sequences.push_back({sequence.capacity, sequence.history});
  }
  return {{"sequences", sequences}, {"system_prompt_length", batch.system_prompt_length}};
}

BatchDesc to_batch(const json& from) {
  BatchDesc batch;
  for (const json& sequence : from.at("sequences")) {
    batch.sequences.push_back(
        {sequence.at(0).get<std::int64_t>(), sequence.at(1).get<std::int64_t>()});
  }
  from.at("system_prompt_length").get_to(batch.system_prompt_length);
  return batch;
}

json of_layers(const KvCacheConfig& config) {
  json layers = json::array();
  for (const LayerConfig& layer : config.layers) {
    json buffers = json::array();
    for (const BufferConfig& buffer : layer.buffers) {
      buffers.push_back({{"role", buffer.role},
                         {"bytes", buffer.bytes},
                         {"tokens_per_block", buffer.tokens_per_block},
                         {"is_transient", buffer.is_transient}});
    }
    json one = to_json(layer.kind);
    one["layer"] = layer.layer;
    one["buffers"] = std::move(buffers);
    one["group_tag"] = layer.group_tag;
    layers.push_back(std::move(one));
  }
  return layers;
}

Result<std::vector<LayerConfig>> to_layers(const json& from) {
  std::vector<LayerConfig> layers;
  for (const json& one : from) {
    LayerConfig layer;
    one.at("layer").get_to(layer.layer);
    SLACKWATER_ASSIGN_OR_RETURN(layer.kind, layer_kind_from_json(one));
    for (const json& buffer : one.at("buffers")) {
      layer.buffers.push_back({buffer.at("role").get<std::string>(),
                               buffer.at("bytes").get<std::int64_t>(),
                               buffer.at("tokens_per_block").get<std::int32_t>(),
                               buffer.at("is_transient").get<bool>()});
    }
    one.at("group_tag").get_to(layer.group_tag);
    layers.push_back(std::move(layer));
  }
  return layers;
}

// Of each layer group, as the codec makes them.
std::vector<std::int64_t> cold_bytes(const KvCacheConfig& config) {
  const std::shared_ptr<storage::ColdPageCodec> codec =
      config.codec != nullptr ? config.codec : storage::make_concatenating_codec();
  std::vector<std::int64_t> bytes;
  const Result<LayerGroups> groups = LayerGroups::build(config);
  if (!groups.has_value()) return bytes;
  for (const LayerGroupDesc& group : groups->groups()) {
    bytes.push_back(codec->cold_page_bytes(group.id, group.layout.pool_slot_bytes).value_or(0));
  }
  return bytes;
}

json of_rebalance(const RebalanceOptions& rebalance) {
  return {{"min_samples", rebalance.min_samples},
          {"update_interval", rebalance.update_interval},
          {"cooldown_ns", rebalance.cooldown.count()},
          {"threshold", rebalance.threshold},
          {"decay", rebalance.decay}};
}

RebalanceOptions to_rebalance(const json& from) {
  RebalanceOptions rebalance;
  from.at("min_samples").get_to(rebalance.min_samples);
  from.at("update_interval").get_to(rebalance.update_interval);
  rebalance.cooldown = Nanoseconds(from.at("cooldown_ns").get<std::int64_t>());
  from.at("threshold").get_to(rebalance.threshold);
  from.at("decay").get_to(rebalance.decay);
  return rebalance;
}

// Numbers of both ways, by name.
template <class Config, class Each>
void for_each_number(Config& config, const Each& each) {
  each("tokens_per_block", config.tokens_per_block);
  each("local_layers", config.local_layers);
  each("device_bytes", config.device_bytes);
  each("host_bytes", config.host_bytes);
  each("disk_bytes", config.disk_bytes);
  each("max_device_bytes", config.max_device_bytes);
  each("max_host_bytes", config.max_host_bytes);
  each("segment_bytes", config.disk.segment_bytes);
  each("grain_bytes", config.grain_bytes);
  each("copy_threads", config.copy_threads);
  each("enable_partial_reuse", config.enable_partial_reuse);
  each("reuse_match_backoff", config.reuse_match_backoff);
  each("text_only", config.text_only);
  each("enable_statistics", config.enable_statistics);
  each("snapshot_interval", config.snapshot_interval);
  each("explicit_states", config.explicit_states);
  each("max_util_for_resume", config.max_util_for_resume);
  each("guarantee_suspend", config.guarantee_suspend);
  each("initial_pool_ratio", config.initial_pool_ratio);
}

Result<KvCacheConfig> to_config(const json& from) {
  KvCacheConfig config;
  SLACKWATER_ASSIGN_OR_RETURN(config.layers, to_layers(from.at("layers")));
  for_each_number(config, [&](const char* name, auto& value) { from.at(name).get_to(value); });
  config.pool_policy = static_cast<storage::PoolPolicy>(from.at("pool_policy").get<int>());
  config.commit_policy = static_cast<CommitPolicy>(from.at("commit_policy").get<int>());
  config.rebalance = to_rebalance(from.at("rebalance"));
  for (const json& batch : from.at("constraints")) config.constraints.push_back(to_batch(batch));
  if (from.contains("typical_step")) config.typical_step = to_batch(from.at("typical_step"));
  config.codec =
      std::make_shared<RecalledCodec>(from.at("cold_page_bytes").get<std::vector<std::int64_t>>());
  config.disk.directory = "/";
  config.disk.is_dry = true;
  return config;
}

}  // namespace

std::string log_config(const KvCacheConfig& config) {
  json out;
  for_each_number(config, [&](const char* name, const auto& value) { out[name] = value; });
  out["layers"] = of_layers(config);
  out["pool_policy"] = static_cast<int>(config.pool_policy);
  out["commit_policy"] = static_cast<int>(config.commit_policy);
  out["rebalance"] = of_rebalance(config.rebalance);
  out["constraints"] = json::array();
  for (const BatchDesc& batch : config.constraints) out["constraints"].push_back(of_batch(batch));
  if (config.typical_step.has_value()) out["typical_step"] = of_batch(*config.typical_step);
  out["cold_page_bytes"] = cold_bytes(config);
  // Roles and tags of any bytes: they name nothing that is done.
  return out.dump(-1, ' ', false, json::error_handler_t::replace);
}

Result<KvCacheConfig> read_log_config(std::string_view text) {
  try {
    return to_config(json::parse(text));
  } catch (const json::exception& error) {
    return make_error(ErrorCode::kDataLoss, "the configuration of the log cannot be read: {}",
                      error.what());
  }
}

}  // namespace slackwater::cache
