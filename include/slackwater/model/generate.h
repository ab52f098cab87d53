#ifndef SLACKWATER_MODEL_GENERATE_H_
#define SLACKWATER_MODEL_GENERATE_H_

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/model/model.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::model {

// What to write after a prompt.
struct GenerateOptions {
  std::int32_t max_tokens = 128;  // >= 0
  kernels::SamplingParameters sampling;
  std::vector<kernels::TokenBias> bias = {};  // added to logits; distinct tokens, in any order
  std::vector<std::string> stop;              // texts that end the answer and are not part of it
  std::int32_t chunk = 512;                   // prompt tokens per forward pass; changes speed only
  // Gets each piece of text as it becomes certain (whole UTF-8 sequences, nothing that may still
  // turn out to be a stop text). An error ends the generation with it. May be empty.
  std::function<Result<void>(std::string_view)> on_text = nullptr;
};

// Whether these can work with some model: kInvalidArgument names the field, its value and what is
// legal.
Result<void> validate(const GenerateOptions& options);

// Why an answer ended.
enum class FinishReason {
  kLength,  // max_tokens, or the model's longest sequence
  kStop,    // an end-of-sequence token or a stop text
};
std::string_view to_string(FinishReason reason);  // "length", "stop"

struct GenerateResult {
  std::vector<TokenId> tokens;  // sampled, an end-of-sequence token included
  std::string text;             // special tokens add nothing; ends before a stop text
  FinishReason finish_reason = FinishReason::kLength;
  Nanoseconds prompt_time{0};        // forward passes over the prompt, to the first logits
  Nanoseconds generation_time{0};    // everything after
  std::int64_t generated_steps = 0;  // forward passes in generation_time, one token each
};

// The prompt as token ids, begin-of-sequence first. Text that looks like a special token is text.
Result<std::vector<TokenId>> encode_prompt(const ModelConfig& config, const Tokenizer& tokenizer,
                                           std::string_view text);

// Whether a model of this configuration can continue the prompt. Errors: kInvalidArgument for one
// without tokens, kOutOfRange for one that is too long or has tokens beyond the vocabulary.
Result<void> validate_prompt(const ModelConfig& config, std::span<const TokenId> prompt_tokens);

// Writes one answer, alone: one sequence on SoloStorage, no speculation, no sharing.
//
// The oracle: whatever the engine does with a request, its tokens equal those of this function.
//
// Errors: kInvalidArgument for sampling parameters or options; kOutOfRange where the prompt leaves
//   no room in the model's longest sequence; kDataLoss where logits are not finite.
// Cost: allocates its state for prompt + max_tokens, then one forward pass per chunk and token.
Result<GenerateResult> generate_solo(const Model& model, const Tokenizer& tokenizer,
                                     kernels::ExecutionContext& context,
                                     std::span<const TokenId> prompt_tokens,
                                     const GenerateOptions& options);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_GENERATE_H_
