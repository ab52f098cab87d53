#ifndef SLACKWATER_ENGINE_CONFIG_H_
#define SLACKWATER_ENGINE_CONFIG_H_

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "slackwater/base/error.h"
#include "slackwater/cache/config.h"
#include "slackwater/hybrid/config.h"
#include "slackwater/scheduler/scheduler.h"

namespace slackwater::engine {

// Who proposes the drafts of a round.
enum class DrafterKind : std::uint8_t {
  kNone,        // one token a round
  kNgram,       // what followed the same tokens before, in the request itself; on the host
  kMtp,         // the model's own prediction block; acceptance is known on the device
  kDraftModel,  // a smaller model with the same vocabulary, whose state lies in the same cache
};
std::string_view to_string(DrafterKind kind);  // "none", "ngram", "mtp", "model"
// kInvalidArgument for another name, with those there are.
Result<DrafterKind> parse_drafter(std::string_view name);

enum class LoopKind : std::uint8_t {
  kPlain,    // a step ends before the next one is planned
  kOverlap,  // the next one is planned and queued while a step runs
};
std::string_view to_string(LoopKind kind);  // "plain", "overlap"
Result<LoopKind> parse_loop(std::string_view name);

struct SpeculationConfig {
  DrafterKind drafter = DrafterKind::kNone;
  std::int32_t max_drafts = 3;  // M, of a round; [1, 15]
  bool adapt_length = true;     // to the acceptance that is measured, down to none at all
  std::int32_t ngram_min = 2;   // tokens that must have occurred before
  std::int32_t ngram_max = 4;   // looked for first
};

// Room for all state, in bytes or in slots.
struct PoolConfig {
  // Of each recurrent layer group, and of each layer group with pages per block, on the device. 0
  // where `device_bytes` is given.
  std::int32_t num_slots = 0;
  std::int32_t num_blocks = 0;
  std::int64_t device_bytes = 0;
  // All that leaves the device goes here: saves of what lies beside the pools, and pages. 0: there
  // is no host tier, nobody is suspended, and who has to make room is computed again.
  std::int64_t host_bytes = 0;
  std::int64_t disk_bytes = 0;  // 0: no disk tier
  std::filesystem::path disk_directory;
  // Nothing is taken into use that the host could not take (KvCacheConfig::guarantee_suspend).
  bool guarantee_suspend = false;
  std::int32_t tokens_per_block = 32;
  std::int64_t grain_bytes = 0;  // of every tier; 0: each its own
};

// What an engine is made from.
struct EngineConfig {
  LoopKind loop = LoopKind::kPlain;
  SpeculationConfig speculation;
  scheduler::SchedulerConfig scheduler;
  PoolConfig pools;
  hybrid::ReplayPlacement placement = hybrid::ReplayPlacement::kInPool;
  hybrid::SuspendPolicy suspend_policy = hybrid::SuspendPolicy::kSave;
  bool enable_block_reuse = true;
  bool enable_rebalance = false;
  std::int32_t rebalance_check_interval = 10;  // in steps; >= 1
  cache::RebalanceOptions rebalance;
  std::int64_t snapshot_interval = 0;  // tokens between snapshots of a long prompt; 0: none
  cache::OperationLogOptions operation_log;

  // Hooks of tests and of `slackwater demo`. Asked once per step, from 0, when it is queued: true
  // makes it fail on the device after it has run.
  std::function<bool(std::int64_t step)> fail_step;
  // Runs on the host once per step while the device computes, as work of somebody else's.
  std::function<void()> host_load;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_CONFIG_H_
