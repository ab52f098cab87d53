#ifndef SLACKWATER_CACHE_STATISTICS_RECOUNT_H_
#define SLACKWATER_CACHE_STATISTICS_RECOUNT_H_

#include <cstdint>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/cache/kv_cache_manager.h"

namespace slackwater::cache {

// What the statistics of requests should say, counted block by block from their index tables.
class StatisticsRecount {
 public:
  // Of one sequence.
  struct Request {
    bool is_counted = false;
    bool was_resumed = false;
    bool is_recompute = false;
    std::int64_t expected_prompt_length = 0;
    std::int64_t num_blocks = 0;
    TokenUse tokens;                       // but for the tiers
    std::vector<std::int64_t> num_copies;  // [layer groups] a state, or a copy of the last block
    struct NewBlock {
      std::int64_t block = 0;
      bool is_generated = false;
    };
    std::vector<std::vector<NewBlock>> blocks;  // [layer groups]
  };

  void open(const KvCacheManager& manager, bool is_on) {
    is_on_ = is_on;
    total_.groups.resize(manager.layer_groups().size());
  }

  void created(Request& request, const Sequence& sequence, const SequenceOptions& options) const {
    request.is_counted = is_on_ && !options.is_dummy;
    request.is_recompute = options.is_recompute;
    request.expected_prompt_length = options.expected_prompt_length;
    request.num_blocks = sequence.num_blocks();
    request.blocks.resize(total_.groups.size());
    request.num_copies.resize(total_.groups.size());
    const std::int64_t queried = std::ssize(options.tokens);
    if (options.is_recompute) {
      request.tokens.recompute_queried = queried;
      request.tokens.recompute_reused = sequence.num_committed();
    } else {
      request.tokens.queried = queried;
      request.tokens.reused = sequence.num_committed();
    }
  }

  void resumed(Request& request, const Sequence& sequence, const KvCacheManager& manager) const {
    if (request.was_resumed) return;
    request.was_resumed = true;
    const std::int64_t size = manager.tokens_per_block();
    for (const LayerGroupDesc& group : manager.layer_groups().groups()) {
      const auto slots = sequence.slots(group.id);
      const auto last = static_cast<std::size_t>(sequence.num_committed() / size);
      const bool is_state = std::holds_alternative<Recurrent>(group.kind);
      const bool has_copy =
          is_state || (sequence.num_committed() % size != 0 && slots[last] != kNoSlot);
      request.num_copies[static_cast<std::size_t>(group.id.value())] = has_copy ? 1 : 0;
    }
  }

  // Directly after a resize.
  void resized(Request& request, const Sequence& sequence, const KvCacheManager& manager) const {
    const bool is_generated =
        request.expected_prompt_length > 0 && sequence.history() >= request.expected_prompt_length;
    for (const LayerGroupDesc& group : manager.layer_groups().groups()) {
      if (std::holds_alternative<Recurrent>(group.kind)) continue;
      auto& blocks = request.blocks[static_cast<std::size_t>(group.id.value())];
      const auto slots = sequence.slots(group.id);
      for (std::int64_t block = request.num_blocks; block < sequence.num_blocks(); ++block) {
        if (slots[static_cast<std::size_t>(block)] != kNoSlot) {
          blocks.push_back({block, is_generated});
        }
      }
      std::erase_if(blocks,
                    [&](const auto& added) { return added.block >= sequence.num_blocks(); });
    }
    request.num_blocks = sequence.num_blocks();
  }

  // The manager's word against ours.
  void check_pending(const Request& request, const Sequence& sequence) const {
    const RequestStatistics pending = sequence.pending_statistics();
    for (std::size_t g = 0; g < pending.groups.size(); ++g) {
      expect_same(pending.groups[g], use_of(request, g));
    }
    expect_same(pending.tokens, request.is_counted ? request.tokens : TokenUse());
  }

  // What is pending is committed, or forgotten.
  void settled(Request& request, bool is_committed) {
    for (std::size_t g = 0; g < total_.groups.size(); ++g) {
      if (is_committed) add(total_.groups[g].use, use_of(request, g));
      request.blocks[g].clear();
      request.num_copies[g] = 0;
    }
    if (is_committed && request.is_counted) add(total_.tokens, request.tokens);
    request.tokens = {};
  }

  void check(const KvCacheManager& manager) const {
    const CacheStatistics statistics = manager.statistics();
    std::int64_t dropped = 0;
    for (std::size_t g = 0; g < total_.groups.size(); ++g) {
      expect_same(statistics.groups[g].use, total_.groups[g].use);
      dropped += statistics.groups[g].dropped.pages;
    }
    expect_same(statistics.tokens, total_.tokens);
    EXPECT_EQ(dropped, is_on_ ? manager.counters().pages_dropped : 0);
  }

  std::int64_t num_pages() const {
    std::int64_t pages = 0;
    for (const GroupStatistics& group : total_.groups) pages += group.use.pages_allocated;
    return pages;
  }

 private:
  static GroupUse use_of(const Request& request, std::size_t group) {
    GroupUse use;
    if (!request.is_counted) return use;
    for (const Request::NewBlock& block : request.blocks[group]) {
      ++(block.is_generated     ? use.pages_generated
         : request.is_recompute ? use.pages_recomputed
                                : use.pages_missed);
    }
    use.pages_allocated =
        use.pages_generated + use.pages_recomputed + use.pages_missed + request.num_copies[group];
    return use;
  }

  static void add(GroupUse& sum, const GroupUse& more) {
    sum.pages_allocated += more.pages_allocated;
    sum.pages_missed += more.pages_missed;
    sum.pages_recomputed += more.pages_recomputed;
    sum.pages_generated += more.pages_generated;
  }
  static void add(TokenUse& sum, const TokenUse& more) {
    sum.queried += more.queried;
    sum.reused += more.reused;
    sum.recompute_queried += more.recompute_queried;
    sum.recompute_reused += more.recompute_reused;
  }

  static void expect_same(const GroupUse& counted, const GroupUse& expected) {
    EXPECT_EQ(counted.pages_allocated, expected.pages_allocated);
    EXPECT_EQ(counted.pages_missed, expected.pages_missed);
    EXPECT_EQ(counted.pages_recomputed, expected.pages_recomputed);
    EXPECT_EQ(counted.pages_generated, expected.pages_generated);
  }
  static void expect_same(const TokenUse& counted, const TokenUse& expected) {
    EXPECT_EQ(counted.queried, expected.queried);
    EXPECT_EQ(counted.reused, expected.reused);
    EXPECT_EQ(counted.recompute_queried, expected.recompute_queried);
    EXPECT_EQ(counted.recompute_reused, expected.recompute_reused);
    std::int64_t found = 0;
    for (const TierTokens& tier : counted.tiers) found += tier.found;
    EXPECT_EQ(found, expected.reused);
  }

  bool is_on_ = true;
  CacheStatistics total_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_STATISTICS_RECOUNT_H_
