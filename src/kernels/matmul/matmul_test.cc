#include "slackwater/kernels/matmul.h"

#include <cmath>

#include "kernels/test_support.h"

namespace slackwater::kernels::test {
namespace {

// Packs row-major rows after `first_output`.
template <class T>
void pack(DType source_dtype, const PaddedRows<T>& source, std::int32_t first_output, DType dtype,
          std::byte* panels) {
  pack_weights({.source = reinterpret_cast<const std::byte*>(source.data()),
                .source_dtype = source_dtype,
                .row_stride = source.stride(),
                .first_output = first_output,
                .rows = static_cast<std::int32_t>(source.rows()),
                .num_inputs = static_cast<std::int32_t>(source.columns()),
                .dtype = dtype,
                .panels = panels});
}

// Packed weights with their row-major origin. Columns past N hold poison instead of the zeros of
// the contract: nothing of them may reach a result.
struct Weights {
  Weights(std::int32_t num_outputs, std::int32_t num_inputs, DType dtype, Random& random)
      : panels(packed_bytes(num_outputs, num_inputs, dtype)),
        packed{panels.data(), dtype, num_outputs, num_inputs},
        values(num_outputs, num_inputs) {
    std::memset(panels.data(), kPoisonByte, panels.size());
    values.fill(random);
    if (dtype == DType::kF32) {
      pack(DType::kF32, values, 0, dtype, panels.data());
      return;
    }
    PaddedRows<Bf16> rounded(num_outputs, num_inputs);
    for (std::int32_t n = 0; n < num_outputs; ++n) {
      for (std::int32_t k = 0; k < num_inputs; ++k) {
        rounded.row(n)[k] = f32_to_bf16(values.row(n)[k]);
        values.row(n)[k] = bf16_to_f32(rounded.row(n)[k]);
      }
    }
    pack(DType::kBf16, rounded, 0, dtype, panels.data());
  }

  AlignedBuffer<std::byte> panels;
  PackedWeights packed;
  Floats values;  // [N, K], exact
};

// One product with its arrays.
struct Product {
  struct Shape {
    std::int32_t rows = 0;
    std::int32_t num_outputs = 0;
    std::int32_t num_inputs = 0;
    DType dtype = DType::kBf16;
    Epilogue epilogue = Epilogue::kStore;
    bool is_gathered = false;
  };

  Product(const Shape& product_shape, Random& random)
      : shape(product_shape),
        weights(shape.num_outputs, shape.num_inputs, shape.dtype, random),
        x(shape.is_gathered ? 2 * shape.rows + 1 : shape.rows, shape.num_inputs),
        before(shape.rows, shape.num_outputs, kAwkwardOutput),
        y(shape.rows, shape.num_outputs, kAwkwardOutput) {
    if (shape.is_gathered) {
      // Repeats happen; rows that nobody asks for stay poison.
      for (std::int32_t r = 0; r < shape.rows; ++r) {
        x_rows.push_back(random.below(static_cast<std::int32_t>(x.rows())));
        std::generate_n(x.row(x_rows.back()), shape.num_inputs, [&] { return random.value(); });
      }
    } else {
      x.fill(random);
    }
    before.fill(random);
    reset();
  }

  // The product of one row, from the same arrays.
  MatmulArgs row_args(std::int32_t r) {
    MatmulArgs job = args();
    job.rows = 1;
    job.y = y.row(r);
    if (shape.is_gathered) {
      job.x_rows = x_rows.data() + r;
    } else {
      job.x = x.row(r);
    }
    return job;
  }

  MatmulArgs args() {
    return {.weights = weights.packed,
            .x = x.data(),
            .x_stride = x.stride(),
            .x_rows = shape.is_gathered ? x_rows.data() : nullptr,
            .y = y.data(),
            .y_stride = y.stride(),
            .rows = shape.rows,
            .epilogue = shape.epilogue};
  }

  // kStore must not look at what y held: it starts as poison.
  void reset() {
    y.clear();
    if (shape.epilogue == Epilogue::kAdd) y.copy_from(before);
  }

  const float* x_row(std::int32_t r) const {
    return x.row(shape.is_gathered ? x_rows[static_cast<std::size_t>(r)] : r);
  }

