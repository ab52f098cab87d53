#include "testing/digest_model.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "kernels/latent_rows.h"
#include "kernels/row_checks.h"
#include "slackwater/base/check.h"
#include "slackwater/kernels/kda.h"
#include "testing/page_oracle.h"

namespace slackwater {
namespace {

using kernels::LatentPages;
using kernels::RecurrentPages;
using kernels::ReplayRecords;
using kernels::SequenceRow;
using kernels::StateWrite;
using model::ForwardBatch;
using model::MtpBatch;

using Mark = DigestMark;

constexpr std::int32_t kDim = 32;        // of the one head: keys of a state, and its value columns
constexpr std::int32_t kLatentRank = 6;  // rows of 8 values
constexpr std::int32_t kRopeDim = 2;
constexpr std::int64_t kWindow = kernels::kWindowRows;

// The upper two bits of a digest.
constexpr std::uint64_t kIsSpoiled = std::uint64_t{1} << 63;
constexpr std::uint64_t kIsDigest = std::uint64_t{1} << 62;

// What a piece of a layer is for.
enum class Part : std::uint8_t {
  kLatent,
  kMtpLatent,
  kHidden,
  kConvQ,  // and the next two
  kConvK,
  kConvV,
  kQuery,
  kState,
  kDecay,
  kScale,
};

struct Piece {
  Part part = Part::kLatent;
  std::size_t layer = 0;
};

Piece raw_projection(std::size_t section, std::size_t layer) {
  return {static_cast<Part>(static_cast<std::size_t>(Part::kConvQ) + section), layer};
}

std::uint64_t word(const Mark& mark, Piece piece, std::size_t index) {
  const std::uint64_t key = mark.digest + ((static_cast<std::uint64_t>(mark.depth) << 8) +
                                           static_cast<std::uint64_t>(mark.token)) *
                                              0xC2B2AE3D27D4EB4Fu;
  return oracle_word(key, (static_cast<std::uint64_t>(piece.part) << 32) +
                              (static_cast<std::uint64_t>(piece.layer) << 16) + index);
}

Mark next(const Mark& before, TokenId token) {
  const std::uint64_t mixed =
      oracle_word(before.digest & ~kIsSpoiled, static_cast<std::uint64_t>(token) + 1);
  const std::uint64_t own = mixed & ~(kIsSpoiled | kIsDigest);
  return {own | kIsDigest | (before.digest & kIsSpoiled), token};
}

// A piece that can be read back: the digest, the token and the depth, and words made of them.
void make_raw(const Mark& mark, Piece piece, std::span<float> out) {
  for (std::size_t i = 0; i < out.size() / 2; ++i) {
    std::uint64_t value = word(mark, piece, i);
    if (i == 0) value = mark.digest;
    if (i == 1) {
      value = (value << 16) | (static_cast<std::uint64_t>(mark.depth & 0xFF) << 8) |
              static_cast<std::uint64_t>(mark.token);
    }
    std::memcpy(&out[2 * i], &value, sizeof(value));
  }
}

// Whatever lies there, it is a mark.
Mark read_raw(const float* from) {
  std::array<std::uint64_t, 2> words;
  std::memcpy(words.data(), from, sizeof(words));
  return {words[0], static_cast<TokenId>(words[1] % DigestModel::kVocabulary),
          static_cast<std::int32_t>(words[1] >> 8 & 0xFF)};
}

// Numbers that arithmetic leaves as they are: integers of 22 bits, times a power of two.
void make_numbers(const Mark& mark, Piece piece, float scale, std::span<float> out) {
  constexpr std::uint64_t kBits = (std::uint64_t{1} << 22) - 1;
  for (std::size_t i = 0; i < out.size(); i += 2) {
    const std::uint64_t both = word(mark, piece, i);
    out[i] = scale * static_cast<float>(both & kBits);
    out[i + 1] = scale * static_cast<float>(both >> 32 & kBits);
  }
}

bool is_same(const float* there, std::span<const float> expected) {
  return std::memcmp(there, expected.data(), expected.size_bytes()) == 0;
}

using Row = std::array<float, kDim>;

constexpr Row kZeros = {};

// What a record holds of a token beside its raw projections. The state forgets the row that the
// token's position has in it, and then gets the token's numbers there: the update of a state that
// is 0 where the key is not is key * (beta * v), exactly.
struct Record {
  Row q, k, g, v;
  float beta;
};

Record make_record(const Mark& mark, std::int64_t position, std::size_t layer) {
  const std::uint64_t scale = word(mark, {Part::kScale, layer}, 0);
  const auto key_exponent = static_cast<int>(scale & 15);
  const auto beta_exponent = -static_cast<int>(scale >> 4 & 15);
  const auto own = static_cast<std::size_t>(position % kDim);
  Record record;
  make_raw(mark, {Part::kQuery, layer}, record.q);
  record.k = kZeros;
  record.k[own] = std::ldexp(1.0f, key_exponent);
  // exp(g) is +0 far below 2^-60, and 1 where g is next to nothing.
  make_numbers(mark, {Part::kDecay, layer}, -0x1p-60f, record.g);
  record.g[own] = record.g[own] * 0x1p40f - 128.0f;
  make_numbers(mark, {Part::kState, layer}, std::ldexp(1.0f, -beta_exponent - key_exponent),
               record.v);
  record.beta = std::ldexp(1.0f, beta_exponent);
  return record;
}

// Where the pieces of one slot lie.
float* state_row(const RecurrentPages& pages, SlotId slot, std::int64_t row) {
  return pages.state_base + slot.value() * pages.slot_stride + row * kDim;
}
float* window_row(const RecurrentPages& pages, SlotId slot, std::size_t section, std::int64_t row) {
  return pages.window_base + slot.value() * pages.slot_stride +
         (static_cast<std::int64_t>(section) * kWindow + row) * kDim;
}
float* conv_row(const ReplayRecords& records, SlotId slot, std::size_t section, std::int64_t row) {
  return records.conv_base[section] + slot.value() * records.slot_stride + row * kDim;
}

// The place of each part of a record, and what the part must be.
template <class Visit>
void visit_record(const ReplayRecords& records, SlotId slot, std::int64_t index,
                  const Record& record, Visit&& visit) {
  const std::int64_t first = slot.value() * records.slot_stride;
  float* const qkg = records.qkg_base + first + index * 3 * kDim;
  visit(qkg, std::span<const float>(record.q));
  visit(qkg + kDim, std::span<const float>(record.k));
  visit(qkg + 2 * kDim, std::span<const float>(record.g));
  visit(records.v_base + first + index * kDim, std::span<const float>(record.v));
  visit(records.beta_base + first + index * kernels::kda_beta_record_stride(1),
        std::span<const float>(&record.beta, 1));
}

bool keeps_records(const ForwardBatch& batch) {
  return !batch.records.empty() && batch.records.front().max_records > 0;
}

std::size_t token_of(const SequenceRow& row, std::int64_t position) {
  return static_cast<std::size_t>(row.first_token + position - row.first_position);
}

std::int64_t end_of(const SequenceRow& row) { return row.first_position + row.num_tokens; }

// Calls visit(position, row) for the latent rows [first, end) of a sequence.
template <class Visit>
void for_each_latent_row(const LatentPages& pages, kernels::BlockTable blocks, std::int64_t first,
                         std::int64_t end, Visit&& visit) {
  for (std::int64_t position = first; position < end;) {
    const std::int64_t block_end = (position / pages.tokens_per_block + 1) * pages.tokens_per_block;
    std::byte* at = kernels::latent_row(pages, blocks, position);
    for (; position < std::min(end, block_end); ++position, at += pages.token_stride) {
      visit(position, reinterpret_cast<float*>(at));
    }
  }
}

model::ModelConfig make_config(const DigestModelOptions& options) {
  SLACKWATER_CHECK(options.num_kda_layers > 0 && options.num_mla_layers > 0,
                   "{} KDA layers and {} of attention; use one of each or more",
                   options.num_kda_layers, options.num_mla_layers);
  model::ModelConfig config;
  config.vocab_size = DigestModel::kVocabulary;
  config.hidden_size = DigestModel::kHiddenSize;
  config.num_layers = options.num_kda_layers + options.num_mla_layers;
  config.intermediate_size = DigestModel::kHiddenSize;
  config.rms_norm_eps = 1e-5f;
  config.max_length = options.max_length;
  for (std::int32_t layer = 0; layer < std::max(options.num_kda_layers, options.num_mla_layers);
       ++layer) {
    if (layer < options.num_kda_layers) config.layer_kinds.push_back(model::LayerKind::kKda);
    if (layer < options.num_mla_layers) config.layer_kinds.push_back(model::LayerKind::kMla);
  }
  config.num_heads = 1;
  config.kv_lora_rank = kLatentRank;
  config.qk_nope_head_dim = 2;
  config.qk_rope_head_dim = kRopeDim;
  config.v_head_dim = 2;
  config.kda_num_heads = 1;
  config.kda_head_dim = kDim;
  config.conv_kernel_size = model::kConvKernelSize;
  config.num_mtp_layers = options.has_mtp ? 1 : 0;
  config.eos_ids = {DigestModel::kEos, DigestModel::kSecondEos};
  return config;
}

}  // namespace

DigestModel::DigestModel(const DigestModelOptions& options)
    : options_(options), config_(make_config(options)) {
  history_.resize(static_cast<std::size_t>(options.max_length));
}

Digest128 DigestModel::digest() const {
  const std::array<std::uint64_t, 6> words = {options_.weights,
                                              options_.language,
                                              static_cast<std::uint64_t>(options_.num_kda_layers),
                                              static_cast<std::uint64_t>(options_.num_mla_layers),
                                              static_cast<std::uint64_t>(options_.has_mtp),
                                              static_cast<std::uint64_t>(options_.max_length)};
  return xxh3_128(std::as_bytes(std::span(words)));
}

void DigestModel::reserve(model::ForwardPass::Limits limits) {
  limits_ = limits;
  hidden_states_ = model::HiddenStates(kHiddenSize, limits.max_tokens);
  const auto tokens = static_cast<std::size_t>(limits.max_tokens);
  befores_.reserve(tokens);
  tokens_.resize(tokens);
  previous_.resize(tokens);
  hidden_.resize(tokens * kHiddenSize);
  mtp_sources_.resize(tokens);
  mtp_tokens_.resize(tokens);
  mtp_hidden_.resize(tokens * kHiddenSize);
}

// Before its first token every sequence is the same.
Mark DigestModel::start() const { return next({options_.weights, 0}, 0); }

void DigestModel::run(const ForwardBatch& batch, std::span<float> logits) {
  check(batch, logits);
  mark_tokens(batch);
  write_latent_rows(batch);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const SequenceRow& row = batch.rows[i];
    read_row(batch, i);
    for (const StateWrite& write : row.writes) write_page(batch, row, write);
    if (keeps_records(batch)) write_records(batch, row);
  }
  write_hidden(batch);
  for (std::size_t i = 0; i < batch.logit_tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(batch.logit_tokens[i]);
    say(tokens_[token], previous_[token], logits.subspan(i * kVocabulary, kVocabulary));
  }
}

