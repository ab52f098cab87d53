#include "kernels/sample/sample_checks.h"

#include <algorithm>
#include <cmath>

#include "slackwater/base/numeric.h"

namespace slackwater::kernels {
namespace {

// Marks `token`; false where it was marked before.
bool mark(std::span<std::uint64_t> seen, TokenId token) {
  std::uint64_t& word = seen[static_cast<std::size_t>(token / 64)];
  const std::uint64_t bit = std::uint64_t{1} << (token % 64);
  const bool is_new = (word & bit) == 0;
  word |= bit;
  return is_new;
}

Result<void> check_counts(std::span<const TokenCount> counts, std::int32_t vocabulary,
                          std::span<std::uint64_t> seen) {
  if (counts.empty()) return {};
  std::ranges::fill(seen, 0);
  for (const TokenCount& entry : counts) {
    if (entry.token < 0 || entry.token >= vocabulary) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} has a count, but the vocabulary has {} tokens", entry.token,
                        vocabulary);
    }
    if (entry.count <= 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "count {} of token {}: leave out what was not generated", entry.count,
                        entry.token);
    }
    if (!mark(seen, entry.token)) {
      return make_error(ErrorCode::kInvalidArgument, "token {} has two counts: add them up",
                        entry.token);
    }
  }
  return {};
}

Result<void> check_bias(std::span<const TokenBias> bias, std::int32_t vocabulary,
                        std::span<std::uint64_t> seen) {
  if (bias.empty()) return {};
  std::ranges::fill(seen, 0);
  for (const TokenBias& entry : bias) {
    if (entry.token < 0 || entry.token >= vocabulary) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} has a bias, but the vocabulary has {} tokens", entry.token,
                        vocabulary);
    }
    if (!(entry.bias < HUGE_VALF)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "bias {} of token {} is neither finite nor -infinity", entry.bias,
                        entry.token);
    }
    if (!mark(seen, entry.token)) {
      return make_error(ErrorCode::kInvalidArgument, "token {} has two biases: add them up",
                        entry.token);
    }
  }
  return {};
}

}  // namespace

Result<void> check_parameters(const SamplingParameters& parameters) {
  const float temperature = parameters.temperature;
  if (temperature != 0 && !(kSmallestTemperature <= temperature && temperature < HUGE_VALF)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "temperature {} is neither 0 nor a finite number >= {}; 0 takes the highest "
                      "logit",
                      temperature, kSmallestTemperature);
  }
  if (parameters.top_k < 0) {
    return make_error(ErrorCode::kInvalidArgument, "top_k {} is negative; 0 switches it off",
                      parameters.top_k);
  }
  if (!(0 < parameters.top_p && parameters.top_p <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "top_p {} is outside (0, 1]; 1 switches it off",
                      parameters.top_p);
  }
  if (!(0 <= parameters.min_p && parameters.min_p <= 1)) {
    return make_error(ErrorCode::kInvalidArgument, "min_p {} is outside [0, 1]; 0 switches it off",
                      parameters.min_p);
  }
  if (!std::isfinite(parameters.frequency_penalty)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "frequency_penalty {} is not finite; 0 switches it off",
                      parameters.frequency_penalty);
  }
  if (!std::isfinite(parameters.presence_penalty)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "presence_penalty {} is not finite; 0 switches it off",
                      parameters.presence_penalty);
  }
  return {};
}

std::size_t seen_words(std::int32_t vocabulary) {
  return static_cast<std::size_t>(ceil_div(vocabulary, 64));
}

Result<void> check_row(const SampleRow& row, std::int32_t vocabulary,
                       std::span<std::uint64_t> seen) {
  SLACKWATER_RETURN_IF_ERROR(check_parameters(row.parameters));
  SLACKWATER_RETURN_IF_ERROR(check_counts(row.counts, vocabulary, seen));
  SLACKWATER_RETURN_IF_ERROR(check_bias(row.bias, vocabulary, seen));
  if (!row.allowed.empty() && row.allowed.size() != seen_words(vocabulary)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a mask of {} words; a vocabulary of {} tokens has {}", row.allowed.size(),
                      vocabulary, seen_words(vocabulary));
  }
  if (std::ssize(row.top_logprobs) > vocabulary) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} best logprobs asked of a vocabulary of {} tokens",
                      row.top_logprobs.size(), vocabulary);
  }
  return {};
}

Error non_finite_logit(const float* logits, std::int64_t vocabulary) {
  const float* found = std::find_if_not(logits, logits + vocabulary,
                                        [](float logit) { return std::isfinite(logit); });
  return Error(
      ErrorCode::kDataLoss,
      fmt::format("the logit of token {} is {}; the weights are damaged or not those of this "
                  "architecture",
                  found - logits, *found));
}

Error overflow_by_penalties(TokenId token, float before, float after) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("the penalties take the logit of token {} from {} to {}", token, before, after));
}

Error overflow_by_bias(TokenId token, float before, float bias) {
  return Error(
      ErrorCode::kInvalidArgument,
      fmt::format("bias {} takes the logit of token {} from {} to infinity", bias, token, before));
}

Error no_token_left() {
  return Error(ErrorCode::kInvalidArgument,
               "mask and bias leave no token to sample: allow at least one");
}

Error overflow_by_temperature(TokenId token, float logit, float temperature) {
  return Error(ErrorCode::kInvalidArgument,
               fmt::format("the highest logit, {} of token {}, over temperature {} is not finite; "
                           "temperature 0 takes the highest logit",
                           logit, token, temperature));
}

}  // namespace slackwater::kernels
