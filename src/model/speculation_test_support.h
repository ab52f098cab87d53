#ifndef SLACKWATER_MODEL_SPECULATION_TEST_SUPPORT_H_
#define SLACKWATER_MODEL_SPECULATION_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "model/forward_test_support.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::model {

// Pages with all that speculation keeps beside them: replay records and hidden states of the
// recurrent slots, and latent rows of the prediction block under the same block tables. Poison
// where nothing was written.
class SpeculationPages : public PoisonedPages {
 public:
  SpeculationPages(const ModelConfig& config, const Options& options, std::int32_t max_records)
      : PoisonedPages(config, options),
        num_slots_(recurrent().front().num_slots),
        hidden_size_(config.hidden_size),
        max_records_(max_records),
        pages_(floats(num_slots_ * hidden_size_)),
        page_records_(floats(num_slots_ * max_records * hidden_size_)) {
    make_records(config);
    PageTable table;
    table.slot_stride = std::int64_t{options.tokens_per_block} * config.mla_row_width() * 4;
    table.layer_stride = table.slot_stride;
    table.num_slots = latent().front().num_slots;
    table.tokens_per_block = options.tokens_per_block;
    mtp_values_ = floats(table.num_slots * table.slot_stride / 4);
    table.base = reinterpret_cast<std::byte*>(mtp_values_.data());
    mtp_latent_ = latent_views(config, table, DType::kF32).front();
  }

  std::span<const kernels::ReplayRecords> records() const { return records_; }
  std::int32_t max_records() const { return max_records_; }
  const kernels::LatentPages& mtp_latent() const { return mtp_latent_; }
  HiddenPages hidden_pages() {
    return {.page_base = pages_.data(),
            .page_stride = hidden_size_,
            .record_base = page_records_.data(),
            .record_stride = max_records_ * hidden_size_};
  }
  // [hidden] of a page, and of one of its records.
  std::span<const float> hidden_of(SlotId slot) const { return row_of(pages_, slot.value()); }
  std::span<const float> hidden_of(SlotId slot, std::int32_t record) const {
    return row_of(page_records_, slot.value() * max_records_ + record);
  }

 private:
  static AlignedBuffer<float> floats(std::int64_t count) {
    AlignedBuffer<float> values(static_cast<std::size_t>(count));
    std::ranges::fill(values.span(), std::numeric_limits<float>::quiet_NaN());
    return values;
  }
  std::span<const float> row_of(const AlignedBuffer<float>& rows, std::int64_t row) const {
    return rows.span().subspan(static_cast<std::size_t>(row * hidden_size_),
                               static_cast<std::size_t>(hidden_size_));
  }

  // Slot-major, all layers of a slot together.
  void make_records(const ModelConfig& config) {
    const std::int64_t width = config.kda_width();
    const std::int64_t conv = kernels::kda_conv_record_floats(max_records_, width);
    const std::int64_t qkg = kernels::kda_qkg_record_floats(max_records_, width);
    const std::int64_t v = max_records_ * width;
    const std::int64_t beta = max_records_ * kernels::kda_beta_record_stride(config.kda_num_heads);
    const std::int64_t layer_floats = 3 * conv + qkg + v + beta;
    const std::int64_t slot_stride = layer_floats * config.num_kda_layers();
    record_values_ = floats(num_slots_ * slot_stride);
    for (std::int32_t layer = 0; layer < config.num_kda_layers(); ++layer) {
      float* base = record_values_.data() + layer * layer_floats;
      records_.push_back({.conv_base = {base, base + conv, base + 2 * conv},
                          .qkg_base = base + 3 * conv,
                          .v_base = base + 3 * conv + qkg,
                          .beta_base = base + 3 * conv + qkg + v,
                          .slot_stride = slot_stride,
                          .num_slots = num_slots_,
                          .max_records = max_records_});
    }
  }

  std::int32_t num_slots_;
  std::int64_t hidden_size_;
  std::int32_t max_records_;
  AlignedBuffer<float> pages_;         // [slots, hidden]
  AlignedBuffer<float> page_records_;  // [slots, M, hidden]
  AlignedBuffer<float> record_values_;
  std::vector<kernels::ReplayRecords> records_;  // [num_kda_layers]
  AlignedBuffer<float> mtp_values_;
  kernels::LatentPages mtp_latent_;
};

// One sequence's share of a step. The fields are those of kernels::SequenceRow.
struct StepRow {
  std::int32_t sequence = 0;
  std::int64_t first_position = 0;
  std::vector<TokenId> tokens;
  std::int32_t num_pending = 0;
  std::vector<kernels::StateWrite> writes;
};

// What a step gave a row.
struct RowOutput {
  std::vector<float> logits;        // [tokens, vocabulary]
  std::vector<float> hidden;        // [tokens, hidden]
  std::vector<float> first_hidden;  // [hidden]; empty at position 0
};

// One sequence's share of a run of the prediction block.
struct MtpRow {
  std::int32_t sequence = 0;
  std::int64_t first_position = 1;
  std::vector<TokenId> tokens;
  std::vector<const float*> hidden;  // [tokens]
};

// Row `index` of `width` values.
inline std::span<const float> row_of(const std::vector<float>& rows, std::int64_t index,
                                     std::int64_t width) {
  return std::span(rows).subspan(static_cast<std::size_t>(index * width),
                                 static_cast<std::size_t>(width));
}

inline TokenId best_token(std::span<const float> logits) {
  return static_cast<TokenId>(std::ranges::max_element(logits) - logits.begin());
}

