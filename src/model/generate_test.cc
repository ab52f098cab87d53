// The solo loop on the demo model: golden tokens, sampling, stops and refusals.

#include "slackwater/model/generate.h"

#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/forward_test_support.h"

namespace slackwater::model {
namespace {

using ::testing::HasSubstr;

// The demo model, loaded once for all tests of this file.
struct Demo {
  Demo() : pool(1), context(pool), model(load_model(source_path("models/demo"), context)) {}

  static Demo& get() {
    static Demo demo;
    return demo;
  }

  Result<GenerateResult> generate(std::string_view prompt, const GenerateOptions& options) {
    const auto tokens = encode_prompt(model.config(), tokenizer, prompt);
    return generate_solo(model, tokenizer, context, *tokens, options);
  }

  ThreadPool pool;
  kernels::ExecutionContext context;
  Model model;
  Tokenizer tokenizer = *Tokenizer::load(source_path("models/demo"), model.config().vocab_size);
};

nlohmann::json golden_cases(const std::string& name = "demo.json") {
  std::ifstream file(source_path("tests/golden/" + name));
  return nlohmann::json::parse(file)["cases"];
}

TEST(GenerateGolden, EveryCaseGivesItsPromptTokensItsTokensAndItsText) {
  Demo& demo = Demo::get();
  int num_cases = 0;
  for (const nlohmann::json& golden : golden_cases()) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto prompt = golden["prompt"].get<std::string>();
    const auto prompt_tokens = encode_prompt(demo.model.config(), demo.tokenizer, prompt);
    ASSERT_TRUE(prompt_tokens.has_value());
    EXPECT_EQ(*prompt_tokens, golden["prompt_tokens"].get<std::vector<TokenId>>());
    const auto tokens = golden["tokens"].get<std::vector<TokenId>>();
    const auto result =
        demo.generate(prompt, {.max_tokens = static_cast<std::int32_t>(tokens.size())});
    ASSERT_TRUE(result.has_value()) << result.error().text();
    EXPECT_EQ(result->tokens, tokens);
    EXPECT_EQ(result->text, golden["text"].get<std::string>());
    EXPECT_EQ(result->finish_reason, FinishReason::kLength);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 10);
}

TEST(GenerateGolden, LogitsAlongTheWayAgreeWithin1e4) {
  Demo& demo = Demo::get();
  std::int64_t num_compared = 0;
  for (const nlohmann::json& golden : golden_cases()) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    auto tokens = golden["prompt_tokens"].get<std::vector<TokenId>>();
    const auto answer = golden["tokens"].get<std::vector<TokenId>>();
    tokens.insert(tokens.end(), answer.begin(), answer.end());
    const std::int64_t length = std::ssize(tokens);
    PoisonedPages pages(demo.model.config(), {.length = length});
    SequenceRunner runner(demo.model, demo.context, pages, {tokens});
    runner.run_alone(0, {static_cast<std::int32_t>(length)});
    for (const nlohmann::json& at : golden["logits"]) {
      const auto first = at["position"].get<std::size_t>() *
                         static_cast<std::size_t>(demo.model.config().vocab_size);
      for (const nlohmann::json& pair : at["top"]) {
        EXPECT_NEAR(runner.logits(0)[first + pair[0].get<std::size_t>()], pair[1].get<double>(),
                    1e-4);
        ++num_compared;
      }
    }
  }
  EXPECT_GE(num_compared, 80);
}

// All its layers are dense: num_experts is 0.
TEST(GenerateGolden, TheDraftModelGivesItsTokens) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  const Model model = load_model(source_path("models/demo-draft"), context);
  const Tokenizer& tokenizer = Demo::get().tokenizer;
  int num_cases = 0;
  for (const nlohmann::json& golden : golden_cases("demo_draft.json")) {
    SCOPED_TRACE(golden["name"].get<std::string>());
    const auto prompt = golden["prompt_tokens"].get<std::vector<TokenId>>();
    const auto tokens = golden["tokens"].get<std::vector<TokenId>>();
    const auto result = generate_solo(model, tokenizer, context, prompt,
                                      {.max_tokens = static_cast<std::int32_t>(tokens.size())});
    ASSERT_TRUE(result.has_value()) << result.error().text();
    EXPECT_EQ(result->tokens, tokens);
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 10);
}

TEST(Generate, ChunksChangeNothing) {
  Demo& demo = Demo::get();
  const std::string prompt = "In the beginning God created the heaven and the earth.";
  GenerateOptions options{.max_tokens = 24};
  options.sampling = {.temperature = 0.9f, .top_p = 0.95f, .seed = 5};
  const auto whole = demo.generate(prompt, options);
  ASSERT_TRUE(whole.has_value());
  for (const std::int32_t chunk : {1, 3, 16}) {
    options.chunk = chunk;
    EXPECT_EQ(demo.generate(prompt, options)->tokens, whole->tokens) << chunk;
  }
}