void DigestModel::check(const ForwardBatch& batch, std::span<float> logits) const {
  SLACKWATER_CHECK(std::ssize(batch.token_ids) <= limits_.max_tokens &&
                       std::ssize(batch.logit_tokens) <= limits_.max_logits,
                   "{} tokens and {} logits of at most {} and {}", batch.token_ids.size(),
                   batch.logit_tokens.size(), limits_.max_tokens, limits_.max_logits);
  SLACKWATER_CHECK(logits.size() == batch.logit_tokens.size() * kVocabulary,
                   "room for {} logits of {} tokens", logits.size(), batch.logit_tokens.size());
  SLACKWATER_CHECK(
      std::ssize(batch.latent_pages) == options_.num_mla_layers &&
          std::ssize(batch.recurrent_pages) == options_.num_kda_layers &&
          (batch.records.empty() || std::ssize(batch.records) == options_.num_kda_layers),
      "pages of {} and {} layers, records of {}", batch.latent_pages.size(),
      batch.recurrent_pages.size(), batch.records.size());
  std::int64_t done = 0;
  for (const SequenceRow& row : batch.rows) {
    SLACKWATER_CHECK(row.first_token == done, "a row begins at token {}, {} lie before it",
                     row.first_token, done);
    SLACKWATER_CHECK(end_of(row) <= options_.max_length, "a sequence of {} tokens, of at most {}",
                     end_of(row), options_.max_length);
    done += row.num_tokens;
  }
  SLACKWATER_CHECK(done == std::ssize(batch.token_ids), "rows have {} tokens of {}", done,
                   batch.token_ids.size());
  for (const TokenId token : batch.token_ids) {
    SLACKWATER_CHECK(0 <= token && token < kVocabulary, "token {} of {}", token, kVocabulary);
  }
  for (const LatentPages& pages : batch.latent_pages) {
    SLACKWATER_CHECK(pages.dtype == DType::kF32 && pages.width == kLatentRank + kRopeDim,
                     "latent rows of {} {}", pages.width, to_string(pages.dtype));
    kernels::check_latent_rows(pages, batch.rows);
  }
  for (std::size_t layer = 0; layer < batch.recurrent_pages.size(); ++layer) {
    kernels::check_recurrent_rows(batch.recurrent_pages[layer], batch.rows);
    kernels::check_replay_rows(batch.records.empty() ? ReplayRecords() : batch.records[layer],
                               batch.rows);
  }
  hidden_states_.check(batch);
}

