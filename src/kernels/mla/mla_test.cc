#include "slackwater/kernels/mla.h"

#include <algorithm>
#include <cmath>

#include "kernels/latent_rows.h"
#include "kernels/test_support.h"

namespace slackwater::kernels::test {
namespace {

// One attention layer and its sequences: projections of all tokens, queries, and pages whose
// slots are shuffled and hold poison where no row was written.
struct MlaProblem {
  struct Shape {
    std::int32_t heads = 2;
    std::int32_t rank = 16;
    std::int32_t width = 24;
    std::int32_t tokens_per_block = 32;
    DType dtype = DType::kF32;
  };

  // Sequence s has lengths[s] tokens; the batch holds them one sequence after the other.
  MlaProblem(const Shape& problem_shape, std::vector<std::int32_t> sequence_lengths, Random& random)
      : shape(problem_shape),
        lengths(std::move(sequence_lengths)),
        kv(num_tokens(), shape.width),
        q(num_tokens(), shape.heads * shape.width, {.offset = 1, .gap = 2}),
        norm_weight(1, shape.rank),
        latent(num_tokens(), shape.heads * shape.rank, kAwkwardOutput),
        pages(num_blocks() + 3, slot_bytes(), 4) {
    kv.fill(random);
    q.fill([&] { return 2.0f * random.value(); });
    norm_weight.fill(random);
    const std::vector<std::int32_t> slots = random.permutation(pages.num_slots());
    auto next = slots.begin();
    for (const std::int32_t length : lengths) {
      std::vector<SlotId>& table = block_tables.emplace_back();
      for (std::int32_t p = 0; p < length; p += shape.tokens_per_block) {
        table.push_back(SlotId(*next++));
      }
    }
  }

  std::int32_t num_tokens() const {
    std::int32_t total = 0;
    for (const std::int32_t length : lengths) total += length;
    return total;
  }
  std::int32_t num_blocks() const {
    std::int32_t total = 0;
    for (const std::int32_t length : lengths) total += ceil_div(length, shape.tokens_per_block);
    return total;
  }
  // One value of poison after each row, and two after each slot.
  std::int64_t token_bytes() const { return (shape.width + 1) * dtype_bytes(shape.dtype); }
  std::int64_t slot_bytes() const {
    return shape.tokens_per_block * token_bytes() + 2 * dtype_bytes(shape.dtype);
  }

  LatentPages view() {
    return {.base = pages.base(),
            .slot_stride = slot_bytes(),
            .token_stride = token_bytes(),
            .num_slots = pages.num_slots(),
            .tokens_per_block = shape.tokens_per_block,
            .width = shape.width,
            .dtype = shape.dtype};
  }

  // Positions [begin, end) of a sequence.
  SequenceRow part(std::size_t sequence, std::int32_t begin, std::int32_t end) const {
    std::int32_t first_token = begin;
    for (std::size_t s = 0; s < sequence; ++s) first_token += lengths[s];
    return {.first_token = first_token,
            .num_tokens = end - begin,
            .first_position = begin,
            .block_table = block_tables[sequence],
            .state_page = {},
            .writes = {}};
  }
  std::vector<SequenceRow> whole() const {
    std::vector<SequenceRow> rows;
    for (std::size_t s = 0; s < lengths.size(); ++s) rows.push_back(part(s, 0, lengths[s]));
    return rows;
  }

  MlaWriteArgs write_args(std::span<const SequenceRow> rows) {
    return {.kv = kv.data(),
            .kv_stride = kv.stride(),
            .norm_weight = norm_weight.data(),
            .rank = shape.rank,
            .eps = 1e-6f,
            .pages = view(),
            .rows = rows};
  }
  MlaAttentionArgs attention_args(std::span<const SequenceRow> rows) {
    return {.q = q.data(),
            .q_stride = q.stride(),
            .latent = latent.data(),
            .latent_stride = latent.stride(),
            .heads = shape.heads,
            .rank = shape.rank,
            .scale = 0.21f,
            .pages = view(),
            .rows = rows};
  }

