#include "engine/pools.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "engine/step_runner.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"
#include "slackwater/cache/layer_groups.h"
#include "slackwater/hybrid/replay_state.h"

namespace slackwater::engine {
namespace {

constexpr std::int32_t kMostDraftsOfARound = 15;
constexpr std::int32_t kMostSlots = 1 << 20;
// Of pools that are given in slots: so that a few small ones come out as they were asked for.
constexpr std::int64_t kSmallGrain = 16 << 10;

bool has_replay(const EngineConfig& config) {
  return config.speculation.drafter != DrafterKind::kNone;
}

Result<void> check_drafter(const EngineParts& parts, const EngineConfig& config) {
  const SpeculationConfig& speculation = config.speculation;
  if (speculation.drafter == DrafterKind::kNone) return {};
  if (speculation.max_drafts < 1 || speculation.max_drafts > kMostDraftsOfARound) {
    return make_error(ErrorCode::kInvalidArgument, "max_drafts is {}; use 1 to {}, or drafter none",
                      speculation.max_drafts, kMostDraftsOfARound);
  }
  const model::ModelConfig& model = parts.model->config();
  switch (speculation.drafter) {
    case DrafterKind::kNone: break;
    case DrafterKind::kNgram:
      if (speculation.ngram_min < 1 || speculation.ngram_max < speculation.ngram_min ||
          speculation.ngram_max > 16) {
        return make_error(ErrorCode::kInvalidArgument,
                          "n-grams of {} to {} tokens; use 1 <= ngram_min <= ngram_max <= 16",
                          speculation.ngram_min, speculation.ngram_max);
      }
      break;
    case DrafterKind::kMtp:
      if (model.num_mtp_layers > 0) break;
      return make_error(ErrorCode::kInvalidArgument,
                        "drafter mtp, and the model has no multi-token-prediction block; use "
                        "ngram, a draft model, or none");
    case DrafterKind::kDraftModel:
      if (parts.draft_model == nullptr) {
        return make_error(ErrorCode::kInvalidArgument,
                          "drafter model without a draft model; give one, or use another drafter");
      }
      if (parts.draft_model->config().vocab_size != model.vocab_size) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the draft model has a vocabulary of {}, the model one of {}; a drafter "
                          "must speak the model's tokens",
                          parts.draft_model->config().vocab_size, model.vocab_size);
      }
      if (parts.draft_model->config().num_kda_layers() == 0) {
        return make_error(ErrorCode::kUnimplemented,
                          "a draft model without recurrent layers; use one that has some");
      }
      if (parts.draft_model->config().max_length < model.max_length) {
        return make_error(ErrorCode::kInvalidArgument,
                          "the draft model's sequences have at most {} tokens, the model's {}; use "
                          "a drafter that can follow",
                          parts.draft_model->config().max_length, model.max_length);
      }
      break;
  }
  return {};
}

// Where shares follow the load, or the host has to take whatever is in use, it takes a floor to
// have room for one long request at any time.
bool keeps_room_for_one(const EngineConfig& config) {
  const PoolConfig& pools = config.pools;
  return config.enable_rebalance || (pools.guarantee_suspend && pools.host_bytes > 0);
}

// A state that goes on from a snapshot is a copy: the one request that is left needs both at once.
std::int32_t least_slots(const EngineConfig& config) { return config.enable_block_reuse ? 2 : 1; }

Result<void> check_pools(const EngineConfig& config) {
  const PoolConfig& pools = config.pools;
  const bool has_bytes = pools.device_bytes > 0;
  const bool has_slots = pools.num_slots != 0 || pools.num_blocks != 0;
  if (has_bytes == has_slots) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} slots and {} blocks and {} bytes on the device; give slots and blocks, "
                      "or bytes",
                      pools.num_slots, pools.num_blocks, pools.device_bytes);
  }
  if (has_slots && (pools.num_slots < least_slots(config) || pools.num_slots > kMostSlots)) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} slots for recurrent states; a request that runs needs one, and with "
        "block reuse a second one for the snapshot that it goes on from: use {} to {}",
        pools.num_slots, least_slots(config), kMostSlots);
  }
  if (has_slots && (pools.num_blocks < 1 || pools.num_blocks > kMostSlots)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} blocks for attention; a request that runs needs one: use 1 to {}",
                      pools.num_blocks, kMostSlots);
  }
  if (pools.host_bytes < 0 || pools.disk_bytes < 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} bytes on the host and {} on disk; use 0 for no such tier",
                      pools.host_bytes, pools.disk_bytes);
  }
  return {};
}

