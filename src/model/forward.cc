#include "slackwater/model/forward.h"

#include <algorithm>
#include <cmath>

#include "model/forward_layers.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"
#include "slackwater/base/mutant.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/kernels/mla.h"
#include "slackwater/kernels/moe.h"
#include "slackwater/kernels/norm.h"

namespace slackwater::model {
namespace {

using kernels::Epilogue;
using kernels::MatmulArgs;

// eps of kv_a_layernorm in the published code, whatever rms_norm_eps is.
constexpr float kLatentNormEps = 1e-6f;

// Widths of the widest projections over all layers of a model.
struct Widths {
  std::int64_t in_proj = 0;    // of an attention part
  std::int64_t head_wide = 0;  // decay, gate, o: P; attention output: heads * value
  std::int64_t absorbed = 0;   // heads * (rank + rope)
  std::int64_t latent = 0;     // heads * rank
  std::int64_t dense = 0;      // width of a dense feed-forward part
  std::int64_t shared = 0;     // width of the shared expert
};

Widths widths_of(const ModelConfig& config) {
  const std::int64_t kda_width = config.kda_width();
  const std::int64_t gate =
      config.full_rank_output_gate ? kda_width : std::int64_t{config.kda_head_dim};
  const std::int64_t heads = config.num_heads;
  Widths widths;
  if (config.num_kda_layers() > 0) {
    widths.in_proj = 3 * kda_width + config.kda_head_dim + gate + config.kda_num_heads;
    widths.head_wide = kda_width;
  }
  if (config.num_mla_layers() + config.num_mtp_layers > 0) {
    const std::int64_t q = heads * (config.qk_nope_head_dim + config.qk_rope_head_dim);
    widths.in_proj = std::max(widths.in_proj, q + config.mla_row_width());
    widths.head_wide = std::max(widths.head_wide, heads * config.v_head_dim);
    widths.absorbed = heads * config.mla_row_width();
    widths.latent = heads * config.kv_lora_rank;
  }
  for (std::int32_t i = 0; i < config.num_layers + config.num_mtp_layers; ++i) {
    if (!config.is_moe_layer(i)) widths.dense = config.intermediate_size;
  }
  widths.shared = std::int64_t{config.num_shared_experts} * config.moe_intermediate_size;
  return widths;
}

}  // namespace

ForwardPass::Layers::Layers(const Model& model, kernels::ExecutionContext& context, Limits limits)
    : model_(model),
      config_(model.config()),
      context_(context),
      limits_(limits),
      hidden_states_(config_.hidden_size, limits.max_tokens),
      residual_(&hidden_) {
  SLACKWATER_CHECK(limits.max_tokens > 0 && limits.max_logits > 0, "limits {} and {}",
                   limits.max_tokens, limits.max_logits);
  const std::int64_t rows = limits.max_tokens;
  const std::int64_t hidden = config_.hidden_size;
  const Widths widths = widths_of(config_);
  hidden_ = Activations(rows, hidden);
  if (model.has_mtp()) {
    mtp_hidden_ = Activations(rows, hidden);
    mtp_input_ = Activations(rows, 2 * hidden);
  }
  normed_ = Activations(rows, hidden);
  in_proj_ = Activations(rows, widths.in_proj);
  decay_ = Activations(rows, config_.num_kda_layers() > 0 ? widths.head_wide : 0);
  gate_ = Activations(rows, config_.num_kda_layers() > 0 ? widths.head_wide : 0);
  heads_ = Activations(rows, widths.head_wide);
  absorbed_ = Activations(rows, widths.absorbed);
  latent_ = Activations(rows, widths.latent);
  const std::int64_t width = std::max(widths.dense, widths.shared);
  gate_up_ = Activations(rows, 2 * width);
  glu_ = Activations(rows, width);
  shared_ = Activations(rows, hidden);
  last_ = Activations(limits.max_logits, hidden);
  jobs_.reserve(static_cast<std::size_t>(std::max(config_.num_heads, config_.num_experts + 1)));
  if (config_.num_experts == 0) return;
  const std::int64_t pairs = rows * config_.num_experts_per_token;
  router_ = Activations(rows, config_.num_experts);
  expert_gate_up_ = Activations(pairs, 2 * std::int64_t{config_.moe_intermediate_size});
  expert_glu_ = Activations(pairs, config_.moe_intermediate_size);
  expert_out_ = Activations(pairs, hidden);
  expert_weights_ = Activations(rows, config_.num_experts_per_token);
  expert_ids_.resize(static_cast<std::size_t>(pairs));
  expert_offsets_.resize(static_cast<std::size_t>(config_.num_experts) + 1);
  pair_tokens_.resize(static_cast<std::size_t>(pairs));
  pair_of_choice_.resize(static_cast<std::size_t>(pairs));
}

void ForwardPass::Layers::check(const ForwardBatch& batch, std::span<float> logits) const {
  check_tokens(batch.token_ids, batch.rows);
  check_logits(batch.logit_tokens, batch.token_ids.size(), logits);
  SLACKWATER_CHECK(std::ssize(batch.latent_pages) == config_.num_mla_layers() &&
                       std::ssize(batch.recurrent_pages) == config_.num_kda_layers(),
                   "pages of {} + {} layers for a model of {} + {}", batch.latent_pages.size(),
                   batch.recurrent_pages.size(), config_.num_mla_layers(),
                   config_.num_kda_layers());
  SLACKWATER_CHECK(batch.records.empty() || std::ssize(batch.records) == config_.num_kda_layers(),
                   "records of {} layers for a model of {}", batch.records.size(),
                   config_.num_kda_layers());
  hidden_states_.check(batch);
}

void ForwardPass::Layers::check_tokens(std::span<const TokenId> token_ids,
                                       std::span<const kernels::SequenceRow> rows) const {
  const std::int64_t tokens = std::ssize(token_ids);
  SLACKWATER_CHECK(tokens <= limits_.max_tokens, "{} tokens of at most {}", tokens,
                   limits_.max_tokens);
  std::int64_t next = 0;
  for (const kernels::SequenceRow& row : rows) {
    SLACKWATER_CHECK(row.first_token == next, "row starts at token {}, the last one ended at {}",
                     row.first_token, next);
    next += row.num_tokens;
  }
  SLACKWATER_CHECK(next == tokens, "rows cover {} of {} tokens", next, tokens);
  for (const TokenId id : token_ids) {
    SLACKWATER_CHECK(0 <= id && id < config_.vocab_size, "token {} of {}", id, config_.vocab_size);
  }
}

void ForwardPass::Layers::check_logits(std::span<const std::int32_t> logit_tokens,
                                       std::size_t num_tokens, std::span<float> logits) const {
  SLACKWATER_CHECK(std::ssize(logit_tokens) <= limits_.max_logits, "{} logits of at most {}",
                   logit_tokens.size(), limits_.max_logits);
  SLACKWATER_CHECK(
      logits.size() == logit_tokens.size() * static_cast<std::size_t>(config_.vocab_size),
      "room for {} logits, {} rows of {}", logits.size(), logit_tokens.size(), config_.vocab_size);
  for (const std::int32_t token : logit_tokens) {
    SLACKWATER_CHECK(0 <= token && static_cast<std::size_t>(token) < num_tokens,
                     "logits of token {} of {}", token, num_tokens);
  }
}

void ForwardPass::Layers::embed(std::span<const TokenId> token_ids, TargetRows target) const {
  const ModelWeights& weights = model_.weights();
  const std::int64_t hidden = config_.hidden_size;
  float* h = target.values;
  for (const TokenId id : token_ids) {
    const std::int64_t first = id * hidden;
    if (weights.embedding_dtype == DType::kF32) {
      const float* values = reinterpret_cast<const float*>(weights.embedding) + first;
      std::copy(values, values + hidden, h);
    } else {
      const Bf16* values = reinterpret_cast<const Bf16*>(weights.embedding) + first;
      std::transform(values, values + hidden, h, bf16_to_f32);
    }
    h += target.stride;
  }
}

void ForwardPass::Layers::normalise(const float* weight) {
  kernels::RmsNormArgs args;
  args.x = residual_->values();
  args.x_stride = residual_->width();
  args.weight = weight;
  args.y = normed_.values();
  args.y_stride = normed_.width();
  args.rows = tokens_;
  args.n = config_.hidden_size;
  args.eps = config_.rms_norm_eps;
  kernels::rms_norm(context_, args);
}

void ForwardPass::Layers::run_kda(const KdaWeights& kda, const ForwardBatch& batch,
                                  std::size_t layer) {
  const std::int64_t width = config_.kda_width();
  const std::int64_t stride = kda.in_proj.num_outputs;
  const std::int64_t dim = config_.kda_head_dim;
  float* projected = in_proj_.values();
  kernels::matmul(context_, product(kda.in_proj, {normed_.values(), normed_.width()},
                                    {projected, stride}, tokens_));
  // Columns [q | k | v | f_a | gate or g_a | beta].
  const float* decay_down = projected + 3 * width;
  const float* gate = decay_down + dim;
  std::int64_t gate_stride = stride;
  const float* beta = gate + (kda.gate_up.has_value() ? dim : width);
  jobs_.clear();
  jobs_.push_back(product(kda.decay_up, {decay_down, stride}, {decay_.values(), width}, tokens_));
  if (kda.gate_up.has_value()) {
    jobs_.push_back(product(*kda.gate_up, {gate, stride}, {gate_.values(), width}, tokens_));
    gate = gate_.values();
    gate_stride = width;
  }
  kernels::matmul(context_, jobs_);

  kernels::KdaStepArgs step;
  step.num_heads = config_.kda_num_heads;
  step.head_dim = config_.kda_head_dim;
  step.qkv = {projected, projected + width, projected + 2 * width};
  step.qkv_stride = stride;
  step.decay = decay_.values();
  step.decay_stride = width;
  step.beta = beta;
  step.beta_stride = stride;
  step.conv_weight = kda.conv;
  step.dt_bias = kda.dt_bias;
  step.decay_rate = kda.decay_rate;
  step.gate_lower_bound = config_.gate_lower_bound;
  step.pages = batch.recurrent_pages[layer];
  if (!batch.records.empty() && !SLACKWATER_MUTANT(forward_records_not_passed)) {
    step.records = batch.records[layer];
  }
  step.rows = batch.rows;
  step.o = heads_.values();
  step.o_stride = width;
  kernels::kda_step(context_, step);

  kernels::GatedHeadNormArgs norm;
  norm.x = heads_.values();
  norm.x_stride = width;
  norm.gate = gate;
  norm.gate_stride = gate_stride;
  norm.weight = kda.out_norm;
  norm.y = heads_.values();
  norm.y_stride = width;
  norm.rows = tokens_;
  norm.heads = config_.kda_num_heads;
  norm.head_dim = config_.kda_head_dim;
  norm.eps = config_.rms_norm_eps;
  kernels::gated_head_norm(context_, norm);

  MatmulArgs out = product(kda.out_proj, {heads_.values(), width},
                           {residual_->values(), residual_->width()}, tokens_);
  out.epilogue = Epilogue::kAdd;
  kernels::matmul(context_, out);
}

// absorbed = [B_k^T q_n | q_r] per head, from q = [q_n | q_r] in the projections.
void ForwardPass::Layers::absorb_queries(const MlaWeights& mla) {
  const std::int64_t nope = config_.qk_nope_head_dim;
  const std::int64_t rope = config_.qk_rope_head_dim;
  const std::int64_t rank = config_.kv_lora_rank;
  const std::int64_t stride = mla.in_proj.num_outputs;
  jobs_.clear();
  for (std::int64_t head = 0; head < config_.num_heads; ++head) {
    jobs_.push_back(product(mla.key_up[static_cast<std::size_t>(head)],
                            {in_proj_.values() + head * (nope + rope), stride},
                            {absorbed_.values() + head * (rank + rope), absorbed_.width()},
                            tokens_));
  }
  kernels::matmul(context_, jobs_);
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const float* q = in_proj_.values() + t * stride;
    for (std::int64_t head = 0; head < config_.num_heads; ++head) {
      const float* q_r = q + head * (nope + rope) + nope;
      std::copy(q_r, q_r + rope, absorbed_.row(t) + head * (rank + rope) + rank);
    }
  }
}

