#include "engine/ngram_drafter.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::engine {
namespace {

constexpr std::int32_t kMaxNgram = 64;
constexpr std::size_t kFirstPlaces = 16;

}  // namespace

NgramDrafter::NgramDrafter(std::int32_t ngram_min, std::int32_t ngram_max) {
  SLACKWATER_CHECK(1 <= ngram_min && ngram_min <= ngram_max && ngram_max <= kMaxNgram,
                   "n-grams of {} to {} tokens", ngram_min, ngram_max);
  for (std::int32_t length = ngram_max; length >= ngram_min; --length) {
    tables_.push_back({length, 0, std::vector<std::int32_t>(kFirstPlaces)});
  }
}

void NgramDrafter::reserve(std::int64_t num_tokens) {
  SLACKWATER_CHECK(num_tokens >= 0, "room for {} tokens", num_tokens);
  const auto wanted = static_cast<std::size_t>(num_tokens);
  tokens_.reserve(wanted);
  for (EndTable& table : tables_) grow(table, std::bit_ceil(2 * wanted));
}

void NgramDrafter::append(std::span<const TokenId> tokens) {
  SLACKWATER_CHECK(num_tokens() + std::ssize(tokens) < std::numeric_limits<std::int32_t>::max(),
                   "{} tokens and {} more", num_tokens(), tokens.size());
  for (const TokenId token : tokens) {
    // What ends here is indexed only now that something follows it: so the last tokens never find
    // themselves.
    for (EndTable& table : tables_) {
      if (num_tokens() >= table.length) index(table, num_tokens());
    }
    tokens_.push_back(token);
  }
}

std::int32_t NgramDrafter::propose(std::int32_t max_drafts, std::span<TokenId> drafts) const {
  SLACKWATER_CHECK(0 <= max_drafts && max_drafts <= std::ssize(drafts), "{} drafts into {}",
                   max_drafts, drafts.size());
  std::int64_t from = 0;
  for (const EndTable& table : tables_) {
    from = latest_end(table);
    if (from > 0) break;
  }
  if (from == 0) return 0;
  for (std::int32_t i = 0; i < max_drafts; ++i) {
    const std::int64_t at = from + i;
    drafts[static_cast<std::size_t>(i)] = at < num_tokens()
                                              ? tokens_[static_cast<std::size_t>(at)]
                                              : drafts[static_cast<std::size_t>(at - num_tokens())];
  }
  return max_drafts;
}

void NgramDrafter::check_invariants() const {
  for (const EndTable& table : tables_) {
    const auto used = std::ranges::count_if(table.ends, [](std::int32_t end) { return end != 0; });
    SLACKWATER_CHECK(used == table.num_used, "I1: {} of {} entries of {} tokens", used,
                     table.num_used, table.length);
    SLACKWATER_CHECK(2 * used <= std::ssize(table.ends), "I1: {} entries in {} places", used,
                     table.ends.size());
    for (std::int64_t end = table.length; end < num_tokens(); ++end) {
      // An entry is at least as late as each of its places; and it is one of them, as `find` has
      // compared the tokens.
      const std::int32_t found = table.ends[find(table, end)];
      SLACKWATER_CHECK(end <= found && found < num_tokens(),
                       "I1: {} tokens that end at {} are at {} in the index", table.length, end,
                       found);
    }
  }
}

std::uint64_t NgramDrafter::hash(std::int64_t end, std::int32_t length) const {
  std::uint64_t mixed = 0;
  for (std::int64_t at = end - length; at < end; ++at) {
    mixed ^= static_cast<std::uint32_t>(tokens_[static_cast<std::size_t>(at)]);
    mixed *= 0x9E3779B97F4A7C15u;
    mixed ^= mixed >> 32;
  }
  return mixed;
}

bool NgramDrafter::are_equal(std::int64_t end, std::int64_t other_end, std::int32_t length) const {
  if (SLACKWATER_MUTANT(engine_ngram_trusts_hashes)) return true;
  const auto one = tokens_.begin() + (end - length);
  return std::equal(one, one + length, tokens_.begin() + (other_end - length));
}

std::size_t NgramDrafter::find(const EndTable& table, std::int64_t end) const {
  const std::size_t mask = table.ends.size() - 1;
  std::size_t place = hash(end, table.length) & mask;
  while (table.ends[place] != 0 && !are_equal(end, table.ends[place], table.length)) {
    place = (place + 1) & mask;
  }
  return place;
}

void NgramDrafter::grow(EndTable& table, std::size_t num_places) {
  if (num_places <= table.ends.size()) return;
  std::vector<std::int32_t> before(num_places);
  before.swap(table.ends);
  for (const std::int32_t end : before) {
    if (end != 0) table.ends[find(table, end)] = end;
  }
}

void NgramDrafter::index(EndTable& table, std::int64_t end) {
  if (2 * (table.num_used + 1) > std::ssize(table.ends)) grow(table, 2 * table.ends.size());
  std::int32_t& entry = table.ends[find(table, end)];
  if (entry == 0) ++table.num_used;
  if (SLACKWATER_MUTANT(engine_ngram_keeps_the_first) && entry != 0) return;
  entry = static_cast<std::int32_t>(end);
}

std::int64_t NgramDrafter::latest_end(const EndTable& table) const {
  if (num_tokens() < table.length) return 0;
  return table.ends[find(table, num_tokens())];
}

}  // namespace slackwater::engine
