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

// Where hidden states (the layers' output, before the final norm) lie beside the recurrent states:
// that of the last token that a page stands for, from which a multi-token-prediction block goes on,
// and that of each replay record. Strides are in floats.
//   of slot s, a page   [hidden] f32 at page_base + s * page_stride
//   its records         [M, hidden] f32 at record_base + s * record_stride
struct HiddenPages {
  float* page_base = nullptr;  // null: hidden states lie nowhere
  std::int64_t page_stride = 0;
  float* record_base = nullptr;  // may be null where no row has pending records
  std::int64_t record_stride = 0;
};

// The tokens of one step: any mix of prompt chunks and single tokens of several sequences, over
// paged state. Rows are independent: what a row gets does not depend on the rows beside it.
// A row may have no tokens: it then only folds its pending records into the page that it writes.
struct ForwardBatch {
  std::span<const TokenId> token_ids;  // [T], rows one after another
  std::span<const kernels::SequenceRow> rows;
  // Pages of each attention layer and of each KDA layer, in the order of the layers.
  std::span<const kernels::LatentPages> latent_pages;        // [num_mla_layers]
  std::span<const kernels::RecurrentPages> recurrent_pages;  // [num_kda_layers]
  // Batch tokens whose logits are wanted.
  std::span<const std::int32_t> logit_tokens;  // [L]
  // Replay records of each KDA layer; kda.h says what becomes of them. Empty: none are kept.
  std::span<const kernels::ReplayRecords> records;  // [num_kda_layers]
  // A write after c > 0 tokens takes the hidden state of token c - 1 to its page, one after none
  // that of the token before the row; tokens that become records take theirs to the same record.
  // All that is needed from before the step is read before anything is overwritten.
  HiddenPages hidden_pages;
};

// Rows of the multi-token-prediction block: for token i at position p, with h the hidden state of
// the token at p - 1, the block guesses what follows at p + 1. The block has latent rows of its
// own, stored at the token's position, so that they depend on what comes before it alone; position
// 0 has none, and is never read.
struct MtpBatch {
  std::span<const TokenId> token_ids;  // [R]
  // [R] pointers to [hidden]: of the layers, or for a second draft and those after it the block's
  // own output. They may lie in hidden(), first_hidden() or mtp_hidden() of the same pass.
  std::span<const float* const> hidden;
  // Positions >= 1; of their fields only tokens, first_position and block_table are used.
  std::span<const kernels::SequenceRow> rows;
  kernels::LatentPages latent_pages;           // of the block
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

  // Runs the prediction block alone, under the same limits (R <= max_tokens). Fills `logits`
  // [L, vocabulary] f32 and writes the latent rows of the tokens. CHECK: model.has_mtp().
  //
  // Source: DeepSeek-V3, arXiv 2412.19437, 2.2; docs/numerics.md "Multi-token prediction".
  void run_mtp(const MtpBatch& batch, std::span<float> logits);

  // [T, hidden] f32 of the last run(): the output of the layers, before the final norm. run_mtp()
  // leaves it alone.
  const float* hidden() const;
  // [rows of the last run() with hidden_pages, hidden] f32: for each row with first_position > 0
  // the hidden state of the token before its first one, its page's or that of its last pending
  // record, as it was before the step.
  const float* first_hidden() const;
  // [R, hidden] f32 of the last run_mtp(): the block's output before its norm.
  const float* mtp_hidden() const;

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
