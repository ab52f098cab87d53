#include "slackwater/model/model.h"

#include <array>
#include <string>

#include <fmt/format.h>

#include "model/weight_loader.h"
#include "model/weights.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/model/checkpoint.h"
#include "slackwater/model/mapped_file.h"

namespace slackwater::model {
namespace {

using kernels::PackedWeights;

KdaWeights load_kda(WeightLoader& loader, const ModelConfig& config, const std::string& prefix) {
  const std::int64_t width = config.kda_width();
  const std::int64_t dim = config.kda_head_dim;
  const std::int64_t heads = config.kda_num_heads;
  const auto part = [&](const char* name, std::int64_t rows) {
    return MatrixPart{prefix + name + ".weight", rows};
  };
  KdaWeights kda;
  const MatrixPart inputs[] = {
      part("q_proj", width),
      part("k_proj", width),
      part("v_proj", width),
      part("f_a_proj", dim),
      config.full_rank_output_gate ? part("g_proj", width) : part("g_a_proj", dim),
      part("b_proj", heads),
  };
  kda.in_proj = loader.matrix(inputs, config.hidden_size);
  kda.decay_up = loader.matrix(prefix + "f_b_proj.weight", width, dim);
  if (!config.full_rank_output_gate) {
    kda.gate_up = loader.matrix(prefix + "g_b_proj.weight", width, dim);
  }
  kda.out_proj = loader.matrix(prefix + "o_proj.weight", config.hidden_size, width);
  kda.conv = {loader.filters(prefix + "q_conv1d.weight", width),
              loader.filters(prefix + "k_conv1d.weight", width),
              loader.filters(prefix + "v_conv1d.weight", width)};
  kda.dt_bias = loader.vector(prefix + "dt_bias", width);
  // Published files hold [1, 1, heads, 1], or one dimension padded past the heads.
  float* rate = loader.vector(prefix + "A_log", heads, WeightLoader::Length::kAtLeast);
  for (std::int64_t head = 0; rate != nullptr && head < heads; ++head) {
    rate[head] = kernels::kda_decay_rate(rate[head]);
  }
  kda.decay_rate = rate;
  kda.out_norm = loader.vector(prefix + "o_norm.weight", dim);
  return kda;
}

MlaWeights load_mla(WeightLoader& loader, const ModelConfig& config, const std::string& prefix) {
  const std::int64_t heads = config.num_heads;
  const std::int64_t nope = config.qk_nope_head_dim;
  const std::int64_t value = config.v_head_dim;
  const std::int64_t rank = config.kv_lora_rank;
  MlaWeights mla;
  const MatrixPart inputs[] = {
      {prefix + "q_proj.weight", heads * (nope + config.qk_rope_head_dim)},
      {prefix + "kv_a_proj_with_mqa.weight", config.mla_row_width()},
  };
  mla.in_proj = loader.matrix(inputs, config.hidden_size);
  mla.latent_norm = loader.vector(prefix + "kv_a_layernorm.weight", rank);
  // Per head the rows of kv_b_proj are [B_k (nope) | B_v (value)], each of `rank` columns.
  const auto kv_b = loader.tensor(prefix + "kv_b_proj.weight", heads * (nope + value), rank);
  for (std::int64_t head = 0; kv_b.has_value() && head < heads; ++head) {
    const std::int64_t first = head * (nope + value);
    mla.key_up.push_back(loader.slice(*kv_b, {first, nope, rank, true}));
    mla.value_up.push_back(loader.slice(*kv_b, {first + nope, value, rank, false}));
  }
  mla.out_proj = loader.matrix(prefix + "o_proj.weight", config.hidden_size, heads * value);
  return mla;
}

// The tensors of a gated feed-forward part, without ".weight".
struct DenseNames {
  std::string gate, up, down;
};

DenseWeights load_dense(WeightLoader& loader, const ModelConfig& config, std::int64_t width,
                        const DenseNames& names) {
  const MatrixPart inputs[] = {{names.gate + ".weight", width}, {names.up + ".weight", width}};
  return {loader.matrix(inputs, config.hidden_size),
          loader.matrix(names.down + ".weight", config.hidden_size, width)};
}

MoeWeights load_moe(WeightLoader& loader, const ModelConfig& config, const std::string& prefix) {
  MoeWeights moe;
  moe.router = loader.matrix(prefix + "gate.weight", config.num_experts, config.hidden_size);
  moe.selection_bias = loader.vector(prefix + "gate.e_score_correction_bias", config.num_experts);
  for (std::int32_t expert = 0; expert < config.num_experts; ++expert) {
    const std::string name = fmt::format("{}experts.{}.", prefix, expert);
    moe.experts.push_back(load_dense(loader, config, config.moe_intermediate_size,
                                     {name + "w1", name + "w3", name + "w2"}));
    if (loader.error().has_value()) break;
  }
  if (config.num_shared_experts > 0) {
    const std::int64_t width =
        std::int64_t{config.num_shared_experts} * config.moe_intermediate_size;
    const std::string name = prefix + "shared_experts.";
    moe.shared = load_dense(loader, config, width,
                            {name + "gate_proj", name + "up_proj", name + "down_proj"});
  }
  return moe;
}

LayerWeights load_layer(WeightLoader& loader, const ModelConfig& config, std::int32_t index,
                        LayerKind kind) {
  const std::string prefix = fmt::format("model.layers.{}.", index);
  LayerWeights layer;
  layer.attention_norm = loader.vector(prefix + "input_layernorm.weight", config.hidden_size);
  layer.feed_forward_norm =
      loader.vector(prefix + "post_attention_layernorm.weight", config.hidden_size);
  if (kind == LayerKind::kKda) {
    layer.attention = load_kda(loader, config, prefix + "self_attn.");
  } else {
    layer.attention = load_mla(loader, config, prefix + "self_attn.");
  }
  if (config.is_moe_layer(index)) {
    layer.feed_forward = load_moe(loader, config, prefix + "block_sparse_moe.");
  } else {
    const std::string name = prefix + "mlp.";
    layer.feed_forward = load_dense(loader, config, config.intermediate_size,
                                    {name + "gate_proj", name + "up_proj", name + "down_proj"});
  }
  return layer;
}

MtpWeights load_mtp(WeightLoader& loader, const ModelConfig& config) {
  const std::string prefix = fmt::format("model.layers.{}.", config.num_layers);
  const std::int64_t hidden = config.hidden_size;
  MtpWeights mtp;
  mtp.embedding_norm = loader.vector(prefix + "enorm.weight", hidden);
  mtp.hidden_norm = loader.vector(prefix + "hnorm.weight", hidden);
  mtp.in_proj = loader.matrix(prefix + "eh_proj.weight", hidden, 2 * hidden);
  mtp.layer = load_layer(loader, config, config.num_layers, LayerKind::kMla);
  mtp.head_norm = loader.vector(prefix + "shared_head.norm.weight", hidden);
  return mtp;
}

std::size_t bytes_of(const PackedWeights& weights) {
  return kernels::packed_bytes(weights.num_outputs, weights.num_inputs, weights.dtype);
}

std::size_t bytes_of(const DenseWeights& dense) {
  return bytes_of(dense.gate_up) + bytes_of(dense.down);
}

std::size_t active_bytes(const LayerWeights& layer, const ModelConfig& config) {
  std::size_t bytes = 0;
  if (const auto* kda = std::get_if<KdaWeights>(&layer.attention)) {
    bytes += bytes_of(kda->in_proj) + bytes_of(kda->decay_up) + bytes_of(kda->out_proj);
    if (kda->gate_up.has_value()) bytes += bytes_of(*kda->gate_up);
  } else {
    const MlaWeights& mla = std::get<MlaWeights>(layer.attention);
    bytes += bytes_of(mla.in_proj) + bytes_of(mla.out_proj);
    for (const PackedWeights& up : mla.key_up) bytes += bytes_of(up);
    for (const PackedWeights& up : mla.value_up) bytes += bytes_of(up);
  }
  if (const auto* dense = std::get_if<DenseWeights>(&layer.feed_forward)) {
    return bytes + bytes_of(*dense);
  }
  const MoeWeights& moe = std::get<MoeWeights>(layer.feed_forward);
  const auto chosen = static_cast<std::size_t>(config.num_experts_per_token);
  bytes += bytes_of(moe.router) + chosen * bytes_of(moe.experts.front());
  return moe.shared.has_value() ? bytes + bytes_of(*moe.shared) : bytes;
}

// Of the bytes of config.json, and of the tensors.
Result<Digest128> model_digest(const std::filesystem::path& directory, const Digest128& tensors) {
  SLACKWATER_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::open(directory / "config.json"));
  const std::array<Digest128, 2> parts = {xxh3_128(config.bytes()), tensors};
  return xxh3_128(std::as_bytes(std::span(parts)));
}

}  // namespace

