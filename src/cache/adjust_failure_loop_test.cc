// The n-th copy of an adjust(), or the n-th time that memory is asked for in it, fails, for n = 0,
// 1, 2, ... until there is no n-th one: whatever fails, every slot is accounted for, nobody reads
// anybody else's bytes, and everybody goes on.

#include <array>
#include <chrono>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include "cache/manager_test_support.h"
#include "slackwater/device/sim_device.h"
#include "testing/fault_disk_io.h"
#include "testing/temporary_directory.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;
using std::chrono::seconds;
using storage::Tier;

enum class What { kCopy, kCommit, kDisk };

// Sleepers on all tiers, and a load that asks for other shares on each of them.
class Story {
 public:
  Story(What what, std::int64_t number) : what_(what), number_(number) {
    device::SimOptions sim;
    sim.seed = static_cast<std::uint64_t>(number);
    sim.copy_fault = [this](std::int64_t) {
      return is_met(What::kCopy) ? device::CopyFault::kRefuse : device::CopyFault::kNone;
    };
    sim.refuse_commit = [this](std::int64_t) { return is_met(What::kCommit); };
    device_ = std::make_unique<device::SimDevice>(sim);
    KvCacheConfig config =
        test_config({FullAttention(), SlidingWindow{9, 0}, Recurrent()}, kBlock, 1);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 1024;
    config.layers[2].buffers[0].bytes = 4096;
    config.initial_pool_ratio = {0.3, 0.2, 0.5};
    config.device_bytes = 64 << 10;
    config.host_bytes = 48 << 10;
    config.disk_bytes = 192 << 10;
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 1 << 15;
    config.disk.timeout = std::chrono::milliseconds(20);
    config.disk.warn = [](std::string_view) {};
    config.disk_io = std::make_unique<storage::FaultDiskIo>(
        storage::make_blocking_disk_io(), [this](std::int64_t, const storage::IoRequest&) {
          return is_met(What::kDisk) ? storage::DiskFault::kError : storage::DiskFault::kNone;
        });
    config.rebalance = {.min_samples = 4,
                        .update_interval = 2,
                        .cooldown = seconds(1),
                        .threshold = 1.05,
                        .decay = 0.5};
    manager_ = TestCache::make(*device_, std::move(config));
    engine_ = std::make_unique<FakeEngine>(*manager_, *device_);
  }

  void run() {
    for (std::size_t i = 0; i < sleepers_.size(); ++i) ASSERT_TRUE(compute(i, 8 + i % 4));
    // Whose slots are free then lie below those of the others.
    for (std::size_t i = 0; i < sleepers_.size(); i += 3) sleepers_[i].sequence.close();
    feed();
    manager_->synchronize();
    ASSERT_TRUE(manager_->need_adjustment(seconds(1)));
    is_armed_ = true;
    const auto adjusted = manager_->adjust(seconds(1));
    manager_->synchronize();
    is_armed_ = false;
    manager_->audit();
    is_refused_ = !adjusted.has_value();
    EXPECT_FALSE(manager_->need_adjustment(seconds(1))) << "it rests, whatever has come of it";
    go_on();
    suspend_and_adjust_again();
    go_on();
    for (Sleeper& sleeper : sleepers_) sleeper.sequence.close();
    manager_->audit();
    EXPECT_TRUE(manager_->shutdown().has_value());
    manager_->audit();
  }

  bool was_met() const { return count_ > number_; }
  bool is_refused() const { return is_refused_; }
  int num_lost() const { return num_lost_; }

 private:
  static constexpr std::int32_t kBlock = 4;

  struct Sleeper {
    Tokens tokens;
    Sequence sequence;
  };

  bool is_met(What what) { return is_armed_ && what == what_ && count_++ == number_; }

