#ifndef SLACKWATER_TESTING_DIGEST_MODEL_H_
#define SLACKWATER_TESTING_DIGEST_MODEL_H_

#include <atomic>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "model/hidden_states.h"
#include "slackwater/engine/language_model.h"
#include "slackwater/kernels/views.h"
#include "slackwater/model/config.h"

namespace slackwater {

// What tells one digest model from another.
struct DigestModelOptions {
  std::uint64_t weights = 1;   // of its own: all digests, and where it leaves the beaten track
  std::uint64_t language = 1;  // what it likes to say; a draft model has that of its target
  std::int32_t num_kda_layers = 2;
  std::int32_t num_mla_layers = 2;
  bool has_mtp = false;
  std::int32_t max_length = 256;
};

// A token of a sequence, as the layers of a digest model know it.
struct DigestMark {
  std::uint64_t digest = 0;  // of all tokens up to it
  TokenId token = 0;
  std::int32_t depth = 0;  // of a prediction block: drafts since the layers' own hidden state
};

// A model whose state says whose it is.
//
// A token's digest stands for all tokens of its sequence up to it. Every layer keeps pieces made of
// that digest, of the layer and of what the piece is for, in pages with the layout and the sizes of
// the real kernels: a latent row per token; a recurrent state of the last 32 tokens, and a window
// of the last three; records in all six buffers; hidden states. A step compares every byte that the
// kernels would read with what it must be. Where one is not, the digest is spoiled from that token
// on, and so is whatever is made of it: the model says noise ever after.
//
// What it says otherwise follows the last two tokens, so that text repeats itself, and now and then
// the digest, so that nobody can know it who has not seen all of it. Drafts are right for the most
// part: those of the prediction block, of a model with the same language, and of a look into the
// text itself. Wrong or missing rows of the block only make its guesses worse.
//
// A state that is written is what kernels::kda_step makes of the records, bit for bit: keys are
// powers of two times a unit vector, and a decay either forgets a row or keeps it. So whoever folds
// records into a page by the kernel gets the page that the model expects.
//
// Source: the digest oracle of tests of storage; docs/numerics.md "Kimi Delta Attention".
// Invariants:
//   I1  logits are a function of the tokens, as long as what is read is what was written for them.
//   I2  nothing is read that the kernels do not read: records past those that are pending, states
//       at position 0, latent rows past the row's own.
// Ownership: owns scratch for one sequence and the hidden states of the last step.
// Threads: one call at a time; counts from any thread.
// Errors: none; rows that no kernel would take are CHECKs.
// Cost: a few microseconds a row, some 15 ns a token before it, and 0.2 us a row of logits.
class DigestModel final : public engine::LanguageModel {
 public:
  static constexpr std::int32_t kVocabulary = 64;
  static constexpr TokenId kEos = 1;
  static constexpr TokenId kSecondEos = 2;
  static constexpr std::int32_t kHiddenSize = 8;

  explicit DigestModel(const DigestModelOptions& options);

  const model::ModelConfig& config() const override { return config_; }
  Digest128 digest() const override;
  void reserve(model::ForwardPass::Limits limits) override;
  void run(const model::ForwardBatch& batch, std::span<float> logits) override;
  const float* hidden() const override { return hidden_.data(); }
  const float* first_hidden() const override { return hidden_states_.first(); }
  void run_mtp(const model::MtpBatch& batch, std::span<float> logits) override;
  const float* mtp_hidden() const override { return mtp_hidden_.data(); }

  // Pieces that were read and were not right, in rows that had not been spoiled before; and those
  // of the prediction block, which spoil its guesses and nothing else.
  std::int64_t num_wrong() const { return num_wrong_; }
  std::int64_t num_wrong_mtp() const { return num_wrong_mtp_; }
  // What the first one was; to be asked when nothing runs.
  const std::string& first_wrong() const { return first_wrong_; }

 private:
  // One row of a step, while it is compared.
  struct Reading {
    const model::ForwardBatch& batch;
    const kernels::SequenceRow& row;
    std::int64_t page_position = 0;
    std::int64_t spoiled_from = 0;  // a position
    bool was_spoiled = false;       // when the step began
  };

  DigestMark start() const;
  void check(const model::ForwardBatch& batch, std::span<float> logits) const;
  DigestMark mark_before(const model::ForwardBatch& batch, const kernels::SequenceRow& row) const;
  void mark_tokens(const model::ForwardBatch& batch);
  void write_latent_rows(const model::ForwardBatch& batch) const;

  void read_row(const model::ForwardBatch& batch, std::size_t row);
  void read_latent_rows(Reading& reading, const DigestMark& before);
  void read_page(Reading& reading, std::size_t layer);
  void read_records(Reading& reading, std::size_t layer);
  void note_wrong(Reading& reading, std::int64_t position, std::string_view what);
  void spoil(const Reading& reading);

  void write_page(const model::ForwardBatch& batch, const kernels::SequenceRow& row,
                  const kernels::StateWrite& write) const;
  void write_records(const model::ForwardBatch& batch, const kernels::SequenceRow& row) const;
  void write_hidden(const model::ForwardBatch& batch);

  void read_sources(const model::MtpBatch& batch);
  void write_mtp_rows(const model::MtpBatch& batch) const;
  void read_mtp_rows(const model::MtpBatch& batch, const kernels::SequenceRow& row);

  void say(const DigestMark& mark, TokenId before, std::span<float> logits) const;
  void guess(const DigestMark& mark, TokenId before, std::span<float> logits) const;

  const DigestModelOptions options_;
  model::ModelConfig config_;
  model::ForwardPass::Limits limits_ = {.max_tokens = 0, .max_logits = 0};
  model::HiddenStates hidden_states_{kHiddenSize, 0};

  std::vector<DigestMark> befores_;  // [rows] of the token before each row
  std::vector<DigestMark> tokens_;   // [T]
  std::vector<TokenId> previous_;    // [T] the token before each
  std::vector<DigestMark> history_;  // [max_length] of the row in hand
  std::vector<float> hidden_;        // [T, hidden]

  std::vector<DigestMark> mtp_sources_;  // [R] of the hidden states that tokens go on from
  std::vector<DigestMark> mtp_tokens_;   // [R]
  std::vector<float> mtp_hidden_;        // [R, hidden]

  std::atomic<std::int64_t> num_wrong_{0};
  std::atomic<std::int64_t> num_wrong_mtp_{0};
  std::string first_wrong_;
};

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_DIGEST_MODEL_H_
