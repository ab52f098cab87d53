// Faults that users of other engines have met, replayed on our cache with other numbers each time:
// settings that cannot work. Each comment names the public reports.

#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "testing/temporary_directory.h"
#include "tests/cases/cache_cases_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using ::testing::HasSubstr;

// C18, accepting impossible settings. KB-C18-01 (TensorRT-LLM 14524): what live states and
// snapshots need is one sum, and intervals are checked. KB-C18-03 (vLLM 57278): block sizes that do
// not divide. KB-C18-06 (vLLM 47635, 57721): a size that is computed in two places.
TEST(C18ImpossibleSettings, WhatIsAcceptedHasTheRoomItWasAcceptedFor) {
  for (const std::int64_t live : {1, 2, 7}) {
    for (const std::int64_t state_bytes : {512, 4096, 5000}) {
      KvCacheConfig config = test_config({kFull, kState}, 16, 1);
      config.layers[1].buffers = {{"state", state_bytes}};
      config.constraints = {
          BatchDesc{std::vector<SequenceDesc>(static_cast<std::size_t>(live), {32, 0}), 0}};
      const std::int64_t least = min_quotas(config)->device_bytes;
      config.device_bytes = least - 1;
      const auto refused = validate(config);
      ASSERT_FALSE(refused.has_value());
      EXPECT_THAT(refused.error().text(), HasSubstr("use " + std::to_string(least)));
      config.device_bytes = least;
      TestCache cache(std::move(config));
      EXPECT_GE(cache.manager->room(Tier::kDevice, LayerGroupId(1)).total, live);
      std::vector<Sequence> batch;
      for (std::int64_t i = 0; i < live; ++i) {
        batch.push_back(cache.create({}));
        cache.resume(batch.back());
        ASSERT_TRUE(batch.back().resize(32).has_value());
      }
    }
  }
}

// A path that cannot be written to is known at the start, not at the first page.
TEST(C18ImpossibleSettings, ADiskThatCannotBeWrittenToIsRefused) {
  const TemporaryDirectory directory;
  const std::filesystem::path file = directory.path() / "a file";
  std::ofstream(file) << "not a directory";
  KvCacheConfig config = test_config({kFull}, 16);
  config.disk_bytes = 1 << 20;
  config.disk.directory = file;
  const auto device = device::make_cpu_device();
  const auto refused = KvCacheManager::create(*device, std::move(config));
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kUnavailable);
  EXPECT_THAT(refused.error().text(), HasSubstr("a file"));
}

