#ifndef SLACKWATER_TESTS_SIM_ENGINE_DIGEST_PAGES_H_
#define SLACKWATER_TESTS_SIM_ENGINE_DIGEST_PAGES_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

#include "slackwater/kernels/kda.h"
#include "slackwater/model/solo_storage.h"
#include "testing/digest_model.h"

namespace slackwater {

using Tokens = std::vector<TokenId>;

// State of a few sequences of a digest model, with all that speculation keeps, poisoned where
// nothing was written. Sequence i has the recurrent slot i and blocks of its own; further slots are
// for snapshots. Everything lies in one piece of memory per kind, so that a test can flip any byte.
class DigestPages {
 public:
  static constexpr std::int32_t kTokensPerBlock = 8;
  static constexpr std::int32_t kBlocks = 12;  // of a sequence
  static constexpr std::int32_t kRecords = 3;

  DigestPages(const model::ModelConfig& config, std::int32_t sequences, std::int32_t snapshots = 1)
      : config_(config) {
    const std::int32_t slots = sequences + snapshots;
    const std::int64_t row_floats = config.mla_row_width();
    latent_.resize(static_cast<std::size_t>(sequences * kBlocks * kTokensPerBlock * row_floats *
                                            (config.num_mla_layers() + 1)));
    recurrent_.resize(static_cast<std::size_t>(slots * slot_floats() * config.num_kda_layers()));
    hidden_.resize(static_cast<std::size_t>(slots * (1 + kRecords) * config.hidden_size));
    for (std::vector<float>* values : {&latent_, &recurrent_, &hidden_}) {
      std::memset(values->data(), 0xFF, values->size() * sizeof(float));
    }
    make_views(sequences, slots);
  }

  std::vector<float>& latent() { return latent_; }
  std::vector<float>& recurrent() { return recurrent_; }
  std::vector<float>& hidden() { return hidden_; }

  // State and window of a slot, layer by layer; as bits, for some are no numbers.
  std::vector<std::uint32_t> page(SlotId slot) const {
    std::vector<std::uint32_t> all;
    const auto append = [&all](const float* from, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        all.push_back(std::bit_cast<std::uint32_t>(from[i]));
      }
    };
    for (const kernels::RecurrentPages& pages : recurrent_pages_) {
      append(pages.state_base + slot.value() * pages.slot_stride, state_floats());
      append(pages.window_base + slot.value() * pages.slot_stride, window_floats());
    }
    return all;
  }
  std::span<const kernels::RecurrentPages> recurrent_pages() const { return recurrent_pages_; }
  std::span<const kernels::ReplayRecords> records() const { return records_; }
  const kernels::LatentPages& mtp_pages() const { return latent_pages_.back(); }
  kernels::BlockTable blocks(std::int32_t sequence) const {
    return std::span(blocks_).subspan(static_cast<std::size_t>(sequence * kBlocks), kBlocks);
  }

  model::ForwardBatch batch() const {
    model::ForwardBatch batch;
    batch.latent_pages = std::span(latent_pages_).first(latent_pages_.size() - 1);
    batch.recurrent_pages = recurrent_pages_;
    batch.records = records_;
    const std::int64_t size = config_.hidden_size;
    float* const base = const_cast<float*>(hidden_.data());
    batch.hidden_pages = {.page_base = base,
                          .page_stride = (1 + kRecords) * size,
                          .record_base = base + size,
                          .record_stride = (1 + kRecords) * size};
    return batch;
  }

 private:
  std::int64_t state_floats() const {
    return kernels::kda_state_floats(config_.kda_num_heads, config_.kda_head_dim);
  }
  std::int64_t window_floats() const {
    return kernels::kda_window_floats(config_.kda_num_heads, config_.kda_head_dim);
  }
  std::int64_t conv_floats() const {
    return kernels::kda_conv_record_floats(kRecords, config_.kda_width());
  }
  std::int64_t slot_floats() const {
    return state_floats() + window_floats() + 3 * conv_floats() +
           kernels::kda_qkg_record_floats(kRecords, config_.kda_width()) +
           kRecords * config_.kda_width() +
           kRecords * kernels::kda_beta_record_stride(config_.kda_num_heads);
  }

