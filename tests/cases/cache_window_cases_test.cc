// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// windows that are left behind. Each comment names the public reports.

#include <algorithm>
#include <set>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;

LayerKind window(std::int64_t size) { return SlidingWindow{size, 0}; }

Tokens cut(const Tokens& tokens, std::int64_t count) {
  return Tokens(tokens.begin(), tokens.begin() + count);
}

// C08, sliding-window staleness: what lies behind the window is neither offered nor freed while a
// step may read it.
// KB-C08-01 (TensorRT-LLM 2983): the largest window is asked whether the start is still there, and
// the smallest has lost it. 12 tokens with windows of 8 and 32: 12 or fewer are asked for again.
TEST(C08Windows, EveryWindowIsAskedWhatItStillHas) {
  int num_short = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const std::int64_t small = 3 + static_cast<std::int64_t>(seed % 7);
    KvCacheConfig config = Crowd::config({window(small), window(32)}, 4, 32, 0);
    if (seed % 2 == 0) config.commit_policy = CommitPolicy::kEndpointsOnly;
    Crowd crowd(std::move(config), seed);
    const std::int64_t length = 12 + static_cast<std::int64_t>(seed % 5);
    crowd.cache.run(numbers(0, length));
    for (std::int64_t asked = length; asked > 0; --asked) {
      Tokens prompt = numbers(0, asked);
      prompt.push_back(777);
      const MatchDepths match = crowd.cache.manager->probe_reuse({}, prompt);
      Sequence sequence = crowd.cache.create(prompt);
      EXPECT_EQ(sequence.num_committed(), match.reused);
      num_short += match.reused < match.content ? 1 : 0;
      crowd.cache.resume(sequence);
      // Reads all that the next token sees, in both windows.
      crowd.cache.engine.step(sequence, cut(prompt, match.reused), match.reused);
    }
    EXPECT_EQ(crowd.cache.reusable(numbers(0, length)), length) << "the end is there";
    crowd.expect_right();
  }
  EXPECT_GT(num_short, 40);
}

// KB-C08-02 (TensorRT-LLM 14478): a block is committed when it is behind the window already, and
// is held ever after. W=8, B=4, committed at 20: three blocks are behind.
TEST(C08Windows, ABlockThatIsCommittedLateIsNotHeld) {
  for (std::int64_t length = 9; length < 48; ++length) {
    SCOPED_TRACE(testing::Message() << length << " tokens");
    Crowd crowd(Crowd::config({window(8)}, 4, 16, 16), static_cast<std::uint64_t>(length));
    TestCache& cache = crowd.cache;
    Sequence a = crowd.written(cache.engine, 0, length);
    EXPECT_EQ(cache.manager->room(Tier::kDevice, kGroup).evictable, 0) << "not committed yet";
    ASSERT_TRUE(a.commit(numbers(0, length)).has_value());
    const std::int64_t behind = (length + 1 - 8) / 4;
    const TierRoom room = cache.manager->room(Tier::kDevice, kGroup);
    EXPECT_EQ(room.evictable, behind) << "in the tree, and nobody's";
    EXPECT_EQ(room.unavailable, (length + 3) / 4 - behind);
    cache.manager->synchronize();
    ASSERT_TRUE(a.suspend().has_value());
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 4)), 4) << "the first block can be shared";
    cache.resume(a);
    cache.compute(a, numbers(0, length + 3));
    a.close();
    crowd.expect_right();
  }
}

// KB-C08-04 (vLLM 47728, vllm-ascend 13501): blocks are freed by a count that includes steps under
// way, and one of those still reads them. W=8: step N is launched at 16, N+1 prepared at 20, and
// somebody else takes the block between. Whether they were committed or not.
TEST(C08Windows, AStepUnderWayReadsWhatTheNextOneHasLeftBehind) {
  int num_taken_over = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    KvCacheConfig config = Crowd::config({window(8)}, 4, 12, 0);
    if (seed % 2 == 0) config.commit_policy = CommitPolicy::kEndpointsOnly;
    Crowd crowd(std::move(config), seed);
    TestCache& cache = crowd.cache;
    const std::int64_t length = 16 + static_cast<std::int64_t>(seed % 4);
    Sequence a = cache.create({});
    cache.resume(a);
    cache.compute(a, numbers(0, length));
    ASSERT_TRUE(a.resize(length + 8).has_value());
    const std::set<SlotId> before(a.slots(kGroup).begin(), a.slots(kGroup).end());
    device::EventSource gate = crowd.stall(cache.engine);
    const device::Event written = cache.engine.step(a, numbers(0, length + 4), length);
    if (seed % 4 < 2) {
      const Tokens next = numbers(static_cast<TokenId>(length), 4);
      ASSERT_TRUE(a.commit(next, {written, false}).has_value());
    } else {
      ASSERT_TRUE(a.stop_committing().has_value());
      ASSERT_TRUE(a.resize(std::nullopt, length + 4).has_value());
    }
    cache.engine.step(a, numbers(0, length + 8), length + 4);
    const std::set<SlotId> now(a.slots(kGroup).begin(), a.slots(kGroup).end());
    // Whoever comes takes all there is.
    Sequence c = crowd.written(crowd.other, 7000, 4 * num_free(cache));
    for (const SlotId slot : c.slots(kGroup)) {
      num_taken_over += slot != kNoSlot && before.contains(slot) && !now.contains(slot) ? 1 : 0;
    }
    gate.complete(device::EventStatus::kSucceeded);
    crowd.other.step(c, numbers(7000, c.history()), c.history());
    crowd.expect_right();
  }
  EXPECT_GT(num_taken_over, 20);
}

}  // namespace
}  // namespace slackwater::cache
