// Exactness of a whole forward pass: the same bits however the work is split (docs/numerics.md).
// Every comparison is bitwise.

#include "slackwater/model/forward.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include "model/forward_test_support.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/device/sim_device.h"
#include "slackwater/model/safetensors.h"
#include "testing/allocation_counter.h"

namespace slackwater::model {
namespace {

constexpr std::int64_t kLength = 70;  // crosses two tiles of keys and two preparation blocks

// A pool, a context and a model on it.
struct Loaded {
  explicit Loaded(const std::string& directory = "tests/golden/kl", int threads = 1,
                  kernels::Target target = kernels::best_target())
      : pool(threads), context(pool, target), model(load_model(source_path(directory), context)) {}

  ThreadPool pool;
  kernels::ExecutionContext context;
  Model model;
};

// What a sequence leaves behind.
struct Trace {
  std::vector<float> logits;  // [tokens, vocabulary]
  std::vector<float> state;   // the recurrent slot
  std::vector<float> latent;  // all latent rows
};

void expect_same(const Trace& got, const Trace& want) {
  EXPECT_TRUE(same_bits(got.logits, want.logits)) << "logits";
  EXPECT_TRUE(same_bits(got.state, want.state)) << "recurrent state";
  EXPECT_TRUE(same_bits(got.latent, want.latent)) << "latent rows";
}

Trace trace_of(const SequenceRunner& runner, PoisonedPages& pages, std::int32_t sequence,
               std::int64_t length) {
  const std::span<float> slot = pages.slot(pages.state_page(sequence));
  return {runner.logits(sequence), {slot.begin(), slot.end()}, pages.latent_rows(sequence, length)};
}

// `tokens` alone, in chunks of `counts`.
Trace run_alone(Loaded& loaded, const std::vector<TokenId>& tokens,
                const std::vector<std::int32_t>& counts, std::int32_t tokens_per_block = 32) {
  PoisonedPages pages(loaded.model.config(),
                      {.length = std::ssize(tokens), .tokens_per_block = tokens_per_block});
  SequenceRunner runner(loaded.model, loaded.context, pages, {tokens});
  runner.run_alone(0, counts);
  return trace_of(runner, pages, 0, std::ssize(tokens));
}

std::vector<std::int32_t> ones(std::int64_t count) {
  return std::vector<std::int32_t>(static_cast<std::size_t>(count), 1);
}

TEST(ForwardExactness, AnySplitOfAPromptEqualsOneShot) {
  Loaded loaded;
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), kLength, 7);
  const Trace whole = run_alone(loaded, tokens, {70});
  for (const std::vector<std::int32_t>& counts : std::vector<std::vector<std::int32_t>>{
           {1, 69}, {69, 1}, {32, 32, 6}, {31, 2, 37}, {3, 5, 7, 11, 13, 17, 14}, {64, 6}}) {
    SCOPED_TRACE(::testing::PrintToString(counts));
    expect_same(run_alone(loaded, tokens, counts), whole);
  }
}

TEST(ForwardExactness, RandomSplitsOfRandomPromptsEqualOneShot) {
  Loaded loaded;
  std::mt19937_64 random(20261129);
  for (int round = 0; round < 6; ++round) {
    const std::int64_t length = 1 + static_cast<std::int64_t>(random() % 90);
    const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), length, random());
    std::vector<std::int32_t> counts;
    for (std::int64_t left = length; left > 0;) {
      counts.push_back(static_cast<std::int32_t>(1 + random() % static_cast<std::uint64_t>(left)));
      left -= counts.back();
    }
    SCOPED_TRACE(::testing::PrintToString(counts));
    expect_same(run_alone(loaded, tokens, counts),
                run_alone(loaded, tokens, {static_cast<std::int32_t>(length)}));
  }
}

TEST(ForwardExactness, PrefillEqualsTokenByToken) {
  Loaded loaded;
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), kLength, 11);
  expect_same(run_alone(loaded, tokens, ones(kLength)), run_alone(loaded, tokens, {70}));
}

TEST(ForwardExactness, PageSizeChangesNothing) {
  Loaded loaded;
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), kLength, 13);
  const Trace want = run_alone(loaded, tokens, {40, 30}, 32);
  for (const std::int32_t tokens_per_block : {1, 8, 64}) {
    SCOPED_TRACE(tokens_per_block);
    expect_same(run_alone(loaded, tokens, {40, 30}, tokens_per_block), want);
  }
}

