// What one request leaves for the next: the same prompt again, the next turn of a chat, the other
// choices.

#include <algorithm>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

class EngineReuseSlow : public EverySetting {};

// Fewer than a block of 32 tokens is computed again.
void expect_nearly_all_reused(const Answer& answer, const GenerationRequest& request) {
  EXPECT_GT(answer.num_reused, std::ssize(request.prompt_tokens) - 32);
  EXPECT_LT(answer.num_reused, std::ssize(request.prompt_tokens));
}

TEST_P(EngineReuseSlow, TheSamePromptTwiceComputesLessThanABlockOfIt) {
  DemoEngine engine(config());
  GenerationRequest request;
  request.prompt_tokens = long_prompt(150);
  request.max_tokens = 20;
  const RequestId first = engine.ask(request);
  engine.run();
  request.sampling.temperature = 0.8F;
  request.sampling.seed = 5;
  const RequestId second = engine.ask(request);
  engine.run();
  EXPECT_EQ(engine.answer(first).num_reused, 0);
  expect_nearly_all_reused(engine.answer(second), request);
  EXPECT_EQ(engine.count_differences(), 0);
  expect_nothing_left(*engine);
}

// Turn after turn: prompt, answer, and what is said next. The end of an answer is a place to go on
// from, whether it came from a limit, a stop text or a stop token.
TEST_P(EngineReuseSlow, TheNextTurnOfAChatComputesLessThanABlockOfWhatWasSaid) {
  DemoEngine engine(config());
  GenerationRequest request;
  request.prompt_tokens = long_prompt(70, 1);
  request.max_tokens = 40;
  request.ignore_eos = true;
  RequestId last = engine.ask(request);
  engine.run();
  for (std::size_t turn = 0; turn < 4; ++turn) {
    SCOPED_TRACE(testing::Message() << "turn " << turn);
    std::vector<TokenId> said = request.prompt_tokens;
    const std::vector<TokenId> answer = engine.answer(last).tokens;
    said.insert(said.end(), answer.begin(), answer.end());
    const auto said_before = std::ssize(said);
    const std::vector<TokenId> more = long_prompt(12, turn + 2);
    said.insert(said.end(), more.begin() + 1, more.end());
    request.prompt_tokens = said;
    // What was published is found once the device is done with it.
    engine->audit();
    request.max_tokens = 21 + static_cast<std::int32_t>(turn);
    request.sampling.temperature = turn % 2 == 1 ? 0.8F : 0.0F;
    last = engine.ask(request);
    engine.run();
    EXPECT_GT(engine.answer(last).num_reused, said_before - 32);
    expect_as_alone(engine, last, request);
  }
  EXPECT_EQ(engine->statistics().hybrid.publishes_refused, 0);
  EXPECT_EQ(engine->statistics().hybrid.snapshots_skipped, 0);
  expect_nothing_left(*engine);
}

// A token that ends the answer is never run. Whoever goes on from there gets what it would get
// alone, whatever was queued behind the end.
TEST_P(EngineReuseSlow, AnAnswerThatEndsWithAStopTokenIsGoneOnFrom) {
  DemoEngine engine(config());
  GenerationRequest request;
  request.prompt_tokens = long_prompt(40, 3);
  request.max_tokens = 40;
  request.ignore_eos = true;
  const std::vector<TokenId> free = alone(request).tokens;
  for (const std::size_t at : {7u, 8u, 9u, 10u, 11u, 12u}) {
    SCOPED_TRACE(testing::Message() << "stop at " << at);
    GenerationRequest ended = request;
    ended.stop_token_ids = {free[at]};
    ended.scope.salt = at;
    const RequestId first = engine.ask(ended);
    engine.run();
    expect_as_alone(engine, first, ended);
    engine->audit();
    GenerationRequest next = ended;
    next.stop_token_ids.clear();
    next.prompt_tokens.insert(next.prompt_tokens.end(), engine.answer(first).tokens.begin(),
                              engine.answer(first).tokens.end());
    next.max_tokens = 8;
    const RequestId second = engine.ask(next);
    engine.run();
    expect_nearly_all_reused(engine.answer(second), next);
    expect_as_alone(engine, second, next);
  }
  EXPECT_EQ(engine->statistics().hybrid.publishes_refused, 0);
  expect_nothing_left(*engine);
}

TEST_P(EngineReuseSlow, TheOtherChoicesFindThePromptOfTheFirst) {
  DemoEngine engine(config());
  GenerationRequest request;
  request.prompt_tokens = long_prompt(100, 4);
  request.max_tokens = 12;
  request.num_choices = 4;
  request.sampling.temperature = 0.8F;
  request.sampling.seed = 3;
  const RequestId first = engine.ask(request);
  engine.run();
  EXPECT_EQ(engine.answer(first).num_reused, 0);
  for (std::int32_t choice = 0; choice < 4; ++choice) {
    const RequestId id(first.value() + static_cast<std::uint64_t>(choice));
    if (choice > 0) {
      expect_nearly_all_reused(engine.answer(id), request);
    }
    expect_as_alone(engine, first, request, choice);
  }
  EXPECT_NE(engine.answer(first).tokens, engine.answer(RequestId(first.value() + 1)).tokens);
  expect_nothing_left(*engine);
}

TEST_P(EngineReuseSlow, WithoutItNothingIsFoundAndNothingDiffers) {
  EngineConfig wanted = config();
  wanted.enable_block_reuse = false;
  DemoEngine engine(wanted);
  GenerationRequest request = warm_request(5);
  request.num_choices = 2;
  for (int i = 0; i < 2; ++i) {
    const RequestId id = engine.ask(request);
    engine.run();
    EXPECT_EQ(engine.answer(id).num_reused, 0);
  }
  EXPECT_EQ(engine.count_differences(), 0);
  expect_nothing_left(*engine);
}

SLACKWATER_WITH_EVERY_SETTING(EngineReuseSlow);

}  // namespace
}  // namespace slackwater::engine
