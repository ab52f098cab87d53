#ifndef SLACKWATER_MODEL_RANK_TABLE_H_
#define SLACKWATER_MODEL_RANK_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::model {

// The ordinary tokens of a vocabulary: the bytes of each, and the token of given bytes.
//
// The rank of a token is its id, and says how early it was learned: the pair of neighbours whose
// bytes together have the lowest rank is merged first.
//
// Source: the rank files of tiktoken: one line `base64(token bytes) rank` per token.
// Invariants:
//   I1  ranks are 0 .. size() - 1, each once; bytes are not empty and differ between tokens.
//   I2  each of the 256 single bytes is a token, so that any bytes can be spelled.
// Ownership: owns all bytes; a value.
// Threads: immutable once made.
// Errors: kDataLoss from parse(), with the line; nothing is made then.
// Cost: parse() is linear in the file; find() hashes its bytes once.
class RankTable {
 public:
  // Lines end in LF or CRLF, the last one perhaps in neither; empty lines are skipped, and the
  // order of lines is free. Base64 is RFC 4648 section 4 and canonical: padded, no white space,
  // no bits set that are thrown away.
  static Result<RankTable> parse(std::string_view file);

  std::int32_t size() const { return static_cast<std::int32_t>(ends_.size()); }

  // The bytes of `token`, 0 <= token < size().
  std::string_view bytes(TokenId token) const;

  // The token that is spelled `bytes`.
  std::optional<TokenId> find(std::string_view bytes) const;

 private:
  // A file is parsed into these before it is known whether they make a table.
  struct Line;

  RankTable() = default;
  static Result<std::vector<Line>> read_lines(std::string_view file, std::string& decoded);
  static Result<std::vector<Line>> sort_by_rank(const std::vector<Line>& lines);
  // The slot that holds `bytes`, or the free one where they would go.
  std::size_t probe(std::string_view bytes, std::size_t hash) const;

  std::string blob_;               // the bytes of all tokens, by rank
  std::vector<std::size_t> ends_;  // [size], where each token's bytes end in blob_
  std::size_t longest_ = 0;        // bytes of the longest token

  // Open addressing with linear probing; at most half full, so that a probe ends.
  struct Slot {
    std::uint32_t tag = 0;  // some bits of the hash, to spare most comparisons
    std::uint32_t token_plus_one = kNoToken;
    static constexpr std::uint32_t kNoToken = 0;
  };
  std::vector<Slot> slots_;  // a power of two
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_RANK_TABLE_H_
