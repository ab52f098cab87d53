#include "slackwater/cache/config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>
#include <string>

#include "cache/kinds/group_kind.h"
#include "slackwater/cache/layer_groups.h"

namespace slackwater::cache {
namespace {

constexpr std::int32_t kMaxTokensPerBlock = 1 << 16;
constexpr std::int64_t kLeastLogBytes = 1 << 20;
constexpr double kRatioSumTolerance = 1e-6;
// Far beyond any model and any machine, and far from where sums and products overflow.
constexpr std::int64_t kMostTokens = std::int64_t{1} << 40;
constexpr std::int64_t kMostBufferBytes = std::int64_t{1} << 36;
constexpr std::int64_t kMostTierBytes = std::int64_t{1} << 60;
constexpr std::int32_t kMostEvents = 1 << 24;

Result<void> check_kind(const LayerConfig& layer) {
  const auto* window = std::get_if<SlidingWindow>(&layer.kind);
  if (window == nullptr) return {};
  if (window->window < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {} has a sliding window of {} tokens; a token sees itself at least, "
                      "so use 1 or more",
                      layer.layer, window->window);
  }
  if (window->num_sink_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument, "layer {} has {} sink tokens; use 0 for none",
                      layer.layer, window->num_sink_tokens);
  }
  if (window->window > kMostTokens || window->num_sink_tokens > kMostTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "layer {} has a sliding window of {} after {} sink tokens; {} is the most of "
                      "either, and full attention has no end",
                      layer.layer, window->window, window->num_sink_tokens, kMostTokens);
  }
  return {};
}

bool has_block_pages(const KvCacheConfig& config, const LayerConfig& layer) {
  return make_group_kind(layer.kind, config.tokens_per_block)->has_block_pages();
}

Result<void> check_buffer(const KvCacheConfig& config, const LayerConfig& layer,
                          const BufferConfig& buffer) {
  if (buffer.bytes < 1 || buffer.bytes > kMostBufferBytes) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' of layer {} has {} bytes; use 1 to {}", buffer.role, layer.layer,
                      buffer.bytes, kMostBufferBytes);
  }
  if (buffer.is_transient && has_block_pages(config, layer)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' of layer {} is transient, and its pages are those of blocks, "
                      "which others share; keep it in a recurrent layer",
                      buffer.role, layer.layer);
  }
  if (buffer.tokens_per_block == 0) return {};
  if (std::holds_alternative<Recurrent>(layer.kind)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' of the recurrent layer {} has blocks of {} tokens; a state has "
                      "no blocks, leave it at 0",
                      buffer.role, layer.layer, buffer.tokens_per_block);
  }
  if (buffer.tokens_per_block < 0 || config.tokens_per_block % buffer.tokens_per_block != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' of layer {} has blocks of {} tokens, which do not divide the {} "
                      "of a block",
                      buffer.role, layer.layer, buffer.tokens_per_block, config.tokens_per_block);
  }
  return {};
}

Result<void> check_layers(const KvCacheConfig& config) {
  if (config.layers.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "no layers; name at least one");
  }
  std::set<std::int32_t> layers;
  for (const LayerConfig& layer : config.layers) {
    if (layer.layer < 0) {
      return make_error(ErrorCode::kInvalidArgument, "a layer of number {}; use 0 or more",
                        layer.layer);
    }
    if (!layers.insert(layer.layer).second) {
      return make_error(ErrorCode::kInvalidArgument, "layer {} is named twice", layer.layer);
    }
    if (layer.buffers.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "layer {} has no buffers", layer.layer);
    }
    SLACKWATER_RETURN_IF_ERROR(check_kind(layer));
    std::set<std::string> roles;
    for (const BufferConfig& buffer : layer.buffers) {
      if (!roles.insert(buffer.role).second) {
        return make_error(ErrorCode::kInvalidArgument, "layer {} has two buffers '{}'", layer.layer,
                          buffer.role);
      }
      SLACKWATER_RETURN_IF_ERROR(check_buffer(config, layer, buffer));
    }
  }
  std::set<std::int32_t> local;
  for (const std::int32_t layer : config.local_layers) {
    if (!local.insert(layer).second) {
      return make_error(ErrorCode::kInvalidArgument, "local layer {} is named twice", layer);
    }
    if (!layers.contains(layer)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "local layer {} is not one of the {} layers of the model", layer,
                        layers.size());
    }
  }
  return {};
}

