#ifndef SLACKWATER_KERNELS_VIEWS_H_
#define SLACKWATER_KERNELS_VIEWS_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/base/dtype.h"
#include "slackwater/base/ids.h"

namespace slackwater::kernels {

// Paged views: what a kernel knows of storage. They say where the bytes of one layer lie and own
// nothing. Slot ids are checked against num_slots once per call, at the kernel's entry.

// The latent rows of one attention layer. A row is [latent | k_r], `width` values of `dtype`.
// The row of token position p of a sequence lies at
//   base + slot * slot_stride + (p % tokens_per_block) * token_stride,
// with slot = block_table[p / tokens_per_block].
struct LatentPages {
  std::byte* base = nullptr;
  std::int64_t slot_stride = 0;   // bytes
  std::int64_t token_stride = 0;  // bytes
  std::int32_t num_slots = 0;
  std::int32_t tokens_per_block = 0;  // a power of two
  std::int32_t width = 0;             // kv_lora_rank + qk_rope_head_dim
  DType dtype = DType::kF32;          // kF32, or kBf16: rounded when written
};

// Block ordinal -> slot of one sequence, for the attention layer group.
using BlockTable = std::span<const SlotId>;

// The pages of one KDA layer in the recurrent pool: one page per request or snapshot.
//   state   [num_heads][head_dim / 32][head_dim][32] f32, at state_base + slot * slot_stride
//           (value tiles of 32 columns; within a tile the key is outermost)
//   window  [3][3][num_heads * head_dim] f32, at window_base + slot * slot_stride
//           (q, k, v sections; the last three raw projections, oldest first)
// Strides are in floats.
struct RecurrentPages {
  float* state_base = nullptr;
  float* window_base = nullptr;
  std::int64_t slot_stride = 0;
  std::int32_t num_slots = 0;
};

// After `count` of the row's tokens, state and window go to page `page`.
struct StateWrite {
  std::int32_t count = 0;
  SlotId page;
};

// One sequence's share of a ragged batch: tokens [first_token, first_token + num_tokens) of the
// batch are its positions [first_position, first_position + num_tokens).
struct SequenceRow {
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int64_t first_position = 0;
  BlockTable block_table;  // covers first_position + num_tokens positions
  SlotId state_page;       // read unless first_position == 0, where the state is +0
  // Ascending counts in [0, num_tokens]. Written pages are distinct over the whole batch and
  // nobody else's state_page; the row's own page, where it is written, comes last. May be empty:
  // then no page changes.
  std::span<const StateWrite> writes;
};

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_VIEWS_H_
