#ifndef SLACKWATER_ENGINE_SAMPLING_STATE_H_
#define SLACKWATER_ENGINE_SAMPLING_STATE_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/engine/request.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/model/config.h"

namespace slackwater::engine {

inline constexpr std::int32_t kMaxTopLogprobs = 20;
inline constexpr std::int32_t kMaxChoices = 128;

// Whether some engine can do what the request asks of a model of this configuration; whether there
// is room for it is asked elsewhere. kInvalidArgument names the field, its value, what is legal and
// what to do; the errors of model::validate_prompt for the prompt.
Result<void> validate(const GenerationRequest& request, const model::ModelConfig& config,
                      bool has_tokenizer);

// What one choice of a request asks of sampling, and how often it has generated each token.
//
// Source: the fields of OpenAI's completions; TensorRT-LLM's sampling configuration.
// Invariants (check_invariants, O(counts)):
//   I1  counts() has every token that was added once, with how often; nothing without penalties.
// Ownership: owns copies of what it needs of the request.
// Threads: one at a time; const members from several.
// Errors: none. What is not valid() is told by the sampler, row by row.
// Cost: O(1) to add, amortised, and 16 bytes for each token that was generated.
class SamplingState {
 public:
  // Choice `choice` has the seed choice_seed(seed, choice).
  SamplingState(const GenerationRequest& request, std::int32_t choice);

  // `token` was generated, and is certain.
  void add(TokenId token);

  // The row that samples from `logits` ([vocabulary] f32) the token that will have the index
  // `position`, where all tokens before it are certain. Points to this state, up to the next add().
  // Room for the best logprobs is the caller's to give: num_top_logprobs() of them.
  kernels::SampleRow row_for(const float* logits, std::int64_t position) const;

  // Replaces what is in `counts` by the counts of a row of a verify round, which has `drafts`
  // before it. Nothing without penalties. O(counts + drafts^2); nothing is allocated where there is
  // room.
  void fill_counts(std::span<const TokenId> drafts, std::vector<kernels::TokenCount>& counts) const;

  // Whether what it samples, or tells, depends on tokens that only the host can count: it is
  // scheduled once those of the last step are there.
  bool needs_history() const { return has_penalties() || wants_logprobs_; }
  bool has_penalties() const;
  bool wants_logprobs() const { return wants_logprobs_; }
  std::int32_t num_top_logprobs() const { return num_top_logprobs_; }

  const kernels::SamplingParameters& parameters() const { return parameters_; }
  std::span<const kernels::TokenBias> bias() const { return bias_; }
  std::span<const kernels::TokenCount> counts() const { return counts_; }
  void check_invariants() const;

 private:
  // Where `token` stands in places_, or would.
  std::size_t find(TokenId token) const;
  void grow();

  kernels::SamplingParameters parameters_;
  std::vector<kernels::TokenBias> bias_;
  bool wants_logprobs_ = false;
  std::int32_t num_top_logprobs_ = 0;
  std::vector<kernels::TokenCount> counts_;
  // [a power of two] the number of an entry of counts_ and 1, by its token: open addressing, at
  // most half full. 0: nothing.
  std::vector<std::uint32_t> places_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_SAMPLING_STATE_H_
