#ifndef SLACKWATER_ENGINE_LANGUAGE_MODEL_H_
#define SLACKWATER_ENGINE_LANGUAGE_MODEL_H_

#include <cstdint>
#include <memory>
#include <span>

#include "slackwater/base/digest.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/config.h"
#include "slackwater/model/forward.h"
#include "slackwater/model/model.h"

namespace slackwater::engine {

// What an engine runs: layers with paged state, and logits. Its configuration says how large the
// pages are; what is computed from them is its own affair, as long as it is a function of them.
//
// Invariants:
//   I1  the logits of a token are a function of the tokens of its sequence up to it, whatever the
//       rows beside it and however those tokens were cut into calls.
// Ownership: owned by its caller; outlives the engine.
// Threads: one call at a time, inside an item of the steps' stream.
// Errors: none: a batch past the limits is a bug (CHECK).
class LanguageModel {
 public:
  virtual ~LanguageModel() = default;

  virtual const model::ModelConfig& config() const = 0;
  // Of configuration and weights: state of another model is never taken for its own.
  virtual Digest128 digest() const = 0;

  // Makes room for batches up to these limits; called once, before the first batch.
  virtual void reserve(model::ForwardPass::Limits limits) = 0;

  // As ForwardPass: the layers over a batch; and what they leave behind for a prediction block.
  virtual void run(const model::ForwardBatch& batch, std::span<float> logits) = 0;
  virtual const float* hidden() const = 0;        // [T, hidden]
  virtual const float* first_hidden() const = 0;  // [rows, hidden]
  virtual void run_mtp(const model::MtpBatch& batch, std::span<float> logits) = 0;
  virtual const float* mtp_hidden() const = 0;  // [R, hidden]
};

// A model of the Kimi Linear family. Borrows both, which outlive it.
std::unique_ptr<LanguageModel> make_language_model(const model::Model& model,
                                                   kernels::ExecutionContext& context);

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_LANGUAGE_MODEL_H_
