// Pools that are too small: who makes room loses time, and nothing else.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

using testing::HasSubstr;

class EnginePressureSlow : public EverySetting {
 protected:
  static EngineConfig tight() {
    EngineConfig config = EverySetting::config();
    config.pools.num_slots = 3;
    config.pools.num_blocks = 8;
    return config;
  }
};

std::int64_t num_tokens_of(DemoEngine& engine) {
  std::int64_t sum = 0;
  for (const auto& [id, answer] : engine.answers()) sum += std::ssize(answer.tokens);
  return sum;
}

// A step that has to succeed; whether there is more to do.
bool step(DemoEngine& engine) {
  const Result<bool> stepped = engine->step();
  EXPECT_TRUE(stepped.has_value()) << stepped.error().text();
  return stepped.value_or(false);
}

TEST_P(EnginePressureSlow, WithoutAHostTierOthersAreComputedAgainAndNothingIsSampledTwice) {
  EngineConfig config = tight();
  config.pools.host_bytes = 0;
  config.pools.num_blocks = 5;
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 7; ++i) {
    GenerationRequest request = warm_request(i, 44);
    request.ignore_eos = true;
    asked.emplace_back(engine.ask(request), request);
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  const EngineStatistics statistics = engine->statistics();
  EXPECT_GT(statistics.recomputes, 0);
  EXPECT_GT(statistics.recomputed_tokens, 0);
  EXPECT_EQ(statistics.suspends, 0);
  EXPECT_EQ(statistics.generated_tokens, num_tokens_of(engine));
  expect_nothing_left(*engine);
}

// Beside the pressure somebody is sent away in every step, and one after the other stays away until
// somebody else has his slot.
void expect_everybody_comes_back(const EngineConfig& config) {
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 6; ++i) {
    GenerationRequest request = warm_request(i, 36);
    request.ignore_eos = true;
    asked.emplace_back(engine.ask(request), request);
  }
  std::size_t turn = 0;
  RequestId away = asked[0].first;
  do {
    engine->suspend(asked[turn % asked.size()].first);
    if (turn % 8 == 3) {
      away = asked[turn / 8 % asked.size()].first;
      engine->hold(away, HoldPolicy::kSuspend);
    }
    if (turn % 8 == 7) engine->release(away);
    ++turn;
  } while (step(engine));
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  const EngineStatistics statistics = engine->statistics();
  EXPECT_GT(statistics.hybrid.resumes_in_old_slot, 0);
  EXPECT_GT(statistics.hybrid.resumes_in_new_slot, 0);
  EXPECT_EQ(statistics.losses, 0);
  const bool tells_late =
      config.loop == LoopKind::kOverlap && (config.speculation.drafter == DrafterKind::kNgram ||
                                            config.speculation.drafter == DrafterKind::kDraftModel);
  if (tells_late) {
    EXPECT_GT(statistics.hybrid.late_acceptances, 0);
  }
  if (config.loop == LoopKind::kOverlap) {
    EXPECT_GT(statistics.suspends_in_flight, 0);
  }
  expect_nothing_left(*engine);
}

TEST_P(EnginePressureSlow, SuspendedRequestsComeBackInOldAndInNewSlots) {
  EngineConfig config = tight();
  expect_everybody_comes_back(config);
  config.suspend_policy = hybrid::SuspendPolicy::kCommitIfKnown;
  config.placement = hybrid::ReplayPlacement::kBesidePool;
  expect_everybody_comes_back(config);
}

TEST_P(EnginePressureSlow, AHostThatGuaranteesEverySuspendChangesNothing) {
  EngineConfig config = tight();
  config.pools.guarantee_suspend = true;
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 0; i < 6; ++i) {
    asked.emplace_back(engine.ask(warm_request(i, 40)), warm_request(i, 40));
  }
  engine.run();
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