Result<void> check_batch(const BatchDesc& batch, const char* name) {
  if (batch.system_prompt_length < 0 || batch.system_prompt_length > kMostTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} with a system prompt of {} tokens; use 0 to {}", name,
                      batch.system_prompt_length, kMostTokens);
  }
  for (const SequenceDesc& sequence : batch.sequences) {
    if (sequence.history < 0 || sequence.history > sequence.capacity ||
        sequence.capacity > kMostTokens) {
      return make_error(ErrorCode::kInvalidArgument,
                        "{} with a history of {} tokens in a capacity of {}; use 0 <= history <= "
                        "capacity <= {}",
                        name, sequence.history, sequence.capacity, kMostTokens);
    }
  }
  return {};
}

Result<void> check_tiers(const KvCacheConfig& config) {
  for (const std::int64_t bytes : {config.device_bytes, config.host_bytes, config.disk_bytes,
                                   config.max_device_bytes, config.max_host_bytes}) {
    if (bytes <= kMostTierBytes) continue;
    return make_error(ErrorCode::kInvalidArgument, "a tier of {} bytes; {} is the most", bytes,
                      kMostTierBytes);
  }
  if (config.device_bytes < 1) {
    return make_error(ErrorCode::kInvalidArgument, "a device tier of {} bytes",
                      config.device_bytes);
  }
  if (config.host_bytes < 0 || config.disk_bytes < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a host tier of {} bytes and a disk tier of {}; use 0 for none",
                      config.host_bytes, config.disk_bytes);
  }
  if (config.guarantee_suspend && config.host_bytes == 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "guarantee_suspend without a host tier; give it host_bytes, or turn it off");
  }
  if (config.disk_bytes > 0 && config.disk.directory.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a disk tier of {} bytes without a directory; name one", config.disk_bytes);
  }
  if (config.grain_bytes < 0) {
    return make_error(ErrorCode::kInvalidArgument, "a grain of {} bytes; use 0 for the usual ones",
                      config.grain_bytes);
  }
  return {};
}

Result<void> check_reuse(const KvCacheConfig& config) {
  // Written so that NaN is refused.
  if (!(config.max_util_for_resume > 0 && config.max_util_for_resume <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "max_util_for_resume must be in (0, 1], not {}",
                      config.max_util_for_resume);
  }
  if (config.reuse_match_backoff < 0 || config.reuse_match_backoff > kMostTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a reuse_match_backoff of {} tokens; use 0 for none, {} at most",
                      config.reuse_match_backoff, kMostTokens);
  }
  if (config.snapshot_interval < 0 || config.snapshot_interval > kMostTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a snapshot_interval of {} tokens; use 0 for none, {} at most",
                      config.snapshot_interval, kMostTokens);
  }
  return {};
}

Result<void> check_rebalance(const RebalanceOptions& options) {
  if (options.min_samples < 0 || options.update_interval < 1 || options.cooldown.count() < 0) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "a rebalance after {} samples, looked at every {} ends, {} ns apart; use 0, 1 "
        "and 0 or more",
        options.min_samples, options.update_interval, options.cooldown.count());
  }
  if (!(options.threshold > 1 && std::isfinite(options.threshold))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a rebalance threshold of {}; a factor above 1 is wanted", options.threshold);
  }
  if (!(options.decay > 0 && options.decay < 1)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a rebalance decay of {}; use one between 0 and 1", options.decay);
  }
  return {};
}

Result<void> check_events(const KvCacheConfig& config) {
  if (config.max_events >= 0 && config.max_events <= kMostEvents) return {};
  return make_error(ErrorCode::kInvalidArgument, "max_events is {}; use 0 for none, {} at most",
                    config.max_events, kMostEvents);
}