// Batches of four sequences, chunks and single tokens mixed, in the order `order` of rows.
void run_mixed(SequenceRunner& runner, const std::vector<std::size_t>& order) {
  const std::vector<std::vector<std::int32_t>> steps = {
      {5, 1, 0, 30}, {1, 40, 8, 1}, {1, 1, 1, 1}, {43, 8, 1, 2}};
  for (const std::vector<std::int32_t>& counts : steps) {
    std::vector<Chunk> chunks;
    for (const std::size_t s : order) {
      if (counts[s] > 0) chunks.push_back({static_cast<std::int32_t>(s), counts[s], {}});
    }
    runner.run(chunks);
  }
}

// Four sequences, and what each leaves behind alone.
struct Mixture {
  explicit Mixture(Loaded& loaded) {
    for (std::size_t s = 0; s < lengths.size(); ++s) {
      sequences.push_back(random_tokens(loaded.model.config(), lengths[s], 100 + s));
      alone.push_back(run_alone(loaded, sequences.back(), {static_cast<std::int32_t>(lengths[s])}));
    }
  }

  // Runs them as batches over pages shuffled by `seed` and compares each with itself alone.
  void expect_same_in_batches(Loaded& loaded, const std::vector<std::size_t>& order,
                              std::int32_t tokens_per_block, std::uint64_t seed) const {
    PoisonedPages pages(
        loaded.model.config(),
        {.sequences = 4, .length = 64, .tokens_per_block = tokens_per_block, .seed = seed});
    SequenceRunner runner(loaded.model, loaded.context, pages, sequences);
    run_mixed(runner, order);
    for (std::int32_t s = 0; s < 4; ++s) {
      SCOPED_TRACE(::testing::Message()
                   << "sequence " << s << ", page size " << tokens_per_block << ", seed " << seed);
      expect_same(trace_of(runner, pages, s, lengths[static_cast<std::size_t>(s)]),
                  alone[static_cast<std::size_t>(s)]);
    }
  }

  const std::vector<std::int64_t> lengths = {50, 50, 10, 34};
  std::vector<std::vector<TokenId>> sequences;
  std::vector<Trace> alone;
};

TEST(ForwardExactness, ABatchOfMixedSequencesEqualsEachAlone) {
  Loaded loaded;
  const Mixture mixture(loaded);
  std::uint64_t seed = 0;
  for (const std::vector<std::size_t>& order :
       std::vector<std::vector<std::size_t>>{{0, 1, 2, 3}, {3, 2, 1, 0}, {2, 0, 3, 1}}) {
    for (const std::int32_t tokens_per_block : {1, 8, 32, 64}) {
      mixture.expect_same_in_batches(loaded, order, tokens_per_block, ++seed);
    }
  }
}

TEST(ForwardExactnessThreads, ABatchOfMixedSequencesOnSeveralThreadsEqualsEachAlone) {
  Loaded one;
  const Mixture mixture(one);
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    Loaded many("tests/golden/kl", threads);
    mixture.expect_same_in_batches(many, {2, 0, 3, 1}, 8, 5);
  }
}

// A batch of one sequence's next `count` tokens, which wants the logits of the last.
struct OneRow {
  OneRow(const PoisonedPages& pages, std::span<const TokenId> tokens, std::int64_t position,
         std::int32_t count)
      : write{count, pages.state_page(0)}, last(count - 1) {
    row.num_tokens = count;
    row.first_position = position;
    row.block_table = pages.table(0);
    row.state_page = pages.state_page(0);
    row.writes = std::span(&write, 1);
    batch.token_ids =
        tokens.subspan(static_cast<std::size_t>(position), static_cast<std::size_t>(count));
    batch.rows = std::span(&row, 1);
    batch.latent_pages = pages.latent();
    batch.recurrent_pages = pages.recurrent();
    batch.logit_tokens = std::span(&last, 1);
  }
  OneRow(const OneRow&) = delete;
  OneRow& operator=(const OneRow&) = delete;

  const kernels::StateWrite write;
  const std::int32_t last;
  kernels::SequenceRow row;
  ForwardBatch batch;
};

