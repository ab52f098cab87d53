// What a step costs the heap: nothing, once the cache has been full for a while.

#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/allocation_counter.h"

namespace slackwater::cache {
namespace {

constexpr std::int64_t kPrompt = 40;
constexpr std::int64_t kSteps = 600;

// Sequences that take turns, one token a step, in a pool where every new page takes the place of
// an older one.
class Generation {
 public:
  Generation(TestCache& cache, TokenId first) : cache_(cache), tokens_(numbers(first, kPrompt)) {
    for (TokenId i = 0; i < 4; ++i) {
      tokens_[0] = first + i;
      sequences_.push_back(cache.create(tokens_));
      Sequence& sequence = sequences_.back();
      cache.resume(sequence);
      EXPECT_TRUE(sequence.resize(kPrompt).has_value());
      EXPECT_TRUE(sequence.commit(tokens_).has_value());
    }
  }

  void step(TokenId token) {
    for (Sequence& sequence : sequences_) {
      ASSERT_TRUE(sequence.resize(sequence.capacity() + 1).has_value());
      ASSERT_TRUE(sequence.commit(std::span(&token, 1)).has_value());
    }
  }

 private:
  TestCache& cache_;
  Tokens tokens_;
  std::vector<Sequence> sequences_;
};

// Room for 4 sequences of 640 tokens in blocks of 4, and not for 12.
KvCacheConfig small_config() {
  return test_config({FullAttention(), SlidingWindow{30, 4}, Recurrent()}, 4, 80 << 10);
}

// What the steps of the last of several generations take, once the cache is full.
std::int64_t allocations_of_steps(TestCache& cache) {
  std::int64_t during_steps = 0;
  for (TokenId generation = 0; generation < 6; ++generation) {
    Generation running(cache, 10'000 * generation);
    static_cast<void>(cache.manager->drain_events());
    const std::int64_t before = num_heap_allocations();
    for (TokenId i = 0; i < kSteps; ++i) running.step(7 * i + 1);
    during_steps = num_heap_allocations() - before;
  }
  EXPECT_GT(cache.manager->counters().pages_dropped, 4 * kSteps / 4);
  return during_steps;
}

TEST(Allocation, AStepTakesNothingFromTheHeap) {
  TestCache cache(small_config());
  EXPECT_EQ(allocations_of_steps(cache), 0);
}

TEST(Allocation, NotingEventsTakesNothingEither) {
  for (const std::int32_t max_events : {100, 100'000}) {
    KvCacheConfig config = small_config();
    config.max_events = max_events;
    TestCache cache(std::move(config));
    EXPECT_EQ(allocations_of_steps(cache), 0) << max_events;
    const DrainedEvents drained = cache.manager->drain_events();
    EXPECT_EQ(drained.num_lost > 0, max_events == 100);
    EXPECT_GT(drained.events.size(), 1000u);
  }
}

}  // namespace
}  // namespace slackwater::cache
