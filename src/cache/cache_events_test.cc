// What a cache tells of its pages: a mirror that is built from it is the tree.

#include <algorithm>
#include <atomic>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/events_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;
using Kind = CacheEventKind;

TEST(CacheEvents, ThereAreNoneUnlessTheyAreWanted) {
  TestCache cache(test_config({FullAttention()}, kBlock));
  cache.run(numbers(0, 12));
  const DrainedEvents drained = cache.manager->drain_events();
  EXPECT_THAT(drained.events, IsEmpty());
  EXPECT_EQ(drained.num_lost, 0);
}

TEST(CacheEvents, ANumberThatCannotBeIsRefused) {
  for (const std::int32_t number : {-1, (1 << 24) + 1}) {
    const auto checked = validate(with_events({FullAttention()}, number));
    ASSERT_FALSE(checked.has_value());
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(checked.error().text(), HasSubstr("use 0 for none"));
  }
}

TEST(CacheEvents, TheFirstTellsTheSlots) {
  WatchedCache cache(with_events({FullAttention(), FullAttention()}, 8, 20));
  const std::vector<CacheEvent> events = cache.drain();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].id, 0);
  EXPECT_EQ(events[0].kind, Kind::kCreated);
  EXPECT_THAT(events[0].num_slots, ElementsAre(10, 0, 0));
  EXPECT_THAT(cache.drain(), IsEmpty());
}

// A branch cuts a node in two: no page has come or gone.
TEST(CacheEvents, ABranchTellsOnlyWhatIsNew) {
  WatchedCache cache(with_events({FullAttention()}));
  cache.run(numbers(0, 12));
  cache.drain();
  Tokens branch = numbers(0, 8);
  for (const TokenId token : numbers(500, 4)) branch.push_back(token);
  cache.run(branch);
  const std::vector<CacheEvent> events = cache.drain();
  ASSERT_THAT(events, SizeIs(1));
  EXPECT_EQ(events[0].page.key, cache.keys(branch)[2]);
  EXPECT_EQ(events[0].parent, cache.keys(numbers(0, 8))[1]);
}

// Pages of the window should stay longer, and are of no use without the others.
TEST(CacheEvents, WhatGoesWithWhatIsEvictedIsAnOrphan) {
  WatchedCache cache(with_events({FullAttention(), SlidingWindow{8, 0}}, 100, 12));
  {
    const Tokens prompt = numbers(0, 4 * kBlock);
    SequenceOptions options;
    options.tokens = prompt;
    options.priority = [](BlockOrdinal, LayerGroupId group) {
      return static_cast<Priority>(50 * group.value());
    };
    Sequence sequence = *cache.manager->create_sequence(options);
    cache.resume(sequence);
    cache.compute(sequence, prompt);
  }
  cache.drain();
  cache.run(numbers(100, 3 * kBlock));
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_GT(count_events(events, RemovalCause::kEvicted), 0);
  EXPECT_GT(count_events(events, RemovalCause::kOrphaned), 0);
  EXPECT_EQ(
      count_events(events, RemovalCause::kEvicted) + count_events(events, RemovalCause::kOrphaned),
      count_events(events, Kind::kRemoved));
}

TEST(CacheEvents, ABlockThatIsEvictedMayComeAgain) {
  WatchedCache cache(with_events({FullAttention()}, 100, 12));
  cache.run(numbers(0, 8 * kBlock));
  cache.run(numbers(500, 6 * kBlock));
  EXPECT_EQ(count_events(cache.drain(), RemovalCause::kEvicted), 2);
  cache.run(numbers(0, 8 * kBlock));
  EXPECT_EQ(count_events(cache.drain(), Kind::kStored), 2);
}

TEST(CacheEvents, ASnapshotHasItsPosition) {
  KvCacheConfig config = with_events({FullAttention(), Recurrent()});
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  WatchedCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 6));
  std::vector<CacheEvent> events = cache.drain();
  const Sha256Digest key = cache.keys(numbers(0, 6))[1];
  const auto at = std::find_if(events.begin(), events.end(), [](const CacheEvent& event) {
    return event.page.group == LayerGroupId(1);
  });
  ASSERT_NE(at, events.end());
  EXPECT_EQ(at->page.key, key);
  EXPECT_EQ(at->page.end, 6);
  EXPECT_THAT(at->tokens, ElementsAre(4, 5));
  // It goes over to the block that the partial one becomes.
  cache.compute(sequence, numbers(0, 8));
  static_cast<void>(cache.create(numbers(0, 9)));
  cache.drain();
  EXPECT_FALSE(cache.mirror.find(key, LayerGroupId(1), 6).has_value());
  const Sha256Digest full = cache.keys(numbers(0, 8))[1];
  EXPECT_TRUE(cache.mirror.find(full, LayerGroupId(1), 6).has_value());
  EXPECT_TRUE(cache.mirror.find(full, LayerGroupId(1), 8).has_value());
}