void ForwardPass::Layers::run_mla(const MlaWeights& mla, std::span<const kernels::SequenceRow> rows,
                                  const kernels::LatentPages& pages, std::int64_t first_key) {
  const std::int64_t heads = config_.num_heads;
  const std::int64_t key_width = config_.qk_nope_head_dim + config_.qk_rope_head_dim;
  const std::int64_t value = config_.v_head_dim;
  const std::int64_t rank = config_.kv_lora_rank;
  const std::int64_t stride = mla.in_proj.num_outputs;
  kernels::matmul(context_, product(mla.in_proj, {normed_.values(), normed_.width()},
                                    {in_proj_.values(), stride}, tokens_));

  kernels::MlaWriteArgs write;
  write.kv = in_proj_.values() + heads * key_width;
  write.kv_stride = stride;
  write.norm_weight = mla.latent_norm;
  write.rank = config_.kv_lora_rank;
  const bool one_eps = SLACKWATER_MUTANT(forward_eps_of_decode) && tokens_ == 1;
  write.eps = one_eps ? config_.rms_norm_eps : kLatentNormEps;
  write.pages = pages;
  write.rows = rows;
  kernels::mla_write(context_, write);

  absorb_queries(mla);
  kernels::MlaAttentionArgs attention;
  attention.q = absorbed_.values();
  attention.q_stride = absorbed_.width();
  attention.latent = latent_.values();
  attention.latent_stride = latent_.width();
  attention.heads = config_.num_heads;
  attention.rank = config_.kv_lora_rank;
  attention.scale = 1.0f / std::sqrt(static_cast<float>(key_width));
  attention.pages = pages;
  attention.rows = rows;
  attention.first_key = first_key;
  kernels::mla_attention(context_, attention);

  jobs_.clear();
  for (std::int64_t head = 0; head < heads; ++head) {
    jobs_.push_back(product(mla.value_up[static_cast<std::size_t>(head)],
                            {latent_.values() + head * rank, latent_.width()},
                            {heads_.values() + head * value, heads * value}, tokens_));
  }
  kernels::matmul(context_, jobs_);
  MatmulArgs out = product(mla.out_proj, {heads_.values(), heads * value},
                           {residual_->values(), residual_->width()}, tokens_);
  out.epilogue = Epilogue::kAdd;
  kernels::matmul(context_, out);
}

