// What a request says does not depend on where it slept.

#include "slackwater/hybrid/hybrid_cache_manager.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"
#include "hybrid/speaker_test_support.h"

namespace slackwater::hybrid {
namespace {

class HybridCacheManagerTest : public testing::TestWithParam<ReplayPlacement> {
 protected:
  WorldOptions options() const {
    WorldOptions made;
    made.placement = GetParam();
    return made;
  }
};

TEST_P(HybridCacheManagerTest, DraftsArePendingUntilTheNextRoundReplaysThem) {
  World world(options());
  Speaker speaker(world, 1, numbers(3, 6));
  speaker.read_prompt();
  for (const std::int32_t right : {2, 0, 3, 1, 3}) speaker.round(3, right);
  for (const std::int32_t drafts : {0, 1, 2, 0, 3}) speaker.round(drafts, drafts);
  speaker.expect_says_what_it_says_alone();
  world.manager->audit();
  EXPECT_EQ(world.manager->counters().saves, 0);
}

TEST_P(HybridCacheManagerTest, ARequestThatSleptSaysWhatItSaysAlone) {
  World world(options());
  Speaker first(world, 1, numbers(3, 6));
  first.read_prompt();
  first.round(3, 2);
  world.suspend(1);
  // As many as there are slots, so that its own goes to another.
  std::vector<Speaker> others;
  for (std::uint64_t id = 2; id < 7; ++id) {
    others.emplace_back(world, id, numbers(static_cast<TokenId>(10 * id), 5));
    others.back().read_prompt();
    others.back().round(3, 1);
  }
  world.suspend(4);
  world.resume(1);
  first.round(3, 3);
  first.round(3, 1);
  first.expect_says_what_it_says_alone();
  world.suspend(1);
  world.resume(4);
  others[2].round(2, 2);
  for (const Speaker& other : others) other.expect_says_what_it_says_alone();
  world.manager->audit();
  EXPECT_EQ(world.manager->counters().suspends, 3);
  EXPECT_GT(world.manager->counters().resumes_in_new_slot, 0) << world.manager->describe();
}

TEST_P(HybridCacheManagerTest, AcceptanceThatComesLateFollowsTheRequest) {
  World world(options());
  Speaker first(world, 1, numbers(3, 6));
  first.read_prompt();
  first.round(3, 1);
  first.verify(3, 2);
  world.suspend(1);
  std::vector<Speaker> others;
  for (std::uint64_t id = 2; id < 7; ++id) {
    others.emplace_back(world, id, numbers(static_cast<TokenId>(10 * id), 5));
    others.back().read_prompt();
    others.back().round(3, 1);
  }
  first.accept();
  world.suspend(2);
  world.resume(1);
  ASSERT_TRUE(world.manager->resize(RequestId(1), 60).has_value());
  first.round(3, 3);
  first.expect_says_what_it_says_alone();
  for (std::size_t i = 1; i < others.size(); ++i) {
    others[i].round(3, 2);
    others[i].expect_says_what_it_says_alone();
  }
  EXPECT_EQ(world.manager->counters().late_acceptances, 1);
  world.manager->audit();
}

INSTANTIATE_TEST_SUITE_P(Placements, HybridCacheManagerTest,
                         testing::Values(ReplayPlacement::kBesidePool, ReplayPlacement::kInPool),
                         [](const auto& param) {
                           return param.param == ReplayPlacement::kInPool ? "InPool" : "BesidePool";
                         });

}  // namespace
}  // namespace slackwater::hybrid
