// What a cache tells of its pages. Behaviour of TensorRT-LLM's event manager over a real cache; an
// event is about one page here.

#include <algorithm>
#include <map>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/events_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::Each;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;
using Kind = CacheEventKind;

// chain equals hashes.
TEST(Events, TheChainIsThatOfThePrompt) {
  WatchedCache cache(with_events({FullAttention()}));
  cache.run(numbers(0, 12), {7, 9});
  const std::vector<CacheEvent> events = cache.drain();
  const std::vector<Sha256Digest> keys = cache.keys(numbers(0, 12), {7, 9});
  ASSERT_THAT(events, SizeIs(4));
  for (std::size_t i = 0; i < 3; ++i) {
    const CacheEvent& event = events[i + 1];
    EXPECT_EQ(event.id, static_cast<std::int64_t>(i) + 1);
    EXPECT_EQ(event.kind, Kind::kStored);
    EXPECT_EQ(event.page.key, keys[i]);
    EXPECT_EQ(event.parent, i == 0 ? root_key({7, 9}) : keys[i - 1]);
    EXPECT_EQ(event.page.end, static_cast<std::int64_t>(i + 1) * kBlock);
    EXPECT_EQ(event.page.tier, Tier::kDevice);
    EXPECT_EQ(event.tokens, numbers(static_cast<TokenId>(i) * kBlock, kBlock));
  }
}

// no duplicate store on reuse.
TEST(Events, WhatIsReusedIsNotStoredAgain) {
  WatchedCache cache(with_events({FullAttention()}));
  cache.run(numbers(0, 12));
  cache.drain();
  cache.run(numbers(0, 12));
  EXPECT_THAT(cache.drain(), IsEmpty());
}

// longer block wins.
TEST(Events, ALongerBlockWins) {
  WatchedCache cache(with_events({FullAttention()}));
  cache.run(numbers(0, 6));
  cache.drain();
  const Sha256Digest partial = cache.keys(numbers(0, 6))[1];
  EXPECT_TRUE(cache.mirror.find(partial, LayerGroupId(0), 6).has_value());
  cache.run(numbers(0, 8));
  // Once it is written, and somebody looks.
  static_cast<void>(cache.create(numbers(0, 9)));
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_EQ(count_events(events, Kind::kStored), 1);
  EXPECT_EQ(count_events(events, RemovalCause::kReplaced), 1);
  EXPECT_FALSE(cache.mirror.find(partial, LayerGroupId(0), 6).has_value());
  EXPECT_TRUE(cache.mirror.find(cache.keys(numbers(0, 8))[1], LayerGroupId(0), 8).has_value());
}

// removed = stored after clear.
TEST(Events, AllThatWasStoredIsRemovedByAClear) {
  WatchedCache cache(with_events({FullAttention(), SlidingWindow{6, 2}, Recurrent()}));
  cache.run(numbers(0, 21));
  cache.run(numbers(0, 30));
  cache.run(numbers(700, 10), {{}, 5});
  std::vector<CacheEvent> events = cache.drain();
  const auto num_pages = static_cast<std::int64_t>(cache.mirror.num_pages());
  EXPECT_EQ(count_events(events, Kind::kStored) - count_events(events, Kind::kRemoved), num_pages);
  ASSERT_TRUE(cache.manager->clear_reusable_blocks().has_value());
  events = cache.drain();
  EXPECT_EQ(count_events(events, RemovalCause::kCleared), num_pages);
  EXPECT_THAT(events, SizeIs(static_cast<std::size_t>(num_pages)));
  EXPECT_EQ(cache.mirror.num_pages(), 0u);
}

// a shrink drops 8 of 12 pages.
TEST(Events, AQuotaThatShrinksIsToldOnce) {
  WatchedCache cache(with_events({FullAttention()}, 100, 12));
  for (TokenId i = 0; i < 12; ++i) cache.run(numbers(100 * i, kBlock));
  cache.drain();
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 4 * kPage).has_value());
  const std::vector<CacheEvent> events = cache.drain();
  EXPECT_THAT(events, SizeIs(8));
  EXPECT_EQ(count_events(events, RemovalCause::kQuota), 8);
  EXPECT_EQ(cache.mirror.num_pages(), 4u);
}

