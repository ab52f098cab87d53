// Faults that users of other engines have met, replayed on the engine with other numbers each time:
// requests that block others, chunks of prompts, and aborts. Each comment names the public reports.

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

bool step(DemoEngine& engine) {
  const Result<bool> stepped = engine->step();
  EXPECT_TRUE(stepped.has_value()) << stepped.error().text();
  return stepped.value_or(false);
}

GenerationRequest of_length(std::size_t prompt, std::int32_t answer, std::size_t salt = 0) {
  GenerationRequest request;
  request.prompt_tokens = long_prompt(prompt, salt);
  request.max_tokens = answer;
  request.ignore_eos = true;
  return request;
}

EngineConfig small(const Setting& setting) {
  EngineConfig config = roomy();
  config.loop = setting.loop;
  config.speculation.drafter = setting.drafter;
  return config;
}

// C10, deadlock, livelock, starvation: what can never run is refused, and all else gets on.
// KB-C10-04 (vLLM 39734): a request that is longer than what the pools can ever hold, though not
// than what the model can, waits at the head for ever. It is refused with the numbers, and whoever
// came after it runs.
TEST(C10EngineSlow, WhatThePoolsCanNeverHoldIsRefusedAndTheNextOneRuns) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.pools.num_blocks = 6;
    config.pools.num_slots = 2;
    DemoEngine engine(config);
    const Result<RequestId> refused = engine->submit(of_length(220, 60));
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code(), ErrorCode::kOutOfRange);
    EXPECT_THAT(refused.error().text(), HasSubstr("220 tokens and an answer of up to 60"));
    const RequestId next = engine.ask(of_length(9, 7));
    engine.run();
    expect_as_alone(engine, next, of_length(9, 7));
  }
}

// KB-C10-05 (local-inference-lab/vllm 394): a prompt is computed to its end, dropped and computed
// again without end, because its boundary needs one more state than there is. Here an engine with
// one slot is refused where a snapshot would need a second one; with two, snapshots are skipped
// where they find no room, and the prompt completes without anything being computed twice.
TEST(C10EngineSlow, AsFewSlotsAsAreAcceptedAreEnoughForAPromptWithSnapshotPoints) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.pools.num_slots = 1;
    DemoModels& demo = DemoModels::get();
    const auto device = device::make_cpu_device();
    const auto target = make_language_model(demo.model, demo.context);
    const auto draft = make_language_model(demo.draft, demo.context);
    const auto refused = Engine::create(
        {device.get(), &demo.context, target.get(), draft.get(), &demo.tokenizer}, config);
    ASSERT_FALSE(refused.has_value());
    EXPECT_THAT(refused.error().text(), HasSubstr("1 slots for recurrent states"));
    config.pools.num_slots = 2;
    config.pools.num_blocks = 7;
    config.scheduler.max_num_tokens = 40;
    config.snapshot_interval = 32;
    config.pools.host_bytes = 0;
    DemoEngine engine(config);
    const RequestId id = engine.ask(of_length(135, 9));
    engine.run();
    expect_as_alone(engine, id, of_length(135, 9));
    EXPECT_EQ(engine->statistics().recomputes, 0);
    EXPECT_EQ(engine->statistics().prompt_tokens, 135);
  }
}

// KB-C10-06 (vllm-ascend 16315): slots of victims come back when the running step ends, so the
// retry sees no gain and takes victim after victim. Here a victim's slot can be had at once, behind
// the step: for one request that comes back no more than the needed victims sleep.
TEST(C10EngineSlow, NoMoreVictimsThanNeededWhileAStepIsUnderWay) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.pools.num_slots = 6;
    config.pools.num_blocks = 40;
    config.enable_block_reuse = false;
    DemoEngine engine(config);
    std::vector<std::pair<RequestId, GenerationRequest>> asked;
    for (std::size_t i = 0; i < 7; ++i) {
      const GenerationRequest request = of_length(20, 60, i);
      asked.emplace_back(engine.ask(request), request);
    }
    for (int i = 0; i < 8; ++i) step(engine);
    // The oldest leaves, and the seventh takes its slot; then the oldest wants one.
    engine->hold(asked[0].first, HoldPolicy::kSuspend);
    for (int i = 0; i < 6; ++i) step(engine);
    const std::int64_t before = engine->statistics().suspends;
    engine->release(asked[0].first);
    for (int i = 0; i < 3; ++i) step(engine);
    const std::int64_t victims = engine->statistics().suspends - before;
    EXPECT_GE(victims, 1);
    EXPECT_LE(victims, 2);
    engine.run();
    for (const auto& [id, request] : asked) expect_as_alone(engine, id, request);
    EXPECT_EQ(engine->statistics().recomputes, 0);
  }
}