  Shape shape;
  Weights weights;
  Floats x;
  std::vector<std::int32_t> x_rows;
  Floats before;
  Floats y;
};

std::string name_of(const Product::Shape& shape) {
  return fmt::format("{} rows of [{}, {}] {}{}{}", shape.rows, shape.num_outputs, shape.num_inputs,
                     to_string(shape.dtype), shape.epilogue == Epilogue::kAdd ? ", added" : "",
                     shape.is_gathered ? ", gathered" : "");
}

// The bits of the reference.
Floats reference_result(Product& product) {
  Runner reference(Target::kReference);
  product.reset();
  matmul(reference.context, product.args());
  Floats expected(product.y.rows(), product.y.columns());
  expected.copy_from(product.y);
  return expected;
}

void expect_targets_agree(const Product::Shape& shape, std::span<const int> threads,
                          Random& random) {
  SCOPED_TRACE(name_of(shape));
  Product product(shape, random);
  const Floats expected = reference_result(product);
  ASSERT_TRUE(product.y.padding_is_intact());
  for (const Target target : fast_targets()) {
    for (const int num_threads : threads) {
      Runner runner(target, num_threads);
      product.reset();
      matmul(runner.context, product.args());
      ASSERT_TRUE(equal_bits(product.y, expected))
          << to_string(target) << " with " << num_threads << " threads";
    }
  }
}

// The awkward sizes of one dimension around a panel and beyond.
constexpr std::int32_t kOutputs[] = {1, 3, 7, 15, 16, 17, 63, 64, 65, 80, 500};
constexpr std::int32_t kInputs[] = {1, 3, 7, 15, 16, 17, 63, 500};
constexpr std::int32_t kRows[] = {1, 2, 3, 4, 5, 6, 7, 13};
constexpr int kOneThread[] = {1};

// The flags of the i-th case, so that each combination meets every size sooner or later.
Product::Shape with_flags(Product::Shape shape, int i) {
  shape.dtype = i % 2 == 0 ? DType::kBf16 : DType::kF32;
  shape.epilogue = i / 2 % 2 == 0 ? Epilogue::kStore : Epilogue::kAdd;
  shape.is_gathered = i / 4 % 2 == 1;
  return shape;
}

TEST(Matmul, EveryTargetEqualsTheReferenceOnAwkwardShapes) {
  Random random(10);
  int i = 0;
  for (const std::int32_t num_outputs : kOutputs) {
    for (const std::int32_t num_inputs : kInputs) {
      if (num_outputs == 500 && num_inputs == 500) continue;
      for (const std::int32_t rows : {kRows[i % 8], kRows[(i + 3) % 8]}) {
        expect_targets_agree(
            with_flags({.rows = rows, .num_outputs = num_outputs, .num_inputs = num_inputs}, ++i),
            kOneThread, random);
      }
    }
  }
}

TEST(Matmul, EveryTargetEqualsTheReferenceForEveryFlagAndRowCount) {
  Random random(11);
  for (std::int32_t rows = 1; rows <= 13; ++rows) {
    for (int flags = 0; flags < 8; ++flags) {
      expect_targets_agree(with_flags({.rows = rows, .num_outputs = 83, .num_inputs = 37}, flags),
                           kOneThread, random);
    }
  }
}

TEST(MatmulSlow, EveryTargetEqualsTheReferenceOnTheWholeGrid) {
  Random random(12);
  for (const std::int32_t num_outputs : kOutputs) {
    for (const std::int32_t num_inputs : kInputs) {
      for (const std::int32_t rows : {1, 3, 7, 63}) {
        for (int flags = 0; flags < 8; ++flags) {
          if (std::int64_t{num_outputs} * num_inputs * rows > 2'000'000 && flags % 3 != 0) continue;
          expect_targets_agree(
              with_flags({.rows = rows, .num_outputs = num_outputs, .num_inputs = num_inputs},
                         flags),
              kOneThread, random);
        }
      }
    }
  }
}

// Weights larger than one pass over the rows, so that rows and panels are both cut.
TEST(MatmulSlow, EveryTargetEqualsTheReferenceWhereWeightsTakeSeveralPasses) {
  Random random(13);
  for (int flags = 0; flags < 8; ++flags) {
    expect_targets_agree(with_flags({.rows = 14, .num_outputs = 333, .num_inputs = 1201}, flags),
                         kOneThread, random);
  }
}

TEST(MatmulThreads, TheNumberOfThreadsDoesNotChangeABit) {
  Random random(14);
  constexpr int kThreads[] = {1, 2, 3};
  int i = 0;
  for (const std::int32_t num_outputs : {1, 16, 33, 100, 500}) {
    for (const std::int32_t rows : {1, 5, 9}) {
      expect_targets_agree(
          with_flags({.rows = rows, .num_outputs = num_outputs, .num_inputs = 211}, i++), kThreads,
          random);
    }
  }
}

TEST(Matmul, ARowAloneEqualsTheRowInABatch) {
  Random random(15);
  for (const Target target : runnable_targets()) {
    SCOPED_TRACE(to_string(target));
    Runner runner(target);
    for (std::int32_t rows = 1; rows <= 13; ++rows) {
      Product product(with_flags({.rows = rows, .num_outputs = 70, .num_inputs = 65}, rows),
                      random);
      matmul(runner.context, product.args());
      Floats batch(rows, 70);
      batch.copy_from(product.y);
      product.reset();
      for (std::int32_t r = 0; r < rows; ++r) matmul(runner.context, product.row_args(r));
      ASSERT_TRUE(equal_bits(product.y, batch)) << name_of(product.shape);
    }
  }
}

TEST(Matmul, JobsSideBySideEqualEachAlone) {
  Random random(16);
  std::vector<Product> products;
  products.emplace_back(with_flags({.rows = 3, .num_outputs = 100, .num_inputs = 33}, 0), random);
  products.emplace_back(with_flags({.rows = 1, .num_outputs = 7, .num_inputs = 500}, 3), random);
  products.emplace_back(with_flags({.rows = 0, .num_outputs = 20, .num_inputs = 9}, 0), random);
  products.emplace_back(with_flags({.rows = 8, .num_outputs = 65, .num_inputs = 17}, 5), random);
  std::vector<MatmulArgs> jobs;
  std::vector<Floats> expected;
  for (Product& product : products) {
    jobs.push_back(product.args());
    expected.push_back(reference_result(product));
  }
  for (const Target target : runnable_targets()) {
    SCOPED_TRACE(to_string(target));
    Runner runner(target);
    for (Product& product : products) product.reset();
    matmul(runner.context, jobs);
    for (std::size_t i = 0; i < products.size(); ++i) {
      EXPECT_TRUE(equal_bits(products[i].y, expected[i])) << "job " << i;
    }
  }
}

TEST(MatmulThreads, JobsSideBySideEqualEachAlone) {
  Random random(17);
  std::vector<Product> products;
  for (int i = 0; i < 6; ++i) {
    products.emplace_back(
        with_flags({.rows = 1 + i, .num_outputs = 1 + 97 * i, .num_inputs = 150}, i), random);
  }
  std::vector<MatmulArgs> jobs;
  std::vector<Floats> expected;
  for (Product& product : products) {
    jobs.push_back(product.args());
    expected.push_back(reference_result(product));
  }
  for (const Target target : fast_targets()) {
    for (const int num_threads : {2, 3}) {
      Runner runner(target, num_threads);
      for (Product& product : products) product.reset();
      matmul(runner.context, jobs);
      for (std::size_t i = 0; i < products.size(); ++i) {
        EXPECT_TRUE(equal_bits(products[i].y, expected[i]))
            << "job " << i << ", " << to_string(target) << " with " << num_threads << " threads";
      }
    }
  }
}

// A random walk of K rounding errors, each relative to the partial sum it rounds, has a standard
// deviation of eps * sqrt(K / 2) * |terms| / sqrt(3).
TEST(Matmul, ReferenceIsWithinTheErrorOfKRoundingsOfTheExactSum) {
  constexpr double kC = 5;
  Random random(18);
  for (const std::int32_t num_inputs : {1, 3, 16, 63, 500, 3000}) {
    for (int flags = 0; flags < 2; ++flags) {
      Product product(with_flags({.rows = 3, .num_outputs = 40, .num_inputs = num_inputs}, flags),
                      random);
      const Floats y = reference_result(product);
      for (std::int32_t r = 0; r < 3; ++r) {
        for (std::int32_t n = 0; n < 40; ++n) {
          double sum = 0;
          double squares = 0;
          for (std::int32_t k = 0; k < num_inputs; ++k) {
            const double term = double{product.weights.values.row(n)[k]} * product.x_row(r)[k];
            sum += term;
            squares += term * term;
          }
          const double bound = kC * kEps * std::sqrt(num_inputs * squares);
          ASSERT_TRUE(is_close(y.row(r)[n], sum, bound)) << name_of(product.shape);
        }
      }
    }
  }
}

// Sums in which another order, or a second rounding, shows.
TEST(Matmul, TermsJoinOneAccumulatorInAscendingOrderAndFused) {
  struct Sum {
    std::vector<float> weights, x;
    float expected;
  };
  const std::vector<Sum> sums = {
      // Ascending, both ones are lost in 2^24; halves, even and odd terms, or descending keep some.
      {{1.0f, 1.0f, 1.0f, 1.0f}, {0x1p24f, 1.0f, 1.0f, -0x1p24f}, 0.0f},
      // Fused: (1 + 2^-7)(1 + 2^-20) - 1 keeps the 2^-27 that a product rounded first loses.
      {{1.0f, 0x1.02p0f}, {-1.0f, 0x1.00001p0f}, 0x1.00081p-7f},
      // From +0: a sum of one -0 is +0.
      {{-0.0f}, {1.0f}, 0.0f},
      // A denormal product is not lost.
      {{0x1p-100f, 0x1p-100f}, {0x1p-40f, 0x1p-48f}, 0x1p-140f + 0x1p-148f},
  };
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    for (const Sum& sum : sums) {
      const auto k = static_cast<std::int32_t>(sum.x.size());
      AlignedBuffer<std::byte> panels(packed_bytes(1, k, DType::kF32));
      Floats weights(1, k);
      std::ranges::copy(sum.weights, weights.data());
      pack(DType::kF32, weights, 0, DType::kF32, panels.data());
      float y = poison();
      matmul(
          runner.context,
          {.weights = {panels.data(), DType::kF32, 1, k}, .x = sum.x.data(), .y = &y, .rows = 1});
      EXPECT_EQ(bits_of(y), bits_of(sum.expected)) << to_string(target) << ": " << y;
    }
  }
}

TEST(Matmul, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(19);
  Product product({.rows = 7, .num_outputs = 90, .num_inputs = 70, .dtype = DType::kF32}, random);
  // Denormal terms, which the hostile mode would flush.
  for (std::int32_t k = 0; k < 70; k += 2) product.x.row(1)[k] = 0x1p-130f;
  const Floats expected = reference_result(product);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    product.reset();
    EXPECT_TRUE(run_in_hostile_mode([&] { matmul(runner.context, product.args()); }));
    EXPECT_TRUE(equal_bits(product.y, expected)) << to_string(target);
  }
}

