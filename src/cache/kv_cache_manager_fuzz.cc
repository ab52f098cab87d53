// Random operations on a KvCacheManager over a device and a disk that fail, and on a naive one.
//
//   SLACKWATER_SEED=7 SLACKWATER_OPERATIONS=2000000 slackwater_cache_test
//       --gtest_filter='KvCacheManagerModel*'
//
// With SLACKWATER_LOG=FILE the operation log of the last seed stays there.

#include <cstdint>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "cache/manager_model_test_support.h"
#include "testing/operations.h"
#include "testing/seed.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

TEST(KvCacheManagerModel, ServesNobodyElsesBytes) {
  const std::uint64_t seed = test_seed();
  const std::int64_t num_operations = test_operations(60'000);
  const std::int64_t per_seed = 2000;
  Tally sum;
  for (std::int64_t done = 0, round = 0; done < num_operations; done += per_seed, ++round) {
    const std::uint64_t this_seed = seed + static_cast<std::uint64_t>(round);
    SCOPED_TRACE(testing::Message() << "seed " << this_seed);
    const TemporaryDirectory directory;
    KvCacheManagerModel model(this_seed, directory.path());
    model.run(per_seed, done);
    if (testing::Test::HasFailure()) return;
    sum.add(model.tally());
  }
  fmt::print(stderr,
             "{} steps judged, {} suspect; {} resumed, {} refused, {} lost; {} tokens reused, {} "
             "partial matches; {} pages dropped, {} snapshots, {} faults; {} calls replayed\n",
             sum.steps_judged, sum.steps_suspect, sum.resumed, sum.refused, sum.lost,
             sum.tokens_reused, sum.partial_matches, sum.pages_dropped, sum.snapshots, sum.faults,
             sum.calls_replayed);
  fmt::print(stderr, "{} events, {} overflows\n", sum.events, sum.overflows);
  EXPECT_GT(sum.steps_judged, num_operations / 5);
  EXPECT_GT(sum.pages_dropped, num_operations / 100);
  EXPECT_GT(sum.refused, 0);
  EXPECT_GT(sum.tokens_reused, 0);
  EXPECT_GT(sum.turns, 0);
  EXPECT_GT(sum.quotas, 0);
  EXPECT_GT(sum.calls_replayed, 0);
  EXPECT_GT(sum.adjusts, 0);
  EXPECT_GT(sum.events, num_operations / 10);
  EXPECT_GT(sum.overflows, 0);
  fmt::print(stderr, "{} prefetched, {} refused; {} drops planned, {} applied\n", sum.prefetched,
             sum.prefetch_refused, sum.plans, sum.plans_dropped);
  EXPECT_GT(sum.prefetched, 0);
  EXPECT_GT(sum.plans_dropped, 0);
  EXPECT_GT(sum.pages_counted, num_operations / 100);
  fmt::print(stderr, "{} states handed over, {} sleepers trimmed\n", sum.states_handed_over,
             sum.trims_of_sleepers);
  EXPECT_GT(sum.states_handed_over, num_operations / 1000);
  EXPECT_GT(sum.trims_of_sleepers, 0);
}

}  // namespace
}  // namespace slackwater::cache
