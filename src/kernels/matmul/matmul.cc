#include "slackwater/kernels/matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/matmul/matmul_simd.h"
#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater::kernels {
namespace {

void check_shapes(const MatmulArgs& job) {
  const PackedWeights& weights = job.weights;
  SLACKWATER_CHECK(weights.dtype == DType::kBf16 || weights.dtype == DType::kF32,
                   "weights are {}; packed weights are BF16 or F32", to_string(weights.dtype));
  SLACKWATER_CHECK(weights.num_outputs > 0 && weights.num_inputs > 0, "weights [{}, {}]",
                   weights.num_outputs, weights.num_inputs);
  SLACKWATER_CHECK(job.rows >= 0, "{} rows", job.rows);
  SLACKWATER_CHECK(job.rows <= 1 || job.y_stride >= weights.num_outputs,
                   "y_stride {} is less than {} outputs", job.y_stride, weights.num_outputs);
  const bool has_one_row = job.rows <= 1 && job.x_rows == nullptr;
  SLACKWATER_CHECK(has_one_row || job.x_stride >= weights.num_inputs,
                   "x_stride {} is less than {} inputs", job.x_stride, weights.num_inputs);
}

// Reads the value at `source`, widened exactly, as an element of the panels.
template <class Weight>
Weight read_weight(const std::byte* source, DType dtype) {
  std::uint16_t bits = 0;
  if constexpr (sizeof(Weight) == sizeof bits) {
    std::memcpy(&bits, source, sizeof bits);
    return Weight{bits};
  } else {
    float value = 0;
    if (dtype == DType::kF32) {
      std::memcpy(&value, source, sizeof value);
      return value;
    }
    std::memcpy(&bits, source, sizeof bits);
    return dtype == DType::kBf16 ? bf16_to_f32(Bf16{bits}) : f16_to_f32(bits);
  }
}

// The rows of one panel, input by input, so that the panel is written front to back.
template <class Weight>
void pack_panel(const PackArgs& args, std::int64_t first_row, std::int64_t end_row) {
  const std::int64_t bytes = dtype_bytes(args.source_dtype);
  const std::int64_t output = args.first_output + first_row;
  Weight* panel = reinterpret_cast<Weight*>(args.panels) +
                  output / kPanelColumns * args.num_inputs * kPanelColumns + output % kPanelColumns;
  for (std::int64_t k = 0; k < args.num_inputs; ++k) {
    const std::byte* source =
        args.source + (first_row * args.row_stride + k * args.input_stride) * bytes;
    for (std::int64_t row = first_row; row < end_row; ++row) {
      panel[k * kPanelColumns + row - first_row] = read_weight<Weight>(
          source + (row - first_row) * args.row_stride * bytes, args.source_dtype);
    }
  }
}

}  // namespace

std::size_t packed_bytes(std::int64_t num_outputs, std::int64_t num_inputs, DType dtype) {
  return static_cast<std::size_t>(round_up<std::int64_t>(num_outputs, kPanelColumns) * num_inputs *
                                  dtype_bytes(dtype));
}

void pack_weights(const PackArgs& args) {
  SLACKWATER_CHECK(args.source_dtype == DType::kBf16 || args.source_dtype == DType::kF16 ||
                       args.source_dtype == DType::kF32,
                   "packing {}; weights are BF16, F16 or F32", to_string(args.source_dtype));
  SLACKWATER_CHECK(args.rows >= 0 && args.first_output >= 0 && args.num_inputs > 0,
                   "packing {} rows of {} from output {}", args.rows, args.num_inputs,
                   args.first_output);
  SLACKWATER_CHECK(
      args.dtype == DType::kF32 || (args.dtype == DType::kBf16 && args.source_dtype == args.dtype),
      "packing {} as {} is not exact", to_string(args.source_dtype), to_string(args.dtype));
  for (std::int64_t row = 0; row < args.rows;) {
    const std::int64_t in_panel = (args.first_output + row) % kPanelColumns;
    const std::int64_t end = std::min<std::int64_t>(args.rows, row + kPanelColumns - in_panel);
    if (args.dtype == DType::kBf16) {
      pack_panel<Bf16>(args, row, end);
    } else {
      pack_panel<float>(args, row, end);
    }
    row = end;
  }
}

void matmul(ExecutionContext& context, std::span<const MatmulArgs> jobs) {
  for (const MatmulArgs& job : jobs) check_shapes(job);
  const FpModeGuard fp_mode;
  const Target target = context.target();
  choose_kernel(target, reference::matmul, matmul_simd(target))(context, jobs);
}

}  // namespace slackwater::kernels
