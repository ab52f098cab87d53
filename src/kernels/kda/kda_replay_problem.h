#ifndef SLACKWATER_KERNELS_KDA_KDA_REPLAY_PROBLEM_H_
#define SLACKWATER_KERNELS_KDA_KDA_REPLAY_PROBLEM_H_

// One KDA layer with replay records within its pages, for tests, and an oracle beside it that
// knows of no records: token-by-token decoding.

#include <algorithm>
#include <array>
#include <cmath>
#include <span>
#include <vector>

#include "kernels/kda/kda_problem.h"
#include "kernels/reference/reference.h"
#include "kernels/test_support.h"
#include "kernels/vector_math.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::kernels::test {

// A token is a number: the row of the source's inputs that it has.
using Tokens = std::vector<std::int32_t>;

// A row of the batch that owns what it refers to.
struct ReplayRow {
  Tokens tokens = {};
  std::int64_t first_position = 0;
  std::int32_t page = 0;
  std::vector<StateWrite> writes = {};
  std::int32_t num_pending = 0;
};

// State and window at one position of a sequence.
struct OracleState {
  std::vector<float> state;   // as in a page
  std::vector<float> window;  // as in a page
};

// What a token leaves behind as a record.
struct OracleRecord {
  std::vector<float> q, k, g, v, beta;
};

struct ReplayShape {
  std::int32_t num_heads = 2;
  std::int32_t head_dim = 64;
  std::int32_t max_records = 3;
  std::int32_t num_slots = 1;
  bool is_bounded = false;
};

class ReplayProblem {
 public:
  static constexpr std::int32_t kNumTokens = 64;  // different tokens
  static constexpr std::int64_t kGap = 5;         // floats of poison between parts of a slot

  ReplayProblem(const ReplayShape& shape, Random& random)
      : shape_(shape),
        source_({.num_heads = shape.num_heads,
                 .head_dim = shape.head_dim,
                 .num_tokens = kNumTokens,
                 .num_slots = 1,
                 .is_bounded = shape.is_bounded},
                random),
        pages_(shape.num_slots, slot_floats() * 4, 4) {}

  const ReplayShape& shape() const { return shape_; }
  KdaProblem& source() { return source_; }
  PoisonedPages& pages() { return pages_; }
  std::int64_t width() const { return source_.width(); }

  // A slot: state, window, conv q, k and v, qkg, v, beta, each with poison behind it.
  float* part(std::int32_t slot, int index) {
    return reinterpret_cast<float*>(pages_.slot(SlotId(slot)).data()) + offset_of(index);
  }
  std::int64_t offset_of(int index) const {
    std::int64_t floats = 0;
    const std::array<std::int64_t, 8> parts = part_floats();
    for (int i = 0; i < index; ++i) floats += parts[static_cast<std::size_t>(i)] + kGap;
    return floats;
  }
  float* state(std::int32_t slot) { return part(slot, 0); }
  float* window(std::int32_t slot) { return part(slot, 1); }
  float* conv_row(std::int32_t slot, int section, std::int64_t r) {
    return part(slot, 2 + section) + r * width();
  }
  float* qkg(std::int32_t slot, std::int64_t record, int which) {
    return part(slot, 5) + (3 * record + which) * width();
  }
  float* v(std::int32_t slot, std::int64_t record) { return part(slot, 6) + record * width(); }
  float* beta(std::int32_t slot, std::int64_t record) {
    return part(slot, 7) + record * kda_beta_record_stride(shape_.num_heads);
  }

  // Runs the rows as one batch, their inputs in arrays that end with the last token; returns the
  // outputs, [T, H * D], in the order of the rows. The records may lie elsewhere.
  std::vector<float> run(Runner& runner, const std::vector<ReplayRow>& rows,
                         const ReplayRecords* elsewhere = nullptr) {
    std::vector<SequenceRow> views;
    Tokens tokens;
    for (const ReplayRow& row : rows) {
      views.push_back({.first_token = static_cast<std::int32_t>(tokens.size()),
                       .num_tokens = static_cast<std::int32_t>(row.tokens.size()),
                       .first_position = row.first_position,
                       .block_table = {},
                       .state_page = SlotId(row.page),
                       .writes = row.writes,
                       .num_pending = row.num_pending});
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    }
    Inputs inputs(source_, tokens);
    KdaStepArgs args = source_.args(views);
    inputs.point(args);
    point(args);
    if (elsewhere != nullptr) args.records = *elsewhere;
    kda_step(runner.context, args);
    EXPECT_TRUE(inputs.o.padding_is_intact());
    std::vector<float> o;
    for (std::int64_t t = 0; t < inputs.o.rows(); ++t) {
      o.insert(o.end(), inputs.o.row(t), inputs.o.row(t) + width());
    }
    return o;
  }

