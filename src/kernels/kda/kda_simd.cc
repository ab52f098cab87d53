#include "kernels/kda/kda_simd.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/kda/kda_simd.cc"
#include <hwy/cache_control.h>
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

// One worker's scratch: the activations of up to kPreparedTokens steps of one head, the head's
// state between writes, and a tile of zeros.
struct KdaScratch {
  float *q, *k, *v, *g, *a;  // [kPreparedTokens, D]
  float* state;              // [D / 32][D][32]
  float* zero_tile;          // [D][32]
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
  scratch.g = take(rows);
  scratch.a = take(rows);
  scratch.state = take(head_dim * head_dim);
  scratch.zero_tile = take(head_dim * kValueTile);
  return scratch;
}

// One step of the recurrence: a token, or a record that is replayed. Without a query it has no
// output.
struct Step {
  const float* k = nullptr;  // [D] each, in the scratch or in the records
  const float* v = nullptr;
  const float* a = nullptr;
  const float* q = nullptr;
  float beta = 0;
  float qk = 0;
};
using Steps = std::array<Step, kPreparedTokens>;

// One (row, head) of the batch. Its steps are the pending records, then the tokens.
struct HeadRow {
  const KdaStepArgs& args;
  const SequenceRow& row;
  std::int64_t head;
  const KdaScratch& scratch;

  std::int64_t dim() const { return args.head_dim; }
  std::int64_t width() const { return std::int64_t{args.num_heads} * args.head_dim; }
  std::int64_t channel() const { return head * args.head_dim; }
  bool reads_page() const {
    return row.first_position != row.num_pending || SLACKWATER_MUTANT(kda_read_page_at_zero);
  }
  // Records to replay.
  std::int64_t pending() const {
    if (SLACKWATER_MUTANT(kda_replay_one_more) && row.num_pending > 0) return row.num_pending + 1;
    if (SLACKWATER_MUTANT(kda_replay_one_less) && row.num_pending > 0) return row.num_pending - 1;
    return row.num_pending;
  }
  // Tokens from this one on become records.
  std::int64_t first_recorded() const {
    if (args.records.max_records == 0) return row.num_tokens;
    return row.writes.empty() ? 0 : row.writes.back().count;
  }
  // The record that token `t` becomes.
  std::int64_t record_of(std::int64_t t) const {
    if (!row.writes.empty() || SLACKWATER_MUTANT(kda_append_overwrites)) {
      return t - first_recorded();
    }
    return row.num_pending + t;
  }

  float* state_tile(SlotId page, std::int64_t tile) const {
    return args.pages.state_base + page.value() * args.pages.slot_stride + head * dim() * dim() +
           tile * dim() * kValueTile;
  }
  float* window_row(SlotId page, int section, std::int64_t r) const {
    return args.pages.window_base + page.value() * args.pages.slot_stride +
           (section * kWindowRows + r) * width() + channel();
  }
  std::int64_t records_at() const { return row.state_page.value() * args.records.slot_stride; }
  // Rows [0, 3) are the copy of the window, row 3 + r is record r's.
  float* conv_row(int section, std::int64_t r) const {
    return args.records.conv_base[section] + records_at() + r * width() + channel();
  }
  float* record_q(std::int64_t r) const {
    return args.records.qkg_base + records_at() + 3 * r * width() + channel();
  }
  float* record_k(std::int64_t r) const { return record_q(r) + width(); }
  float* record_g(std::int64_t r) const { return record_q(r) + 2 * width(); }
  float* record_v(std::int64_t r) const {
    return args.records.v_base + records_at() + r * width() + channel();
  }
  float* record_beta(std::int64_t r) const {
    return args.records.beta_base + records_at() + r * kda_beta_record_stride(args.num_heads) +
           head;
  }

