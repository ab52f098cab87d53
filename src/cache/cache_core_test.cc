// What cannot be brought about from outside: pages that are not whose they should be, and pages
// that are lost at a moment that is chosen.

#include "cache/cache_core.h"

#include <memory>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::cache {
namespace {

using testing::HasSubstr;

constexpr std::int64_t kBlock = 64;

class CacheCoreTest : public testing::Test {
 protected:
  void open(bool has_host = false, std::uint64_t seed = 3) {
    copies_fail_ = false;
    stream_.reset();
    core_.reset();
    device::SimOptions options;
    options.seed = seed;
    options.copy_fault = [this](std::int64_t) {
      return copies_fail_ ? device::CopyFault::kRefuse : device::CopyFault::kNone;
    };
    device_ = std::make_unique<device::SimDevice>(options);
    KvCacheConfig config = test_config({FullAttention()}, kBlock, 8 * 512);
    if (has_host) config.host_bytes = 16 * 512;
    core_ = *CacheCore::create(*device_, std::move(config));
    stream_ = *device_->make_stream("compute");
  }

  SequenceState& create(const Tokens& tokens) {
    SequenceOptions options;
    options.tokens = tokens;
    return **core_->create_sequence(options);
  }
  // A sequence that has committed so many blocks.
  SequenceState& written(TokenId first, std::int64_t blocks) {
    SequenceState& sequence = create({});
    EXPECT_TRUE(core_->resume(sequence, *stream_).has_value());
    EXPECT_TRUE(core_->resize(sequence, blocks * kBlock, std::nullopt).has_value());
    EXPECT_TRUE(core_->commit(sequence, numbers(first, blocks * kBlock), {}).has_value());
    return sequence;
  }
  PageId page(const SequenceState& sequence, std::size_t index) {
    return core_->find_run({RunKey::Owner::kNode, 0, sequence.leaf.value()})->pages[index];
  }

