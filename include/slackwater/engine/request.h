#ifndef SLACKWATER_ENGINE_REQUEST_H_
#define SLACKWATER_ENGINE_REQUEST_H_

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/kernels/sample.h"

namespace slackwater::engine {

// Why a request ended.
enum class FinishReason : std::uint8_t {
  kLength,     // max_tokens, or the model's longest sequence
  kStop,       // an end-of-sequence token, a stop token or a stop text
  kCancelled,  // by cancel()
  kError,      // RequestOutput::error says which
};
std::string_view to_string(FinishReason reason);  // "length", "stop", "cancelled", "error"

// One token of an answer, with what was asked about it.
struct OutputToken {
  TokenId token = 0;
  float logprob = 0;                                // where asked for
  std::vector<kernels::TokenLogprob> top_logprobs;  // best first; where asked for
};

// What has become certain of a request since the last time.
struct RequestOutput {
  RequestId request;
  std::int32_t choice = 0;  // of GenerationRequest::num_choices
  std::vector<OutputToken> tokens;
  std::string text;  // whole UTF-8 sequences; nothing that may still become a stop text
  std::optional<FinishReason> finish_reason;  // with the last one
  std::optional<Error> error;                 // with kError
  // With the last one.
  std::int64_t num_prompt_tokens = 0;
  std::int64_t num_reused_tokens = 0;     // of the prompt, found the first time it was admitted
  std::int64_t num_generated_tokens = 0;  // an end-of-sequence token included
};

// What to write, and how.
struct GenerationRequest {
  std::vector<TokenId> prompt_tokens;
  std::int32_t max_tokens = 128;  // >= 0
  kernels::SamplingParameters sampling;
  std::vector<kernels::TokenBias> logit_bias;
  std::vector<std::string> stop;        // texts that end the answer and are not part of it
  std::vector<TokenId> stop_token_ids;  // beside the model's own end-of-sequence tokens
  bool ignore_eos = false;              // those do not end it
  bool wants_logprobs = false;
  std::int32_t num_top_logprobs = 0;  // [0, 20]; implies wants_logprobs
  std::int32_t num_choices = 1;       // n; [1, 128]: choice i has the seed choice_seed(seed, i)
  bool enable_speculation = true;     // off: no drafts, whatever the engine has
  cache::ReuseScope scope;            // state is shared within a scope only
  std::int32_t page_priority = 35;    // [0, 100]: what is evicted first; kDefaultPriority
  // Called by whoever calls Engine::step(), never at the same time as another; may be empty.
  std::function<void(const RequestOutput&)> on_output;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_REQUEST_H_
