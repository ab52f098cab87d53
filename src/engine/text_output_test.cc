#include "engine/text_output.h"

#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/model/generate.h"

namespace slackwater::engine {
namespace {

constexpr TokenId kEos = 2049;  // any special token

std::filesystem::path demo_directory() {
  return std::filesystem::path(SLACKWATER_SOURCE_DIR) / "models/demo";
}

const model::Tokenizer& tokenizer() {
  static const model::Tokenizer demo = *model::Tokenizer::load(demo_directory(), 2064);
  return demo;
}

std::vector<TokenId> tokens_of(std::string_view text) { return *tokenizer().encode(text); }

TextOutput output_with(std::vector<std::string> stop) {
  return TextOutput(&tokenizer(), std::move(stop), std::vector<TokenId>{kEos}, {}, false);
}

// What came out, and after how many tokens the answer was over.
struct Outcome {
  std::string text;
  std::int64_t num_tokens = 0;
  bool finished = false;
};

Outcome push_all(TextOutput& output, const std::vector<TokenId>& tokens) {
  Outcome outcome;
  for (const TokenId token : tokens) {
    TextOutput::Step step = output.push(token);
    outcome.text += step.text;
    ++outcome.num_tokens;
    outcome.finished = step.finished;
    EXPECT_EQ(output.is_finished(), step.finished);
    if (step.finished) return outcome;
  }
  const TextOutput::Step rest = output.finish();
  outcome.text += rest.text;
  outcome.finished = rest.finished;
  return outcome;
}

TEST(TextOutput, GivesTheTextOfItsTokens) {
  TextOutput output = output_with({});
  const Outcome outcome = push_all(output, tokens_of("In the beginning \xE2\x82\xAC"));
  EXPECT_EQ(outcome.text, "In the beginning \xE2\x82\xAC");
  EXPECT_FALSE(outcome.finished);
}

TEST(TextOutput, AnEndTokenCountsAndAddsNoText) {
  std::vector<TokenId> tokens = tokens_of("light");
  const std::int64_t num_text = std::ssize(tokens);
  tokens.push_back(kEos);
  tokens.push_back(tokens[0]);
  TextOutput output = output_with({});
  const Outcome outcome = push_all(output, tokens);
  EXPECT_EQ(outcome.text, "light");
  EXPECT_EQ(outcome.num_tokens, num_text + 1);
  EXPECT_TRUE(outcome.finished);
}

TEST(TextOutput, WhatIsHeldBackComesWithTheEnd) {
  // "li" may still become "lights".
  TextOutput output = output_with({"lights"});
  std::string text;
  for (const TokenId token : tokens_of("the li")) text += output.push(token).text;
  EXPECT_EQ(text, "the ");
  const TextOutput::Step end = output.push(kEos);
  EXPECT_EQ(end.text, "li");
  EXPECT_TRUE(end.finished);

  TextOutput without_end = output_with({"lights"});
  EXPECT_EQ(push_all(without_end, tokens_of("the li")).text, "the li");
}

TEST(TextOutput, AStopTextEndsTheTextBeforeItself) {
  TextOutput output = output_with({"night"});
  std::vector<TokenId> tokens = tokens_of("day and ni");
  for (const TokenId token : tokens_of("ght and day")) tokens.push_back(token);
  const Outcome outcome = push_all(output, tokens);
  EXPECT_EQ(outcome.text, "day and ");
  EXPECT_TRUE(outcome.finished);
  EXPECT_LT(outcome.num_tokens, std::ssize(tokens));
  EXPECT_EQ(output.finish().text, "");
  EXPECT_TRUE(output.finish().finished);
}

TEST(TextOutput, AnIncompleteCharacterAtTheEndMayCompleteAStopText) {
  std::vector<TokenId> tokens = tokens_of("a");
  for (const TokenId token : tokens_of("\xE2")) tokens.push_back(token);
  TextOutput output = output_with({"\xEF\xBF\xBD"});
  const Outcome outcome = push_all(output, tokens);
  EXPECT_EQ(outcome.text, "a");
  EXPECT_TRUE(outcome.finished);
  TextOutput other = output_with({});
  EXPECT_EQ(push_all(other, tokens).text, "a\xEF\xBF\xBD");
  EXPECT_FALSE(other.is_finished());
}

TEST(TextOutput, StopTokensEndBesideTheModelsOwn) {
  const std::vector<TokenId> tokens = {300, kEos, 301, 302};
  const std::vector<TokenId> eos = {kEos};
  const std::vector<TokenId> stops = {301};
  const auto num_pushed = [&](std::span<const TokenId> stop_ids, bool ignore_eos) {
    TextOutput output(&tokenizer(), {}, eos, stop_ids, ignore_eos);
    return push_all(output, tokens).num_tokens;
  };
  EXPECT_EQ(num_pushed({}, false), 2);
  EXPECT_EQ(num_pushed({}, true), 4);
  EXPECT_EQ(num_pushed(stops, true), 3);
  EXPECT_EQ(num_pushed(stops, false), 2);
  // Who asks for the model's own gets it.
  EXPECT_EQ(num_pushed(eos, true), 2);
}

TEST(TextOutput, AnEndTokenThatIsIgnoredAddsNoText) {
  TextOutput output(&tokenizer(), {}, std::vector<TokenId>{kEos}, {}, true);
  std::vector<TokenId> tokens = tokens_of("light");
  tokens.insert(tokens.begin() + 1, kEos);
  EXPECT_EQ(push_all(output, tokens).text, "light");
}

TEST(TextOutput, WithoutATokenizerOnlyTokensStop) {
  TextOutput output(nullptr, {}, std::vector<TokenId>{7}, std::vector<TokenId>{8}, false);
  EXPECT_EQ(output.push(5).text, "");
  EXPECT_FALSE(output.is_finished());
  const TextOutput::Step end = output.push(8);
  EXPECT_EQ(end.text, "");
  EXPECT_TRUE(end.finished);
  TextOutput open(nullptr, {}, std::vector<TokenId>{7}, {}, false);
  EXPECT_FALSE(open.push(8).finished);
  EXPECT_FALSE(open.finish().finished);
}

TEST(TextOutput, EqualsTheSoloLoop) {
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  const auto demo = model::Model::load(demo_directory(), context, {});
  ASSERT_TRUE(demo.has_value()) << demo.error().text();
  int num_stopped = 0;
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    SCOPED_TRACE(seed);
    const auto prompt = *model::encode_prompt(demo->config(), tokenizer(), "And it came to pass");
    model::GenerateOptions options;
    options.max_tokens = 24;
    options.sampling.temperature = 1.2f;
    options.sampling.seed = seed;
    options.stop =
        seed % 2 == 0 ? std::vector<std::string>{"the ", "of"} : std::vector<std::string>{"\n"};
    const auto solo = model::generate_solo(*demo, tokenizer(), context, prompt, options);
    ASSERT_TRUE(solo.has_value()) << solo.error().text();
    TextOutput output(&tokenizer(), options.stop, demo->config().eos_ids, {}, false);
    const Outcome outcome = push_all(output, solo->tokens);
    EXPECT_EQ(outcome.text, solo->text);
    EXPECT_EQ(outcome.num_tokens, std::ssize(solo->tokens));
    EXPECT_EQ(outcome.finished, solo->finish_reason == model::FinishReason::kStop);
    num_stopped += outcome.finished ? 1 : 0;
  }
  EXPECT_GT(num_stopped, 4);
  EXPECT_LT(num_stopped, 24);
}

TEST(TextOutputDeathTest, WhatCannotBeIsABug) {
  EXPECT_DEATH(TextOutput(nullptr, {"a"}, {}, {}, false), "1 stop texts without a tokenizer");
  TextOutput output(nullptr, {}, std::vector<TokenId>{7}, {}, false);
  output.push(7);
  EXPECT_DEATH(output.push(8), "token 8 after the end");
}

}  // namespace
}  // namespace slackwater::engine
