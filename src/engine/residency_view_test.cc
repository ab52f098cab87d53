// What lies where while requests come and go.

#include "slackwater/engine/residency_view.h"

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"

namespace slackwater::engine {
namespace {

const RequestPages* pages_of(const ResidencyView& view, RequestId id) {
  for (const RequestPages& pages : view.requests) {
    if (pages.request == id) return &pages;
  }
  return nullptr;
}

TEST(ResidencyView, FollowsARequestThatIsSuspendedToTheHost) {
  EngineConfig config = roomy();
  config.pools.num_slots = 3;
  config.pools.num_blocks = 4;
  DemoEngine engine(config);
  const RequestId first = engine.ask(demo_request(0, 40));
  ASSERT_TRUE(engine->step().has_value());
  const ResidencyView before = residency_of(engine->state());
  ASSERT_NE(pages_of(before, first), nullptr);
  EXPECT_GT(pages_of(before, first)->pages[0], 0);
  EXPECT_EQ(pages_of(before, first)->pages[1], 0);

  engine->hold(first, HoldPolicy::kSuspend);
  for (std::size_t i = 1; i < 6; ++i) engine.ask(demo_request(i, 40));
  while (pages_of(residency_of(engine->state()), first)->pages[1] == 0) {
    ASSERT_LT(engine->statistics().finished, 5) << "nobody needed its room";
    ASSERT_TRUE(engine->step().has_value());
  }
  EXPECT_GT(pages_of(residency_of(engine->state()), first)->pages[1], 0);
  engine->release(first);
  engine.run();
  EXPECT_EQ(engine.count_differences(), 0);
  EXPECT_EQ(pages_of(residency_of(engine->state()), first), nullptr);
}

TEST(ResidencyView, CountsEverySlotOfAPoolOnce) {
  DemoEngine engine(roomy());
  for (std::size_t i = 0; i < 4; ++i) engine.ask(demo_request(i));
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(engine->step().has_value());
  bool has_states = false;
  bool has_blocks = false;
  for (const PoolUse& pool : residency_of(engine->state()).pools) {
    EXPECT_FALSE(pool.name.empty());
    EXPECT_LE(pool.num_in_use + pool.num_evictable, pool.num_slots);
    if (pool.tier != storage::Tier::kDevice) continue;
    EXPECT_GT(pool.num_in_use, 0) << pool.name;
    (pool.holds_blocks ? has_blocks : has_states) = true;
  }
  EXPECT_TRUE(has_states && has_blocks);
}

}  // namespace
}  // namespace slackwater::engine