  // Raw projections of token `t` of the row. Before the first lie the pending records, before
  // them the page's window, or +0.
  const float* raw(int section, std::int64_t t) const {
    if (t >= 0) return args.qkv[section] + (row.first_token + t) * args.qkv_stride + channel();
    const bool ignores = SLACKWATER_MUTANT(kda_window_ignores_pending);
    const std::int64_t r = kWindowRows + t + (ignores ? 0 : row.num_pending);
    if (r >= kWindowRows) return conv_row(section, r);
    return reads_page() ? window_row(row.state_page, section, r) : scratch.zero_tile;
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

// g and a = exp(g) of token `t`, [D] each. In several short loops, because the chain of operations
// from a raw value to its decay is so long that a processor finds little to do beside it.
HWY_INLINE void decay(const HeadRow& head_row, std::int64_t t, float* g, float* a) {
  const KdaStepArgs& args = head_row.args;
  const std::int64_t channel = head_row.channel();
  const std::int64_t dim = head_row.dim();
  const float* raw = args.decay + (head_row.row.first_token + t) * args.decay_stride + channel;
  const float* bias = args.dt_bias + channel;
  const V rate = broadcast(args.decay_rate[head_row.head]);
  const auto r = [raw, bias](std::int64_t i)
                     HWY_ATTR { return hn::Add(load(raw + i), load(bias + i)); };
  if (args.gate_lower_bound.has_value()) {
    const V bound = broadcast(*args.gate_lower_bound);
    for (std::int64_t i = 0; i < dim; i += kLanes) {
      store(hn::Mul(bound, sigmoid<Ops>(hn::Mul(rate, r(i)))), g + i);
    }
  } else {
    for (std::int64_t i = 0; i < dim; i += kLanes) {
      store(exp<Ops>(hn::Neg(hn::Abs(r(i)))), g + i);
    }
    for (std::int64_t i = 0; i < dim; i += kLanes) {
      store(hn::Neg(hn::Mul(rate, softplus_of<Ops>(r(i), load(g + i)))), g + i);
    }
  }
  for (std::int64_t i = 0; i < dim; i += kLanes) store(exp<Ops>(load(g + i)), a + i);
}

// The step of token `t`, its activations in row `slot` of the scratch.
HWY_INLINE Step prepare_token(const HeadRow& head_row, std::int64_t t, std::int64_t slot) {
  const KdaScratch& scratch = head_row.scratch;
  const std::int64_t dim = head_row.dim();
  float* q = scratch.q + slot * dim;
  float* k = scratch.k + slot * dim;
  float* v = scratch.v + slot * dim;
  float* a = scratch.a + slot * dim;
  convolve(head_row, 0, t, q);
  convolve(head_row, 1, t, k);
  convolve(head_row, 2, t, v);
  const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
  normalise(q, dim, &scale);
  normalise(k, dim, nullptr);
  decay(head_row, t, scratch.g + slot * dim, a);
  const float beta =
      head_row.args
          .beta[(head_row.row.first_token + t) * head_row.args.beta_stride + head_row.head];
  return {.k = k,
          .v = v,
          .a = a,
          .q = q,
          .beta = hn::GetLane(sigmoid<Ops>(broadcast(beta))),
          .qk = sum_of_products(q, k, dim)};
}

// The step of record `r`: keys and values are read where they lie.
HWY_INLINE Step prepare_record(const HeadRow& head_row, std::int64_t r, std::int64_t slot) {
  const float* g = head_row.record_g(r);
  float* a = head_row.scratch.a + slot * head_row.dim();
  for (std::int64_t i = 0; i < head_row.dim(); i += kLanes) store(exp<Ops>(load(g + i)), a + i);
  return {.k = head_row.record_k(r),
          .v = head_row.record_v(r),
          .a = a,
          .q = nullptr,
          .beta = *head_row.record_beta(r),
          .qk = 0};
}

// Stored states are +0 below 2^-64, so that the next a * s is never denormal. A NaN stays.
HWY_INLINE V drop_tiny(V s) {
  if (SLACKWATER_MUTANT(kda_keep_tiny)) return s;
  return hn::IfThenZeroElse(hn::Lt(hn::Abs(s), broadcast(0x1p-64f)), s);
}

// Where one step's columns come from and go to: `from` and `to` have 32 floats from one key to
// the next, and may be the same. Without `to` the state ends here.
struct ColumnPass {
  const float* v;
  const float* from;
  float* to;
  float* o;
  const float* next = nullptr;  // of the next tile: a bit is fetched with every two keys
  std::int64_t next_rate = 0;   // floats of it per key
};

// One prepared step through kColumnVectors vectors of columns; without an output where it is
// replayed.
template <bool kHasOutput>
HWY_INLINE void step_columns(const Step& step, std::int64_t dim, const ColumnPass& pass) {
  V p[2][kColumnVectors];
  V r[2][kColumnVectors];
  for (int chain = 0; chain < 2; ++chain) {
    for (int n = 0; n < kColumnVectors; ++n) p[chain][n] = r[chain][n] = broadcast(0.0f);
  }
  for (std::int64_t i = 0; i < dim; i += 2) {
    __builtin_prefetch(pass.next + i * pass.next_rate, 0, 2);
    for (int odd = 0; odd < 2; ++odd) {
      const int chain = SLACKWATER_MUTANT(kda_one_chain) ? 0 : odd;
      const V ai = broadcast(step.a[i + odd]);
      const V ki = broadcast(step.k[i + odd]);
      for (int n = 0; n < kColumnVectors; ++n) {
        const V s = hn::Mul(ai, load(pass.from + (i + odd) * kValueTile + n * kLanes));
        p[chain][n] = hn::MulAdd(ki, s, p[chain][n]);
        if constexpr (kHasOutput) {
          r[chain][n] = hn::MulAdd(broadcast(step.q[i + odd]), s, r[chain][n]);
        }
      }
    }
  }
  V u[kColumnVectors];
  for (int n = 0; n < kColumnVectors; ++n) {
    const V error = hn::Sub(load(pass.v + n * kLanes), hn::Add(p[0][n], p[1][n]));
    u[n] = hn::Mul(broadcast(step.beta), error);
    if constexpr (kHasOutput) {
      store(hn::MulAdd(broadcast(step.qk), u[n], hn::Add(r[0][n], r[1][n])), pass.o + n * kLanes);
    }
  }
  if (pass.to == nullptr) return;
  // The decayed state is computed again rather than stored in between: a product costs less
  // than a store and a load. Going on with the first pass of the next step while the state is in
  // registers gained nothing.
  for (std::int64_t i = 0; i < dim; ++i) {
    const V ai = broadcast(step.a[i]);
    const V ki = broadcast(step.k[i]);
    for (int n = 0; n < kColumnVectors; ++n) {
      const std::int64_t at = i * kValueTile + n * kLanes;
      store(drop_tiny(hn::MulAdd(ki, u[n], hn::Mul(ai, load(pass.from + at)))), pass.to + at);
    }
  }
}

// Steps [first, first + count) of a row, prepared.
struct StepRange {
  std::int64_t first;
  std::int64_t count;
  const Steps& steps;
};

// Floats of the page's next tile to fetch with each key of each of the two passes over a tile's
// columns, so that all of it is there when the steps on this one are done: little by little, for a
// processor waits for few lines at a time. All at the beginning of a step hid a third as much; a
// single step is over too soon; fetching the places of new records as well lost.
HWY_INLINE std::int64_t next_tile_rate(const HeadRow& head_row, std::int64_t tile,
                                       const StepRange& range) {
  if (range.first > 0 || range.count < 2 || !head_row.reads_page()) return 0;
  if (head_row.channel() + (tile + 1) * kValueTile == head_row.width()) return 0;
  constexpr std::int64_t kPasses = kValueTile / (kColumnVectors * kLanes);
  return ceil_div<std::int64_t>(kValueTile, kPasses * range.count);
}

HWY_INLINE void step_tile(const HeadRow& head_row, const Step& step, const ColumnPass& tile) {
  for (int column = 0; column < kValueTile; column += kColumnVectors * kLanes) {
    ColumnPass pass = {tile.v + column, tile.from + column, nullptr, nullptr};
    pass.next_rate = tile.next_rate;
    pass.next = tile.next + column / (kColumnVectors * kLanes) * head_row.dim() * tile.next_rate;
    if (tile.to != nullptr) pass.to = tile.to + column;
    if (step.q == nullptr) {
      step_columns<false>(step, head_row.dim(), pass);
    } else {
      pass.o = tile.o + column;
      step_columns<true>(step, head_row.dim(), pass);
    }
  }
}

// Runs prepared steps of the row through one state tile. `held` is where the tile's state lies: a
// page, zeros, or the scratch. Returns where it lies afterwards.
HWY_INLINE const float* run_tile(const HeadRow& head_row, std::int64_t tile, const StepRange& range,
                                 const float* held) {
  const SequenceRow& row = head_row.row;
  const std::int64_t dim = head_row.dim();
  const std::int64_t pending = head_row.pending();
  const std::size_t tile_bytes = static_cast<std::size_t>(dim * kValueTile) * sizeof(float);
  const auto steps_before = [pending](const StateWrite& write) { return pending + write.count; };
  auto write = std::ranges::lower_bound(row.writes, range.first == 0 ? 0 : range.first + 1, {},
                                        steps_before);
  const auto end = row.writes.end();
  for (; write != end && steps_before(*write) == 0; ++write) {
    float* page = head_row.state_tile(write->page, tile);
    if (page != held) std::memcpy(page, held, tile_bytes);
  }
  const std::int64_t rate = next_tile_rate(head_row, tile, range);
  const float* next = held + (rate > 0 ? dim * kValueTile : 0);
  for (std::int64_t slot = 0; slot < range.count; ++slot) {
    const Step& step = range.steps[static_cast<std::size_t>(slot)];
    const std::int64_t t = range.first + slot - pending;
    const std::int64_t done = range.first + slot + (SLACKWATER_MUTANT(kda_write_late) ? 0 : 1);
    // A step whose result is written goes straight to the page, and the next one reads it there.
    // Nobody reads the state after the last token, unless it is written.
    float* to =
        t + 1 == row.num_tokens ? nullptr : head_row.scratch.state + tile * dim * kValueTile;
    if (write != end && steps_before(*write) == done) {
      to = head_row.state_tile((write++)->page, tile);
    }
    float* o = step.q == nullptr
                   ? nullptr
                   : head_row.args.o + (row.first_token + t) * head_row.args.o_stride +
                         head_row.channel() + tile * kValueTile;
    ColumnPass columns = {step.v + tile * kValueTile, held, to, o};
    columns.next = next;
    columns.next_rate = rate;
    step_tile(head_row, step, columns);
    next += rate * dim * (kValueTile / (kColumnVectors * kLanes));
    held = to;
    for (; write != end && steps_before(*write) == done; ++write) {
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

// Copies what nobody reads before the next round: past the caches, where the places allow it. A
// round gains 5 to 9 % by not reading what it overwrites.
HWY_INLINE void put_away(const float* from, std::int64_t floats, float* to) {
  if (reinterpret_cast<std::uintptr_t>(to) % 64 != 0) {
    std::memcpy(to, from, static_cast<std::size_t>(floats) * sizeof(float));
    return;
  }
  for (std::int64_t i = 0; i < floats; i += kLanes) hn::Stream(load(from + i), D(), to + i);
}

// What the prepared tokens leave as records, but for their raw projections.
HWY_INLINE void save_records(const HeadRow& head_row, const StepRange& range) {
  const std::int64_t dim = head_row.dim();
  const std::int64_t pending = head_row.pending();
  const std::int64_t first = std::max(range.first, pending + head_row.first_recorded());
  for (std::int64_t index = first; index < range.first + range.count; ++index) {
    const std::int64_t slot = index - range.first;
    const Step& step = range.steps[static_cast<std::size_t>(slot)];
    const std::int64_t r = head_row.record_of(index - pending);
    const float* g = head_row.scratch.g + slot * dim;
    if (SLACKWATER_MUTANT(kda_records_keep_decay)) g = step.a;
    put_away(step.q, dim, head_row.record_q(r));
    put_away(step.k, dim, head_row.record_k(r));
    put_away(g, dim, head_row.record_g(r));
    put_away(step.v, dim, head_row.record_v(r));
    *head_row.record_beta(r) = step.beta;
  }
}

// The raw projections of the records, and the copy of a window that was written.
HWY_INLINE void save_raw(const HeadRow& head_row) {
  const SequenceRow& row = head_row.row;
  const std::int64_t dim = head_row.dim();
  for (int section = 0; section < 3; ++section) {
    for (std::int64_t r = 0; r < kWindowRows && !row.writes.empty(); ++r) {
      put_away(head_row.window_row(row.state_page, section, r), dim, head_row.conv_row(section, r));
    }
    for (std::int64_t t = head_row.first_recorded(); t < row.num_tokens; ++t) {
      put_away(head_row.raw(section, t), dim,
               head_row.conv_row(section, kWindowRows + head_row.record_of(t)));
    }
  }
}

// Prepares steps [first, first + count) of the row.
HWY_INLINE void prepare(const HeadRow& head_row, std::int64_t first, std::int64_t count,
                        Steps& steps) {
  const std::int64_t pending = head_row.pending();
  for (std::int64_t slot = 0; slot < count; ++slot) {
    const std::int64_t t = first + slot - pending;
    steps[static_cast<std::size_t>(slot)] =
        t < 0 ? prepare_record(head_row, first + slot, slot) : prepare_token(head_row, t, slot);
  }
}

void run_head(const KdaStepArgs& args, const SequenceRow& row, std::int64_t head,
              const KdaScratch& scratch) {
  const HeadRow head_row{args, row, head, scratch};
  const std::int64_t num_tiles = head_row.dim() / kValueTile;
  const std::int64_t num_steps = head_row.pending() + row.num_tokens;
  std::array<const float*, kMaxKdaHeadDim / kValueTile> held;
  for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
    held[static_cast<std::size_t>(tile)] =
        head_row.reads_page() ? head_row.state_tile(row.state_page, tile) : scratch.zero_tile;
  }
  Steps steps;
  std::int64_t first = 0;
  do {
    const std::int64_t count = std::min<std::int64_t>(kPreparedTokens, num_steps - first);
    prepare(head_row, first, count, steps);
    const StepRange range = {first, count, steps};
    for (std::int64_t tile = 0; tile < num_tiles; ++tile) {
      const float*& state = held[static_cast<std::size_t>(tile)];
      state = run_tile(head_row, tile, range, state);
      if (SLACKWATER_MUTANT(kda_records_in_place)) save_records(head_row, range);
    }
    // Not before: all tiles of a head read the keys of the records that are replaced.
    save_records(head_row, range);
    first += count;
  } while (first < num_steps);
  // Last, because every token's convolution may read the window of the row's own page, or the
  // raw projections of its records.
  for (const StateWrite& write : row.writes) {
    if (SLACKWATER_MUTANT(kda_commit_leaves_window) && row.num_tokens == 0) continue;
    write_window(head_row, write);
  }
  if (args.records.max_records > 0) save_raw(head_row);
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
    hwy::FlushStream();
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