  // A step of the layer: these rows are written, then attended.
  void step(Runner& runner, const std::vector<SequenceRow>& rows) {
    mla_write(runner.context, write_args(rows));
    mla_attention(runner.context, attention_args(rows));
  }
  void clear() {
    std::memset(pages.base(), kPoisonByte,
                static_cast<std::size_t>(pages.num_slots() * pages.slot_bytes()));
    latent.clear();
  }

  // The value at `column` of a written row.
  float stored(std::size_t sequence, std::int64_t position, std::int64_t column) {
    const std::byte* bytes = latent_row(view(), block_tables[sequence], position);
    return shape.dtype == DType::kF32 ? reinterpret_cast<const float*>(bytes)[column]
                                      : bf16_to_f32(reinterpret_cast<const Bf16*>(bytes)[column]);
  }

  Shape shape;
  std::vector<std::int32_t> lengths;
  Floats kv, q, norm_weight, latent;
  PoisonedPages pages;
  std::vector<std::vector<SlotId>> block_tables;
};

std::string name_of(const MlaProblem& problem) {
  const MlaProblem::Shape& shape = problem.shape;
  return fmt::format("{} heads, rank {}, width {}, blocks of {}, {}, lengths {}", shape.heads,
                     shape.rank, shape.width, shape.tokens_per_block, to_string(shape.dtype),
                     testing::PrintToString(problem.lengths));
}

// What a step over whole sequences leaves.
struct MlaOutcome {
  Floats latent;
  std::vector<std::byte> pages;
};

MlaOutcome run_whole(MlaProblem& problem, Runner& runner) {
  problem.clear();
  problem.step(runner, problem.whole());
  EXPECT_TRUE(problem.latent.padding_is_intact());
  MlaOutcome outcome{Floats(problem.latent.rows(), problem.latent.columns()),
                     problem.pages.contents()};
  outcome.latent.copy_from(problem.latent);
  return outcome;
}

void expect_targets_agree(MlaProblem& problem, std::initializer_list<int> threads = {1}) {
  SCOPED_TRACE(name_of(problem));
  Runner reference(Target::kReference);
  const MlaOutcome expected = run_whole(problem, reference);
  for (const Target target : fast_targets()) {
    for (const int num_threads : threads) {
      Runner runner(target, num_threads);
      run_whole(problem, runner);
      ASSERT_TRUE(problem.pages.equal_bytes(expected.pages)) << to_string(target);
      ASSERT_TRUE(equal_bits(problem.latent, expected.latent))
          << to_string(target) << " with " << num_threads << " threads";
    }
  }
}

TEST(Mla, EveryTargetEqualsTheReferenceAcrossTilesForEveryPageSize) {
  Random random(90);
  for (const std::int32_t tokens_per_block : {1, 8, 32, 64}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      MlaProblem problem({.tokens_per_block = tokens_per_block, .dtype = dtype}, {66, 1, 33},
                         random);
      expect_targets_agree(problem);
    }
  }
}

TEST(Mla, EveryTargetEqualsTheReferenceForAwkwardRanksWidthsAndHeads) {
  Random random(91);
  std::int32_t heads = 0;
  for (const auto& [rank, width] : std::vector<std::pair<std::int32_t, std::int32_t>>{{1, 1},
                                                                                      {1, 2},
                                                                                      {3, 7},
                                                                                      {7, 8},
                                                                                      {13, 21},
                                                                                      {15, 17},
                                                                                      {16, 16},
                                                                                      {17, 33},
                                                                                      {31, 32},
                                                                                      {33, 48},
                                                                                      {48, 56},
                                                                                      {63, 64},
                                                                                      {64, 65},
                                                                                      {65, 100},
                                                                                      {130, 150}}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      heads = heads % 5 + 1;
      MlaProblem problem(
          {.heads = heads, .rank = rank, .width = width, .tokens_per_block = 8, .dtype = dtype},
          {37}, random);
      expect_targets_agree(problem);
    }
  }
}

