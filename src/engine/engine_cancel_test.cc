// A request is given up at any moment: it says so once, and nothing of it is left.

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

class EngineCancelSlow : public EverySetting {
 protected:
  static EngineConfig tight() {
    EngineConfig config = EverySetting::config();
    config.pools.num_slots = 3;
    config.pools.num_blocks = 10;
    config.scheduler.max_num_tokens = 48;
    return config;
  }
};

void steps(DemoEngine& engine, int count) {
  for (int i = 0; i < count; ++i) {
    const Result<bool> stepped = engine->step();
    ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
  }
}

GenerationRequest long_request(std::size_t salt = 0) {
  GenerationRequest request;
  request.prompt_tokens = long_prompt(90, salt);
  request.max_tokens = 16;
  request.ignore_eos = true;
  return request;
}

// Waiting, computing its prompt, generating, with rows under way or not.
TEST_P(EngineCancelSlow, AtEveryMomentItEndsAndTheOthersGoOn) {
  DemoEngine engine(tight());
  const SoloAnswer whole = alone(long_request());
  for (int moment = 0; moment < 18; ++moment) {
    SCOPED_TRACE(testing::Message() << "after " << moment << " steps");
    const RequestId id = engine.ask(long_request());
    const RequestId other = engine.ask(warm_request(1, 8));
    steps(engine, moment);
    engine->cancel(id);
    engine.run();
    const Answer& answer = engine.answer(id);
    ASSERT_TRUE(answer.finish_reason.has_value());
    if (answer.finish_reason != FinishReason::kLength) {
      EXPECT_EQ(answer.finish_reason, FinishReason::kCancelled);
    }
    // What it has said until then is what it would have said.
    ASSERT_LE(answer.tokens.size(), whole.tokens.size());
    EXPECT_TRUE(std::equal(answer.tokens.begin(), answer.tokens.end(), whole.tokens.begin()));
    expect_as_alone(engine, other, warm_request(1, 8));
    expect_nothing_left(*engine);
  }
  EXPECT_GT(engine->statistics().cancelled, 4);
}

TEST_P(EngineCancelSlow, SuspendedOrHeldOrTwiceOrFinished) {
  DemoEngine engine(tight());
  for (const HoldPolicy policy : {HoldPolicy::kSuspend, HoldPolicy::kRecompute}) {
    for (int moment = 1; moment < 10; moment += 2) {
      const RequestId id = engine.ask(long_request());
      steps(engine, moment);
      engine->hold(id, policy);
      if (moment % 4 == 1) steps(engine, 2);
      engine->cancel(id);
      engine->cancel(id);
      engine.run();
      EXPECT_TRUE(engine.answer(id).finish_reason.has_value());
      engine->cancel(id);
      engine->release(id);
      engine.run();
      expect_nothing_left(*engine);
    }
  }
  const RequestId id = engine.ask(long_request());
  steps(engine, 6);
  engine->suspend(id);
  steps(engine, 1);
  engine->cancel(id);
  engine.run();
  expect_nothing_left(*engine);
  // Unknown ones are nothing to anybody.
  engine->cancel(RequestId(12345));
  engine->suspend(RequestId(12345));
  engine.run();
}

TEST_P(EngineCancelSlow, OfAllChoicesByTheFirstAndOfOneByItsOwn) {
  DemoEngine engine(config());
  GenerationRequest request = warm_request(3, 30);
  request.ignore_eos = true;
  request.num_choices = 3;
  const RequestId all = engine.ask(request);
  steps(engine, 4);
  engine->cancel(RequestId(all.value() + 1));
  engine.run();
  EXPECT_EQ(engine.answer(RequestId(all.value() + 1)).finish_reason, FinishReason::kCancelled);
  expect_as_alone(engine, all, request, 0);
  expect_as_alone(engine, all, request, 2);

  // The first one is over and gone; its id still stands for the others.
  request.stop_token_ids = {alone(request).tokens[1]};
  const std::vector<TokenId> second = alone(request, 1).tokens;
  const RequestId again = engine.ask(request);
  while (!engine.answer(again).finish_reason.has_value()) steps(engine, 1);
  steps(engine, 1);
  engine->cancel(again);
  engine.run();
  EXPECT_EQ(engine.answer(again).finish_reason, FinishReason::kStop);
  if (second.size() > 8) {
    EXPECT_EQ(engine.answer(RequestId(again.value() + 1)).finish_reason, FinishReason::kCancelled);
  }
  expect_nothing_left(*engine);
}

// A callback may give up its own request, or another, or ask for more.
TEST_P(EngineCancelSlow, WithinACallback) {
  DemoEngine engine(tight());
  RequestId mine(0);
  int outputs = 0;
  GenerationRequest request = long_request();
  request.on_output = [&](const RequestOutput& output) {
    ++outputs;
    engine->cancel(output.request);
    if (outputs == 1) mine = engine.ask(warm_request(1, 5));
  };
  ASSERT_TRUE(engine->submit(request).has_value());
  engine.run();
  EXPECT_GE(outputs, 2);
  EXPECT_LE(outputs, 3);
  expect_as_alone(engine, mine, warm_request(1, 5));
  expect_nothing_left(*engine);
}

// Slots and blocks are as in the beginning after many of them, with nothing shared.
TEST_P(EngineCancelSlow, ManyLeaveAllRoomFree) {
  EngineConfig config = tight();
  config.enable_block_reuse = false;
  DemoEngine engine(config);
  for (std::size_t i = 0; i < 24; ++i) {
    const RequestId id = engine.ask(long_request(i));
    steps(engine, static_cast<int>(i % 5));
    if (i % 3 != 0) engine->cancel(id);
  }
  engine.run();
  cache::KvCacheManager& cache = engine->state().kv_cache();
  for (const cache::LayerGroupDesc& group : cache.layer_groups().groups()) {
    const cache::TierRoom room = cache.room(storage::Tier::kDevice, group.id);
    EXPECT_EQ(room.free, room.total) << group.group_tag;
  }
  expect_nothing_left(*engine);
}

SLACKWATER_WITH_EVERY_SETTING(EngineCancelSlow);

}  // namespace
}  // namespace slackwater::engine