// Held in each state there is, one step later than the time before, and released a little later.
TEST_P(EnginePressureSlow, HeldAtAnyMomentARequestGoesOnAsIfNothingHadBeen) {
  for (const HoldPolicy policy : {HoldPolicy::kSuspend, HoldPolicy::kRecompute}) {
    EngineConfig config = tight();
    config.scheduler.max_num_tokens = 32;
    DemoEngine engine(config);
    GenerationRequest request;
    request.prompt_tokens = long_prompt(80, 2);
    request.max_tokens = 14;
    request.ignore_eos = true;
    std::vector<RequestId> asked;
    for (int moment = 0; moment < 14; ++moment) {
      request.scope.salt = moment;
      const RequestId id = engine.ask(request);
      asked.push_back(id);
      const RequestId other = engine.ask(warm_request(1, 6));
      for (int i = 0; i < moment; ++i) step(engine);
      engine->hold(id, policy);
      for (int i = 0; i < 3; ++i) step(engine);
      const auto views = engine->view();
      const auto at = std::ranges::find(views, id, &RequestView::request);
      if (at != views.end()) {
        EXPECT_TRUE(at->is_held);
        EXPECT_FALSE(at->is_in_flight);
        EXPECT_TRUE(at->state == RequestState::kSuspended || at->state == RequestState::kWaiting);
      }
      engine->release(id);
      engine.run();
      EXPECT_TRUE(engine.answer(other).finish_reason.has_value());
    }
    const SoloAnswer expected = alone(request);
    for (const RequestId id : asked) EXPECT_EQ(engine.answer(id).tokens, expected.tokens);
    expect_nothing_left(*engine);
  }
}

