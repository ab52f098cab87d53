// What becomes of blocks that several sequences end in, begin with, or are still writing.

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/cache_core.h"
#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

const LayerKind kFull = FullAttention();
const LayerKind kState = Recurrent();

// Commits what is missing of `tokens`, written after `written`.
void commit(Sequence& sequence, const Tokens& tokens, const device::Event& written,
            bool is_end = false) {
  ASSERT_TRUE(
      sequence.resize(std::max<std::int64_t>(sequence.capacity(), std::ssize(tokens))).has_value());
  const auto committed =
      sequence.commit(std::span(tokens).subspan(static_cast<std::size_t>(sequence.num_committed())),
                      {written, is_end});
  ASSERT_TRUE(committed.has_value()) << committed.error().text();
}

// A resize that is refused leaves no room past the end, so the state is still that of the end.
TEST(Publish, ARefusedResizeKeepsTheStateThatOfTheEnd) {
  TestCache cache(test_config({kFull, kState}, 32));
  Sequence sequence = cache.create(numbers(0, 64));
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 40));
  ASSERT_FALSE(sequence.resize(100'000'000).has_value());
  ASSERT_EQ(sequence.capacity(), 40);
  sequence.close();
  cache.manager->synchronize();
  EXPECT_EQ(cache.reusable(numbers(0, 40)), 40);
}

// An end that others can use stays beside a longer block until that one is written, and goes then.
TEST(Publish, AnEndStaysUntilTheLongerBlockIsWritten) {
  for (const bool succeeds : {false, true}) {
    TestCache cache(test_config({kFull, kState}, 32));
    cache.run(numbers(0, 20));
    ASSERT_EQ(cache.reusable(numbers(0, 20)), 20);
    Sequence longer = cache.create(numbers(0, 40));
    ASSERT_EQ(longer.num_committed(), 20);
    cache.resume(longer);
    cache.manager->synchronize();
    device::EventSource step = cache.device->make_event("a step");
    commit(longer, numbers(0, 32), step.event());
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 20)), 20) << "while the longer block is being written";
    step.complete(succeeds ? EventStatus::kSucceeded : EventStatus::kFailed);
    EXPECT_EQ(cache.reusable(numbers(0, 20)), 20);
    longer.close();
    cache.manager->audit();
    EXPECT_EQ(cache.reusable(numbers(0, 20)), 20) << "once it is closed";
    const Sequence again = cache.create(numbers(0, 40));
    EXPECT_EQ(again.match().content, succeeds ? 32 : 20);
    cache.manager->audit();
  }
}

// A shorter block goes when its last user does.
TEST(Publish, AnEndThatIsSupersededGoesWithItsUser) {
  TestCache cache(test_config({kFull}, 32, 12 * 4096));
  const std::int32_t free = cache.manager->room(storage::Tier::kDevice, LayerGroupId(0)).free;
  Sequence shorter = cache.create({});
  cache.resume(shorter);
  cache.compute(shorter, numbers(0, 20), true);
  cache.run(numbers(0, 32));
  shorter.close();
  cache.manager->audit();
  const TierRoom room = cache.manager->room(storage::Tier::kDevice, LayerGroupId(0));
  EXPECT_EQ(room.free, free - 1) << "one page holds both";
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 20);
}

// No room for a copy of the new end: the one before it is still there.
TEST(Publish, ARefusedEndpointLeavesTheOneBefore) {
  KvCacheConfig config = test_config({kFull, kState}, 32, 16 << 10);
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  TestCache cache(std::move(config));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 20));
  ASSERT_EQ(cache.reusable(numbers(0, 20)), 20);
  // Somebody holds that end, and everything else is in use.
  Sequence holder = cache.create(numbers(0, 30));
  ASSERT_EQ(holder.num_committed(), 20);
  std::vector<Sequence> others;
  while (true) {
    Sequence other = cache.create({});
    if (!other.resume(cache.engine.stream()).has_value()) break;
    std::int64_t capacity = 0;
    while (other.resize(capacity + 32).has_value()) capacity += 32;
    others.push_back(std::move(other));
  }
  const TierRoom room = cache.manager->room(storage::Tier::kDevice, LayerGroupId(0));
  ASSERT_EQ(room.free + room.evictable, 0);
  const std::int64_t skipped = cache.manager->counters().snapshots_skipped;
  cache.compute(sequence, numbers(0, 25));
  EXPECT_GT(cache.manager->counters().snapshots_skipped, skipped);
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 20);
  others.clear();
  holder.close();
  sequence.close();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 25)), 25) << "the end is there once it is closed";
}

// What could not be published because somebody else was writing the same is published at the end.
TEST(Publish, AnEndThatSomebodyElseFailedToWriteIsTriedAgain) {
  TestCache cache(test_config({kFull, kState}, 32));
  Sequence first = cache.create({});
  Sequence second = cache.create({});
  cache.resume(first);
  cache.resume(second);
  device::EventSource step = cache.device->make_event("a step");
  commit(first, numbers(0, 64), step.event());
  commit(second, numbers(0, 64), {}, true);
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 0) << "the first one's blocks are being written";
  step.complete(EventStatus::kFailed);
  first.close();
  second.close();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 64)), 64);
}

// An end does not hang on a block that may never be written.
TEST(Publish, AnEndIsKeptApartFromABlockThatMayNeverBeWritten) {
  TestCache cache(test_config({kFull, kState}, 32));
  Sequence writing = cache.create({});
  Sequence ending = cache.create({});
  cache.resume(writing);
  cache.resume(ending);
  device::EventSource step = cache.device->make_event("a step");
  commit(writing, numbers(0, 32), step.event());
  commit(ending, numbers(0, 20), {});
  ending.close();
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 20);
  step.complete(EventStatus::kFailed);
  writing.close();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 20)), 20);
}