Model::Model(ModelConfig config, std::unique_ptr<ModelWeights> weights, const Digest128& digest)
    : config_(std::move(config)), weights_(std::move(weights)), digest_(digest) {}
Model::~Model() = default;
Model::Model(Model&&) noexcept = default;

Result<Model> Model::load(const std::filesystem::path& directory,
                          kernels::ExecutionContext& context, const LoadOptions& options) {
  SLACKWATER_ASSIGN_OR_RETURN(ModelConfig config, load_config(directory));
  SLACKWATER_ASSIGN_OR_RETURN(const Checkpoint checkpoint, Checkpoint::open(directory));
  // Panels are padded to 16 columns; a sixteenth more covers that for all but toy shapes.
  const std::size_t expected = checkpoint.total_bytes() + checkpoint.total_bytes() / 16;
  auto weights = std::make_unique<ModelWeights>(expected);
  WeightLoader loader(checkpoint, weights->arena, context, options.progress);

  weights->embedding = loader.table("model.embed_tokens.weight", config.vocab_size,
                                    config.hidden_size, &weights->embedding_dtype);
  for (std::int32_t i = 0; i < config.num_layers && !loader.error().has_value(); ++i) {
    const LayerKind kind = config.layer_kinds[static_cast<std::size_t>(i)];
    weights->layers.push_back(load_layer(loader, config, i, kind));
  }
  weights->final_norm = loader.vector("model.norm.weight", config.hidden_size);
  weights->lm_head = loader.matrix("lm_head.weight", config.vocab_size, config.hidden_size);
  if (config.num_mtp_layers > 0) weights->mtp = load_mtp(loader, config);
  loader.expect_all_taken();
  if (loader.error().has_value()) {
    return tl::unexpected<Error>(loader.error()->with_context(directory.string()));
  }
  SLACKWATER_ASSIGN_OR_RETURN(const Digest128 digest, model_digest(directory, loader.digest()));
  return Model(std::move(config), std::move(weights), digest);
}

std::size_t Model::weight_bytes() const { return weights_->arena.allocated_bytes(); }

std::size_t Model::active_weight_bytes() const {
  std::size_t bytes = bytes_of(weights_->lm_head);
  for (const LayerWeights& layer : weights_->layers) bytes += active_bytes(layer, config_);
  return bytes;
}

}  // namespace slackwater::model