// Runs steps over SpeculationPages, and keeps copies of what they gave.
class StepRunner {
 public:
  StepRunner(const Model& model, kernels::ExecutionContext& context, SpeculationPages& pages)
      : config_(model.config()),
        pages_(pages),
        forward_(model, context, {.max_tokens = 128, .max_logits = 128}) {}

  ForwardPass& forward() { return forward_; }
  std::int64_t vocabulary() const { return config_.vocab_size; }
  std::int64_t hidden_size() const { return config_.hidden_size; }

  std::vector<RowOutput> run(const std::vector<StepRow>& steps) {
    Rows rows;
    for (const StepRow& step : steps) {
      kernels::SequenceRow& row = rows.add(step.tokens, pages_.table(step.sequence));
      row.first_position = step.first_position;
      row.state_page = pages_.state_page(step.sequence);
      row.writes = step.writes;
      row.num_pending = step.num_pending;
    }
    const std::vector<std::int32_t> wanted = rows.all_tokens();
    std::vector<float> logits(wanted.size() * static_cast<std::size_t>(vocabulary()));
    ForwardBatch batch;
    batch.token_ids = rows.tokens;
    batch.rows = rows.views;
    batch.latent_pages = pages_.latent();
    batch.recurrent_pages = pages_.recurrent();
    batch.logit_tokens = wanted;
    batch.records = pages_.records();
    batch.hidden_pages = pages_.hidden_pages();
    forward_.run(batch, logits);
    std::vector<RowOutput> outputs;
    for (std::size_t i = 0; i < steps.size(); ++i) {
      const kernels::SequenceRow& row = rows.views[i];
      RowOutput& output = outputs.emplace_back();
      output.logits = part(logits.data(), row, vocabulary());
      output.hidden = part(forward_.hidden(), row, hidden_size());
      if (row.first_position == 0) continue;
      const float* first = forward_.first_hidden() + static_cast<std::int64_t>(i) * hidden_size();
      output.first_hidden.assign(first, first + hidden_size());
    }
    return outputs;
  }

  // Logits of all tokens of each row.
  std::vector<std::vector<float>> run_mtp(const std::vector<MtpRow>& steps) {
    Rows rows;
    std::vector<const float*> hidden;
    for (const MtpRow& step : steps) {
      rows.add(step.tokens, pages_.table(step.sequence)).first_position = step.first_position;
      hidden.insert(hidden.end(), step.hidden.begin(), step.hidden.end());
    }
    const std::vector<std::int32_t> wanted = rows.all_tokens();
    std::vector<float> logits(wanted.size() * static_cast<std::size_t>(vocabulary()));
    MtpBatch batch;
    batch.token_ids = rows.tokens;
    batch.hidden = hidden;
    batch.rows = rows.views;
    batch.latent_pages = pages_.mtp_latent();
    batch.logit_tokens = wanted;
    forward_.run_mtp(batch, logits);
    std::vector<std::vector<float>> outputs;
    for (const kernels::SequenceRow& row : rows.views) {
      outputs.push_back(part(logits.data(), row, vocabulary()));
    }
    return outputs;
  }

 private:
  struct Rows {
    std::vector<TokenId> tokens;
    std::vector<kernels::SequenceRow> views;

    kernels::SequenceRow& add(const std::vector<TokenId>& row_tokens, kernels::BlockTable table) {
      kernels::SequenceRow& row = views.emplace_back();
      row.first_token = static_cast<std::int32_t>(tokens.size());
      row.num_tokens = static_cast<std::int32_t>(row_tokens.size());
      row.block_table = table;
      tokens.insert(tokens.end(), row_tokens.begin(), row_tokens.end());
      return row;
    }
    std::vector<std::int32_t> all_tokens() const {
      std::vector<std::int32_t> wanted(tokens.size());
      std::iota(wanted.begin(), wanted.end(), 0);
      return wanted;
    }
  };

  static std::vector<float> part(const float* values, const kernels::SequenceRow& row,
                                 std::int64_t width) {
    const float* first = values + row.first_token * width;
    return {first, first + row.num_tokens * width};
  }

  const ModelConfig& config_;
  SpeculationPages& pages_;
  ForwardPass forward_;
};

// One sequence decoded token by token, without speculation: [positions] of everything.
struct Decoded {
  std::vector<std::vector<float>> logits;  // after the token
  std::vector<std::vector<float>> hidden;
  std::vector<std::vector<float>> state;  // the recurrent slot, after the token

  // The decoding of `tokens` on pages of its own.
  static Decoded of(const Model& model, kernels::ExecutionContext& context,
                    const std::vector<TokenId>& tokens) {
    SpeculationPages pages(model.config(), {.length = std::ssize(tokens)}, 1);
    StepRunner runner(model, context, pages);
    Decoded decoded;
    for (std::int64_t p = 0; p < std::ssize(tokens); ++p) {
      StepRow row = {.first_position = p, .tokens = {tokens[static_cast<std::size_t>(p)]}};
      row.writes = {{1, pages.state_page(0)}};
      std::vector<RowOutput> outputs = runner.run({row});
      decoded.logits.push_back(std::move(outputs[0].logits));
      decoded.hidden.push_back(std::move(outputs[0].hidden));
      const std::span<float> slot = pages.slot(pages.state_page(0));
      decoded.state.emplace_back(slot.begin(), slot.end());
    }
    return decoded;
  }
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_SPECULATION_TEST_SUPPORT_H_
