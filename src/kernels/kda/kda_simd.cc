#include "kernels/kda/kda_simd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// Vectors of value columns that one pass over the keys carries: with two chains each of p and r
// that is 8 accumulators, which leaves room for the broadcasts in 16 registers.
inline constexpr int kColumnVectors = 2;
static_assert(kValueTile % (kColumnVectors * kLanes) == 0);

// One worker's scratch: the activations of up to kPreparedTokens tokens of one head, the head's
// state between writes, and a tile of zeros.
struct KdaScratch {
  float *q, *k, *v, *a;  // [kPreparedTokens, D]
  float *beta, *qk;      // [kPreparedTokens]
  float* state;          // [D / 32][D][32]
  float* zero_tile;      // [D][32]
};

KdaScratch carve(std::span<std::byte> bytes, std::int64_t head_dim) {
  float* next = reinterpret_cast<float*>(bytes.data());
  const auto take = [&next](std::int64_t floats) {
    float* taken = next;
    next += floats;
    return taken;
  };
  const std::int64_t rows = kPreparedTokens * head_dim;
  KdaScratch scratch;
  scratch.q = take(rows);
  scratch.k = take(rows);
  scratch.v = take(rows);
  scratch.a = take(rows);
  scratch.state = take(head_dim * head_dim);
  scratch.zero_tile = take(head_dim * kValueTile);
  scratch.beta = take(kPreparedTokens);
  scratch.qk = take(kPreparedTokens);
  return scratch;
}

// One (row, head) of the batch.
struct HeadRow {
  const KdaStepArgs& args;
  const SequenceRow& row;
  std::int64_t head;
  const KdaScratch& scratch;

  std::int64_t dim() const { return args.head_dim; }
  std::int64_t width() const { return std::int64_t{args.num_heads} * args.head_dim; }
  std::int64_t channel() const { return head * args.head_dim; }
  bool reads_page() const {
    return row.first_position != 0 || SLACKWATER_MUTANT(kda_read_page_at_zero);
  }

  float* state_tile(SlotId page, std::int64_t tile) const {
    return args.pages.state_base + page.value() * args.pages.slot_stride + head * dim() * dim() +
           tile * dim() * kValueTile;
  }
  float* window_row(SlotId page, int section, std::int64_t r) const {
    return args.pages.window_base + page.value() * args.pages.slot_stride +
           (section * kWindowRows + r) * width() + channel();
  }
  // Raw projections of token `t` of the row; negative ones lie in the window, or are +0.
  const float* raw(int section, std::int64_t t) const {
    if (t >= 0) return args.qkv[section] + (row.first_token + t) * args.qkv_stride + channel();
    return reads_page() ? window_row(row.state_page, section, kWindowRows + t) : scratch.zero_tile;
  }
};

// Convolution and SiLU of one section of token `t`, [D].
HWY_INLINE void convolve(const HeadRow& head_row, int section, std::int64_t t, float* out) {
  const float* weight = head_row.args.conv_weight[section] + head_row.channel();
  const std::int64_t width = head_row.width();
  const float* x[kConvTaps];
  for (int tap = 0; tap < kConvTaps; ++tap) x[tap] = head_row.raw(section, t - kWindowRows + tap);
  for (std::int64_t i = 0; i < head_row.dim(); i += kLanes) {
    V c = hn::Mul(load(weight + i), load(x[0] + i));
    for (int tap = 1; tap < kConvTaps; ++tap) {
      c = hn::MulAdd(load(weight + tap * width + i), load(x[tap] + i), c);
    }
    store(silu<Ops>(c), out + i);
  }
}

// x = x * inv, then times `scale` where one is given.
HWY_INLINE void normalise(float* x, std::int64_t n, const float* scale) {
  const V inv = broadcast(1.0f / std::sqrt(sum_of_products(x, x, n) + 1e-6f));
  for (std::int64_t i = 0; i < n; i += kLanes) {
    V y = hn::Mul(load(x + i), inv);
    if (scale != nullptr) y = hn::Mul(y, broadcast(*scale));
    store(y, x + i);
  }
}