void add_layers(const model::ModelConfig& model, std::int32_t first_layer, const std::string& tag,
                std::int32_t tokens_per_block, hybrid::HybridConfig& out) {
  for (std::int32_t i = 0; i < model.num_layers; ++i) {
    if (model.layer_kinds[static_cast<std::size_t>(i)] == model::LayerKind::kMla) {
      const std::int64_t bytes = std::int64_t{tokens_per_block} * model.mla_row_width() * 4;
      out.cache.layers.push_back({.layer = first_layer + i,
                                  .kind = cache::FullAttention{},
                                  .buffers = {{.role = "kv_latent", .bytes = bytes}},
                                  .group_tag = tag});
    } else {
      hybrid::KdaLayer layer;
      layer.layer = first_layer + i;
      layer.shape.num_heads = model.kda_num_heads;
      layer.shape.head_dim = model.kda_head_dim;
      layer.group_tag = tag;
      out.kda_layers.push_back(std::move(layer));
    }
  }
}

hybrid::HybridConfig with_layers(const EngineParts& parts, const EngineConfig& config) {
  hybrid::HybridConfig out;
  const model::ModelConfig& model = parts.model->config();
  const std::int32_t tokens_per_block = config.pools.tokens_per_block;
  out.cache.tokens_per_block = tokens_per_block;
  add_layers(model, 0, "target", tokens_per_block, out);
  if (config.speculation.drafter == DrafterKind::kMtp) {
    const std::int64_t bytes = std::int64_t{tokens_per_block} * model.mla_row_width() * 4;
    out.cache.layers.push_back({.layer = mtp_layer_id(model),
                                .kind = cache::FullAttention{},
                                .buffers = {{.role = "kv_latent", .bytes = bytes}},
                                .group_tag = "mtp"});
    out.mtp_hidden_size = model.num_kda_layers() > 0 ? model.hidden_size : 0;
    // The row of the golden token is made when that is sampled, before it is run.
    out.lookahead = 1;
  }
  if (config.speculation.drafter == DrafterKind::kDraftModel) {
    add_layers(parts.draft_model->config(), draft_layer_id(model, 0), "draft", tokens_per_block,
               out);
  }
  if (has_replay(config)) {
    out.speculation = hybrid::SpeculationOptions{config.speculation.max_drafts};
    if (!out.kda_layers.empty()) out.replay = hybrid::ReplayOptions{config.speculation.max_drafts};
  }
  out.placement = config.placement;
  out.suspend_policy = config.suspend_policy;
  out.enable_block_reuse = config.enable_block_reuse;
  out.enable_rebalance = config.enable_rebalance;
  out.snapshots.periodic_snapshot_interval = config.snapshot_interval;
  return out;
}

// Bytes of a page of each layer group on the device, and whether it is a recurrent state's.
struct GroupBytes {
  std::int64_t page_bytes = 0;
  bool is_state = false;
};

Result<std::vector<GroupBytes>> group_bytes(const EngineParts& parts, const EngineConfig& config) {
  hybrid::HybridConfig scratch = with_layers(parts, config);
  const cache::KvCacheConfig made = hybrid::make_cache_config(scratch);
  SLACKWATER_ASSIGN_OR_RETURN(const cache::LayerGroups groups, cache::LayerGroups::build(made));
  std::vector<GroupBytes> all;
  for (const cache::LayerGroupDesc& group : groups.groups()) {
    const bool is_state = std::any_of(
        scratch.kda_layers.begin(), scratch.kda_layers.end(), [&](const hybrid::KdaLayer& layer) {
          return std::find(group.layers.begin(), group.layers.end(), layer.layer) !=
                 group.layers.end();
        });
    all.push_back({group.page_bytes, is_state});
  }
  return all;
}

// Of the host's bytes those that are for what lies beside the pools: as many saves as there can be
// requests that have started, those in slots and those whose states lie on the host.
Result<std::int64_t> share_of_saves(const PoolConfig& pools, std::int64_t one_save,
                                    std::int64_t state_bytes) {
  if (pools.host_bytes == 0) return std::int64_t{0};
  const std::int64_t least = one_save + state_bytes;
  if (pools.host_bytes < least) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "{} bytes of host memory; one suspended request has {} of state and {} beside "
        "it: give {} or more, or 0 for no host tier",
        pools.host_bytes, state_bytes, one_save, least);
  }
  if (one_save == 0) return std::int64_t{0};
  const std::int64_t on_device =
      pools.num_slots > 0 ? std::int64_t{pools.num_slots} * state_bytes : pools.device_bytes;
  const std::int64_t saves = std::max<std::int64_t>(
      1, (on_device + pools.host_bytes) / std::max<std::int64_t>(1, one_save + state_bytes));
  return std::min(saves * one_save, pools.host_bytes - state_bytes) / one_save * one_save;
}

}  // namespace

std::int64_t positions_past_end(const EngineConfig& config) {
  if (!has_replay(config)) return 2;
  // Two rounds under way, and what a prediction block writes ahead.
  return 3 * (1 + std::int64_t{config.speculation.max_drafts});
}

