#ifndef SLACKWATER_KERNELS_MATMUL_H_
#define SLACKWATER_KERNELS_MATMUL_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/dtype.h"
#include "slackwater/kernels/execution_context.h"

namespace slackwater::kernels {

// Output columns of one panel: one AVX-512 vector, two AVX2 vectors, four NEON vectors.
inline constexpr std::int32_t kPanelColumns = 16;

// Weights laid out for matmul: panels of 16 output columns, [ceil(N / 16)][K][16]. Columns past
// N are zero. bf16, or f32 where the checkpoint's values are not exact in bf16.
struct PackedWeights {
  const std::byte* panels = nullptr;  // 64-byte aligned
  DType dtype = DType::kBf16;         // kBf16 or kF32
  std::int32_t num_outputs = 0;       // N
  std::int32_t num_inputs = 0;        // K

  std::int32_t num_panels() const { return (num_outputs + kPanelColumns - 1) / kPanelColumns; }
};

// Bytes that packed weights of this shape take.
std::size_t packed_bytes(std::int64_t num_outputs, std::int64_t num_inputs, DType dtype);

// One block of weights to be packed: `rows` output columns of a packed matrix, from a tensor.
struct PackArgs {
  const std::byte* source = nullptr;  // any alignment
  DType source_dtype = DType::kBf16;  // kBf16, kF16 or kF32
  std::int64_t row_stride = 0;        // elements from one output to the next
  std::int64_t input_stride = 1;      // elements from one input to the next
  std::int32_t first_output = 0;      // columns [first_output, first_output + rows) are written
  std::int32_t rows = 0;
  std::int32_t num_inputs = 0;  // K
  DType dtype = DType::kBf16;   // of the panels: kBf16 (from kBf16 only) or kF32
  std::byte* panels = nullptr;  // the packed matrix, from its first column
};

// Copies weights into panels. Every conversion is exact.
void pack_weights(const PackArgs& args);

// What becomes of a product once its last term is added.
enum class Epilogue {
  kStore,  // y = x W^T
  kAdd,    // y = y + x W^T: the residual comes after the whole sum
};

// One product y[r, n] = sum over k of w[n, k] * x[r, k].
struct MatmulArgs {
  PackedWeights weights;                 // [N, K]
  const float* x = nullptr;              // [*, K] f32
  std::int64_t x_stride = 0;             // floats from one row of x to the next
  const std::int32_t* x_rows = nullptr;  // [rows]: row r reads row x_rows[r] of x; null: row r
  float* y = nullptr;                    // [rows, N] f32
  std::int64_t y_stride = 0;             // floats from one row of y to the next
  std::int32_t rows = 0;
  Epilogue epilogue = Epilogue::kStore;
};

// Runs independent products side by side: no job may read what another writes.
//
// Source: docs/numerics.md "Products": output columns in lanes, k ascending, one accumulator per
// output from +0, acc = fma(w, x, acc). So a row's result does not depend on the other rows, on
// the threads or on the jobs beside it.
// Threads: each job's output columns are split over the workers.
void matmul(ExecutionContext& context, std::span<const MatmulArgs> jobs);

inline void matmul(ExecutionContext& context, const MatmulArgs& job) {
  matmul(context, std::span<const MatmulArgs>(&job, 1));
}

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_MATMUL_H_