  // Some tokens more; from the start, where it is new or its pages are lost. False where nothing of
  // it can be computed now.
  bool compute(std::size_t i, std::size_t count) {
    Sleeper& sleeper = sleepers_[i];
    if (sleeper.sequence.status() == SequenceStatus::kClosed) {
      SequenceOptions options;
      options.request = RequestId(next_request_++);
      options.tokens = sleeper.tokens;
      auto made = manager_->create_sequence(options);
      EXPECT_TRUE(made.has_value()) << made.error().text();
      sleeper.sequence = *std::move(made);
    }
    Sequence& s = sleeper.sequence;
    const auto resumed = s.resume(engine_->stream());
    manager_->audit();
    if (!resumed.has_value() || resumed->wait() != EventStatus::kSucceeded) return lose(s);
    const std::size_t end = static_cast<std::size_t>(s.history()) + count;
    while (sleeper.tokens.size() < end) {
      sleeper.tokens.push_back(static_cast<TokenId>(1000 * i + sleeper.tokens.size()));
    }
    const auto tokens = std::span<const TokenId>(sleeper.tokens).first(end);
    const std::int64_t from = s.history();
    if (!s.resize(static_cast<std::int64_t>(end)).has_value()) return lose(s);
    const device::Event done = engine_->step(s, tokens, from);
    const auto committed =
        s.commit(tokens.subspan(static_cast<std::size_t>(s.num_committed())), {done, false});
    if (!committed.has_value()) return lose(s);
    done.wait();
    EXPECT_EQ(engine_->mismatches(), 0);
    EXPECT_TRUE(s.suspend().has_value());
    manager_->audit();
    return true;
  }

  bool lose(Sequence& sequence) {
    ++num_lost_;
    sequence.close();
    manager_->audit();
    return false;
  }

  // Long sequences, of which nothing is reused: attention on the device, states off it.
  void feed() {
    for (int i = 0; i < 8; ++i) {
      auto made = manager_->create_sequence({});
      ASSERT_TRUE(made.has_value());
      Sequence sequence = *std::move(made);
      ASSERT_TRUE(sequence.resume(engine_->stream()).has_value());
      ASSERT_TRUE(sequence.resize(12 * kBlock).has_value());
    }
  }

  // Whoever lost pages computes again.
  void go_on() {
    for (std::size_t i = 0; i < sleepers_.size(); ++i) {
      EXPECT_TRUE(compute(i, 2) || compute(i, 2)) << "sleeper " << i;
    }
  }

  // What could not be finished can be once nothing fails.
  void suspend_and_adjust_again() {
    const auto again = manager_->adjust(seconds(10));
    manager_->audit();
    if (again.has_value()) {
      EXPECT_FALSE(manager_->need_adjustment(seconds(100)));
    } else {
      EXPECT_EQ(again.error().code(), ErrorCode::kResourceExhausted) << again.error().text();
    }
  }

  const What what_;
  const std::int64_t number_;
  const TemporaryDirectory directory_;
  std::int64_t count_ = 0;
  bool is_armed_ = false;
  bool is_refused_ = false;
  int num_lost_ = 0;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<FakeEngine> engine_;
  std::array<Sleeper, 12> sleepers_;
  std::uint64_t next_request_ = 1;
};

void run_until_nothing_fails(What what, std::int64_t least) {
  constexpr std::int64_t kEndless = 1000;
  int num_lost = 0;
  int num_refused = 0;
  for (std::int64_t n = 0; n < kEndless; ++n) {
    SCOPED_TRACE(testing::Message() << "number " << n << " fails");
    Story story(what, n);
    story.run();
    if (testing::Test::HasFailure()) return;
    num_lost += story.num_lost();
    num_refused += story.is_refused();
    if (story.was_met()) continue;
    EXPECT_FALSE(story.is_refused()) << "without a fault";
    EXPECT_EQ(story.num_lost(), 0) << "without a fault";
    EXPECT_GE(n, least) << "the adjust does too little";
    EXPECT_GT(num_lost + num_refused, 0) << "no fault was noticed";
    return;
  }
  FAIL() << "more than " << kEndless;
}

TEST(AdjustFailureLoop, SurvivesAnyCopyThatFails) { run_until_nothing_fails(What::kCopy, 6); }

TEST(AdjustFailureLoop, SurvivesMemoryThatIsRefused) { run_until_nothing_fails(What::kCommit, 2); }

TEST(AdjustFailureLoop, SurvivesADiskThatFails) { run_until_nothing_fails(What::kDisk, 3); }

}  // namespace
}  // namespace slackwater::cache
