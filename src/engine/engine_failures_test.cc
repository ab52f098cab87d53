// Steps and copies that fail cost time: whoever was in them is computed again.

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"
#include "slackwater/device/sim_device.h"
#include "testing/temporary_directory.h"

namespace slackwater::engine {
namespace {

class EngineFailuresSlow : public EverySetting {
 protected:
  static EngineConfig tight() {
    EngineConfig config = EverySetting::config();
    config.pools.num_slots = 3;
    config.pools.num_blocks = 8;
    return config;
  }
};

std::vector<std::pair<RequestId, GenerationRequest>> ask_six(DemoEngine& engine,
                                                             std::int32_t max_tokens = 28) {
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 6; ++i) {
    GenerationRequest request = warm_request(i, max_tokens);
    request.ignore_eos = i % 3 == 0;
    asked.emplace_back(engine.ask(request), request);
  }
  return asked;
}

TEST_P(EngineFailuresSlow, AFailedStepIsComputedAgain) {
  EngineConfig config = tight();
  config.fail_step = [](std::int64_t step) { return step % 9 == 4; };
  DemoEngine engine(config);
  const auto asked = ask_six(engine);
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  const EngineStatistics statistics = engine->statistics();
  EXPECT_GT(statistics.failed_steps, 0);
  EXPECT_GT(statistics.losses, 0);
  std::int64_t told = 0;
  for (const auto& [id, answer] : engine.answers()) told += std::ssize(answer.tokens);
  EXPECT_EQ(statistics.generated_tokens, told);
  expect_nothing_left(*engine);
}

// Whatever a failed step has left in a page is nobody's: not even that of a request which is over.
TEST_P(EngineFailuresSlow, NothingOfAFailedStepIsFoundByOthers) {
  const std::vector<TokenId> free = [] {
    GenerationRequest request = demo_request(3, 40);
    request.ignore_eos = true;
    return alone(request).tokens;
  }();
  for (std::int64_t failing = 2; failing < 14; failing += 3) {
    EngineConfig config = EverySetting::config();
    config.fail_step = [failing](std::int64_t step) { return step == failing; };
    DemoEngine engine(config);
    GenerationRequest request = demo_request(3, 40);
    request.ignore_eos = true;
    request.stop = {*DemoModels::get().tokenizer.decode(std::span(free).subspan(9, 2))};
    const RequestId first = engine.ask(request);
    engine.run();
    expect_as_alone(engine, first, request);
    GenerationRequest next = request;
    next.stop.clear();
    const std::vector<TokenId>& said = engine.answer(first).tokens;
    next.prompt_tokens.insert(next.prompt_tokens.end(), said.begin(), said.end());
    next.max_tokens = 6;
    const RequestId second = engine.ask(next);
    engine.run();
    expect_as_alone(engine, second, next);
    expect_nothing_left(*engine);
  }
}

// The step behind the last one of a request is a part of what it leaves: where that fails, its end
// is not published, and what others find is that of its prompt.
TEST_P(EngineFailuresSlow, AnEndBehindWhichAStepFailsIsNotPublished) {
  const bool runs_ahead =
      GetParam().loop == LoopKind::kOverlap &&
      (GetParam().drafter == DrafterKind::kNone || GetParam().drafter == DrafterKind::kMtp);
  GenerationRequest request = demo_request(3, 90);
  request.ignore_eos = true;
  request.stop_token_ids = {alone(request).tokens[50]};
  const auto prompt_length = std::ssize(request.prompt_tokens);
  std::int64_t failing = -1;
  for (const bool fails : {false, true}) {
    EngineConfig config = EverySetting::config();
    config.fail_step = [&failing](std::int64_t step) { return step == failing; };
    DemoEngine engine(config);
    const RequestId first = engine.ask(request);
    engine.run();
    failing = engine->statistics().steps - 1;
    expect_as_alone(engine, first, request);
    engine->audit();
    GenerationRequest next = request;
    const std::vector<TokenId>& said = engine.answer(first).tokens;
    next.prompt_tokens.insert(next.prompt_tokens.end(), said.begin(), said.end());
    next.max_tokens = 3;
    const RequestId second = engine.ask(next);
    engine.run();
    if (!fails) {
      EXPECT_EQ(engine.answer(second).num_reused, std::ssize(next.prompt_tokens) - 1);
    } else if (runs_ahead) {
      EXPECT_EQ(engine->statistics().failed_steps, 1);
      EXPECT_LT(engine.answer(second).num_reused, prompt_length);
    }
  }
}

// Copies to the host and back that do not arrive, in both placements.
TEST_P(EngineFailuresSlow, ACopyThatDoesNotArriveCostsARecompute) {
  std::int64_t losses = 0;
  for (const hybrid::ReplayPlacement placement :
       {hybrid::ReplayPlacement::kInPool, hybrid::ReplayPlacement::kBesidePool}) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      device::SimOptions options;
      options.seed = seed;
      options.copy_fault = [seed](std::int64_t copy) {
        const std::uint64_t dice = (static_cast<std::uint64_t>(copy) * 2654435761u + seed) >> 7;
        return dice % 5 == 0   ? device::CopyFault::kRefuse
               : dice % 5 == 1 ? device::CopyFault::kTear
               : dice % 5 == 2 ? device::CopyFault::kDelay
                               : device::CopyFault::kNone;
      };
      device::SimDevice device(options);
      EngineConfig config = tight();
      config.placement = placement;
      DemoEngine engine(config, &device);
      const auto asked = ask_six(engine, 20);
      std::size_t turn = 0;
      bool goes_on = true;
      while (goes_on) {
        engine->suspend(asked[turn++ % asked.size()].first);
        const Result<bool> stepped = engine->step();
        ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
        goes_on = *stepped;
      }
      for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
      losses += engine->statistics().losses;
      EXPECT_EQ(engine->statistics().hybrid.certificate_failures, 0);
      engine->audit();
    }
  }
  // Without records beside the pages few copies are made at all.
  if (GetParam().drafter != DrafterKind::kNone) {
    EXPECT_GT(losses, 0);
  }
}

// What is queued runs in the most inconvenient order that is allowed.
TEST_P(EngineFailuresSlow, ADelayedCopyIsWaitedFor) {
  for (std::uint64_t seed = 1; seed <= 2; ++seed) {
    device::SimOptions options;
    options.seed = seed;
    options.copy_fault = [](std::int64_t) { return device::CopyFault::kDelay; };
    device::SimDevice device(options);
    DemoEngine engine(tight(), &device);
    const auto asked = ask_six(engine, 20);
    std::size_t turn = 0;
    bool goes_on = true;
    while (goes_on) {
      if (++turn % 2 == 0) engine->suspend(asked[turn / 2 % asked.size()].first);
      const Result<bool> stepped = engine->step();
      ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
      goes_on = *stepped;
    }
    for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
    EXPECT_EQ(engine->statistics().losses, 0);
    engine->audit();
  }
}

TEST_P(EngineFailuresSlow, ADiskTierBehindASmallHostIsOneMorePlaceToComeBackFrom) {
  const TemporaryDirectory directory;
  EngineConfig config = tight();
  config.pools.host_bytes = 2 << 20;
  config.pools.disk_bytes = 64 << 20;
  config.pools.disk_directory = directory.path();
  DemoEngine engine(config);
  const auto asked = ask_six(engine);
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

SLACKWATER_WITH_EVERY_SETTING(EngineFailuresSlow);

}  // namespace
}  // namespace slackwater::engine