// The second form of the execution context: a step as one item of a stream.
TEST(ForwardExactnessThreads, AStepOnAStreamEqualsOneOnTheCaller) {
  Loaded loaded("tests/golden/kl", 2);
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, 24, 47);
  const Trace want = run_alone(loaded, tokens, {16, 8});
  for (const bool is_simulated : {false, true}) {
    SCOPED_TRACE(is_simulated ? "sim" : "cpu");
    const std::unique_ptr<device::Device> device =
        is_simulated ? std::make_unique<device::SimDevice>(device::SimOptions{.seed = 3})
                     : device::make_cpu_device();
    const auto stream = *device->make_stream("step");
    PoisonedPages pages(config, {.length = 24});
    ForwardPass forward(loaded.model, loaded.context, {.max_tokens = 16, .max_logits = 1});
    std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
    std::int64_t position = 0;
    for (const std::int32_t count : {16, 8}) {
      const OneRow step(pages, tokens, position, count);
      forward.enqueue(*stream, step.batch, logits);
      EXPECT_EQ(stream->synchronize(), device::EventStatus::kSucceeded);
      position += count;
    }
    const auto vocabulary = static_cast<std::size_t>(config.vocab_size);
    EXPECT_TRUE(same_bits(logits, std::span(want.logits).last(vocabulary)));
    EXPECT_TRUE(same_bits(pages.slot(pages.state_page(0)), want.state));
  }
}

TEST(ForwardExactness, LatentRowsInBf16SplitAnywhereEqualOneShot) {
  Loaded loaded;
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), kLength, 43);
  const auto logits_of = [&](const std::vector<std::int32_t>& counts) {
    PoisonedPages pages(loaded.model.config(), {.length = kLength, .dtype = DType::kBf16});
    SequenceRunner runner(loaded.model, loaded.context, pages, {tokens});
    runner.run_alone(0, counts);
    return runner.logits(0);
  };
  const std::vector<float> whole = logits_of({70});
  EXPECT_TRUE(same_bits(logits_of({1, 31, 38}), whole));
  EXPECT_TRUE(same_bits(logits_of(ones(kLength)), whole));
  EXPECT_FALSE(same_bits(run_alone(loaded, tokens, {70}).logits, whole)) << "nothing was rounded";
}

TEST(ForwardExactnessThreads, OneTwoAndThreeThreadsAgree) {
  Loaded one("tests/golden/kl", 1);
  const std::vector<TokenId> tokens = random_tokens(one.model.config(), kLength, 17);
  const std::vector<std::int32_t> counts = {33, 1, 1, 35};
  const Trace want = run_alone(one, tokens, counts);
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    Loaded many("tests/golden/kl", threads);
    expect_same(run_alone(many, tokens, counts), want);
  }
}

TEST(ForwardExactness, EveryRunnableTargetEqualsTheReference) {
  Loaded reference("tests/golden/kl", 1, kernels::Target::kReference);
  const std::vector<TokenId> tokens = random_tokens(reference.model.config(), kLength, 19);
  const Trace want = run_alone(reference, tokens, {40, 1, 29});
  for (const kernels::Target target : kernels::runnable_targets()) {
    SCOPED_TRACE(kernels::to_string(target));
    Loaded fast("tests/golden/kl", 1, target);
    expect_same(run_alone(fast, tokens, {40, 1, 29}), want);
  }
}

TEST(ForwardExactness, ASnapshotInTheMiddleOfAPassEqualsARunThatStoppedThere) {
  Loaded loaded;
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, kLength, 23);
  PoisonedPages pages(config, {.length = kLength});
  SequenceRunner runner(loaded.model, loaded.context, pages, {tokens});
  runner.run({Chunk{0,
                    70,
                    {{1, pages.snapshot_page(0)},
                     {32, pages.snapshot_page(1)},
                     {33, pages.snapshot_page(2)},
                     {70, pages.snapshot_page(3)}}}});
  const std::int32_t positions[] = {1, 32, 33, 70};
  for (std::int32_t i = 0; i < 4; ++i) {
    SCOPED_TRACE(positions[i]);
    const std::vector<TokenId> prefix(tokens.begin(), tokens.begin() + positions[i]);
    const Trace stopped = run_alone(loaded, prefix, {positions[i]});
    EXPECT_TRUE(same_bits(pages.slot(pages.snapshot_page(i)), stopped.state));
  }
}

TEST(ForwardExactness, ARunContinuedFromASnapshotEqualsTheUninterruptedOne) {
  Loaded loaded;
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, kLength, 29);
  PoisonedPages pages(config, {.length = kLength});
  SequenceRunner first(loaded.model, loaded.context, pages, {tokens});
  first.run({Chunk{0, 70, {{37, pages.snapshot_page(0)}}}});
  const Trace whole = trace_of(first, pages, 0, kLength);

  // The sequence's page is back at position 37; rows past it are gone and are written again.
  pages.poison_latent_rows(0, 37, kLength);
  std::ranges::copy(pages.slot(pages.snapshot_page(0)), pages.slot(pages.state_page(0)).begin());
  SequenceRunner second(loaded.model, loaded.context, pages, {tokens});
  second.set_position(0, 37);
  second.run_alone(0, {1, 32});
  const Trace continued = trace_of(second, pages, 0, kLength);
  EXPECT_TRUE(same_bits(continued.state, whole.state));
  EXPECT_TRUE(same_bits(continued.latent, whole.latent));
  const std::span<const float> tail =
      std::span(whole.logits).subspan(static_cast<std::size_t>(37 * config.vocab_size));
  EXPECT_TRUE(same_bits(continued.logits, tail));
}

