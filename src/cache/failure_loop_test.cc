// The n-th copy, or disk request, of a story of many moves fails, for n = 0, 1, 2, ... until it has
// no n-th one: whatever fails, nobody reads anybody else's bytes, every slot is accounted for after
// every call, and the cache goes on.

#include <array>
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
using storage::DiskFault;

// What goes wrong, and when.
struct Fault {
  std::int64_t copy = -1;
  device::CopyFault copy_fault = device::CopyFault::kNone;
  std::int64_t request = -1;
  DiskFault disk_fault = DiskFault::kNone;
};

// Three requests on a device that holds one of them, over a host that holds half of one, and a
// disk.
class Story {
 public:
  Story(const Fault& fault, std::uint64_t seed) : fault_(fault) {
    device::SimOptions sim;
    sim.seed = seed;
    sim.copy_fault = [this](std::int64_t index) {
      return index == fault_.copy ? fault_.copy_fault : device::CopyFault::kNone;
    };
    device_ = std::make_unique<device::SimDevice>(sim);
    KvCacheConfig config =
        test_config({FullAttention(), SlidingWindow{9, 3}, Recurrent()}, kBlock, 1);
    for (LayerConfig& layer : config.layers) layer.buffers[0].bytes = 1024;
    config.device_bytes = 40 << 10;
    // Straight to the disk, where that is what fails.
    if (fault.copy >= 0) config.host_bytes = 12 << 10;
    config.disk_bytes = 256 << 10;
    config.disk.directory = directory_.path();
    config.disk.segment_bytes = 1 << 15;
    config.disk.timeout = std::chrono::milliseconds(20);
    config.disk.warn = [](std::string_view) {};
    config.disk_io = std::make_unique<storage::FaultDiskIo>(
        storage::make_blocking_disk_io(), [this](std::int64_t, const storage::IoRequest&) {
          return num_requests_++ == fault_.request ? fault_.disk_fault : DiskFault::kNone;
        });
    manager_ = TestCache::make(*device_, std::move(config));
    engine_ = std::make_unique<FakeEngine>(*manager_, *device_);
  }

  void run() {
    for (std::size_t i = 0; i < tokens_.size(); ++i) begin(i);
    for (int round = 0; round < 3; ++round) {
      for (std::size_t i = 0; i < tokens_.size(); ++i) go_on(i);
    }
    for (Sequence& sequence : sequences_) sequence.close();
    manager_->audit();
    // What is left of them is right, and the rest is computed again.
    for (std::size_t i = 0; i < tokens_.size(); ++i) begin(i);
    for (std::size_t i = 0; i < tokens_.size(); ++i) go_on(i);
    judge();
    for (Sequence& sequence : sequences_) sequence.close();
    manager_->audit();
    EXPECT_TRUE(manager_->shutdown().has_value());
    manager_->audit();
  }

  bool was_met() const {
    return fault_.copy >= 0 ? device_->num_copies() > fault_.copy : num_requests_ > fault_.request;
  }
  int num_refused() const { return num_refused_; }
  int num_judged() const { return num_judged_; }

 private:
  static constexpr std::int32_t kBlock = 4;
  static constexpr std::int64_t kPrompt = 26;

  struct Step {
    device::Event done;
    device::Event arrived;
    FakeEngine::Counter mismatches;
  };

  template <class T>
  bool check(const Result<T>& result) {
    manager_->audit();
    if (result.has_value()) return true;
    const ErrorCode code = result.error().code();
    EXPECT_TRUE(code == ErrorCode::kDataLoss || code == ErrorCode::kUnavailable)
        << result.error().text();
    ++num_refused_;
    return false;
  }

