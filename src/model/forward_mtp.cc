// The multi-token-prediction block: an attention layer that guesses one token further, on its own
// latent rows.

#include <algorithm>

#include "model/forward_layers.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/kernels/norm.h"

namespace slackwater::model {
namespace {

// The row of (h_j, token j + 1) is stored at position j + 1, so position 0 has none.
constexpr std::int64_t kFirstMtpPosition = 1;

}  // namespace

void ForwardPass::Layers::check_mtp(const MtpBatch& batch, std::span<float> logits) const {
  SLACKWATER_CHECK(model_.has_mtp(), "the model has no multi-token-prediction block");
  check_tokens(batch.token_ids, batch.rows);
  check_logits(batch.logit_tokens, batch.token_ids.size(), logits);
  SLACKWATER_CHECK(batch.hidden.size() == batch.token_ids.size(), "{} hidden states for {} tokens",
                   batch.hidden.size(), batch.token_ids.size());
  for (std::size_t i = 0; i < batch.hidden.size(); ++i) {
    SLACKWATER_CHECK(batch.hidden[i] != nullptr, "no hidden state for token {}", i);
  }
  for (const kernels::SequenceRow& row : batch.rows) {
    SLACKWATER_CHECK(row.num_tokens == 0 || row.first_position >= kFirstMtpPosition,
                     "a row of the prediction block at position {}; its first is {}",
                     row.first_position, kFirstMtpPosition);
  }
}

// [enorm(embedding) | hnorm(h)]. All hidden states are copied before the block's output, which
// they may lie in, is overwritten.
void ForwardPass::Layers::combine_mtp_inputs(const MtpBatch& batch, const MtpWeights& mtp) {
  const std::int64_t hidden = config_.hidden_size;
  float* embedded = mtp_input_.values();
  float* before = embedded + hidden;
  embed(batch.token_ids, {embedded, mtp_input_.width()});
  for (std::int64_t t = 0; t < tokens_; ++t) {
    const float* h = batch.hidden[static_cast<std::size_t>(t)];
    std::copy(h, h + hidden, before + t * mtp_input_.width());
  }
  kernels::RmsNormArgs norm;
  norm.x_stride = norm.y_stride = mtp_input_.width();
  norm.rows = tokens_;
  norm.n = config_.hidden_size;
  norm.eps = config_.rms_norm_eps;
  norm.x = norm.y = embedded;
  norm.weight = mtp.embedding_norm;
  kernels::rms_norm(context_, norm);
  norm.x = norm.y = before;
  norm.weight = mtp.hidden_norm;
  kernels::rms_norm(context_, norm);
}

void ForwardPass::Layers::run_mtp(const MtpBatch& batch, std::span<float> logits) {
  check_mtp(batch, logits);
  const ThreadPool::Step step(context_.pool());
  const MtpWeights& mtp = *model_.weights().mtp;
  tokens_ = static_cast<std::int32_t>(batch.token_ids.size());
  if (SLACKWATER_MUTANT(mtp_output_over_input)) {
    embed(batch.token_ids, {mtp_hidden_.values(), mtp_hidden_.width()});
  }
  combine_mtp_inputs(batch, mtp);
  residual_ = &mtp_hidden_;
  kernels::matmul(context_, product(mtp.in_proj, {mtp_input_.values(), mtp_input_.width()},
                                    {mtp_hidden_.values(), mtp_hidden_.width()}, tokens_));
  normalise(mtp.layer.attention_norm);
  run_mla(std::get<MlaWeights>(mtp.layer.attention), batch.rows, batch.latent_pages,
          kFirstMtpPosition);
  run_feed_forward(mtp.layer);
  run_head(batch.logit_tokens, mtp.head_norm, logits);
}

}  // namespace slackwater::model
