// What a request says does not depend on where it slept.

#include "slackwater/hybrid/hybrid_cache_manager.h"

#include <array>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"

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

// A request that generates with drafts, of which each round keeps some: the first `accepted` of
// them are what it will say, the next one is not.
class Speaker {
 public:
  Speaker(World& world, std::uint64_t id, Tokens prompt)
      : world_(world), id_(id), tokens_(std::move(prompt)), ahead_(world.model, 0) {
    world_.start(id, tokens_, 60);
    // What it will say, found out alone.
    Tokens said = ahead_.run(world_.context, row(tokens_, 0));
    for (future_ = tokens_, future_.push_back(said.back()); future_.size() < 60;) {
      said = ahead_.run(world_.context, row({future_.back()}, std::ssize(future_) - 1));
      future_.push_back(said.back());
    }
  }

  void read_prompt() {
    const auto count = static_cast<std::int32_t>(tokens_.size());
    const BatchSetup setup = world_.set_up({World::context_row(id_, 0, count)});
    const World::Step step = world_.step(setup, {tokens_});
    ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
    tokens_.push_back(step.next->at(0).back());
  }

  // A verify round up to the acceptance, which is not recorded yet.
  void verify(std::int32_t num_drafts, std::int32_t num_right) {
    const std::int64_t first = std::ssize(tokens_) - 1;
    Tokens run = {tokens_.back()};
    for (std::int32_t i = 0; i < num_drafts; ++i) {
      const TokenId right = future_[static_cast<std::size_t>(first + 1 + i)];
      run.push_back(i < num_right ? right : (right + 1) % KdaModel::kVocabulary);
    }
    const BatchSetup setup = world_.set_up({World::verify_row(id_, first, num_drafts)});
    ASSERT_EQ(setup.rows.size(), 1u);
    const World::Step step = world_.step(setup, {run});
    ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
    const Tokens& next = step.next->at(0);
    accepted_ = 0;
    while (accepted_ < num_drafts && next[static_cast<std::size_t>(accepted_)] ==
                                         run[static_cast<std::size_t>(accepted_) + 1]) {
      ++accepted_;
    }
    EXPECT_EQ(accepted_, num_right);
    tokens_.insert(tokens_.end(), next.begin(), next.begin() + accepted_ + 1);
  }
  void accept() { world_.accept(id_, accepted_); }
  void round(std::int32_t num_drafts, std::int32_t num_right) {
    verify(num_drafts, num_right);
    accept();
    ASSERT_TRUE(world_.manager->resize(RequestId(id_), 60).has_value());
  }

  void expect_says_what_it_says_alone() const {
    const Tokens alone(future_.begin(), future_.begin() + std::ssize(tokens_));
    EXPECT_EQ(tokens_, alone) << "request " << id_;
  }

 private:
  static KdaModel::Row row(Tokens tokens, std::int64_t first) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    return {.tokens = std::move(tokens),
            .first_position = first,
            .slot = SlotId(0),
            .num_pending = 0,
            .writes = {{count, SlotId(0)}}};
  }

  World& world_;
  const std::uint64_t id_;
  Tokens tokens_;
  Tokens future_;
  SoloKda ahead_;
  std::int32_t accepted_ = 0;
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