  // Resumes, computes up to `end` tokens and suspends; closes it where that fails.
  void compute(std::size_t i, std::int64_t end) {
    Sequence& s = sequences_[i];
    Tokens& tokens = tokens_[i];
    while (std::ssize(tokens) < end) tokens.push_back(static_cast<TokenId>(7 * tokens.size() + i));
    const auto resumed = s.resume(engine_->stream());
    if (!check(resumed)) return s.close();
    const std::int64_t from = s.history();
    if (!check(s.resize(end))) return s.close();
    Step step{{}, *resumed, std::make_shared<std::atomic<std::int64_t>>(0)};
    step.done = engine_->step(s, tokens, from, step.mismatches);
    steps_.push_back(step);
    const auto committed = s.commit(
        std::span(tokens).subspan(static_cast<std::size_t>(s.num_committed())), {step.done, false});
    if (!check(committed) || !check(s.suspend())) s.close();
  }

  void begin(std::size_t i) {
    tokens_[i].resize(std::min<std::size_t>(tokens_[i].size(), kPrompt));
    // The first blocks are the same for all.
    for (std::size_t k = tokens_[i].size(); k < kPrompt; ++k) {
      tokens_[i].push_back(static_cast<TokenId>(k < 9 ? k : 1000 * (i + 1) + k));
    }
    SequenceOptions options;
    options.tokens = tokens_[i];
    options.request = RequestId(next_request_++);
    auto made = manager_->create_sequence(options);
    ASSERT_TRUE(made.has_value()) << made.error().text();
    sequences_[i] = *std::move(made);
    compute(i, kPrompt);
  }

  void go_on(std::size_t i) {
    if (sequences_[i].status() == SequenceStatus::kClosed) return begin(i);
    compute(i, sequences_[i].num_committed() + 5);
  }

  void judge() {
    for (const Step& step : steps_) {
      step.done.wait();
      if (step.arrived.wait() != EventStatus::kSucceeded) continue;
      ++num_judged_;
      EXPECT_EQ(*step.mismatches, 0);
    }
  }

  const Fault fault_;
  const TemporaryDirectory directory_;
  std::int64_t num_requests_ = 0;
  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<FakeEngine> engine_;
  std::array<Tokens, 3> tokens_;
  std::array<Sequence, 3> sequences_;
  std::vector<Step> steps_;
  std::uint64_t next_request_ = 1;
  int num_refused_ = 0;
  int num_judged_ = 0;
};

// Until nothing fails any more. `at` sets the place of the fault.
template <class At>
void run_until_nothing_fails(const At& at) {
  constexpr std::int64_t kEndless = 1000;
  int num_refused = 0;
  for (std::int64_t n = 0; n < kEndless; ++n) {
    SCOPED_TRACE(testing::Message() << "number " << n << " fails");
    Story story(at(n), static_cast<std::uint64_t>(n));
    story.run();
    EXPECT_GT(story.num_judged(), 5);
    if (testing::Test::HasFailure()) return;
    num_refused += story.num_refused();
    if (story.was_met()) continue;
    EXPECT_EQ(story.num_refused(), 0) << "without a fault";
    EXPECT_GT(n, 10) << "the story moves too little";
    EXPECT_GT(num_refused, 0) << "no fault was noticed";
    return;
  }
  FAIL() << "more than " << kEndless;
}

TEST(KvCacheFailureLoop, SurvivesAnyCopyThatFails) {
  for (const auto fault : {device::CopyFault::kRefuse, device::CopyFault::kTear}) {
    run_until_nothing_fails([&](std::int64_t n) { return Fault{n, fault}; });
    if (HasFailure()) return;
  }
}

TEST(KvCacheFailureLoop, SurvivesAnyDiskRequestThatGoesWrong) {
  for (const DiskFault fault : {DiskFault::kError, DiskFault::kShort, DiskFault::kNoSpace,
                                DiskFault::kFlip, DiskFault::kTorn, DiskFault::kLost}) {
    SCOPED_TRACE(testing::Message() << "disk fault " << static_cast<int>(fault));
    run_until_nothing_fails([&](std::int64_t n) {
      return Fault{-1, device::CopyFault::kNone, n, fault};
    });
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace slackwater::cache
