#include "model/byte_pair.h"

#include <array>
#include <cstdint>
#include <functional>
#include <limits>
#include <queue>

#include "slackwater/base/check.h"

namespace slackwater::model {
namespace {

// Higher than any rank: no token.
constexpr TokenId kNoMerge = std::numeric_limits<TokenId>::max();

TokenId rank_or_none(const RankTable& ranks, std::string_view bytes) {
  return ranks.find(bytes).value_or(kNoMerge);
}

TokenId token_of_part(const RankTable& ranks, std::string_view bytes) {
  const auto token = ranks.find(bytes);
  // Parts are single bytes or the result of a merge.
  SLACKWATER_CHECK(token.has_value(), "a part of {} bytes is no token", bytes.size());
  return *token;
}

// One part of a short piece. A part ends where the next one begins.
struct Part {
  std::uint32_t begin = 0;
  TokenId merged = kNoMerge;  // rank of this part and the next one together
};

void append_scanned(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& tokens) {
  // One entry past the last part, so that every part has an end.
  std::array<Part, kScannedPieceBytes + 1> parts{};
  std::size_t num_parts = piece.size();
  const auto bytes_between = [&](std::size_t first, std::size_t last) {
    return piece.substr(parts[first].begin, parts[last].begin - parts[first].begin);
  };
  const auto update = [&](std::size_t part) {
    parts[part].merged =
        part + 2 > num_parts ? kNoMerge : rank_or_none(ranks, bytes_between(part, part + 2));
  };
  for (std::size_t i = 0; i <= num_parts; ++i) parts[i].begin = static_cast<std::uint32_t>(i);
  for (std::size_t i = 0; i < num_parts; ++i) update(i);
  for (;;) {
    std::size_t best = 0;
    for (std::size_t i = 1; i < num_parts; ++i) {
      if (parts[i].merged < parts[best].merged) best = i;
    }
    if (parts[best].merged == kNoMerge) break;
    for (std::size_t i = best + 1; i < num_parts; ++i) parts[i] = parts[i + 1];
    --num_parts;
    update(best);
    if (best > 0) update(best - 1);
  }
  for (std::size_t i = 0; i < num_parts; ++i) {
    tokens.push_back(token_of_part(ranks, bytes_between(i, i + 1)));
  }
}

// The parts of a long piece: a doubly linked list over the positions where parts begin.
class LongPiece {
 public:
  LongPiece(const RankTable& ranks, std::string_view piece)
      : ranks_(ranks), piece_(piece), nodes_(piece.size()) {
    std::vector<std::uint64_t> candidates;
    candidates.reserve(piece.size());
    for (std::uint32_t i = 0; i < nodes_.size(); ++i) {
      nodes_[i].previous = i == 0 ? 0 : i - 1;
      nodes_[i].end = i + 1;
      if (i + 1 == nodes_.size()) break;
      nodes_[i].merged = rank_or_none(ranks_, piece_.substr(i, 2));
      if (nodes_[i].merged != kNoMerge) candidates.push_back(candidate(i));
    }
    heap_ = Heap(std::greater<>(), std::move(candidates));
  }

  void merge_all() {
    while (!heap_.empty()) {
      const std::uint64_t best = heap_.top();
      heap_.pop();
      const auto begin = static_cast<std::uint32_t>(best & 0xFFFFFFFFu);
      // An entry is stale once its part was swallowed, or pairs with other bytes than then. A
      // rank stands for one string of bytes, so an equal rank means the very same bytes.
      if (nodes_[begin].merged != kNoMerge && candidate(begin) == best) merge(begin);
    }
  }

  void append_tokens(std::vector<TokenId>& tokens) const {
    for (std::uint32_t begin = 0; begin < nodes_.size(); begin = nodes_[begin].end) {
      tokens.push_back(token_of_part(ranks_, piece_.substr(begin, nodes_[begin].end - begin)));
    }
  }

 private:
  // Meaningful at the positions where a part begins.
  struct Node {
    std::uint32_t previous = 0;  // where the part before begins; 0 for the first
    std::uint32_t end = 0;       // where the next part begins
    TokenId merged = kNoMerge;   // rank of this part and the next one together
  };
  using Heap = std::priority_queue<std::uint64_t, std::vector<std::uint64_t>, std::greater<>>;

  // Orders by rank first, then from left to right.
  std::uint64_t candidate(std::uint32_t begin) const {
    return (static_cast<std::uint64_t>(nodes_[begin].merged) << 32) | begin;
  }

  void merge(std::uint32_t begin) {
    Node& node = nodes_[begin];
    Node& swallowed = nodes_[node.end];
    node.end = swallowed.end;
    swallowed.merged = kNoMerge;
    if (node.end < nodes_.size()) nodes_[node.end].previous = begin;
    update(begin);
    if (begin > 0) update(node.previous);
  }

  void update(std::uint32_t begin) {
    Node& node = nodes_[begin];
    node.merged = kNoMerge;
    if (node.end == nodes_.size()) return;
    const std::uint32_t end = nodes_[node.end].end;
    node.merged = rank_or_none(ranks_, piece_.substr(begin, end - begin));
    if (node.merged != kNoMerge) heap_.push(candidate(begin));
  }

  const RankTable& ranks_;
  std::string_view piece_;
  std::vector<Node> nodes_;
  Heap heap_;
};

}  // namespace

void append_merged(const RankTable& ranks, std::string_view piece, std::vector<TokenId>& tokens) {
  SLACKWATER_CHECK(!piece.empty() && piece.size() <= 0x7FFFFFFF, "a piece of {} bytes",
                   piece.size());
  if (const auto whole = ranks.find(piece)) {
    tokens.push_back(*whole);
  } else if (piece.size() <= kScannedPieceBytes) {
    append_scanned(ranks, piece, tokens);
  } else {
    LongPiece long_piece(ranks, piece);
    long_piece.merge_all();
    long_piece.append_tokens(tokens);
  }
}

}  // namespace slackwater::model