// updated events for both groups.
TEST(Events, MovesOfBothGroupsAreTold) {
  KvCacheConfig config = with_events({FullAttention(), SlidingWindow{8, 0}}, 100, 12);
  config.host_bytes = 64 * kPage;
  WatchedCache cache(std::move(config));
  cache.run(numbers(0, 4 * kBlock));
  cache.drain();
  cache.run(numbers(100, 6 * kBlock));
  std::vector<CacheEvent> events = cache.drain();
  std::map<std::int32_t, int> moved;
  for (const CacheEvent& event : events) {
    if (event.kind != Kind::kUpdated) continue;
    ++moved[event.page.group.value()];
    EXPECT_EQ(event.previous_tier, Tier::kDevice);
    EXPECT_EQ(event.page.tier, Tier::kHost);
  }
  EXPECT_THAT(moved, SizeIs(2));
  EXPECT_EQ(count_events(events, Kind::kRemoved), 0);
  // And back, for whoever wants them.
  Sequence again = cache.create(numbers(0, 4 * kBlock + 1));
  cache.resume(again);
  events = cache.drain();
  EXPECT_TRUE(std::any_of(events.begin(), events.end(), [](const CacheEvent& event) {
    return event.kind == Kind::kUpdated && event.page.tier == Tier::kDevice &&
           event.previous_tier == Tier::kHost;
  }));
}

// per life cycle: stored, removed and stored again by itself.
TEST(Events, OneGroupsPageComesAndGoesByItself) {
  WatchedCache cache(with_events({FullAttention(), SlidingWindow{8, 0}}, 100, 12));
  const Tokens prompt = numbers(0, 3 * kBlock);
  const auto run = [&] {
    SequenceOptions options;
    options.tokens = prompt;
    options.priority = [](BlockOrdinal, LayerGroupId group) {
      return static_cast<Priority>(group == LayerGroupId(0) ? 90 : 10);
    };
    Sequence sequence = *cache.manager->create_sequence(options);
    cache.resume(sequence);
    cache.compute(sequence, prompt);
  };
  run();
  cache.drain();
  const auto groups = [](const std::vector<CacheEvent>& events, Kind kind) {
    std::vector<std::int32_t> found;
    for (const CacheEvent& event : events) {
      if (event.kind == kind) found.push_back(event.page.group.value());
    }
    return found;
  };
  Sequence other = cache.create({});
  cache.resume(other);
  ASSERT_TRUE(other.resize(4 * kBlock).has_value());
  const std::vector<CacheEvent> gone = cache.drain();
  EXPECT_THAT(groups(gone, Kind::kRemoved), Not(IsEmpty()));
  EXPECT_THAT(groups(gone, Kind::kRemoved), Each(1));
  other.close();
  run();
  const std::vector<CacheEvent> back = cache.drain();
  EXPECT_THAT(groups(back, Kind::kStored), Not(IsEmpty()));
  EXPECT_THAT(groups(back, Kind::kStored), Each(1));
}

// partial coverage: theirs says nothing of such a page, ours how far it goes. The shorter block had
// a page of the window, and the longer one has none.
TEST(Events, APageThatCoversPartOfItsBlockSaysSo) {
  KvCacheConfig config = with_events({FullAttention(), SlidingWindow{6, 0}});
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  WatchedCache cache(std::move(config));
  cache.run(numbers(0, 6));
  cache.run(numbers(0, 30));
  static_cast<void>(cache.create(numbers(0, 31)));
  cache.drain();
  const Sha256Digest key = cache.keys(numbers(0, 8))[1];
  EXPECT_TRUE(cache.mirror.find(key, LayerGroupId(0), 8).has_value());
  EXPECT_TRUE(cache.mirror.find(key, LayerGroupId(1), 6).has_value());
  EXPECT_FALSE(cache.mirror.find(key, LayerGroupId(1), 8).has_value());
}

// mm keys across blocks: an image counts in every block from its first token on.
TEST(Events, AnImageCountsInTheBlocksAfterIt) {
  WatchedCache cache(with_events({FullAttention()}));
  Sha256Digest cat = {};
  Sha256Digest dog = {};
  dog[31] = std::byte{1};
  const auto keys_of = [&](const Sha256Digest& image) {
    const TokenId token = *cache.manager->token_digests().acquire(image);
    Tokens prompt = numbers(0, 6);
    for (const TokenId more : item_tokens(token, 100'000, 6)) prompt.push_back(more);
    cache.run(prompt);
    std::vector<Sha256Digest> keys;
    for (const CacheEvent& event : cache.drain()) {
      if (event.kind != Kind::kStored) continue;
      keys.push_back(event.page.key);
      if (event.page.end == 8) {
        EXPECT_THAT(event.digests, ElementsAre(image));
      } else {
        EXPECT_THAT(event.digests, IsEmpty());
      }
    }
    return keys;
  };
  const std::vector<Sha256Digest> of_cat = keys_of(cat);
  const std::vector<Sha256Digest> of_dog = keys_of(dog);
  ASSERT_THAT(of_cat, SizeIs(3));
  ASSERT_THAT(of_dog, SizeIs(2)) << "the first block is the same";
  EXPECT_NE(of_cat[1], of_dog[0]);
  EXPECT_NE(of_cat[2], of_dog[1]);
}

}  // namespace
}  // namespace slackwater::cache
