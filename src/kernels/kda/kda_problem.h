#ifndef SLACKWATER_KERNELS_KDA_KDA_PROBLEM_H_
#define SLACKWATER_KERNELS_KDA_KDA_PROBLEM_H_

// Inputs, constants and pages of one KDA layer, for its tests.

#include <algorithm>
#include <array>
#include <optional>
#include <utility>
#include <vector>

#include "kernels/test_support.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::kernels::test {

// A row of the batch that owns its list of writes.
struct KdaRow {
  std::int32_t first_token = 0;
  std::int32_t num_tokens = 0;
  std::int64_t first_position = 0;
  std::int32_t page = 0;
  std::vector<StateWrite> writes = {};

  SequenceRow view() const {
    return {.first_token = first_token,
            .num_tokens = num_tokens,
            .first_position = first_position,
            .block_table = {},
            .state_page = SlotId(page),
            .writes = writes};
  }
};

inline StateWrite write_at(std::int32_t count, std::int32_t page) {
  return {.count = count, .page = SlotId(page)};
}

// What a run left: the outputs [T, H * D] and all pages. Tokens of no row stay poison.
struct KdaOutcome {
  std::vector<float> o;
  std::vector<std::byte> pages;
};

struct KdaProblem {
  struct Shape {
    std::int32_t num_heads = 1;
    std::int32_t head_dim = 32;
    std::int32_t num_tokens = 1;
    std::int32_t num_slots = 1;
    bool is_bounded = false;  // the gate with a lower bound
  };

  KdaProblem(const Shape& problem_shape, Random& random)
      : shape(problem_shape),
        decay(shape.num_tokens, width()),
        beta(shape.num_tokens, shape.num_heads, {.offset = 2, .gap = 1}),
        dt_bias(1, width()),
        decay_rate(1, shape.num_heads),
        pages(shape.num_slots, slot_floats() * 4, 4),
        o(shape.num_tokens, width(), kAwkwardOutput) {
    for (int section = 0; section < 3; ++section) {
      qkv.emplace_back(shape.num_tokens, width()).fill(random);
      conv_weight.emplace_back(kConvTaps, width(), Placement{.offset = 1});
      conv_weight.back().fill([&] { return random.uniform(-1.0f, 1.0f); });
    }
    decay.fill([&] { return random.uniform(-8.0f, 2.0f); });
    beta.fill([&] { return random.uniform(-4.0f, 4.0f); });
    dt_bias.fill([&] { return random.uniform(-2.0f, 1.0f); });
    decay_rate.fill([&] { return kda_decay_rate(random.uniform(0.0f, 2.7f)); });
  }

  std::int64_t width() const { return std::int64_t{shape.num_heads} * shape.head_dim; }
  std::int64_t state_floats() const { return kda_state_floats(shape.num_heads, shape.head_dim); }
  std::int64_t window_floats() const { return kda_window_floats(shape.num_heads, shape.head_dim); }

  float* state(std::int32_t page) {
    return reinterpret_cast<float*>(pages.slot(SlotId(page)).data());
  }
  float* window(std::int32_t page) { return state(page) + state_floats() + kGapFloats; }

  void fill_page(std::int32_t page, Random& random) {
    std::generate_n(state(page), state_floats(), [&] { return 0.5f * random.value(); });
    std::generate_n(window(page), window_floats(), [&] { return random.value(); });
  }
  void zero_page(std::int32_t page) {
    std::fill_n(state(page), state_floats(), 0.0f);
    std::fill_n(window(page), window_floats(), 0.0f);
  }

  KdaStepArgs args(std::span<const SequenceRow> rows) {
    KdaStepArgs args;
    args.num_heads = shape.num_heads;
    args.head_dim = shape.head_dim;
    for (std::size_t section = 0; section < 3; ++section) {
      args.qkv[section] = qkv[section].data();
      args.conv_weight[section] = conv_weight[section].data();
    }
    args.qkv_stride = qkv[0].stride();
    args.decay = decay.data();
    args.decay_stride = decay.stride();
    args.beta = beta.data();
    args.beta_stride = beta.stride();
    args.dt_bias = dt_bias.data();
    args.decay_rate = decay_rate.data();
    if (shape.is_bounded) args.gate_lower_bound = -5.0f;
    args.pages = {.state_base = state(0),
                  .window_base = window(0),
                  .slot_stride = slot_floats(),
                  .num_slots = shape.num_slots};
    args.rows = rows;
    args.o = o.data();
    args.o_stride = o.stride();
    return args;
  }

