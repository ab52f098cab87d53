// Random sequences in a cache that never has to let go of anything: what is found is exactly what
// a set of strings says, to the token.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=1000000 slackwater_cache_test
//       --gtest_filter='PrefixMatchModel*'

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/operations.h"
#include "testing/seed.h"

namespace slackwater::cache {
namespace {

Tokens front(const Tokens& tokens, std::int64_t count) {
  return {tokens.begin(), tokens.begin() + count};
}

// What has been published, as strings.
class NaiveMatch {
 public:
  void publish(const Tokens& tokens) { known_.push_back(tokens); }
  void add_snapshot(const Tokens& tokens) { snapshots_.insert(tokens); }

  // The longest front of `query` that somebody has published.
  std::int64_t content(const Tokens& query) const {
    std::int64_t best = 0;
    for (const Tokens& tokens : known_) {
      const std::size_t most = std::min(tokens.size(), query.size());
      const auto end = tokens.begin() + static_cast<std::ptrdiff_t>(most);
      best =
          std::max(best, std::mismatch(tokens.begin(), end, query.begin()).first - tokens.begin());
    }
    return best;
  }
  // The longest one of at most `limit` tokens with a state.
  std::int64_t snapshot(const Tokens& query, std::int64_t limit) const {
    while (limit > 0 && !snapshots_.contains(front(query, limit))) --limit;
    return limit;
  }

 private:
  std::vector<Tokens> known_;
  std::set<Tokens> snapshots_;
};

class PrefixMatchModel {
 public:
  explicit PrefixMatchModel(std::uint64_t seed)
      : random_(seed),
        weights_(random_, {kCreate, kStep, kProbe}),
        tokens_per_block_(1 << below(4)),
        backoff_(below(3) == 0 ? static_cast<std::int64_t>(below(4)) : 0),
        has_states_(below(3) != 0),
        has_window_(below(3) == 0),
        cache_(config()) {}

  void run(int num_operations) {
    for (int i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "after " << i << " operations");
      step();
    }
    while (!models_.empty()) close(models_.back());
    cache_.manager->audit();
    EXPECT_EQ(cache_.manager->counters().pages_dropped, 0);
  }
  std::int64_t num_reused() const { return num_reused_; }

 private:
  enum Operation : std::size_t {
    kCreate,
    kStep,
    kReserve,
    kGrow,
    kSuspend,
    kStop,
    kEnd,
    kClose,
    kProbe,
    kNumOperations
  };
  struct Model {
    Sequence sequence;
    std::uint64_t salt = 0;
    Tokens tokens;
    std::set<std::int64_t> reserved;  // positions of states to come
    bool was_resumed = false;
    bool may_be_ahead = false;  // had room past the end since the last commit
    bool is_committing = true;
    bool is_finished = false;
  };

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  KvCacheConfig config() const {
    std::vector<LayerKind> kinds = {FullAttention()};
    if (has_window_) kinds.emplace_back(SlidingWindow{7, 2});
    if (has_states_) kinds.emplace_back(Recurrent());
    KvCacheConfig config = test_config(kinds, tokens_per_block_, 16 << 20);
    config.reuse_match_backoff = backoff_;
    return config;
  }

  void step() {
    Model* const model = models_.empty() ? nullptr : &models_[below(models_.size())];
    const std::size_t operation = weights_.draw(random_);
    if (operation == kProbe) return probe();
    if (model == nullptr || operation == kCreate) return create();
    switch (operation) {
      case kStep: return compute(*model);
      case kReserve: return reserve(*model);
      case kGrow: return grow(*model);
      case kSuspend: return suspend(*model);
      case kStop: return stop(*model);
      case kEnd: return end(*model);
      default: return close(*model);
    }
  }

  // They part often, and anywhere.
  Tokens random_tokens() {
    Tokens tokens(1 + below(30));
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = static_cast<TokenId>(100 * i + (below(8) == 0 ? 1 : 0));
    }
    return tokens;
  }

  ReuseScope scope(std::uint64_t salt) const {
    ReuseScope scope;
    if (salt > 0) scope.salt = salt;
    return scope;
  }

  void check(std::uint64_t salt, const Tokens& tokens, const MatchDepths& match) const {
    const Tokens query = front(tokens, std::ssize(tokens) - 1);
    static const NaiveMatch kNothing;
    const auto at = naive_.find(salt);
    const NaiveMatch& naive = at == naive_.end() ? kNothing : at->second;
    const std::int64_t content = naive.content(query);
    const std::int64_t attention = std::max<std::int64_t>(0, content - backoff_);
    ASSERT_EQ(match.lookup, std::ssize(query));
    ASSERT_EQ(match.content, content);
    ASSERT_EQ(match.attention, attention);
    ASSERT_EQ(match.reused, has_states_ ? naive.snapshot(query, attention) : attention);
  }

  void probe() {
    const Tokens tokens = random_tokens();
    const std::uint64_t salt = below(2);
    check(salt, tokens, cache_.manager->probe_reuse(scope(salt), tokens));
  }

  void create() {
    if (models_.size() == 6) return close(models_[below(6)]);
    Model model;
    model.salt = below(2);
    model.tokens = random_tokens();
    model.sequence = cache_.create(model.tokens, scope(model.salt));
    check(model.salt, model.tokens, model.sequence.match());
    num_reused_ += model.sequence.num_committed();
    if (below(8) != 0) resume(model);
    models_.push_back(std::move(model));
  }

