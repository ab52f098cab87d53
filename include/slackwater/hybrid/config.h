#ifndef SLACKWATER_HYBRID_CONFIG_H_
#define SLACKWATER_HYBRID_CONFIG_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/cache/config.h"
#include "slackwater/hybrid/kda_shape.h"
#include "slackwater/hybrid/slot_registry.h"

namespace slackwater::hybrid {

// Where the replay records of a request lie. They differ in base and stride, and in what may move.
enum class ReplayPlacement : std::uint8_t {
  // In buffers beside the recurrent pool, an entry per slot, as many as there were slots at
  // construction. They are saved and restored when a request is suspended and resumed.
  kBesidePool,
  // In the request's own page: they move with it, are budgeted with it, and the pool may grow.
  kInPool,
};

// "beside the pool", "in the pool".
std::string_view to_string(ReplayPlacement placement);

// What happens to pending drafts when a request is suspended.
enum class SuspendPolicy : std::uint8_t {
  kSave,           // records and their count are kept as they are
  kCommitIfKnown,  // folded into the page where their count is known; else as kSave
};

// One layer of Kimi Delta Attention.
struct KdaLayer {
  std::int32_t layer = 0;  // unique over all layers
  KdaShape shape;          // the same for all layers of a tag
  std::string group_tag = "target";
};

// Drafts that a verify round checks beside its golden token.
struct SpeculationOptions {
  std::int32_t max_drafts = 0;  // M: at most so many in a round; those of a round may be fewer
};

struct ReplayOptions {
  std::int32_t num_records = 0;  // per slot; must be max_drafts
};

// Where snapshots of a prompt are taken, beside the default points of the cache.
//
// Source: MambaStateConfig of TensorRT-LLM, kda_replay.md 2.6.
struct SnapshotOptions {
  std::int64_t periodic_snapshot_interval = 0;  // in tokens; 0: none
  std::vector<std::int64_t> additional_snapshot_offsets_from_start;
  std::vector<std::int64_t> additional_snapshot_offsets_from_end;
  bool enable_branch_snapshot = true;  // at the junction with what is known
};

// What a HybridCacheManager is made from.
struct HybridConfig {
  // Quotas, policies and the layers with attention; recurrent layers come from `kda_layers`.
  // Snapshots are configured below.
  cache::KvCacheConfig cache;
  std::vector<KdaLayer> kda_layers;  // of the whole model, the same on every rank

  std::optional<SpeculationOptions> speculation;
  std::optional<ReplayOptions> replay;  // of the drafts on the KDA layers
  bool has_mamba2_replay = false;       // another kind of replay, by somebody else
  ReplayPlacement placement = ReplayPlacement::kInPool;
  SuspendPolicy suspend_policy = SuspendPolicy::kSave;
  // Floats of the hidden state that a multi-token-prediction block goes on from; 0: there is none.
  std::int32_t mtp_hidden_size = 0;
  // Positions past what is kept whose rows a prediction block has made already: the room for them
  // is not given back.
  std::int32_t lookahead = 0;

  SnapshotOptions snapshots;
  bool enable_block_reuse = true;
  bool enable_rebalance = false;
  // Of the attention layers, by name. "fp8_ds_mla" is read through fixed views of the pools.
  std::string kv_dtype = "f32";

  // Requests of a batch, and batches under way in a pipeline: the recurrent pools have slots for
  // all of them and for the dummies.
  std::int32_t max_batch_size = 1;
  std::int32_t pipeline_size = 1;
  std::int32_t num_dummies = 0;

  // Host memory for what suspended requests had beside their pages. One save is reserved for every
  // request that has started. 0: nobody can be suspended who has anything there.
  std::int64_t save_bytes = 0;
  std::vector<SlotEntry> slot_entries;  // of the caller's own, kept per slot like the records
};

// Whether somebody keeps views of the pools of this dtype that a rebalance would invalidate.
bool has_fixed_views(std::string_view kv_dtype);

// The refusals, from the configuration of the whole model alone, so that all ranks decide alike and
// nothing is allocated yet. kInvalidArgument, with the remedy in the text:
//
//   placement     replay + rebalance    recurrent + block reuse + rebalance    neither
//   kBesidePool   refused               refused                                allowed
//   kInPool       allowed               allowed                                allowed
//
// fixed views with rebalance; replay without speculation, with another number of records than
// drafts, with another layout of the window than kda_step's, or beside another kind of replay; and
// host memory that holds no whole save. What the cache refuses of its part it refuses itself.
Result<void> validate(const HybridConfig& config);

// The cache's part, with the recurrent layers, their records where they lie in the pool, and the
// floors of slots. Takes `config.cache`, of which layers and whatever says what is on, stay.
cache::KvCacheConfig make_cache_config(HybridConfig& config);

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_CONFIG_H_
