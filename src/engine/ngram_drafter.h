#ifndef SLACKWATER_ENGINE_NGRAM_DRAFTER_H_
#define SLACKWATER_ENGINE_NGRAM_DRAFTER_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/ids.h"

namespace slackwater::engine {

// Proposes what followed the same tokens the last time: prompt lookup in one request's tokens,
// those of its prompt and those it has generated.
//
// The last n tokens are looked for among all before, the longest n first; of several places the
// latest counts. What followed there is proposed; where that reaches the end, the proposal itself
// goes on, so what repeats with some period is continued with it.
//
// Source: Saxena, "Prompt Lookup Decoding", 2023, which searches the prompt anew in every round and
// takes the first place; here an index is kept.
// Invariants (check_invariants, O(tokens)):
//   I1  for each n, every sequence of n tokens that ends before the last token is in the index
//   once,
//       with the latest place where it ends.
//   I2  a proposal is a function of all tokens appended, and of nothing else.
// Ownership: owns a copy of the tokens and the index.
// Threads: one at a time.
// Errors: none; a length out of its range is a bug (CHECK).
// Cost: O(max^2) to append a token, amortised, and to propose; 4 bytes a token, and 8 to 16 more
// for each n. Nothing is allocated up to what reserve() made room for.
class NgramDrafter {
 public:
  // Sequences of ngram_min to ngram_max tokens are looked for. CHECK: 1 <= min <= max <= 64.
  NgramDrafter(std::int32_t ngram_min, std::int32_t ngram_max);

  // Room for `num_tokens` in all.
  void reserve(std::int64_t num_tokens);

  // `tokens` have become certain, and follow those before.
  void append(std::span<const TokenId> tokens);

  // Writes a proposal to the front of `drafts`: `max_drafts` tokens, or none where nothing is
  // found. Returns how many. CHECK: 0 <= max_drafts <= drafts.size().
  std::int32_t propose(std::int32_t max_drafts, std::span<TokenId> drafts) const;

  std::int64_t num_tokens() const { return std::ssize(tokens_); }
  void check_invariants() const;

 private:
  // Where each sequence of some number of tokens ended last, by its tokens: open addressing with
  // linear probing, at most half full. An entry is an end, and what it stands for is read in the
  // tokens themselves, so two sequences of one hash are told apart. 0 is no entry: nothing ends
  // there.
  struct EndTable {
    std::int32_t length = 0;
    std::int64_t num_used = 0;
    std::vector<std::int32_t> ends;  // [a power of two]
  };

  std::uint64_t hash(std::int64_t end, std::int32_t length) const;
  bool are_equal(std::int64_t end, std::int64_t other_end, std::int32_t length) const;
  // Where the sequence that ends at `end` stands in the table, or would.
  std::size_t find(const EndTable& table, std::int64_t end) const;
  void grow(EndTable& table, std::size_t num_places);
  void index(EndTable& table, std::int64_t end);
  // The latest end before the last token of the last `table.length` tokens; 0: there is none.
  std::int64_t latest_end(const EndTable& table) const;

  std::vector<TokenId> tokens_;
  std::vector<EndTable> tables_;  // [max - min + 1], the longest first
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_NGRAM_DRAFTER_H_