  bool is_ready(Model& model) {
    if (!model.is_committing) return false;
    if (model.sequence.status() == SequenceStatus::kSuspended) resume(model);
    return true;
  }

  void resume(Model& model) {
    const auto arrived = model.sequence.resume(cache_.engine.stream());
    ASSERT_TRUE(arrived.has_value()) << arrived.error().text();
    // Nothing is seen before what it was copied from has arrived.
    ASSERT_EQ(arrived->wait(), device::EventStatus::kSucceeded);
    model.was_resumed = true;
  }

  void compute(Model& model) {
    if (!is_ready(model)) return;
    Sequence& s = model.sequence;
    const std::int64_t to = s.num_committed() + 1 + static_cast<std::int64_t>(below(10));
    while (std::ssize(model.tokens) < to) {
      model.tokens.push_back(static_cast<TokenId>(100 * model.tokens.size()));
    }
    ASSERT_TRUE(s.resize(std::max(to, s.capacity())).has_value());
    const auto from = static_cast<std::size_t>(s.num_committed());
    ASSERT_TRUE(s.commit(std::span(model.tokens).subspan(from, static_cast<std::size_t>(to) - from))
                    .has_value());
    naive_[model.salt].publish(front(model.tokens, to / tokens_per_block_ * tokens_per_block_));
    model.may_be_ahead = s.capacity() > s.num_committed();
    publish_reserved(model);
  }

  // A state is there once it is committed and its block is known, from whomever.
  void publish_reserved(Model& model) {
    NaiveMatch& naive = naive_[model.salt];
    const std::int64_t committed = model.sequence.num_committed();
    const Tokens tokens = front(model.tokens, committed);
    const bool is_tail_known = naive.content(tokens) == committed;
    std::erase_if(model.reserved, [&](std::int64_t position) {
      const bool is_in_tail = position > committed / tokens_per_block_ * tokens_per_block_;
      if (position > committed || (is_in_tail && !is_tail_known)) return false;
      naive.add_snapshot(front(model.tokens, position));
      return true;
    });
  }

  void reserve(Model& model) {
    if (!is_ready(model) || !has_states_) return;
    const Sequence& s = model.sequence;
    const auto room = static_cast<std::uint64_t>(s.capacity() - s.num_committed());
    if (room == 0 || s.history() != s.num_committed()) return;
    const std::int64_t position = s.num_committed() + 1 + static_cast<std::int64_t>(below(room));
    ASSERT_TRUE(model.sequence.reserve_snapshot(position).has_value());
    model.reserved.insert(position);
  }

  // Room for more, or no more than what is computed: a step may have been under way in between.
  void grow(Model& model) {
    if (!is_ready(model)) return;
    const Sequence& s = model.sequence;
    const std::int64_t capacity =
        below(4) == 0 ? s.history() : s.capacity() + static_cast<std::int64_t>(below(20));
    ASSERT_TRUE(model.sequence.resize(capacity).has_value());
    model.may_be_ahead |= capacity > s.num_committed();
  }

  void suspend(Model& model) {
    if (model.sequence.status() != SequenceStatus::kActive) return;
    ASSERT_TRUE(model.sequence.suspend().has_value());
    model.reserved.clear();
  }

  void stop(Model& model) {
    if (below(4) != 0) return;
    ASSERT_TRUE(model.sequence.stop_committing().has_value());
    model.is_committing = false;
    model.reserved.clear();
  }

  // The block at the end is known now, and the state of the end if nothing was computed past it.
  void publish_end(Model& model, bool is_last) {
    const Sequence& s = model.sequence;
    if (s.num_committed() == 0) return;
    const Tokens tokens = front(model.tokens, s.num_committed());
    naive_[model.salt].publish(tokens);
    const bool is_of_end = s.history() == s.num_committed() && (is_last || !model.may_be_ahead);
    if (is_of_end) naive_[model.salt].add_snapshot(tokens);
    publish_reserved(model);
  }

  void end(Model& model) {
    if (below(3) != 0 || !is_ready(model)) return;
    ASSERT_TRUE(model.sequence.commit({}, {{}, true}).has_value());
    publish_end(model, true);
    model.is_committing = false;
    model.is_finished = true;
  }

  void close(Model& model) {
    if (!model.is_finished && model.was_resumed) publish_end(model, false);
    model.sequence.close();
    cache_.manager->audit();
    std::erase_if(models_, [&](const Model& other) { return &other == &model; });
  }

  std::mt19937_64 random_;
  OperationWeights<kNumOperations> weights_;
  const std::int32_t tokens_per_block_;
  const std::int64_t backoff_;
  const bool has_states_;
  const bool has_window_;
  TestCache cache_;
  std::map<std::uint64_t, NaiveMatch> naive_;  // by salt
  std::vector<Model> models_;
  std::int64_t num_reused_ = 0;
};

TEST(PrefixMatchModel, FindsAllThatThereIs) {
  const std::uint64_t seed = test_seed();
  constexpr int kPerSeed = 250;
  std::int64_t num_reused = 0;
  for (std::int64_t i = 0; i < test_operations(20'000) / kPerSeed; ++i) {
    const std::uint64_t this_seed = seed + static_cast<std::uint64_t>(i);
    SCOPED_TRACE(testing::Message() << "seed " << this_seed);
    PrefixMatchModel model(this_seed);
    model.run(kPerSeed);
    if (testing::Test::HasFailure()) return;
    num_reused += model.num_reused();
  }
  EXPECT_GT(num_reused, 0);
}

}  // namespace
}  // namespace slackwater::cache