void ForwardPass::Layers::run_feed_forward(const LayerWeights& layer) {
  normalise(layer.feed_forward_norm);
  if (const auto* dense = std::get_if<DenseWeights>(&layer.feed_forward)) {
    run_dense(*dense);
  } else {
    run_moe(std::get<MoeWeights>(layer.feed_forward));
  }
}

void ForwardPass::Layers::run_dense(const DenseWeights& dense) {
  const std::int32_t width = dense.down.num_inputs;
  kernels::matmul(context_, product(dense.gate_up, {normed_.values(), normed_.width()},
                                    {gate_up_.values(), 2 * width}, tokens_));
  kernels::glu(context_, {gate_up_.values(), 2 * width, glu_.values(), width, tokens_, width});
  MatmulArgs down = product(dense.down, {glu_.values(), width},
                            {residual_->values(), residual_->width()}, tokens_);
  down.epilogue = Epilogue::kAdd;
  kernels::matmul(context_, down);
}

void ForwardPass::Layers::route(const MoeWeights& moe) {
  kernels::matmul(context_, product(moe.router, {normed_.values(), normed_.width()},
                                    {router_.values(), router_.width()}, tokens_));
  kernels::MoeRouteArgs args;
  args.logits = router_.values();
  args.logits_stride = router_.width();
  args.bias = moe.selection_bias;
  args.tokens = tokens_;
  args.experts = config_.num_experts;
  args.chosen = config_.num_experts_per_token;
  args.renormalize = config_.renormalize_routing;
  args.scale = config_.routed_scaling_factor;
  args.expert_ids = expert_ids_.data();
  args.weights = expert_weights_.values();
  kernels::moe_route(context_, args);

  kernels::MoeGroupArgs group;
  group.expert_ids = expert_ids_.data();
  group.tokens = tokens_;
  group.experts = config_.num_experts;
  group.chosen = config_.num_experts_per_token;
  group.offsets = expert_offsets_.data();
  group.pair_tokens = pair_tokens_.data();
  group.pair_of_choice = pair_of_choice_.data();
  kernels::moe_group(context_, group);
}

