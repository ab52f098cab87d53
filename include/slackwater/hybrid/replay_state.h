#ifndef SLACKWATER_HYBRID_REPLAY_STATE_H_
#define SLACKWATER_HYBRID_REPLAY_STATE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/page_table.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/hybrid/config.h"
#include "slackwater/hybrid/kda_shape.h"
#include "slackwater/hybrid/slot_registry.h"
#include "slackwater/kernels/views.h"

namespace slackwater::hybrid {

// Roles of the recurrent page.
inline constexpr std::string_view kSsmState = "ssm_state";
inline constexpr std::string_view kConvState = "conv_state";
inline constexpr std::string_view kMtpHidden = "mtp_hidden";
// P: an entry of the registry whatever the placement, never of the page.
inline constexpr std::string_view kPrevNumAcceptedTokens = "prev_num_accepted_tokens";
// Entries of the registry, or roles of the page.
inline constexpr std::string_view kKdaConvQ = "kda_conv_q";
inline constexpr std::string_view kKdaConvK = "kda_conv_k";
inline constexpr std::string_view kKdaConvV = "kda_conv_v";
inline constexpr std::string_view kKdaQkgCache = "kda_qkg_cache";
inline constexpr std::string_view kKdaVCache = "kda_v_cache";
inline constexpr std::string_view kKdaBetaCache = "kda_beta_cache";
inline constexpr std::string_view kMtpHiddenCache = "mtp_hidden_cache";

// What the records of one layer take, by name; with `hidden_size` those of the first layer carry
// the hidden states of the drafts too.
struct RecordBuffer {
  std::string_view name;
  std::int64_t bytes_per_layer = 0;
  bool is_of_first_layer = false;  // one per slot, not one per layer
};
std::vector<RecordBuffer> record_buffers(const KdaShape& shape, std::int32_t num_records,
                                         std::int32_t hidden_size);

// What a KDA layer keeps in its page: state and window, and with records in the pool those, as
// transient buffers.
std::vector<cache::BufferConfig> page_buffers(const HybridConfig& config, const KdaLayer& layer,
                                              bool is_first_of_tag);

// The registry's entries for the recurrent pool of one tag: P where there is replay, the records
// where they lie beside the pool, and the caller's own. Of the layers here, or of the whole model,
// so that all ranks count the same saves.
enum class LayerScope : std::uint8_t { kLocal, kAll };
std::vector<SlotEntry> slot_entries(const HybridConfig& config, std::string_view group_tag,
                                    LayerScope scope = LayerScope::kLocal);

// The recurrent layers of one tag: their pages, their records, and P, as kernels see them.
//
// Records are views with one base and one stride each, into the registry or into the pool. The true
// state of a slot is its page advanced by its first P records.
//
// Source: kda_replay.md 1.3 to 1.6.
// Invariants:
//   I1  0 <= P <= max_records of every slot.
//   I2  a slot's records belong to the request that owns the slot, or P = 0.
// Ownership: owns the registry; borrows the pools.
// Threads: one thread; what lies in the buffers belongs to the steps' stream.
// Errors: none; layers and slots are CHECKs.
class ReplayState {
 public:
  ReplayState(const HybridConfig& config, std::string group_tag, LayerGroupId group,
              std::unique_ptr<SlotRegistry> registry);

  // Looks at the pools again, whose number of slots may have changed.
  void bind(const cache::KvCacheManager& manager);

  const std::string& group_tag() const { return group_tag_; }
  LayerGroupId layer_group() const { return group_; }
  const KdaShape& shape() const { return shape_; }
  std::int32_t max_records() const { return max_records_; }  // M; 0 without replay
  bool has_replay() const { return max_records_ > 0; }
  std::span<const std::int32_t> layers() const { return layers_; }  // local ones
  SlotRegistry& registry() { return *registry_; }
  const SlotRegistry& registry() const { return *registry_; }
  // Slots that both the pool and the registry have.
  std::int32_t num_slots() const;

  // Layer `index` of layers(). CHECK: the window is f32.
  kernels::RecurrentPages pages(std::size_t index) const;
  kernels::ReplayRecords records(std::size_t index) const;
  // P of a slot. CHECK: there is replay.
  std::int32_t* pending(SlotId slot) const;
  // [hidden] of the page and [M, hidden] of the records; null without a prediction block.
  float* mtp_hidden(SlotId slot) const;
  float* mtp_hidden_cache(SlotId slot) const;
  // Copies the window of a page to where the first columns of the convolution records are a copy of
  // it. Run on the steps' stream where a slot gets a page without its records.
  void reseed(SlotId slot) const;

  // A record buffer, or a role of the page, for whoever looks at bytes.
  const PageTable& table(std::size_t layer, std::string_view name) const;
  // Names of all record buffers, P left out.
  std::span<const std::string> record_names() const { return record_names_; }

 private:
  struct NamedTable {
    std::string name;
    PageTable table;  // of this layer
  };

  std::string group_tag_;
  LayerGroupId group_;
  KdaShape shape_;
  ReplayPlacement placement_;
  std::int32_t max_records_ = 0;
  std::int32_t hidden_size_ = 0;
  std::vector<std::int32_t> layers_;
  std::vector<std::string> record_names_;
  std::unique_ptr<SlotRegistry> registry_;
  std::vector<std::vector<NamedTable>> tables_;  // [layers]
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_REPLAY_STATE_H_
