#include "kernels/mla/mla_simd.h"

#include <algorithm>
#include <cmath>

#include "kernels/latent_rows.h"
#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/mla/mla_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// One worker's scratch: the running softmax of the heads of one token, and a widened tile.
struct AttentionScratch {
  float *m, *l;    // [heads]
  float* acc;      // [heads, acc_stride]
  float* widened;  // [kKeyTile, row_stride], for bf16 rows
  std::int64_t acc_stride, row_stride;
};

AttentionScratch carve(std::span<std::byte> bytes, const MlaAttentionArgs& args) {
  AttentionScratch scratch;
  scratch.acc_stride = round_up(args.rank, 16);
  scratch.row_stride = round_up(args.pages.width, 16);
  scratch.acc = reinterpret_cast<float*>(bytes.data());
  scratch.widened = scratch.acc + args.heads * scratch.acc_stride;
  scratch.m = scratch.widened + kKeyTile * scratch.row_stride;
  scratch.l = scratch.m + args.heads;
  return scratch;
}

// Positions [first + begin, first + keys) of a tile of key positions.
struct TileRange {
  std::int64_t first;
  int begin, keys;
  bool is_first;  // of the tiles that hold a key
};

// The rows of one tile; those before `begin` and past `keys` are not there.
struct KeyTile {
  const float* row[kKeyTile];
  int begin, keys;
  bool is_first;
};

// Finds (and widens, where they are bf16) the rows of a tile.
HWY_INLINE KeyTile read_tile(const LatentPages& pages, BlockTable block_table,
                             const TileRange& range, const AttentionScratch& scratch) {
  KeyTile tile;
  tile.begin = range.begin;
  tile.keys = range.keys;
  tile.is_first = range.is_first;
  const std::int64_t first = range.first;
  for (int j = tile.begin; j < tile.keys; ++j) {
    const std::byte* bytes = latent_row(pages, block_table, first + j);
    if (pages.dtype == DType::kF32) {
      tile.row[j] = reinterpret_cast<const float*>(bytes);
      continue;
    }
    float* widened = scratch.widened + j * scratch.row_stride;
    const Bf16* values = reinterpret_cast<const Bf16*>(bytes);
    std::transform(values, values + pages.width, widened, bf16_to_f32);
    tile.row[j] = widened;
  }
  return tile;
}

// Sums of q * row for kRows rows side by side, so that loads of q are shared.
template <int kRows>
HWY_INLINE void dot_rows(const float* q, const float* const* rows, std::int64_t width, float scale,
                         float* score) {
  Partials partials[kRows];
  for (Partials& p : partials) p = zero_partials();
  std::int64_t i = 0;
  for (; i + 16 <= width; i += 16) {
    for (int r = 0; r < kRows; ++r) add_products(q + i, rows[r] + i, partials[r]);
  }
  if (i < width) {
    alignas(64) float a[16];
    alignas(64) float b[16];
    pad_sixteen(q + i, width - i, a);
    for (int r = 0; r < kRows; ++r) {
      pad_sixteen(rows[r] + i, width - i, b);
      add_products(a, b, partials[r]);
    }
  }
  for (int r = 0; r < kRows; ++r) score[r] = reduce(partials[r]) * scale;
}