// KB-C18-04 (vLLM 51198, 54504): reuse is on and never hits. A recurrent model without a single
// reserved snapshot still finds the end of what has ended.
TEST(C18ImpossibleSettings, ReuseThatIsOnHits) {
  for (const CommitPolicy policy : {CommitPolicy::kEveryBlock, CommitPolicy::kEndpointsOnly}) {
    KvCacheConfig config = test_config({kFull, kState}, 16);
    config.commit_policy = policy;
    TestCache cache(std::move(config));
    for (int turn = 0; turn < 3; ++turn) {
      const Tokens tokens = numbers(0, 40 + 20 * turn);
      Sequence sequence = cache.create(tokens);
      EXPECT_EQ(sequence.num_committed(), turn == 0 ? 0 : 20 + 20 * turn);
      cache.resume(sequence);
      cache.compute(sequence, tokens);
      sequence.close();
      cache.manager->synchronize();
    }
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

// KB-C18-03: blocks of 384 tokens where a kernel works in chunks of 256. Blocks of kernels divide
// ours, and ours is a power of two; what need not be a multiple of anything is where a snapshot
// lies.
TEST(C18ImpossibleSettings, BlocksThatDoNotDivideAreRefused) {
  const auto refused = [](std::int32_t tokens_per_block, std::int32_t of_kernel,
                          const std::string& text) {
    KvCacheConfig config = test_config({kFull, kState}, 256);
    config.tokens_per_block = tokens_per_block;
    config.layers[0].buffers[0].tokens_per_block = of_kernel;
    const auto checked = validate(config);
    ASSERT_FALSE(checked.has_value()) << text;
    EXPECT_EQ(checked.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(checked.error().text(), HasSubstr(text));
  };
  refused(384, 0, "384 tokens per block; use a power of two");
  refused(256, 384, "blocks of 384 tokens, which do not divide the 256 of a block");
  refused(128, 256, "blocks of 256 tokens, which do not divide the 128 of a block");
  refused(256, 96, "blocks of 96 tokens, which do not divide the 256 of a block");
  KvCacheConfig config = test_config({kFull, kState}, 256);
  config.snapshot_interval = 384;
  TestCache cache(std::move(config));
  const Tokens prompt = numbers(0, 1000);
  Sequence a = cache.create(prompt);
  cache.resume(a);
  ASSERT_TRUE(a.resize(1001).has_value());
  const auto points = cache.manager->snapshot_points(a, 1000);
  EXPECT_THAT(points, testing::ElementsAre(384, 768, 999));
  for (const std::int64_t point : points) ASSERT_TRUE(a.reserve_snapshot(point).has_value());
  cache.compute(a, prompt);
  for (const std::int64_t length : {900, 768, 500, 384}) {
    Sequence c = cache.create(numbers(0, length + 1));
    EXPECT_EQ(c.num_committed(), length / 384 * 384);
    cache.resume(c);
    cache.compute(c, numbers(0, length + 1));
  }
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// KB-C18-06: a state with columns for K drafts. What the plan takes a page for is what lies between
// two slots, for one pool as for several, and as many of them are there as the plan has promised.
TEST(C18ImpossibleSettings, ThePlanAndTheSlotsKnowOneSize) {
  for (const std::int64_t drafts : {0, 1, 2, 7}) {
    for (const auto policy : {storage::PoolPolicy::kOnePool, storage::PoolPolicy::kOnePerSize}) {
      SCOPED_TRACE(testing::Message() << drafts << " drafts");
      KvCacheConfig config = test_config({kFull, kState, kFull, kState}, 16, 1);
      for (const std::size_t layer : {1, 3}) {
        config.layers[layer].buffers = {{"state", 1000 * (1 + drafts)},
                                        {"convolution", 24 * (3 + drafts)}};
      }
      config.pool_policy = policy;
      config.constraints = {BatchDesc{{{64, 0}, {64, 0}, {64, 0}}, 0}};
      config.device_bytes = min_quotas(config)->device_bytes;
      const std::int64_t quota = config.device_bytes;
      const TestCache cache(std::move(config));
      std::int64_t taken = 0;
      for (const LayerGroupDesc& group : cache.manager->layer_groups().groups()) {
        const TierRoom room = cache.manager->room(Tier::kDevice, group.id);
        std::set<std::int64_t> strides;
        std::int64_t page_bytes = 0;
        for (const BufferLocation& buffer : cache.manager->layer_groups().buffers()) {
          if (buffer.layer_group != group.id) continue;
          const PageTable table = *cache.manager->page_table(buffer.layer, buffer.role);
          EXPECT_EQ(table.num_slots, room.total);
          EXPECT_GE(table.slot_stride, buffer.bytes * std::ssize(group.local_layers));
          if (strides.insert(table.slot_stride).second) page_bytes += table.slot_stride;
        }
        EXPECT_EQ(page_bytes, group.page_bytes) << group.name;
        EXPECT_GE(room.total, 3);
        taken += room.total * group.page_bytes;
      }
      EXPECT_LE(taken, quota);
      EXPECT_EQ(cache.device->usage(device::MemoryKind::kDevice).committed_bytes,
                static_cast<std::size_t>(quota));
    }
  }
}

}  // namespace
}  // namespace slackwater::cache
