#ifndef SLACKWATER_TESTING_KDA_MODEL_H_
#define SLACKWATER_TESTING_KDA_MODEL_H_

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/kernels/views.h"

namespace slackwater {

// A model of KDA layers alone, with made-up weights: what it says next depends on every token
// before and on every bit of the state. So whoever runs it with a state, a window or records that
// are not its own says something else.
//
// What is run is the product's kernel; only weights, embeddings and the choice of the next token
// are invented.
class KdaModel {
 public:
  static constexpr TokenId kVocabulary = 97;

  struct Shape {
    std::int32_t num_layers = 2;
    std::int32_t num_heads = 1;
    std::int32_t head_dim = 32;
  };

  // One request's share of a step; the fields are those of kernels::SequenceRow.
  struct Row {
    std::vector<TokenId> tokens;
    std::int64_t first_position = 0;
    SlotId slot;
    std::int32_t num_pending = 0;
    std::vector<kernels::StateWrite> writes;
  };

  explicit KdaModel(const Shape& shape) : shape_(shape) {
    const std::int64_t width = this->width();
    for (std::int32_t layer = 0; layer < shape.num_layers; ++layer) {
      Layer& made = layers_.emplace_back();
      const auto salt = static_cast<std::uint64_t>(layer + 1) << 32;
      for (std::size_t section = 0; section < 3; ++section) {
        fill(made.conv_weight[section], kernels::kConvTaps * width, salt + section, 1.0f);
      }
      fill(made.dt_bias, width, salt + 8, 1.0f);
      for (std::int32_t head = 0; head < shape.num_heads; ++head) {
        made.decay_rate.push_back(kernels::kda_decay_rate(0.3f * static_cast<float>(head)));
      }
    }
  }

  const Shape& shape() const { return shape_; }
  std::int64_t width() const { return std::int64_t{shape_.num_heads} * shape_.head_dim; }

  // Runs the rows through all layers, and returns for every token of every row the one that
  // follows it. `pages` and `records` are [layers].
  std::vector<std::vector<TokenId>> run(kernels::ExecutionContext& context,
                                        std::span<const kernels::RecurrentPages> pages,
                                        std::span<const kernels::ReplayRecords> records,
                                        std::span<const Row> rows) const {
    std::vector<kernels::SequenceRow> views;
    std::vector<TokenId> tokens;
    for (const Row& row : rows) {
      kernels::SequenceRow& view = views.emplace_back();
      view.first_token = static_cast<std::int32_t>(tokens.size());
      view.num_tokens = static_cast<std::int32_t>(row.tokens.size());
      view.first_position = row.first_position;
      view.state_page = row.slot;
      view.writes = row.writes;
      view.num_pending = row.num_pending;
      tokens.insert(tokens.end(), row.tokens.begin(), row.tokens.end());
    }
    std::vector<float> hidden(tokens.size() * static_cast<std::size_t>(width()), 0.0f);
    for (std::size_t layer = 0; layer < layers_.size(); ++layer) {
      kernels::KdaStepArgs args;
      args.pages = pages[layer];
      args.records = records[layer];
      args.rows = views;
      run_layer(context, layer, args, tokens, hidden);
    }
    return next_tokens(rows, hidden);
  }

 private:
  struct Layer {
    std::array<std::vector<float>, 3> conv_weight;  // [4, D]
    std::vector<float> dt_bias;                     // [D]
    std::vector<float> decay_rate;                  // [H]
  };

