#include "model/hidden_states.h"

#include <algorithm>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::model {
namespace {

using kernels::SequenceRow;
using kernels::StateWrite;

float* page_of(const HiddenPages& pages, SlotId slot) {
  return pages.page_base + slot.value() * pages.page_stride;
}

// Records are rows of `hidden_size`, one after another.
float* record_of(const HiddenPages& pages, SlotId slot, std::int64_t record,
                 std::int64_t hidden_size) {
  return pages.record_base + slot.value() * pages.record_stride + record * hidden_size;
}

bool has_records(const ForwardBatch& batch) {
  return !batch.records.empty() && batch.records.front().max_records > 0;
}

}  // namespace

void HiddenStates::check(const ForwardBatch& batch) const {
  const HiddenPages& pages = batch.hidden_pages;
  if (pages.page_base == nullptr) {
    SLACKWATER_CHECK(pages.record_base == nullptr,
                     "hidden states of records, and no place for those of pages");
    return;
  }
  SLACKWATER_CHECK(!batch.recurrent_pages.empty(),
                   "hidden states beside the recurrent pages of a model that has none");
  const std::int32_t num_slots = batch.recurrent_pages.front().num_slots;
  SLACKWATER_CHECK(num_slots <= 1 || pages.page_stride >= hidden_size_,
                   "hidden states {} floats apart have {}", pages.page_stride, hidden_size_);
  if (pages.record_base != nullptr && has_records(batch)) {
    const std::int64_t floats = batch.records.front().max_records * hidden_size_;
    SLACKWATER_CHECK(num_slots <= 1 || pages.record_stride >= floats,
                     "hidden states of records {} floats apart, those of a slot have {}",
                     pages.record_stride, floats);
  }
  for (const SequenceRow& row : batch.rows) {
    SLACKWATER_CHECK(row.num_pending == 0 || pages.record_base != nullptr,
                     "{} pending records at position {} without their hidden states",
                     row.num_pending, row.first_position);
  }
}

void HiddenStates::reserve(std::size_t rows) {
  // Rows without tokens may be more than there are tokens.
  const std::size_t most = std::max(rows, static_cast<std::size_t>(max_tokens_));
  const std::size_t floats = static_cast<std::size_t>(hidden_size_);
  if (first_.size() < rows * floats) first_ = AlignedBuffer<float>(most * floats);
}

void HiddenStates::copy(const float* from, float* to) const {
  if (from != to) std::copy(from, from + hidden_size_, to);
}

void HiddenStates::keep_first(const ForwardBatch& batch) {
  const HiddenPages& pages = batch.hidden_pages;
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const SequenceRow& row = batch.rows[i];
    if (row.first_position == 0) continue;
    copy(row.num_pending > 0 ? record_of(pages, row.state_page, row.num_pending - 1, hidden_size_)
                             : page_of(pages, row.state_page),
         first_of(i));
  }
}

void HiddenStates::write_pages(const HiddenPages& pages, const ForwardBatch& batch, std::size_t row,
                               const float* tokens) {
  const SequenceRow& written = batch.rows[row];
  for (const StateWrite& write : written.writes) {
    std::int64_t count = write.count;
    if (SLACKWATER_MUTANT(forward_hidden_of_next_token) && count < written.num_tokens) ++count;
    if (count > 0) {
      copy(tokens + (count - 1) * hidden_size_, page_of(pages, write.page));
    } else if (written.first_position > 0) {
      // No token ran: the page is that of the token before, the last record's where there is one.
      copy(first_of(row), page_of(pages, write.page));
    }
  }
}

void HiddenStates::write_records(const HiddenPages& pages, const SequenceRow& row,
                                 const float* tokens) const {
  const bool has_write = !row.writes.empty();
  std::int64_t record = has_write ? 0 : row.num_pending;
  if (SLACKWATER_MUTANT(forward_hidden_append_overwrites)) record = 0;
  for (std::int64_t t = has_write ? row.writes.back().count : 0; t < row.num_tokens; ++t) {
    copy(tokens + t * hidden_size_, record_of(pages, row.state_page, record++, hidden_size_));
  }
}

void HiddenStates::write_rows(const ForwardBatch& batch, const float* hidden) {
  const HiddenPages& pages = batch.hidden_pages;
  const bool keeps_records = pages.record_base != nullptr && has_records(batch);
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const float* tokens = hidden + batch.rows[i].first_token * hidden_size_;
    write_pages(pages, batch, i, tokens);
    if (keeps_records) write_records(pages, batch.rows[i], tokens);
  }
}

void HiddenStates::exchange(const ForwardBatch& batch, const float* hidden) {
  reserve(batch.rows.size());
  if (SLACKWATER_MUTANT(forward_hidden_read_late)) write_rows(batch, hidden);
  keep_first(batch);
  write_rows(batch, hidden);
}

}  // namespace slackwater::model
