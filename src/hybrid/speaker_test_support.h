#ifndef SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_
#define SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_

#include <cstdint>
#include <memory>
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
    // What it will say, found out alone; steps that are queued use the context too.
    world_.stream->synchronize();
    Tokens said = ahead_.run(world_.context, row(tokens_, 0));
    for (future_ = tokens_, future_.push_back(said.back()); future_.size() < 60;) {
      said = ahead_.run(world_.context, row({future_.back()}, std::ssize(future_) - 1));
      future_.push_back(said.back());
    }
  }

  // The same request where another world has it.
  Speaker(World& world, const Speaker& other)
      : world_(world),
        id_(other.id_),
        tokens_(other.tokens_),
        future_(other.future_),
        ahead_(world.model, 0),
        accepted_(other.accepted_) {}

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
    const Tokens run = drafts(num_drafts, num_right);
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
  // A round whose acceptance is found on the stream: the host knows neither it nor, from the second
  // one on, where the row begins.
  void verify_ahead(std::int32_t num_drafts, std::int32_t num_right) {
    const std::int64_t first = std::ssize(tokens_) - 1;
    BatchRow row = World::verify_row(id_, first, num_drafts);
    if (!rounds_.empty()) row.first_position.reset();
    const BatchSetup setup = world_.set_up({row});
    ASSERT_EQ(setup.rows.size(), 1u);
    EXPECT_EQ(setup.rows[0].num_pending.has_value(), rounds_.empty());
    const Tokens run = drafts(num_drafts, num_right);
    const World::Step step = world_.step(setup, {run});
    const auto found = std::make_shared<std::int32_t>(0);
    world_.stream->run([run, next = step.next, found] {
      const Tokens& said = next->at(0);
      std::size_t accepted = 0;
      while (accepted + 1 < run.size() && said[accepted] == run[accepted + 1]) ++accepted;
      *found = static_cast<std::int32_t>(accepted) + 1;
      return true;
    });
    world_.manager->record_acceptance(setup, found.get());
    rounds_.push_back({setup.rows[0].epoch, setup.rows[0].round, found});
    const auto said = future_.begin() + first + 1;
    tokens_.insert(tokens_.end(), said, said + num_right + 1);
    expected_.push_back(num_right);
  }
  // The host reads what was found on the stream.
  void read_rounds() {
    world_.stream->synchronize();
    std::vector<Acceptance> acceptances;
    for (std::size_t i = 0; i < rounds_.size(); ++i) {
      EXPECT_EQ(*rounds_[i].num_accepted_tokens, expected_[i] + 1) << "round " << i;
      acceptances.push_back({RequestId(id_), rounds_[i].epoch, rounds_[i].round,
                             *rounds_[i].num_accepted_tokens - 1});
    }
    const auto told = world_.manager->update_resources(acceptances);
    ASSERT_TRUE(told.has_value()) << told.error().text();
    rounds_.clear();
    expected_.clear();
  }
  void accept() { world_.accept(id_, accepted_); }
  void round(std::int32_t num_drafts, std::int32_t num_right) {
    verify(num_drafts, num_right);
    accept();
    ASSERT_TRUE(world_.manager->resize(RequestId(id_), 60).has_value());
  }

  const Tokens& tokens() const { return tokens_; }
  std::int64_t num_tokens() const { return std::ssize(tokens_); }

  void expect_says_what_it_says_alone() const {
    const Tokens alone(future_.begin(), future_.begin() + std::ssize(tokens_));
    EXPECT_EQ(tokens_, alone) << "request " << id_;
  }

 private:
  struct DeviceRound {
    std::uint64_t epoch = 0;
    std::uint64_t round = 0;
    std::shared_ptr<std::int32_t> num_accepted_tokens;
  };

  // The golden token, and drafts of which the first are right.
  Tokens drafts(std::int32_t num_drafts, std::int32_t num_right) const {
    Tokens run = {tokens_.back()};
    for (std::int32_t i = 0; i < num_drafts; ++i) {
      const TokenId right = future_[tokens_.size() + static_cast<std::size_t>(i)];
      run.push_back(i < num_right ? right : (right + 1) % KdaModel::kVocabulary);
    }
    return run;
  }
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
  std::vector<DeviceRound> rounds_;     // that the host has not read
  std::vector<std::int32_t> expected_;  // [rounds]
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_SPEAKER_TEST_SUPPORT_H_
