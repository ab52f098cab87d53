#include "kernels/matmul/matmul_simd.h"

#include "kernels/reference/reference.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/matmul/matmul_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

// Rows of x that share one widening of the weights, and panels that one pass keeps in flight.
// The accumulators, the weights of one k and one broadcast fit the register file: 16 vectors on
// AVX2, 32 elsewhere. One row alone is bound by reading weights: four streams saturate it.
inline constexpr int kMaxRows = HWY_TARGET == HWY_NEON ? 4 : 6;
inline constexpr int kPanelsOfOneRow = 4;
inline constexpr int kPanelsOfRows = HWY_TARGET == HWY_AVX3 ? 4 : 1;

// The rows of one register block.
struct RowBlock {
  const float* x[kMaxRows];
  float* y[kMaxRows];
};

// Writes one vector of finished sums; columns past N are dropped.
HWY_INLINE void finish(V sum, Epilogue epilogue, std::int64_t columns, float* y) {
  if (columns >= kLanes || SLACKWATER_MUTANT(matmul_writes_past_n)) {
    store(epilogue == Epilogue::kAdd ? hn::Add(load(y), sum) : sum, y);
    return;
  }
  alignas(64) float lanes[16];
  store(sum, lanes);
  for (std::int64_t i = 0; i < columns; ++i) {
    y[i] = epilogue == Epilogue::kAdd ? y[i] + lanes[i] : lanes[i];
  }
}

// acc += w * x for the terms k in `terms`, each output with one accumulator.
template <class Weight, int kRows, int kPanels>
HWY_INLINE void accumulate(const Weight* weights, std::int64_t num_inputs, ItemRange terms,
                           const RowBlock& block, V (&acc)[kRows][kPanels * kSixteen]) {
  for (std::int64_t k = terms.begin; k < terms.end; ++k) {
    V w[kPanels * kSixteen];
    for (int p = 0; p < kPanels; ++p) {
      const Weight* column = weights + (p * num_inputs + k) * kPanelColumns;
      for (int v = 0; v < kSixteen; ++v) w[p * kSixteen + v] = load(column + v * kLanes);
    }
    for (int r = 0; r < kRows; ++r) {
      const V x = broadcast(block.x[r][k]);
      for (int v = 0; v < kPanels * kSixteen; ++v) {
        acc[r][v] = SLACKWATER_MUTANT(matmul_unfused) ? hn::Add(hn::Mul(w[v], x), acc[r][v])
                                                      : hn::MulAdd(w[v], x, acc[r][v]);
      }
    }
  }
}

// kRows rows times kPanels panels, starting at panel `panel`.
template <class Weight, int kRows, int kPanels>
HWY_INLINE void multiply_block(const MatmulArgs& job, std::int64_t panel, const RowBlock& block) {
  constexpr int kVectors = kPanels * kSixteen;
  const std::int64_t num_inputs = job.weights.num_inputs;
  const Weight* weights =
      reinterpret_cast<const Weight*>(job.weights.panels) + panel * num_inputs * kPanelColumns;
  V acc[kRows][kVectors];
  for (auto& row : acc) {
    for (V& sum : row) sum = broadcast(0.0f);
  }
  const std::int64_t half =
      SLACKWATER_MUTANT(matmul_second_accumulator) ? num_inputs / 2 : num_inputs;
  accumulate<Weight, kRows, kPanels>(weights, num_inputs, {0, half}, block, acc);
  if (half < num_inputs) {
    V second[kRows][kVectors];
    for (auto& row : second) {
      for (V& sum : row) sum = broadcast(0.0f);
    }
    accumulate<Weight, kRows, kPanels>(weights, num_inputs, {half, num_inputs}, block, second);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Add(acc[r][v], second[r][v]);
    }
  }
  for (int r = 0; r < kRows; ++r) {
    for (int v = 0; v < kVectors; ++v) {
      const std::int64_t column = panel * kPanelColumns + v * kLanes;
      finish(acc[r][v], job.epilogue, job.weights.num_outputs - column, block.y[r] + column);
    }
  }
}

