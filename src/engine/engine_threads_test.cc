// Submit, cancel, hold and statistics from many threads beside the one that steps: for the thread
// sanitizer.

#include <atomic>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

constexpr int kThreads = 4;
constexpr int kRequestsOfAThread = 5;

class EngineThreads : public EverySetting {};

TEST_P(EngineThreads, FourAskAndCancelWhileOneSteps) {
  EngineConfig config = EverySetting::config();
  config.pools.num_slots = 4;
  config.pools.num_blocks = 12;
  DemoEngine engine(config);
  std::atomic<int> asking = kThreads;
  std::mutex mutex;
  std::vector<std::pair<RequestId, GenerationRequest>> kept;
  std::atomic<std::int64_t> endings = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequestsOfAThread; ++i) {
        GenerationRequest request = warm_request(static_cast<std::size_t>(t + i), 6);
        // Callbacks are of the thread that steps.
        request.on_output = [&](const RequestOutput& output) {
          engine.note(output);
          endings += output.finish_reason.has_value() ? 1 : 0;
        };
        const Result<RequestId> id = engine->submit(request);
        ASSERT_TRUE(id.has_value()) << id.error().text();
        if (i % 3 == 1) engine->hold(*id, HoldPolicy::kSuspend);
        if (i % 3 == 2) engine->suspend(*id);
        EXPECT_LE(engine->statistics().finished, kThreads * kRequestsOfAThread);
        EXPECT_TRUE(engine->has_work() || engine->statistics().submitted > 0);
        if (i % 3 == 1) engine->release(*id);
        if (i == 3) {
          engine->cancel(*id);
          continue;
        }
        const std::lock_guard lock(mutex);
        kept.emplace_back(*id, std::move(request));
      }
      --asking;
    });
  }
  while (asking > 0 || engine->has_work()) {
    const Result<bool> stepped = engine->step();
    ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
  }
  for (std::thread& thread : threads) thread.join();
  engine.run();
  EXPECT_EQ(endings, kThreads * kRequestsOfAThread);
  for (const auto& [id, request] : kept) expect_as_alone(engine, id, request);
  expect_nothing_left(*engine);
}

SLACKWATER_WITH_EVERY_SETTING(EngineThreads);

}  // namespace
}  // namespace slackwater::engine
