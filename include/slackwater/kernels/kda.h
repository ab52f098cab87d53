#ifndef SLACKWATER_KERNELS_KDA_H_
#define SLACKWATER_KERNELS_KDA_H_

#include <array>
#include <cstdint>
#include <optional>
#include <span>

#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/views.h"

namespace slackwater::kernels {

inline constexpr std::int32_t kConvTaps = 4;  // W: kernel of the short convolution
inline constexpr std::int32_t kWindowRows = kConvTaps - 1;
inline constexpr std::int32_t kValueTile = 32;        // value columns of one state tile
inline constexpr std::int32_t kMaxKdaHeadDim = 1024;  // bounds the tiles of one head

// Floats of one layer's state and window in a page.
constexpr std::int64_t kda_state_floats(std::int64_t heads, std::int64_t head_dim) {
  return heads * head_dim * head_dim;
}
constexpr std::int64_t kda_window_floats(std::int64_t heads, std::int64_t head_dim) {
  return 3 * kWindowRows * heads * head_dim;
}

// Floats of one slot's replay records in a layer, for at most `max_records` of them.
constexpr std::int64_t kda_conv_record_floats(std::int64_t max_records, std::int64_t width) {
  return (kWindowRows + max_records) * width;
}
constexpr std::int64_t kda_qkg_record_floats(std::int64_t max_records, std::int64_t width) {
  return 3 * max_records * width;
}
// From one record's betas to the next: rows of 16 bytes.
constexpr std::int64_t kda_beta_record_stride(std::int64_t heads) { return (heads + 3) / 4 * 4; }

// Kimi Delta Attention of one layer over a ragged batch: short convolution, gates, recurrence
// and page writes, in one pass over the state.
//
// Source: docs/numerics.md "Kimi Delta Attention"; formulas: Kimi Linear, arXiv 2510.26692; replay
// of accepted drafts: kda_replay.md 1.3-1.6.
// Per token, key i of head h and value column j, with S the state:
//   c = w0*x[t-3], then three fused steps; SiLU; q and k normalised (L2), q scaled by 1/sqrt(D)
//   a_i = exp(g_i),  g = -(A*softplus(r)) or lower_bound*sigmoid(A*r),  r = decay + dt_bias
//   S_ij = a_i S_ij;  p_j = sum k_i S_ij;  u_j = beta (v_j - p_j);  S_ij += k_i u_j
//   o_j = sum q_i S_ij (before the update) + (q.k) u_j
// Every value of S that is stored with |S| < 2^-64 is stored as +0.
//
// A row's state and window begin as its page advanced by its first P records: replay is the same
// recurrence without r and o. After c_j tokens they go to page_j, for every write of the row.
//
// Where records are kept, what ran past the row's page stays as records:
//   with writes     the last is of the row's own page, after c tokens: tokens [c, T) become records
//                   [0, T - c), and the first rows of conv are the window that was written
//   without         the page and those rows stay; the tokens become records [P, P + T)
// Prefill and decode have c = T, a verify round T = 1 + m and c = 1, a draft model's row no write.
// T = 0 and c = 0 commits: the P records are folded into the page.
// Records are replaced only after the whole state of their head has replayed them.
struct KdaStepArgs {
  std::int32_t num_heads = 0;  // H
  std::int32_t head_dim = 0;   // D, a multiple of 32 up to kMaxKdaHeadDim

  // Raw projections of the tokens, [T, H * D] f32 each: q, k, v before the convolution.
  std::array<const float*, 3> qkv = {};
  std::int64_t qkv_stride = 0;
  const float* decay = nullptr;  // [T, H * D] f32: f_b(f_a(x))
  std::int64_t decay_stride = 0;
  const float* beta = nullptr;  // [T, H] f32, before the sigmoid
  std::int64_t beta_stride = 0;

  // The layer's constants, f32.
  std::array<const float*, 3> conv_weight = {};  // q, k, v: [4, H * D], oldest tap first
  const float* dt_bias = nullptr;                // [H * D]
  const float* decay_rate = nullptr;             // [H]: A = exp(A_log)
  std::optional<float> gate_lower_bound;         // set: the bounded gate

  RecurrentPages pages;
  ReplayRecords records;  // of the slots of `pages`
  std::span<const SequenceRow> rows;

  float* o = nullptr;  // [T, H * D] f32, before the output norm
  std::int64_t o_stride = 0;
};
void kda_step(ExecutionContext& context, const KdaStepArgs& args);

// A = exp(A_log) for the loader, by the exponential of docs/numerics.md: no libm on the way to a
// token.
float kda_decay_rate(float a_log);

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_KDA_H_
