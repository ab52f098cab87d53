#ifndef SLACKWATER_CACHE_CONFIG_H_
#define SLACKWATER_CACHE_CONFIG_H_

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/cache/layer_kind.h"
#include "slackwater/storage/cold_page_codec.h"
#include "slackwater/storage/disk_io.h"
#include "slackwater/storage/disk_tier.h"
#include "slackwater/storage/slot_layout.h"

namespace slackwater::cache {

// One role of one layer.
struct BufferConfig {
  std::string role;        // "kv_latent", "ssm_state", ...; once in a layer
  std::int64_t bytes = 0;  // of `tokens_per_block` tokens, or of one state
  // Smaller blocks within a page, for kernels that want them: a divisor of the sequence's block.
  // 0: the same.
  std::int32_t tokens_per_block = 0;
  // Of recurrent layers only: bytes that nobody reads but the request that wrote them. They stay
  // with it wherever its pages go, and are no part of what others find: a snapshot has none.
  bool is_transient = false;
};

struct LayerConfig {
  std::int32_t layer = 0;  // unique; any order
  LayerKind kind;
  std::vector<BufferConfig> buffers;
  std::string group_tag = "target";  // layers of different tags never share a layer group
};

// A sequence as far as room is concerned, in tokens: history <= capacity.
struct SequenceDesc {
  std::int64_t capacity = 0;
  std::int64_t history = 0;
};

// Sequences that run at the same time, the first tokens of which may be the same.
struct BatchDesc {
  std::vector<SequenceDesc> sequences;
  std::int64_t system_prompt_length = 0;
};

// What of a sequence becomes reusable when it commits.
enum class CommitPolicy : std::uint8_t {
  // Every full block, with the pages of all layer groups that are there; partial ones at the end.
  kEveryBlock,
  // What is needed to go on from the end of each commit: of sliding windows the last pages only,
  // of recurrent layers a snapshot there, of a partial block a copy.
  kEndpointsOnly,
};

// When and how the shares of layer groups follow the load (KvCacheManager::adjust). Sequences that
// never had room, and dummies, do not count.
struct RebalanceOptions {
  std::int64_t min_samples = 2000;     // sequences that must have ended, since the start; >= 0
  std::int64_t update_interval = 100;  // ends between two looks at what the shares should be; >= 1
  Nanoseconds cooldown = std::chrono::seconds(120);  // between two changes; >= 0
  double threshold = 1.25;  // by what factor the slots of a pool group may be off; > 1
  double decay = 0.9999;    // of the moving averages, per sequence; in (0, 1)
};

// Where a manager writes down what it is asked, so that it can be done again offline (LogReplay).
struct OperationLogOptions {
  std::filesystem::path path;  // a file that is not there yet; empty: no log
  // At which the log ends, in whole MiB; the manager goes on. So many addresses are taken at once,
  // and the disk as the log grows.
  std::int64_t max_bytes = 1 << 30;
  // Told once, when the log has ended before the manager; within a call, so it calls nothing of the
  // cache. Empty: nobody.
  std::function<void(std::string_view)> warn;
};

// What a KvCacheManager is made from.
//
// Source: kvcm_v2.md 4.1.
struct KvCacheConfig {
  std::int32_t tokens_per_block = 32;  // a power of two
  std::vector<LayerConfig> layers;     // of the whole model, the same on every rank
  // Layers whose bytes lie here; empty: all. Whatever depends on the kinds of layers is decided
  // from `layers`, so that all ranks decide alike.
  std::vector<std::int32_t> local_layers;
  storage::PoolPolicy pool_policy = storage::PoolPolicy::kOnePool;

  // Quotas in bytes; 0 means no such tier, which only the host and the disk may have.
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t disk_bytes = 0;
  // The most that set_quota() can give later: address space is kept for it. 0: as above.
  std::int64_t max_device_bytes = 0;
  std::int64_t max_host_bytes = 0;
  storage::DiskTierOptions disk;                  // where, and how long it may take
  std::unique_ptr<storage::DiskIo> disk_io;       // null: the best there is
  std::shared_ptr<storage::ColdPageCodec> codec;  // null: concatenation
  Digest128 model;               // of config and weights: foreign pages on disk are not read
  std::int64_t grain_bytes = 0;  // of every tier; 0: each its own
  int copy_threads = 1;

  CommitPolicy commit_policy = CommitPolicy::kEveryBlock;
  bool enable_partial_reuse = true;      // of blocks that match only in part
  std::int64_t reuse_match_backoff = 0;  // tokens taken off the end of every match
  bool text_only = false;                // no token stands for a digest, and none can be made
  // Tokens between two snapshots of a long prompt, beside those at its end; 0: none. Any number
  // is legal: snapshots need no alignment.
  std::int64_t snapshot_interval = 0;
  // Recurrent states become snapshots only where a commit says so (CommitOptions::publishes_state),
  // or where they were written to a reserved one: never by close(), by the end, or by
  // CommitPolicy::kEndpointsOnly alone. For whoever keeps states that are behind what is committed,
  // as replay of accepted drafts does.
  bool explicit_states = false;

  // No sequence resumes while more than this share of some pool group's device slots is locked.
  double max_util_for_resume = 0.97;
  // Nothing is taken into use that the host could not take: so whoever is suspended can always
  // leave the device, to the last page. The host must be able to take what the constraints ask of
  // the device. Without it a host that is too small makes others wait instead.
  bool guarantee_suspend = false;
  // Batches for which there must be room whatever the ratio: floors of slots on the device.
  std::vector<BatchDesc> constraints;
  // What decides the shares of layer groups in a tier, the first one that is given: these ratios
  // (one per layer group, sum 1), this batch, the constraints, or one sequence of 2049 tokens.
  std::vector<double> initial_pool_ratio;
  std::optional<BatchDesc> typical_step;

  RebalanceOptions rebalance;
  OperationLogOptions operation_log;

  // The most events that wait for KvCacheManager::drain_events(); room for each of them is kept,
  // about 200 bytes and the tokens of a block. 0: there are none, and they cost nothing.
  std::int32_t max_events = 0;

  bool enable_statistics = true;  // off: nothing is counted, and everything in them stays 0

  // Not built: kUnimplemented when asked for.
  bool sliding_window_scratch_pages = false;
  std::int32_t max_beam_width = 1;
};

// Whether the numbers can work at all, before anything is allocated: kInvalidArgument or
// kUnimplemented, with the value, the limit and what to do.
Result<void> validate(const KvCacheConfig& config);

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_CONFIG_H_