  void make_views(std::int32_t sequences, std::int32_t slots) {
    for (std::int32_t block = 0; block < sequences * kBlocks; ++block) {
      // Neighbours in a sequence are not neighbours in memory.
      blocks_.emplace_back(block * 5 % (sequences * kBlocks));
    }
    const std::int64_t row_bytes = std::int64_t{config_.mla_row_width()} * 4;
    const std::int32_t layers = config_.num_mla_layers() + 1;
    for (std::int32_t layer = 0; layer < layers; ++layer) {
      kernels::LatentPages& pages = latent_pages_.emplace_back();
      pages.base =
          reinterpret_cast<std::byte*>(latent_.data()) + layer * kTokensPerBlock * row_bytes;
      pages.slot_stride = layers * kTokensPerBlock * row_bytes;
      pages.token_stride = row_bytes;
      pages.num_slots = sequences * kBlocks;
      pages.tokens_per_block = kTokensPerBlock;
      pages.width = config_.mla_row_width();
    }
    for (std::int32_t layer = 0; layer < config_.num_kda_layers(); ++layer) {
      const std::int64_t stride = slot_floats() * config_.num_kda_layers();
      float* next = recurrent_.data() + layer * slot_floats();
      const auto take = [&](std::int64_t count) { return std::exchange(next, next + count); };
      kernels::RecurrentPages& pages = recurrent_pages_.emplace_back();
      pages.state_base = take(state_floats());
      pages.window_base = take(window_floats());
      pages.slot_stride = stride;
      pages.num_slots = slots;
      kernels::ReplayRecords& records = records_.emplace_back();
      for (float*& conv : records.conv_base) conv = take(conv_floats());
      records.qkg_base = take(kernels::kda_qkg_record_floats(kRecords, config_.kda_width()));
      records.v_base = take(kRecords * config_.kda_width());
      records.beta_base = next;
      records.slot_stride = stride;
      records.num_slots = slots;
      records.max_records = kRecords;
    }
  }

  const model::ModelConfig& config_;
  std::vector<float> latent_;     // [slots][layers, the prediction block last][tokens][row]
  std::vector<float> recurrent_;  // [slots][layers][state | window | records]
  std::vector<float> hidden_;     // [slots][page | records][hidden]
  std::vector<SlotId> blocks_;    // [sequences][kBlocks]
  std::vector<kernels::LatentPages> latent_pages_;
  std::vector<kernels::RecurrentPages> recurrent_pages_;
  std::vector<kernels::ReplayRecords> records_;
};

// One sequence's share of a step. Fields are those of kernels::SequenceRow.
struct DigestRow {
  std::int32_t sequence = 0;
  std::int64_t first_position = 0;
  Tokens tokens;
  std::int32_t num_pending = 0;
  std::vector<kernels::StateWrite> writes;
};

// A step of some rows; the logits of all their tokens, row after row.
inline std::vector<std::vector<float>> run_rows(DigestModel& model, DigestPages& pages,
                                                const std::vector<DigestRow>& steps) {
  std::vector<kernels::SequenceRow> rows;
  Tokens tokens;
  for (const DigestRow& step : steps) {
    kernels::SequenceRow& row = rows.emplace_back();
    row.first_token = static_cast<std::int32_t>(tokens.size());
    row.num_tokens = static_cast<std::int32_t>(step.tokens.size());
    row.first_position = step.first_position;
    row.block_table = pages.blocks(step.sequence);
    row.state_page = SlotId(step.sequence);
    row.writes = step.writes;
    row.num_pending = step.num_pending;
    tokens.insert(tokens.end(), step.tokens.begin(), step.tokens.end());
  }
  std::vector<std::int32_t> wanted(tokens.size());
  std::iota(wanted.begin(), wanted.end(), 0);
  std::vector<float> logits(tokens.size() * DigestModel::kVocabulary);
  model::ForwardBatch batch = pages.batch();
  batch.token_ids = tokens;
  batch.rows = rows;
  batch.logit_tokens = wanted;
  model.run(batch, logits);
  std::vector<std::vector<float>> of_tokens;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const auto first = logits.begin() + static_cast<std::ptrdiff_t>(i * DigestModel::kVocabulary);
    of_tokens.emplace_back(first, first + DigestModel::kVocabulary);
  }
  return of_tokens;
}

}  // namespace slackwater

#endif  // SLACKWATER_TESTS_SIM_ENGINE_DIGEST_PAGES_H_