TEST(CacheEvents, AStepThatFailsIsTold) {
  WatchedCache cache(with_events({FullAttention()}));
  device::EventSource step = cache.device->make_event("a step that fails");
  {
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    ASSERT_TRUE(sequence.resize(8).has_value());
    ASSERT_TRUE(sequence.commit(numbers(0, 8), {step.event(), false}).has_value());
    EXPECT_EQ(count_events(cache.drain(), Kind::kStored), 2) << "there, and nobody may see it yet";
    EXPECT_EQ(cache.reusable(numbers(0, 8)), 0);
    step.complete(device::EventStatus::kFailed);
  }
  // Whoever looks finds out.
  cache.run(numbers(0, 8));
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_EQ(count_events(events, RemovalCause::kLost), 2);
  EXPECT_EQ(count_events(events, Kind::kStored), 2);
}

TEST(CacheEvents, AnImageIsToldByItsDigest) {
  WatchedCache cache(with_events({FullAttention()}));
  Sha256Digest cat = {};
  cat[5] = std::byte{1};
  const TokenId token = *cache.manager->token_digests().acquire(cat);
  const Tokens prompt = {1, 2, 3, 4, 5, token, 7, 8};
  const std::vector<Sha256Digest> keys = cache.keys(prompt);
  cache.run(prompt);
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  cache.manager->token_digests().release(std::span(&token, 1));
  EXPECT_EQ(cache.manager->token_digests().size(), 1u) << "it has not been told yet";
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_EQ(cache.manager->token_digests().size(), 0u);
  ASSERT_THAT(events, SizeIs(5));
  EXPECT_THAT(events[1].digests, IsEmpty());
  EXPECT_EQ(events[2].page.key, keys[1]);
  EXPECT_THAT(events[2].digests, ElementsAre(cat));
}

TEST(CacheEvents, PrioritiesAreTold) {
  WatchedCache cache(with_events({FullAttention()}));
  const Tokens prompt = numbers(0, 12);
  SequenceOptions options;
  options.tokens = prompt;
  options.priority = [](BlockOrdinal block, LayerGroupId) {
    return static_cast<Priority>(10 * block.value());
  };
  Sequence sequence = *cache.manager->create_sequence(options);
  cache.resume(sequence);
  cache.compute(sequence, prompt);
  const std::vector<CacheEvent> events = cache.drain();
  ASSERT_THAT(events, SizeIs(4));
  for (std::size_t i = 0; i < 3; ++i) EXPECT_EQ(events[i + 1].page.priority, 10 * i);
}

TEST(CacheEvents, AfterAnOverflowTheyBeginAnew) {
  WatchedCache cache(with_events({FullAttention()}, 4));
  cache.run(numbers(0, 12));
  cache.drain();
  EXPECT_EQ(cache.num_lost, 0);
  cache.run(numbers(100, 40));
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_EQ(cache.num_lost, 10) << "four were waiting, six had no room";
  ASSERT_THAT(events, SizeIs(14));
  EXPECT_EQ(events[0].kind, Kind::kCreated);
  EXPECT_EQ(events[0].id, 4) << "what is lost has no number";
  EXPECT_EQ(count_events(events, Kind::kStored), 13);
  cache.run(numbers(200, 4));
  EXPECT_EQ(count_events(cache.drain(), Kind::kStored), 1) << "and go on from there";
  EXPECT_EQ(cache.num_lost, 0);
}

TEST(CacheEvents, AnOverflowTellsParentsFirst) {
  WatchedCache cache(with_events({FullAttention(), Recurrent()}, 1));
  for (TokenId i = 0; i < 4; ++i) {
    Tokens tokens = numbers(0, 20);
    tokens[static_cast<std::size_t>(5 * i)] = 1000;
    cache.run(tokens);
  }
  std::vector<Sha256Digest> seen = {root_key({})};
  for (const CacheEvent& event : cache.drain()) {
    if (event.kind != Kind::kStored) continue;
    EXPECT_THAT(seen, testing::Contains(event.parent)) << "event " << event.id;
    seen.push_back(event.page.key);
  }
}

// For the thread sanitizer.
TEST(CacheEventsThreads, AreDrainedBesideOneThatChangesEverything) {
  KvCacheConfig config = with_events({FullAttention(), SlidingWindow{9, 3}, Recurrent()}, 200, 60);
  config.host_bytes = 16 * kPage;
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 8 * kBlock;
  WatchedCache cache(std::move(config));
  std::atomic<bool> is_over = false;
  std::thread reader([&] {
    while (!is_over) cache.mirror.apply(cache.manager->drain_events().events);
  });
  for (int i = 0; i < 100; ++i) cache.run(numbers(i % 7 * 1000, 16 + i % 48));
  is_over = true;
  reader.join();
  cache.drain();
  EXPECT_GT(cache.mirror.num_pages(), 0u);
}

}  // namespace
}  // namespace slackwater::cache