  bool copies_fail_ = false;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<CacheCore> core_;
  std::unique_ptr<device::Stream> stream_;
};

// A certificate that does not match fails closed, is counted, and what lies behind it is not found
// again.
TEST_F(CacheCoreTest, APageOfSomebodyElseIsNotBound) {
  open();
  SequenceState& sequence = written(0, 4);
  ASSERT_TRUE(core_->suspend(sequence).has_value());
  core_->store().certify(page(sequence, 2), {PrefixOwner{{1, 2}}, 3 * kBlock, LayerGroupId(0), 0});
  const auto resumed = core_->resume(sequence, *stream_);
  ASSERT_FALSE(resumed.has_value());
  EXPECT_EQ(resumed.error().code(), ErrorCode::kDataLoss);
  EXPECT_EQ(core_->counters().certificate_mismatches, 1);
  EXPECT_EQ(core_->statistics().groups[0].certificate_failures, 1);
  EXPECT_EQ(sequence.status, SequenceStatus::kSuspended);
  core_->close(sequence);
  core_->audit();
  EXPECT_EQ(core_->probe_reuse({}, numbers(0, 4 * kBlock + 1)).reused, 2 * kBlock);
}

// Whoever is refused leaves the device as early as before.
TEST_F(CacheCoreTest, ARefusedResumeKeepsItsPlaceInTheQueue) {
  open(true);
  SequenceState& first = written(0, 4);
  ASSERT_TRUE(core_->suspend(first).has_value());
  SequenceState& second = written(5000, 1);
  ASSERT_TRUE(core_->suspend(second).has_value());
  SequenceState& running = written(9000, 6);
  // Three pages of the first one lie on the host, and one can make room for them.
  EXPECT_EQ(core_->resume(first, *stream_).error().code(), ErrorCode::kResourceExhausted);
  core_->audit();
  ASSERT_TRUE(core_->resize(running, 7 * kBlock, std::nullopt).has_value());
  EXPECT_EQ(core_->store().tier(page(first, 0)), Tier::kHost);
  EXPECT_EQ(core_->store().tier(page(second, 0)), Tier::kDevice);
  for (SequenceState* const sequence : {&first, &second, &running}) core_->close(*sequence);
  core_->audit();
}

// Pages whose copy has failed are known when they are wanted, whoever wants them.
TEST_F(CacheCoreTest, PagesThatAreLostOnTheirWayAreComputedAgain) {
  open(true);
  SequenceState& sleeper = written(0, 6);
  ASSERT_TRUE(core_->suspend(sleeper).has_value());
  copies_fail_ = true;
  SequenceState& other = written(5000, 5);
  device_->run_all();
  copies_fail_ = false;
  core_->close(other);
  const auto resumed = core_->resume(sleeper, *stream_);
  ASSERT_FALSE(resumed.has_value());
  EXPECT_EQ(resumed.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(resumed.error().text(), HasSubstr("are lost"));
  core_->close(sleeper);
  core_->audit();
  // Three blocks had to leave.
  EXPECT_EQ(core_->probe_reuse({}, numbers(0, 6 * kBlock + 1)).reused, 3 * kBlock);
}

// On the way back: the resume fails, or it goes through and its event says that the pages have not
// arrived, whichever is known first.
TEST_F(CacheCoreTest, PagesThatAreLostOnTheirWayBackStopTheSequence) {
  int num_known_later = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    open(true, seed);
    SequenceState& sleeper = written(0, 6);
    ASSERT_TRUE(core_->suspend(sleeper).has_value());
    core_->close(written(5000, 5));
    device_->run_all();
    copies_fail_ = true;
    const auto resumed = core_->resume(sleeper, *stream_);
    if (resumed.has_value()) {
      ++num_known_later;
      device_->run_all();
      EXPECT_EQ(resumed->status(), device::EventStatus::kFailed);
      ASSERT_TRUE(core_->resize(sleeper, 6 * kBlock + 1, std::nullopt).has_value());
      EXPECT_EQ(core_->commit(sleeper, numbers(6 * kBlock, 1), {}).error().code(),
                ErrorCode::kDataLoss);
      ASSERT_TRUE(core_->suspend(sleeper).has_value());
    } else {
      EXPECT_EQ(resumed.error().code(), ErrorCode::kDataLoss);
    }
    EXPECT_EQ(core_->resume(sleeper, *stream_).error().code(), ErrorCode::kDataLoss);
    core_->close(sleeper);
    core_->audit();
  }
  EXPECT_GT(num_known_later, 0);
}

// A page that somebody has locked stays his, also while it is still arriving.
TEST_F(CacheCoreTest, APageThatIsArrivingIsNotReplaced) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    open(true, seed);
    SequenceState& sleeper = written(0, 4);
    ASSERT_TRUE(core_->suspend(sleeper).has_value());
    core_->close(written(5000, 7));
    device_->run_all();
    SequenceState& twin = create({});
    ASSERT_TRUE(core_->resume(twin, *stream_).has_value());
    ASSERT_TRUE(core_->resize(twin, kBlock, std::nullopt).has_value());
    device_->run_all();
    // Its pages are on their way when the twin commits the same block.
    ASSERT_TRUE(core_->resume(sleeper, *stream_).has_value());
    const SlotId slot = sleeper.groups[0].slots[0];
    ASSERT_TRUE(core_->commit(twin, numbers(0, kBlock), {}).has_value());
    core_->audit();
    EXPECT_EQ(sleeper.groups[0].slots[0], slot);
    core_->close(twin);
    core_->close(sleeper);
    core_->audit();
  }
}

// What a sequence has written and not committed goes to the host after the step that writes it.
TEST_F(CacheCoreTest, APageLeavesAfterTheStepThatWritesIt) {
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    open(true, seed);
    SequenceState& sequence = create({});
    ASSERT_TRUE(core_->resume(sequence, *stream_).has_value());
    ASSERT_TRUE(core_->resize(sequence, 6 * kBlock, 6 * kBlock).has_value());
    const PageTable table = *core_->page_table(0, "digest");
    for (const SlotId slot : sequence.groups[0].slots) {
      stream_->run([at = layer_address(table, slot)] { return *at = std::byte{42}, true; });
    }
    ASSERT_TRUE(core_->suspend(sequence).has_value());
    SequenceState& other = create({});
    const auto other_stream = *device_->make_stream("another step");
    ASSERT_TRUE(core_->resume(other, *other_stream).has_value());
    ASSERT_TRUE(core_->resize(other, 8 * kBlock, std::nullopt).has_value());
    core_->close(other);
    ASSERT_TRUE(core_->resume(sequence, *stream_).has_value());
    device_->run_all();
    for (const SlotId slot : sequence.groups[0].slots) {
      EXPECT_EQ(*layer_address(table, slot), std::byte{42}) << "seed " << seed;
    }
    core_->close(sequence);
  }
}

}  // namespace
}  // namespace slackwater::cache
