#include "engine/sampling_state.h"

#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <random>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"
#include "testing/allocation_counter.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::engine {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

GenerationRequest request_with_penalties() {
  GenerationRequest request;
  request.prompt_tokens = {1, 2, 3};
  request.sampling.presence_penalty = 0.5f;
  return request;
}

std::map<TokenId, std::int32_t> as_map(std::span<const kernels::TokenCount> counts) {
  std::map<TokenId, std::int32_t> map;
  for (const kernels::TokenCount& entry : counts) {
    EXPECT_TRUE(map.emplace(entry.token, entry.count).second) << entry.token;
  }
  return map;
}

TEST(SamplingState, ARowIsWhatTheRequestAsks) {
  GenerationRequest request = request_with_penalties();
  request.sampling.temperature = 0.7f;
  request.sampling.seed = 11;
  request.logit_bias = {{4, -1.5f}};
  request.wants_logprobs = true;
  SamplingState state(request, 0);
  state.add(9);
  state.add(9);
  const float logits = 0;
  const kernels::SampleRow row = state.row_for(&logits, 17);
  EXPECT_EQ(row.logits, &logits);
  EXPECT_EQ(row.position, 17);
  EXPECT_EQ(row.stream, kernels::kSamplingStream);
  EXPECT_EQ(row.parameters.temperature, 0.7f);
  EXPECT_EQ(row.parameters.presence_penalty, 0.5f);
  EXPECT_EQ(row.parameters.seed, 11u);
  ASSERT_EQ(row.bias.size(), 1u);
  EXPECT_EQ(row.bias[0].token, 4);
  EXPECT_EQ(row.bias[0].bias, -1.5f);
  EXPECT_EQ(as_map(row.counts), (std::map<TokenId, std::int32_t>{{9, 2}}));
  EXPECT_TRUE(row.wants_logprob);
  EXPECT_THAT(row.allowed, IsEmpty());
}

TEST(SamplingState, EveryChoiceHasASeedOfItsOwn) {
  GenerationRequest request;
  request.num_choices = 3;
  request.sampling.seed = 11;
  EXPECT_EQ(SamplingState(request, 0).parameters().seed, 11u);
  EXPECT_EQ(SamplingState(request, 1).parameters().seed, kernels::choice_seed(11, 1));
  EXPECT_EQ(SamplingState(request, 2).parameters().seed, kernels::choice_seed(11, 2));
  EXPECT_NE(kernels::choice_seed(11, 1), kernels::choice_seed(11, 2));
}

TEST(SamplingState, CountsDraftsOfTheRoundBesideWhatIsCertain) {
  SamplingState state(request_with_penalties(), 0);
  for (const TokenId token : {5, 6, 5}) state.add(token);
  std::vector<kernels::TokenCount> counts = {{99, 1}};
  state.fill_counts({}, counts);
  EXPECT_EQ(as_map(counts), (std::map<TokenId, std::int32_t>{{5, 2}, {6, 1}}));
  state.fill_counts(std::vector<TokenId>{6, 8, 8}, counts);
  EXPECT_EQ(as_map(counts), (std::map<TokenId, std::int32_t>{{5, 2}, {6, 2}, {8, 2}}));
  // Drafts are not certain: nothing of them stays.
  EXPECT_EQ(as_map(state.counts()), (std::map<TokenId, std::int32_t>{{5, 2}, {6, 1}}));
}

TEST(SamplingState, CountsNothingWithoutPenalties) {
  GenerationRequest request;
  SamplingState state(request, 0);
  state.add(5);
  std::vector<kernels::TokenCount> counts = {{99, 1}};
  state.fill_counts(std::vector<TokenId>{6}, counts);
  EXPECT_THAT(counts, IsEmpty());
  EXPECT_THAT(state.counts(), IsEmpty());
  state.check_invariants();
}

