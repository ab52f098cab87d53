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

TEST(Allocation, AStepTakesNothingFromTheHeap) {
  // Room for 4 sequences of 640 tokens in blocks of 4, and not for 12.
  TestCache cache(test_config({FullAttention(), SlidingWindow{30, 4}, Recurrent()}, 4, 80 << 10));
  std::int64_t during_steps = 0;
  for (TokenId generation = 0; generation < 6; ++generation) {
    Generation running(cache, 10'000 * generation);
    const std::int64_t before = num_heap_allocations();
    for (TokenId i = 0; i < kSteps; ++i) running.step(7 * i + 1);
    during_steps = num_heap_allocations() - before;
  }
  EXPECT_GT(cache.manager->counters().pages_dropped, 4 * kSteps / 4);
  EXPECT_EQ(during_steps, 0);
}

}  // namespace
}  // namespace slackwater::cache
