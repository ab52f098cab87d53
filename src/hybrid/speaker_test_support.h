#ifndef SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_
#define SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_

#include <cstdint>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"

namespace slackwater::hybrid {

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

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_