// All panels of `panels` for one block of rows: wide passes first, then panel by panel.
template <class Weight, int kRows>
HWY_INLINE void multiply_rows(const MatmulArgs& job, ItemRange panels, const RowBlock& block) {
  constexpr int kWide = kRows == 1 ? kPanelsOfOneRow : kPanelsOfRows;
  std::int64_t panel = panels.begin;
  for (; panel + kWide <= panels.end; panel += kWide) {
    multiply_block<Weight, kRows, kWide>(job, panel, block);
  }
  for (; panel < panels.end; ++panel) multiply_block<Weight, kRows, 1>(job, panel, block);
}

template <class Weight>
HWY_INLINE void multiply_rows(const MatmulArgs& job, ItemRange panels, const RowBlock& block,
                              std::int64_t rows) {
  switch (rows) {
    case 1: return multiply_rows<Weight, 1>(job, panels, block);
    case 2: return multiply_rows<Weight, 2>(job, panels, block);
    case 3: return multiply_rows<Weight, 3>(job, panels, block);
    case 4: return multiply_rows<Weight, 4>(job, panels, block);
#if HWY_TARGET != HWY_NEON
    case 5: return multiply_rows<Weight, 5>(job, panels, block);
    case 6: return multiply_rows<Weight, 6>(job, panels, block);
#endif
  }
}

// Panels whose weights stay in the L2 cache while all rows pass over them.
std::int64_t panels_per_pass(const PackedWeights& weights) {
  const std::int64_t panel_bytes =
      std::int64_t{weights.num_inputs} * kPanelColumns * dtype_bytes(weights.dtype);
  constexpr std::int64_t kPassBytes = 128 << 10;
  return std::max<std::int64_t>(kPanelsOfOneRow, kPassBytes / panel_bytes);
}

template <class Weight>
void multiply(const MatmulArgs& job, ItemRange panels) {
  const std::int64_t step = panels_per_pass(job.weights);
  for (std::int64_t first = panels.begin; first < panels.end; first += step) {
    const ItemRange pass{first, std::min(panels.end, first + step)};
    for (std::int64_t row = 0; row < job.rows; row += kMaxRows) {
      const std::int64_t rows = std::min<std::int64_t>(kMaxRows, job.rows - row);
      RowBlock block;
      for (std::int64_t r = 0; r < rows; ++r) {
        const std::int64_t source = job.x_rows != nullptr ? job.x_rows[row + r] : row + r;
        block.x[r] = job.x + source * job.x_stride;
        block.y[r] = job.y + (row + r) * job.y_stride;
      }
      multiply_rows<Weight>(job, pass, block, rows);
    }
  }
}

}  // namespace

// Multiply-adds below which a parallel region costs more than it saves.
inline constexpr std::int64_t kInlineWork = 16 << 10;

void matmul(ExecutionContext& context, std::span<const MatmulArgs> jobs) {
  std::int64_t work = 0;
  for (const MatmulArgs& job : jobs) {
    work += std::int64_t{job.rows} * job.weights.num_outputs * job.weights.num_inputs;
  }
  // Every worker takes its share of the columns of every job, so that one large and one small
  // job are as balanced as two equal ones.
  const int shares = work < kInlineWork ? 1 : context.num_threads();
  context.parallel_for(shares, 1, [&](ItemRange share, int) {
    for (const MatmulArgs& job : jobs) {
      const std::int64_t panels = job.weights.num_panels();
      ItemRange range{split_items(panels, static_cast<int>(share.begin), shares).begin,
                      split_items(panels, static_cast<int>(share.end) - 1, shares).end};
      if (SLACKWATER_MUTANT(matmul_share_loses_panel) && range.end < panels) --range.end;
      if (job.weights.dtype == DType::kF32) {
        multiply<float>(job, range);
      } else {
        multiply<Bf16>(job, range);
      }
    }
  });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

MatmulFunction* matmul_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, matmul); }

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