void ForwardPass::Layers::run_moe(const MoeWeights& moe) {
  route(moe);
  const std::int32_t width = config_.moe_intermediate_size;
  const std::int32_t shared_width = moe.shared.has_value() ? moe.shared->down.num_inputs : 0;
  const std::int32_t pairs = tokens_ * config_.num_experts_per_token;
  const auto for_each_expert = [this](auto&& job_of) {
    jobs_.clear();
    for (std::int32_t e = 0; e < config_.num_experts; ++e) {
      const std::int32_t first = expert_offsets_[static_cast<std::size_t>(e)];
      std::int32_t rows = expert_offsets_[static_cast<std::size_t>(e) + 1] - first;
      if (SLACKWATER_MUTANT(forward_experts_overflow)) rows = std::min(rows, 4);
      if (rows > 0) jobs_.push_back(job_of(static_cast<std::size_t>(e), first, rows));
    }
  };

  for_each_expert([&](std::size_t e, std::int32_t first, std::int32_t rows) {
    MatmulArgs job = product(moe.experts[e].gate_up, {normed_.values(), normed_.width()},
                             {expert_gate_up_.row(first), 2 * width}, rows);
    job.x_rows = pair_tokens_.data() + first;
    return job;
  });
  if (moe.shared.has_value()) {
    jobs_.push_back(product(moe.shared->gate_up, {normed_.values(), normed_.width()},
                            {gate_up_.values(), 2 * shared_width}, tokens_));
  }
  kernels::matmul(context_, jobs_);

  const kernels::GluArgs glus[] = {
      {expert_gate_up_.values(), 2 * width, expert_glu_.values(), width, pairs, width},
      {gate_up_.values(), 2 * shared_width, glu_.values(), shared_width, tokens_, shared_width}};
  kernels::glu(context_, std::span(glus).first(moe.shared.has_value() ? 2 : 1));

  for_each_expert([&](std::size_t e, std::int32_t first, std::int32_t rows) {
    return product(moe.experts[e].down, {expert_glu_.row(first), width},
                   {expert_out_.row(first), expert_out_.width()}, rows);
  });
  if (moe.shared.has_value()) {
    jobs_.push_back(product(moe.shared->down, {glu_.values(), shared_width},
                            {shared_.values(), shared_.width()}, tokens_));
  }
  kernels::matmul(context_, jobs_);

  kernels::MoeCombineArgs combine;
  combine.expert_y = expert_out_.values();
  combine.expert_y_stride = expert_out_.width();
  combine.shared_y = moe.shared.has_value() ? shared_.values() : nullptr;
  combine.shared_y_stride = shared_.width();
  combine.weights = expert_weights_.values();
  combine.pair_of_choice = pair_of_choice_.data();
  combine.tokens = tokens_;
  combine.chosen = config_.num_experts_per_token;
  combine.width = config_.hidden_size;
  combine.h = residual_->values();
  combine.h_stride = residual_->width();
  kernels::moe_combine(context_, combine);
}