TEST(ForwardExactness, ARowWithoutWritesLeavesEveryPageAlone) {
  Loaded loaded;
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, 8, 31);
  PoisonedPages pages(config, {.length = 8});
  SequenceRunner runner(loaded.model, loaded.context, pages, {tokens});
  runner.run_alone(0, {5});
  const std::span<float> slot = pages.slot(pages.state_page(0));
  const std::vector<float> before(slot.begin(), slot.end());

  ForwardPass forward(loaded.model, loaded.context, {.max_tokens = 3, .max_logits = 1});
  kernels::SequenceRow row;
  row.num_tokens = 3;
  row.first_position = 5;
  row.block_table = pages.table(0);
  row.state_page = pages.state_page(0);
  const std::int32_t last = 2;
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  ForwardBatch batch;
  batch.token_ids = std::span(tokens).subspan(5, 3);
  batch.rows = std::span(&row, 1);
  batch.latent_pages = pages.latent();
  batch.recurrent_pages = pages.recurrent();
  batch.logit_tokens = std::span(&last, 1);
  forward.run(batch, logits);
  EXPECT_TRUE(same_bits(slot, before));

  const Trace whole = run_alone(loaded, tokens, {8});
  EXPECT_TRUE(same_bits(
      logits, std::span(whole.logits).subspan(static_cast<std::size_t>(7 * config.vocab_size))));
}

#if defined(__x86_64__)
TEST(ForwardExactness, AHostileFloatingPointModeChangesNothingAndIsGivenBack) {
  Loaded loaded;
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), 20, 37);
  const Trace want = run_alone(loaded, tokens, {20});
  const unsigned ordinary = _mm_getcsr();
  constexpr unsigned kFlushToZero = 0x8000;
  constexpr unsigned kDenormalsAreZero = 0x0040;
  constexpr unsigned kRoundUp = 0x4000;
  _mm_setcsr(ordinary | kFlushToZero | kDenormalsAreZero | kRoundUp);
  const unsigned hostile = _mm_getcsr();
  Loaded under_it;
  const Trace got = run_alone(under_it, tokens, {20});
  const unsigned after = _mm_getcsr();
  _mm_setcsr(ordinary);
  EXPECT_EQ(after & 0xFFC0u, hostile & 0xFFC0u);
  expect_same(got, want);
}
#endif

TEST(Forward, AllocatesNothingAfterTheFirstRun) {
  if (kernels::best_target() == kernels::Target::kReference) {
    GTEST_SKIP() << "the reference allocates; it is read, not run fast";
  }
  Loaded loaded("tests/golden/kl", 2);
  const ModelConfig& config = loaded.model.config();
  const std::vector<TokenId> tokens = random_tokens(config, 40, 41);
  PoisonedPages pages(config, {.length = 64});
  ForwardPass forward(loaded.model, loaded.context, {.max_tokens = 32, .max_logits = 1});
  std::vector<float> logits(static_cast<std::size_t>(config.vocab_size));
  std::int64_t position = 0;
  const auto run = [&](std::int32_t count) {
    const OneRow step(pages, tokens, position, count);
    forward.run(step.batch, logits);
    position += count;
  };
  run(32);
  const std::int64_t before = num_heap_allocations();
  run(1);
  run(4);
  run(3);
  EXPECT_EQ(num_heap_allocations(), before);
}

// The largest difference to a golden tensor of f32 values.
double largest_difference(std::span<const float> got, const TensorView& want) {
  EXPECT_EQ(static_cast<std::int64_t>(got.size()), want.num_elements());
  double largest = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    float value = 0;
    std::memcpy(&value, want.bytes.data() + i * sizeof value, sizeof value);
    largest = std::max(largest, std::abs(static_cast<double>(got[i]) - value));
  }
  return largest;
}

// A checkpoint with golden logits and states.
class ForwardGolden : public ::testing::TestWithParam<const char*> {
 protected:
  std::string directory() const { return std::string("tests/golden/") + GetParam(); }

  Result<SafetensorsFile> golden() const {
    return SafetensorsFile::open(source_path(directory() + "/golden.safetensors"));
  }