TEST(MlaSlow, EveryTargetEqualsTheReferenceOnTheWholeGrid) {
  Random random(92);
  for (const std::int32_t tokens_per_block : {1, 8, 32, 64}) {
    for (const std::int32_t heads : {1, 2, 3, 4, 5}) {
      for (const auto& [rank, width] :
           std::vector<std::pair<std::int32_t, std::int32_t>>{{7, 9}, {64, 80}, {63, 500}}) {
        MlaProblem problem({.heads = heads,
                            .rank = rank,
                            .width = width,
                            .tokens_per_block = tokens_per_block,
                            .dtype = heads % 2 == 0 ? DType::kF32 : DType::kBf16},
                           {100, 3}, random);
        expect_targets_agree(problem);
      }
    }
  }
}

TEST(MlaSlow, EveryTargetEqualsTheReferenceOnTheShapeOfKimiLinear) {
  Random random(93);
  MlaProblem problem({.heads = 4, .rank = 512, .width = 576, .tokens_per_block = 64}, {40, 70},
                     random);
  expect_targets_agree(problem);
}

// Few tokens are split by heads, many by tokens; uneven ones by neither evenly.
TEST(MlaThreads, TheNumberOfThreadsDoesNotChangeABit) {
  Random random(94);
  for (const std::int32_t heads : {1, 2, 5}) {
    for (const std::vector<std::int32_t>& lengths :
         std::vector<std::vector<std::int32_t>>{{1}, {2, 1}, {5}, {40, 3, 9}}) {
      MlaProblem problem({.heads = heads}, lengths, random);
      expect_targets_agree(problem, {1, 2, 3});
    }
  }
}

TEST(MlaThreads, DecodingAtLongPositionsDoesNotDependOnThreads) {
  Random random(95);
  MlaProblem problem({.heads = 5}, {201, 66}, random);
  Runner reference(Target::kReference);
  const MlaOutcome expected = run_whole(problem, reference);
  const std::vector<SequenceRow> rows = {problem.part(1, 65, 66), problem.part(0, 200, 201)};
  for (const Target target : fast_targets()) {
    for (const int num_threads : {1, 2, 3}) {
      Runner runner(target, num_threads);
      problem.latent.clear();
      mla_attention(runner.context, problem.attention_args(rows));
      for (const std::int64_t token : {200, 266}) {
        EXPECT_TRUE(equal_bits(problem.latent.row_span(token), expected.latent.row_span(token)))
            << to_string(target) << " with " << num_threads << " threads";
      }
    }
  }
}

TEST(Mla, AnySplitIntoChunksEqualsOnePass) {
  Random random(96);
  for (const std::int32_t tokens_per_block : {8, 64}) {
    MlaProblem problem({.heads = 1, .tokens_per_block = tokens_per_block}, {201}, random);
    for (const Target target : runnable_targets()) {
      Runner runner(target);
      const MlaOutcome once = run_whole(problem, runner);
      for (const std::vector<std::int32_t>& ends : std::vector<std::vector<std::int32_t>>{
               {200, 201}, {1, 201}, {31, 32, 33, 63, 64, 65, 200, 201}, {32, 64, 96, 201}}) {
        problem.clear();
        std::int32_t begin = 0;
        for (const std::int32_t end : ends) {
          problem.step(runner, {problem.part(0, begin, end)});
          begin = end;
        }
        ASSERT_TRUE(equal_bits(problem.latent, once.latent))
            << to_string(target) << ": " << testing::PrintToString(ends);
        ASSERT_TRUE(problem.pages.equal_bytes(once.pages)) << to_string(target);
      }
    }
  }
}

TEST(Mla, PageSizesAndSlotsDoNotChangeABit) {
  for (const Target target : runnable_targets()) {
    std::vector<Floats> results;
    for (const std::int32_t tokens_per_block : {1, 2, 4, 8, 16, 32, 64, 128}) {
      Random random(97);
      MlaProblem problem({.tokens_per_block = tokens_per_block}, {70, 35}, random);
      Runner runner(target);
      results.push_back(run_whole(problem, runner).latent);
      EXPECT_TRUE(equal_bits(results.back(), results.front()))
          << to_string(target) << ", blocks of " << tokens_per_block;
    }
  }
}

