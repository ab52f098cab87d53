// What is said ahead of time: pages that will be wanted on a warmer tier, and pages that will not
// be wanted again. Behaviour of TensorRT-LLM's KV cache manager V2; docs/conformance.md maps its
// cases to ours.

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "testing/fault_disk_io.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();

Tokens cut(const Tokens& tokens, std::int64_t count) {
  return Tokens(tokens.begin(), tokens.begin() + count);
}

// Commits up to each of `ends` in turn, and nothing more.
Sequence committed(TestCache& cache, const Tokens& tokens,
                   std::initializer_list<std::int64_t> ends) {
  Sequence sequence = cache.create(tokens);
  cache.resume(sequence);
  for (const std::int64_t end : ends) {
    if (end > sequence.num_committed()) cache.compute(sequence, cut(tokens, end));
  }
  EXPECT_TRUE(sequence.stop_committing().has_value());
  cache.manager->audit();
  return sequence;
}

std::optional<PlannedDrop> plan_of(Sequence& sequence) {
  auto planned = sequence.plan_drop();
  EXPECT_TRUE(planned.has_value()) << planned.error().text();
  return *std::move(planned);
}

// planned_drop_handle, with a backoff of 0 and of 1.
TEST(PlannedDrops, LeaveWhatIsOlderReusable) {
  for (const std::int64_t backoff : {0, 1}) {
    KvCacheConfig config = test_config({kFull, SlidingWindow{8, 0}}, 8);
    config.reuse_match_backoff = backoff;
    TestCache cache(std::move(config));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    cache.compute(sequence, numbers(0, 24));
    EXPECT_EQ(sequence.plan_drop().error().code(), ErrorCode::kFailedPrecondition);
    ASSERT_TRUE(sequence.stop_committing().has_value());
    std::optional<PlannedDrop> plan = plan_of(sequence);
    ASSERT_TRUE(plan.has_value());
    sequence.close();
    EXPECT_EQ(cache.reusable(numbers(0, 24)), 24 - backoff);
    ASSERT_TRUE(plan->drop().has_value());
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 24)), 16) << "a backoff of " << backoff;
    const auto again = plan->drop();
    ASSERT_FALSE(again.has_value());
    EXPECT_THAT(again.error().text(), HasSubstr("already been dropped"));
  }
}

// planned_drop_handle_rejects_partial_coverage: the page of the window covers 16 tokens of a block
// of which 17 are committed.
TEST(PlannedDrops, ThereIsNoneWhereAPageIsOneTokenShort) {
  KvCacheConfig config = test_config({kFull, SlidingWindow{16, 0}}, 32);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  cache.run(numbers(0, 160));
  Sequence shorter = committed(cache, numbers(0, 80), {80});
  std::optional<PlannedDrop> whole = plan_of(shorter);
  EXPECT_TRUE(whole.has_value()) << "16 tokens of the block, and a page that covers them";
  // Held, the page is not replaced by one that covers more.
  Sequence reader = cache.create(numbers(0, 81));
  ASSERT_EQ(reader.num_committed(), 80);
  Sequence longer = committed(cache, numbers(0, 81), {81});
  EXPECT_FALSE(plan_of(longer).has_value());
  cache.manager->audit();
}

class StatePlans : public testing::Test {
 protected:
  static KvCacheConfig config(std::vector<LayerKind> kinds) {
    KvCacheConfig config = test_config(std::move(kinds), 32);
    config.commit_policy = CommitPolicy::kEndpointsOnly;
    return config;
  }
};

// ssm_planned_drop_targets_latest_snapshot_with_shared_plans.
TEST_F(StatePlans, TakeTheLatestSnapshotOnceAllAreDropped) {
  TestCache cache(config({kFull, kState}));
  Sequence empty = committed(cache, {}, {});
  EXPECT_FALSE(plan_of(empty).has_value()) << "nothing is committed";
  empty.close();
  Sequence first = committed(cache, numbers(0, 64), {32, 64});
  std::optional<PlannedDrop> one = plan_of(first);
  Tokens longer = numbers(0, 65);
  Sequence second = committed(cache, longer, {});
  ASSERT_EQ(second.num_committed(), 64);
  std::optional<PlannedDrop> two = plan_of(second);
  ASSERT_TRUE(one.has_value() && two.has_value());
  first.close();
  second.close();
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 64);
  ASSERT_TRUE(one->drop().has_value());
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 64);
  ASSERT_TRUE(two->drop().has_value());
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 32);
  cache.manager->audit();
}

