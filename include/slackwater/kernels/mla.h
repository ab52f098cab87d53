#ifndef SLACKWATER_KERNELS_MLA_H_
#define SLACKWATER_KERNELS_MLA_H_

#include <cstdint>
#include <span>

#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/views.h"

namespace slackwater::kernels {

// Key positions of one softmax tile. Anchored at position 0, whatever tokens_per_block is.
inline constexpr std::int32_t kKeyTile = 32;

// Writes the latent rows of a batch's tokens into their pages:
//   [ (c * inv) * w | k_r ], inv = 1 / sqrt(sum(c^2) / rank + eps), rounded to the pages' dtype.
struct MlaWriteArgs {
  const float* kv = nullptr;  // [T, rank + rope] f32: kv_a_proj_with_mqa(x)
  std::int64_t kv_stride = 0;
  const float* norm_weight = nullptr;  // [rank] f32
  std::int32_t rank = 0;               // kv_lora_rank
  float eps = 0;
  LatentPages pages;
  std::span<const SequenceRow> rows;
};
void mla_write(ExecutionContext& context, const MlaWriteArgs& args);

// Absorbed multi-head latent attention without positions, causal, over paged latent rows.
//
// Source: DeepSeek-V2, arXiv 2405.04434 (latent form); docs/numerics.md "Attention".
//   score_s = (q . row_s) * scale;  online softmax over tiles of 32 positions;
//   latent = sum_s p_s row_s[0, rank) / l
// A token at position p reads rows [first_key, p] and nothing beside them: those bytes may be
// poison. Tiles stay where they are, and the first one that holds a key sets m, l and acc.
struct MlaAttentionArgs {
  const float* q = nullptr;  // [T, heads, rank + rope] f32: [B_k^T q_n | q_r], unscaled
  std::int64_t q_stride = 0;
  float* latent = nullptr;  // [T, heads, rank] f32
  std::int64_t latent_stride = 0;
  std::int32_t heads = 0;
  std::int32_t rank = 0;
  float scale = 0;  // 1 / sqrt(qk_nope_head_dim + qk_rope_head_dim)
  LatentPages pages;
  std::span<const SequenceRow> rows;
  // Positions before it have no row: a prediction block has none for the first token. At most the
  // position of every token of the batch.
  std::int64_t first_key = 0;
};
void mla_attention(ExecutionContext& context, const MlaAttentionArgs& args);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MLA_H_
