#ifndef SLACKWATER_TESTS_CASES_HYBRID_CASES_SUPPORT_H_
#define SLACKWATER_TESTS_CASES_HYBRID_CASES_SUPPORT_H_

#include <cstdint>
#include <cstring>
#include <span>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"

namespace slackwater::hybrid {

inline constexpr ReplayPlacement kPlacements[] = {ReplayPlacement::kBesidePool,
                                                  ReplayPlacement::kInPool};

// A request that speaks with drafts, of which as many are right as a test wants. It knows what it
// would say alone, and which state it would have after any number of tokens.
class Talker {
 public:
  Talker(World& world, std::uint64_t id, Tokens prompt, std::int64_t num_tokens = 60)
      : world_(world), id_(id), num_tokens_(num_tokens), tokens_(std::move(prompt)) {
    SoloKda alone(world.model, 0);
    Tokens said = alone.run(world.context, solo_row(tokens_, 0));
    for (future_ = tokens_, future_.push_back(said.back()); std::ssize(future_) < num_tokens;) {
      said = alone.run(world.context, solo_row({future_.back()}, std::ssize(future_) - 1));
      future_.push_back(said.back());
    }
    prompt_length_ = std::ssize(tokens_);
    world.start(id, tokens_, num_tokens);
    read_ = matched();
  }

  RequestId id() const { return RequestId(id_); }
  std::uint64_t number() const { return id_; }
  // All that is said, the golden token included.
  const Tokens& tokens() const { return tokens_; }
  // What it says if nothing goes wrong.
  const Tokens& future() const { return future_; }
  RequestPosition position() const { return *world_.manager->position(id()); }
  std::int64_t matched() const { return world_.manager->sequence(id()).num_committed(); }
  SlotId slot() const { return world_.slot_of(id_); }
  void make_room() {
    const auto resized = world_.manager->resize(id(), num_tokens_);
    ASSERT_TRUE(resized.has_value()) << resized.error().text();
  }

  // Its share of a batch: a chunk of the prompt while that is not read, else a round of drafts.
  struct Share {
    BatchRow row;
    Tokens tokens;
  };
  Share chunk(std::int64_t count) const {
    const Tokens part(tokens_.begin() + read_, tokens_.begin() + read_ + count);
    return {World::context_row(id_, read_, static_cast<std::int32_t>(count)), part};
  }
  Share drafts(std::int32_t num_drafts, std::int32_t num_right) const {
    const std::int64_t first = std::ssize(tokens_) - 1;
    Tokens run = {tokens_.back()};
    for (std::int32_t i = 0; i < num_drafts; ++i) {
      const TokenId right = future_[static_cast<std::size_t>(first + 1 + i)];
      run.push_back(i < num_right ? right : (right + 1) % KdaModel::kVocabulary);
    }
    return {World::verify_row(id_, first, num_drafts), run};
  }
  // What the model said after each token of its share; returns how many drafts are right.
  std::int32_t hear(const Share& share, const Tokens& said) {
    if (share.row.kind == RowKind::kContext) {
      read_ += share.row.num_tokens;
      if (read_ == prompt_length_) tokens_.push_back(said.back());
      return 0;
    }
    std::size_t accepted = 0;
    while (accepted + 1 < share.tokens.size() && said[accepted] == share.tokens[accepted + 1]) {
      ++accepted;
    }
    const auto end = said.begin() + static_cast<std::ptrdiff_t>(accepted) + 1;
    tokens_.insert(tokens_.end(), said.begin(), end);
    return static_cast<std::int32_t>(accepted);
  }

  // Steps of its own.
  void read_prompt() { step(chunk(prompt_length_ - read_)); }
  std::int32_t step(const Share& share) {
    const BatchSetup setup = world_.set_up({share.row});
    EXPECT_EQ(setup.rows.size(), 1u);
    const World::Step made = world_.step(setup, {share.tokens});
    EXPECT_EQ(made.done.wait(), device::EventStatus::kSucceeded);
    return hear(share, made.next->at(0));
  }
  void round(std::int32_t num_drafts, std::int32_t num_right) {
    const std::int32_t accepted = step(drafts(num_drafts, num_right));
    EXPECT_EQ(accepted, num_right);
    world_.accept(id_, accepted);
    make_room();
  }

