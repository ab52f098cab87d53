#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/sample/sample_checks.h"
#include "kernels/vector_math.h"
#include "slackwater/base/philox.h"

namespace slackwater::kernels::reference {
namespace {

float exp(float x) { return scalar::exp<scalar::FloatOps>(x); }
float log(float x) { return scalar::log<scalar::FloatOps>(x); }

// A token that may still be sampled.
struct Candidate {
  TokenId token = 0;
  float z = 0;
  float weight = 0;
};

bool comes_first(const Candidate& a, const Candidate& b) {
  return a.z != b.z ? a.z > b.z : a.token < b.token;
}

bool has_lower_token(const Candidate& a, const Candidate& b) { return a.token < b.token; }

// Gumbel noise of `token` at the row's position.
float noise(const SampleRow& row, TokenId token) {
  const auto id = static_cast<std::uint32_t>(token);
  const auto position = static_cast<std::uint64_t>(row.position);
  const std::uint64_t seed = row.parameters.seed;
  const PhiloxCounter words =
      philox_4x32_10({id >> 2, static_cast<std::uint32_t>(position),
                      static_cast<std::uint32_t>(position >> 32), row.stream},
                     {static_cast<std::uint32_t>(seed), static_cast<std::uint32_t>(seed >> 32)});
  return scalar::gumbel<scalar::FloatOps>(static_cast<float>(2 * (words[id & 3] >> 9) + 1));
}

// The logits after penalties and bias.
Result<std::vector<float>> adjusted_logits(const SampleRow& row, std::int32_t vocabulary) {
  std::vector<float> logits(row.logits, row.logits + vocabulary);
  for (const float logit : logits) {
    if (!std::isfinite(logit)) {
      return tl::unexpected<Error>(non_finite_logit(row.logits, vocabulary));
    }
  }
  for (const TokenCount& entry : row.counts) {
    float& logit = logits[static_cast<std::size_t>(entry.token)];
    const float before = logit;
    logit = std::fma(-row.parameters.frequency_penalty, static_cast<float>(entry.count), logit);
    logit = logit - row.parameters.presence_penalty;
    if (!std::isfinite(logit)) {
      return tl::unexpected<Error>(overflow_by_penalties(entry.token, before, logit));
    }
  }
  for (const TokenBias& entry : row.bias) {
    float& logit = logits[static_cast<std::size_t>(entry.token)];
    const float before = logit;
    logit = logit + entry.bias;
    if (logit == HUGE_VALF) {
      return tl::unexpected<Error>(overflow_by_bias(entry.token, before, entry.bias));
    }
  }
  return logits;
}

// Every token's logprob.
std::vector<float> logprobs_of(const std::vector<float>& logits) {
  const float l_max = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float logit : logits) sum += static_cast<double>(exp(logit - l_max));
  const float log_sum = log(static_cast<float>(sum));
  std::vector<float> logprobs;
  for (const float logit : logits) logprobs.push_back((logit - l_max) - log_sum);
  return logprobs;
}

// The tokens that mask and bias leave, in ascending order, with z = l.
std::vector<Candidate> candidates_of(const SampleRow& row, const std::vector<float>& logits) {
  std::vector<Candidate> candidates;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    const bool is_allowed =
        row.allowed.empty() || ((row.allowed[token / 64] >> (token % 64)) & 1) != 0;
    if (!is_allowed || logits[token] == -HUGE_VALF) continue;
    candidates.push_back({.token = static_cast<TokenId>(token), .z = logits[token]});
  }
  return candidates;
}

// top-k, min-p and top-p, in this order.
void filter(const SamplingParameters& parameters, std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(), comes_first);
  if (parameters.top_k > 0 && static_cast<std::size_t>(parameters.top_k) < candidates.size()) {
    candidates.resize(static_cast<std::size_t>(parameters.top_k));
  }
  const float z_max = candidates.front().z;
  for (Candidate& candidate : candidates) candidate.weight = exp(candidate.z - z_max);
  std::erase_if(candidates, [&](const Candidate& c) { return c.weight < parameters.min_p; });
  if (parameters.top_p == 1) return;

  std::sort(candidates.begin(), candidates.end(), has_lower_token);
  double total = 0;
  for (const Candidate& candidate : candidates) total += static_cast<double>(candidate.weight);
  std::sort(candidates.begin(), candidates.end(), comes_first);
  const double enough = static_cast<double>(parameters.top_p) * total;
  double sum = 0;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    sum += static_cast<double>(candidates[i].weight);
    if (sum >= enough) candidates.resize(i + 1);
  }
}

// The token with the highest z + noise, the lowest on ties.
TokenId draw(const SampleRow& row, std::vector<Candidate> candidates) {
  for (Candidate& candidate : candidates) candidate.z = candidate.z + noise(row, candidate.token);
  return std::min_element(candidates.begin(), candidates.end(), comes_first)->token;
}

void give_logprobs(const SampleRow& row, const std::vector<float>& logprobs,
                   const std::vector<float>& logits) {
  std::vector<Candidate> order;
  for (std::size_t token = 0; token < logits.size(); ++token) {
    order.push_back({.token = static_cast<TokenId>(token), .z = logits[token]});
  }
  std::sort(order.begin(), order.end(), comes_first);
  for (std::size_t i = 0; i < row.top_logprobs.size(); ++i) {
    const TokenId token = order[i].token;
    row.top_logprobs[i] = {.token = token, .logprob = logprobs[static_cast<std::size_t>(token)]};
  }
}

Result<SampleResult> sample_row(const SampleRow& row, std::int32_t vocabulary) {
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<float> logits, adjusted_logits(row, vocabulary));
  std::vector<Candidate> candidates = candidates_of(row, logits);
  if (candidates.empty()) return tl::unexpected<Error>(no_token_left());

  SampleResult result;
  const float temperature = row.parameters.temperature;
  const Candidate best = *std::min_element(candidates.begin(), candidates.end(), comes_first);
  if (temperature == 0) {
    result.token = best.token;
  } else {
    if (!std::isfinite(best.z / temperature)) {
      return tl::unexpected<Error>(overflow_by_temperature(best.token, best.z, temperature));
    }
    for (Candidate& candidate : candidates) candidate.z = candidate.z / temperature;
    filter(row.parameters, candidates);
    result.token = draw(row, candidates);
  }
  if (row.wants_logprob || !row.top_logprobs.empty()) {
    const std::vector<float> logprobs = logprobs_of(logits);
    result.logprob = logprobs[static_cast<std::size_t>(result.token)];
    give_logprobs(row, logprobs, logits);
  }
  return result;
}

}  // namespace

void sample(ExecutionContext&, const SampleArgs& args) {
  for (std::size_t i = 0; i < args.rows.size(); ++i) {
    if (args.results[i].has_value()) args.results[i] = sample_row(args.rows[i], args.vocabulary);
  }
}

}  // namespace slackwater::kernels::reference