  static std::vector<TokenId> ids_of(const SafetensorsFile& golden) {
    const TensorView& tensor = *golden.find("ids");
    std::vector<TokenId> ids(static_cast<std::size_t>(tensor.num_elements()));
    std::memcpy(ids.data(), tensor.bytes.data(), tensor.bytes.size());
    return ids;
  }
};

INSTANTIATE_TEST_SUITE_P(Checkpoints, ForwardGolden, ::testing::Values("kl", "gates"));

TEST_P(ForwardGolden, LogitsAgreeWithin1e4) {
  Loaded loaded(directory());
  const Result<SafetensorsFile> golden = this->golden();
  ASSERT_TRUE(golden.has_value());
  const std::vector<TokenId> ids = ids_of(*golden);
  PoisonedPages pages(loaded.model.config(), {.length = std::ssize(ids)});
  SequenceRunner runner(loaded.model, loaded.context, pages, {ids});
  runner.run_alone(0, {static_cast<std::int32_t>(ids.size())});
  EXPECT_LT(largest_difference(runner.logits(0), *golden->find("logits")), 1e-4);
}

// Golden states are [head][key][value]; ours are tiles of 32 value columns, key outermost.
TEST_P(ForwardGolden, StatesAgreeWithin1e4) {
  Loaded loaded(directory());
  const ModelConfig& config = loaded.model.config();
  const Result<SafetensorsFile> golden = this->golden();
  ASSERT_TRUE(golden.has_value());
  const std::vector<TokenId> ids = ids_of(*golden);
  PoisonedPages pages(config, {.length = std::ssize(ids)});
  SequenceRunner runner(loaded.model, loaded.context, pages, {ids});
  runner.run_alone(0, {50, static_cast<std::int32_t>(ids.size()) - 50});
  const std::span<const float> slot = pages.slot(pages.state_page(0));
  const std::int64_t dim = config.kda_head_dim;
  std::int32_t kda_layer = 0;
  for (std::int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (config.layer_kinds[static_cast<std::size_t>(layer)] != LayerKind::kKda) continue;
    const float* state = slot.data() + kda_layer++ * recurrent_layer_floats(config);
    std::vector<float> plain;
    for (std::int64_t head = 0; head < config.kda_num_heads; ++head) {
      for (std::int64_t key = 0; key < dim; ++key) {
        for (std::int64_t column = 0; column < dim; ++column) {
          plain.push_back(state[((head * dim / 32 + column / 32) * dim + key) * 32 + column % 32]);
        }
      }
    }
    EXPECT_LT(largest_difference(plain, *golden->find(fmt::format("kda{}.S", layer))), 1e-4)
        << "layer " << layer;
  }
}

TEST_P(ForwardGolden, EveryTargetAndSplitGivesTheBitsOfTheReference) {
  Loaded reference(directory(), 1, kernels::Target::kReference);
  const std::vector<TokenId> tokens = random_tokens(reference.model.config(), 45, 53);
  const Trace want = run_alone(reference, tokens, {45});
  for (const kernels::Target target : kernels::runnable_targets()) {
    SCOPED_TRACE(kernels::to_string(target));
    Loaded fast(directory(), 1, target);
    expect_same(run_alone(fast, tokens, {20, 1, 24}, 8), want);
  }
}

// The demo model, longer, on the reference: minutes under a sanitizer.
TEST(ForwardExactnessSlow, EveryRunnableTargetEqualsTheReferenceOnTheDemoModel) {
  Loaded reference("models/demo", 1, kernels::Target::kReference);
  const std::vector<TokenId> tokens = random_tokens(reference.model.config(), 100, 43);
  const Trace want = run_alone(reference, tokens, {64, 1, 35});
  for (const kernels::Target target : kernels::runnable_targets()) {
    if (target == kernels::Target::kReference) continue;
    for (const int threads : {1, 2, 3}) {
      SCOPED_TRACE(::testing::Message()
                   << kernels::to_string(target) << ", " << threads << " threads");
      Loaded fast("models/demo", threads, target);
      expect_same(run_alone(fast, tokens, {100}), want);
    }
  }
}

TEST(ForwardExactnessSlow, LongPromptsSplitAnywhereEqualOneShotOnTheDemoModel) {
  Loaded loaded("models/demo", 2);
  const std::vector<TokenId> tokens = random_tokens(loaded.model.config(), 400, 47);
  const Trace whole = run_alone(loaded, tokens, {400});
  expect_same(run_alone(loaded, tokens, ones(400)), whole);
  expect_same(run_alone(loaded, tokens, {256, 1, 100, 43}, 8), whole);
}

}  // namespace
}  // namespace slackwater::model