  // One call, from the pages as they are; they are as before afterwards.
  KdaOutcome run(Runner& runner, const std::vector<KdaRow>& rows) {
    const std::vector<std::byte> before = pages.contents();
    KdaOutcome outcome = advance(runner, rows);
    pages.assign(before);
    return outcome;
  }
  KdaOutcome run(Target target, const std::vector<KdaRow>& rows) {
    Runner runner(target);
    return run(runner, rows);
  }

  // One call that leaves the pages as it made them.
  KdaOutcome advance(Runner& runner, const std::vector<KdaRow>& rows) {
    std::vector<SequenceRow> views;
    for (const KdaRow& row : rows) views.push_back(row.view());
    o.clear();
    kda_step(runner.context, args(views));
    return collect();
  }

  // What the last call left.
  KdaOutcome collect() const {
    EXPECT_TRUE(o.padding_is_intact());
    KdaOutcome outcome{.o = {}, .pages = pages.contents()};
    for (std::int64_t t = 0; t < o.rows(); ++t) {
      outcome.o.insert(outcome.o.end(), o.row(t), o.row(t) + width());
    }
    return outcome;
  }

  // State and window of a page of an outcome.
  std::vector<float> page_of(const KdaOutcome& outcome, std::int32_t page) const {
    std::vector<float> slot(static_cast<std::size_t>(slot_floats()));
    std::memcpy(slot.data(), outcome.pages.data() + page * slot_floats() * 4, slot.size() * 4);
    slot.erase(slot.begin() + state_floats(), slot.begin() + state_floats() + kGapFloats);
    slot.resize(static_cast<std::size_t>(state_floats() + window_floats()));
    return slot;
  }
  std::vector<float> page_now(std::int32_t page) const {
    return page_of({.o = {}, .pages = pages.contents()}, page);
  }

  // Outputs of tokens [first, first + count) of an outcome.
  std::vector<float> tokens_of(const KdaOutcome& outcome, std::int64_t first,
                               std::int64_t count) const {
    return {outcome.o.begin() + first * width(), outcome.o.begin() + (first + count) * width()};
  }

  // Poison between state and window and after the window of each slot.
  static constexpr std::int64_t kGapFloats = 5;

  std::int64_t slot_floats() const { return state_floats() + window_floats() + 2 * kGapFloats; }

  Shape shape;
  std::vector<Floats> qkv;  // q, k, v: [T, H * D]
  std::vector<Floats> conv_weight;
  Floats decay, beta, dt_bias, decay_rate;
  PoisonedPages pages;
  Floats o;
};

inline testing::AssertionResult equal_outcomes(const KdaOutcome& actual,
                                               const KdaOutcome& expected) {
  if (const auto o = equal_bits(actual.o, expected.o); !o) {
    return testing::AssertionFailure() << "outputs: " << o.message();
  }
  if (actual.pages == expected.pages) return testing::AssertionSuccess();
  const auto [at, other] = std::ranges::mismatch(actual.pages, expected.pages);
  return testing::AssertionFailure() << "pages differ at byte " << at - actual.pages.begin();
}

// The outcome of every fast target, with every number of threads, is the reference's.
inline void expect_targets_agree(KdaProblem& problem, const std::vector<KdaRow>& rows,
                                 std::initializer_list<int> threads = {1}) {
  const KdaOutcome expected = problem.run(Target::kReference, rows);
  for (const Target target : fast_targets()) {
    for (const int num_threads : threads) {
      Runner runner(target, num_threads);
      ASSERT_TRUE(equal_outcomes(problem.run(runner, rows), expected))
          << to_string(target) << " with " << num_threads << " threads: " << problem.shape.num_heads
          << " heads of " << problem.shape.head_dim << ", " << problem.shape.num_tokens
          << " tokens";
    }
  }
}

}  // namespace slackwater::kernels::test

#endif  // SLACKWATER_KERNELS_KDA_KDA_PROBLEM_H_