  // Points `args` at the slots.
  void point(KdaStepArgs& args) {
    args.pages = {.state_base = state(0),
                  .window_base = window(0),
                  .slot_stride = slot_floats(),
                  .num_slots = shape_.num_slots};
    args.records = records();
  }
  ReplayRecords records() { return records_in(pages_); }
  // The records of slots that are laid out like these.
  ReplayRecords records_in(PoisonedPages& slots) const {
    float* first = reinterpret_cast<float*>(slots.base());
    return {.conv_base = {first + offset_of(2), first + offset_of(3), first + offset_of(4)},
            .qkg_base = first + offset_of(5),
            .v_base = first + offset_of(6),
            .beta_base = first + offset_of(7),
            .slot_stride = slots.slot_bytes() / 4,
            .num_slots = slots.num_slots(),
            .max_records = shape_.max_records};
  }

  // The sequence before its first token.
  OracleState at_zero() const {
    return {std::vector<float>(static_cast<std::size_t>(source_.state_floats())),
            std::vector<float>(static_cast<std::size_t>(source_.window_floats()))};
  }

  // Decodes one token that is at `position`; appends its output to `o`.
  void decode(Runner& runner, std::int32_t token, std::int64_t position, OracleState& held,
              std::vector<float>& o) {
    const StateWrite write = write_at(1, 0);
    const SequenceRow row = {.first_token = token,
                             .num_tokens = 1,
                             .first_position = position,
                             .block_table = {},
                             .state_page = SlotId(0),
                             .writes = std::span(&write, 1)};
    KdaStepArgs args = source_.args(std::span(&row, 1));
    args.pages = {.state_base = held.state.data(),
                  .window_base = held.window.data(),
                  .slot_stride = 0,
                  .num_slots = 1};
    kda_step(runner.context, args);
    o.insert(o.end(), source_.o.row(token), source_.o.row(token) + width());
  }

  // The record of the last of these tokens, which are a sequence from its beginning: the formulas
  // of docs/numerics.md once more.
  OracleRecord record_of(std::span<const std::int32_t> tokens) const {
    using scalar::FloatOps;
    OracleRecord record;
    record.q = convolved(tokens, 0);
    record.k = convolved(tokens, 1);
    record.v = convolved(tokens, 2);
    const std::int32_t dim = shape_.head_dim;
    const float scale = 1.0f / std::sqrt(static_cast<float>(dim));
    for (std::int32_t head = 0; head < shape_.num_heads; ++head) {
      normalise(&record.q[static_cast<std::size_t>(head * dim)]);
      normalise(&record.k[static_cast<std::size_t>(head * dim)]);
      record.beta.push_back(scalar::sigmoid<FloatOps>(source_.beta.row(tokens.back())[head]));
    }
    for (float& q : record.q) q *= scale;
    for (std::int64_t i = 0; i < width(); ++i) {
      const float rate = source_.decay_rate.row(0)[i / dim];
      const float r = source_.decay.row(tokens.back())[i] + source_.dt_bias.row(0)[i];
      record.g.push_back(shape_.is_bounded ? -5.0f * scalar::sigmoid<FloatOps>(rate * r)
                                           : -(rate * scalar::softplus<FloatOps>(r)));
    }
    return record;
  }

  // Writes a page, or a record and its raw projections, into a slot.
  void put(std::int32_t slot, const OracleState& held) {
    std::ranges::copy(held.state, state(slot));
    std::ranges::copy(held.window, window(slot));
  }
  void put_window_copy(std::int32_t slot, const OracleState& held) {
    for (int section = 0; section < 3; ++section) {
      const float* from = held.window.data() + section * kWindowRows * width();
      std::copy_n(from, kWindowRows * width(), conv_row(slot, section, 0));
    }
  }
  void put(std::int32_t slot, std::int64_t r, std::span<const std::int32_t> tokens) {
    const OracleRecord record = record_of(tokens);
    std::ranges::copy(record.q, qkg(slot, r, 0));
    std::ranges::copy(record.k, qkg(slot, r, 1));
    std::ranges::copy(record.g, qkg(slot, r, 2));
    std::ranges::copy(record.v, v(slot, r));
    std::ranges::copy(record.beta, beta(slot, r));
    for (int section = 0; section < 3; ++section) {
      std::copy_n(source_.qkv[static_cast<std::size_t>(section)].row(tokens.back()), width(),
                  conv_row(slot, section, kWindowRows + r));
    }
  }

