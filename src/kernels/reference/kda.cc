#include <algorithm>
#include <array>
#include <cmath>
#include <vector>

#include "kernels/reference/reference.h"
#include "kernels/vector_math.h"

namespace slackwater::kernels::reference {
namespace {

using scalar::FloatOps;

// One token's values for one head, after convolution, activation and normalisation.
struct HeadToken {
  std::vector<float> q, k, v, g, a;  // [D] each
  float beta = 0;
  float qk = 0;
};

// The recurrent state of one head, and the raw projections of its last three tokens.
struct HeadState {
  std::vector<float> state;   // [D / 32][D][32]
  std::vector<float> window;  // [3][3][D]: section, oldest first, channel
};

// Position of (key i, column j) in a head's state.
std::size_t state_index(std::int32_t head_dim, std::int32_t i, std::int32_t j) {
  const std::int32_t tile = j / kValueTile;
  return static_cast<std::size_t>((tile * head_dim + i) * kValueTile + j % kValueTile);
}

float* page_state(const KdaStepArgs& args, SlotId page, std::int32_t head) {
  return args.pages.state_base + page.value() * args.pages.slot_stride +
         kda_state_floats(head, args.head_dim);
}

float* page_window(const KdaStepArgs& args, SlotId page, std::int32_t head, int section, int row) {
  const std::int64_t width = std::int64_t{args.num_heads} * args.head_dim;
  return args.pages.window_base + page.value() * args.pages.slot_stride +
         (section * kWindowRows + row) * width + std::int64_t{head} * args.head_dim;
}

// Where a head's part of record `r` of slot `slot` lies.
struct RecordPlace {
  float *q, *k, *g, *v, *beta;
};

RecordPlace record_place(const KdaStepArgs& args, SlotId slot, std::int32_t head, std::int64_t r) {
  const ReplayRecords& records = args.records;
  const std::int64_t width = std::int64_t{args.num_heads} * args.head_dim;
  const std::int64_t first = slot.value() * records.slot_stride;
  const std::int64_t channel = first + std::int64_t{head} * args.head_dim;
  float* qkg = records.qkg_base + channel + 3 * r * width;
  return {.q = qkg,
          .k = qkg + width,
          .g = qkg + 2 * width,
          .v = records.v_base + channel + r * width,
          .beta = records.beta_base + first + head + r * kda_beta_record_stride(args.num_heads)};
}

// The window's copy has rows [0, 3), record r has row 3 + r.
float* record_row(const KdaStepArgs& args, SlotId slot, std::int32_t head, int section,
                  std::int64_t row) {
  const std::int64_t width = std::int64_t{args.num_heads} * args.head_dim;
  return args.records.conv_base[static_cast<std::size_t>(section)] +
         slot.value() * args.records.slot_stride + row * width + std::int64_t{head} * args.head_dim;
}

HeadState load(const KdaStepArgs& args, const SequenceRow& row, std::int32_t head) {
  const std::size_t dim = static_cast<std::size_t>(args.head_dim);
  HeadState loaded{std::vector<float>(dim * dim), std::vector<float>(9 * dim)};
  // A page at position 0 is not read: state and window are +0.
  if (row.first_position == row.num_pending) return loaded;
  const float* state = page_state(args, row.state_page, head);
  loaded.state.assign(state, state + dim * dim);
  for (int section = 0; section < 3; ++section) {
    for (int r = 0; r < kWindowRows; ++r) {
      const float* source = page_window(args, row.state_page, head, section, r);
      std::copy(source, source + dim, &loaded.window[(section * 3 + r) * dim]);
    }
  }
  return loaded;
}

void store(const KdaStepArgs& args, SlotId page, std::int32_t head, const HeadState& held) {
  const std::size_t dim = static_cast<std::size_t>(args.head_dim);
  std::copy(held.state.begin(), held.state.end(), page_state(args, page, head));
  for (int section = 0; section < 3; ++section) {
    for (int r = 0; r < kWindowRows; ++r) {
      const float* source = &held.window[(section * 3 + r) * dim];
      std::copy(source, source + dim, page_window(args, page, head, section, r));
    }
  }
}

// Drops the oldest raw values of a section and appends those of the next token.
void shift(const float* raw, std::int32_t dim, float* window) {
  std::copy(window + dim, window + 3 * dim, window);
  std::copy(raw, raw + dim, window + 2 * dim);
}

// Convolves one section for the token whose raw values are `raw`, then shifts the window.
std::vector<float> convolve(const KdaStepArgs& args, std::int32_t head, int section,
                            const float* raw, HeadState& held) {
  const std::int32_t dim = args.head_dim;
  const std::int64_t width = std::int64_t{args.num_heads} * dim;
  const float* weight = args.conv_weight[section] + std::int64_t{head} * dim;
  float* window = &held.window[static_cast<std::size_t>(section * 3 * dim)];
  std::vector<float> activated(static_cast<std::size_t>(dim));
  for (std::int32_t i = 0; i < dim; ++i) {
    float c = weight[i] * window[i];
    c = std::fma(weight[width + i], window[dim + i], c);
    c = std::fma(weight[2 * width + i], window[2 * dim + i], c);
    c = std::fma(weight[3 * width + i], raw[i], c);
    activated[static_cast<std::size_t>(i)] = scalar::silu<FloatOps>(c);
  }
  shift(raw, dim, window);
  return activated;
}

// x = x * inv, inv = 1 / sqrt(sum of squares + 1e-6).
void normalise(std::vector<float>& x) {
  const auto n = static_cast<std::int32_t>(x.size());
  const float inv = 1.0f / std::sqrt(sum_of_products(x.data(), x.data(), n) + 1e-6f);
  for (float& value : x) value *= inv;
}

float log_decay(const KdaStepArgs& args, std::int32_t head, float r) {
  const float rate = args.decay_rate[head];
  if (args.gate_lower_bound.has_value()) {
    return *args.gate_lower_bound * scalar::sigmoid<FloatOps>(rate * r);
  }
  return -(rate * scalar::softplus<FloatOps>(r));
}

HeadToken prepare(const KdaStepArgs& args, std::int32_t head, std::int64_t token, HeadState& held) {
  const std::int64_t first = std::int64_t{head} * args.head_dim;
  const auto raw = [&](int section) { return args.qkv[section] + token * args.qkv_stride + first; };
  HeadToken out;
  out.q = convolve(args, head, 0, raw(0), held);
  out.k = convolve(args, head, 1, raw(1), held);
  out.v = convolve(args, head, 2, raw(2), held);
  normalise(out.q);
  normalise(out.k);
  const float scale = 1.0f / std::sqrt(static_cast<float>(args.head_dim));
  for (float& value : out.q) value *= scale;
  out.qk = sum_of_products(out.q.data(), out.k.data(), args.head_dim);
  const float* decay = args.decay + token * args.decay_stride + first;
  for (std::int32_t i = 0; i < args.head_dim; ++i) {
    const float r = decay[i] + args.dt_bias[first + i];
    out.g.push_back(log_decay(args, head, r));
    out.a.push_back(scalar::exp<FloatOps>(out.g.back()));
  }
  out.beta = scalar::sigmoid<FloatOps>(args.beta[token * args.beta_stride + head]);
  return out;
}

// One token through one value column; returns its output. A replayed one has no query: its output
// was taken when it was a draft.
float step_column(const HeadToken& token, std::int32_t head_dim, std::int32_t column,
                  std::vector<float>& state) {
  float p[2] = {0.0f, 0.0f};
  float r[2] = {0.0f, 0.0f};
  for (std::int32_t i = 0; i < head_dim; ++i) {
    float& s = state[state_index(head_dim, i, column)];
    const std::size_t key = static_cast<std::size_t>(i);
    s = token.a[key] * s;
    p[i % 2] = std::fma(token.k[key], s, p[i % 2]);
    if (!token.q.empty()) r[i % 2] = std::fma(token.q[key], s, r[i % 2]);
  }
  const float u = token.beta * (token.v[static_cast<std::size_t>(column)] - (p[0] + p[1]));
  for (std::int32_t i = 0; i < head_dim; ++i) {
    float& s = state[state_index(head_dim, i, column)];
    s = std::fma(token.k[static_cast<std::size_t>(i)], u, s);
    // A stored state is never so small that the next a * s could be denormal.
    if (std::fabs(s) < 0x1p-64f) s = 0.0f;
  }
  return std::fma(token.qk, u, r[0] + r[1]);
}

// Folds record `r` of the row's slot into state and window.
void replay(const KdaStepArgs& args, const SequenceRow& row, std::int32_t head, std::int64_t r,
            HeadState& held) {
  const std::int32_t dim = args.head_dim;
  const RecordPlace place = record_place(args, row.state_page, head, r);
  HeadToken token;
  token.k.assign(place.k, place.k + dim);
  token.v.assign(place.v, place.v + dim);
  for (std::int32_t i = 0; i < dim; ++i) token.a.push_back(scalar::exp<FloatOps>(place.g[i]));
  token.beta = *place.beta;
  for (std::int32_t column = 0; column < dim; ++column) {
    step_column(token, dim, column, held.state);
  }
  for (int section = 0; section < 3; ++section) {
    shift(record_row(args, row.state_page, head, section, kWindowRows + r), dim,
          &held.window[static_cast<std::size_t>(section * 3 * dim)]);
  }
}

// What ran past the row's page becomes records. `tokens` are those of the row.
void leave_records(const KdaStepArgs& args, const SequenceRow& row, std::int32_t head,
                   const std::vector<HeadToken>& tokens) {
  if (args.records.max_records == 0) return;
  std::int64_t r = row.num_pending;
  std::int32_t t = 0;
  if (!row.writes.empty()) {
    r = 0;
    t = row.writes.back().count;
    for (int i = 0; i < kWindowRows; ++i) {
      for (int section = 0; section < 3; ++section) {
        const float* source = page_window(args, row.state_page, head, section, i);
        std::copy(source, source + args.head_dim,
                  record_row(args, row.state_page, head, section, i));
      }
    }
  }
  for (; t < row.num_tokens; ++t, ++r) {
    const RecordPlace place = record_place(args, row.state_page, head, r);
    const HeadToken& token = tokens[static_cast<std::size_t>(t)];
    std::ranges::copy(token.q, place.q);
    std::ranges::copy(token.k, place.k);
    std::ranges::copy(token.g, place.g);
    std::ranges::copy(token.v, place.v);
    *place.beta = token.beta;
    for (int section = 0; section < 3; ++section) {
      const float* raw = args.qkv[static_cast<std::size_t>(section)] +
                         (row.first_token + t) * args.qkv_stride +
                         std::int64_t{head} * args.head_dim;
      std::copy(raw, raw + args.head_dim,
                record_row(args, row.state_page, head, section, kWindowRows + r));
    }
  }
}

void step_head(const KdaStepArgs& args, const SequenceRow& row, std::int32_t head) {
  HeadState held = load(args, row, head);
  for (std::int64_t r = 0; r < row.num_pending; ++r) replay(args, row, head, r, held);
  std::vector<HeadToken> tokens;
  auto write = row.writes.begin();
  for (std::int32_t done = 0;; ++done) {
    for (; write != row.writes.end() && write->count == done; ++write) {
      store(args, write->page, head, held);
    }
    if (done == row.num_tokens) break;
    const std::int64_t token_index = row.first_token + done;
    const HeadToken& token = tokens.emplace_back(prepare(args, head, token_index, held));
    float* o = args.o + token_index * args.o_stride + std::int64_t{head} * args.head_dim;
    for (std::int32_t column = 0; column < args.head_dim; ++column) {
      o[column] = step_column(token, args.head_dim, column, held.state);
    }
  }
  leave_records(args, row, head, tokens);
}

}  // namespace

void kda_step(ExecutionContext&, const KdaStepArgs& args) {
  for (const SequenceRow& row : args.rows) {
    for (std::int32_t head = 0; head < args.num_heads; ++head) step_head(args, row, head);
  }
}

}  // namespace slackwater::kernels::reference