// Prompts, verify rounds and single tokens in one batch, rows in any order.
TEST(Mla, RowsOfAMixedBatchEqualEachAlone) {
  Random random(98);
  MlaProblem problem({.heads = 3, .tokens_per_block = 8}, {50, 40, 34, 7}, random);
  for (const Target target : runnable_targets()) {
    SCOPED_TRACE(to_string(target));
    Runner runner(target);
    const MlaOutcome whole = run_whole(problem, runner);
    problem.clear();
    std::vector<SequenceRow> context = {problem.part(0, 0, 49), problem.part(1, 0, 36),
                                        problem.part(2, 0, 10)};
    mla_write(runner.context, problem.write_args(context));
    const std::vector<SequenceRow> rows = {problem.part(3, 0, 7), problem.part(1, 36, 40),
                                           problem.part(2, 10, 34), problem.part(0, 49, 50),
                                           problem.part(0, 50, 50)};
    problem.step(runner, rows);
    EXPECT_TRUE(problem.latent.padding_is_intact());
    for (const SequenceRow& row : rows) {
      for (std::int64_t token = row.first_token; token < row.first_token + row.num_tokens;
           ++token) {
        EXPECT_TRUE(equal_bits(problem.latent.row_span(token), whole.latent.row_span(token)))
            << "token " << token;
      }
    }
    // The context's tokens were not asked for.
    for (const std::int64_t token : {0, 48, 50, 85, 90, 99}) {
      EXPECT_TRUE(is_poison(std::as_bytes(problem.latent.row_span(token)))) << "token " << token;
    }
  }
}

TEST(Mla, WritesGoToTheirRowsAndNowhereElse) {
  Random random(99);
  MlaProblem problem({.tokens_per_block = 8}, {19, 5}, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    problem.clear();
    const std::vector<std::byte> poisoned = problem.pages.contents();
    const std::vector<SequenceRow> rows = {problem.part(0, 6, 11)};
    mla_write(runner.context, problem.write_args(rows));
    for (std::int64_t position = 6; position < 11; ++position) {
      std::byte* bytes = latent_row(problem.view(), problem.block_tables[0], position);
      for (std::int32_t i = problem.shape.rank; i < problem.shape.width; ++i) {
        EXPECT_EQ(problem.stored(0, position, i), problem.kv.row(position)[i]) << to_string(target);
      }
      std::memset(bytes, kPoisonByte, static_cast<std::size_t>(problem.shape.width) * 4);
    }
    EXPECT_TRUE(problem.pages.equal_bytes(poisoned)) << to_string(target);
  }
}

// bf16 rows are rounded when written: attention over them is attention over f32 rows that hold
// the rounded values, for the step that wrote them as well.
TEST(Mla, EverybodyReadsTheRoundedValueOfABf16Row) {
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const auto make = [](DType dtype) {
      Random random(100);
      return MlaProblem({.rank = 19, .width = 30, .tokens_per_block = 8, .dtype = dtype}, {45},
                        random);
    };
    MlaProblem rounded = make(DType::kBf16);
    MlaProblem full = make(DType::kF32);
    run_whole(full, runner);
    for (std::int64_t position = 0; position < 45; ++position) {
      float* row =
          reinterpret_cast<float*>(latent_row(full.view(), full.block_tables[0], position));
      for (std::int32_t i = 0; i < 30; ++i) row[i] = bf16_to_f32(f32_to_bf16(row[i]));
    }
    mla_attention(runner.context, full.attention_args(full.whole()));
    run_whole(rounded, runner);
    EXPECT_TRUE(equal_bits(rounded.latent, full.latent)) << to_string(target);
    for (std::int64_t position = 0; position < 45; ++position) {
      for (std::int32_t i = 0; i < 30; ++i) {
        ASSERT_EQ(bits_of(rounded.stored(0, position, i)), bits_of(full.stored(0, position, i)));
      }
    }
  }
}

