// What only one request reads stays with it, and is no part of what others find.

#include <cstdint>
#include <cstring>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"

namespace slackwater::cache {
namespace {

using storage::Tier;
using testing::HasSubstr;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();
constexpr LayerGroupId kStateGroup{1};

constexpr CommitPolicy kPolicies[] = {CommitPolicy::kEveryBlock, CommitPolicy::kEndpointsOnly};

#if defined(SLACKWATER_DCHECKS)
constexpr bool kPoisons = true;
#else
constexpr bool kPoisons = false;
#endif

// Attention, and states with records beside them.
KvCacheConfig record_config(std::int64_t device_bytes = 1 << 20) {
  KvCacheConfig config = test_config({kFull, kState}, 8, device_bytes);
  config.layers[1].buffers.push_back({"record", 8, 0, true});
  return config;
}

std::uint64_t record_in(const TestCache& cache, SlotId slot) {
  std::uint64_t word = 0;
  std::memcpy(&word, layer_address(*cache.manager->page_table(1, "record"), slot), sizeof word);
  return word;
}
bool is_poison(const TestCache& cache, SlotId slot) {
  return record_in(cache, slot) == 0xDDDDDDDDDDDDDDDDu;
}

void commit_with_state(TestCache& cache, Sequence& sequence, const Tokens& tokens, bool is_end) {
  ASSERT_TRUE(sequence.resize(std::ssize(tokens)).has_value());
  const device::Event written = cache.engine.step(sequence, tokens, sequence.history());
  const auto rest = std::span(tokens).subspan(static_cast<std::size_t>(sequence.num_committed()));
  ASSERT_TRUE(sequence.commit(rest, {written, is_end, true}).has_value());
  cache.manager->synchronize();
  cache.manager->audit();
}

// Takes all of the device for a while, so that whoever sleeps goes to the host.
void push_out(TestCache& cache) {
  std::vector<Sequence> others;
  while (true) {
    Sequence other = cache.create({});
    if (!other.resume(cache.engine.stream()).has_value()) break;
    std::int64_t capacity = 0;
    while (other.resize(capacity + 8).has_value()) capacity += 8;
    others.push_back(std::move(other));
  }
  others.clear();
  cache.manager->synchronize();
}

TEST(TransientRoles, FollowTheirRequestIntoTheCopyOfItsState) {
  for (const CommitPolicy policy : kPolicies) {
    KvCacheConfig config = record_config();
    config.commit_policy = policy;
    TestCache cache(std::move(config));
    Sequence sequence = cache.create({});
    cache.resume(sequence);
    const SlotId left = sequence.slots(kStateGroup)[0];
    commit_with_state(cache, sequence, numbers(0, 16), false);
    ASSERT_NE(sequence.slots(kStateGroup)[0], left);
    EXPECT_TRUE(!kPoisons || is_poison(cache, left)) << "the snapshot has none";
    EXPECT_FALSE(is_poison(cache, sequence.slots(kStateGroup)[0]));
    cache.compute(sequence, numbers(0, 30));
    Sequence other = cache.create(numbers(0, 17));
    ASSERT_EQ(other.num_committed(), 16);
    cache.resume(other);
    cache.compute(other, numbers(0, 20));
    EXPECT_EQ(cache.engine.mismatches(), 0);
  }
}

TEST(TransientRoles, AreNotInWhatAnEndLeavesBehind) {
  TestCache cache(record_config());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  const SlotId slot = sequence.slots(kStateGroup)[0];
  commit_with_state(cache, sequence, numbers(0, 21), true);
  EXPECT_TRUE(!kPoisons || is_poison(cache, slot));
  EXPECT_EQ(cache.reusable(numbers(0, 21)), 21);
}

TEST(TransientRoles, AreNotInReservedSnapshots) {
  TestCache cache(record_config());
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  ASSERT_TRUE(sequence.resize(16).has_value());
  ASSERT_TRUE(sequence.reserve_snapshot(11).has_value());
  const SlotId slot = *sequence.snapshot_slot(kStateGroup, 11);
  std::byte* const at = layer_address(*cache.manager->page_table(1, "record"), slot);
  std::memset(at, 7, 8);  // of whoever had the slot before
  cache.compute(sequence, numbers(0, 16));
  cache.manager->synchronize();
  EXPECT_TRUE(!kPoisons || is_poison(cache, slot));
  EXPECT_EQ(cache.reusable(numbers(0, 15)), 11);
}

// Suspended, sent to the host and back to another slot: the request has its own.
TEST(TransientRoles, FollowTheirRequestThroughTheTiers) {
  KvCacheConfig config = record_config(32 << 10);
  config.host_bytes = 1 << 20;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 12));
  const std::uint64_t record = record_in(cache, sequence.slots(kStateGroup)[0]);
  ASSERT_TRUE(sequence.suspend().has_value());
  push_out(cache);
  const TierRoom host = cache.manager->room(Tier::kHost, kStateGroup);
  ASSERT_LT(host.free, host.total);
  cache.resume(sequence);
  cache.manager->synchronize();
  EXPECT_EQ(record_in(cache, sequence.slots(kStateGroup)[0]), record);
  cache.compute(sequence, numbers(0, 20));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

// Closed while it lies on the host, its state becomes a snapshot there; its records, which are in
// the same blob, come back for nobody.
TEST(TransientRoles, OfASleeperThatEndsReachNobody) {
  KvCacheConfig config = record_config(32 << 10);
  config.host_bytes = 1 << 20;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 12));
  const std::uint64_t record = record_in(cache, sequence.slots(kStateGroup)[0]);
  ASSERT_TRUE(sequence.suspend().has_value());
  push_out(cache);
  sequence.close();
  cache.manager->audit();
  Sequence other = cache.create(numbers(0, 13));
  ASSERT_EQ(other.num_committed(), 12);
  ASSERT_EQ(other.cached_tokens(Tier::kHost), 12);
  cache.resume(other);
  cache.manager->synchronize();
  EXPECT_NE(record_in(cache, other.slots(kStateGroup)[0]), record);
  cache.compute(other, numbers(0, 20));
  EXPECT_EQ(cache.engine.mismatches(), 0);
}

TEST(TransientRoles, AreForRecurrentLayersOnly) {
  for (const LayerKind& kind : {kFull, LayerKind(SlidingWindow{6, 0})}) {
    KvCacheConfig config = test_config({kind, kState}, 8);
    config.layers[0].buffers.push_back({"record", 8, 0, true});
    const Result<void> valid = validate(config);
    ASSERT_FALSE(valid.has_value());
    EXPECT_EQ(valid.error().code(), ErrorCode::kInvalidArgument);
    EXPECT_THAT(valid.error().text(), HasSubstr("buffer 'record' of layer 0 is transient"));
    EXPECT_THAT(valid.error().text(), HasSubstr("keep it in a recurrent layer"));
  }
  EXPECT_TRUE(validate(record_config()).has_value());
}

// Slots never have numbers past it, whatever the quota.
TEST(MaxDeviceSlots, IsWhatTheLargestQuotaGives) {
  KvCacheConfig config = record_config(64 << 10);
  config.max_device_bytes = 256 << 10;
  TestCache cache(std::move(config));
  const std::int64_t most = cache.manager->max_device_slots(kStateGroup);
  EXPECT_GT(most, cache.manager->room(Tier::kDevice, kStateGroup).total);
  ASSERT_TRUE(cache.manager->set_quota(Tier::kDevice, 256 << 10).has_value());
  EXPECT_GE(most, cache.manager->room(Tier::kDevice, kStateGroup).total);
}

}  // namespace
}  // namespace slackwater::cache
