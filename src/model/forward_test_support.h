#ifndef SLACKWATER_MODEL_FORWARD_TEST_SUPPORT_H_
#define SLACKWATER_MODEL_FORWARD_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <limits>
#include <numeric>
#include <random>
#include <span>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/numeric.h"
#include "slackwater/base/thread_pool.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/forward.h"
#include "slackwater/model/model.h"
#include "slackwater/model/solo_storage.h"

namespace slackwater::model {

inline std::filesystem::path source_path(const std::string& relative) {
  return std::filesystem::path(SLACKWATER_SOURCE_DIR) / relative;
}

// The checkpoint in `directory`, or a failed test.
inline Model load_model(const std::filesystem::path& directory,
                        kernels::ExecutionContext& context) {
  Result<Model> model = Model::load(directory, context, {});
  if (!model.has_value()) {
    ADD_FAILURE() << model.error().text();
    std::abort();
  }
  return *std::move(model);
}

// Tokens by seed, as a user's text would have them.
inline std::vector<TokenId> random_tokens(const ModelConfig& config, std::int64_t count,
                                          std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<TokenId> any(0, config.vocab_size - 1);
  std::vector<TokenId> tokens(static_cast<std::size_t>(count));
  std::ranges::generate(tokens, [&] { return any(random); });
  return tokens;
}

// Pages for several sequences in shuffled slots, poisoned with NaN: what is read without having
// been written shows in every result that it touches.
class PoisonedPages {
 public:
  struct Options {
    std::int32_t sequences = 1;
    std::int64_t length = 128;  // tokens of a sequence
    std::int32_t tokens_per_block = 32;
    std::int32_t snapshots = 4;  // recurrent slots that belong to nobody
    std::uint64_t seed = 1;
    DType dtype = DType::kF32;  // of the latent rows
  };
  PoisonedPages(const ModelConfig& config, const Options& options)
      : config_(config), options_(options) {
    const std::int64_t blocks = ceil_div<std::int64_t>(options.length, options.tokens_per_block);
    latent_.layer_stride = std::int64_t{options.tokens_per_block} * config.mla_row_width() *
                           dtype_bytes(options.dtype);
    latent_.slot_stride = latent_.layer_stride * config.num_mla_layers();
    latent_.num_slots = static_cast<std::int32_t>(options.sequences * blocks + 3);
    latent_.tokens_per_block = options.tokens_per_block;
    recurrent_.layer_stride = recurrent_layer_floats(config) * 4;
    recurrent_.slot_stride = recurrent_.layer_stride * config.num_kda_layers();
    recurrent_.num_slots = options.sequences + options.snapshots;
    poison(latent_values_, latent_);
    poison(recurrent_values_, recurrent_);
    latent_views_ = latent_views(config, latent_, options.dtype);
    recurrent_views_ = recurrent_views(config, recurrent_);

    std::mt19937_64 random(options.seed);
    const std::vector<SlotId> latent_order = shuffled(latent_.num_slots, random);
    for (std::int32_t s = 0; s < options.sequences; ++s) {
      tables_.emplace_back(latent_order.begin() + s * blocks,
                           latent_order.begin() + (s + 1) * blocks);
    }
    state_slots_ = shuffled(recurrent_.num_slots, random);
  }

  std::span<const kernels::LatentPages> latent() const { return latent_views_; }
  std::span<const kernels::RecurrentPages> recurrent() const { return recurrent_views_; }
  kernels::BlockTable table(std::int32_t sequence) const {
    return tables_[static_cast<std::size_t>(sequence)];
  }
  SlotId state_page(std::int32_t sequence) const {
    return state_slots_[static_cast<std::size_t>(sequence)];
  }
  SlotId snapshot_page(std::int32_t index) const {
    return state_slots_[static_cast<std::size_t>(options_.sequences + index)];
  }

  // All layers of one recurrent slot.
  std::span<float> slot(SlotId slot) {
    const std::int64_t floats = recurrent_.slot_stride / 4;
    return recurrent_values_.span().subspan(static_cast<std::size_t>(slot.value() * floats),
                                            static_cast<std::size_t>(floats));
  }

  // Makes the latent rows of positions [begin, end) of a sequence NaN again, in every layer.
  void poison_latent_rows(std::int32_t sequence, std::int64_t begin, std::int64_t end) {
    for (const kernels::LatentPages& pages : latent_views_) {
      for (std::int64_t p = begin; p < end; ++p) {
        const SlotId slot = table(sequence)[static_cast<std::size_t>(p / pages.tokens_per_block)];
        std::memset(pages.base + slot.value() * pages.slot_stride +
                        p % pages.tokens_per_block * pages.token_stride,
                    0xFF, static_cast<std::size_t>(pages.token_stride));
      }
    }
  }

  // The latent rows, f32, of positions [0, length) of a sequence, layer by layer.
  std::vector<float> latent_rows(std::int32_t sequence, std::int64_t length) const {
    std::vector<float> rows;
    for (const kernels::LatentPages& pages : latent_views_) {
      for (std::int64_t p = 0; p < length; ++p) {
        const SlotId slot = table(sequence)[static_cast<std::size_t>(p / pages.tokens_per_block)];
        const float* row =
            reinterpret_cast<const float*>(pages.base + slot.value() * pages.slot_stride +
                                           p % pages.tokens_per_block * pages.token_stride);
        rows.insert(rows.end(), row, row + pages.width);
      }
    }
    return rows;
  }

 private:
  static void poison(AlignedBuffer<float>& values, PageTable& table) {
    values =
        AlignedBuffer<float>(static_cast<std::size_t>(table.num_slots * table.slot_stride / 4));
    std::ranges::fill(values.span(), std::numeric_limits<float>::quiet_NaN());
    table.base = reinterpret_cast<std::byte*>(values.data());
  }