// A step past the end may be under way though its room was given back: its state is nobody's.
TEST(Publish, AStateThatMayBeAheadIsNotThatOfTheEnd) {
  TestCache cache(test_config({kFull, kState}, 32));
  Sequence sequence = cache.create({});
  cache.resume(sequence);
  cache.compute(sequence, numbers(0, 32));
  ASSERT_TRUE(sequence.resize(33).has_value());
  cache.engine.step(sequence, numbers(0, 33), 32).wait();
  ASSERT_TRUE(sequence.resize(32).has_value());
  sequence.close();
  EXPECT_EQ(cache.manager->probe_reuse({}, numbers(0, 40)).content, 32);
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 0);
}

// A state of a step that failed does not keep a good one out.
TEST(Publish, ASnapshotThatIsLostGivesWayToAGoodOne) {
  TestCache cache(test_config({kFull, kState}, 32));
  Sequence first = cache.create({});
  Sequence second = cache.create({});
  cache.resume(first);
  cache.resume(second);
  ASSERT_TRUE(first.resize(64).has_value());
  ASSERT_TRUE(first.reserve_snapshot(32).has_value());
  device::EventSource step = cache.device->make_event("a step");
  cache.compute(second, numbers(0, 32));
  const auto committed = first.commit(numbers(0, 32), {step.event(), false});
  ASSERT_TRUE(committed.has_value());
  step.complete(EventStatus::kFailed);
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 0) << "the state was never written";
  second.close();
  first.close();
  cache.manager->audit();
  EXPECT_EQ(cache.reusable(numbers(0, 32)), 32) << "the second one's is";
}

class PublishCoreTest : public testing::Test {
 protected:
  void open(KvCacheConfig config) {
    device::SimOptions options;
    options.copy_fault = [this](std::int64_t) {
      return copies_fail_ ? device::CopyFault::kRefuse : device::CopyFault::kNone;
    };
    device_ = std::make_unique<device::SimDevice>(options);
    core_ = *CacheCore::create(*device_, std::move(config));
    stream_ = *device_->make_stream("compute");
  }
  SequenceState& create(const Tokens& tokens) {
    SequenceOptions options;
    options.tokens = tokens;
    return **core_->create_sequence(options);
  }
  void run(SequenceState& sequence, const Tokens& tokens) {
    ASSERT_TRUE(core_->resume(sequence, *stream_).has_value());
    device_->run_all();
    write(sequence, tokens);
  }
  void write(SequenceState& sequence, const Tokens& tokens) {
    ASSERT_TRUE(core_->resize(sequence, std::ssize(tokens), std::nullopt).has_value());
    ASSERT_TRUE(core_->commit(sequence, tokens, {}).has_value());
  }

  bool copies_fail_ = false;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<CacheCore> core_;
  std::unique_ptr<device::Stream> stream_;
};

// A page that somebody holds, and that is lost, is not replaced by one that holds less.
TEST_F(PublishCoreTest, ALostPageOfASleeperIsNotReplacedByLess) {
  KvCacheConfig config = test_config({kFull}, 64, 8 * 512);
  config.host_bytes = 16 * 512;
  config.commit_policy = CommitPolicy::kEndpointsOnly;
  open(std::move(config));
  SequenceState& other = create({});
  ASSERT_TRUE(core_->resume(other, *stream_).has_value());
  SequenceState& sleeper = create({});
  run(sleeper, numbers(0, 64));
  ASSERT_TRUE(core_->suspend(sleeper).has_value());
  copies_fail_ = true;
  SequenceState& large = create({});
  ASSERT_TRUE(core_->resume(large, *stream_).has_value());
  ASSERT_TRUE(core_->resize(large, 8 * 64, std::nullopt).has_value());
  device_->run_all();
  copies_fail_ = false;
  core_->close(large);
  write(other, numbers(0, 40));
  device_->run_all();
  const auto resumed = core_->resume(sleeper, *stream_);
  ASSERT_FALSE(resumed.has_value());
  EXPECT_EQ(resumed.error().code(), ErrorCode::kDataLoss);
  core_->close(sleeper);
  core_->close(other);
  core_->audit();
}

// A page of a window whose certificate is somebody else's is a miss from then on, not a trap.
TEST_F(PublishCoreTest, AWindowPageOfSomebodyElseIsFoundOnce) {
  open(test_config({SlidingWindow{200, 0}}, 64, 8 * 512));
  SequenceState& writer = create({});
  run(writer, numbers(0, 192));
  core_->close(writer);
  SequenceState& first = create(numbers(0, 193));
  ASSERT_EQ(first.num_committed, 192);
  const PageId page = core_->find_run({RunKey::Owner::kNode, 0, first.leaf.value()})->pages.back();
  core_->store().certify(page, {PrefixOwner{{1, 2}}, 192, LayerGroupId(0), 0});
  EXPECT_EQ(core_->resume(first, *stream_).error().code(), ErrorCode::kDataLoss);
  core_->close(first);
  core_->audit();
  SequenceState& second = create(numbers(0, 193));
  EXPECT_EQ(second.num_committed, 128);
  EXPECT_TRUE(core_->resume(second, *stream_).has_value());
  core_->close(second);
  core_->audit();
}

}  // namespace
}  // namespace slackwater::cache