TEST(Generate, TheSameSeedGivesTheSameTokensAndAnotherGivesOthers) {
  Demo& demo = Demo::get();
  GenerateOptions options{.max_tokens = 32};
  options.sampling = {.temperature = 1.0f, .seed = 1};
  const auto first = demo.generate("lighthouse (noun):", options);
  EXPECT_EQ(demo.generate("lighthouse (noun):", options)->tokens, first->tokens);
  options.sampling.seed = 2;
  EXPECT_NE(demo.generate("lighthouse (noun):", options)->tokens, first->tokens);
}

// The oracle's own noise: token i of an answer is what kernels::sample gives for the logits of
// its position, at that position, and nothing else.
TEST(Generate, ATokenIsSampledAtItsPositionInTheSequence) {
  Demo& demo = Demo::get();
  GenerateOptions options{.max_tokens = 24};
  options.sampling = {.temperature = 1.0f, .seed = 11};
  const auto prompt = *encode_prompt(demo.model.config(), demo.tokenizer, "lighthouse (noun):");
  const auto result = *generate_solo(demo.model, demo.tokenizer, demo.context, prompt, options);
  ASSERT_EQ(result.tokens.size(), 24u);

  std::vector<TokenId> tokens = prompt;
  tokens.insert(tokens.end(), result.tokens.begin(), result.tokens.end());
  PoisonedPages pages(demo.model.config(), {.length = std::ssize(tokens)});
  SequenceRunner runner(demo.model, demo.context, pages, {tokens});
  runner.run_alone(0, {static_cast<std::int32_t>(tokens.size())});
  for (std::size_t i = prompt.size(); i < tokens.size(); ++i) {
    kernels::SampleRow row;
    row.logits = runner.logits(0).data() +
                 (i - 1) * static_cast<std::size_t>(demo.model.config().vocab_size);
    row.parameters = options.sampling;
    row.position = static_cast<std::int64_t>(i);
    Result<kernels::SampleResult> sampled;
    kernels::SampleArgs args;
    args.vocabulary = demo.model.config().vocab_size;
    args.rows = std::span(&row, 1);
    args.results = std::span(&sampled, 1);
    kernels::sample(demo.context, args);
    EXPECT_EQ(sampled->token, tokens[i]) << "position " << i;
  }
}

TEST(Generate, PenaltiesCountGeneratedTokensOnly) {
  Demo& demo = Demo::get();
  const std::string text = "the sea and the shore, the sea and the shore";
  GenerateOptions options{.max_tokens = 24};
  options.sampling.presence_penalty = 100.0f;
  const auto result = demo.generate(text, options);
  std::vector<TokenId> tokens = result->tokens;
  std::ranges::sort(tokens);
  EXPECT_EQ(std::ranges::adjacent_find(tokens), tokens.end()) << "a token was generated twice";
  std::vector<TokenId> prompt = *encode_prompt(demo.model.config(), demo.tokenizer, text);
  std::ranges::sort(prompt);
  std::vector<TokenId> repeated;
  std::ranges::set_intersection(tokens, prompt, std::back_inserter(repeated));
  EXPECT_FALSE(repeated.empty()) << "the prompt's tokens were counted too";
}

TEST(Generate, ABiasForbidsTokensAndForcesThem) {
  Demo& demo = Demo::get();
  const std::string prompt = "lighthouse (noun):";
  const auto plain = demo.generate(prompt, {.max_tokens = 16});
  constexpr float kNever = -std::numeric_limits<float>::infinity();
  GenerateOptions options{.max_tokens = 16};
  options.bias = {{plain->tokens[3], kNever}, {plain->tokens[0], kNever}};
  const auto without = demo.generate(prompt, options);
  ASSERT_TRUE(without.has_value()) << without.error().text();
  for (const kernels::TokenBias& forbidden : options.bias) {
    EXPECT_EQ(std::ranges::count(without->tokens, forbidden.token), 0) << forbidden.token;
  }
  EXPECT_EQ(without->tokens.size(), 16u);

  options.bias = {{77, 1000.0f}};
  EXPECT_EQ(demo.generate(prompt, options)->tokens, std::vector<TokenId>(16, 77));
  // A frequency penalty is taken off before, and grows with every one of them.
  options.sampling.frequency_penalty = 300.0f;
  const auto penalised = demo.generate(prompt, options);
  EXPECT_EQ(penalised->tokens[0], 77);
  EXPECT_LE(std::ranges::count(penalised->tokens, 77), 4);
}