  static std::vector<SlotId> shuffled(std::int32_t num_slots, std::mt19937_64& random) {
    std::vector<SlotId> slots;
    for (std::int32_t i = 0; i < num_slots; ++i) slots.push_back(SlotId(i));
    std::ranges::shuffle(slots, random);
    return slots;
  }

  const ModelConfig& config_;
  Options options_;
  PageTable latent_;
  PageTable recurrent_;
  AlignedBuffer<float> latent_values_;
  AlignedBuffer<float> recurrent_values_;
  std::vector<kernels::LatentPages> latent_views_;
  std::vector<kernels::RecurrentPages> recurrent_views_;
  std::vector<std::vector<SlotId>> tables_;
  std::vector<SlotId> state_slots_;
};

// The next tokens of one sequence within a batch.
struct Chunk {
  std::int32_t sequence = 0;
  std::int32_t count = 0;
  std::vector<kernels::StateWrite> snapshots;  // before the row's own page
};

// Runs sequences through a model, batch by batch, and keeps the logits of every token.
class SequenceRunner {
 public:
  SequenceRunner(const Model& model, kernels::ExecutionContext& context, PoisonedPages& pages,
                 std::vector<std::vector<TokenId>> sequences)
      : config_(model.config()),
        pages_(pages),
        sequences_(std::move(sequences)),
        positions_(sequences_.size(), 0),
        logits_(sequences_.size()),
        forward_(model, context, {.max_tokens = 512, .max_logits = 512}) {}

  void run(const std::vector<Chunk>& chunks) {
    std::vector<TokenId> tokens;
    std::vector<kernels::SequenceRow> rows;
    std::vector<std::vector<kernels::StateWrite>> writes;
    for (const Chunk& chunk : chunks) {
      const auto s = static_cast<std::size_t>(chunk.sequence);
      kernels::SequenceRow row;
      row.first_token = static_cast<std::int32_t>(tokens.size());
      row.num_tokens = chunk.count;
      row.first_position = positions_[s];
      row.block_table = pages_.table(chunk.sequence);
      row.state_page = pages_.state_page(chunk.sequence);
      rows.push_back(row);
      writes.push_back(chunk.snapshots);
      writes.back().push_back({chunk.count, row.state_page});
      const auto first = sequences_[s].begin() + positions_[s];
      tokens.insert(tokens.end(), first, first + chunk.count);
    }
    for (std::size_t i = 0; i < rows.size(); ++i) rows[i].writes = writes[i];
    run_batch(tokens, rows);
    for (std::size_t i = 0; i < chunks.size(); ++i) {
      positions_[static_cast<std::size_t>(chunks[i].sequence)] += chunks[i].count;
    }
  }

  // One sequence alone, `counts` tokens at a time.
  void run_alone(std::int32_t sequence, const std::vector<std::int32_t>& counts) {
    for (const std::int32_t count : counts) run({Chunk{sequence, count, {}}});
  }

  // Takes up a sequence at `position`, whose pages are in place.
  void set_position(std::int32_t sequence, std::int64_t position) {
    positions_[static_cast<std::size_t>(sequence)] = position;
  }

  const std::vector<float>& logits(std::int32_t sequence) const {
    return logits_[static_cast<std::size_t>(sequence)];
  }

 private:
  void run_batch(const std::vector<TokenId>& tokens,
                 const std::vector<kernels::SequenceRow>& rows) {
    std::vector<std::int32_t> wanted(tokens.size());
    std::iota(wanted.begin(), wanted.end(), 0);
    const auto vocabulary = static_cast<std::size_t>(config_.vocab_size);
    std::vector<float> logits(tokens.size() * vocabulary);
    ForwardBatch batch;
    batch.token_ids = tokens;
    batch.rows = rows;
    batch.latent_pages = pages_.latent();
    batch.recurrent_pages = pages_.recurrent();
    batch.logit_tokens = wanted;
    forward_.run(batch, logits);
    for (const kernels::SequenceRow& row : rows) {
      for (std::size_t s = 0; s < sequences_.size(); ++s) {
        if (pages_.state_page(static_cast<std::int32_t>(s)) != row.state_page) continue;
        const auto first = logits.begin() + row.first_token * std::int64_t{config_.vocab_size};
        logits_[s].insert(logits_[s].end(), first,
                          first + row.num_tokens * std::int64_t{config_.vocab_size});
      }
    }
  }

  const ModelConfig& config_;
  PoisonedPages& pages_;
  std::vector<std::vector<TokenId>> sequences_;
  std::vector<std::int64_t> positions_;
  std::vector<std::vector<float>> logits_;  // [sequences][tokens run, vocabulary]
  ForwardPass forward_;
};

// Equal bits, with the first difference in the message. NaN never counts as equal: poison that
// got into a result is a failure even if it got into both.
inline ::testing::AssertionResult same_bits(std::span<const float> got,
                                            std::span<const float> want) {
  if (got.size() != want.size()) {
    return ::testing::AssertionFailure() << got.size() << " values, " << want.size() << " wanted";
  }
  if (got.empty()) return ::testing::AssertionFailure() << "nothing to compare";
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (got[i] == got[i] && std::memcmp(&got[i], &want[i], sizeof(float)) == 0) continue;
    return ::testing::AssertionFailure() << "value " << i << " of " << got.size() << ": "
                                         << std::hexfloat << got[i] << " instead of " << want[i];
  }
  return ::testing::AssertionSuccess();
}

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_FORWARD_TEST_SUPPORT_H_
