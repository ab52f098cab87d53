#ifndef SLACKWATER_KERNELS_SAMPLE_SAMPLE_TEST_SUPPORT_H_
#define SLACKWATER_KERNELS_SAMPLE_SAMPLE_TEST_SUPPORT_H_

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "kernels/test_support.h"
#include "slackwater/kernels/sample.h"

namespace slackwater::kernels::test {

// A row of sampling that owns what it points to.
struct Request {
  std::vector<float> logits = {};
  SamplingParameters parameters = {};
  std::int64_t position = 0;
  std::uint32_t stream = kSamplingStream;
  std::vector<TokenCount> counts = {};
  std::vector<TokenBias> bias = {};
  std::vector<std::uint64_t> allowed = {};
  std::size_t num_top_logprobs = 0;
  bool wants_logprob = false;
};

// What a row gave, room for logprobs included.
struct Answer {
  Result<SampleResult> result = SampleResult{};
  std::vector<TokenLogprob> top_logprobs = {};

  TokenId token() const { return result.value().token; }
  float logprob() const { return result.value().logprob; }
};

inline SampleRow row_of(const Request& request, std::vector<TokenLogprob>& room) {
  room.assign(request.num_top_logprobs, {.token = -1, .logprob = poison()});
  return {.logits = request.logits.data(),
          .parameters = request.parameters,
          .position = request.position,
          .stream = request.stream,
          .counts = request.counts,
          .bias = request.bias,
          .allowed = request.allowed,
          .top_logprobs = room,
          .wants_logprob = request.wants_logprob};
}

// All requests in one call. They have one vocabulary.
inline std::vector<Answer> sample_all(ExecutionContext& context,
                                      const std::vector<Request>& requests) {
  std::vector<Answer> answers(requests.size());
  std::vector<SampleRow> rows;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    rows.push_back(row_of(requests[i], answers[i].top_logprobs));
  }
  // Neither a value nor an error of an earlier call may shine through.
  std::vector<Result<SampleResult>> results(
      requests.size(), make_error(ErrorCode::kUnavailable, "left over from an earlier call"));
  const auto vocabulary = static_cast<std::int32_t>(requests.front().logits.size());
  sample(context, {.vocabulary = vocabulary, .rows = rows, .results = results});
  for (std::size_t i = 0; i < requests.size(); ++i) answers[i].result = std::move(results[i]);
  return answers;
}

inline Answer sample_one(ExecutionContext& context, const Request& request) {
  return std::move(sample_all(context, {request}).front());
}

// The same token, bits, logprobs and words.
inline ::testing::AssertionResult equal_answers(const Answer& actual, const Answer& expected) {
  if (actual.result.has_value() != expected.result.has_value()) {
    const Answer& failed = actual.result.has_value() ? expected : actual;
    return ::testing::AssertionFailure() << "only one failed: " << failed.result.error().text();
  }
  if (!actual.result.has_value()) {
    const Error& a = actual.result.error();
    const Error& b = expected.result.error();
    if (a.code() == b.code() && a.text() == b.text()) return ::testing::AssertionSuccess();
    return ::testing::AssertionFailure() << a.text() << ", expected " << b.text();
  }
  if (actual.token() != expected.token() ||
      bits_of(actual.logprob()) != bits_of(expected.logprob())) {
    return ::testing::AssertionFailure()
           << "token " << actual.token() << " of logprob " << describe(actual.logprob())
           << ", expected " << expected.token() << " of " << describe(expected.logprob());
  }
  for (std::size_t i = 0; i < expected.top_logprobs.size(); ++i) {
    const TokenLogprob& a = actual.top_logprobs[i];
    const TokenLogprob& b = expected.top_logprobs[i];
    if (a.token == b.token && bits_of(a.logprob) == bits_of(b.logprob)) continue;
    return ::testing::AssertionFailure()
           << "logprob " << i << " is " << describe(a.logprob) << " of token " << a.token
           << ", expected " << describe(b.logprob) << " of " << b.token;
  }
  return ::testing::AssertionSuccess();
}

// A mask that allows `tokens`.
inline std::vector<std::uint64_t> mask_of(std::size_t vocabulary,
                                          const std::vector<TokenId>& tokens) {
  std::vector<std::uint64_t> mask((vocabulary + 63) / 64);
  for (const TokenId token : tokens) {
    mask[static_cast<std::size_t>(token) / 64] |= std::uint64_t{1} << (token % 64);
  }
  return mask;
}

}  // namespace slackwater::kernels::test

#endif  // SLACKWATER_KERNELS_SAMPLE_SAMPLE_TEST_SUPPORT_H_
