#ifndef SLACKWATER_MODEL_FORWARD_H_
#define SLACKWATER_MODEL_FORWARD_H_

#include <cstdint>
#include <memory>
#include <span>

#include "slackwater/base/ids.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/views.h"
#include "slackwater/model/model.h"

namespace slackwater::model {

// The tokens of one step: any mix of prompt chunks and single tokens of several sequences, over
// paged state. Rows are independent: what a row gets does not depend on the rows beside it.
struct ForwardBatch {
  std::span<const TokenId> token_ids;  // [T], rows one after another
  std::span<const kernels::SequenceRow> rows;
  // Pages of each attention layer and of each KDA layer, in the order of the layers.
  std::span<const kernels::LatentPages> latent_pages;        // [num_mla_layers]
  std::span<const kernels::RecurrentPages> recurrent_pages;  // [num_kda_layers]
  // Batch tokens whose logits are wanted.
  std::span<const std::int32_t> logit_tokens;  // [L]
};

// Runs the layers of a model over a batch.
//
// Source: Kimi Linear, arXiv 2510.26692 (layers), DeepSeek-V2 (latent attention) and -V3
// (routing); orders of operations: docs/numerics.md.
// Invariants:
//   I1  the same row gives the same logits and the same pages, bit for bit, whatever stands beside
//       it in the batch, however its prompt was cut, and on every target and number of threads.
//   I2  after the first run with a batch of the largest size nothing is allocated, except by the
//       reference.
// Ownership: borrows model and context; owns the activations of max_tokens tokens.
// Threads: one run at a time; the context's workers inside.
// Errors: none: a batch that does not fit the limits or the model is a bug (CHECK).
// Cost: one pass over the active weights; memory about max_tokens * (widest projection) * 4 bytes.
class ForwardPass {
 public:
  struct Limits {
    std::int32_t max_tokens = 512;  // T of the largest batch
    std::int32_t max_logits = 64;   // L of the largest batch
  };
  ForwardPass(const Model& model, kernels::ExecutionContext& context, Limits limits);
  ~ForwardPass();
  ForwardPass(ForwardPass&&) noexcept;

  // Fills `logits` [L, vocabulary] f32, row i for batch.logit_tokens[i], and writes every page
  // that the rows name.
  void run(const ForwardBatch& batch, std::span<float> logits);

  // The same as one item of `stream`. What the batch's spans point to, the pages and `logits` stay
  // untouched by others until the stream's next event.
  void enqueue(device::Stream& stream, const ForwardBatch& batch, std::span<float> logits);

  Limits limits() const;

 private:
  class Layers;
  std::unique_ptr<Layers> layers_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_FORWARD_H_
