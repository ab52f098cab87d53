// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// who may leave, and what stays while it is used. Each comment names the public reports.

#include <algorithm>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;
using storage::Tier;

Tokens longer(Tokens tokens) {
  tokens.push_back(777);
  return tokens;
}

// Slots by the page, where a number of them matters.
KvCacheConfig by_page(std::vector<LayerKind> kinds, std::int64_t device, std::int64_t host) {
  constexpr std::int64_t kBytes = 4096;
  KvCacheConfig config = test_config(std::move(kinds), 16);
  for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kBytes;
  config.device_bytes = device * kBytes;
  config.host_bytes = host * kBytes;
  return config;
}

// C09, eviction of something in use: between finding and using, and between issuing and finishing,
// the things involved are pinned.
// KB-C09-01 (vLLM 39702, 42289): what a lookup has found on the host is evicted by the allocation
// that comes before its use. The host is full, and the prefix is what was used longest ago.
TEST(C09Eviction, WhatWasFoundIsThereWhenItIsUsed) {
  for (std::uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::int64_t blocks = 1 + static_cast<std::int64_t>(seed % 6);
    Crowd crowd(Crowd::config({kFull}, 16, 8, 12), seed);
    TestCache& cache = crowd.cache;
    const Tokens prefix = numbers(0, blocks * 16);
    cache.run(prefix);
    for (const TokenId first : {7000, 8000}) cache.run(numbers(first, 8 * 16));
    ASSERT_EQ(cache.reusable(prefix), 0) << "too much has come since";
    cache.run(prefix);
    cache.run(numbers(9000, 8 * 16));
    Sequence c = cache.create(longer(prefix));
    ASSERT_EQ(c.num_committed(), blocks * 16);
    ASSERT_EQ(num_taken(cache, Tier::kHost), 8) << "full, but for the four slots that are kept";
    // Everything on the device wants to go to the host.
    crowd.written(crowd.other, 5000, 8 * 16).close();
    EXPECT_EQ(c.num_committed(), blocks * 16);
    cache.resume(c);
    cache.engine.step(c, prefix, std::ssize(prefix));
    crowd.expect_right();
    // A lookup that is given up keeps nothing.
    c.close();
    for (const TokenId first : {7000, 8000}) cache.run(numbers(first, 8 * 16));
    EXPECT_LT(cache.reusable(prefix), blocks * 16);
  }
}

// KB-C09-02 (SGLang 31427; its backport 638): pages come back from the host, and their slots there
// are taken before the copies have run. Seven pages, a state among them.
TEST(C09Eviction, WhatIsOnItsWayBackIsReadBeforeItsSlotIsTaken) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(Crowd::config({kFull, kState}, 16, 16, 12), seed);
    TestCache& cache = crowd.cache;
    FakeEngine third(*cache.manager, *cache.device);
    Sequence a = crowd.written(cache.engine, 0, 6 * 16);
    ASSERT_TRUE(a.suspend().has_value());
    Sequence d = crowd.written(cache.engine, 3000, 6 * 16);
    Sequence b = crowd.written(crowd.other, 7000, 8 * 16);
    ASSERT_EQ(num_taken(cache, Tier::kHost), 7) << "all of A, of eight that can be had";
    ASSERT_TRUE(d.suspend().has_value());
    // The way back is into slots that a step still reads: the copies wait.
    device::EventSource gate = crowd.stall(crowd.other);
    crowd.other.step(b, numbers(7000, 8 * 16), 8 * 16);
    b.close();
    const bool is_prefetched = seed % 2 == 0;
    if (is_prefetched) {
      const auto brought = a.prefetch(Tier::kDevice);
      ASSERT_TRUE(brought.has_value()) << brought.error().text();
    } else {
      cache.resume(a);
    }
    ASSERT_EQ(num_taken(cache, Tier::kHost), 0);
    // D takes the slots on the host.
    Sequence e = crowd.written(third, 5000, 7 * 16);
    ASSERT_GE(num_taken(cache, Tier::kHost), 5);
    gate.complete(EventStatus::kSucceeded);
    e.close();
    if (is_prefetched) cache.resume(a);
    cache.engine.step(a, numbers(0, 6 * 16), 6 * 16);
    ASSERT_TRUE(a.suspend().has_value());
    cache.resume(d);
    cache.engine.step(d, numbers(3000, 6 * 16), 6 * 16);
    EXPECT_EQ(third.stream().synchronize(), EventStatus::kSucceeded);
    EXPECT_EQ(third.mismatches(), 0);
    crowd.expect_right();
  }
}