  // It comes back as context, from what is known of what it has said.
  void restart(std::int64_t num_kept) {
    tokens_.resize(static_cast<std::size_t>(num_kept));
    prompt_length_ = num_kept;
    const auto restarted = world_.manager->restart_request(id(), tokens_);
    ASSERT_TRUE(restarted.has_value()) << restarted.error().text();
    read_ = matched();
  }

  void expect_says_what_it_says_alone() const {
    EXPECT_EQ(tokens_, Tokens(future_.begin(), future_.begin() + std::ssize(tokens_)))
        << "request " << id_;
  }
  // The page is the state after exactly so many tokens as it stands for.
  void expect_page_is_its_own() const { expect_page_is_after(position().page_position); }
  void expect_page_is_after(std::int64_t count) const {
    EXPECT_EQ(world_.bytes_of_page(slot()), state_after(count))
        << "request " << id_ << " after " << count << " tokens";
  }
  std::vector<std::byte> state_after(std::int64_t count) const {
    SoloKda alone(world_.model, 0);
    alone.run(world_.context, solo_row(Tokens(future_.begin(), future_.begin() + count), 0));
    std::vector<std::byte> all;
    for (std::int32_t layer = 0; layer < world_.model.shape().num_layers; ++layer) {
      for (const auto part : {alone.state(static_cast<std::size_t>(layer)),
                              alone.window(static_cast<std::size_t>(layer))}) {
        const auto bytes = std::as_bytes(part);
        all.insert(all.end(), bytes.begin(), bytes.end());
      }
    }
    return all;
  }

 private:
  static KdaModel::Row solo_row(Tokens tokens, std::int64_t first) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    return {.tokens = std::move(tokens),
            .first_position = first,
            .slot = SlotId(0),
            .num_pending = 0,
            .writes = {{count, SlotId(0)}}};
  }

  World& world_;
  const std::uint64_t id_;
  const std::int64_t num_tokens_;
  std::int64_t prompt_length_ = 0;
  std::int64_t read_ = 0;  // of the prompt
  Tokens tokens_;
  Tokens future_;
};

// One batch of several, whose acceptance the host tells at once.
struct Part {
  Talker* who;
  Talker::Share share;
};
inline void run_batch(World& world, std::vector<Part> parts, BatchSetup& setup) {
  std::vector<BatchRow> rows;
  std::vector<Tokens> tokens;
  for (const Part& part : parts) {
    rows.push_back(part.share.row);
    tokens.push_back(part.share.tokens);
  }
  const auto done = world.manager->setup_state_indices(rows, setup);
  ASSERT_TRUE(done.has_value()) << done.error().text();
  ASSERT_EQ(setup.rows.size(), parts.size());
  const World::Step step = world.step(setup, tokens);
  ASSERT_EQ(step.done.wait(), device::EventStatus::kSucceeded);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::int32_t accepted = parts[i].who->hear(parts[i].share, step.next->at(i));
    if (parts[i].share.row.kind == RowKind::kGeneration) {
      world.accept(parts[i].who->number(), accepted);
      parts[i].who->make_room();
    }
  }
}
inline void run_batch(World& world, std::vector<Part> parts) {
  BatchSetup setup;
  run_batch(world, std::move(parts), setup);
}

// Everything of a slot, to be found again: its page, and what lies beside it.
inline std::vector<std::byte> all_bytes_of(World& world, SlotId slot) {
  std::vector<std::byte> all = world.bytes_of_page(slot);
  const std::vector<std::byte> beside = world.bytes_beside(slot);
  all.insert(all.end(), beside.begin(), beside.end());
  return all;
}

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_TESTS_CASES_HYBRID_CASES_SUPPORT_H_
