// What a request asks of sampling holds for it alone, whoever it shares a step with, and whatever
// is drafted.

#include <cmath>
#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::engine {
namespace {

class EngineSamplingSlow : public EverySetting {};

std::vector<GenerationRequest> requests_of_all_kinds(float temperature) {
  std::vector<GenerationRequest> all;
  for (std::size_t i = 0; i < 9; ++i) {
    GenerationRequest request = demo_request(i, 24);
    request.sampling.temperature = temperature;
    request.sampling.seed = 100 + i;
    all.push_back(request);
  }
  all[0].sampling.frequency_penalty = 0.7F;
  all[1].sampling.presence_penalty = 1.1F;
  all[2].sampling.frequency_penalty = -0.4F;
  all[2].sampling.presence_penalty = 0.3F;
  const TokenId favoured = all[3].prompt_tokens[2];
  all[3].logit_bias = {{favoured, 3.0F}, {all[3].prompt_tokens[1], -HUGE_VALF}};
  all[4].sampling.min_p = 0.2F;
  all[5].sampling.top_k = 7;
  all[5].sampling.top_p = 0.8F;
  all[6].wants_logprobs = true;
  all[7].num_top_logprobs = 3;
  all[7].sampling.frequency_penalty = 0.5F;
  all[8].num_choices = 3;
  all[8].sampling.presence_penalty = 0.5F;
  // The same token again and again, until it has been counted often enough: the very last one too.
  all.push_back(demo_request(4, 24));
  all[9].sampling.temperature = temperature;
  all[9].sampling.frequency_penalty = 1.7F;
  all[9].logit_bias = {{favoured, 14.0F}, {favoured + 1, 13.0F}};
  return all;
}

TEST_P(EngineSamplingSlow, EachRequestGetsWhatItAskedFor) {
  for (const float temperature : {0.0F, 0.8F}) {
    DemoEngine engine(config());
    std::vector<std::pair<RequestId, GenerationRequest>> asked;
    for (const GenerationRequest& request : requests_of_all_kinds(temperature)) {
      asked.emplace_back(engine.ask(request), request);
    }
    engine.run();
    for (const auto& [id, request] : asked) {
      for (std::int32_t choice = 0; choice < request.num_choices; ++choice) {
        expect_as_alone(engine, id, request, choice);
      }
    }
    expect_nothing_left(*engine);
  }
}

TEST_P(EngineSamplingSlow, TheBestLogprobsAreThoseOfEachToken) {
  DemoEngine engine(config());
  GenerationRequest request = warm_request(3, 20);
  request.num_top_logprobs = 4;
  std::vector<std::vector<TokenId>> best;
  std::vector<float> logprobs;
  request.on_output = [&](const RequestOutput& output) {
    for (const OutputToken& token : output.tokens) {
      std::vector<TokenId>& tokens = best.emplace_back();
      for (const kernels::TokenLogprob& top : token.top_logprobs) tokens.push_back(top.token);
      logprobs.push_back(token.logprob);
    }
  };
  ASSERT_TRUE(engine->submit(request).has_value());
  engine.run();
  const SoloAnswer expected = alone(request);
  EXPECT_EQ(best, expected.top_tokens);
  EXPECT_EQ(logprobs, expected.logprobs);
}

// A step may have run before the host has looked at the one ahead of it: what is counted must not
// depend on that.
TEST_P(EngineSamplingSlow, CountsAreThoseOfTheTokensBeforeWhoeverIsFaster) {
  const GenerationRequest request = requests_of_all_kinds(0).back();
  const SoloAnswer expected = alone(request);
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    device::SimOptions options;
    options.seed = seed;
    device::SimDevice device(options);
    DemoEngine engine(config(), &device);
    const RequestId id = engine.ask(request);
    engine.run();
    EXPECT_EQ(engine.answer(id).tokens, expected.tokens);
  }
}

// What is counted is what was generated, in this life or an earlier one: nothing is counted twice.
TEST_P(EngineSamplingSlow, PenaltiesSurviveARecompute) {
  DemoEngine engine(config());
  GenerationRequest request = demo_request(3, 30);
  request.sampling.frequency_penalty = 0.6F;
  request.ignore_eos = true;
  const RequestId id = engine.ask(request);
  for (int i = 0; i < 60; ++i) {
    if (i % 7 == 3) engine->hold(id, HoldPolicy::kRecompute);
    if (i % 7 == 5) engine->release(id);
    const Result<bool> stepped = engine->step();
    ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
  }
  engine->release(id);
  engine.run();
  EXPECT_GT(engine->statistics().recomputes, 1);
  expect_as_alone(engine, id, request);
}

SLACKWATER_WITH_EVERY_SETTING(EngineSamplingSlow);

// The oracle of these tests agrees with the library's.
TEST(EngineSamplingOracle, IsTheSoloLoop) {
  for (std::size_t i = 0; i < 4; ++i) {
    GenerationRequest request = warm_request(i, 20);
    request.sampling.frequency_penalty = 0.3F;
    const model::GenerateResult solo = DemoEngine::answer_alone(request);
    const SoloAnswer mine = alone(request);
    EXPECT_EQ(mine.tokens, solo.tokens);
    EXPECT_EQ(mine.text, solo.text);
    EXPECT_EQ(to_string(mine.finish_reason), to_string(solo.finish_reason));
  }
}

}  // namespace
}  // namespace slackwater::engine