// a = exp(g) of token `t`, [D].
HWY_INLINE void decay(const HeadRow& head_row, std::int64_t t, float* a) {
  const KdaStepArgs& args = head_row.args;
  const std::int64_t channel = head_row.channel();
  const float* raw = args.decay + (head_row.row.first_token + t) * args.decay_stride + channel;
  const float* bias = args.dt_bias + channel;
  const V rate = broadcast(args.decay_rate[head_row.head]);
  for (std::int64_t i = 0; i < head_row.dim(); i += kLanes) {
    const V r = hn::Add(load(raw + i), load(bias + i));
    const V g = args.gate_lower_bound.has_value()
                    ? hn::Mul(broadcast(*args.gate_lower_bound), sigmoid<Ops>(hn::Mul(rate, r)))
                    : hn::Neg(hn::Mul(rate, softplus<Ops>(r)));
    store(exp<Ops>(g), a + i);
  }
}

// Fills row `slot` of the scratch with the activations of token `t`.
HWY_INLINE void prepare(const HeadRow& head_row, std::int64_t t, std::int64_t slot) {
  const KdaScratch& scratch = head_row.scratch;
  const std::int64_t dim = head_row.dim();
  float* q = scratch.q + slot * dim;
  float* k = scratch.k + slot * dim;
  convolve(head_row, 0, t, q);
  convolve(head_row, 1, t, k);
  convolve(head_row, 2, t, scratch.v + slot * dim);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  normalise(q, dim, &scale);
  normalise(k, dim, nullptr);
  decay(head_row, t, scratch.a + slot * dim);
  scratch.qk[slot] = sum_of_products(q, k, dim);
  const float beta =
      head_row.args
          .beta[(head_row.row.first_token + t) * head_row.args.beta_stride + head_row.head];
  scratch.beta[slot] = hn::GetLane(sigmoid<Ops>(broadcast(beta)));
}

// Stored states are +0 below 2^-64, so that the next a * s is never denormal. A NaN stays.
HWY_INLINE V drop_tiny(V s) {
  if (SLACKWATER_MUTANT(kda_keep_tiny)) return s;
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(s), broadcast(0x1p-64f)), s);
}

// Where one token's columns come from and go to: `from` and `to` have 32 floats from one key to
// the next, and may be the same.
struct ColumnPass {
  const float* v;
  const float* from;
  float* to;
  float* o;
};

// One prepared token through kColumnVectors vectors of columns.
HWY_INLINE void step_columns(const KdaScratch& scratch, std::int64_t slot, std::int64_t dim,
                             const ColumnPass& pass) {
  const float* a = scratch.a + slot * dim;
  const float* k = scratch.k + slot * dim;
  const float* q = scratch.q + slot * dim;
  V p[2][kColumnVectors];
  V r[2][kColumnVectors];
  for (int chain = 0; chain < 2; ++chain) {
    for (int n = 0; n < kColumnVectors; ++n) p[chain][n] = r[chain][n] = broadcast(0.0f);
  }
  for (std::int64_t i = 0; i < dim; i += 2) {
    for (int odd = 0; odd < 2; ++odd) {
      const int chain = SLACKWATER_MUTANT(kda_one_chain) ? 0 : odd;
      const V ai = broadcast(a[i + odd]);
      const V ki = broadcast(k[i + odd]);
      const V qi = broadcast(q[i + odd]);
      for (int n = 0; n < kColumnVectors; ++n) {
        const V s = hn::Mul(ai, load(pass.from + (i + odd) * kValueTile + n * kLanes));
        p[chain][n] = hn::MulAdd(ki, s, p[chain][n]);
        r[chain][n] = hn::MulAdd(qi, s, r[chain][n]);
      }
    }
  }
  V u[kColumnVectors];
  for (int n = 0; n < kColumnVectors; ++n) {
    const V error = hn::Sub(load(pass.v + n * kLanes), hn::Add(p[0][n], p[1][n]));
    u[n] = hn::Mul(broadcast(scratch.beta[slot]), error);
    store(hn::MulAdd(broadcast(scratch.qk[slot]), u[n], hn::Add(r[0][n], r[1][n])),
          pass.o + n * kLanes);
  }
  // The decayed state is computed again rather than stored in between: a product costs less
  // than a store and a load.
  for (std::int64_t i = 0; i < dim; ++i) {
    const V ai = broadcast(a[i]);
    const V ki = broadcast(k[i]);
    for (int n = 0; n < kColumnVectors; ++n) {
      const std::int64_t at = i * kValueTile + n * kLanes;
      store(drop_tiny(hn::MulAdd(ki, u[n], hn::Mul(ai, load(pass.from + at)))), pass.to + at);
    }
  }
}

