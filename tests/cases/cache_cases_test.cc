// Faults that users of other engines have met, as classes: what went wrong there, replayed on our
// cache with other numbers each time. Here: how much of a prompt is found, lengths and tables, and
// the tree. Each comment names the public reports.

#include <algorithm>
#include <array>
#include <span>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;
using storage::Tier;
using ::testing::HasSubstr;

// C04, reconciling hit lengths: one length, which every group can serve in full; a margin is taken
// once. KB-C04-01 (vLLM 46281, 47861): with a drafter the groups disagree. KB-C04-03 (vLLM 39171,
// 33270, 51771): three groups, and the length spirals to 0. KB-C04-05 (vLLM 52771): no group is the
// drafter's, and all of them give way.
TEST(C04HitLength, EveryGroupServesOneLengthAndTheMarginIsTakenOnce) {
  for (const std::int64_t margin : {0, 1, 8, 16}) {
    for (const std::int64_t published : {16, 32, 96, 272}) {
      KvCacheConfig config =
          test_config({kFull, SlidingWindow{8, 0}, SlidingWindow{40, 3}, kFull}, 16);
      config.layers[3].group_tag = "draft";
      config.reuse_match_backoff = margin;
      TestCache cache(std::move(config));
      cache.run(numbers(0, published));
      EXPECT_EQ(cache.reusable(numbers(0, published)),
                std::max<std::int64_t>(0, published - margin));
      Sequence c = cache.create(numbers(0, published + 20));
      cache.resume(c);
      cache.compute(c, numbers(0, published + 20));
      EXPECT_EQ(cache.engine.mismatches(), 0) << "every group owns what it needs";
    }
  }
}

// With states the length is where one is, not a margin before it.
TEST(C04HitLength, AStateIsNeverPeekedPast) {
  KvCacheConfig config = test_config({kFull, kState, kFull}, 16);
  config.layers[2].group_tag = "draft";
  config.reuse_match_backoff = 16;
  TestCache cache(std::move(config));
  Sequence a = cache.create(numbers(0, 48));
  cache.resume(a);
  ASSERT_TRUE(a.resize(48).has_value());
  for (const std::int64_t position : {16, 32, 48}) {
    ASSERT_TRUE(a.reserve_snapshot(position).has_value());
  }
  cache.compute(a, numbers(0, 48));
  a.close();
  EXPECT_EQ(cache.reusable(numbers(0, 48)), 32);
}

// KB-C04-05: 1, 2, 3 and 17 blocks lie on the host. A margin is a number of tokens of the whole
// cache and not a block of each group, whether some of the layers are a drafter's or none: without
// one all is found, with one it is taken off once, and with states the last one before it serves.
TEST(C04HitLength, WhatLiesOnTheHostIsFoundInFull) {
  for (const bool has_drafter : {false, true}) {
    for (const bool has_states : {false, true}) {
      for (const std::int64_t margin : {0, 3, 16}) {
        for (const std::int64_t blocks : {1, 2, 3, 17}) {
          SCOPED_TRACE(testing::Message() << "drafter " << has_drafter << " states " << has_states
                                          << " margin " << margin << " blocks " << blocks);
          std::vector<LayerKind> kinds = {kFull, SlidingWindow{24, 0}};
          if (has_states) kinds.push_back(kState);
          KvCacheConfig config = Crowd::config(std::move(kinds), 16, 60, 200);
          if (has_drafter) config.layers[1].group_tag = "draft";
          config.reuse_match_backoff = margin;
          TestCache cache(std::move(config));
          const std::int64_t length = 16 * blocks;
          {
            Sequence a = cache.create({});
            cache.resume(a);
            ASSERT_TRUE(a.resize(length).has_value());
            for (std::int64_t at = 16; has_states && at < length; at += 16) {
              ASSERT_TRUE(a.reserve_snapshot(at).has_value());
            }
            cache.compute(a, numbers(0, length));
          }
          const std::int32_t host = num_taken(cache, Tier::kHost);
          Sequence squeeze = cache.create({});
          cache.resume(squeeze);
          while (squeeze.resize(squeeze.capacity() + 16).has_value()) {
          }
          EXPECT_GE(num_taken(cache, Tier::kHost) - host, blocks) << "it lies on the host";
          squeeze.close();
          const std::int64_t usable = length - margin;
          const std::int64_t found = has_states ? usable / 16 * 16 : usable;
          EXPECT_EQ(cache.reusable(numbers(0, length)), found);
          Sequence c = cache.create(numbers(0, length + 5));
          EXPECT_EQ(c.num_committed(), found);
          cache.resume(c);
          cache.compute(c, numbers(0, length + 5));
          EXPECT_EQ(cache.engine.mismatches(), 0);
        }
      }
    }
  }
}