// Of the token before the row: what is pending, the page, or nothing says which it was.
Mark DigestModel::mark_before(const ForwardBatch& batch, const SequenceRow& row) const {
  if (row.first_position == 0) return start();
  const SlotId slot = row.state_page;
  return read_raw(row.num_pending > 0
                      ? conv_row(batch.records[0], slot, 0, kWindow + row.num_pending - 1)
                      : window_row(batch.recurrent_pages[0], slot, 0, kWindow - 1));
}

void DigestModel::mark_tokens(const ForwardBatch& batch) {
  befores_.clear();
  for (const SequenceRow& row : batch.rows) {
    Mark mark = mark_before(batch, row);
    befores_.push_back(mark);
    for (std::int64_t position = row.first_position; position < end_of(row); ++position) {
      const std::size_t at = token_of(row, position);
      previous_[at] = mark.token;
      mark = next(mark, batch.token_ids[at]);
      tokens_[at] = mark;
    }
  }
}

void DigestModel::write_latent_rows(const ForwardBatch& batch) const {
  for (std::size_t layer = 0; layer < batch.latent_pages.size(); ++layer) {
    const LatentPages& pages = batch.latent_pages[layer];
    for (const SequenceRow& row : batch.rows) {
      for_each_latent_row(pages, row.block_table, row.first_position, end_of(row),
                          [&](std::int64_t position, float* to) {
                            make_raw(tokens_[token_of(row, position)], {Part::kLatent, layer},
                                     std::span(to, static_cast<std::size_t>(pages.width)));
                          });
    }
  }
}

