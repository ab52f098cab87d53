#ifndef SLACKWATER_CACHE_LOG_REPLAY_H_
#define SLACKWATER_CACHE_LOG_REPLAY_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/cache/cache_history.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/cache/operation_log.h"
#include "slackwater/cache/planned_drop.h"
#include "slackwater/cache/sequence.h"

namespace slackwater::cache {

class ReplayDevice;

struct LogReplayOptions {
  std::int32_t max_events = 0;  // that can be drained between calls
};

// Does again what a KvCacheManager did, call by call, from its operation log: the same slots, the
// same tree, the same refusals, without a device, a disk or the bytes of any page.
//
// Each call is told what it had learned then (device::Witness), and must ask for exactly that and
// end the same way. Between calls every event counts as a success: what a query finds is what it
// would have found if all that was under way had ended well.
//
// Invariants:
//   I1  after n calls the manager is in the state in which it was after those n.
// Ownership: owns log, manager and sequences.
// Threads: one at a time.
// Errors: as LogReader; kDataLoss with the call and its offset where a call ends in another way
// than it did: the log was made by another program, or edited. CHECK: as the manager, whose
// invariants hold or not as they did.
// Cost: that of the calls; memory for bookkeeping only.
class LogReplay {
 public:
  static Result<std::unique_ptr<LogReplay>> open(const std::filesystem::path& path,
                                                 const LogReplayOptions& options = {});
  ~LogReplay();

  // Makes the next call; false at the end, and before a call that did not return.
  Result<bool> step();
  // Calls made so far, beside the making of the manager.
  std::int64_t num_calls() const { return num_calls_; }
  // The one that was made last, or was about to be when step() gave an error.
  const LoggedCall& last_call() const { return call_; }
  // The one at which the process ended, once step() has come to it.
  const std::optional<LoggedCall>& interrupted_call() const { return interrupted_; }
  bool is_log_full() const { return log_->is_full(); }

  // As they were made; those that ended are closed.
  std::span<const Sequence> sequences() const { return sequences_; }
  // What of its configuration decides where matches end.
  const CacheHistory::ReuseOptions& reuse() const { return reuse_; }
  KvCacheManager& manager() { return *manager_; }
  const KvCacheManager& manager() const { return *manager_; }

 private:
  LogReplay() = default;
  Result<void> make_manager(const LogReplayOptions& options);
  Result<void> make_call();
  Result<void> perform();
  Result<void> create();
  Result<void> commit(Sequence& sequence);
  Result<void> resize(Sequence& sequence);
  Result<void> set_index_table(Sequence& sequence);
  Result<void> perform_on(Sequence& sequence);
  Result<void> prefetch_prompt();
  Result<void> plan_drop(Sequence& sequence);
  Result<storage::Tier> tier_of(std::size_t index) const;
  ReuseScope scope() const;
  Result<Sequence*> subject();
  std::uint64_t word(std::size_t index) const {
    return index < call_.words.size() ? call_.words[index] : 0;
  }
  std::int64_t number(std::size_t index) const { return static_cast<std::int64_t>(word(index)); }
  Result<std::span<const TokenId>> tokens(std::size_t first_word, std::uint64_t count) const;
  tl::unexpected<Error> differs(std::string_view how) const;

  std::unique_ptr<LogReader> log_;
  std::unique_ptr<ReplayDevice> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<KvCacheManager> manager_;
  std::vector<std::vector<SlotId>> tables_;  // [sequences * layer groups] of the callers
  std::vector<Sequence> sequences_;          // as they were made
  std::vector<device::Event> events_;        // that commits were given, the latest last
  std::unordered_map<std::uint64_t, PlannedDrop> plans_;
  CacheHistory::ReuseOptions reuse_;
  LoggedCall call_;
  std::optional<LoggedCall> interrupted_;
  std::int64_t num_calls_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_REPLAY_H_