TEST(MatmulThreads, HostileFloatingPointModeOfTheCallerReachesNoWorker) {
  Random random(20);
  Product product({.rows = 7, .num_outputs = 190, .num_inputs = 70, .dtype = DType::kF32}, random);
  const Floats expected = reference_result(product);
  for (const Target target : fast_targets()) {
    product.reset();
    EXPECT_TRUE(run_in_hostile_mode([&] {
      // The pool's threads inherit the mode in which they are started.
      Runner runner(target, 3);
      matmul(runner.context, product.args());
    }));
    EXPECT_TRUE(equal_bits(product.y, expected)) << to_string(target);
  }
}

// Looks at every place of panels that hold `source` after `first_output` and poison elsewhere.
template <class T>
testing::AssertionResult holds_rows(std::span<const std::byte> panels, DType dtype,
                                    const PaddedRows<T>& source, std::int64_t first_output,
                                    float (*widen)(T)) {
  const std::int64_t num_inputs = source.columns();
  const std::int64_t bytes = dtype_bytes(dtype);
  for (std::int64_t place = 0; place < std::ssize(panels) / bytes; ++place) {
    const std::int64_t k = place / kPanelColumns % num_inputs;
    const std::int64_t n =
        place / (kPanelColumns * num_inputs) * kPanelColumns + place % kPanelColumns;
    const auto at =
        panels.subspan(static_cast<std::size_t>(place * bytes), static_cast<std::size_t>(bytes));
    if (n < first_output || n >= first_output + source.rows()) {
      if (is_poison(at)) continue;
      return testing::AssertionFailure() << "column " << n << ", input " << k << " was written";
    }
    const float expected = widen(source.row(n - first_output)[k]);
    const float actual = dtype == DType::kF32
                             ? *reinterpret_cast<const float*>(at.data())
                             : bf16_to_f32(*reinterpret_cast<const Bf16*>(at.data()));
    if (bits_of(actual) != bits_of(expected)) {
      return testing::AssertionFailure() << "column " << n << ", input " << k << ": "
                                         << describe(actual) << ", expected " << describe(expected);
    }
  }
  return testing::AssertionSuccess();
}

