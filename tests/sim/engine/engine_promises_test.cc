// What an engine promises, where the simulation has once seen it break.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/base/thread_pool.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/engine/engine.h"
#include "testing/digest_model.h"
#include "testing/solo_oracle.h"

namespace slackwater::engine {
namespace {

// An engine of a digest model.
struct DigestEngine {
  explicit DigestEngine(const EngineConfig& config) : device(device::make_cpu_device()) {
    Result<std::unique_ptr<Engine>> made =
        Engine::create({.device = device.get(), .context = &context, .model = &model}, config);
    EXPECT_TRUE(made.has_value()) << made.error().text();
    engine = *std::move(made);
  }
  RequestId submit(GenerationRequest request) {
    request.on_output = [this](const RequestOutput& output) {
      if (output.finish_reason.has_value()) ended[output.request] = *output.finish_reason;
    };
    const Result<RequestId> id = engine->submit(std::move(request));
    EXPECT_TRUE(id.has_value()) << id.error().text();
    return id.value_or(RequestId(0));
  }
  void step() {
    const Result<bool> stepped = engine->step();
    ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
  }

  ThreadPool pool{1};
  kernels::ExecutionContext context{pool};
  DigestModel model{{.max_length = 160}};
  std::unique_ptr<device::Device> device;
  std::unique_ptr<Engine> engine;
  std::map<RequestId, FinishReason> ended;
};

TEST(Engine, CancelsTheChoicesThatAreLeftWhenTheFirstHasEnded) {
  EngineConfig config;
  config.pools = {.num_slots = 8, .num_blocks = 64, .tokens_per_block = 8};
  DigestEngine world(config);
  ThreadPool pool(1);
  kernels::ExecutionContext context(pool);
  DigestModel alone({.max_length = 160});
  SoloOracle oracle(alone, context);
  // A request whose first choice says less than the others.
  GenerationRequest request;
  request.prompt_tokens = {0, 9, 8};
  request.max_tokens = 60;
  request.num_choices = 3;
  request.sampling.temperature = 0.8f;
  const auto length = [&](std::int32_t choice) {
    return oracle.answer(request, choice).tokens.size();
  };
  while (length(0) + 8 > length(1) || length(0) + 8 > length(2)) ++request.sampling.seed;
  const RequestId first = world.submit(request);
  while (!world.ended.contains(first)) world.step();
  ASSERT_EQ(world.ended.size(), 1u);
  world.engine->cancel(first);
  world.step();
  EXPECT_EQ(world.ended.size(), 3u);
  EXPECT_EQ(world.ended[RequestId(first.value() + 1)], FinishReason::kCancelled);
  EXPECT_EQ(world.ended[RequestId(first.value() + 2)], FinishReason::kCancelled);
}

// A request that is asked for and given up within a callback has not been taken up yet.
TEST(Engine, ObeysAnOrderThatComesRightBehindItsRequest) {
  EngineConfig config;
  config.pools = {.num_slots = 8, .num_blocks = 64, .tokens_per_block = 8};
  DigestEngine world(config);
  std::optional<RequestId> second;
  GenerationRequest first;
  first.prompt_tokens = {5};
  first.max_tokens = 0;
  first.on_output = [&](const RequestOutput&) {
    GenerationRequest request;
    request.prompt_tokens = {6};
    request.max_tokens = 100;
    second = world.submit(request);
    world.engine->cancel(*second);
  };
  ASSERT_TRUE(world.engine->submit(first).has_value());
  world.step();
  world.step();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(world.ended[*second], FinishReason::kCancelled);
}

// Many short requests make states worth more than blocks; one that is as long as may be comes next.
TEST(Engine, KeepsRoomForTheLongestRequestWhateverBecomesOfTheShares) {
  EngineConfig config;
  config.pools = {.num_slots = 4, .num_blocks = 40, .tokens_per_block = 4, .grain_bytes = 4096};
  config.enable_rebalance = true;
  config.rebalance = {.min_samples = 0,
                      .update_interval = 1,
                      .cooldown = Nanoseconds(0),
                      .threshold = 1.05,
                      .decay = 0.5};
  DigestEngine world(config);
  const std::int64_t longest = world.engine->max_sequence_length();
  ASSERT_GE(longest, 60);
  for (TokenId i = 0; i < 24; ++i) {
    GenerationRequest request;
    request.prompt_tokens = {i};
    request.max_tokens = 3;
    world.submit(request);
  }
  ASSERT_TRUE(world.engine->run().has_value());
  ASSERT_TRUE(world.engine->rebalance_now().has_value());
  GenerationRequest request;
  request.prompt_tokens.assign(static_cast<std::size_t>(longest - 10), 5);
  request.max_tokens = 10;
  request.ignore_eos = true;
  const RequestId id = world.submit(request);
  const auto ran = world.engine->run();
  ASSERT_TRUE(ran.has_value()) << ran.error().text();
  EXPECT_EQ(world.ended[id], FinishReason::kLength);
  EXPECT_GT(world.engine->statistics().rebalances, 0);
}

}  // namespace
}  // namespace slackwater::engine
