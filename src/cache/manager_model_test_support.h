#ifndef SLACKWATER_CACHE_MANAGER_MODEL_TEST_SUPPORT_H_
#define SLACKWATER_CACHE_MANAGER_MODEL_TEST_SUPPORT_H_

#include <array>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cache/cache_mirror.h"
#include "cache/naive_cache.h"
#include "cache/statistics_recount.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/device/sim_device.h"
#include "testing/fake_engine.h"
#include "testing/operations.h"

namespace slackwater::cache {

// Random operations on a KvCacheManager over a device and a disk that fail, and on a naive one:
// manager_model_test_support.cc (sequences), manager_model_rooms_test_support.cc (whatever concerns
// everybody), manager_model_events_test_support.cc (who is told of it),
// manager_model_ahead_test_support.cc (prefetch and planned drops).
class KvCacheManagerModel {
 public:
  const Tally& tally() const { return tally_; }

  KvCacheManagerModel(std::uint64_t seed, const std::filesystem::path& directory)
      : random_(seed), weights_(random_, {kCreate, kResume, kStep}), directory_(directory) {
    start(seed);
  }

  void run(std::int64_t num_operations, std::int64_t done_before) {
    const auto every = static_cast<std::int64_t>(audit_every());
    for (std::int64_t i = 0; i < num_operations && !testing::Test::HasFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "after " << done_before + i << " operations");
      step();
      check_steps(false);
      if (i % every == 0) manager_->audit();
      if (is_logged_ && below(64) == 0) log_points_.push_back(log_point());
      recount_.check(*manager_);
    }
    if (!testing::Test::HasFailure()) finish();
  }

 private:
  enum Operation : std::size_t {
    kCreate,
    kResume,
    kSuspend,
    kStep,
    kGrow,
    kShrink,
    kStop,
    kEnd,
    kClose,
    kReserve,
    kCancel,
    kProbe,
    kRunDevice,
    kClear,
    kTable,
    kTakeTurns,
    kQuota,
    kAdjust,
    kDrain,
    kPrefetch,
    kPlanDrop,
    kTrim,
    kNumOperations
  };

  struct Model {
    std::vector<SlotId> table;  // outlives the sequence
    Sequence sequence;
    std::vector<TokenId> tokens;  // what it has computed, and will
    ReuseScope scope;
    bool is_stopped = false;
    std::vector<std::int64_t> reserved;  // positions of snapshots, all there ever were
    bool was_resumed = false;
    device::Event arrived;
    StatisticsRecount::Request counted;
  };
  // A step whose reads are to be judged once it has run.
  struct Step {
    device::Event done;
    device::Event arrived;
    FakeEngine::Counter mismatches;
  };

  static std::uint64_t audit_every() {
    const char* const chosen = std::getenv("SLACKWATER_AUDIT_EVERY");
    return chosen == nullptr ? 1 : std::stoull(chosen);
  }

  std::uint64_t below(std::uint64_t end) { return random_() % end; }

  void start(std::uint64_t seed);
  void choose_layers(KvCacheConfig& config);
  void choose_insight(KvCacheConfig& config);
  void step();
  std::vector<TokenId> random_tokens(std::uint64_t most);
  Model* random_sequence(std::optional<SequenceStatus> status = std::nullopt);
  void create();

  void check_match(const ReuseScope& scope, std::span<const TokenId> tokens,
                   const MatchDepths& match);

  // What must not change when a call is refused.
  struct Before {
    std::int64_t committed, history, capacity;
    SequenceStatus status;
    std::vector<std::vector<SlotId>> slots;
    RequestStatistics pending;
    CacheStatistics statistics;
    friend bool operator==(const Before&, const Before&) = default;
  };
  Before look_at(const Model& model) const;
  static void ignore_moves(Before& now, const Before& before);
  void expect_refused(const Error& error, const Model& model, const Before& before);
  void resume();
  void suspend_all();

  static std::vector<std::int32_t> all_room(const KvCacheManager& manager);

  void change_quota();
  void adjust();
  void prefetch();
  void prefetch_prompt(storage::Tier tier);
  void check_prefetched(const Result<void>& brought, std::span<const std::int32_t> room);
  void plan_drop();
  void plan_drop_of(Model& model);
  void drop_plan();
  void take_turns();
  void relieve(Model& refused);
  void suspend();
  void compute();
  void fail_later(Model& model, std::span<const TokenId> tokens);
  void learn_of_failures();
  void commit(Model& model, std::span<const TokenId> tokens, const device::Event& done);
  std::optional<SlotId> state_slot(const Model& model) const;
  void know_states(Model& model, std::int64_t before, bool publishes_state);
  void check_state_is_said(const Model& model) const;
  void choose_counting(SequenceOptions& options);
  void settle_statistics(Model& model);
  void grow();
  void shrink();
  void trim();
  void sleep_with_room(Model& model);
  void stop();
  void end();
  void close();
  void drop(Model& model);
  void reserve();
  void cancel();
  void probe();
  void run_device();
  void clear();
  void expect_empty();
  void table();
  void fit_table(Model& model, std::int64_t capacity);
  void check_table(const Model& model) const;
  void check_steps(bool all);
  void finish();
  // What a replay of the operation log must come to.
  struct LogPoint {
    std::int64_t num_calls = 0;
    CacheView view;
    std::vector<std::vector<SlotId>> slots;  // of all open sequences
  };
  LogPoint log_point() const;
  void expect_same(LogPoint again, LogPoint point) const;
  void check_replay();

  static std::int32_t random_max_events(std::uint64_t ticket);
  void drain();

  std::mt19937_64 random_;
  OperationWeights<kNumOperations> weights_;
  const std::filesystem::path directory_;
  std::uint64_t copy_fault_permille_ = 0;
  std::uint64_t disk_fault_permille_ = 0;
  std::int64_t num_faults_ = 0;
  std::int64_t num_runs_ = 0;
  Nanoseconds now_ = {};
  bool has_priorities_ = false;
  bool guarantees_suspend_ = false;
  bool is_logged_ = false;
  std::filesystem::path log_path_;
  bool has_events_ = false;
  bool has_explicit_states_ = false;
  CommitPolicy policy_ = CommitPolicy::kEveryBlock;

  std::unique_ptr<device::SimDevice> device_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<FakeEngine> engine_;
  std::array<TokenId, 16> images_ = {};  // tokens that stand for digests
  NaiveCache naive_;
  CacheMirror mirror_;
  StatisticsRecount recount_;
  std::vector<Model> models_;
  std::vector<PlannedDrop> plans_;
  std::vector<Step> steps_;
  std::vector<device::EventSource> failing_;
  std::uint64_t next_request_ = 1;
  std::vector<LogPoint> log_points_;
  Tally tally_;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_MANAGER_MODEL_TEST_SUPPORT_H_
