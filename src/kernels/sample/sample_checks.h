#ifndef SLACKWATER_KERNELS_SAMPLE_SAMPLE_CHECKS_H_
#define SLACKWATER_KERNELS_SAMPLE_SAMPLE_CHECKS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/kernels/sample.h"

namespace slackwater::kernels {

// What can be refused before a logit is read, and the words of what is refused later: every form
// of the kernel gives the same texts.

// validate(), for callers that run in the fixed floating-point mode.
Result<void> check_parameters(const SamplingParameters& parameters);

// Words of the bitmap that check_row() works in.
std::size_t seen_words(std::int32_t vocabulary);

// Parameters, counts, bias, mask and room for logprobs of one row. `seen` is overwritten:
// duplicates are found in O(vocabulary / 64 + entries).
Result<void> check_row(const SampleRow& row, std::int32_t vocabulary,
                       std::span<std::uint64_t> seen);

// The first value of logits[0, vocabulary) that is not finite; there is one.
Error non_finite_logit(const float* logits, std::int64_t vocabulary);

Error overflow_by_penalties(TokenId token, float before, float after);
Error overflow_by_bias(TokenId token, float before, float bias);
Error no_token_left();
Error overflow_by_temperature(TokenId token, float logit, float temperature);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_SAMPLE_SAMPLE_CHECKS_H_