// Scores far apart, equal, and rising from tile to tile, so that every branch of the running
// maximum is taken.
TEST(Mla, EveryTargetEqualsTheReferenceWhateverTheOrderOfScores) {
  Random random(101);
  for (const float slope : {-3.0f, 0.0f, 3.0f, 60.0f, -60.0f}) {
    MlaProblem problem({.heads = 1, .rank = 4, .width = 5}, {100}, random);
    for (std::int64_t t = 0; t < 100; ++t) {
      problem.kv.row(t)[4] = slope * static_cast<float>(t);
      std::fill_n(problem.q.row(t), 4, 0.0f);
      problem.q.row(t)[4] = 1.0f;
    }
    expect_targets_agree(problem);
  }
}

// A step over all that comes from `first_key` on; the rows before it are poison, and so is what is
// left of their tokens' results.
Floats run_from(MlaProblem& problem, Runner& runner, std::int32_t first_key) {
  problem.clear();
  std::vector<SequenceRow> rows;
  for (std::size_t s = 0; s < problem.lengths.size(); ++s) {
    if (problem.lengths[s] <= first_key) continue;
    rows.push_back(problem.part(s, first_key, problem.lengths[s]));
  }
  mla_write(runner.context, problem.write_args(rows));
  MlaAttentionArgs args = problem.attention_args(rows);
  args.first_key = first_key;
  mla_attention(runner.context, args);
  EXPECT_TRUE(problem.latent.padding_is_intact());
  Floats latent(problem.latent.rows(), problem.latent.columns());
  latent.copy_from(problem.latent);
  return latent;
}

// Within the first tile, at its borders, and whole tiles before it.
constexpr std::int32_t kFirstKeys[] = {1, 3, 7, 31, 32, 33, 63, 65};

TEST(Mla, EveryTargetEqualsTheReferenceWhereverTheFirstKeyIs) {
  Random random(107);
  for (const std::int32_t tokens_per_block : {1, 8, 32, 64}) {
    for (const DType dtype : {DType::kF32, DType::kBf16}) {
      MlaProblem problem(
          {.rank = 19, .width = 30, .tokens_per_block = tokens_per_block, .dtype = dtype},
          {100, 3, 66}, random);
      for (const std::int32_t first_key : kFirstKeys) {
        SCOPED_TRACE(testing::Message() << name_of(problem) << ", first key " << first_key);
        Runner reference(Target::kReference);
        const Floats expected = run_from(problem, reference, first_key);
        for (const Target target : fast_targets()) {
          Runner runner(target, 2);
          EXPECT_TRUE(equal_bits(run_from(problem, runner, first_key), expected))
              << to_string(target);
        }
      }
    }
  }
}

TEST(Mla, RowsBeforeTheFirstKeyAreNeverRead) {
  Random random(108);
  MlaProblem problem({.tokens_per_block = 8}, {100}, random);
  const std::vector<SequenceRow> everything = problem.whole();
  for (const Target target : runnable_targets()) {
    for (const std::int32_t first_key : kFirstKeys) {
      SCOPED_TRACE(testing::Message() << to_string(target) << ", first key " << first_key);
      Runner runner(target);
      const Floats poisoned = run_from(problem, runner, first_key);
      const std::vector<SequenceRow> rows = {problem.part(0, first_key, 100)};
      mla_write(runner.context, problem.write_args(everything));
      MlaAttentionArgs args = problem.attention_args(rows);
      args.first_key = first_key;
      mla_attention(runner.context, args);
      for (std::int64_t t = first_key; t < 100; ++t) {
        for (const float value : poisoned.row_span(t)) ASSERT_EQ(value, value) << "token " << t;
      }
      EXPECT_TRUE(equal_bits(problem.latent, poisoned));
    }
  }
}

TEST(Mla, AnySplitBehindTheFirstKeyEqualsOnePass) {
  Random random(109);
  MlaProblem problem({.heads = 1, .tokens_per_block = 8}, {70}, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    const Floats once = run_from(problem, runner, 5);
    problem.clear();
    std::int32_t begin = 5;
    for (const std::int32_t end : {6, 31, 34, 64, 70}) {
      const std::vector<SequenceRow> rows = {problem.part(0, begin, end)};
      mla_write(runner.context, problem.write_args(rows));
      MlaAttentionArgs args = problem.attention_args(rows);
      args.first_key = 5;
      mla_attention(runner.context, args);
      begin = end;
    }
    EXPECT_TRUE(equal_bits(problem.latent, once)) << to_string(target);
  }
}

