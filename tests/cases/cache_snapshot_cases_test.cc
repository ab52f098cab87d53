// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// where recurrent states are kept, and what of. Each comment names the public reports.

#include <algorithm>
#include <cstring>
#include <span>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/base/page_table.h"
#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

// C03, recurrent snapshot at the wrong position: what is published at n is the fold of the first n
// tokens, was really written, and serves n only.
// KB-C03-01 (vLLM 51113, 45477): a chunk cut in the middle of a block. KB-C03-08 (TensorRT-LLM
// 15653): chunks that do not stop where a snapshot is wanted; ours is written in passing.
TEST(C03SnapshotPosition, AChunkThatEndsAnywhereLeavesNothingAtTheBoundary) {
  for (const std::int64_t cut : {1, 5, 15, 16, 17}) {
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence a = cache.create(numbers(0, 20));
    cache.resume(a);
    ASSERT_TRUE(a.resize(20).has_value());
    if (cut < 16) {
      ASSERT_TRUE(a.reserve_snapshot(16).has_value());
    }
    cache.compute(a, numbers(0, cut));
    EXPECT_EQ(cache.reusable(numbers(0, 16)), 0) << "nobody has written a state of 16";
    cache.compute(a, numbers(0, 20));
    EXPECT_EQ(cache.reusable(numbers(0, 16)), cut < 16 ? 16 : 0);
    Tokens other = numbers(0, 16);
    other.push_back(777);
    Sequence c = cache.create(other);
    cache.resume(c);
    cache.compute(c, other);
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// KB-C03-04 (vLLM 56525): published when it is scheduled, hit before it has run, or after it was
// cancelled. KB-C03-06 (SGLang 34043, 31099): the step that should have written it was skipped.
TEST(C03SnapshotPosition, NothingIsSeenBeforeItIsWrittenOrWhenItNeverIs) {
  for (const bool fails : {false, true}) {
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence a = cache.create(numbers(0, 64));
    cache.resume(a);
    ASSERT_TRUE(a.resize(64).has_value());
    ASSERT_TRUE(a.reserve_snapshot(32).has_value());
    ASSERT_TRUE(a.reserve_snapshot(48).has_value());
    a.cancel_snapshot(48);
    device::EventSource step = cache.device->make_event("the step");
    ASSERT_TRUE(a.commit(numbers(0, 64), {step.event(), false}).has_value());
    EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 65)).content, 0) << "it has not run";
    step.complete(fails ? EventStatus::kFailed : EventStatus::kSucceeded);
    EXPECT_EQ(cache.reusable(numbers(0, 64)), fails ? 0 : 32);
    // Whoever comes by looks again.
    EXPECT_EQ(cache.create(numbers(0, 65)).num_committed(), fails ? 0 : 32);
    EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 65)).content, fails ? 0 : 64);
    a.close();
    EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 65)).content, fails ? 0 : 64);
    cache.manager->audit();
  }
}