// KB-C10-09 (TensorRT-LLM 12313, 12314): cleaning up was a part of scheduling new work, so that
// pools full of what is cancelled stayed full. A pass without anything to schedule cleans up too.
TEST(C10EngineSlow, WhatIsCancelledIsGoneWithTheNextPassWithoutNewWork) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.pools.num_slots = 3;
    config.pools.num_blocks = 9;
    DemoEngine engine(config);
    std::vector<RequestId> asked;
    for (std::size_t i = 0; i < 5; ++i) asked.push_back(engine.ask(of_length(40, 30, i)));
    for (int i = 0; i < 5; ++i) step(engine);
    for (const RequestId id : asked) engine->hold(id, HoldPolicy::kSuspend);
    step(engine);
    for (const RequestId id : asked) engine->cancel(id);
    // One pass to hear of it, one for what was under way.
    step(engine);
    step(engine);
    expect_nothing_left(*engine);
    for (const RequestId id : asked) {
      EXPECT_EQ(engine.answer(id).finish_reason, FinishReason::kCancelled);
    }
  }
}

// C15, chunked prefill: any split of a prompt gives the same state and the same or fewer entries.
// KB-C15-02 (TensorRT-LLM 12786, 12768): after the first chunks the whole prompt counted as
// written. What is cancelled between chunks leaves what it has computed, and no more.
TEST(C15EngineSlow, AfterSomeChunksNoMoreThanThoseIsFound) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.scheduler.max_num_tokens = 32;
    config.snapshot_interval = 32;
    DemoEngine engine(config);
    const RequestId early = engine.ask(of_length(150, 8));
    step(engine);
    step(engine);
    engine->cancel(early);
    engine.run();
    const RequestId next = engine.ask(of_length(150, 8));
    engine.run();
    EXPECT_LE(engine.answer(next).num_reused, 64);
    EXPECT_EQ(engine.answer(next).num_reused % 32, 0);
    expect_as_alone(engine, next, of_length(150, 8));
  }
}

// KB-C15-04 (SGLang 25091): a chunk that ends within a block was handed in twice. Chunks of every
// odd length end anywhere in a block.
// KB-C15-06 (syv-ai/qwen38-27b-rtx3090 43): the state was not carried on where a chunk entered the
// next block. Every split gives the same tokens.
TEST(C15EngineSlow, ChunksOfAnyLengthGiveTheSameTokens) {
  const GenerationRequest request = of_length(77, 8, 2);
  const SoloAnswer expected = alone(request);
  for (const Setting& setting : every_setting()) {
    for (const std::int32_t unit : {5, 12, 33}) {
      SCOPED_TRACE(testing::Message() << name_of(setting) << " in chunks of " << unit);
      EngineConfig config = small(setting);
      config.scheduler.chunk_unit = unit;
      config.scheduler.max_context_length = unit;
      DemoEngine engine(config);
      const RequestId id = engine.ask(request);
      engine.run();
      EXPECT_EQ(engine.answer(id).tokens, expected.tokens);
    }
  }
}

// KB-C15-05 (vLLM 28787): tokens were lost when a request was preempted within the chunks of its
// second life. See also EngineRecompute.
TEST(C15EngineSlow, APreemptionWithinTheChunksOfASecondLifeLosesNoToken) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.scheduler.max_num_tokens = 32;
    config.enable_block_reuse = false;
    DemoEngine engine(config);
    const GenerationRequest request = of_length(90, 21, 1);
    const RequestId id = engine.ask(request);
    while (engine.answer(id).tokens.size() < 7) step(engine);
    for (int chunks = 1; chunks <= 3; ++chunks) {
      engine->hold(id, HoldPolicy::kRecompute);
      step(engine);
      step(engine);
      engine->release(id);
      for (int i = 0; i < chunks; ++i) step(engine);
    }
    engine.run();
    expect_as_alone(engine, id, request);
    EXPECT_EQ(engine->statistics().generated_tokens, 21);
  }
}

// C16, abort in the middle: it gives everything back once, after the last step that touches it.
// KB-C16-01 (vLLM 32255): cancel and completion cross, in either order. Cancelled before the pass
// that would tell the end, and after it.
TEST(C16EngineSlow, CancelAndCompletionMayCross) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    DemoEngine engine(small(setting));
    int passes = 0;
    {
      engine.ask(of_length(30, 6, 1));
      while (step(engine)) ++passes;
    }
    for (int early = 0; early < 4; ++early) {
      const RequestId id = engine.ask(of_length(30, 6, 1));
      for (int i = 0; i + early < passes; ++i) step(engine);
      engine->cancel(id);
      engine.run();
      EXPECT_TRUE(engine.answer(id).finish_reason.has_value());
      expect_nothing_left(*engine);
    }
  }
}

// KB-C16-03 (vllm-ascend 16662): requests cancelled while their pages were on the way back kept
// them. Cancelled in the very pass in which it is brought back, and in the one after it.
TEST(C16EngineSlow, CancelledOnTheWayBackNothingIsKept) {
  for (const Setting& setting : every_setting()) {
    SCOPED_TRACE(name_of(setting));
    EngineConfig config = small(setting);
    config.pools.num_slots = 2;
    DemoEngine engine(config);
    for (int later = 0; later < 3; ++later) {
      const RequestId id = engine.ask(of_length(50, 40, 3));
      for (int i = 0; i < 6; ++i) step(engine);
      engine->suspend(id);
      step(engine);
      for (int i = 0; i < later; ++i) step(engine);
      engine->cancel(id);
      engine.run();
      EXPECT_EQ(engine.answer(id).finish_reason, FinishReason::kCancelled);
      expect_nothing_left(*engine);
    }
  }
}

}  // namespace
}  // namespace slackwater::engine
