#ifndef SLACKWATER_MODEL_FORWARD_LAYERS_H_
#define SLACKWATER_MODEL_FORWARD_LAYERS_H_

#include <cstdint>
#include <span>
#include <vector>

#include "model/hidden_states.h"
#include "model/weights.h"
#include "slackwater/base/aligned_buffer.h"
#include "slackwater/kernels/matmul.h"
#include "slackwater/model/forward.h"

namespace slackwater::model {

// Rows of f32 values: where the first one lies, and floats from one to the next.
struct SourceRows {
  const float* values;
  std::int64_t stride;
};
struct TargetRows {
  float* values;
  std::int64_t stride;
};

inline kernels::MatmulArgs product(const kernels::PackedWeights& weights, SourceRows x,
                                   TargetRows y, std::int32_t rows) {
  kernels::MatmulArgs job;
  job.weights = weights;
  job.x = x.values;
  job.x_stride = x.stride;
  job.y = y.values;
  job.y_stride = y.stride;
  job.rows = rows;
  return job;
}

// A matrix of f32 activations, [rows, width].
class Activations {
 public:
  Activations() = default;
  Activations(std::int64_t rows, std::int64_t width)
      : width_(width), values_(static_cast<std::size_t>(rows * width)) {}

  float* row(std::int64_t r) { return values_.data() + r * width_; }
  float* values() { return values_.data(); }
  const float* values() const { return values_.data(); }
  std::int64_t width() const { return width_; }

 private:
  std::int64_t width_ = 0;
  AlignedBuffer<float> values_;
};

// The layers, with the activations of one batch.
class ForwardPass::Layers {
 public:
  Layers(const Model& model, kernels::ExecutionContext& context, Limits limits);

  // Not inlined, so that no arithmetic moves in front of the caller's FpModeGuard.
  [[gnu::noinline]] void run(const ForwardBatch& batch, std::span<float> logits);
  [[gnu::noinline]] void run_mtp(const MtpBatch& batch, std::span<float> logits);

  const float* hidden() const { return hidden_.values(); }
  const float* first_hidden() const { return hidden_states_.first(); }
  const float* mtp_hidden() const { return mtp_hidden_.values(); }
  Limits limits() const { return limits_; }
  kernels::ExecutionContext& context() { return context_; }

 private:
  void check(const ForwardBatch& batch, std::span<float> logits) const;
  void check_mtp(const MtpBatch& batch, std::span<float> logits) const;
  void check_tokens(std::span<const TokenId> token_ids,
                    std::span<const kernels::SequenceRow> rows) const;
  void check_logits(std::span<const std::int32_t> logit_tokens, std::size_t num_tokens,
                    std::span<float> logits) const;
  void embed(std::span<const TokenId> token_ids, TargetRows target) const;
  void combine_mtp_inputs(const MtpBatch& batch, const MtpWeights& mtp);
  void normalise(const float* weight);
  void run_kda(const KdaWeights& kda, const ForwardBatch& batch, std::size_t layer);
  void run_mla(const MlaWeights& mla, std::span<const kernels::SequenceRow> rows,
               const kernels::LatentPages& pages, std::int64_t first_key);
  void absorb_queries(const MlaWeights& mla);
  void run_feed_forward(const LayerWeights& layer);
  void run_dense(const DenseWeights& dense);
  void run_moe(const MoeWeights& moe);
  void route(const MoeWeights& moe);
  void run_head(std::span<const std::int32_t> logit_tokens, const float* norm_weight,
                std::span<float> logits);

  const Model& model_;
  const ModelConfig& config_;
  kernels::ExecutionContext& context_;
  Limits limits_;
  std::int32_t tokens_ = 0;  // T of the batch in hand, or R
  HiddenStates hidden_states_;

  Activations hidden_;          // [T, hidden]: the residual stream of the layers
  Activations mtp_hidden_;      // [T, hidden]: that of the prediction block
  Activations* residual_;       // the one that the pass in hand adds to
  Activations mtp_input_;       // [T, 2 * hidden]: [embedding | hidden state], both normalised
  Activations normed_;          // [T, hidden]
  Activations in_proj_;         // [T, widest attention projection]
  Activations decay_;           // [T, P]
  Activations gate_;            // [T, P]
  Activations heads_;           // [T, heads * dim]: output of the attention part, before out_proj
  Activations absorbed_;        // [T, heads * (rank + rope)]
  Activations latent_;          // [T, heads * rank]
  Activations gate_up_;         // [T, 2 * width] of the dense part or the shared expert
  Activations glu_;             // [T, width]
  Activations shared_;          // [T, hidden]
  Activations router_;          // [T, experts]
  Activations expert_gate_up_;  // [T * chosen, 2 * expert width]
  Activations expert_glu_;      // [T * chosen, expert width]
  Activations expert_out_;      // [T * chosen, hidden]
  Activations expert_weights_;  // [T, chosen]
  Activations last_;            // [L, hidden]
  std::vector<std::int32_t> expert_ids_;      // [T, chosen]
  std::vector<std::int32_t> expert_offsets_;  // [experts + 1]
  std::vector<std::int32_t> pair_tokens_;     // [T * chosen]
  std::vector<std::int32_t> pair_of_choice_;  // [T, chosen]
  std::vector<kernels::MatmulArgs> jobs_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_FORWARD_LAYERS_H_