// --- What a row reads.

void DigestModel::read_row(const ForwardBatch& batch, std::size_t index) {
  const SequenceRow& row = batch.rows[index];
  const Mark& before = befores_[index];
  Reading reading = {.batch = batch,
                     .row = row,
                     .page_position = row.first_position - row.num_pending,
                     .spoiled_from = end_of(row),
                     .was_spoiled = (before.digest & kIsSpoiled) != 0};
  read_latent_rows(reading, before);
  for (std::size_t layer = 0; layer < batch.recurrent_pages.size(); ++layer) {
    if (reading.page_position > 0) read_page(reading, layer);
    if (row.num_pending > 0) read_records(reading, layer);
  }
  spoil(reading);
}

// The tokens before the row are those of its latent rows, and must be those of its state.
void DigestModel::read_latent_rows(Reading& reading, const Mark& before) {
  const SequenceRow& row = reading.row;
  Mark mark = start();
  for (std::size_t layer = 0; layer < reading.batch.latent_pages.size(); ++layer) {
    const LatentPages& pages = reading.batch.latent_pages[layer];
    for_each_latent_row(pages, row.block_table, 0, end_of(row),
                        [&](std::int64_t position, const float* there) {
                          const auto at = static_cast<std::size_t>(position);
                          if (layer == 0) {
                            mark = position < row.first_position ? next(mark, read_raw(there).token)
                                                                 : tokens_[token_of(row, position)];
                            history_[at] = mark;
                          }
                          std::array<float, kLatentRank + kRopeDim> expected;
                          make_raw(history_[at], {Part::kLatent, layer}, expected);
                          if (!is_same(there, expected))
                            note_wrong(reading, position, "a latent row");
                        });
  }
  if (row.first_position == 0) return;
  const auto last = static_cast<std::size_t>(row.first_position - 1);
  if (history_[last].digest != before.digest) note_wrong(reading, 0, "the state's last token");
}