TEST(SamplingState, NeedsHistoryForPenaltiesAndLogprobsOnly) {
  GenerationRequest request;
  request.sampling.temperature = 1;
  request.logit_bias = {{4, 1.0f}};
  EXPECT_FALSE(SamplingState(request, 0).needs_history());
  request.sampling.frequency_penalty = -0.1f;
  EXPECT_TRUE(SamplingState(request, 0).needs_history());
  request.sampling.frequency_penalty = 0;
  request.num_top_logprobs = 2;
  EXPECT_TRUE(SamplingState(request, 0).needs_history());
  EXPECT_TRUE(SamplingState(request, 0).wants_logprobs());
  EXPECT_EQ(SamplingState(request, 0).num_top_logprobs(), 2);
  request.num_top_logprobs = 0;
  request.wants_logprobs = true;
  EXPECT_TRUE(SamplingState(request, 0).needs_history());
}

TEST(SamplingState, AllocatesNothingForTokensThatItKnows) {
  SamplingState state(request_with_penalties(), 0);
  for (TokenId token = 0; token < 100; ++token) state.add(token);
  std::vector<kernels::TokenCount> counts;
  counts.reserve(200);
  const std::vector<TokenId> drafts = {7, 500, 500};
  const std::int64_t before = num_heap_allocations();
  for (TokenId token = 0; token < 100; ++token) {
    state.add(token);
    state.fill_counts(drafts, counts);
  }
  EXPECT_EQ(num_heap_allocations(), before);
}

// The sampler takes what it is given, and the penalty is felt.
TEST(SamplingState, AVerifyRowSamplesAsIfItsDraftsWereGenerated) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  SamplingState state(request_with_penalties(), 0);
  state.add(0);
  const std::vector<float> logits = {1.4f, 1.3f, 1.0f};
  std::vector<kernels::TokenCount> counts;
  state.fill_counts(std::vector<TokenId>{1}, counts);
  std::vector<kernels::SampleRow> rows(2, state.row_for(logits.data(), 5));
  rows[1].counts = counts;
  std::vector<Result<kernels::SampleResult>> results(2);
  kernels::sample(context, {.vocabulary = 3, .rows = rows, .results = results});
  EXPECT_EQ(results[0]->token, 1);
  EXPECT_EQ(results[1]->token, 2);
}

TEST(SamplingStateModel, CountsWhatAMapCounts) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_operations = test_operations(20'000);
  std::int64_t done = 0;
  for (std::uint64_t round = 0; done < num_operations; ++round) {
    SCOPED_TRACE(testing::Message() << "seed " << seed + round);
    std::mt19937_64 random(seed + round);
    SamplingState state(request_with_penalties(), 0);
    std::map<TokenId, std::int32_t> expected;
    const std::uint64_t vocabulary = random() % 2 == 0 ? 8 : 160'000;
    std::vector<kernels::TokenCount> counts;
    for (int step = 0; step < 500; ++step, ++done) {
      const auto token = static_cast<TokenId>(random() % vocabulary);
      state.add(token);
      ++expected[token];
      auto with_drafts = expected;
      std::vector<TokenId> drafts(random() % 5);
      for (TokenId& draft : drafts) {
        draft = random() % 2 == 0 ? token : static_cast<TokenId>(random() % vocabulary);
        ++with_drafts[draft];
      }
      state.fill_counts(drafts, counts);
      ASSERT_EQ(as_map(counts), with_drafts) << "after " << done << " operations";
    }
    ASSERT_EQ(as_map(state.counts()), expected);
    state.check_invariants();
  }
}

// What `change` makes of a request that is right.
Result<void> validate_changed(const std::function<void(GenerationRequest&)>& change,
                              bool has_tokenizer = true) {
  model::ModelConfig config;
  config.vocab_size = 10;
  config.max_length = 100;
  GenerationRequest request;
  request.prompt_tokens = {1, 2, 3};
  change(request);
  return validate(request, config, has_tokenizer);
}

TEST(ValidateRequest, TakesWhatEveryFieldAllows) {
  EXPECT_TRUE(validate_changed([](GenerationRequest&) {}).has_value());
  const auto result = validate_changed([](GenerationRequest& request) {
    request.max_tokens = 0;
    request.sampling = {.temperature = 1, .top_k = 3, .top_p = 0.5f, .min_p = 0.1f};
    request.logit_bias = {{0, -kInfinity}, {9, 2}};
    request.stop = {"end"};
    request.stop_token_ids = {0, 9};
    request.num_top_logprobs = 10;
    request.num_choices = 128;
    request.page_priority = 100;
  });
  EXPECT_TRUE(result.has_value()) << result.error().text();
}