// acc = acc * corr (in the first tile +0), then acc += p_j * latent_j with j ascending.
HWY_INLINE void add_values(const KeyTile& tile, const float* p, float corr, std::int64_t rank,
                           float* acc) {
  // Columns that stay in registers while the keys pass; past `rank` lie values nobody reads.
  constexpr int kColumnVectors = 4;
  std::int64_t i = 0;
  for (; i + kColumnVectors * kLanes <= rank; i += kColumnVectors * kLanes) {
    V sum[kColumnVectors];
    for (int n = 0; n < kColumnVectors; ++n) {
      sum[n] =
          tile.is_first ? broadcast(0.0f) : hn::Mul(load(acc + i + n * kLanes), broadcast(corr));
    }
    for (int j = tile.begin; j < tile.keys; ++j) {
      const V pj = broadcast(p[j]);
      for (int n = 0; n < kColumnVectors; ++n) {
        sum[n] = hn::MulAdd(pj, load(tile.row[j] + i + n * kLanes), sum[n]);
      }
    }
    for (int n = 0; n < kColumnVectors; ++n) store(sum[n], acc + i + n * kLanes);
  }
  for (; i < rank; i += kLanes) {
    const std::int64_t columns = std::min<std::int64_t>(kLanes, rank - i);
    V sum = tile.is_first ? broadcast(0.0f) : hn::Mul(load(acc + i), broadcast(corr));
    alignas(64) float padded[16];
    for (int j = tile.begin; j < tile.keys; ++j) {
      pad_sixteen(tile.row[j] + i, columns, padded);
      sum = hn::MulAdd(broadcast(p[j]), load(padded), sum);
    }
    store(sum, acc + i);
  }
}

// One tile of keys for one head: scores, running maximum and sum, values.
HWY_INLINE void attend_tile(const MlaAttentionArgs& args, const KeyTile& tile, const float* q,
                            std::int64_t head, const AttentionScratch& scratch) {
  alignas(64) float p[kKeyTile] = {};
  int j = tile.begin;
  for (; j + 4 <= tile.keys; j += 4) {
    dot_rows<4>(q, tile.row + j, args.pages.width, args.scale, p + j);
  }
  for (; j < tile.keys; ++j) dot_rows<1>(q, tile.row + j, args.pages.width, args.scale, p + j);

  float tile_max = p[tile.begin];
  for (j = tile.begin + 1; j < tile.keys; ++j) tile_max = tile_max < p[j] ? p[j] : tile_max;
  float& m = scratch.m[head];
  float& l = scratch.l[head];
  const float m_new = tile.is_first || m < tile_max ? tile_max : m;
  for (j = 0; j < kKeyTile; j += kLanes) {
    store(exp<Ops>(hn::Sub(load(p + j), broadcast(m_new))), p + j);
  }
  std::fill(p, p + tile.begin, 0.0f);
  std::fill(p + tile.keys, p + kKeyTile, 0.0f);
  alignas(64) float ones[16];
  std::fill(ones, ones + 16, 1.0f);
  Partials partials = zero_partials();
  for (j = 0; j < kKeyTile; j += 16) add_products(p + j, ones, partials);
  const float tile_sum = reduce(partials);

  const float corr = tile.is_first ? 0.0f : hn::GetLane(exp<Ops>(broadcast(m - m_new)));
  l = tile.is_first ? tile_sum
                    : hn::GetLane(hn::MulAdd(broadcast(l), broadcast(corr), broadcast(tile_sum)));
  m = m_new;
  add_values(tile, p, corr, args.rank, scratch.acc + head * scratch.acc_stride);
}

// Heads [heads.begin, heads.end) of token `t` of a row.
HWY_INLINE void attend(const MlaAttentionArgs& args, const SequenceRow& row, std::int64_t t,
                       ItemRange heads, const AttentionScratch& scratch) {
  const std::int64_t token = row.first_token + t;
  const std::int64_t position = row.first_position + t;
  const std::int64_t num_keys =
      SLACKWATER_MUTANT(mla_skips_own_key) && position > 0 ? position : position + 1;
  // Tiles are anchored at position 0 and 32 wide for every page size.
  const int tile_keys = SLACKWATER_MUTANT(mla_tile_is_page)
                            ? std::min(kKeyTile, args.pages.tokens_per_block)
                            : kKeyTile;
  const SequenceRow& owner = SLACKWATER_MUTANT(mla_keys_of_first_row) ? args.rows[0] : row;
  const std::int64_t first_key = SLACKWATER_MUTANT(mla_first_key_ignored) ? 0 : args.first_key;
  const std::int64_t first_tile = first_key / tile_keys * tile_keys;
  for (std::int64_t first = first_tile; first < num_keys; first += tile_keys) {
    TileRange range = {.first = first, .begin = 0, .keys = tile_keys, .is_first = false};
    range.begin = static_cast<int>(std::max<std::int64_t>(first_key - first, 0));
    range.keys = static_cast<int>(std::min<std::int64_t>(tile_keys, num_keys - first));
    range.is_first = first == first_tile;
    const KeyTile tile = read_tile(args.pages, owner.block_table, range, scratch);
    for (std::int64_t head = heads.begin; head < heads.end; ++head) {
      const float* q = args.q + token * args.q_stride + head * args.pages.width;
      attend_tile(args, tile, q, head, scratch);
    }
  }
  for (std::int64_t head = heads.begin; head < heads.end; ++head) {
    const float* acc = scratch.acc + head * scratch.acc_stride;
    const V l = broadcast(scratch.l[head]);
    map(acc, acc, args.latent + token * args.latent_stride + head * args.rank, args.rank,
        [&](V value, V) HWY_ATTR { return hn::Div(value, l); });
  }
}