void ForwardPass::Layers::run_head(std::span<const std::int32_t> logit_tokens,
                                   const float* norm_weight, std::span<float> logits) {
  const auto rows = static_cast<std::int32_t>(logit_tokens.size());
  if (rows == 0) return;
  for (std::int32_t i = 0; i < rows; ++i) {
    float* h = residual_->row(logit_tokens[static_cast<std::size_t>(i)]);
    if (SLACKWATER_MUTANT(forward_logits_of_row)) h = residual_->row(i);
    std::copy(h, h + residual_->width(), last_.row(i));
  }
  kernels::RmsNormArgs norm;
  norm.x = last_.values();
  norm.x_stride = last_.width();
  norm.weight = norm_weight;
  norm.y = last_.values();
  norm.y_stride = last_.width();
  norm.rows = rows;
  norm.n = config_.hidden_size;
  norm.eps = config_.rms_norm_eps;
  kernels::rms_norm(context_, norm);
  kernels::matmul(context_, product(model_.weights().lm_head, {last_.values(), last_.width()},
                                    {logits.data(), config_.vocab_size}, rows));
}

void ForwardPass::Layers::run(const ForwardBatch& batch, std::span<float> logits) {
  check(batch, logits);
  const ThreadPool::Step step(context_.pool());
  tokens_ = static_cast<std::int32_t>(batch.token_ids.size());
  residual_ = &hidden_;
  embed(batch.token_ids, {hidden_.values(), hidden_.width()});
  std::size_t kda_layer = 0;
  std::size_t mla_layer = 0;
  for (const LayerWeights& layer : model_.weights().layers) {
    normalise(layer.attention_norm);
    if (const auto* kda = std::get_if<KdaWeights>(&layer.attention)) {
      run_kda(*kda, batch, kda_layer);
      if (!SLACKWATER_MUTANT(forward_layers_share_state)) ++kda_layer;
    } else {
      run_mla(std::get<MlaWeights>(layer.attention), batch.rows, batch.latent_pages[mla_layer++],
              /*first_key=*/0);
    }
    run_feed_forward(layer);
  }
  if (batch.hidden_pages.page_base != nullptr) hidden_states_.exchange(batch, hidden_.values());
  run_head(batch.logit_tokens, model_.weights().final_norm, logits);
}

