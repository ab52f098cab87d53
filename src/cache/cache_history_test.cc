// Why a match ends where it ends, from a log: and that the room which is said to have been wanting
// is what would have been enough.

#include "slackwater/cache/cache_history.h"

#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/cache/log_inspection.h"
#include "slackwater/cache/log_replay.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;
using testing::Not;

// Of a page, and a grain: every slot counts.
constexpr std::int64_t kPageBytes = 4096;

class CacheHistoryTest : public testing::Test {
 protected:
  KvCacheConfig config(std::vector<LayerKind> kinds, std::int64_t device_bytes) const {
    KvCacheConfig config = test_config(std::move(kinds), 4, device_bytes);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kPageBytes;
    config.grain_bytes = kPageBytes;
    config.operation_log.path = path();
    return config;
  }
  std::filesystem::path path() const { return directory_.path() / "calls"; }

  MatchExplanation explain(const Tokens& tokens, const ReuseScope& scope = {}) const {
    auto replay = LogReplay::open(path(), {1 << 12});
    EXPECT_TRUE(replay.has_value()) << replay.error().text();
    CacheHistory history((*replay)->manager());
    while (*(*replay)->step()) history.note_call((*replay)->last_call().describe());
    return history.explain(scope, tokens);
  }
  std::string inspect(const LogInspectionOptions& options) const {
    const auto text = inspect_log(path(), options);
    return text.has_value() ? *text : text.error().text();
  }

  TemporaryDirectory directory_;
};

// Prompts of ten blocks each, one after another, into a device of 32 slots.
void run_prompts(TestCache& cache, int count) {
  for (int i = 0; i < count; ++i) {
    cache.run(numbers(static_cast<TokenId>(1000 * i), 40));
  }
}

TEST_F(CacheHistoryTest, NamesThePageTheCallAndTheRoomThatWasWanting) {
  std::int64_t known = 0;
  {
    TestCache cache(config({FullAttention()}, 32 * kPageBytes));
    run_prompts(cache, 5);
    known = cache.reusable(numbers(1000, 40));
  }
  ASSERT_GT(known, 0) << "the front of it is still there";
  ASSERT_LT(known, 40);
  Tokens prompt = numbers(1000, 40);
  prompt.push_back(7);
  const MatchExplanation told = explain(prompt);
  EXPECT_EQ(told.match.reused, known);
  const GroupExplanation& group = told.groups.at(0);
  EXPECT_EQ(group.served, known);
  EXPECT_EQ(group.served_once, 40);
  ASSERT_TRUE(group.missing.has_value());
  EXPECT_EQ(*group.missing_end, known + 4) << "the block after";
  EXPECT_EQ(group.missing->cause, RemovalCause::kEvicted);
  EXPECT_EQ(group.missing->tier, Tier::kDevice);
  EXPECT_THAT(group.missing->call, HasSubstr("resize of sequence 4"));
  const std::int64_t first = group.missing->slots_to_keep;
  const std::int64_t all = group.worst->slots_to_keep;
  EXPECT_GT(first, 0);
  EXPECT_GT(all, first) << "its last blocks left first";
  EXPECT_EQ(group.missing->bytes_to_keep, first * kPageBytes);
  // With that much room it is so, and with a slot less it is not.
  const auto reusable_with = [&](std::int64_t more) {
    KvCacheConfig larger = config({FullAttention()}, (32 + more) * kPageBytes);
    larger.operation_log.path.clear();
    TestCache cache(std::move(larger));
    run_prompts(cache, 5);
    return cache.reusable(numbers(1000, 40));
  };
  EXPECT_EQ(reusable_with(first - 1), known);
  EXPECT_EQ(reusable_with(first), known + 4);
  EXPECT_EQ(reusable_with(all - 1), 36);
  EXPECT_EQ(reusable_with(all), 40);
}

// A prompt whose first block has gone takes all of it along; they say so with the same room.
TEST_F(CacheHistoryTest, WhatFollowedAPageWentForItsReason) {
  {
    TestCache cache(config({FullAttention()}, 32 * kPageBytes));
    run_prompts(cache, 7);
  }
  const MatchExplanation told = explain(numbers(0, 41));
  EXPECT_EQ(told.match.reused, 0);
  const GroupExplanation& group = told.groups.at(0);
  EXPECT_EQ(group.served_once, 40);
  ASSERT_TRUE(group.missing.has_value());
  EXPECT_EQ(*group.missing_end, 4);
  EXPECT_GT(group.missing->slots_to_keep, 0);
}

