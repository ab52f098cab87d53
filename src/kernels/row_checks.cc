#include "kernels/row_checks.h"

#include <bit>

#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"

namespace slackwater::kernels {
namespace {

void check_range(const SequenceRow& row) {
  SLACKWATER_CHECK(row.first_token >= 0 && row.num_tokens >= 0 && row.first_position >= 0,
                   "row of {} tokens from {} at position {}", row.num_tokens, row.first_token,
                   row.first_position);
}

void check_slot(SlotId slot, std::int32_t num_slots) {
  SLACKWATER_CHECK(0 <= slot.value() && slot.value() < num_slots, "slot {} of {}", slot.value(),
                   num_slots);
}

// A page is written once, and nobody reads a page that another row writes.
[[maybe_unused]] void check_owners(std::span<const SequenceRow> rows) {
  for (const SequenceRow& row : rows) {
    for (const StateWrite& write : row.writes) {
      for (const SequenceRow& other : rows) {
        const bool reads = &other != &row && other.first_position > 0;
        SLACKWATER_CHECK(!reads || other.state_page != write.page,
                         "slot {} is written by one row and read by another", write.page.value());
        for (const StateWrite& second : other.writes) {
          SLACKWATER_CHECK(&second == &write || second.page != write.page,
                           "slot {} is written twice", write.page.value());
        }
      }
    }
  }
}

// A row that does nothing at all has no use for a slot.
bool uses_records(const SequenceRow& row) {
  return row.num_tokens > 0 || row.num_pending > 0 || !row.writes.empty();
}

// A slot's records belong to one row, and nobody else writes the page that they go on from.
[[maybe_unused]] void check_record_owners(std::span<const SequenceRow> rows) {
  for (const SequenceRow& row : rows) {
    if (!uses_records(row)) continue;
    for (const SequenceRow& other : rows) {
      if (&other == &row) continue;
      SLACKWATER_CHECK(!uses_records(other) || other.state_page != row.state_page,
                       "slot {} has the records of two rows", row.state_page.value());
      for (const StateWrite& write : other.writes) {
        SLACKWATER_CHECK(write.page != row.state_page,
                         "slot {} has the records of one row and is written by another",
                         write.page.value());
      }
    }
  }
}

void check_records_of(const ReplayRecords& records, const SequenceRow& row) {
  SLACKWATER_CHECK(0 <= row.state_page.value() && row.state_page.value() < records.num_slots,
                   "records of slot {} of {}", row.state_page.value(), records.num_slots);
  std::int64_t left = std::int64_t{row.num_pending} + row.num_tokens;
  if (!row.writes.empty()) {
    const StateWrite& last = row.writes.back();
    SLACKWATER_CHECK(last.page == row.state_page,
                     "the last write of a row with records is of page {}, not of its own, {}",
                     last.page.value(), row.state_page.value());
    left = row.num_tokens - last.count;
  }
  SLACKWATER_CHECK(left <= records.max_records,
                   "{} records left by a row of {} tokens and {} pending, slots have room for {}",
                   left, row.num_tokens, row.num_pending, records.max_records);
}

}  // namespace

void check_latent_rows(const LatentPages& pages, std::span<const SequenceRow> rows) {
  SLACKWATER_CHECK(pages.tokens_per_block > 0 &&
                       std::has_single_bit(static_cast<std::uint32_t>(pages.tokens_per_block)),
                   "{} tokens per block is not a power of two", pages.tokens_per_block);
  SLACKWATER_CHECK(pages.dtype == DType::kF32 || pages.dtype == DType::kBf16, "latent rows are {}",
                   to_string(pages.dtype));
  SLACKWATER_CHECK(pages.slot_stride % dtype_bytes(pages.dtype) == 0 &&
                       pages.token_stride % dtype_bytes(pages.dtype) == 0 &&
                       pages.token_stride >= pages.width * dtype_bytes(pages.dtype),
                   "strides {} and {} of rows of {} values", pages.slot_stride, pages.token_stride,
                   pages.width);
  SLACKWATER_CHECK(
      pages.num_slots <= 1 || pages.slot_stride >= pages.tokens_per_block * pages.token_stride,
      "slots {} bytes apart of {} rows, {} bytes apart", pages.slot_stride, pages.tokens_per_block,
      pages.token_stride);
  for (const SequenceRow& row : rows) {
    check_range(row);
    const auto blocks =
        ceil_div<std::int64_t>(row.first_position + row.num_tokens, pages.tokens_per_block);
    SLACKWATER_CHECK(std::ssize(row.block_table) >= blocks, "{} blocks for {} tokens of {} each",
                     row.block_table.size(), row.first_position + row.num_tokens,
                     pages.tokens_per_block);
    for (const SlotId slot : row.block_table.first(static_cast<std::size_t>(blocks))) {
      check_slot(slot, pages.num_slots);
    }
  }
}

void check_recurrent_rows(const RecurrentPages& pages, std::span<const SequenceRow> rows) {
  for (const SequenceRow& row : rows) {
    check_range(row);
    if (row.first_position > 0) check_slot(row.state_page, pages.num_slots);
    std::int32_t last = 0;
    for (const StateWrite& write : row.writes) {
      check_slot(write.page, pages.num_slots);
      SLACKWATER_CHECK(last <= write.count && write.count <= row.num_tokens,
                       "write after {} of {} tokens follows one after {}", write.count,
                       row.num_tokens, last);
      last = write.count;
      const bool is_read = row.first_position > 0;
      SLACKWATER_CHECK(!is_read || write.page != row.state_page || &write == &row.writes.back(),
                       "the row's own page {} is not its last write", write.page.value());
    }
  }
#if defined(SLACKWATER_DCHECKS)
  check_owners(rows);
#endif
}

void check_replay_rows(const ReplayRecords& records, std::span<const SequenceRow> rows) {
  for (const SequenceRow& row : rows) {
    SLACKWATER_CHECK(0 <= row.num_pending && row.num_pending <= records.max_records &&
                         row.num_pending <= row.first_position,
                     "{} pending records at position {}, slots have room for {}", row.num_pending,
                     row.first_position, records.max_records);
    if (records.max_records > 0 && uses_records(row)) check_records_of(records, row);
  }
#if defined(SLACKWATER_DCHECKS)
  if (records.max_records > 0) check_record_owners(rows);
#endif
}

}  // namespace slackwater::kernels