// Packs `source` after `first_output` of a matrix that has three more columns.
template <class T>
testing::AssertionResult packs(DType source_dtype, DType dtype, const PaddedRows<T>& source,
                               std::int32_t first_output, float (*widen)(T)) {
  AlignedBuffer<std::byte> panels(
      packed_bytes(first_output + source.rows() + 3, source.columns(), dtype));
  std::memset(panels.data(), kPoisonByte, panels.size());
  pack(source_dtype, source, first_output, dtype, panels.data());
  return holds_rows(std::span<const std::byte>(panels.span()), dtype, source, first_output, widen);
}

float identity(float value) { return value; }

TEST(PackWeights, EveryValueOfASixteenBitFormatIsExact) {
  PaddedRows<std::uint16_t> f16(1, 1 << 16);
  PaddedRows<Bf16> bf16(1, 1 << 16);
  for (std::int32_t i = 0; i < 1 << 16; ++i) {
    f16.row(0)[i] = static_cast<std::uint16_t>(i);
    bf16.row(0)[i] = Bf16{static_cast<std::uint16_t>(i)};
  }
  EXPECT_TRUE(packs(DType::kF16, DType::kF32, f16, 2, f16_to_f32));
  EXPECT_TRUE(packs<Bf16>(DType::kBf16, DType::kF32, bf16, 2, bf16_to_f32));
  EXPECT_TRUE(packs<Bf16>(DType::kBf16, DType::kBf16, bf16, 2, bf16_to_f32));
}

