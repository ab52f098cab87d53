// What a step takes from the heap once everything is warm: what queueing takes, and nothing for a
// request.

#include <cstdint>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"
#include "testing/allocation_counter.h"

namespace slackwater::engine {
namespace {

class EngineAllocationSlow : public EverySetting {};

// Allocations of 16 steps of so many requests that all generate.
std::int64_t allocations_of_steps(const EngineConfig& config, std::size_t num_requests) {
  DemoEngine engine(config);
  std::int64_t told = 0;
  for (std::size_t i = 0; i < num_requests; ++i) {
    GenerationRequest request = demo_request(3, 400);
    request.ignore_eos = true;
    request.scope.salt = i;
    request.on_output = [&told](const RequestOutput& output) { told += std::ssize(output.tokens); };
    EXPECT_TRUE(engine->submit(request).has_value());
  }
  for (int i = 0; i < 40; ++i) EXPECT_TRUE(engine->step().has_value());
  const std::int64_t before = num_heap_allocations();
  for (int i = 0; i < 16; ++i) {
    if (!engine->step().has_value()) ADD_FAILURE() << "a step was refused";
  }
  const std::int64_t taken = num_heap_allocations() - before;
  EXPECT_GT(told, 16 * static_cast<std::int64_t>(num_requests) / 2);
  return taken;
}

TEST_P(EngineAllocationSlow, AStepTakesNothingForARequest) {
  EngineConfig config = EverySetting::config();
  config.pools.num_blocks = 400;
  config.speculation.adapt_length = false;
  // Items of the stream and the events behind them, whatever is in them; with a draft model there
  // are several in a step. One allocation for each of 16 requests would be too many.
  const std::int64_t most = GetParam().drafter == DrafterKind::kDraftModel ? 44 : 14;
  for (const std::size_t num_requests : {2u, 16u}) {
    EXPECT_LE(allocations_of_steps(config, num_requests), 16 * most) << num_requests;
  }
}

SLACKWATER_WITH_EVERY_SETTING(EngineAllocationSlow);

}  // namespace
}  // namespace slackwater::engine
