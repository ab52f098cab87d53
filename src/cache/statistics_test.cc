// What is counted, when, and for whom.

#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/cache_core.h"
#include "cache/statistics_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

constexpr std::size_t kAttention = 0;

TEST(Statistics, CountOnlyWhatIsCommitted) {
  TestCache cache(test_config({FullAttention()}, 4));
  Sequence sequence = cache.create(numbers(0, 8));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(8).has_value());
  EXPECT_EQ(cache.manager->statistics(), cache.manager->take_statistics());
  EXPECT_EQ(use_of(cache), GroupUse());
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention].pages_missed, 2);
  EXPECT_EQ(sequence.pending_statistics().tokens.queried, 8);
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache).pages_missed, 2);
  EXPECT_EQ(cache.manager->statistics().tokens.queried, 8);
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention], GroupUse());
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache).pages_allocated, 2) << "once";
}

TEST(Statistics, WhatIsPendingEndsWithTheSequence) {
  TestCache cache(test_config({FullAttention(), Recurrent()}, 4));
  {
    Sequence sequence = cache.create(numbers(0, 8));
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 8));
  }
  EXPECT_EQ(use_of(cache), GroupUse());
  EXPECT_EQ(use_of(cache, 1), GroupUse());
  EXPECT_EQ(cache.manager->statistics().tokens, TokenUse());
  Sequence closed;
  closed.commit_statistics();
  EXPECT_EQ(closed.pending_statistics(), RequestStatistics());
  EXPECT_EQ(closed.cached_tokens(Tier::kDevice), 0);
}

TEST(Statistics, PagesThatAreGivenBackWereNeverAllocated) {
  TestCache cache(test_config({FullAttention(), SlidingWindow{6, 0}}, 4));
  SequenceOptions options;
  options.expected_prompt_length = 8;
  Sequence sequence = create_with(cache, numbers(0, 8), options);
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(40).has_value());
  ASSERT_TRUE(sequence.resize(8).has_value());
  for (std::size_t g = 0; g < 2; ++g) {
    EXPECT_EQ(sequence.pending_statistics().groups[g].pages_allocated, 2);
    EXPECT_EQ(sequence.pending_statistics().groups[g].pages_missed, 2);
  }
  cache.compute(sequence, numbers(0, 8));
  sequence.commit_statistics();
  // Two pages are generated, three are given back: one of the prompt's is not pending any more.
  ASSERT_TRUE(sequence.resize(16).has_value());
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention].pages_generated, 2);
  ASSERT_TRUE(sequence.resize(8).has_value());
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention], GroupUse());
  EXPECT_EQ(use_of(cache).pages_allocated, 2);
}

TEST(Statistics, WhatWasCommittedIsNotTakenBack) {
  TestCache cache(test_config({FullAttention()}, 4));
  Sequence sequence = cache.create(numbers(0, 8));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(16).has_value());
  sequence.commit_statistics();
  ASSERT_TRUE(sequence.resize(20).has_value());
  ASSERT_TRUE(sequence.resize(4).has_value());
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention], GroupUse());
  sequence.commit_statistics();
  EXPECT_EQ(use_of(cache).pages_allocated, 4);
  cache.manager->audit();
}

TEST(Statistics, ARefusedCallChangesNothing) {
  KvCacheConfig config = test_config({FullAttention()}, 4, 4096);
  config.layers[0].buffers[0].bytes = 1024;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create(numbers(0, 8));
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(8).has_value());
  const RequestStatistics pending = sequence.pending_statistics();
  const CacheStatistics all = cache.manager->statistics();
  EXPECT_EQ(sequence.resize(32).error().code(), ErrorCode::kResourceExhausted);
  EXPECT_EQ(sequence.pending_statistics(), pending);
  EXPECT_EQ(cache.manager->statistics(), all);
}

TEST(Statistics, DummiesCountNothing) {
  TestCache cache(test_config({FullAttention(), Recurrent()}, 4));
  SequenceOptions options;
  options.is_dummy = true;
  run_counted(cache, numbers(0, 30), options);
  EXPECT_EQ(use_of(cache), GroupUse());
  EXPECT_EQ(use_of(cache, 1), GroupUse());
  EXPECT_EQ(cache.manager->statistics().tokens, TokenUse());
  run_counted(cache, numbers(0, 30));
  EXPECT_EQ(cache.manager->statistics().tokens.queried, 30);
}

TEST(Statistics, WhatATakeLeavesIsNew) {
  TestCache cache(test_config({FullAttention()}, 4));
  run_counted(cache, numbers(0, 8));
  EXPECT_EQ(cache.manager->take_statistics().groups[kAttention].use.pages_allocated, 2);
  const CacheStatistics nothing = cache.manager->take_statistics();
  EXPECT_EQ(nothing.groups[kAttention].use, GroupUse());
  EXPECT_EQ(nothing.tokens, TokenUse());
  run_counted(cache, numbers(100, 4));
  EXPECT_EQ(cache.manager->take_statistics().groups[kAttention].use.pages_allocated, 1);
  EXPECT_EQ(use_of(cache).pages_allocated, 3) << "all of it, since the start";
}

TEST(Statistics, ThatAreOffStaySilent) {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 4, 64 << 10);
  config.host_bytes = 64 << 10;
  config.enable_statistics = false;
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 4096;
  TestCache cache(std::move(config));
  run_counted(cache, numbers(0, 30));
  crowd_out(cache, 60);
  Sequence sequence = cache.create(numbers(0, 31));
  EXPECT_GT(sequence.num_committed(), 0);
  cache.resume(sequence);
  CacheStatistics none;
  none.groups.resize(2);
  EXPECT_EQ(cache.manager->statistics(), none);
  EXPECT_EQ(cache.manager->take_statistics(), none);
  EXPECT_EQ(sequence.pending_statistics().groups[kAttention], GroupUse());
  EXPECT_EQ(sequence.pending_statistics().tokens, TokenUse());
}