// latent of one token and head in float64, from the rows as they are stored.
std::vector<double> exact_attention(MlaProblem& problem, std::int64_t position, std::int64_t head,
                                    std::int64_t first_key = 0) {
  const std::int64_t width = problem.shape.width;
  const float* q = problem.q.row(position) + head * width;
  std::vector<double> score;
  for (std::int64_t s = first_key; s <= position; ++s) {
    double dot = 0;
    for (std::int64_t i = 0; i < width; ++i) dot += double{q[i]} * problem.stored(0, s, i);
    score.push_back(dot * double{problem.attention_args({}).scale});
  }
  const double highest = *std::ranges::max_element(score);
  double total = 0;
  std::vector<double> latent(static_cast<std::size_t>(problem.shape.rank), 0.0);
  for (std::int64_t s = first_key; s <= position; ++s) {
    const double p = std::exp(score[static_cast<std::size_t>(s - first_key)] - highest);
    total += p;
    for (std::size_t i = 0; i < latent.size(); ++i) {
      latent[i] += p * problem.stored(0, s, static_cast<std::int64_t>(i));
    }
  }
  for (double& value : latent) value /= total;
  return latent;
}

// An error e in a score is a relative error e in its weight; scores here reach 60, and sum
// `width` terms. Weights are positive, so that the sums over keys add little.
constexpr double kSoftmaxC = 10;

TEST(Mla, ReferenceIsWithinTheErrorOfTheExactSoftmaxBehindTheFirstKey) {
  Random random(110);
  MlaProblem problem({.rank = 16, .width = 30, .tokens_per_block = 8}, {100}, random);
  Runner runner(Target::kReference);
  for (const std::int32_t first_key : kFirstKeys) {
    const Floats latent = run_from(problem, runner, first_key);
    for (const std::int64_t position : {first_key, first_key + 1, 99}) {
      const std::vector<double> exact = exact_attention(problem, position, 1, first_key);
      double largest = 0;
      for (const double value : exact) largest = std::max(largest, std::fabs(value));
      for (std::int64_t i = 0; i < 16; ++i) {
        ASSERT_TRUE(is_close(latent.row(position)[16 + i], exact[static_cast<std::size_t>(i)],
                             kSoftmaxC * kEps * std::sqrt(30.0) * largest))
            << "first key " << first_key << ", position " << position;
      }
    }
  }
}

TEST(Mla, ReferenceIsWithinTheErrorOfTheExactSoftmax) {
  Random random(102);
  for (const DType dtype : {DType::kF32, DType::kBf16}) {
    for (const std::int32_t rank : {16, 50}) {
      MlaProblem problem({.rank = rank, .width = rank + 14, .tokens_per_block = 8, .dtype = dtype},
                         {150}, random);
      Runner runner(Target::kReference);
      const MlaOutcome outcome = run_whole(problem, runner);
      const double scale = std::sqrt(problem.shape.width);
      for (const std::int64_t position : {0, 1, 31, 32, 33, 64, 149}) {
        for (std::int64_t head = 0; head < problem.shape.heads; ++head) {
          const std::vector<double> exact = exact_attention(problem, position, head);
          double largest = 0;
          for (const double value : exact) largest = std::max(largest, std::fabs(value));
          for (std::int64_t i = 0; i < rank; ++i) {
            ASSERT_TRUE(is_close(outcome.latent.row(position)[head * rank + i],
                                 exact[static_cast<std::size_t>(i)],
                                 kSoftmaxC * kEps * scale * largest))
                << name_of(problem) << ", position " << position;
          }
        }
      }
    }
  }
}