// A state is of the last 32 tokens, each in a row of its own; a window is of the last three.
void DigestModel::read_page(Reading& reading, std::size_t layer) {
  const RecurrentPages& pages = reading.batch.recurrent_pages[layer];
  const SlotId slot = reading.row.state_page;
  const std::int64_t end = reading.page_position;
  for (std::int64_t position = end - kDim; position < end; ++position) {
    Row expected = kZeros;
    if (position >= 0) {
      make_numbers(history_[static_cast<std::size_t>(position)], {Part::kState, layer}, 1.0f,
                   expected);
    }
    if (!is_same(state_row(pages, slot, (position + kDim) % kDim), expected)) {
      note_wrong(reading, 0, "the state");
    }
  }
  for (std::size_t section = 0; section < 3; ++section) {
    for (std::int64_t row = 0; row < kWindow; ++row) {
      const std::int64_t position = end - kWindow + row;
      Row expected = kZeros;
      if (position >= 0) {
        make_raw(history_[static_cast<std::size_t>(position)], raw_projection(section, layer),
                 expected);
      }
      if (!is_same(window_row(pages, slot, section, row), expected)) {
        note_wrong(reading, 0, "the window");
      }
    }
  }
}

void DigestModel::read_records(Reading& reading, std::size_t layer) {
  const ReplayRecords& records = reading.batch.records[layer];
  const SlotId slot = reading.row.state_page;
  for (std::size_t section = 0; section < 3 && reading.page_position > 0; ++section) {
    const float* window = window_row(reading.batch.recurrent_pages[layer], slot, section, 0);
    if (!is_same(conv_row(records, slot, section, 0), std::span(window, kWindow * kDim))) {
      note_wrong(reading, 0, "the copy of the window");
    }
  }
  for (std::int64_t index = 0; index < reading.row.num_pending; ++index) {
    const std::int64_t position = reading.page_position + index;
    const Mark& mark = history_[static_cast<std::size_t>(position)];
    for (std::size_t section = 0; section < 3; ++section) {
      Row expected;
      make_raw(mark, raw_projection(section, layer), expected);
      if (!is_same(conv_row(records, slot, section, kWindow + index), expected)) {
        note_wrong(reading, 0, "a record's raw projections");
      }
    }
    visit_record(records, slot, index, make_record(mark, position, layer),
                 [&](const float* there, std::span<const float> expected) {
                   if (!is_same(there, expected)) note_wrong(reading, 0, "a record");
                 });
  }
}

void DigestModel::note_wrong(Reading& reading, std::int64_t position, std::string_view what) {
  reading.spoiled_from = std::min(reading.spoiled_from, position);
  if (reading.was_spoiled || num_wrong_++ > 0) return;
  first_wrong_ = fmt::format("{} at position {} of a row of {} tokens from {}, {} pending, slot {}",
                             what, position, reading.row.num_tokens, reading.row.first_position,
                             reading.row.num_pending, reading.row.state_page.value());
}

// What is written from now on, and what is said, shows that something was wrong.
void DigestModel::spoil(const Reading& reading) {
  const SequenceRow& row = reading.row;
  for (std::int64_t position = reading.spoiled_from; position < end_of(row); ++position) {
    history_[static_cast<std::size_t>(position)].digest |= kIsSpoiled;
    if (position >= row.first_position) tokens_[token_of(row, position)].digest |= kIsSpoiled;
  }
}

// --- What a row leaves.