// KB-C03-10 (SGLang 22935): a lookup that ends inside an edge splits it, and the state is lost for
// everybody. KB-C03-11 (llama.cpp 22384, 25592, 24055): checkpoints at 40 and 80, 70 shared.
TEST(C03SnapshotPosition, ALookupInsideAnEdgeTakesTheLastOneBeforeIt) {
  for (const std::int64_t shared : {39, 40, 41, 70, 79, 80}) {
    TestCache cache(test_config({kFull, kState}, 16));
    Sequence a = cache.create(numbers(0, 100));
    cache.resume(a);
    ASSERT_TRUE(a.resize(100).has_value());
    for (const std::int64_t position : {40, 80}) {
      ASSERT_TRUE(a.reserve_snapshot(position).has_value());
    }
    cache.compute(a, numbers(0, 100));
    Tokens other = numbers(0, shared);
    other.push_back(9999);
    other.push_back(9998);
    Sequence c = cache.create(other);
    EXPECT_EQ(c.num_committed(), shared < 40 ? 0 : shared < 80 ? 40 : 80);
    cache.resume(c);
    cache.compute(c, other);
    EXPECT_EQ(cache.reusable(numbers(0, 80)), 80) << "the others keep theirs";
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// KB-C03-03 (vLLM 55600, 53142, 55507, 53798): the column of a state is computed with the blocks of
// another group. Ours is an entry of its own: kernels have blocks of 4 and of 2 tokens within ours
// of 16, and a prefix of 48 is found. Every byte is looked at.
TEST(C03SnapshotPosition, AStateHasAColumnOfItsOwn) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{20, 0}, kState}, 16);
  config.layers[0].buffers = {{"digest", 8 * 4, 4}};
  config.layers[1].buffers = {{"digest", 8 * 2, 2}};
  TestCache cache(std::move(config));
  const PageTable tables[] = {*cache.manager->page_table(0, "digest"),
                              *cache.manager->page_table(1, "digest"),
                              *cache.manager->page_table(2, "digest")};
  EXPECT_EQ(tables[0].tokens_per_block, 4);
  EXPECT_EQ(tables[1].tokens_per_block, 2);
  EXPECT_EQ(tables[2].tokens_per_block, 0);
  // Smaller blocks lie one after another in a page.
  const auto place = [&](const Sequence& sequence, std::size_t group, std::int64_t position) {
    const std::int64_t block = position / tables[group].tokens_per_block;
    const std::int64_t in_page = 16 / tables[group].tokens_per_block;
    const SlotId slot = sequence.slots(
        LayerGroupId(static_cast<std::int32_t>(group)))[static_cast<std::size_t>(block / in_page)];
    return layer_address(tables[group], slot) +
           block % in_page * tables[group].tokens_per_block * 8 +
           position % tables[group].tokens_per_block * 8;
  };
  const auto word = [](std::size_t group, std::int64_t n) { return 1000 * (group + 1) + n; };
  const auto write = [](std::byte* at, std::uint64_t value) {
    std::memcpy(at, &value, sizeof(value));
  };
  const auto read = [](const std::byte* at) {
    std::uint64_t value = 0;
    std::memcpy(&value, at, sizeof(value));
    return value;
  };
  const auto state = [&](SlotId slot) {
    EXPECT_LT(slot.value(), tables[2].num_slots);
    return layer_address(tables[2], slot);
  };
  constexpr LayerGroupId kStates{2};
  {
    Sequence a = cache.create({});
    cache.resume(a);
    ASSERT_TRUE(a.resize(48).has_value());
    ASSERT_EQ(a.slots(kStates).size(), 1u);
    for (const std::int64_t at : {16, 32}) {
      ASSERT_TRUE(a.reserve_snapshot(at).has_value());
      write(state(*a.snapshot_slot(kStates, at)), word(2, at));
    }
    for (std::int64_t n = 0; n < 48; ++n) {
      for (const std::size_t group : {0, 1}) write(place(a, group, n), word(group, n));
    }
    write(state(a.slots(kStates)[0]), word(2, 48));
    ASSERT_TRUE(a.commit(numbers(0, 48)).has_value());
  }
  for (const std::int64_t length : {17, 33, 49, 60}) {
    const std::int64_t found = std::min<std::int64_t>(48, length / 16 * 16);
    Sequence c = cache.create(numbers(0, length));
    EXPECT_EQ(c.num_committed(), found);
    cache.resume(c);
    EXPECT_EQ(cache.engine.stream().synchronize(), EventStatus::kSucceeded);
    ASSERT_EQ(c.slots(kStates).size(), 1u) << "one entry, whatever the length";
    EXPECT_EQ(read(state(c.slots(kStates)[0])), word(2, found));
    ASSERT_EQ(std::ssize(c.slots(kGroup)), found / 16);
    for (std::int64_t n = 0; n < found; ++n) {
      EXPECT_EQ(read(place(c, 0, n)), word(0, n));
      if (n + 20 > found) {
        EXPECT_EQ(read(place(c, 1, n)), word(1, n));
      }
    }
  }
}

// KB-C03-04: a chunk up to 32 of 64 is stalled and its request aborted; the same prompt comes again
// at once. What the chunk has committed is found when it has run, and never when it has failed.
TEST(C03SnapshotPosition, WhatAnAbortedStepHasNotWrittenIsNotFound) {
  for (const bool fails : {false, true}) {
    for (std::uint64_t seed = 0; seed < 10; ++seed) {
      SCOPED_TRACE(testing::Message() << "fails " << fails << " seed " << seed);
      Crowd crowd(Crowd::config({kFull, kState}, 16, 64, 0), seed);
      TestCache& cache = crowd.cache;
      const Tokens prompt = numbers(0, 64);
      Sequence a = cache.create(prompt);
      cache.resume(a);
      ASSERT_TRUE(a.resize(64).has_value());
      ASSERT_TRUE(a.reserve_snapshot(16).has_value());
      ASSERT_TRUE(a.reserve_snapshot(32).has_value());
      device::EventSource step = crowd.stall(cache.engine);
      cache.engine.step(a, numbers(0, 32), 0);
      if (fails) cache.engine.stream().run([] { return false; });
      const device::Event written = cache.engine.stream().record();
      ASSERT_TRUE(a.commit(numbers(0, 32), {written, false}).has_value());
      EXPECT_EQ(cache.manager->probe_reuse({}, prompt).content, 0) << "it has not run";
      a.close();
      EXPECT_EQ(cache.manager->probe_reuse({}, prompt).content, 0);
      // It comes again, and only as far as 20: so that of what is found later nothing is its own.
      Sequence c = cache.create(prompt);
      EXPECT_EQ(c.num_committed(), 0);
      ASSERT_TRUE(c.resume(crowd.other.stream()).has_value());
      ASSERT_TRUE(c.resize(64).has_value());
      crowd.other.step(c, numbers(0, 20), 0);
      ASSERT_TRUE(c.commit(numbers(0, 20), {crowd.other.stream().record(), false}).has_value());
      EXPECT_EQ(crowd.other.stream().synchronize(), EventStatus::kSucceeded);
      EXPECT_EQ(cache.reusable(prompt), 0) << "it has written no snapshot";
      step.complete(EventStatus::kSucceeded);
      EXPECT_EQ(written.wait(), fails ? EventStatus::kFailed : EventStatus::kSucceeded);
      Sequence d = cache.create(prompt);
      EXPECT_EQ(d.num_committed(), fails ? 0 : 32);
      cache.resume(d);
      cache.compute(d, prompt);
      crowd.other.step(c, prompt, 20);
      ASSERT_TRUE(c.commit(numbers(20, 44), {crowd.other.stream().record(), false}).has_value());
      crowd.expect_right();
    }
  }
}

