#ifndef SLACKWATER_HYBRID_KDA_SHAPE_H_
#define SLACKWATER_HYBRID_KDA_SHAPE_H_

#include <cstdint>

#include "slackwater/base/dtype.h"
#include "slackwater/base/numeric.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::hybrid {

// How the three sections of a convolution window lie.
enum class ConvLayout : std::uint8_t {
  kQThenKThenV,  // three equal sections, one after another: what kda_step reads
  kInterleaved,  // q, k and v of a channel side by side
};

// Shapes of a Kimi Delta Attention layer on this rank, and the bytes that follow from them.
//
// Source: Kimi Linear, arXiv 2510.26692; the byte formulas are those of kda_replay.md 7.
struct KdaShape {
  std::int32_t num_heads = 0;   // H, on this rank
  std::int32_t head_dim = 128;  // K = V
  std::int32_t conv_taps = kernels::kConvTaps;
  // Of the window in the page. kF32 is what the CPU kernels take; kBf16 is the upstream layout,
  // whose bytes can be kept and moved.
  DType conv_dtype = DType::kF32;
  ConvLayout conv_layout = ConvLayout::kQThenKThenV;

  std::int64_t width() const { return std::int64_t{num_heads} * head_dim; }  // D
  std::int32_t window_rows() const { return conv_taps - 1; }                 // W - 1
  // Beta rows of the records are padded to 16 bytes.
  std::int64_t beta_width() const { return round_up<std::int64_t>(num_heads, 4); }

  // Of one slot and layer, in the page.
  std::int64_t state_bytes() const { return width() * head_dim * 4; }
  std::int64_t window_bytes() const {
    return 3 * width() * window_rows() * dtype_bytes(conv_dtype);
  }

  // Of one slot and layer with `num_records` records M, f32: conv columns of one section
  // [W-1+M, D], the pairs and decays [M, 3, D], the values [M, D], the betas [M, ceil4(H)].
  std::int64_t conv_record_bytes(std::int64_t num_records) const {
    return (window_rows() + num_records) * width() * 4;
  }
  std::int64_t qkg_record_bytes(std::int64_t num_records) const {
    return num_records * 3 * width() * 4;
  }
  std::int64_t v_record_bytes(std::int64_t num_records) const { return num_records * width() * 4; }
  std::int64_t beta_record_bytes(std::int64_t num_records) const {
    return num_records * beta_width() * 4;
  }
  std::int64_t record_bytes(std::int64_t num_records) const {
    return 3 * conv_record_bytes(num_records) + qkg_record_bytes(num_records) +
           v_record_bytes(num_records) + beta_record_bytes(num_records);
  }

  friend bool operator==(const KdaShape&, const KdaShape&) = default;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_KDA_SHAPE_H_
