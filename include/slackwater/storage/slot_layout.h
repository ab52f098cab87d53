#ifndef SLACKWATER_STORAGE_SLOT_LAYOUT_H_
#define SLACKWATER_STORAGE_SLOT_LAYOUT_H_

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/storage/slot_solver.h"

namespace slackwater::storage {

// One kind of bytes that a slot of a layer group holds, the same for each of its layers.
struct BufferSpec {
  std::string role;                  // "kv_latent", "ssm_state", ...
  std::int64_t bytes_per_layer = 0;  // of one slot
  std::int32_t num_layers = 1;
  // Read only by the request that wrote it, as records of its drafts are: whoever else gets the
  // page has no use for these bytes.
  bool is_transient = false;
};

// Where a buffer lies within the slots of its pool: layer l of slot s begins at
//   base + s * slot stride + offset + l * layer_stride.
struct BufferPlacement {
  std::int32_t pool = 0;
  std::int64_t offset = 0;
  std::int64_t layer_stride = 0;
};

// How many pools the buffers of a layer group share.
enum class PoolPolicy {
  kOnePool,    // all buffers of a slot lie together: a page moves by one contiguous copy
  kOnePerSize  // buffers of equal bytes per layer share a pool, as TensorRT-LLM coalesces them
};

// The slots of one layer group.
//
// Invariants:
//   I1  pool_slot_bytes descends; no two buffers overlap; every byte of a slot but padding at its
//       end, and before what is transient, belongs to one buffer.
//   I2  slots are multiples of kSlotAlignment; a buffer that is one starts at one, and so does what
//       is transient.
//   I3  what is transient lies after all else: in a pool that has some, past its durable bytes.
struct SlotLayout {
  SlotSizes pool_slot_bytes;             // [pools]
  SlotSizes durable_bytes;               // [pools] the same where nothing is transient
  std::vector<BufferPlacement> buffers;  // [buffers], in the order given
};

inline bool has_transient(const SlotLayout& layout) {
  return layout.durable_bytes != layout.pool_slot_bytes;
}

// One cache line: neighbouring slots never share one.
inline constexpr std::int64_t kSlotAlignment = 64;

// Slot-major: within a pool the layers of the first buffer, then those of the second, and so on;
// transient ones after all others.
// kInvalidArgument for no buffer, or one without bytes or layers.
Result<SlotLayout> lay_out_slots(std::span<const BufferSpec> buffers, PoolPolicy policy);

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_SLOT_LAYOUT_H_
