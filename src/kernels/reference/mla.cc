#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/latent_rows.h"
#include "kernels/reference/reference.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::reference {
namespace {

using scalar::FloatOps;

std::vector<float> read_row(const LatentPages& pages, const SequenceRow& row,
                            std::int64_t position) {
  std::vector<float> values(static_cast<std::size_t>(pages.width));
  const std::byte* bytes = latent_row(pages, row.block_table, position);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = pages.dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes)[i]
                                           : bf16_to_f32(reinterpret_cast<const Bf16*>(bytes)[i]);
  }
  return values;
}

void attend(const MlaAttentionArgs& args, const SequenceRow& row, std::int64_t position,
            const float* q, float* latent) {
  const std::int64_t num_keys = position + 1;
  const std::size_t rank = static_cast<std::size_t>(args.rank);
  float m = 0.0f;
  float l = 0.0f;
  std::vector<float> acc(rank, 0.0f);
  const std::int64_t first_tile = args.first_key / kKeyTile * kKeyTile;
  for (std::int64_t first = first_tile; first < num_keys; first += kKeyTile) {
    const std::int64_t begin = std::max<std::int64_t>(args.first_key - first, 0);
    const std::int64_t keys = std::min<std::int64_t>(kKeyTile, num_keys - first);
    std::array<std::vector<float>, kKeyTile> rows;
    std::array<float, kKeyTile> p = {};  // before `begin` and past `keys` they stay +0
    float tile_max = 0.0f;
    for (std::int64_t j = begin; j < keys; ++j) {
      std::vector<float>& key = rows[static_cast<std::size_t>(j)];
      key = read_row(args.pages, row, first + j);
      const float score = sum_of_products(q, key.data(), args.pages.width) * args.scale;
      p[static_cast<std::size_t>(j)] = score;
      if (j == begin || tile_max < score) tile_max = score;
    }
    const float m_new = first == first_tile || m < tile_max ? tile_max : m;
    for (std::int64_t j = begin; j < keys; ++j) {
      float& weight = p[static_cast<std::size_t>(j)];
      weight = scalar::exp<FloatOps>(weight - m_new);
    }
    const std::array<float, kKeyTile> ones = [] {
      std::array<float, kKeyTile> filled;
      filled.fill(1.0f);
      return filled;
    }();
    const float tile_sum = sum_of_products(p.data(), ones.data(), kKeyTile);
    if (first == first_tile) {
      l = tile_sum;
    } else {
      const float corr = scalar::exp<FloatOps>(m - m_new);
      l = std::fma(l, corr, tile_sum);
      for (float& value : acc) value = value * corr;
    }
    m = m_new;
    for (std::int64_t j = begin; j < keys; ++j) {
      const std::size_t key = static_cast<std::size_t>(j);
      for (std::size_t i = 0; i < rank; ++i) acc[i] = std::fma(p[key], rows[key][i], acc[i]);
    }
  }
  for (std::size_t i = 0; i < rank; ++i) latent[i] = acc[i] / l;
}

}  // namespace

void mla_write(ExecutionContext&, const MlaWriteArgs& args) {
  for (const SequenceRow& row : args.rows) {
    for (std::int32_t t = 0; t < row.num_tokens; ++t) {
      const float* kv = args.kv + std::int64_t{row.first_token + t} * args.kv_stride;
      std::byte* bytes = latent_row(args.pages, row.block_table, row.first_position + t);
      const float mean = sum_of_products(kv, kv, args.rank) / static_cast<float>(args.rank);
      const float inv = 1.0f / std::sqrt(mean + args.eps);
      for (std::int32_t i = 0; i < args.pages.width; ++i) {
        const float value = i < args.rank ? (kv[i] * inv) * args.norm_weight[i] : kv[i];
        if (args.pages.dtype == DType::kF32) {
          reinterpret_cast<float*>(bytes)[i] = value;
        } else {
          reinterpret_cast<Bf16*>(bytes)[i] = f32_to_bf16(value);
        }
      }
    }
  }
}

void mla_attention(ExecutionContext&, const MlaAttentionArgs& args) {
  for (const SequenceRow& row : args.rows) {
    for (std::int32_t t = 0; t < row.num_tokens; ++t) {
      const std::int64_t token = row.first_token + t;
      for (std::int32_t head = 0; head < args.heads; ++head) {
        attend(args, row, row.first_position + t,
               args.q + token * args.q_stride + std::int64_t{head} * args.pages.width,
               args.latent + token * args.latent_stride + std::int64_t{head} * args.rank);
      }
    }
  }
}

}  // namespace slackwater::kernels::reference
