#ifndef SLACKWATER_CACHE_STATISTICS_TEST_SUPPORT_H_
#define SLACKWATER_CACHE_STATISTICS_TEST_SUPPORT_H_

#include <cstdint>
#include <utility>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/cache/cache_statistics.h"

namespace slackwater::cache {

// A sequence with options that TestCache does not set.
inline Sequence create_with(TestCache& cache, const Tokens& tokens, SequenceOptions options) {
  options.tokens = tokens;
  options.request = RequestId(cache.next_request++);
  auto made = cache.manager->create_sequence(options);
  EXPECT_TRUE(made.has_value()) << made.error().text();
  return *std::move(made);
}

// What requests did with a layer group's pages, in totals.
inline GroupUse use_of(const TestCache& cache, std::size_t group = 0) {
  return cache.manager->statistics().groups[group].use;
}

inline std::int64_t moved(const CacheStatistics& statistics, std::size_t group, storage::Tier from,
                          storage::Tier to) {
  return statistics.groups[group]
      .moved[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)]
      .pages;
}

// Computes a prompt, and says so.
inline void run_counted(TestCache& cache, const Tokens& tokens, SequenceOptions options = {}) {
  Sequence sequence = create_with(cache, tokens, std::move(options));
  cache.resume(sequence);
  cache.compute(sequence, tokens);
  sequence.commit_statistics();
  sequence.close();
  cache.manager->synchronize();
  cache.manager->audit();
}

// Somebody wants the room of `num_tokens` for a while: whoever is not in use leaves the device.
inline void crowd_out(TestCache& cache, std::int64_t num_tokens) {
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  const auto resized = sequence.resize(num_tokens);
  ASSERT_TRUE(resized.has_value()) << resized.error().text();
  sequence.close();
  cache.manager->synchronize();
  cache.manager->audit();
}

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_STATISTICS_TEST_SUPPORT_H_
