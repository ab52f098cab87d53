#ifndef SLACKWATER_KERNELS_SAMPLE_H_
#define SLACKWATER_KERNELS_SAMPLE_H_

#include <cstdint>
#include <span>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/kernels/execution_context.h"

namespace slackwater::kernels {

// How often a token was generated before this position (the prompt does not count). A row of a
// verify round counts the drafts before it too.
struct TokenCount {
  TokenId token = 0;
  std::int32_t count = 0;
};

// Added to the logit of `token`: finite, or -infinity to forbid it.
struct TokenBias {
  TokenId token = 0;
  float bias = 0;
};

// Stream of the noise: separates uses of one seed at one position. 0 is sampling itself,
// drafters included, so that a drafter proposes what the target is likely to sample.
inline constexpr std::uint32_t kSamplingStream = 0;

// The smallest temperature other than 0. Below it l / T of ordinary logits is so large that the
// noise rounds away, and then overflows: whoever asks for that means 0.
inline constexpr float kSmallestTemperature = 1e-6f;

// What a request asks of sampling. The neutral values switch a step off.
struct SamplingParameters {
  float temperature = 0;        // 0: the highest logit; else finite, >= kSmallestTemperature
  std::int32_t top_k = 0;       // >= 0; 0: off
  float top_p = 1;              // (0, 1]; 1: off
  float min_p = 0;              // [0, 1]; 0: off
  float frequency_penalty = 0;  // finite
  float presence_penalty = 0;   // finite
  std::uint64_t seed = 0;
};

// Errors: kInvalidArgument, naming the field, the value, the range and the neutral value.
Result<void> validate(const SamplingParameters& parameters);

// The seed of choice `choice` of a request that asks for several. Choice 0 has the seed itself;
// choice i > 0 the first 64 bits of XXH3-128(seed, i): of the hash, seeded with `seed`, of the
// four little-endian bytes of i, the high half, which its canonical form (as printed) begins with.
std::uint64_t choice_seed(std::uint64_t seed, std::uint32_t choice);

// One logprob of an answer.
struct TokenLogprob {
  TokenId token = 0;
  float logprob = 0;
};

// One row to sample. All it points to stays the caller's, and only top_logprobs is written.
struct SampleRow {
  const float* logits = nullptr;  // [vocabulary] f32, any alignment; nothing past it is read
  SamplingParameters parameters = {};
  std::int64_t position = 0;  // the index that the sampled token will have, >= 0
  std::uint32_t stream = kSamplingStream;
  std::span<const TokenCount> counts = {};      // distinct tokens in any order, counts > 0
  std::span<const TokenBias> bias = {};         // distinct tokens in any order
  std::span<const std::uint64_t> allowed = {};  // bit t % 64 of word t / 64; empty: every token
  // In: room for the best logprobs, at most one per token. Out: filled, best first (ties: lowest
  // id), after penalties and bias, before mask and temperature; unspecified where the row fails.
  std::span<TokenLogprob> top_logprobs = {};
  bool wants_logprob = false;  // of the sampled token; implied by top_logprobs
};

// What one row gave.
struct SampleResult {
  TokenId token = 0;
  float logprob = 0;  // of `token` where asked for, else 0
};

// Samples a token for each row: a pure function of (logits, counts, parameters, position), and
// so of nothing that another row holds.
//
// Source: docs/numerics.md "Sampling"; the Gumbel-max trick; Philox noise keyed by the seed.
// Order: penalties, bias, mask, temperature, top-k, min-p, top-p, noise.
//   counted tokens: l = fma(-frequency, float(count), l); l = l - presence
//   biased tokens:  l = l + bias
//   logprob(t) = (l_t - l_max) - log(sum), sum = f32 of the f64 sum of exp(l - l_max) in
//   ascending token id
//   T = 0: highest l, lowest id on ties. Else z = l / T; top-k by (z down, id up);
//   w = exp(z - z_max); min-p keeps w >= min_p; top-p keeps the shortest prefix in (z down, id
//   up) whose f64 running sum reaches f64(top_p) * total, total being the f64 sum of what is left
//   in ascending token id; the highest z + Gumbel wins, lowest id on ties. A token at -infinity
//   never wins.
// Errors, per row, other rows being unaffected; the first that applies:
//   kInvalidArgument  parameters, counts, bias, mask or top_logprobs are not as described above
//                     (tokens outside the vocabulary or listed twice included)
//   kDataLoss         a logit is not finite: the text names the lowest such token and its value
//   kInvalidArgument  penalties take a logit out of the finite numbers, or bias to +infinity
//   kInvalidArgument  mask and bias leave no token
//   kInvalidArgument  z_max = l_max / T is not finite
// Threads: rows are shared out over the workers.
// Cost: O(vocabulary + counts + bias) per row: greedy one pass over the logits, noise alone two,
// in which only tokens that can still win get noise; filters select or sort what they look at.
// Nothing is allocated once the scratch (24 bytes per token of the vocabulary and worker) exists.
struct SampleArgs {
  std::int32_t vocabulary = 0;  // >= 1
  std::span<const SampleRow> rows = {};
  std::span<Result<SampleResult>> results = {};  // [rows]
};
void sample(ExecutionContext& context, const SampleArgs& args);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_SAMPLE_H_