Result<std::int64_t> tokens_for_one(const EngineParts& parts, const EngineConfig& config) {
  const PoolConfig& pools = config.pools;
  const std::int64_t longest =
      std::int64_t{parts.model->config().max_length} + positions_past_end(config);
  if (!keeps_room_for_one(config)) return longest;
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<GroupBytes> groups, group_bytes(parts, config));
  std::int64_t state_bytes = 0;
  std::int64_t block_bytes = 0;
  for (const GroupBytes& group : groups) {
    (group.is_state ? state_bytes : block_bytes) += group.page_bytes;
  }
  if (block_bytes == 0) return longest;
  std::int64_t blocks = pools.num_blocks;
  if (pools.device_bytes > 0) {
    blocks = (pools.device_bytes - config.scheduler.max_batch_size * state_bytes) / block_bytes;
  }
  return std::clamp<std::int64_t>(blocks / 2 * pools.tokens_per_block, 1, longest);
}

Result<void> validate(const EngineParts& parts, const EngineConfig& config) {
  if (parts.device == nullptr || parts.context == nullptr || parts.model == nullptr) {
    return make_error(ErrorCode::kInvalidArgument,
                      "an engine needs a device, an execution context and a model");
  }
  if (parts.model->config().num_kda_layers() == 0) {
    return make_error(ErrorCode::kUnimplemented,
                      "a model without recurrent layers; an engine runs hybrid models");
  }
  SLACKWATER_RETURN_IF_ERROR(scheduler::validate(config.scheduler));
  SLACKWATER_RETURN_IF_ERROR(check_pools(config));
  SLACKWATER_RETURN_IF_ERROR(check_drafter(parts, config));
  if (config.rebalance_check_interval < 1) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a look at the shares every {} steps; use 1 or more",
                      config.rebalance_check_interval);
  }
  return {};
}

Result<hybrid::HybridConfig> make_hybrid_config(const EngineParts& parts,
                                                const EngineConfig& config) {
  const PoolConfig& pools = config.pools;
  hybrid::HybridConfig out = with_layers(parts, config);
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<GroupBytes> groups, group_bytes(parts, config));
  std::int64_t state_bytes = 0;
  std::int64_t bytes = 0;
  for (const GroupBytes& group : groups) {
    bytes += group.page_bytes * (group.is_state ? pools.num_slots : pools.num_blocks);
    if (group.is_state) state_bytes += group.page_bytes;
  }
  out.cache.grain_bytes = pools.grain_bytes;
  out.cache.device_bytes = pools.device_bytes;
  out.max_batch_size = config.scheduler.max_batch_size;
  if (pools.num_slots > 0) {
    for (const GroupBytes& group : groups) {
      const std::int64_t count = group.is_state ? pools.num_slots : pools.num_blocks;
      out.cache.initial_pool_ratio.push_back(static_cast<double>(group.page_bytes * count) /
                                             static_cast<double>(bytes));
    }
    if (out.cache.grain_bytes == 0) out.cache.grain_bytes = kSmallGrain;
    out.cache.device_bytes = round_up(bytes, out.cache.grain_bytes) +
                             static_cast<std::int64_t>(groups.size()) * out.cache.grain_bytes;
    // The floor of every share; who finds no slot waits for one.
    out.max_batch_size = std::clamp(pools.num_slots / 2, 1, config.scheduler.max_batch_size);
  }
  out.max_batch_size = std::max(out.max_batch_size, least_slots(config));
  if (keeps_room_for_one(config) && !SLACKWATER_MUTANT(engine_shares_forget_the_longest)) {
    SLACKWATER_ASSIGN_OR_RETURN(const std::int64_t capacity, tokens_for_one(parts, config));
    out.cache.constraints.push_back({{{.capacity = capacity, .history = 0}}, 0});
  }
  std::int64_t one_save = 0;
  for (const char* const tag : {"target", "draft"}) {
    const bool is_there =
        std::any_of(out.kda_layers.begin(), out.kda_layers.end(),
                    [&](const hybrid::KdaLayer& layer) { return layer.group_tag == tag; });
    if (!is_there) continue;
    one_save += hybrid::save_bytes_of(hybrid::slot_entries(out, tag, hybrid::LayerScope::kAll));
  }
  SLACKWATER_ASSIGN_OR_RETURN(out.save_bytes, share_of_saves(pools, one_save, state_bytes));
  out.cache.host_bytes = pools.host_bytes - out.save_bytes;
  out.cache.disk_bytes = pools.disk_bytes;
  out.cache.disk.directory = pools.disk_directory;
  out.cache.guarantee_suspend = pools.guarantee_suspend && pools.host_bytes > 0;
  out.cache.model = parts.model->digest();
  out.cache.rebalance = config.rebalance;
  out.cache.operation_log = config.operation_log;
  out.cache.text_only = true;
  return out;
}

}  // namespace slackwater::engine