// C05, stale numbers: every index and length is that of now. KB-C05-01 (TensorRT-LLM 13592): a row
// of the batch before survives a suspend. KB-C05-05 (18661, 19120): drafts are given back by
// another width than they were taken. KB-C05-06 (14531): slots asked for are not those consumed.
// KB-C05-07 (12306): tables too short for drafts. KB-C05-02 (17387) is the store's: C13 and its
// shrink tests. KB-C05-09 (vLLM 46595, LMCache 1361): a tracker that guesses.
TEST(C05StaleNumbers, LengthsAndTablesAreThoseOfNow) {
  for (std::int64_t drafts = 0; drafts <= 7; ++drafts) {
    TestCache cache(test_config({kFull, SlidingWindow{20, 0}}, 16));
    std::vector<SlotId> table(16);
    Sequence a = cache.create(numbers(0, 30));
    ASSERT_TRUE(a.set_index_table(kGroup, table).has_value());
    cache.resume(a);
    cache.compute(a, numbers(0, 30));
    for (std::int64_t length = 30; length < 64;) {
      const std::int64_t accepted = (length * 7) % (drafts + 1);
      ASSERT_TRUE(a.resize(length + 1 + drafts).has_value());
      cache.engine.step(a, numbers(0, length + 1), length);
      // Everything that was taken for drafts goes back, whatever was accepted.
      const std::int64_t end = length + 1 + accepted;
      if (accepted > 0) cache.engine.step(a, numbers(0, end), length + 1);
      ASSERT_TRUE(a.resize(end, end).has_value());
      ASSERT_TRUE(
          a.commit(
               std::span<const TokenId>(numbers(0, end)).subspan(static_cast<std::size_t>(length)),
               {cache.engine.stream().record(), false})
              .has_value());
      length = end;
      EXPECT_EQ(a.capacity(), length);
      EXPECT_EQ(std::ssize(a.slots(kGroup)), (length + 15) / 16);
      EXPECT_EQ(a.resize(length - 1).error().code(), ErrorCode::kInvalidArgument);
      ASSERT_TRUE(a.suspend().has_value());
      EXPECT_EQ(a.history(), length);
      EXPECT_THAT(table, testing::Each(kNoSlot));
      cache.resume(a);
      EXPECT_TRUE(std::equal(a.slots(kGroup).begin(), a.slots(kGroup).end(), table.begin()));
      cache.manager->audit();
    }
    EXPECT_EQ(cache.engine.stream().synchronize(), EventStatus::kSucceeded);
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// KB-C05-06: slots asked for are those consumed. We build no scratch pages, and a history is never
// rewound: drafts lie between the history and the capacity, and go back from there.
std::int64_t num_in_tables(const TestCache& cache, const Sequence& sequence) {
  std::int64_t count = 0;
  for (const LayerGroupDesc& group : cache.manager->layer_groups().groups()) {
    const std::span<const SlotId> slots = sequence.slots(group.id);
    count += std::ssize(slots) - std::count(slots.begin(), slots.end(), kNoSlot);
  }
  return count;
}

KvCacheConfig slots_alike(std::vector<LayerKind> kinds, std::int64_t device_slots) {
  KvCacheConfig config = test_config(std::move(kinds), 8, device_slots * 4096);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 4096;
  return config;
}

// Grows by up to two blocks of drafts, gives most of them back, and goes on. Returns the most that
// was in use, and whether all calls had room.
std::pair<std::int64_t, bool> draft(std::int64_t device_slots) {
  TestCache cache(slots_alike({kFull, SlidingWindow{8, 0}, SlidingWindow{20, 3}}, device_slots));
  EXPECT_EQ(cache.manager->room(Tier::kDevice, kGroup).total, device_slots);
  Sequence a = cache.create({});
  cache.resume(a);
  // So that windows let go of what they leave behind, and do not keep it to be committed.
  EXPECT_TRUE(a.stop_committing().has_value());
  std::int64_t most = 0;
  for (std::int64_t history = 0; history <= 96; history += 7) {
    for (const std::int64_t capacity : {history + 8, history + 16, history + 1}) {
      const std::int64_t before = num_in_tables(cache, a);
      const auto resized = a.resize(capacity, history);
      EXPECT_EQ(num_free(cache), device_slots - num_in_tables(cache, a));
      cache.manager->audit();
      most = std::max(most, num_in_tables(cache, a));
      if (resized.has_value()) continue;
      EXPECT_EQ(resized.error().code(), ErrorCode::kResourceExhausted);
      EXPECT_EQ(num_in_tables(cache, a), before);
      return {most, false};
    }
  }
  return {most, true};
}

TEST(C05StaleNumbers, SlotsAskedForAreThoseConsumed) {
  const auto [most, fits] = draft(100);
  ASSERT_TRUE(fits);
  EXPECT_EQ(draft(most), std::pair(most, true)) << "none more is asked for than is used";
  EXPECT_FALSE(draft(most - 1).second);
  // 64 tokens, of which 56 are computed, become 72: a block more of each group, less what the
  // window leaves behind.
  for (const std::int64_t history : {56, 64}) {
    TestCache cache(slots_alike({kFull, SlidingWindow{8, 0}}, 40));
    Sequence a = cache.create({});
    cache.resume(a);
    ASSERT_TRUE(a.stop_committing().has_value());
    ASSERT_TRUE(a.resize(64, 56).has_value());
    EXPECT_EQ(num_in_tables(cache, a), 8 + 2);
    const std::int32_t free = num_free(cache);
    ASSERT_TRUE(a.resize(72, history).has_value());
    EXPECT_EQ(num_in_tables(cache, a), 9 + (history == 56 ? 3 : 2));
    EXPECT_EQ(num_free(cache), free - (history == 56 ? 2 : 1));
  }
}

// KB-C05-07: tables too short for drafts at the greatest length. 64 tokens at most, blocks of 16,
// three drafts: at 63 the last one is token 67, in a fifth block. The table of a state has one
// entry, however long the sequence is.
TEST(C05StaleNumbers, ATableTooShortForDraftsIsNeverWrittenPast) {
  for (const std::size_t entries : {4, 5}) {
    constexpr SlotId kUntouched{-77};
    std::vector<SlotId> memory(8, kUntouched);
    std::vector<SlotId> state(3, kUntouched);
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence a = cache.create(numbers(0, 63));
    ASSERT_TRUE(a.set_index_table(kGroup, std::span(memory).first(entries)).has_value());
    ASSERT_TRUE(a.set_index_table(LayerGroupId(1), std::span(state).first(1)).has_value());
    cache.resume(a);
    cache.compute(a, numbers(0, 63));
    const std::vector<SlotId> before = memory;
    const auto drafts = a.resize(63 + 1 + 3);
    EXPECT_EQ(drafts.has_value(), entries == 5);
    if (!drafts.has_value()) {
      EXPECT_EQ(drafts.error().code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(drafts.error().text(),
                  HasSubstr("5 blocks for 67 tokens do not fit an index table of 4"));
      EXPECT_EQ(memory, before);
      EXPECT_EQ(a.capacity(), 63);
      ASSERT_TRUE(a.resize(64).has_value()) << "without drafts it goes on";
    }
    cache.compute(a, numbers(0, 64));
    EXPECT_TRUE(std::equal(a.slots(kGroup).begin(), a.slots(kGroup).end(), memory.begin()));
    EXPECT_THAT(std::span(memory).subspan(entries), testing::Each(kUntouched));
    EXPECT_EQ(state[0], a.slots(LayerGroupId(1))[0]);
    EXPECT_THAT(std::span(state).subspan(1), testing::Each(kUntouched));
    a.close();
    EXPECT_THAT(std::span(memory).first(entries), testing::Each(kNoSlot));
    EXPECT_THAT(std::span(memory).subspan(entries), testing::Each(kUntouched));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// C07, partial blocks and tree surgery. KB-C07-01 (TensorRT-LLM 12306): a partly filled block
// joined with a shared one. KB-C07-03 (12641): the same block twice in a sequence. KB-C07-05
// (SGLang 36696): keys that are out of date after a split; branches that leave in any order.
TEST(C07TreeSurgery, BranchesComeAndGoInAnyOrder) {
  std::vector<int> order = {0, 1, 2, 3};
  do {
    // Forty slots: all four fit, and seven others push them out.
    KvCacheConfig config = test_config({kFull}, 8, 40 * 512);
    config.layers[0].buffers[0].bytes = 512;
    TestCache cache(std::move(config));
    ASSERT_EQ(cache.manager->room(Tier::kDevice, kGroup).total, 40);
    const auto branch = [](int i) {
      // Sharing 64, 16, 32 and 20 tokens of the first.
      const std::int64_t shared[] = {64, 16, 32, 20};
      Tokens tokens = numbers(0, shared[i]);
      while (tokens.size() < 64) tokens.push_back(1000 * i + static_cast<TokenId>(tokens.size()));
      return tokens;
    };
    std::vector<Sequence> open;
    for (const int i : order) {
      open.push_back(cache.create(branch(i)));
      cache.resume(open.back());
      cache.compute(open.back(), branch(i));
    }
    for (const int i : order) EXPECT_EQ(cache.reusable(branch(i)), 64);
    for (std::size_t i = open.size(); i-- > 0;) open[static_cast<std::size_t>(order[i])].close();
    EXPECT_EQ(cache.manager->counters().pages_dropped, 0);
    // Everything is pushed out by others, leaves first: what is left of a branch begins at 0.
    std::array<std::int64_t, 4> left = {64, 64, 64, 64};
    bool is_left_in_part = false;
    for (int i = 0; i < 40; ++i) {
      cache.run(numbers(50'000 + 1000 * i, 40));
      for (int b = 0; b < 4; ++b) {
        const std::int64_t now = cache.reusable(branch(b));
        EXPECT_LE(now, left[static_cast<std::size_t>(b)]);
        is_left_in_part |= 0 < now && now < 64;
        left[static_cast<std::size_t>(b)] = now;
      }
    }
    EXPECT_TRUE(is_left_in_part);
    EXPECT_THAT(left, testing::Each(0));
    EXPECT_GT(cache.manager->counters().pages_dropped, 20);
    EXPECT_EQ(cache.engine.mismatches(), 0);
  } while (std::next_permutation(order.begin(), order.end()));
}

TEST(C07TreeSurgery, TheSameBlockTwiceInASequenceIsTwoBlocks) {
  TestCache cache(test_config({kFull}, 4));
  const Tokens tokens = {1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 7, 8, 9, 9, 9, 9};
  cache.run(tokens);
  EXPECT_EQ(cache.reusable(tokens), 20);
  Sequence again = cache.create(Tokens{1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6});
  EXPECT_EQ(again.num_committed(), 13);
  cache.resume(again);
  const auto slots = again.slots(kGroup);
  EXPECT_NE(slots[1], slots[2]);
  cache.compute(again, Tokens{1, 2, 3, 4, 5, 6, 7, 8, 5, 6, 7, 8, 5, 6, 0, 0, 0});
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

}  // namespace
}  // namespace slackwater::cache