  static std::uint64_t mix(std::uint64_t z) {
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  // In (-scale, scale).
  static float number(std::uint64_t key, float scale) {
    const auto word = static_cast<std::int32_t>(mix(key * 0x9E3779B97F4A7C15u) >> 40);
    return scale * (static_cast<float>(word - (1 << 23)) / static_cast<float>(1 << 23));
  }
  static void fill(std::vector<float>& values, std::int64_t count, std::uint64_t salt,
                   float scale) {
    for (std::int64_t i = 0; i < count; ++i) {
      values.push_back(number((salt << 20) + static_cast<std::uint64_t>(i), scale));
    }
  }

  void run_layer(kernels::ExecutionContext& context, std::size_t layer, kernels::KdaStepArgs args,
                 std::span<const TokenId> tokens, std::vector<float>& hidden) const {
    const auto width = static_cast<std::size_t>(this->width());
    const auto heads = static_cast<std::size_t>(shape_.num_heads);
    // q, k, v, decay and beta of every token, of its embedding and of the layer below.
    std::array<std::vector<float>, 4> inputs;
    std::vector<float> beta;
    for (std::size_t t = 0; t < tokens.size(); ++t) {
      const std::uint64_t key =
          (static_cast<std::uint64_t>(tokens[t]) << 24) + (static_cast<std::uint64_t>(layer) << 16);
      for (std::size_t kind = 0; kind < inputs.size(); ++kind) {
        for (std::size_t i = 0; i < width; ++i) {
          inputs[kind].push_back(number(key + (kind << 12) + i, 1.0f) + hidden[t * width + i]);
        }
      }
      for (std::size_t head = 0; head < heads; ++head) {
        beta.push_back(number(key + 0x5000 + head, 2.0f));
      }
    }
    std::vector<float> output(hidden.size());
    const Layer& weights = layers_[layer];
    args.num_heads = shape_.num_heads;
    args.head_dim = shape_.head_dim;
    for (std::size_t section = 0; section < 3; ++section) {
      args.qkv[section] = inputs[section].data();
      args.conv_weight[section] = weights.conv_weight[section].data();
    }
    args.decay = inputs[3].data();
    args.qkv_stride = args.decay_stride = args.o_stride = this->width();
    args.beta = beta.data();
    args.beta_stride = shape_.num_heads;
    args.dt_bias = weights.dt_bias.data();
    args.decay_rate = weights.decay_rate.data();
    args.o = output.data();
    kernels::kda_step(context, args);
    hidden.swap(output);
  }

  std::vector<std::vector<TokenId>> next_tokens(std::span<const Row> rows,
                                                std::span<const float> hidden) const {
    const auto width = static_cast<std::size_t>(this->width());
    std::vector<std::vector<TokenId>> next;
    std::size_t at = 0;
    for (const Row& row : rows) {
      std::vector<TokenId>& of_row = next.emplace_back();
      for (std::size_t t = 0; t < row.tokens.size(); ++t) {
        std::uint64_t digest = 0;
        for (std::size_t i = 0; i < width; ++i) {
          digest = mix(digest ^ std::bit_cast<std::uint32_t>(hidden[at++]));
        }
        of_row.push_back(static_cast<TokenId>(digest % kVocabulary));
      }
    }
    return next;
  }

  Shape shape_;
  std::vector<Layer> layers_;
};

// One request alone, in memory of its own: page, window and records in one slot.
class SoloKda {
 public:
  SoloKda(const KdaModel& model, std::int32_t max_records)
      : model_(model), max_records_(max_records) {
    const std::int64_t heads = model.shape().num_heads;
    const std::int64_t dim = model.shape().head_dim;
    const std::int64_t width = model.width();
    state_floats_ = kernels::kda_state_floats(heads, dim);
    window_floats_ = kernels::kda_window_floats(heads, dim);
    conv_floats_ = (kernels::kWindowRows + max_records) * width;
    qkg_floats_ = max_records * 3 * width;
    v_floats_ = max_records * width;
    beta_floats_ = max_records * ((heads + 3) / 4 * 4);
    layers_.resize(static_cast<std::size_t>(model.shape().num_layers));
    for (std::vector<float>& layer : layers_) {
      layer.resize(static_cast<std::size_t>(state_floats_ + window_floats_ + 3 * conv_floats_ +
                                            qkg_floats_ + v_floats_ + beta_floats_));
    }
  }

  // The row's slot and the pages of its writes are this one's.
  std::vector<TokenId> run(kernels::ExecutionContext& context, KdaModel::Row row) {
    row.slot = SlotId(0);
    if (!row.writes.empty()) row.writes = {{row.writes.back().count, SlotId(0)}};
    std::vector<kernels::RecurrentPages> pages;
    std::vector<kernels::ReplayRecords> records;
    for (std::vector<float>& layer : layers_) {
      pages.push_back(pages_of(layer));
      records.push_back(records_of(layer));
    }
    return model_.run(context, pages, records, std::span(&row, 1)).front();
  }

  // What it holds of a layer.
  std::span<const float> state(std::size_t layer) const { return part(layer, 0, state_floats_); }
  std::span<const float> window(std::size_t layer) const {
    return part(layer, state_floats_, window_floats_);
  }
  kernels::ReplayRecords records(std::size_t layer) { return records_of(layers_[layer]); }

 private:
  std::span<const float> part(std::size_t layer, std::int64_t first, std::int64_t count) const {
    return std::span(layers_[layer])
        .subspan(static_cast<std::size_t>(first), static_cast<std::size_t>(count));
  }
  kernels::RecurrentPages pages_of(std::vector<float>& layer) const {
    return {.state_base = layer.data(),
            .window_base = layer.data() + state_floats_,
            .slot_stride = std::ssize(layer),
            .num_slots = 1};
  }
  kernels::ReplayRecords records_of(std::vector<float>& layer) const {
    kernels::ReplayRecords records;
    float* next = layer.data() + state_floats_ + window_floats_;
    for (float*& conv : records.conv_base) {
      conv = next;
      next += conv_floats_;
    }
    records.qkg_base = next;
    records.v_base = next + qkg_floats_;
    records.beta_base = next + qkg_floats_ + v_floats_;
    records.slot_stride = std::ssize(layer);
    records.num_slots = 1;
    records.max_records = max_records_;
    return records;
  }

  const KdaModel& model_;
  const std::int32_t max_records_;
  std::int64_t state_floats_ = 0;
  std::int64_t window_floats_ = 0;
  std::int64_t conv_floats_ = 0;
  std::int64_t qkg_floats_ = 0;
  std::int64_t v_floats_ = 0;
  std::int64_t beta_floats_ = 0;
  std::vector<std::vector<float>> layers_;  // [layers]: state, window, records
};

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_KDA_MODEL_H_