TEST_F(CacheHistoryTest, ARecurrentGroupNamesItsSnapshot) {
  {
    KvCacheConfig wanted = config({FullAttention(), Recurrent()}, 128 * kPageBytes);
    wanted.layers[1].buffers[0].bytes = 2 * kPageBytes;
    wanted.initial_pool_ratio = {0.8, 0.2};
    TestCache cache(std::move(wanted));
    Sequence sequence = cache.create(numbers(0, 20));
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 20), true);
    sequence.close();
    // States are few: others take its place, and no block of it.
    for (int i = 1; i < 40; ++i) {
      Sequence other = cache.create(numbers(static_cast<TokenId>(5000 + 100 * i), 3));
      cache.resume(other);
      cache.compute(other, numbers(static_cast<TokenId>(5000 + 100 * i), 3), true);
    }
  }
  const MatchExplanation told = explain(numbers(0, 21));
  ASSERT_EQ(told.match.attention, 20) << "its blocks are there";
  EXPECT_EQ(told.match.reused, 0);
  const GroupExplanation& state = told.groups.at(1);
  EXPECT_EQ(state.served, 0);
  EXPECT_EQ(state.served_once, 20);
  EXPECT_EQ(*state.missing_end, 20);
  EXPECT_EQ(state.missing->cause, RemovalCause::kEvicted);
  EXPECT_THAT(describe(told), HasSubstr("It ends at 0 because of 'target: recurrent': the page up "
                                        "to token 20 was evicted from the device by call"));
}

TEST_F(CacheHistoryTest, OtherReasonsAreNoQuestionOfRoom) {
  {
    TestCache cache(config({FullAttention()}, 64 * kPageBytes));
    run_prompts(cache, 1);
    ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  }
  const MatchExplanation told = explain(numbers(0, 41));
  ASSERT_TRUE(told.groups.at(0).missing.has_value());
  EXPECT_EQ(told.groups.at(0).missing->cause, RemovalCause::kCleared);
  EXPECT_EQ(told.groups.at(0).missing->slots_to_keep, 0);
  EXPECT_THAT(describe(told), HasSubstr("cleared from the device by call"));
  EXPECT_THAT(describe(told), Not(HasSubstr("more slots")));
  const MatchExplanation never = explain(numbers(70'000, 41));
  EXPECT_FALSE(never.groups.at(0).missing.has_value());
  EXPECT_THAT(describe(never), HasSubstr("nobody has kept anything past it"));
  // Another scope is another prompt.
  ReuseScope salted;
  salted.salt = 1;
  EXPECT_FALSE(explain(numbers(0, 41), salted).groups.at(0).missing.has_value());
}

// A page that came back is there.
TEST_F(CacheHistoryTest, WhatWasComputedAgainIsThere) {
  {
    TestCache cache(config({FullAttention()}, 32 * kPageBytes));
    run_prompts(cache, 7);
    cache.run(numbers(0, 40));
  }
  const MatchExplanation told = explain(numbers(0, 41));
  EXPECT_EQ(told.match.reused, 40);
  EXPECT_FALSE(told.groups.at(0).missing_end.has_value());
  EXPECT_THAT(describe(told), HasSubstr("All of it is found; the last token is left to compute."));
}

TEST_F(CacheHistoryTest, InspectionGoesToACallAndNoFurther) {
  {
    TestCache cache(config({FullAttention(), Recurrent()}, 64 * kPageBytes));
    run_prompts(cache, 2);
  }
  LogInspectionOptions options;
  options.at = 5;
  options.audit_every = 1;
  EXPECT_THAT(inspect(options), HasSubstr("After 5 calls; the last one: call 5, close of sequence "
                                          "0 at offset"));
  EXPECT_THAT(inspect(options), HasSubstr("node 1: blocks 0 to 9, tokens 0 1 2 3 4 5 ..."));
  EXPECT_THAT(inspect(options), HasSubstr("[0] dddddddddd"));
  options.at = 2;
  EXPECT_THAT(inspect(options), HasSubstr("request 1: active"));
  options.at = 0;
  EXPECT_THAT(inspect(options), HasSubstr("Before the first call"));
  options.at = 999;
  EXPECT_EQ(inspect(options), "call 999 is past the end of the log, which has 10");
  options.at.reset();
  options.is_json = true;
  EXPECT_THAT(inspect(options), HasSubstr("\"num_calls\":10"));
  options.prompt = numbers(0, 41);
  EXPECT_THAT(inspect(options), HasSubstr("\"served\":40"));
}

}  // namespace
}  // namespace slackwater::cache