  // Whatever a next call must not read: the copy of the window, and records from `first` on.
  void poison_rest(std::int32_t slot, std::int64_t first) {
    const auto fill = [](float* from, std::int64_t count) { std::fill_n(from, count, poison()); };
    const std::int64_t left = shape_.max_records - first;
    for (int section = 0; section < 3; ++section) {
      fill(conv_row(slot, section, 0), kWindowRows * width());
      fill(conv_row(slot, section, kWindowRows + first), left * width());
    }
    fill(qkg(slot, first, 0), 3 * left * width());
    fill(v(slot, first), left * width());
    fill(beta(slot, first), left * kda_beta_record_stride(shape_.num_heads));
  }

 private:
  // The inputs of some tokens, side by side, and room for their outputs.
  struct Inputs {
    Inputs(const KdaProblem& source, const Tokens& tokens)
        : decay(rows(tokens), source.width()),
          beta(rows(tokens), source.shape.num_heads, {.offset = 2, .gap = 1}),
          o(rows(tokens), source.width(), kAwkwardOutput) {
      for (const Floats& section : source.qkv) {
        gather(tokens, section, qkv.emplace_back(rows(tokens), source.width()));
      }
      gather(tokens, source.decay, decay);
      gather(tokens, source.beta, beta);
    }

    static std::int64_t rows(const Tokens& tokens) { return std::ssize(tokens); }
    static void gather(const Tokens& tokens, const Floats& from, Floats& to) {
      for (std::size_t t = 0; t < tokens.size(); ++t) {
        std::copy_n(from.row(tokens[t]), from.columns(), to.row(static_cast<std::int64_t>(t)));
      }
    }

    void point(KdaStepArgs& args) {
      for (std::size_t section = 0; section < 3; ++section) {
        args.qkv[section] = qkv[section].data();
      }
      args.qkv_stride = qkv[0].stride();
      args.decay = decay.data();
      args.decay_stride = decay.stride();
      args.beta = beta.data();
      args.beta_stride = beta.stride();
      args.o = o.data();
      args.o_stride = o.stride();
    }

    std::vector<Floats> qkv;
    Floats decay, beta, o;
  };

  std::array<std::int64_t, 8> part_floats() const {
    const std::int64_t records = shape_.max_records;
    const std::int64_t conv = kda_conv_record_floats(records, width());
    return {source_.state_floats(),
            source_.window_floats(),
            conv,
            conv,
            conv,
            kda_qkg_record_floats(records, width()),
            records * width(),
            records * kda_beta_record_stride(shape_.num_heads)};
  }
  std::int64_t slot_floats() const { return offset_of(8); }

  std::vector<float> convolved(std::span<const std::int32_t> tokens, std::size_t section) const {
    std::vector<float> out;
    for (std::int64_t i = 0; i < width(); ++i) {
      float c = 0;
      for (std::int64_t tap = 0; tap < kConvTaps; ++tap) {
        const std::int64_t t = std::ssize(tokens) - kConvTaps + tap;
        const float x =
            t < 0 ? 0.0f : source_.qkv[section].row(tokens[static_cast<std::size_t>(t)])[i];
        const float weight = source_.conv_weight[section].row(tap)[i];
        c = tap == 0 ? weight * x : std::fma(weight, x, c);
      }
      out.push_back(scalar::silu<scalar::FloatOps>(c));
    }
    return out;
  }
  void normalise(float* x) const {
    const std::int32_t n = shape_.head_dim;
    const float inv = 1.0f / std::sqrt(reference::sum_of_products(x, x, n) + 1e-6f);
    for (std::int32_t i = 0; i < n; ++i) x[i] *= inv;
  }

  ReplayShape shape_;
  KdaProblem source_;
  PoisonedPages pages_;
};

}  // namespace slackwater::kernels::test

#endif  // SLACKWATER_KERNELS_KDA_KDA_REPLAY_PROBLEM_H_
