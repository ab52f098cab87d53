#ifndef SLACKWATER_MODEL_BYTE_PAIR_H_
#define SLACKWATER_MODEL_BYTE_PAIR_H_

#include <cstddef>
#include <string_view>
#include <vector>

#include "model/rank_table.h"
#include "slackwater/base/ids.h"

namespace slackwater::model {

// Pieces of at most this many bytes are merged by looking at every pair for each merge, longer
// ones with a heap. The result is the same; a word is too short for a heap to pay.
inline constexpr std::size_t kScannedPieceBytes = 64;

// Appends the tokens of `piece`, 1 to 2^31 - 1 bytes, to `tokens`.
//
// A piece that is a token as a whole is that token. Any other starts as single bytes; then, as
// long as there are neighbours whose bytes together are a token, those of the lowest rank are
// merged, of equal ones the leftmost.
//
// Source: byte-pair encoding as in tiktoken, the look-up of the whole piece included.
// Threads: may be called from several threads at once.
// Cost: O(n log n) look-ups; no allocation up to kScannedPieceBytes, besides the result's.
void append_merged(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& tokens);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_BYTE_PAIR_H_