// KB-C09-04 (SGLang 28468): in one sweep, room for the second is made of where the first is just
// going. One slot of the host is free and two pages want it: one is dropped. When a later sweep
// takes the slot, it waits for the copy into it.
TEST(C09Eviction, TwoPagesOfASweepDoNotShareASlot) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Crowd crowd(by_page({kFull}, 4, 2), seed);
    TestCache& cache = crowd.cache;
    ASSERT_EQ(num_free(cache, 0, Tier::kHost), 2) << "one of them is kept";
    const auto prompt = [](int i) { return numbers(static_cast<TokenId>(1000 * i), 16); };
    for (int i = 1; i <= 4; ++i) cache.run(prompt(i));
    const auto num_known = [&] {
      std::int64_t known = 0;
      for (int i = 1; i <= 4; ++i) known += cache.reusable(prompt(i)) / 16;
      return known;
    };
    ASSERT_EQ(num_known(), 4);
    // Nothing is waited for from here on: all copies are under way.
    Sequence e = crowd.written(crowd.other, 7000, 2 * 16);
    EXPECT_EQ(num_known(), 3);
    EXPECT_EQ(cache.manager->counters().pages_dropped, 1);
    if (seed % 2 == 0) {
      ASSERT_TRUE(e.resize(3 * 16).has_value());
      cache.manager->audit();
      EXPECT_EQ(num_known(), 2);
    }
    e.close();
    for (int i = 1; i <= 4; ++i) {
      Sequence again = cache.create(longer(prompt(i)));
      cache.resume(again);
      cache.compute(again, longer(prompt(i)));
    }
    crowd.expect_right();
  }
}

// KB-C09-05 (SGLang 23696, 22592): the end of a chain is deleted, and with it what comes before,
// though a prefetch holds that. A chain of three nodes, the first held; with attention and without.
TEST(C09Eviction, WhatComesBeforeAnEndStaysWhileSomebodyHoldsIt) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const LayerKind kind = seed % 2 == 0 ? kFull : LayerKind(SlidingWindow{17, 0});
    Crowd crowd(Crowd::config({kind}, 16, 8, 12), seed);
    TestCache& cache = crowd.cache;
    // Two prompts part after each block, so each block is a node.
    for (std::int64_t shared = 1; shared <= 2; ++shared) {
      Tokens fork = numbers(0, shared * 16);
      for (const TokenId token : numbers(static_cast<TokenId>(4000 * shared), 16)) {
        fork.push_back(token);
      }
      cache.run(fork);
    }
    cache.run(numbers(0, 3 * 16));
    Sequence holder = cache.create(numbers(0, 17));
    ASSERT_EQ(holder.num_committed(), 16);
    ASSERT_TRUE(holder.prefetch(seed % 4 < 2 ? Tier::kHost : Tier::kDevice).has_value());
    for (const TokenId first : {7000, 8000, 9000}) cache.run(numbers(first, 8 * 16));
    EXPECT_EQ(cache.reusable(numbers(0, 3 * 16)), 16) << "the cascade stops at the first";
    ASSERT_TRUE(holder.prefetch(Tier::kDevice).has_value());
    cache.manager->audit();
    cache.resume(holder);
    cache.compute(holder, numbers(0, 3 * 16));
    holder.close();
    EXPECT_EQ(cache.reusable(numbers(0, 3 * 16)), 3 * 16);
    crowd.expect_right();
  }
}

