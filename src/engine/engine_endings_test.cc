// How answers end: by a token, a text, a number, wherever that comes within accepted drafts.

#include <algorithm>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

class EngineEndingsSlow : public EverySetting {};

// A prompt whose continuation repeats itself, so that every drafter gets drafts accepted.
GenerationRequest repetitive(std::int32_t max_tokens = 40) {
  GenerationRequest request = demo_request(3, max_tokens);
  request.ignore_eos = true;
  return request;
}

TEST_P(EngineEndingsSlow, AStopTokenAnywhereEndsTheAnswerThere) {
  DemoEngine engine(config());
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  const std::vector<TokenId> free = alone(repetitive()).tokens;
  for (std::size_t at = 0; at < 14; ++at) {
    GenerationRequest request = repetitive();
    request.stop_token_ids = {free[at]};
    asked.emplace_back(engine.ask(request), request);
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

// The text is found in tokens that were accepted together; those behind it are never seen.
TEST_P(EngineEndingsSlow, AStopTextWithinAcceptedDraftsEndsTheAnswerThere) {
  DemoEngine engine(config());
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  const std::string free = alone(repetitive()).text;
  ASSERT_GT(free.size(), 40u);
  for (std::size_t at = 1; at < 36; at += 3) {
    GenerationRequest request = repetitive();
    request.stop = {free.substr(at, 4)};
    asked.emplace_back(engine.ask(request), request);
  }
  engine.run();
  for (const auto& [id, request] : asked) {
    expect_as_alone(engine, id, request);
    EXPECT_EQ(engine.answer(id).text.find(request.stop[0]), std::string::npos);
  }
  expect_nothing_left(*engine);
}

// What such an answer leaves is of the tokens that were kept, or nothing.
TEST_P(EngineEndingsSlow, WhoGoesOnFromAStopTextGetsWhatItWouldGetAlone) {
  DemoEngine engine(config());
  const std::string free = alone(repetitive()).text;
  for (std::size_t at = 10; at < 20; at += 2) {
    SCOPED_TRACE(testing::Message() << "stop at " << at);
    GenerationRequest request = repetitive();
    request.stop = {free.substr(at, 4)};
    request.scope.salt = at;
    const RequestId first = engine.ask(request);
    engine.run();
    GenerationRequest next = request;
    next.stop.clear();
    const std::vector<TokenId>& said = engine.answer(first).tokens;
    next.prompt_tokens.insert(next.prompt_tokens.end(), said.begin(), said.end());
    next.max_tokens = 10;
    const RequestId second = engine.ask(next);
    engine.run();
    expect_as_alone(engine, second, next);
  }
  expect_nothing_left(*engine);
}

TEST_P(EngineEndingsSlow, EveryNumberOfTokensIsKeptTo) {
  DemoEngine engine(config());
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::int32_t most = 0; most < 12; ++most) {
    asked.emplace_back(engine.ask(repetitive(most)), repetitive(most));
  }
  engine.run();
  for (const auto& [id, request] : asked) {
    expect_as_alone(engine, id, request);
    EXPECT_EQ(std::ssize(engine.answer(id).tokens), request.max_tokens);
  }
  expect_nothing_left(*engine);
}

// The demo model's own end of sequence, where it comes and where it is ignored.
TEST_P(EngineEndingsSlow, TheEndOfSequenceEndsTheAnswerUnlessItIsIgnored) {
  DemoEngine engine(config());
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 8; ++i) {
    for (const bool ignores : {false, true}) {
      GenerationRequest request = warm_request(i, 48);
      request.ignore_eos = ignores;
      // Drawn towards it, so that it comes in the middle.
      const float pull = 5.0F + 2.0F * static_cast<float>(i);
      request.logit_bias = {{DemoModels::get().model.config().eos_ids[0], pull}};
      asked.emplace_back(engine.ask(request), request);
    }
  }
  engine.run();
  std::int64_t stopped = 0;
  for (const auto& [id, request] : asked) {
    expect_as_alone(engine, id, request);
    const Answer& answer = engine.answer(id);
    stopped += answer.finish_reason == FinishReason::kStop ? 1 : 0;
    if (request.ignore_eos) {
      EXPECT_EQ(answer.finish_reason, FinishReason::kLength);
    }
  }
  EXPECT_GT(stopped, 0);
  expect_nothing_left(*engine);
}

// Room for drafts ends where the answer does: none is proposed that could not become a token.
TEST_P(EngineEndingsSlow, DraftsStopShortOfTheLimit) {
  EngineConfig wanted = config();
  wanted.speculation.max_drafts = 6;
  wanted.speculation.adapt_length = false;
  DemoEngine engine(wanted);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::int32_t most = 1; most < 10; ++most) {
    asked.emplace_back(engine.ask(repetitive(most)), repetitive(most));
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  const EngineStatistics statistics = engine->statistics();
  // Each answer of n tokens has its first one from the prompt, and so many at most from drafts.
  std::int64_t most = 0;
  for (std::int64_t n = 2; n < 10; ++n) most += n * (n - 1) / 2;
  EXPECT_LE(statistics.drafts_accepted, statistics.drafts_proposed);
  EXPECT_LE(statistics.drafts_proposed, most);
  expect_nothing_left(*engine);
}