// ssm_planned_drop_includes_partial_swa_window: 80 tokens end in the middle of a block, and a
// window of 48 needs two blocks there.
TEST_F(StatePlans, TakeTheWindowWithItsPartialBlock) {
  TestCache cache(config({kFull, SlidingWindow{48, 0}, kState}));
  Sequence sequence = committed(cache, numbers(0, 80), {80});
  std::optional<PlannedDrop> plan = plan_of(sequence);
  ASSERT_TRUE(plan.has_value());
  sequence.close();
  const auto taken = [&](std::int32_t group) {
    const TierRoom room = cache.manager->room(Tier::kDevice, LayerGroupId(group));
    return room.total - room.free;
  };
  ASSERT_EQ(cache.reusable(numbers(0, 80)), 80);
  const std::int32_t before = taken(0);
  EXPECT_TRUE(plan->drop().has_value());
  cache.manager->audit();
  EXPECT_EQ(cache.manager->counters().pages_dropped, 3) << "two of the window, and the snapshot";
  EXPECT_EQ(taken(0), before - 2) << "they share slots with attention, which keeps its own";
  EXPECT_EQ(cache.reusable(numbers(0, 80)), 0);
}

// TestResizeQuota.resize_quota, with KiB for MiB: three tiers full of what eleven sequences have
// left and two that sleep, which come through a shrink of all tiers.
class ResizeQuota : public testing::Test {
 protected:
  static constexpr std::int64_t kKiB = 1024;
  static constexpr std::int64_t kBlock = 16;
  static constexpr std::int64_t kTokens = 19 * kBlock + 5;  // twenty pages and a state

  KvCacheConfig config() {
    KvCacheConfig config = test_config({kFull, kState}, kBlock, 64 * kKiB);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = kKiB;
    config.host_bytes = 128 * kKiB;
    config.disk_bytes = 128 * kKiB;
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 16 * kKiB;
    config.disk_io = std::make_unique<storage::FaultDiskIo>(
        storage::make_blocking_disk_io(), [this](std::int64_t, const storage::IoRequest& request) {
          num_reads_ += request.kind == storage::IoRequest::Kind::kRead;
          return storage::DiskFault::kNone;
        });
    return config;
  }
  static Tokens tokens(int i, std::int64_t count) {
    return numbers(static_cast<TokenId>(10'000 * i), count);
  }
  static std::int32_t num_on(const TestCache& cache, Tier tier) {
    const TierRoom room = cache.manager->room(tier, LayerGroupId(0));
    return room.total - room.free;
  }
  void set_quotas(TestCache& cache, std::int64_t device, std::int64_t host, std::int64_t disk) {
    const std::pair<Tier, std::int64_t> quotas[] = {
        {Tier::kDevice, device}, {Tier::kHost, host}, {Tier::kDisk, disk}};
    for (const auto& [tier, kib] : quotas) {
      const auto changed = cache.manager->set_quota(tier, kib * kKiB);
      ASSERT_TRUE(changed.has_value()) << changed.error().text();
      cache.manager->audit();
    }
  }

  TemporaryDirectory directory_;
  std::int64_t num_reads_ = 0;
};

TEST_F(ResizeQuota, SleepersComeThroughAShrinkAndAnExpansion) {
  TestCache cache(config());
  for (int i = 0; i < 11; ++i) cache.run(tokens(i, kTokens));
  std::vector<Sequence> sleepers;
  for (int i = 11; i < 13; ++i) {
    Sequence& sequence = sleepers.emplace_back(cache.create({}));
    cache.resume(sequence);
    cache.compute(sequence, tokens(i, kTokens));
    ASSERT_TRUE(sequence.suspend().has_value());
  }
  EXPECT_GT(num_on(cache, Tier::kDisk), 0) << "all tiers are in use";
  set_quotas(cache, 32, 16, 32);
  EXPECT_GT(num_on(cache, Tier::kDisk), 0);
  cache.resume(sleepers[0]);
  const auto second = sleepers[1].resume(cache.engine.stream());
  ASSERT_FALSE(second.has_value()) << "42 pages for 32 slots";
  EXPECT_EQ(second.error().code(), ErrorCode::kResourceExhausted);
  ASSERT_TRUE(sleepers[0].suspend().has_value());
  set_quotas(cache, 64, 128, 128);

  for (Sequence& sequence : sleepers) {
    const auto brought = sequence.prefetch(Tier::kHost);
    ASSERT_TRUE(brought.has_value()) << brought.error().text();
  }
  cache.manager->audit();
  EXPECT_EQ(cache.manager->room(Tier::kDevice, LayerGroupId(0)).unavailable, 0)
      << "whatever lies there may leave";
  EXPECT_EQ(num_on(cache, Tier::kHost),
            cache.manager->room(Tier::kHost, LayerGroupId(0)).evictable);
  cache.manager->synchronize();
  EXPECT_GT(num_reads_, 0) << "some were on the disk";
  const std::int64_t before = num_reads_;
  for (int i = 0; i < 2; ++i) {
    Sequence& sequence = sleepers[static_cast<std::size_t>(i)];
    cache.resume(sequence);
    cache.compute(sequence, tokens(11 + i, kTokens + 1));
  }
  EXPECT_EQ(num_reads_, before) << "and none is any more";
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

}  // namespace
}  // namespace slackwater::cache