TEST(ValidateRequest, RefusesWithFieldValueAndRemedy) {
  struct Refusal {
    std::function<void(GenerationRequest&)> change;
    std::string text;
  };
  using Request = GenerationRequest;
  const std::vector<Refusal> refusals = {
      {[](Request& r) { r.max_tokens = -1; }, "max_tokens -1 is negative; use 0 or more"},
      {[](Request& r) { r.num_top_logprobs = 11; },
       "num_top_logprobs 11 is out of range; use 0 to "
       "10"},
      {[](Request& r) { r.num_top_logprobs = -1; }, "num_top_logprobs -1 is out of range"},
      {[](Request& r) { r.num_choices = 0; }, "num_choices 0 is out of range; use 1 to 128"},
      {[](Request& r) { r.num_choices = 129; }, "num_choices 129 is out of range"},
      {[](Request& r) { r.page_priority = 101; },
       "page_priority 101 is out of range; use 0 to "
       "100"},
      {[](Request& r) { r.page_priority = -1; }, "page_priority -1 is out of range"},
      {[](Request& r) { r.sampling.top_p = 0; }, "top_p 0 is outside (0, 1]"},
      {[](Request& r) {
         r.logit_bias = {{10, 1}};
       },
       "token 10 in logit_bias is outside the vocabulary; use [0, 10)"},
      {[](Request& r) {
         r.logit_bias = {{3, 1}, {4, 0}, {3, 2}};
       },
       "token 3 stands in logit_bias twice; list it once"},
      {[](Request& r) {
         r.logit_bias = {{3, kInfinity}};
       },
       "logit_bias inf of token 3"},
      {[](Request& r) {
         r.logit_bias = {{3, NAN}};
       },
       "logit_bias nan of token 3"},
      {[](Request& r) {
         for (TokenId token = 0; token < 10; ++token) r.logit_bias.push_back({token, -kInfinity});
       },
       "logit_bias forbids all 10 tokens of the vocabulary; leave one"},
      {[](Request& r) { r.stop = {""}; }, "a stop text is empty"},
      {[](Request& r) { r.stop_token_ids = {-1}; }, "token -1 in stop_token_ids is outside"},
      {[](Request& r) {
         r.stop_token_ids = {4, 4};
       },
       "token 4 stands in stop_token_ids twice"},
      {[](Request& r) { r.prompt_tokens.clear(); }, "the prompt has no tokens"},
  };
  for (const Refusal& refusal : refusals) {
    const auto result = validate_changed(refusal.change);
    ASSERT_FALSE(result.has_value()) << refusal.text;
    EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument) << refusal.text;
    EXPECT_THAT(result.error().text(), HasSubstr(refusal.text));
  }
}

TEST(ValidateRequest, ALargeVocabularyHasTwentyTopLogprobs) {
  model::ModelConfig config;
  config.vocab_size = 1000;
  config.max_length = 100;
  GenerationRequest request;
  request.prompt_tokens = {1};
  request.num_top_logprobs = 20;
  EXPECT_TRUE(validate(request, config, true).has_value());
  request.num_top_logprobs = 21;
  EXPECT_THAT(validate(request, config, true).error().text(), HasSubstr("use 0 to 20"));
}

TEST(ValidateRequest, StopTextsNeedATokenizer) {
  const auto with_stop = [](GenerationRequest& request) { request.stop = {"a", "b"}; };
  EXPECT_TRUE(validate_changed(with_stop).has_value());
  const auto result = validate_changed(with_stop, false);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(result.error().text(), HasSubstr("stop has 2 texts"));
  EXPECT_THAT(result.error().text(), HasSubstr("use stop_token_ids"));
}

TEST(ValidateRequest, APromptThatIsTooLongIsOutOfRange) {
  const auto result = validate_changed(
      [](GenerationRequest& request) { request.prompt_tokens.assign(100, TokenId{1}); });
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kOutOfRange);
}

}  // namespace
}  // namespace slackwater::engine