TEST_P(EngineEndingsSlow, ARequestCanDoWithoutDrafts) {
  DemoEngine engine(config());
  GenerationRequest request = repetitive();
  request.enable_speculation = false;
  const RequestId id = engine.ask(request);
  engine.run();
  expect_as_alone(engine, id, request);
  EXPECT_EQ(engine->statistics().drafts_proposed, 0);
  const RequestId other = engine.ask(repetitive());
  engine.run();
  expect_as_alone(engine, other, repetitive());
  if (config().speculation.drafter != DrafterKind::kNone) {
    EXPECT_GT(engine->statistics().drafts_accepted, 0);
  }
}

SLACKWATER_WITH_EVERY_SETTING(EngineEndingsSlow);

// The text that comes out piece by piece is certain when it comes.
TEST(EngineEndingsText, ComesInPiecesThatAddUp) {
  DemoEngine engine(roomy());
  GenerationRequest request = warm_request(4, 40);
  std::vector<std::string> pieces;
  std::int64_t outputs = 0;
  request.on_output = [&](const RequestOutput& output) {
    pieces.push_back(output.text);
    ++outputs;
  };
  ASSERT_TRUE(engine->submit(request).has_value());
  engine.run();
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  EXPECT_EQ(text, alone(request).text);
  EXPECT_GT(outputs, 10);
}

// The demo model, said to be good for short sequences only.
class ShortModel final : public LanguageModel {
 public:
  ShortModel(std::unique_ptr<LanguageModel> model, std::int32_t max_length)
      : model_(std::move(model)), config_(model_->config()) {
    config_.max_length = max_length;
  }
  const model::ModelConfig& config() const override { return config_; }
  Digest128 digest() const override { return model_->digest(); }
  void reserve(model::ForwardPass::Limits limits) override { model_->reserve(limits); }
  void run(const model::ForwardBatch& batch, std::span<float> logits) override {
    model_->run(batch, logits);
  }
  const float* hidden() const override { return model_->hidden(); }
  const float* first_hidden() const override { return model_->first_hidden(); }
  void run_mtp(const model::MtpBatch& batch, std::span<float> logits) override {
    model_->run_mtp(batch, logits);
  }
  const float* mtp_hidden() const override { return model_->mtp_hidden(); }

 private:
  std::unique_ptr<LanguageModel> model_;
  model::ModelConfig config_;
};

// A sequence of the model's longest ends there, whatever was asked for.
TEST(EngineEndingsText, TheModelsLongestSequenceIsAnEnd) {
  constexpr std::int32_t kLongest = 60;
  DemoModels& demo = DemoModels::get();
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = roomy();
    config.loop = setting.loop;
    config.speculation.drafter = setting.drafter;
    const auto device = device::make_cpu_device();
    ShortModel model(make_language_model(demo.model, demo.context), kLongest);
    const auto draft = make_language_model(demo.draft, demo.context);
    auto made =
        Engine::create({device.get(), &demo.context, &model, draft.get(), &demo.tokenizer}, config);
    ASSERT_TRUE(made.has_value()) << made.error().text();
    GenerationRequest request;
    request.prompt_tokens = long_prompt(41);
    request.max_tokens = 500;
    request.ignore_eos = true;
    std::vector<TokenId> said;
    std::optional<FinishReason> reason;
    request.on_output = [&](const RequestOutput& output) {
      for (const OutputToken& token : output.tokens) said.push_back(token.token);
      reason = output.finish_reason;
    };
    ASSERT_TRUE((*made)->submit(request).has_value());
    ASSERT_TRUE((*made)->run().has_value());
    EXPECT_EQ(reason, FinishReason::kLength);
    GenerationRequest shorter = request;
    shorter.max_tokens = kLongest - 41;
    EXPECT_EQ(said, alone(shorter).tokens);
  }
}

// How long drafts are follows what is accepted: down to none where nothing is, and back.
TEST(EngineDraftLengthSlow, GoesDownToNoneAndComesBack) {
  for (const LoopKind loop : {LoopKind::kPlain, LoopKind::kOverlap}) {
    EngineConfig config = roomy();
    config.loop = loop;
    config.speculation.drafter = DrafterKind::kNgram;
    config.speculation.ngram_min = 1;
    DemoEngine engine(config);
    // At such a temperature nothing that was said before comes again.
    GenerationRequest request = demo_request(3, 400);
    request.ignore_eos = true;
    request.sampling.temperature = 3;
    const RequestId id = engine.ask(request);
    std::int32_t least = 99;
    std::int32_t most_after = 0;
    bool goes_on = true;
    while (goes_on) {
      for (const RequestView& view : engine->view()) {
        least = std::min(least, view.draft_length);
        if (least == 0) most_after = std::max(most_after, view.draft_length);
      }
      const Result<bool> stepped = engine->step();
      ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
      goes_on = *stepped;
    }
    EXPECT_EQ(least, 0);
    EXPECT_GT(most_after, 0) << "a draft is tried again now and then";
    expect_as_alone(engine, id, request);
  }
}

}  // namespace
}  // namespace slackwater::engine