// KB-C09-06 (TensorRT-LLM 17926, 18095): publishing takes a slot for a snapshot, that evicts, and
// what is evicted prunes the path of whoever publishes. Two slots for states, six boundaries, by
// itself and with blocks of attention.
TEST(C09Eviction, APublishedSnapshotDoesNotPruneThePathOfItsOwner) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const auto slots = 2 + static_cast<std::int64_t>(seed % 3);
    KvCacheConfig config = by_page({kState}, slots, 0);
    if (seed % 2 == 0) config.commit_policy = CommitPolicy::kEndpointsOnly;
    Crowd crowd(std::move(config), seed);
    TestCache& cache = crowd.cache;
    Sequence a = cache.create({});
    cache.resume(a);
    const std::int64_t step = 16 - static_cast<std::int64_t>(seed % 2 == 0 ? seed % 3 : 0);
    for (std::int64_t i = 1; i <= 6; ++i) {
      ASSERT_TRUE(a.resize(i * step).has_value());
      // A slot is never taken from a state that is used: then there is no snapshot.
      if (seed % 2 == 1) {
        const auto reserved = a.reserve_snapshot(i * step);
        ASSERT_TRUE(reserved.has_value()) << reserved.error().text();
      }
      cache.compute(a, numbers(0, i * step));
      EXPECT_EQ(cache.reusable(numbers(0, i * step)), i * step);
    }
    EXPECT_EQ(cache.manager->counters().pages_dropped, 6 - (slots - 1));
    EXPECT_EQ(cache.manager->room(Tier::kDevice, kGroup).unavailable, 1);
    ASSERT_TRUE(a.suspend().has_value());
    cache.resume(a);
    cache.compute(a, numbers(0, 6 * step + 1));
    a.close();
    crowd.expect_right();
  }
}

// All six at once: those that there is room for, and no state is lost for the others.
TEST(C09Eviction, SnapshotsOfOneCommitTakeOnlyTheRoomThereIs) {
  for (std::int64_t slots = 2; slots <= 8; ++slots) {
    SCOPED_TRACE(testing::Message() << slots << " slots");
    Crowd crowd(by_page({kState}, slots, 0), static_cast<std::uint64_t>(slots));
    TestCache& cache = crowd.cache;
    Sequence a = cache.create({});
    cache.resume(a);
    ASSERT_TRUE(a.resize(6 * 16).has_value());
    std::int64_t num_reserved = 0;
    for (std::int64_t i = 1; i <= 6; ++i) {
      const auto reserved = a.reserve_snapshot(i * 16);
      num_reserved += reserved.has_value() ? 1 : 0;
      if (!reserved.has_value()) {
        EXPECT_EQ(reserved.error().code(), ErrorCode::kResourceExhausted);
      }
    }
    EXPECT_EQ(num_reserved, std::min<std::int64_t>(6, slots - 1));
    cache.compute(a, numbers(0, 6 * 16));
    EXPECT_EQ(cache.manager->counters().snapshots_published, num_reserved);
    EXPECT_EQ(cache.reusable(numbers(0, 6 * 16)), num_reserved * 16);
    a.close();
    crowd.expect_right();
  }
}

// KB-C09-09 (TensorRT-LLM 14003, 13179): rows that only fill a batch up take the states of those
// that live. Four live ones and two that fill up: where the constraints name all six there is room
// for all; where they name four the others are told so, and nobody loses anything.
TEST(C09Eviction, WhoFillsABatchUpTakesNoLiveState) {
  for (const std::size_t num_fillers : {0, 2}) {
    SCOPED_TRACE(testing::Message() << num_fillers << " are reserved");
    KvCacheConfig config = by_page({kState}, 1, 0);
    BatchDesc batch;
    batch.sequences.assign(4, {64, 0});
    for (std::size_t i = 0; i < num_fillers; ++i) batch.sequences.push_back({});
    config.constraints = {batch};
    config.device_bytes = min_quotas(config)->device_bytes;
    Crowd crowd(std::move(config), 3);
    TestCache& cache = crowd.cache;
    std::vector<Sequence> live;
    for (int i = 0; i < 4; ++i) {
      live.push_back(crowd.written(cache.engine, static_cast<TokenId>(1000 * i), 40));
    }
    std::vector<Sequence> fillers;
    for (int i = 0; i < 2; ++i) {
      Sequence& filler = fillers.emplace_back(cache.create({}));
      const auto resumed = filler.resume(crowd.other.stream());
      EXPECT_EQ(resumed.has_value(), num_fillers > 0);
      if (!resumed.has_value()) {
        EXPECT_EQ(resumed.error().code(), ErrorCode::kResourceExhausted);
      }
      cache.manager->audit();
    }
    for (int i = 0; i < 4; ++i) {
      cache.engine.step(live[static_cast<std::size_t>(i)],
                        numbers(static_cast<TokenId>(1000 * i), 40), 40);
    }
    crowd.expect_right();
  }
}

}  // namespace
}  // namespace slackwater::cache