Result<void> check_unbuilt(const KvCacheConfig& config) {
  if (config.sliding_window_scratch_pages) {
    return make_error(ErrorCode::kUnimplemented,
                      "scratch pages for sliding windows are not built; leave "
                      "sliding_window_scratch_pages off, and windows get pages of their own");
  }
  if (config.max_beam_width != 1) {
    return make_error(
        config.max_beam_width < 1 ? ErrorCode::kInvalidArgument : ErrorCode::kUnimplemented,
        "beams are not built: max_beam_width is {}, use 1", config.max_beam_width);
  }
  return {};
}

Result<void> check_ratio(const KvCacheConfig& config, std::size_t num_groups) {
  if (config.initial_pool_ratio.empty()) return {};
  if (config.initial_pool_ratio.size() != num_groups) {
    return make_error(ErrorCode::kInvalidArgument,
                      "initial_pool_ratio has length {}; there are {} layer groups",
                      config.initial_pool_ratio.size(), num_groups);
  }
  double sum = 0;
  for (const double ratio : config.initial_pool_ratio) {
    if (!(ratio > 0 && std::isfinite(ratio))) {
      return make_error(ErrorCode::kInvalidArgument,
                        "initial_pool_ratio has an element {}; each must be positive", ratio);
    }
    sum += ratio;
  }
  if (std::abs(sum - 1) > kRatioSumTolerance) {
    return make_error(ErrorCode::kInvalidArgument, "initial_pool_ratio has the sum {}, not 1", sum);
  }
  return {};
}

Result<void> check_log(const OperationLogOptions& log) {
  if (log.path.empty() || log.max_bytes >= kLeastLogBytes) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "an operation log of at most {} bytes; give it {} or more", log.max_bytes,
                    kLeastLogBytes);
}

Result<void> check_quota(const char* tier, std::int64_t quota, std::int64_t least) {
  if (quota >= least) return {};
  return make_error(ErrorCode::kInvalidArgument,
                    "a {} tier of {} bytes is below what its floors need; use {} or more", tier,
                    quota, least);
}

}  // namespace

Result<void> validate(const KvCacheConfig& config) {
  if (config.tokens_per_block < 1 || config.tokens_per_block > kMaxTokensPerBlock ||
      !std::has_single_bit(static_cast<std::uint32_t>(config.tokens_per_block))) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} tokens per block; use a power of two, at most {}",
                      config.tokens_per_block, kMaxTokensPerBlock);
  }
  SLACKWATER_RETURN_IF_ERROR(check_unbuilt(config));
  SLACKWATER_RETURN_IF_ERROR(check_layers(config));
  SLACKWATER_RETURN_IF_ERROR(check_tiers(config));
  SLACKWATER_RETURN_IF_ERROR(check_reuse(config));
  SLACKWATER_RETURN_IF_ERROR(check_rebalance(config.rebalance));
  SLACKWATER_RETURN_IF_ERROR(check_log(config.operation_log));
  SLACKWATER_RETURN_IF_ERROR(check_events(config));
  for (const BatchDesc& batch : config.constraints) {
    SLACKWATER_RETURN_IF_ERROR(check_batch(batch, "a constraint"));
  }
  if (config.typical_step.has_value()) {
    SLACKWATER_RETURN_IF_ERROR(check_batch(*config.typical_step, "a typical step"));
  }
  SLACKWATER_ASSIGN_OR_RETURN(const LayerGroups groups, LayerGroups::build(config));
  SLACKWATER_RETURN_IF_ERROR(check_ratio(config, groups.size()));
  SLACKWATER_ASSIGN_OR_RETURN(const MinQuotas least, min_quotas(config));
  SLACKWATER_RETURN_IF_ERROR(check_quota("device", config.device_bytes, least.device_bytes));
  if (config.host_bytes > 0) {
    SLACKWATER_RETURN_IF_ERROR(check_quota("host", config.host_bytes, least.host_bytes));
  }
  if (config.disk_bytes > 0) {
    SLACKWATER_RETURN_IF_ERROR(check_quota("disk", config.disk_bytes, least.disk_bytes));
  }
  return {};
}

}  // namespace slackwater::cache
