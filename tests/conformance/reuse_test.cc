// What is found again. Behaviour of TensorRT-LLM's KV cache manager V2; docs/conformance.md maps
// its cases to ours.

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();

KvCacheConfig endpoints(KvCacheConfig config) {
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  return config;
}

// cache_reuse: a prefix of any length, aligned or not, is found by whoever shares it.
class CacheReuse : public testing::TestWithParam<int> {};

TEST_P(CacheReuse, AnUnalignedPrefixIsFound) {
  TestCache cache(test_config({SlidingWindow{128, 48}, kFull}, 32));
  const Tokens prompt = numbers(0, 32 * 9 + 17);
  for (int round = 0; round < GetParam(); ++round) {
    Sequence sequence = cache.create(prompt);
    EXPECT_EQ(sequence.num_committed(), round == 0 ? 0 : std::ssize(prompt) - 1);
    cache.resume(sequence);
    cache.compute(sequence, prompt);
    sequence.close();
    EXPECT_EQ(cache.reusable(prompt), std::ssize(prompt));
  }
  // Nothing is held by anybody: all pages can be dropped.
  for (const LayerGroupDesc& group : cache.manager->layer_groups().groups()) {
    EXPECT_EQ(cache.manager->room(storage::Tier::kDevice, group.id).unavailable, 0);
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

INSTANTIATE_TEST_SUITE_P(Rounds, CacheReuse, testing::Values(1, 2, 4));

// cache_reuse_performance: the second pass over 20 prompts computes one token each.
TEST(Reuse, ASecondPassFindsEverything) {
  TestCache cache(test_config({kFull}, 32, 4 << 20));
  for (int i = 0; i < 20; ++i) cache.run(numbers(i * 10'000, 1000));
  for (int i = 0; i < 20; ++i) EXPECT_EQ(cache.reusable(numbers(i * 10'000, 1000)), 1000);
}

// commit_min_snapshot_reuses_swa_post_commit_prefix: of a window only what is needed at the end
// stays, so the whole prompt is found and its front alone is not.
TEST(Reuse, EndpointsKeepTheWindowOfTheEndOnly) {
  TestCache cache(endpoints(test_config({SlidingWindow{64, 0}, kFull}, 32)));
  const Tokens prompt = numbers(0, 128);
  Sequence sequence = cache.create(prompt);
  cache.resume(sequence);
  cache.compute(sequence, prompt);
  const auto slots = sequence.slots(LayerGroupId(0));
  EXPECT_EQ(slots[0], kNoSlot);
  EXPECT_EQ(slots[1], kNoSlot);
  EXPECT_NE(slots[2], kNoSlot);
  EXPECT_NE(slots[3], kNoSlot);
  sequence.close();
  EXPECT_EQ(cache.reusable(prompt), 128);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 0);
}

// reuse_across_prefill_turns_keeps_only_window_minus_one: no scratch pages are needed for that. A
// prompt that is computed in turns leaves what the window needs, 63 tokens, and all of it is found.
TEST(Reuse, TurnsOfAPrefillLeaveTheWindowLessOne) {
  for (const bool is_endpoints : {false, true}) {
    KvCacheConfig config = test_config({SlidingWindow{64, 0}, kFull}, 32);
    TestCache cache(is_endpoints ? endpoints(std::move(config)) : std::move(config));
    const Tokens prompt = numbers(0, 127);
    Sequence sequence = cache.create(prompt);
    cache.resume(sequence);
    for (const std::int64_t turn : {50, 100, 127}) cache.compute(sequence, numbers(0, turn));
    const auto slots = sequence.slots(LayerGroupId(0));
    EXPECT_EQ(slots[0], kNoSlot);
    EXPECT_EQ(slots[1], kNoSlot);
    EXPECT_NE(slots[2], kNoSlot);
    EXPECT_NE(slots[3], kNoSlot);
    sequence.close();
    cache.manager->synchronize();
    EXPECT_EQ(cache.reusable(prompt), 127);
    Sequence next = cache.create(numbers(0, 140));
    EXPECT_EQ(next.num_committed(), 127);
    cache.resume(next);
    cache.compute(next, numbers(0, 140));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// reuse_match_backoff_trims_the_tail_of_every_match.
TEST(Reuse, ABackoffTrimsTheTailOfEveryMatch) {
  KvCacheConfig config = test_config({kFull}, 8);
  config.reuse_match_backoff = 3;
  TestCache cache(std::move(config));
  const Tokens prompt = numbers(0, 32);
  cache.run(prompt);
  EXPECT_EQ(cache.reusable(prompt), 29);
  EXPECT_EQ(cache.reusable(numbers(0, 2)), 0) << "shorter than the backoff";
  Tokens longer = prompt;
  longer.push_back(7);
  const Sequence sequence = cache.create(longer);
  EXPECT_EQ(sequence.num_committed(), 29);
}

// reuse_scope_isolates_reuse.
TEST(Reuse, ScopesAreApart) {
  TestCache cache(test_config({kFull}, 8));
  const Tokens prompt = numbers(0, 32);
  cache.run(prompt, {7, 11});
  EXPECT_EQ(cache.reusable(prompt, {7, 11}), 32);
  const ReuseScope others[] = {{7, 12}, {8, 11}, {7, {}}, {{}, 11}, {}};
  for (const ReuseScope& scope : others) EXPECT_EQ(cache.reusable(prompt, scope), 0);
}

// The prefix digest after block `block` of `tokens`.
Digest128 block_key(const TestCache& cache, const Tokens& tokens, std::int64_t tokens_per_block,
                    std::int64_t block) {
  Digest128 prefix = root_prefix({});
  for (std::int64_t i = 0; i <= block; ++i) {
    prefix = next_prefix(prefix,
                         std::span(tokens).subspan(static_cast<std::size_t>(i * tokens_per_block),
                                                   static_cast<std::size_t>(tokens_per_block)),
                         cache.manager->token_digests());
  }
  return prefix;
}

// test_first_new_block_probe: the key names the first block to be computed; equal prompts have
// equal keys, and part where the prompts part.
TEST(FirstNewBlock, NamesTheBlockToBeComputed) {
  TestCache cache(test_config({kFull}, 8));
  const KvCacheManager& manager = *cache.manager;
  const Tokens a = numbers(0, 24);
  Tokens b = a;
  b[20] = 999;
  EXPECT_EQ(manager.probe_first_new_block({}, a), manager.probe_first_new_block({}, b))
      << "both would compute the same first block";
  EXPECT_NE(manager.probe_first_new_block({}, a), manager.probe_first_new_block({{}, 1}, a));
  EXPECT_FALSE(manager.probe_first_new_block({}, numbers(0, 7)).has_value());
  cache.run(numbers(0, 16));
  EXPECT_NE(manager.probe_first_new_block({}, a), manager.probe_first_new_block({}, b));
  EXPECT_FALSE(manager.probe_first_new_block({}, numbers(0, 20)).has_value())
      << "the next block is not full";
  EXPECT_NE(manager.probe_first_new_block({}, a), std::nullopt);
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  EXPECT_EQ(manager.probe_first_new_block({}, a), manager.probe_first_new_block({}, b));
}

// The same with a backoff: the block that is trimmed is to be computed again.
TEST(FirstNewBlock, CountsFromAfterTheBackoff) {
  for (const std::int64_t backoff : {1, 4, 5, 16}) {
    KvCacheConfig config = test_config({kFull}, 8);
    config.reuse_match_backoff = backoff;
    TestCache cache(std::move(config));
    const Tokens prompt = numbers(0, 32);
    const auto root = cache.manager->probe_first_new_block({}, prompt);
    cache.run(prompt);
    const std::int64_t reused = cache.manager->probe_reuse({}, prompt).reused;
    EXPECT_EQ(reused, 31 - backoff);
    const auto key = cache.manager->probe_first_new_block({}, prompt);
    ASSERT_TRUE(key.has_value());
    EXPECT_NE(key, root);
    EXPECT_EQ(key, block_key(cache, prompt, 8, reused / 8)) << backoff;
  }
}

// Partial shared lengths, without a window and with one: the key is that of the block where the
// prompts part, which is computed again however much of it is known.
TEST(FirstNewBlock, IsTheBlockWherePromptsPart) {
  const std::vector<std::vector<LayerKind>> models = {{kFull}, {kFull, SlidingWindow{4, 0}}};
  for (const std::vector<LayerKind>& kinds : models) {
    TestCache cache(test_config(kinds, 4));
    cache.run(numbers(0, 12));
    for (const std::int64_t shared : {0, 1, 3, 4, 5, 7, 8, 11}) {
      Tokens fork = numbers(0, shared);
      while (fork.size() < 17) fork.push_back(5000 + static_cast<TokenId>(fork.size()));
      EXPECT_EQ(cache.manager->probe_reuse({}, fork).reused, shared);
      EXPECT_EQ(cache.manager->probe_first_new_block({}, fork),
                block_key(cache, fork, 4, shared / 4))
          << shared;
    }
    EXPECT_EQ(cache.manager->probe_first_new_block({}, numbers(0, 17)),
              block_key(cache, numbers(0, 17), 4, 3));
  }
}

// Of a window only the block at the end is kept, so a prompt that parts earlier begins from
// nothing.
TEST(FirstNewBlock, IsTheFirstThatTheWindowLeavesToCompute) {
  TestCache cache(endpoints(test_config({kFull, SlidingWindow{4, 0}}, 4)));
  cache.run(numbers(0, 12));
  const auto key = [&](std::int64_t shared) {
    Tokens fork = numbers(0, shared);
    while (fork.size() < 17) fork.push_back(5000 + static_cast<TokenId>(fork.size()));
    for (std::int64_t block = 0; block < 4; ++block) {
      if (cache.manager->probe_first_new_block({}, fork) == block_key(cache, fork, 4, block)) {
        return block;
      }
    }
    return std::int64_t{-1};
  };
  EXPECT_EQ(key(8), 0);
  EXPECT_EQ(key(9), 0);
  EXPECT_EQ(key(11), 2) << "the window lies in the last block";
  EXPECT_EQ(key(12), 3);
}

// Images count by their digests: whatever token stands for one, and whoever came first.
TEST(FirstNewBlock, CountsAnImageByItsDigest) {
  Sha256Digest cat = {};
  Sha256Digest dog = {};
  dog[31] = std::byte{1};
  const auto prompt = [](TokenId image) {
    Tokens tokens = numbers(0, 5);
    for (const TokenId token : item_tokens(image, 100'000, 6)) tokens.push_back(token);
    for (const TokenId token : numbers(50, 14)) tokens.push_back(token);
    return tokens;
  };
  TestCache cache(test_config({kFull}, 8));
  TestCache elsewhere(test_config({kFull}, 8));
  const TokenId cat_token = *cache.manager->token_digests().acquire(cat);
  const TokenId dog_token = *cache.manager->token_digests().acquire(dog);
  const TokenId other_dog = *elsewhere.manager->token_digests().acquire(dog);
  ASSERT_NE(dog_token, other_dog);
  const auto key = [](const TestCache& in, const Tokens& tokens) {
    return in.manager->probe_first_new_block({}, tokens);
  };
  EXPECT_EQ(key(cache, prompt(cat_token)), block_key(cache, prompt(cat_token), 8, 0));
  EXPECT_NE(key(cache, prompt(cat_token)), key(cache, prompt(dog_token)));
  EXPECT_EQ(key(cache, prompt(dog_token)), key(elsewhere, prompt(other_dog)));
  Tokens front = prompt(cat_token);
  front.resize(16);
  cache.run(front);
  EXPECT_EQ(key(cache, prompt(cat_token)), block_key(cache, prompt(cat_token), 8, 2));
  EXPECT_EQ(key(cache, prompt(dog_token)), key(elsewhere, prompt(other_dog)));
}

// Digest tokens are found by their digest.
TEST(Reuse, ImagesAreFoundByTheirDigests) {
  TestCache cache(test_config({kFull}, 8));
  TokenDigests& digests = cache.manager->token_digests();
  Sha256Digest cat = {};
  Sha256Digest dog = {};
  dog[5] = std::byte{1};
  const TokenId cat_token = *digests.acquire(cat);
  const TokenId dog_token = *digests.acquire(dog);
  const auto prompt = [](TokenId image) {
    Tokens tokens = numbers(0, 5);
    for (const TokenId token : item_tokens(image, 100'000, 6)) tokens.push_back(token);
    for (const TokenId token : numbers(50, 13)) tokens.push_back(token);
    return tokens;
  };
  cache.run(prompt(cat_token));
  EXPECT_EQ(cache.reusable(prompt(cat_token)), 24);
  EXPECT_EQ(cache.reusable(prompt(dog_token)), 5);
  const std::vector<TokenId> held = {cat_token, dog_token};
  digests.release(held);
  EXPECT_EQ(digests.size(), 1u) << "the tree holds the cat";
  EXPECT_EQ(*digests.acquire(cat), cat_token);
  digests.release(std::vector<TokenId>{cat_token});
  ASSERT_TRUE(cache.manager->shutdown().has_value());
  EXPECT_EQ(digests.size(), 0u);
}

// test_branch_reuse: a partial block is never written to where somebody else sees it.
TEST(Reuse, APartialBlockIsNeverRebasedOntoASharedPage) {
  TestCache cache(test_config({kFull}, 8));
  cache.run(numbers(0, 8));
  Tokens fork = numbers(0, 5);
  Sequence sequence = cache.create(fork);
  cache.resume(sequence);
  cache.compute(sequence, fork);
  const SlotId own = sequence.slots(LayerGroupId(0))[0];
  for (const TokenId token : {70, 71, 72}) {
    fork.push_back(token);
    cache.compute(sequence, fork);
    EXPECT_EQ(sequence.slots(LayerGroupId(0))[0], own);
  }
  Sequence first = cache.create(numbers(0, 9));
  EXPECT_EQ(first.num_committed(), 8);
  cache.resume(first);
  cache.compute(first, numbers(0, 9));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// Two sequences that compute the same block end up on one page.
TEST(Reuse, EqualFullBlocksShareAPage) {
  TestCache cache(test_config({kFull}, 8));
  Sequence a = cache.create(numbers(0, 17));
  Sequence b = cache.create(numbers(0, 17));
  cache.resume(a);
  cache.resume(b);
  cache.compute(a, numbers(0, 17));
  cache.compute(b, numbers(0, 17));
  const auto of_a = a.slots(LayerGroupId(0));
  const auto of_b = b.slots(LayerGroupId(0));
  EXPECT_EQ(of_a[0], of_b[0]);
  EXPECT_EQ(of_a[1], of_b[1]);
  EXPECT_NE(of_a[2], of_b[2]) << "both may still write to their last block";
  cache.compute(a, numbers(0, 30));
  cache.compute(b, numbers(0, 30));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// 32 children and more: partial matches do not stop at any number. (There they do.)
TEST(Reuse, ManySiblingsAreNoLimit) {
  TestCache cache(test_config({kFull}, 8, 4 << 20));
  for (TokenId i = 0; i < 100; ++i) {
    Tokens prompt = numbers(0, 8);
    for (TokenId j = 0; j < 8; ++j) prompt.push_back(1000 * (i + 1) + j);
    cache.run(prompt);
  }
  Tokens fork = numbers(0, 8);
  for (const TokenId token : {50'000, 50'001, 50'002, 1, 1}) fork.push_back(token);
  EXPECT_EQ(cache.reusable(fork), 11) << "three tokens of the 50th";
}

// test_block_radix_tree_stale_prune, both index orders: the end of a branch stays while a page of
// any group is there, and goes with the last one, up to the root.
TEST(Prune, TheEndOfABranchStaysForAPageOfAnyGroup) {
  for (const std::int32_t scarce : {0, 1}) {
    KvCacheConfig config = test_config({SlidingWindow{8, 0}, SlidingWindow{7, 0}}, 8, 2 * 4096);
    // Four slots for the one, 64 for the other.
    config.layers[static_cast<std::size_t>(scarce)].buffers[0].bytes = 1024;
    config.initial_pool_ratio = {0.5, 0.5};
    TestCache cache(std::move(config));
    const auto room = [&](std::int32_t group) {
      return cache.manager->room(storage::Tier::kDevice, LayerGroupId(group));
    };
    ASSERT_EQ(room(scarce).total, 4);
    ASSERT_EQ(room(1 - scarce).total, 64);
    const Tokens prompt = numbers(0, 9);
    cache.run(numbers(0, 8));
    EXPECT_EQ(cache.manager->probe_reuse({}, prompt), (MatchDepths{8, 8, 8, 8}));
    for (TokenId i = 1; i <= 4; ++i) cache.run(numbers(i * 1000, 8));
    EXPECT_EQ(room(1 - scarce).free, 64 - 5);
    EXPECT_EQ(cache.manager->probe_reuse({}, prompt), (MatchDepths{8, 8, 0, 0}));
    for (TokenId i = 5; i <= 64; ++i) cache.run(numbers(i * 1000, 8));
    EXPECT_EQ(cache.manager->probe_reuse({}, prompt), (MatchDepths{8, 0, 0, 0}));
    EXPECT_EQ(cache.manager->probe_reuse({}, numbers(1000, 9)).content, 8) << "the next is there";
  }
}

// TestPartialCoverageReuse: one full group and a window of 16, endpoints only, blocks of 32.
class PartialCoverage : public testing::Test {
 protected:
  // Commits `length` tokens at once, and ends.
  void turn(const Tokens& tokens) {
    Sequence sequence = cache.create(tokens);
    cache.resume(sequence);
    cache.compute(sequence, tokens);
    cache.manager->synchronize();
  }
  // The same, where the step has ended before it is committed.
  void finished_turn(const Tokens& tokens) {
    Sequence sequence = cache.create(tokens);
    cache.resume(sequence);
    compute_and_wait(sequence, tokens);
  }
  void compute_and_wait(Sequence& sequence, const Tokens& tokens) {
    const std::int64_t from = sequence.history();
    ASSERT_TRUE(sequence.resize(std::ssize(tokens), from).has_value());
    cache.engine.step(sequence, tokens, from).wait();
    const auto known = static_cast<std::size_t>(sequence.num_committed());
    ASSERT_TRUE(sequence.commit(std::span(tokens).subspan(known)).has_value());
    cache.manager->synchronize();
    cache.manager->audit();
  }
  // Device slots with a page in them; both groups have theirs in one pool.
  std::int32_t num_used() const {
    const TierRoom room = cache.manager->room(storage::Tier::kDevice, LayerGroupId(0));
    return room.total - room.free;
  }
  // How many tokens of a block of numbers(0, ...) each group's page covers; 0 where it has none. A
  // longer block takes the place of a shorter one once it is written, and somebody looks.
  std::pair<std::int64_t, std::int64_t> coverage(std::int64_t block) {
    static_cast<void>(cache.create(numbers(0, (block + 1) * 32 + 1)));
    const Tokens tokens = numbers(0, (block + 1) * 32);
    const auto keys = block_keys({}, tokens, 32, cache.manager->token_digests());
    std::int64_t ends[2] = {0, 0};
    for (const CachedPage& page : cache.manager->cached_pages()) {
      if (page.key != keys.back()) continue;
      ends[page.group.value()] = page.end - block * 32;
    }
    return {ends[0], ends[1]};
  }
  TestCache cache{endpoints(test_config({kFull, SlidingWindow{16, 0}}, 32))};
};

// rewind_endpoint_survives_longer_sibling_created_after: of the block where the first one ends,
// full attention has 32 tokens, and the window 16.
TEST_F(PartialCoverage, AnEndpointSurvivesALongerSibling) {
  turn(numbers(0, 80));
  turn(numbers(0, 160));
  EXPECT_THAT(coverage(2), testing::Pair(32, 16));
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 80);
  EXPECT_EQ(cache.reusable(numbers(0, 160)), 160);
}

// rewind_endpoint_attaches_to_longer_sibling_created_before.
TEST_F(PartialCoverage, AnEndpointAttachesToALongerSibling) {
  turn(numbers(0, 160));
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 0);
  turn(numbers(0, 80));
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 80);
  EXPECT_EQ(cache.reusable(numbers(0, 160)), 160);
}

// reused_partial_coverage_kv_is_correct.
TEST_F(PartialCoverage, WhatIsCoveredInPartIsCorrect) {
  turn(numbers(0, 80));
  turn(numbers(0, 160));
  Tokens fork = numbers(0, 80);
  for (TokenId i = 0; i < 60; ++i) fork.push_back(7000 + i);
  Sequence sequence = cache.create(fork);
  EXPECT_EQ(sequence.num_committed(), 80);
  cache.resume(sequence);
  cache.compute(sequence, fork);
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// page_coverage_only_grows: 16, then 24, and it stays 24.
TEST_F(PartialCoverage, CoverageOnlyGrows) {
  turn(numbers(0, 96));
  turn(numbers(0, 32 + 16));
  EXPECT_THAT(coverage(1), testing::Pair(32, 16));
  turn(numbers(0, 32 + 24));
  EXPECT_THAT(coverage(1), testing::Pair(32, 24));
  turn(numbers(0, 32 + 20));
  EXPECT_THAT(coverage(1), testing::Pair(32, 24));
  EXPECT_EQ(cache.reusable(numbers(0, 32 + 24)), 32 + 24);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
}

// replaced_page_does_not_outlive_its_block: the wider page takes the place of the one that ends
// within the block, which is gone at once; nothing of it is left when the block goes.
TEST_F(PartialCoverage, AReplacedPageGoesAtOnce) {
  finished_turn(numbers(0, 80));
  EXPECT_EQ(num_used(), 3 + 1) << "three blocks, the last of which the window needs";
  finished_turn(numbers(0, 96));
  EXPECT_EQ(num_used(), 3 + 1);
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 80);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  EXPECT_EQ(num_used(), 0);
}

// replaced_reused_page_does_not_outlive_its_block: somebody has matched the page that is replaced,
// and has taken his copy of it or not yet. What he takes is right, and the page goes with its
// block.
TEST_F(PartialCoverage, WhoHasMatchedAReplacedPageReadsItAsItWas) {
  for (const bool has_copied : {false, true}) {
    finished_turn(numbers(0, 80));
    Tokens fork = numbers(0, 80);
    for (TokenId i = 0; i < 40; ++i) fork.push_back(7000 + i);
    Sequence holder = cache.create(fork);
    EXPECT_EQ(holder.num_committed(), 80);
    if (has_copied) cache.resume(holder);
    finished_turn(numbers(0, 96));
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
    if (!has_copied) cache.resume(holder);
    compute_and_wait(holder, fork);
    EXPECT_EQ(cache.engine.mismatches(), 0);
    holder.close();
    cache.manager->synchronize();
    EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
    EXPECT_EQ(cache.reusable(fork), 120);
    // Two blocks in common, and two branches: of the one a block, of the other two. The block that
    // was held when the longer one came may stay beside it, with its two pages.
    EXPECT_LE(num_used(), 2 + (1 + 1) + (2 + 1) + 2) << has_copied;
    ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
    EXPECT_EQ(num_used(), 0);
  }
}

// exact_boundary_ignores_stale_last_block_partial_coverage: with a window of 1, nothing before an
// exact boundary is needed, so it does not matter that the window's page of the last block ends
// after 80 tokens.
TEST(Reuse, AWindowOfOneNeedsNothingAtABoundary) {
  TestCache cache(endpoints(test_config({kFull, SlidingWindow{1, 0}}, 32)));
  Sequence sequence = cache.create(numbers(0, 96));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 80));
  cache.compute(sequence, numbers(0, 96));
  sequence.close();
  cache.manager->synchronize();
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 96);
  EXPECT_EQ(cache.reusable(numbers(0, 95)), 80) << "within the block it does";
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 80);
}

// reuse_backoff_rechecks_swa_coverage_at_final_endpoint: W 33, backoff 1; 96 is trimmed to 95,
// whose window needs block 1, which is gone.
TEST(Reuse, ABackoffIsTakenBeforeTheWindowIsChecked) {
  KvCacheConfig config = endpoints(test_config({kFull, SlidingWindow{33, 0}}, 32));
  config.reuse_match_backoff = 1;
  TestCache cache(std::move(config));
  Sequence first = cache.create(numbers(0, 48));
  cache.resume(first);
  cache.compute(first, numbers(0, 48));
  cache.compute(first, numbers(0, 96));
  first.close();
  EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 97)).content, 96);
  EXPECT_EQ(cache.reusable(numbers(0, 96)), 48);
}

}  // namespace
}  // namespace slackwater::cache