void DigestModel::write_page(const ForwardBatch& batch, const SequenceRow& row,
                             const StateWrite& write) const {
  const std::int64_t page_position = row.first_position - row.num_pending;
  const std::int64_t end = row.first_position + write.count;
  const bool is_own = write.page == row.state_page && page_position > 0;
  for (std::size_t layer = 0; layer < batch.recurrent_pages.size(); ++layer) {
    const RecurrentPages& pages = batch.recurrent_pages[layer];
    // Its own page has what came before.
    for (std::int64_t position = std::max(end - kDim, is_own ? page_position : end - kDim);
         position < end; ++position) {
      const std::span to(state_row(pages, write.page, (position + kDim) % kDim), kDim);
      if (position < 0) {
        std::ranges::copy(kZeros, to.begin());
      } else {
        make_numbers(history_[static_cast<std::size_t>(position)], {Part::kState, layer}, 1.0f, to);
      }
    }
    for (std::size_t section = 0; section < 3; ++section) {
      for (std::int64_t index = 0; index < kWindow; ++index) {
        const std::int64_t position = end - kWindow + index;
        const std::span to(window_row(pages, write.page, section, index), kDim);
        if (position < 0) {
          std::ranges::copy(kZeros, to.begin());
        } else {
          make_raw(history_[static_cast<std::size_t>(position)], raw_projection(section, layer),
                   to);
        }
      }
    }
  }
}

// By the rules of kernels::KdaStepArgs.
void DigestModel::write_records(const ForwardBatch& batch, const SequenceRow& row) const {
  const SlotId slot = row.state_page;
  const bool has_write = !row.writes.empty();
  const std::int64_t count = has_write ? row.writes.back().count : 0;
  for (std::size_t layer = 0; layer < batch.records.size(); ++layer) {
    const ReplayRecords& records = batch.records[layer];
    for (std::size_t section = 0; section < 3 && has_write; ++section) {
      const float* window = window_row(batch.recurrent_pages[layer], slot, section, 0);
      std::copy(window, window + kWindow * kDim, conv_row(records, slot, section, 0));
    }
    std::int64_t index = has_write ? 0 : row.num_pending;
    for (std::int64_t position = row.first_position + count; position < end_of(row);
         ++position, ++index) {
      const Mark& mark = history_[static_cast<std::size_t>(position)];
      for (std::size_t section = 0; section < 3; ++section) {
        make_raw(mark, raw_projection(section, layer),
                 std::span(conv_row(records, slot, section, kWindow + index), kDim));
      }
      visit_record(records, slot, index, make_record(mark, position, layer),
                   [](float* to, std::span<const float> from) { std::ranges::copy(from, to); });
    }
  }
}

void DigestModel::write_hidden(const ForwardBatch& batch) {
  for (std::size_t token = 0; token < batch.token_ids.size(); ++token) {
    make_raw(tokens_[token], {Part::kHidden, 0},
             std::span(hidden_).subspan(token * kHiddenSize, kHiddenSize));
  }
  if (batch.hidden_pages.page_base != nullptr) hidden_states_.exchange(batch, hidden_.data());
}

// --- The prediction block.

void DigestModel::run_mtp(const MtpBatch& batch, std::span<float> logits) {
  SLACKWATER_CHECK(options_.has_mtp, "there is no prediction block");
  SLACKWATER_CHECK(std::ssize(batch.token_ids) <= limits_.max_tokens &&
                       std::ssize(batch.logit_tokens) <= limits_.max_logits &&
                       batch.hidden.size() == batch.token_ids.size() &&
                       logits.size() == batch.logit_tokens.size() * kVocabulary,
                   "{} tokens, {} hidden states, and {} logits of {} tokens",
                   batch.token_ids.size(), batch.hidden.size(), logits.size(),
                   batch.logit_tokens.size());
  kernels::check_latent_rows(batch.latent_pages, batch.rows);
  read_sources(batch);
  write_mtp_rows(batch);
  for (const SequenceRow& row : batch.rows) read_mtp_rows(batch, row);
  for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
    make_raw(mtp_tokens_[i], {Part::kHidden, 0},
             std::span(mtp_hidden_).subspan(i * kHiddenSize, kHiddenSize));
  }
  for (std::size_t i = 0; i < batch.logit_tokens.size(); ++i) {
    const auto token = static_cast<std::size_t>(batch.logit_tokens[i]);
    guess(mtp_tokens_[token], mtp_sources_[token].token,
          logits.subspan(i * kVocabulary, kVocabulary));
  }
}

