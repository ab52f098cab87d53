#include "testing/solo_oracle.h"

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "model/forward_test_support.h"
#include "slackwater/model/generate.h"
#include "testing/digest_model.h"

namespace slackwater {
namespace {

using engine::FinishReason;
using engine::GenerationRequest;

std::vector<TokenId> token_ids(const LoneAnswer& answer) {
  std::vector<TokenId> ids;
  for (const engine::OutputToken& token : answer.tokens) ids.push_back(token.token);
  return ids;
}

// A forward pass as an engine would run it.
class PlainModel final : public engine::LanguageModel {
 public:
  PlainModel(const model::Model& model, kernels::ExecutionContext& context)
      : model_(model), context_(context) {}
  const model::ModelConfig& config() const override { return model_.config(); }
  Digest128 digest() const override { return {}; }
  void reserve(model::ForwardPass::Limits limits) override {
    forward_.emplace(model_, context_, limits);
  }
  void run(const model::ForwardBatch& batch, std::span<float> logits) override {
    forward_->run(batch, logits);
  }
  const float* hidden() const override { return forward_->hidden(); }
  const float* first_hidden() const override { return forward_->first_hidden(); }
  void run_mtp(const model::MtpBatch& batch, std::span<float> logits) override {
    forward_->run_mtp(batch, logits);
  }
  const float* mtp_hidden() const override { return forward_->mtp_hidden(); }

 private:
  const model::Model& model_;
  kernels::ExecutionContext& context_;
  std::optional<model::ForwardPass> forward_;
};

TEST(SoloOracle, SaysWhatTheSoloLoopSays) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  const model::Model demo = model::load_model(model::source_path("models/demo"), context);
  const auto tokenizer =
      model::Tokenizer::load(model::source_path("models/demo"), demo.config().vocab_size);
  ASSERT_TRUE(tokenizer.has_value()) << tokenizer.error().text();
  PlainModel plain(demo, context);
  SoloOracle oracle(plain, context, &*tokenizer);
  std::int64_t num_stopped = 0;
  for (const std::string& stop : {std::string(), std::string("and"), std::string("e ")}) {
    for (const float temperature : {0.0f, 0.8f}) {
      for (const float penalty : {0.0f, 0.6f}) {
        GenerationRequest request;
        request.prompt_tokens = *model::encode_prompt(
            demo.config(), *tokenizer, "In the beginning God created the heaven and the earth. ");
        request.max_tokens = 40;
        request.sampling = {.temperature = temperature, .presence_penalty = penalty, .seed = 5};
        if (!stop.empty()) request.stop = {stop};
        const auto expected = model::generate_solo(
            demo, *tokenizer, context, request.prompt_tokens,
            {.max_tokens = 40, .sampling = request.sampling, .stop = request.stop});
        ASSERT_TRUE(expected.has_value()) << expected.error().text();
        const LoneAnswer& answer = oracle.answer(request, 0);
        EXPECT_EQ(token_ids(answer), expected->tokens);
        EXPECT_EQ(answer.text, expected->text);
        EXPECT_EQ(to_string(expected->finish_reason),
                  answer.finish_reason == FinishReason::kStop ? "stop" : "length");
        num_stopped += answer.finish_reason == FinishReason::kStop ? 1 : 0;
      }
    }
  }
  EXPECT_GE(num_stopped, 3);
}

// The digest model with what a test asks of it.
class SoloOracleOfDigests : public testing::Test {
 protected:
  SoloOracleOfDigests() : pool_(1), context_(pool_), model_({}), oracle_(model_, context_) {
    request_.prompt_tokens = {0, 7, 8, 9};
    request_.max_tokens = 60;
    request_.ignore_eos = true;
  }
  const LoneAnswer& answer(std::int32_t choice = 0) { return oracle_.answer(request_, choice); }

  ThreadPool pool_;
  kernels::ExecutionContext context_;
  DigestModel model_;
  SoloOracle oracle_;
  GenerationRequest request_;
};

TEST_F(SoloOracleOfDigests, EndsAtAStopTokenAndAtTheModelsLongestSequence) {
  const std::vector<TokenId> whole = token_ids(answer());
  ASSERT_EQ(whole.size(), 60u);
  EXPECT_EQ(answer().finish_reason, FinishReason::kLength);
  request_.stop_token_ids = {whole[20]};
  const LoneAnswer& stopped = answer();
  EXPECT_EQ(stopped.finish_reason, FinishReason::kStop);
  EXPECT_EQ(stopped.tokens.back().token, whole[20]);
  EXPECT_LE(stopped.tokens.size(), 21u);
  request_.stop_token_ids.clear();
  request_.max_tokens = 1000;
  EXPECT_EQ(answer().tokens.size(), 252u);
  request_.ignore_eos = false;
  const TokenId last = answer().tokens.back().token;
  EXPECT_EQ(last == DigestModel::kEos || last == DigestModel::kSecondEos,
            answer().finish_reason == FinishReason::kStop);
  request_.max_tokens = 0;
  EXPECT_TRUE(answer().tokens.empty());
}

TEST_F(SoloOracleOfDigests, GivesEveryChoiceNoiseOfItsOwn) {
  request_.sampling = {.temperature = 0.8f, .seed = 3};
  EXPECT_NE(token_ids(answer(0)), token_ids(answer(1)));
  const std::vector<TokenId> second = token_ids(answer(1));
  request_.sampling.seed = kernels::choice_seed(3, 1);
  EXPECT_EQ(token_ids(answer(0)), second);
}

TEST_F(SoloOracleOfDigests, LooksAtBiasPenaltiesAndLogprobs) {
  const std::vector<TokenId> plain = token_ids(answer());
  request_.sampling.presence_penalty = 2;
  EXPECT_NE(token_ids(answer()), plain);
  request_.sampling.presence_penalty = 0;
  request_.logit_bias = {{.token = plain[0], .bias = -100}};
  EXPECT_NE(answer().tokens[0].token, plain[0]);
  request_.logit_bias.clear();
  request_.num_top_logprobs = 3;
  EXPECT_EQ(token_ids(answer()), plain);
  ASSERT_EQ(answer().tokens[5].top_logprobs.size(), 3u);
  EXPECT_EQ(answer().tokens[5].top_logprobs[0].token, plain[5]);
  EXPECT_EQ(answer().tokens[5].top_logprobs[0].logprob, answer().tokens[5].logprob);
}

TEST_F(SoloOracleOfDigests, EndsWithWhatCannotBeSampled) {
  const std::vector<TokenId> plain = token_ids(answer());
  // Twice is too much for a number.
  request_.sampling.frequency_penalty = 3e38f;
  request_.logit_bias = {{.token = plain[0], .bias = 3.3e38f}};
  const LoneAnswer& failed = answer();
  EXPECT_EQ(failed.finish_reason, FinishReason::kError);
  EXPECT_EQ(failed.error->code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(token_ids(failed), std::vector<TokenId>(2, plain[0]));
}

}  // namespace
}  // namespace slackwater