TEST(PackWeights, RowsGoToTheirColumnsAndNowhereElse) {
  Random random(21);
  for (const std::int32_t rows : {1, 3, 16, 35}) {
    for (const std::int32_t first_output : {0, 5, 15, 16}) {
      Floats source(rows, 9);
      source.fill(random);
      EXPECT_TRUE(packs(DType::kF32, DType::kF32, source, first_output, identity));
      PaddedRows<Bf16> rounded(rows, 9);
      rounded.fill([&] { return f32_to_bf16(random.value()); });
      EXPECT_TRUE(packs<Bf16>(DType::kBf16, DType::kBf16, rounded, first_output, bf16_to_f32));
    }
  }
}

// The latent projections of attention are used transposed.
TEST(PackWeights, SourcesMayBeTransposed) {
  Random random(24);
  Floats rows(19, 6);
  rows.fill(random);
  Floats columns(6, 19);
  for (std::int32_t n = 0; n < 19; ++n) {
    for (std::int32_t k = 0; k < 6; ++k) columns.row(k)[n] = rows.row(n)[k];
  }
  AlignedBuffer<std::byte> panels(packed_bytes(4 + 19, 6, DType::kF32));
  std::memset(panels.data(), kPoisonByte, panels.size());
  pack_weights({.source = reinterpret_cast<const std::byte*>(columns.data()),
                .source_dtype = DType::kF32,
                .row_stride = 1,
                .input_stride = columns.stride(),
                .first_output = 4,
                .rows = 19,
                .num_inputs = 6,
                .dtype = DType::kF32,
                .panels = panels.data()});
  EXPECT_TRUE(
      holds_rows(std::span<const std::byte>(panels.span()), DType::kF32, rows, 4, identity));
}

// A checkpoint's tensors begin at any byte.
TEST(PackWeights, SourcesNeedNoAlignment) {
  Random random(22);
  Floats source(3, 11, kPackedInput);
  source.fill(random);
  std::vector<std::byte> bytes(1 + 3 * 11 * sizeof(float));
  std::memcpy(bytes.data() + 1, source.data(), 3 * 11 * sizeof(float));
  AlignedBuffer<std::byte> panels(packed_bytes(3, 11, DType::kF32));
  std::memset(panels.data(), kPoisonByte, panels.size());
  pack_weights({.source = bytes.data() + 1,
                .source_dtype = DType::kF32,
                .row_stride = 11,
                .rows = 3,
                .num_inputs = 11,
                .dtype = DType::kF32,
                .panels = panels.data()});
  EXPECT_TRUE(
      holds_rows(std::span<const std::byte>(panels.span()), DType::kF32, source, 0, identity));
}

TEST(MatmulDeathTest, RefusesWhatCannotBeRight) {
  Random random(23);
  Runner runner(Target::kReference);
  Product product({.rows = 2, .num_outputs = 20, .num_inputs = 10}, random);
  MatmulArgs job = product.args();
  job.y_stride = 19;
  EXPECT_DEATH(matmul(runner.context, job), "y_stride 19 is less than 20 outputs");
  job = product.args();
  job.x_stride = 9;
  EXPECT_DEATH(matmul(runner.context, job), "x_stride 9 is less than 10 inputs");
  job = product.args();
  job.weights.dtype = DType::kF16;
  EXPECT_DEATH(matmul(runner.context, job), "weights are F16");
  const Floats source(1, 1);
  AlignedBuffer<std::byte> panels(packed_bytes(1, 1, DType::kBf16));
  EXPECT_DEATH(pack(DType::kF32, source, 0, DType::kBf16, panels.data()),
               "packing F32 as BF16 is not exact");
}

}  // namespace
}  // namespace slackwater::kernels::test