// Four prompts of 8 pages over a device of 8 and a host of 16, beside 4 slots that are kept free:
// each sends the one before to the host, and the last one the first one away.
TEST(Statistics, MovesAndDropsCountAtOnceAndForNobody) {
  KvCacheConfig config = test_config({FullAttention()}, 4, 8 << 10);
  config.layers[0].buffers[0].bytes = 1024;
  config.host_bytes = 20 << 10;
  TestCache cache(std::move(config));
  for (TokenId first = 0; first < 4000; first += 1000) {
    cache.run(numbers(first, 32));
    cache.manager->synchronize();
  }
  const CacheStatistics statistics = cache.manager->statistics();
  const GroupStatistics& group = statistics.groups[kAttention];
  EXPECT_EQ(group.use, GroupUse()) << "nobody has committed what it did";
  EXPECT_EQ(moved(statistics, 0, Tier::kDevice, Tier::kHost), 24);
  EXPECT_EQ(group.moved[0][1].bytes, 24 * 1024);
  EXPECT_EQ(moved(statistics, 0, Tier::kHost, Tier::kDevice), 0);
  EXPECT_EQ(group.dropped.pages, 8);
  EXPECT_EQ(group.dropped.pages, cache.manager->counters().pages_dropped);
  EXPECT_EQ(group.dropped.bytes, 8 * 1024);
  EXPECT_EQ(group.peak_slots[0], 8);
  EXPECT_EQ(group.peak_slots[1], 16);
}

TEST(Statistics, PeaksBeginAnewWithWhatIsThere) {
  TestCache cache(test_config({FullAttention()}, 4));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(40).has_value());
  ASSERT_TRUE(sequence.resize(12).has_value());
  EXPECT_EQ(cache.manager->take_statistics().groups[0].peak_slots[0], 10);
  EXPECT_EQ(cache.manager->take_statistics().groups[0].peak_slots[0], 3);
  ASSERT_TRUE(sequence.resize(16).has_value());
  EXPECT_EQ(cache.manager->take_statistics().groups[0].peak_slots[0], 4);
  EXPECT_EQ(cache.manager->statistics().groups[0].peak_slots[0], 10);
}

// What lies on the host is copied from there, and stays.
TEST(Statistics, ACopyFromTheHostIsToldApart) {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 4, 8 << 10);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 1024;
  config.host_bytes = 20 << 10;
  TestCache cache(std::move(config));
  cache.run(numbers(0, 10));
  cache.manager->synchronize();
  const auto copy = [&] {
    Sequence sequence = cache.create(numbers(0, 12));
    EXPECT_EQ(sequence.num_committed(), 10);
    cache.resume(sequence);
    return sequence.pending_statistics().groups;
  };
  for (const GroupUse& use : copy()) {
    EXPECT_EQ(use.copied, (PageFlow{1, 1024}));
    EXPECT_EQ(use.copied_from_host, PageFlow());
  }
  crowd_out(cache, 28);
  for (const GroupUse& use : copy()) {
    EXPECT_EQ(use.copied, PageFlow());
    EXPECT_EQ(use.copied_from_host, (PageFlow{1, 1024}));
    EXPECT_EQ(use.pages_allocated, 1);
  }
  EXPECT_EQ(moved(cache.manager->statistics(), 0, Tier::kHost, Tier::kDevice), 2) << "whole blocks";
  EXPECT_EQ(moved(cache.manager->statistics(), 1, Tier::kHost, Tier::kDevice), 0);
}

TEST(Statistics, EndsOfCommitsAreCopies) {
  KvCacheConfig config = test_config({FullAttention(), Recurrent()}, 4);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create(numbers(0, 6));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 6));
  const RequestStatistics pending = sequence.pending_statistics();
  EXPECT_EQ(pending.groups[0].copied.pages, 1) << "the block at the end";
  EXPECT_EQ(pending.groups[1].copied.pages, 1) << "the state there";
  EXPECT_EQ(pending.groups[0].pages_allocated, 2);
  EXPECT_EQ(pending.groups[1].pages_allocated, 1);
}

// A request that was given up and comes back: what it finds is counted apart, and so are the pages
// that it gets.
TEST(Statistics, WhoComesBackIsCountedApart) {
  TestCache cache(test_config({FullAttention(), Recurrent()}, 4));
  run_counted(cache, numbers(0, 8));
  cache.manager->take_statistics();
  SequenceOptions options;
  options.is_recompute = true;
  run_counted(cache, numbers(0, 14), options);
  const CacheStatistics statistics = cache.manager->take_statistics();
  EXPECT_EQ(statistics.tokens.queried, 0);
  EXPECT_EQ(statistics.tokens.reused, 0);
  EXPECT_EQ(statistics.tokens.recompute_queried, 14);
  EXPECT_EQ(statistics.tokens.recompute_reused, 8);
  EXPECT_EQ(statistics.groups[0].use.pages_reused_full, 0);
  EXPECT_EQ(statistics.groups[0].use.pages_missed, 0);
  EXPECT_EQ(statistics.groups[0].use.pages_recomputed, 2);
  EXPECT_EQ(statistics.groups[0].use.pages_allocated, 2);
  EXPECT_EQ(statistics.groups[1].use.snapshots, SnapshotStatistics());
  EXPECT_EQ(statistics.groups[1].use.copied.pages, 1) << "that was really copied";
}

}  // namespace
}  // namespace slackwater::cache