// Whoever is held may have what the others need, and gives it up then.
TEST_P(EnginePressureSlow, HeldRequestsStandInNobodysWay) {
  EngineConfig config = tight();
  config.pools.num_slots = 2;
  // Room on the host for a few pages only.
  config.pools.host_bytes = 2 << 20;
  DemoEngine engine(config);
  std::vector<std::pair<RequestId, GenerationRequest>> held;
  for (std::size_t i = 0; i < 2; ++i) {
    GenerationRequest request = warm_request(i, 20);
    request.ignore_eos = true;
    held.emplace_back(engine.ask(request), request);
  }
  for (int i = 0; i < 5; ++i) step(engine);
  for (const auto& [id, request] : held) engine->hold(id, HoldPolicy::kSuspend);
  std::vector<std::pair<RequestId, GenerationRequest>> asked;
  for (std::size_t i = 2; i < 6; ++i) {
    asked.emplace_back(engine.ask(warm_request(i, 20)), warm_request(i, 20));
  }
  for (int i = 0; i < 400; ++i) {
    step(engine);
    if (std::ranges::all_of(asked, [&](const auto& request) {
          return engine.answer(request.first).finish_reason.has_value();
        })) {
      break;
    }
  }
  for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
  for (const auto& [id, request] : held) engine->release(id);
  engine.run();
  for (const auto& [id, request] : held) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

// Whoever is refused has not so much as a match: it would be in the way of who runs.
TEST_P(EnginePressureSlow, WhoWaitsHoldsNothing) {
  EngineConfig config = tight();
  config.pools.num_slots = 1;
  config.enable_block_reuse = false;
  DemoEngine engine(config);
  const RequestId first = engine.ask(warm_request(3, 20));
  step(engine);
  const RequestId second = engine.ask(warm_request(5, 6));
  for (int i = 0; i < 6; ++i) {
    step(engine);
    if (engine.answer(first).finish_reason.has_value()) break;
    EXPECT_FALSE(engine->state().has_request(second));
  }
  engine.run();
  expect_as_alone(engine, second, warm_request(5, 6));
}

// The older of two equal requests is never behind the younger.
TEST_P(EnginePressureSlow, OfEqualRequestsTheOldestFinishesFirst) {
  EngineConfig config = tight();
  config.pools.num_slots = 2;
  config.speculation.adapt_length = false;
  DemoEngine engine(config);
  std::vector<RequestId> finished;
  std::vector<RequestId> asked;
  for (std::size_t i = 0; i < 12; ++i) {
    GenerationRequest request = warm_request(0, 24);
    request.ignore_eos = true;
    request.on_output = [&](const RequestOutput& output) {
      if (output.finish_reason.has_value()) finished.push_back(output.request);
    };
    const Result<RequestId> id = engine->submit(request);
    ASSERT_TRUE(id.has_value());
    asked.push_back(*id);
  }
  engine.run();
  EXPECT_EQ(finished, asked);
}

SLACKWATER_WITH_EVERY_SETTING(EnginePressureSlow);

TEST(EngineProgressSlow, SixtyFourRequestsShareTwoSlots) {
  for (const std::int64_t host_bytes : {std::int64_t{0}, std::int64_t{64} << 20}) {
    EngineConfig config = roomy();
    config.loop = LoopKind::kOverlap;
    config.speculation.drafter = DrafterKind::kMtp;
    config.pools.num_slots = 2;
    config.pools.num_blocks = 6;
    config.pools.host_bytes = host_bytes;
    DemoEngine engine(config);
    for (std::size_t i = 0; i < 64; ++i) engine.ask(warm_request(i % 8, 10));
    engine.run();
    EXPECT_EQ(engine.count_differences(), 0);
    EXPECT_EQ(engine->statistics().finished, 64);
    expect_nothing_left(*engine);
  }
}

// Without any way to make room two requests can wait for each other.
TEST(EngineProgressSlow, WhenItIsStuckItSaysWhatHelps) {
  EngineConfig config = roomy();
  config.pools.host_bytes = 0;
  config.pools.num_slots = 2;
  config.pools.num_blocks = 3;
  config.scheduler.enable_recompute_pause = false;
  config.scheduler.max_idle_passes = 5;
  DemoEngine engine(config);
  for (std::size_t i = 0; i < 2; ++i) {
    GenerationRequest request;
    request.prompt_tokens = long_prompt(50, i);
    request.max_tokens = 40;
    request.ignore_eos = true;
    engine.ask(request);
  }
  std::string said;
  for (int i = 0; i < 200 && said.empty(); ++i) {
    const Result<bool> stepped = engine->step();
    if (!stepped.has_value()) said = stepped.error().text();
  }
  EXPECT_THAT(said, HasSubstr("stuck: none of 2 requests could be scheduled in 5 passes in a row, "
                              "request 1 waits longest"));
  EXPECT_THAT(said, HasSubstr("give the host tier more bytes"));
}

// KB-C15-05 with other numbers: given up in the middle of being computed again, and once more.
TEST(EngineRecomputeSlow, InTheMiddleOfChunksAndAfterSeveralLivesNoTokenIsLost) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = roomy();
    config.loop = setting.loop;
    config.speculation.drafter = setting.drafter;
    config.scheduler.max_num_tokens = 32;
    config.enable_block_reuse = false;
    DemoEngine engine(config);
    GenerationRequest request;
    request.prompt_tokens = long_prompt(70, 6);
    request.max_tokens = 16;
    request.ignore_eos = true;
    const RequestId id = engine.ask(request);
    while (engine.answer(id).tokens.size() < 5) step(engine);
    std::vector<TokenId> told = engine.answer(id).tokens;
    for (int life = 0; life < 4; ++life) {
      engine->hold(id, HoldPolicy::kRecompute);
      step(engine);
      step(engine);
      engine->release(id);
      // Two of three chunks, and it has to give up again.
      step(engine);
      step(engine);
      const std::vector<TokenId>& now = engine.answer(id).tokens;
      ASSERT_GE(now.size(), told.size());
      EXPECT_TRUE(std::equal(told.begin(), told.end(), now.begin()));
      told = now;
    }
    engine.run();
    EXPECT_GE(engine->statistics().recomputes, 4);
    EXPECT_EQ(engine->statistics().generated_tokens, 16);
    expect_as_alone(engine, id, request);
    expect_nothing_left(*engine);
  }
}

}  // namespace
}  // namespace slackwater::engine