// Runs prepared tokens [first, first + count) of the row through one state tile. `held` is where
// the tile's state lies: a page, zeros, or the scratch. Returns where it lies afterwards.
HWY_INLINE const float* run_tile(const HeadRow& head_row, std::int64_t tile, std::int64_t first,
                                 std::int64_t count, const float* held) {
  const KdaScratch& scratch = head_row.scratch;
  const KdaStepArgs& args = head_row.args;
  const std::int64_t dim = head_row.dim();
  const std::size_t tile_bytes = static_cast<std::size_t>(dim * kValueTile) * sizeof(float);
  auto write = std::ranges::lower_bound(head_row.row.writes, first == 0 ? 0 : first + 1, {},
                                        &StateWrite::count);
  const auto end = head_row.row.writes.end();
  for (; write != end && write->count == first && first == 0; ++write) {
    float* page = head_row.state_tile(write->page, tile);
    if (page != held) std::memcpy(page, held, tile_bytes);
  }
  for (std::int64_t slot = 0; slot < count; ++slot) {
    const std::int64_t done = first + slot + (SLACKWATER_MUTANT(kda_write_late) ? 0 : 1);
    // A token whose result is written goes straight to the page, and the next one reads it there.
    float* to = scratch.state + tile * dim * kValueTile;
    if (write != end && write->count == done) to = head_row.state_tile((write++)->page, tile);
    float* o = args.o + (head_row.row.first_token + first + slot) * args.o_stride +
               head_row.channel() + tile * kValueTile;
    const float* v = scratch.v + slot * dim + tile * kValueTile;
    for (int column = 0; column < kValueTile; column += kColumnVectors * kLanes) {
      step_columns(scratch, slot, dim, {v + column, held + column, to + column, o + column});
    }
    held = to;
    for (; write != end && write->count == done; ++write) {
      std::memcpy(head_row.state_tile(write->page, tile), held, tile_bytes);
    }
  }
  return held;
}

// The window after `count` tokens goes to `page`. Ascending rows, so that the row's own page can
// be shifted in place.
HWY_INLINE void write_window(const HeadRow& head_row, const StateWrite& write) {
  const std::size_t bytes = static_cast<std::size_t>(head_row.dim()) * sizeof(float);
  for (int section = 0; section < 3; ++section) {
    for (std::int64_t r = 0; r < kWindowRows; ++r) {
      const std::int64_t shift = SLACKWATER_MUTANT(kda_window_shifted) && write.count > 0 ? 1 : 0;
      const float* from = head_row.raw(section, write.count - kWindowRows + r - shift);
      float* to = head_row.window_row(write.page, section, r);
      if (from != to) std::memcpy(to, from, bytes);
    }
  }
}

void run_head(const KdaStepArgs& args, const SequenceRow& row, std::int64_t head,
              const KdaScratch& scratch) {
  const HeadRow head_row{args, row, head, scratch};
  const std::int64_t num_tiles = head_row.dim() / kValueTile;
  std::array<const float*, kMaxKdaHeadDim / kValueTile> held;
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    held[static_cast<std::size_t>(tile)] =
        head_row.reads_page() ? head_row.state_tile(row.state_page, tile) : scratch.zero_tile;
  }
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min<std::int64_t>(kPreparedTokens, row.num_tokens - first);
    for (std::int64_t slot = 0; slot < count; ++slot) prepare(head_row, first + slot, slot);
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const float*& state = held[static_cast<std::size_t>(tile)];
      state = run_tile(head_row, tile, first, count, state);
    }
    first += count;
  } while (first < row.num_tokens);
  // Last, because every token's convolution may read the window of the row's own page.
  for (const StateWrite& write : row.writes) write_window(head_row, write);
}

}  // namespace

void kda_step(ExecutionContext& context, const KdaStepArgs& args) {
  // Heads of a row are independent: state, window and activations of one head are one worker's.
  const std::int64_t items = std::ssize(args.rows) * args.num_heads;
  context.parallel_for(items, 1, [&](ItemRange range, int worker) HWY_ATTR {
    const KdaScratch scratch = carve(context.scratch(worker), args.head_dim);
    std::fill(scratch.zero_tile, scratch.zero_tile + args.head_dim * kValueTile, 0.0f);
    for (std::int64_t item = range.begin; item < range.end; ++item) {
      const SequenceRow& row = args.rows[static_cast<std::size_t>(item / args.num_heads)];
      run_head(args, row, item % args.num_heads, scratch);
    }
  });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

KdaStepFunction* kda_step_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, kda_step); }

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
