#ifndef SLACKWATER_CACHE_NAIVE_CACHE_H_
#define SLACKWATER_CACHE_NAIVE_CACHE_H_

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "slackwater/cache/layer_kind.h"
#include "slackwater/cache/prefix_digest.h"
#include "slackwater/cache/token_digests.h"

namespace slackwater::cache {

// What is known, as slowly as it reads: everything that was ever committed, and never forgotten.
class NaiveCache {
 public:
  void add(const ReuseScope& scope, const std::vector<TokenId>& tokens) {
    known_[key(scope)].push_back(tokens);
  }
  void clear() {
    known_.clear();
    states_.clear();
  }

  // Somebody has said that there is a state of exactly these tokens.
  void add_state(const ReuseScope& scope, const std::vector<TokenId>& tokens) {
    states_.insert({key(scope), tokens});
  }
  bool has_state(const ReuseScope& scope, const std::vector<TokenId>& tokens) const {
    return states_.contains({key(scope), tokens});
  }

  // The longest front of a query that somebody has committed: nobody can find more.
  std::int64_t content(const ReuseScope& scope, std::span<const TokenId> query) const {
    const auto at = known_.find(key(scope));
    if (at == known_.end()) return 0;
    std::int64_t best = 0;
    for (const std::vector<TokenId>& tokens : at->second) {
      const std::size_t most = std::min(tokens.size(), query.size());
      std::size_t agreed = 0;
      while (agreed < most && tokens[agreed] == query[agreed]) ++agreed;
      best = std::max(best, static_cast<std::int64_t>(agreed));
    }
    return best;
  }

 private:
  using Key = std::pair<std::optional<std::uint64_t>, std::optional<std::uint64_t>>;
  static Key key(const ReuseScope& scope) { return {scope.adapter, scope.salt}; }

  std::map<Key, std::vector<std::vector<TokenId>>> known_;
  std::set<std::pair<Key, std::vector<TokenId>>> states_;
};

// What the operations came to, so that a test that does nothing shows.
struct Tally {
  std::int64_t steps_judged = 0;
  std::int64_t steps_suspect = 0;
  std::int64_t resumed = 0;
  std::int64_t refused = 0;
  std::int64_t lost = 0;
  std::int64_t tokens_reused = 0;
  std::int64_t partial_matches = 0;
  std::int64_t pages_dropped = 0;
  std::int64_t snapshots = 0;
  std::int64_t faults = 0;
  std::int64_t turns = 0;
  std::int64_t quotas = 0;
  std::int64_t calls_replayed = 0;
  std::int64_t adjusts = 0;  // that changed something
  std::int64_t events = 0;
  std::int64_t overflows = 0;
  std::int64_t prefetched = 0;  // and something moved
  std::int64_t prefetch_refused = 0;
  std::int64_t plans = 0;
  std::int64_t plans_dropped = 0;
  std::int64_t pages_counted = 0;
  std::int64_t states_handed_over = 0;
  std::int64_t trims_of_sleepers = 0;  // that gave something back

  void add(const Tally& other) {
    steps_judged += other.steps_judged;
    steps_suspect += other.steps_suspect;
    resumed += other.resumed;
    refused += other.refused;
    lost += other.lost;
    tokens_reused += other.tokens_reused;
    partial_matches += other.partial_matches;
    pages_dropped += other.pages_dropped;
    snapshots += other.snapshots;
    faults += other.faults;
    turns += other.turns;
    quotas += other.quotas;
    calls_replayed += other.calls_replayed;
    adjusts += other.adjusts;
    events += other.events;
    overflows += other.overflows;
    prefetched += other.prefetched;
    prefetch_refused += other.prefetch_refused;
    plans += other.plans;
    plans_dropped += other.plans_dropped;
    pages_counted += other.pages_counted;
    states_handed_over += other.states_handed_over;
    trims_of_sleepers += other.trims_of_sleepers;
  }
};

inline LayerKind random_kind(std::mt19937_64& random) {
  switch (random() % 3) {
    case 0: return FullAttention();
    case 1: return Recurrent();
    default:
      return SlidingWindow{1 + static_cast<std::int64_t>(random() % 12),
                           static_cast<std::int64_t>(random() % 4)};
  }
}

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_NAIVE_CACHE_H_