// KB-C03-06: a step that should have written a snapshot was of a kind that does not. Whoever has
// reserved it cancels it, before or after the step, and nothing is published there.
TEST(C03SnapshotPosition, ASnapshotThatWasNotWrittenAndIsCancelledIsNotPublished) {
  for (const bool cancels_first : {false, true}) {
    TestCache cache(test_config({kFull, kState}, 16));
    const Tokens prompt = numbers(0, 64);
    const std::int32_t states = num_free(cache, 1);
    Sequence a = cache.create(prompt);
    cache.resume(a);
    ASSERT_TRUE(a.resize(65).has_value());
    ASSERT_TRUE(a.reserve_snapshot(48).has_value());
    if (cancels_first) {
      ASSERT_TRUE(a.reserve_snapshot(32).has_value());
      a.cancel_snapshot(32);
    }
    const device::Event written = cache.engine.step(a, prompt, 0);
    if (!cancels_first) {
      // The step knows nothing of it.
      ASSERT_TRUE(a.reserve_snapshot(32).has_value());
      a.cancel_snapshot(32);
    }
    EXPECT_FALSE(a.snapshot_slot(LayerGroupId(1), 32).has_value());
    ASSERT_TRUE(a.commit(prompt, {written, false}).has_value());
    EXPECT_EQ(written.wait(), EventStatus::kSucceeded);
    EXPECT_EQ(cache.manager->counters().snapshots_published, 1);
    EXPECT_EQ(cache.manager->counters().snapshots_skipped, 0) << "nobody was refused";
    EXPECT_EQ(cache.reusable(numbers(0, 47)), 0);
    EXPECT_EQ(cache.reusable(prompt), 48);
    EXPECT_EQ(num_free(cache, 1), states - 1) << "the state of the one that runs";
    Sequence c = cache.create(numbers(0, 60));
    cache.resume(c);
    cache.compute(c, numbers(0, 60));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// KB-C03-08: snapshots are wanted at 32 and at the end of a prompt of 50, and chunks have 40
// tokens. Ours need no stops: whatever the chunks, each is the state of its own position. One that
// is taken to be of the end needs a stop, and is refused without one: that is a test beside the
// code.
TEST(C03SnapshotPosition, PointsAreServedWhateverTheChunks) {
  for (const std::int64_t chunk : {1, 7, 16, 32, 33, 40, 50}) {
    SCOPED_TRACE(testing::Message() << "chunks of " << chunk);
    KvCacheConfig config = test_config({kFull, kState}, 16);
    config.snapshot_interval = 32;
    TestCache cache(std::move(config));
    const Tokens prompt = numbers(0, 50);
    Sequence a = cache.create(prompt);
    cache.resume(a);
    ASSERT_TRUE(a.resize(51).has_value());
    const std::vector<std::int64_t> points = cache.manager->snapshot_points(a, 50);
    EXPECT_THAT(points, testing::ElementsAre(32, 48, 49));
    for (const std::int64_t point : points) {
      ASSERT_TRUE(a.reserve_snapshot(point).has_value());
    }
    for (std::int64_t end = chunk;; end += chunk) {
      const std::int64_t done = std::min<std::int64_t>(end, 50);
      cache.compute(a, numbers(0, done));
      // Those that are covered by a full block, or by an end, and no others.
      EXPECT_EQ(cache.reusable(prompt), done < 32 ? 0 : done < 48 ? 32 : 48);
      if (done == 50) break;
    }
    a.close();
    EXPECT_EQ(cache.manager->counters().snapshots_published, 3);
    for (std::size_t i = 0; i <= points.size(); ++i) {
      const std::int64_t found = i == 0 ? 0 : points[i - 1];
      const std::int64_t before = i == points.size() ? 50 : points[i] - 1;
      EXPECT_EQ(cache.reusable(numbers(0, found)), found);
      EXPECT_EQ(cache.reusable(numbers(0, before)), found);
      Tokens next = numbers(0, found);
      for (const TokenId token : numbers(8000, 5)) next.push_back(token);
      Sequence c = cache.create(next);
      EXPECT_EQ(c.num_committed(), found);
      cache.resume(c);
      cache.compute(c, next);
    }
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

}  // namespace
}  // namespace slackwater::cache