void DigestModel::read_sources(const MtpBatch& batch) {
  for (std::size_t i = 0; i < batch.token_ids.size(); ++i) {
    Mark& source = mtp_sources_[i];
    source = read_raw(batch.hidden[i]);
    std::array<float, kHiddenSize> expected;
    make_raw(source, {Part::kHidden, 0}, expected);
    if (is_same(batch.hidden[i], expected)) continue;
    ++num_wrong_mtp_;
    source.digest |= kIsSpoiled;
  }
}

// The row of a token: what it goes on from, and the token.
void DigestModel::write_mtp_rows(const MtpBatch& batch) const {
  const LatentPages& pages = batch.latent_pages;
  for (const SequenceRow& row : batch.rows) {
    SLACKWATER_CHECK(row.first_position > 0, "the block has no row for position 0");
    for_each_latent_row(pages, row.block_table, row.first_position, end_of(row),
                        [&](std::int64_t position, float* to) {
                          const std::size_t at = token_of(row, position);
                          const Mark& source = mtp_sources_[at];
                          make_raw({source.digest, batch.token_ids[at], source.depth},
                                   {Part::kMtpLatent, 0},
                                   std::span(to, static_cast<std::size_t>(pages.width)));
                        });
  }
}

// Rows of a sequence go on from each other, and drafts, which go on from the block's own output,
// come behind those that do not.
void DigestModel::read_mtp_rows(const MtpBatch& batch, const SequenceRow& row) {
  std::uint64_t spoiled = 0;
  Mark before;
  for_each_latent_row(batch.latent_pages, row.block_table, 1, end_of(row),
                      [&](std::int64_t position, const float* there) {
                        const Mark mark = read_raw(there);
                        std::array<float, kLatentRank + kRopeDim> expected;
                        make_raw(mark, {Part::kMtpLatent, 0}, expected);
                        const bool follows =
                            position == 1 || (mark.digest == next(before, before.token).digest &&
                                              mark.depth >= before.depth);
                        if (spoiled == 0 && (!follows || !is_same(there, expected))) {
                          ++num_wrong_mtp_;
                          spoiled = kIsSpoiled;
                        }
                        before = mark;
                        if (position < row.first_position) return;
                        const std::size_t at = token_of(row, position);
                        Mark& token = mtp_tokens_[at];
                        token = next(mtp_sources_[at], batch.token_ids[at]);
                        token.digest |= spoiled;
                        token.depth = mtp_sources_[at].depth + 1;
                      });
}

// --- What is said.

// The two tokens that the language likes best after these, the others at random; one time in eight
// another one, which the digest chooses.
void DigestModel::say(const Mark& mark, TokenId before, std::span<float> logits) const {
  const std::uint64_t key = oracle_word(mark.digest, options_.weights);
  for (std::size_t i = 0; i < logits.size(); i += 4) {
    const std::uint64_t four = oracle_word(key, i);
    for (std::size_t j = 0; j < 4; ++j) {
      logits[i + j] = static_cast<float>(four >> (16 * j) & 0xFFFF) * 0x1p-16f;
    }
  }
  const std::uint64_t chosen = oracle_word(key, logits.size());
  if ((mark.digest & kIsSpoiled) != 0) {
    logits[chosen % kVocabulary] += 6.0f;
    return;
  }
  const std::uint64_t liked =
      oracle_word(options_.language + 1, static_cast<std::uint64_t>(mark.token) * 2 +
                                             static_cast<std::uint64_t>(before % 2));
  logits[liked % kVocabulary] += 4.0f;
  logits[(liked >> 32) % kVocabulary] += 2.5f;
  if (chosen % 8 == 0) logits[(chosen >> 32) % kVocabulary] += 6.0f;
}

// Three times in four what the layers will say.
void DigestModel::guess(const Mark& mark, TokenId before, std::span<float> logits) const {
  Mark seen = mark;
  if (oracle_word(mark.digest, options_.weights + 1) % 4 == 0) {
    seen.token = (mark.token + 1) % kVocabulary;
  }
  say(seen, before, logits);
}

}  // namespace slackwater
