#ifndef SLACKWATER_KERNELS_VIEWS_H_
#define SLACKWATER_KERNELS_VIEWS_H_

#include <array>
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

// The replay records of one KDA layer, beside or within the recurrent pool: an entry per slot, for
// what ran past the page of that slot. M = max_records, D = num_heads * head_dim.
//   conv[i]  [3 + M][D] f32, i = q, k, v: rows [0, 3) are a copy of the window in the slot's page,
//            row 3 + r is the raw projection of record r
//   qkg      [M][3][D] f32: q (normalised, scaled), k (normalised), g (log decay) of record r
//   v        [M][D] f32, after convolution and SiLU
//   beta     [M][num_heads rounded up to 4] f32, after the sigmoid
// Each lies at its base + slot * slot_stride; strides are in floats. How many records of a slot
// count is the row's to say (num_pending); what lies past them is never read.
struct ReplayRecords {
  std::array<float*, 3> conv_base = {};
  float* qkg_base = nullptr;
  float* v_base = nullptr;
  float* beta_base = nullptr;
  std::int64_t slot_stride = 0;
  std::int32_t num_slots = 0;
  std::int32_t max_records = 0;  // 0: none are kept
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
  SlotId state_page;       // read unless it is at position 0, where the state is +0
  // Ascending counts in [0, num_tokens]. Written pages are distinct over the whole batch and
  // nobody else's state_page; the row's own page, where it is written, comes last. May be empty:
  // then no page changes. Where records are kept, a row that writes writes its own page.
  std::span<const StateWrite> writes;
  // P: records of slot state_page to replay before the first token. The page is at position
  // first_position - num_pending.
  std::int32_t num_pending = 0;
};

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_VIEWS_H_