ForwardPass::ForwardPass(const Model& model, kernels::ExecutionContext& context, Limits limits)
    : layers_(std::make_unique<Layers>(model, context, limits)) {}
ForwardPass::~ForwardPass() = default;
ForwardPass::ForwardPass(ForwardPass&&) noexcept = default;

void ForwardPass::run(const ForwardBatch& batch, std::span<float> logits) {
  // The layers compute a few constants between the kernels, which guard themselves.
  const FpModeGuard fp_mode;
  layers_->run(batch, logits);
}

void ForwardPass::run_mtp(const MtpBatch& batch, std::span<float> logits) {
  const FpModeGuard fp_mode;
  layers_->run_mtp(batch, logits);
}

void ForwardPass::enqueue(device::Stream& stream, const ForwardBatch& batch,
                          std::span<float> logits) {
  layers_->context().enqueue(stream, [this, batch, logits](kernels::ExecutionContext&) {
    run(batch, logits);
    return true;
  });
}

const float* ForwardPass::hidden() const { return layers_->hidden(); }
const float* ForwardPass::first_hidden() const { return layers_->first_hidden(); }
const float* ForwardPass::mtp_hidden() const { return layers_->mtp_hidden(); }
ForwardPass::Limits ForwardPass::limits() const { return layers_->limits(); }

}  // namespace slackwater::model
