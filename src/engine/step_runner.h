#ifndef SLACKWATER_ENGINE_STEP_RUNNER_H_
#define SLACKWATER_ENGINE_STEP_RUNNER_H_

#include <cstdint>
#include <span>
#include <vector>

#include "engine/step.h"
#include "slackwater/base/aligned_buffer.h"
#include "slackwater/engine/config.h"
#include "slackwater/engine/language_model.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/kernels/execution_context.h"

namespace slackwater::engine {

// Layers of the models in the cache: those of the target first, then its prediction block, then
// those of the draft model.
std::int32_t mtp_layer_id(const model::ModelConfig& target);
std::int32_t draft_layer_id(const model::ModelConfig& target, std::int32_t layer);

// What the device does in a step. Every member but bind() runs within an item of the steps' stream,
// and sees what the host has put into the Step, the outcomes of the step before it, and pages.
//
//   draft calls    the draft model: what it has missed and the golden token, then its own drafts
//   the target     chunks and rounds in one pass; tokens are sampled, drafts are accepted
//   the block      rows of the prediction block that are certain now, then drafts for the next
//                  round, which go on from its own output
//   draft context  the draft model over the chunks
//
// Invariants:
//   I1  what a row leaves in its outcome is a function of its request's tokens and sampling only.
// Ownership: borrows models and state; owns logits and the batch under way.
// Threads: one item at a time.
// Errors: those of sampling a row go to its outcome.
// Cost: the models'; nothing is allocated after the largest step.
class StepRunner {
 public:
  struct Options {
    std::int32_t max_tokens = 0;  // of a step
    std::int32_t max_rows = 0;
    DrafterKind drafter = DrafterKind::kNone;
    std::int32_t max_drafts = 0;        // M
    std::int32_t max_draft_tokens = 0;  // of a call of the draft model
  };
  StepRunner(kernels::ExecutionContext& context, LanguageModel& target, LanguageModel* draft_model,
             const Options& options);

  // Looks at the pools, whose numbers of slots may have changed; nothing is queued meanwhile.
  void bind(hybrid::HybridCacheManager& state);

  // Each returns whether the step succeeded.
  bool run_draft_call(Step& step, std::size_t call);
  bool run_target(Step& step);
  bool run_draft_context(Step& step);

 private:
  // The pages of one model.
  struct Views {
    std::vector<kernels::LatentPages> latent;
    std::vector<kernels::RecurrentPages> recurrent;
    std::vector<kernels::ReplayRecords> records;
    model::HiddenPages hidden;
    const hybrid::ReplayState* state = nullptr;  // null: no recurrent layers
  };
  Views views_of(hybrid::HybridCacheManager& state, const model::ModelConfig& config,
                 std::int32_t first_layer, const char* tag) const;

  void begin_batch();
  void add_row(const hybrid::RowSetup& setup, std::int64_t first_position, std::int32_t num_tokens,
               std::span<const SlotId> blocks, const Views& views);
  model::ForwardBatch batch(const Views& views) const;
  void run_draft_rows(Step& step, DraftCall& call);
  void add_target_row(Step& step, std::size_t index);
  void sample_target(Step& step);
  void add_samples(Step& step, std::size_t index);
  void accept(Step& step, std::size_t index);
  void propose(Step& step);
  void add_mtp_rows(Step& step);
  void run_mtp_rows(Step& step);
  void sample_draft(const LiveRequest& request, std::span<const TokenId> since,
                    std::int64_t position, const float* logits);
  std::span<const Result<kernels::SampleResult>> run_samples(std::int32_t vocabulary);

  kernels::ExecutionContext& context_;
  LanguageModel& target_;
  LanguageModel* const draft_model_;
  const Options options_;
  Views target_views_;
  Views draft_views_;
  kernels::LatentPages mtp_pages_;

  AlignedBuffer<float> logits_;        // [rows * (1 + M), vocabulary]
  AlignedBuffer<float> draft_logits_;  // [rows, vocabulary]
  // The batch under way.
  std::vector<TokenId> token_ids_;
  std::vector<kernels::SequenceRow> rows_;
  std::vector<kernels::StateWrite> writes_;
  std::vector<std::size_t> first_write_;  // [rows + 1]
  std::vector<std::int32_t> logit_tokens_;
  std::vector<std::size_t> first_logit_;  // [rows] of the target
  // Samples under way.
  std::vector<kernels::SampleRow> samples_;
  std::vector<Result<kernels::SampleResult>> results_;
  std::vector<std::vector<kernels::TokenCount>> counts_;  // of rows with penalties
  std::size_t num_counts_ = 0;
  // The prediction block: rows of the step that go on proposing, and where each stands.
  struct Proposal {
    std::size_t row = 0;
    std::int64_t position = 0;      // of the token that goes in next
    const float* hidden = nullptr;  // of the token before it
  };
  std::vector<Proposal> proposals_;
  std::vector<TokenId> target_tokens_;  // what the target has just run
  std::vector<kernels::SequenceRow> target_rows_;
  std::vector<const float*> mtp_hidden_;
  std::vector<TokenId> since_;  // scratch: tokens since what the host has counted
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_STEP_RUNNER_H_