TEST(Mla, WrittenRowsAreWithinTheErrorOfTheExactNorm) {
  constexpr double kC = 2;
  Random random(103);
  MlaProblem problem({.rank = 50, .width = 61}, {20}, random);
  Runner runner(Target::kReference);
  run_whole(problem, runner);
  for (std::int64_t t = 0; t < 20; ++t) {
    double squares = 0;
    for (std::int64_t i = 0; i < 50; ++i) squares += std::pow(double{problem.kv.row(t)[i]}, 2);
    const double inv = 1 / std::sqrt(squares / 50 + 1e-6);
    for (std::int64_t i = 0; i < 50; ++i) {
      const double exact = problem.kv.row(t)[i] * inv * problem.norm_weight.row(0)[i];
      const double bound = kC * kEps * (3 + std::sqrt(50 / 16.0)) * std::fabs(exact);
      ASSERT_TRUE(is_close(problem.stored(0, t, i), exact, bound));
    }
  }
}

// One key has weight 1: the result is its latent, bit for bit.
TEST(Mla, TheFirstTokenAttendsToItselfAlone) {
  Random random(104);
  MlaProblem problem({.heads = 3, .rank = 21, .width = 30}, {1}, random);
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    run_whole(problem, runner);
    for (std::int64_t i = 0; i < 3 * 21; ++i) {
      EXPECT_EQ(problem.latent.row(0)[i], problem.stored(0, 0, i % 21)) << to_string(target);
    }
  }
}

TEST(Mla, HostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Random random(105);
  MlaProblem problem({.tokens_per_block = 8}, {40}, random);
  // Latents so small that their products with weights are denormal.
  problem.norm_weight.fill([&] { return 1e-37f * random.value(); });
  Runner reference(Target::kReference);
  const MlaOutcome expected = run_whole(problem, reference);
  const std::vector<SequenceRow> rows = problem.whole();
  for (const Target target : runnable_targets()) {
    Runner runner(target);
    problem.clear();
    const MlaWriteArgs write = problem.write_args(rows);
    const MlaAttentionArgs attention = problem.attention_args(rows);
    EXPECT_TRUE(run_in_hostile_mode([&] { mla_write(runner.context, write); }));
    EXPECT_TRUE(run_in_hostile_mode([&] { mla_attention(runner.context, attention); }));
    EXPECT_TRUE(problem.pages.equal_bytes(expected.pages)) << to_string(target);
    EXPECT_TRUE(equal_bits(problem.latent, expected.latent)) << to_string(target);
  }
}

class MlaDeathTest : public testing::Test {
 protected:
  void attend(const SequenceRow& row, std::int64_t first_key = 0) {
    const std::vector<SequenceRow> rows = {row};
    Runner runner(Target::kReference);
    MlaAttentionArgs args = problem_.attention_args(rows);
    args.first_key = first_key;
    mla_attention(runner.context, args);
  }

  Random random_{106};
  MlaProblem problem_{{.tokens_per_block = 8}, {20}, random_};
};

TEST_F(MlaDeathTest, RefusesBlockTablesThatAreTooShort) {
  SequenceRow row = problem_.part(0, 0, 20);
  row.block_table = row.block_table.first(2);
  EXPECT_DEATH(attend(row), "2 blocks for 20 tokens of 8 each");
}

TEST_F(MlaDeathTest, RefusesTokensWithoutAKey) {
  EXPECT_DEATH(attend(problem_.part(0, 4, 20), 5), "a token at position 4 has no key, the first");
  EXPECT_DEATH(attend(problem_.part(0, 4, 20), -1), "the first key is at position -1");
}

TEST_F(MlaDeathTest, RefusesSlotsThatDoNotExist) {
  problem_.block_tables[0][1] = SlotId(problem_.pages.num_slots());
  EXPECT_DEATH(attend(problem_.part(0, 0, 20)), "slot 6 of 6");
}

TEST_F(MlaDeathTest, RefusesBlockSizesThatAreNoPowerOfTwo) {
  problem_.shape.tokens_per_block = 12;
  EXPECT_DEATH(attend(problem_.part(0, 0, 20)), "12 tokens per block is not a power of two");
}

}  // namespace
}  // namespace slackwater::kernels::test