// Writes the latent row of one token.
HWY_INLINE void write_row(const MlaWriteArgs& args, const float* kv, std::byte* bytes, float* row) {
  const float mean = sum_of_products(kv, kv, args.rank) / static_cast<float>(args.rank);
  const V inv = broadcast(1.0f / std::sqrt(mean + args.eps));
  float* out = args.pages.dtype == DType::kF32 ? reinterpret_cast<float*>(bytes) : row;
  map(kv, args.norm_weight, out, args.rank,
      [&](V value, V weight) HWY_ATTR { return hn::Mul(hn::Mul(value, inv), weight); });
  std::copy(kv + args.rank, kv + args.pages.width, out + args.rank);
  if (args.pages.dtype == DType::kBf16) {
    std::transform(row, row + args.pages.width, reinterpret_cast<Bf16*>(bytes), f32_to_bf16);
  }
}

}  // namespace

void mla_write(ExecutionContext& context, const MlaWriteArgs& args) {
  // Copying rows is cheap; the workers would only wait for each other.
  float* row_scratch = reinterpret_cast<float*>(context.scratch(0).data());
  for (const SequenceRow& row : args.rows) {
    for (std::int32_t t = 0; t < row.num_tokens; ++t) {
      write_row(args, args.kv + std::int64_t{row.first_token + t} * args.kv_stride,
                latent_row(args.pages, row.block_table, row.first_position + t), row_scratch);
    }
  }
}

void mla_attention(ExecutionContext& context, const MlaAttentionArgs& args) {
  std::int64_t num_tokens = 0;
  for (const SequenceRow& row : args.rows) num_tokens += row.num_tokens;
  // Few tokens are split by heads; many by tokens, so that a tile of rows serves all heads.
  const int workers = context.num_threads();
  const std::int64_t splits =
      num_tokens >= 2 * workers ? 1 : std::min<std::int64_t>(workers, args.heads);
  context.parallel_for(workers, 1, [&](ItemRange range, int worker) HWY_ATTR {
    const AttentionScratch scratch = carve(context.scratch(worker), args);
    std::int64_t item = 0;
    for (const SequenceRow& row : args.rows) {
      for (std::int32_t t = 0; t < row.num_tokens; ++t) {
        for (std::int64_t split = 0; split < splits; ++split, ++item) {
          // Round robin: later tokens have more keys, so neighbours go to different workers.
          const std::int64_t owner = item % workers;
          if (owner < range.begin || owner >= range.end) continue;
          const ItemRange heads =
              split_items(args.heads, static_cast<int>(split), static_cast<int>(splits));
          attend(args, row, t, heads, scratch);
        }
      }
    }
  });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

MlaWriteFunction* mla_write_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, mla_write);
}

MlaAttentionFunction* mla_attention_simd(Target target) {
  return SLACKWATER_SIMD_FUNCTION(target, mla_attention);
}

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