TEST(Generate, StopTextEndsTheAnswerAndIsNotPartOfIt) {
  Demo& demo = Demo::get();
  const auto whole = demo.generate("lighthouse (noun):", {.max_tokens = 48});
  const std::string stop = "pinkish or";
  ASSERT_THAT(whole->text, HasSubstr(stop));
  GenerateOptions options{.max_tokens = 48, .stop = {"no such text", stop}};
  const auto result = demo.generate("lighthouse (noun):", options);
  EXPECT_EQ(result->text, whole->text.substr(0, whole->text.find(stop)));
  EXPECT_EQ(result->finish_reason, FinishReason::kStop);
  EXPECT_LT(result->tokens.size(), whole->tokens.size());
}

TEST(Generate, TextArrivesInPiecesThatAddUp) {
  Demo& demo = Demo::get();
  const auto tokens = encode_prompt(demo.model.config(), demo.tokenizer, "wander (verb):");
  std::string streamed;
  int num_pieces = 0;
  GenerateOptions options{.max_tokens = 40};
  options.on_text = [&](std::string_view piece) {
    streamed += piece;
    ++num_pieces;
    return Result<void>();
  };
  const auto result = generate_solo(demo.model, demo.tokenizer, demo.context, *tokens, options);
  EXPECT_EQ(streamed, result->text);
  EXPECT_GT(num_pieces, 10);
}

TEST(Generate, AnErrorOfTheReaderEndsTheGeneration) {
  Demo& demo = Demo::get();
  const auto tokens = encode_prompt(demo.model.config(), demo.tokenizer, "wander (verb):");
  GenerateOptions options{.max_tokens = 40};
  options.on_text = [](std::string_view) -> Result<void> {
    return make_error(ErrorCode::kUnavailable, "the reader went away");
  };
  const auto result = generate_solo(demo.model, demo.tokenizer, demo.context, *tokens, options);
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().text(), "the reader went away");
}

TEST(Generate, NoTokensAreLegal) {
  const auto result = Demo::get().generate("", {.max_tokens = 0});
  ASSERT_TRUE(result.has_value());
  EXPECT_TRUE(result->tokens.empty());
  EXPECT_EQ(result->text, "");
}

void expect_refused(const Result<GenerateResult>& result, ErrorCode code, const std::string& part) {
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), code);
  EXPECT_THAT(result.error().text(), HasSubstr(part));
}

TEST(Generate, RefusesWhatCannotWork) {
  Demo& demo = Demo::get();
  const auto generate = [&](std::vector<TokenId> tokens, const GenerateOptions& options) {
    return generate_solo(demo.model, demo.tokenizer, demo.context, tokens, options);
  };
  expect_refused(generate({}, {}), ErrorCode::kInvalidArgument, "2048");
  expect_refused(generate({2064}, {}), ErrorCode::kOutOfRange, "2064");
  expect_refused(generate({-1}, {}), ErrorCode::kOutOfRange, "-1");
  expect_refused(generate({1}, {.max_tokens = -1}), ErrorCode::kInvalidArgument, "-1");
  expect_refused(generate({1}, {.chunk = 0}), ErrorCode::kInvalidArgument, "chunk 0");
  expect_refused(generate({1}, {.stop = {""}}), ErrorCode::kInvalidArgument, "stop");
  GenerateOptions cold;
  cold.sampling.temperature = -1;
  expect_refused(generate({1}, cold), ErrorCode::kInvalidArgument, "temperature");
  const auto with_bias = [](std::vector<kernels::TokenBias> bias) {
    GenerateOptions options;
    options.bias = std::move(bias);
    return options;
  };
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  expect_refused(generate({1}, with_bias({{5, std::nanf("")}})), ErrorCode::kInvalidArgument,
                 "of token 5; use a finite number");
  expect_refused(generate({1}, with_bias({{6, kInfinity}})), ErrorCode::kInvalidArgument,
                 "bias inf of token 6");
  expect_refused(generate({1}, with_bias({{7, 1}, {4, 1}, {7, 2}})), ErrorCode::kInvalidArgument,
                 "token 7 has two biases");
  expect_refused(generate({1}, with_bias({{2064, 1}})), ErrorCode::kInvalidArgument,
                 "token 2064 has a bias, but the vocabulary has 2064 tokens; use one of 0 to 2063");
  expect_refused(generate({1}, with_bias({{-1, 1}})), ErrorCode::kInvalidArgument, "token -1");
  const std::vector<TokenId> too_long(32768, 1);
  expect_refused(generate(too_long, {}), ErrorCode::kOutOfRange, "32768");
}

}  // namespace
}  // namespace slackwater::model
