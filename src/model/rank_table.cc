#include "model/rank_table.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <functional>
#include <limits>

#include "model/base64.h"
#include "model/json_events.h"
#include "slackwater/base/check.h"

namespace slackwater::model {

struct RankTable::Line {
  TokenId rank = 0;
  std::size_t number = 0;  // 1-based
  std::size_t begin = 0;   // [begin, end) of the decoded bytes
  std::size_t end = 0;
};

namespace {

// Cuts the first line, its end included, off `file`.
std::string_view take_line(std::string_view& file) {
  const std::size_t end = file.find('\n');
  std::string_view line = file.substr(0, end);
  file.remove_prefix(end == std::string_view::npos ? file.size() : end + 1);
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

Result<TokenId> parse_rank(std::string_view digits) {
  TokenId rank = 0;
  const char* end = digits.data() + digits.size();
  const auto [stop, error] = std::from_chars(digits.data(), end, rank);
  if (error == std::errc::result_out_of_range) {
    return make_error(ErrorCode::kDataLoss, "rank {} is out of range; the largest is {}",
                      in_quotes(digits), std::numeric_limits<TokenId>::max());
  }
  if (error != std::errc() || stop != end || rank < 0) {
    return make_error(ErrorCode::kDataLoss, "rank {} is not a number of 0 or more",
                      in_quotes(digits));
  }
  return rank;
}

std::size_t hash_of(std::string_view bytes) { return std::hash<std::string_view>{}(bytes); }

// The bits of the hash that do not choose the slot.
std::uint32_t tag_of(std::size_t hash) { return static_cast<std::uint32_t>(hash >> 32); }

}  // namespace

Result<std::vector<RankTable::Line>> RankTable::read_lines(std::string_view file,
                                                           std::string& decoded) {
  std::vector<Line> lines;
  for (std::size_t number = 1; !file.empty(); ++number) {
    const std::string_view text = take_line(file);
    if (text.empty()) continue;
    const std::size_t space = text.find(' ');
    if (space == std::string_view::npos) {
      return make_error(ErrorCode::kDataLoss, "line {}: {} is not `base64 rank`", number,
                        in_quotes(text));
    }
    const auto rank = parse_rank(text.substr(space + 1));
    if (!rank) return tl::unexpected(rank.error().with_context(fmt::format("line {}", number)));
    const std::size_t begin = decoded.size();
    if (!append_base64_decoded(text.substr(0, space), decoded)) {
      return make_error(ErrorCode::kDataLoss, "line {}: {} is not canonical base64", number,
                        in_quotes(text.substr(0, space)));
    }
    if (decoded.size() == begin) {
      return make_error(ErrorCode::kDataLoss, "line {}: the token of rank {} is empty", number,
                        *rank);
    }
    lines.push_back({*rank, number, begin, decoded.size()});
  }
  return lines;
}

Result<std::vector<RankTable::Line>> RankTable::sort_by_rank(const std::vector<Line>& lines) {
  std::vector<Line> by_rank(lines.size());
  const Line* too_high = nullptr;
  for (const Line& line : lines) {
    if (static_cast<std::size_t>(line.rank) >= lines.size()) {
      too_high = &line;
      continue;
    }
    Line& place = by_rank[static_cast<std::size_t>(line.rank)];
    if (place.number != 0) {
      return make_error(ErrorCode::kDataLoss, "lines {} and {} both have rank {}", place.number,
                        line.number, line.rank);
    }
    place = line;
  }
  // As many places as lines and no place taken twice: one is free iff a rank lies past them.
  for (std::size_t rank = 0; too_high != nullptr && rank < by_rank.size(); ++rank) {
    if (by_rank[rank].number != 0) continue;
    return make_error(ErrorCode::kDataLoss,
                      "{} tokens, but rank {} is missing and line {} has rank {}", lines.size(),
                      rank, too_high->number, too_high->rank);
  }
  return by_rank;
}

Result<RankTable> RankTable::parse(std::string_view file) {
  std::string decoded;
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<Line> unsorted, read_lines(file, decoded));
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<Line> lines, sort_by_rank(unsorted));

  RankTable table;
  table.blob_.reserve(decoded.size());
  table.ends_.reserve(lines.size());
  table.slots_.resize(std::bit_ceil(2 * lines.size() + 1));
  for (const Line& line : lines) {
    const auto bytes = std::string_view(decoded).substr(line.begin, line.end - line.begin);
    const std::size_t hash = hash_of(bytes);
    Slot& slot = table.slots_[table.probe(bytes, hash)];
    if (slot.token_plus_one != Slot::kNoToken) {
      const std::size_t other = slot.token_plus_one - 1;
      return make_error(ErrorCode::kDataLoss, "lines {} and {}: ranks {} and {} have equal bytes",
                        lines[other].number, line.number, other, line.rank);
    }
    slot = {tag_of(hash), static_cast<std::uint32_t>(line.rank) + 1};
    table.blob_.append(bytes);
    table.ends_.push_back(table.blob_.size());
    table.longest_ = std::max(table.longest_, bytes.size());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char spelled = static_cast<char>(byte);
    if (!table.find({&spelled, 1})) {
      return make_error(ErrorCode::kDataLoss,
                        "no token is the single byte 0x{:02X}; text with it has no spelling", byte);
    }
  }
  return table;
}

std::string_view RankTable::bytes(TokenId token) const {
  SLACKWATER_CHECK(token >= 0 && token < size(), "token {} of {}", token, size());
  const auto index = static_cast<std::size_t>(token);
  const std::size_t begin = index == 0 ? 0 : ends_[index - 1];
  return std::string_view(blob_).substr(begin, ends_[index] - begin);
}

std::size_t RankTable::probe(std::string_view bytes, std::size_t hash) const {
  const std::size_t mask = slots_.size() - 1;
  for (std::size_t place = hash & mask;; place = (place + 1) & mask) {
    const Slot& slot = slots_[place];
    if (slot.token_plus_one == Slot::kNoToken) return place;
    if (slot.tag == tag_of(hash) &&
        this->bytes(static_cast<TokenId>(slot.token_plus_one - 1)) == bytes) {
      return place;
    }
  }
}

std::optional<TokenId> RankTable::find(std::string_view bytes) const {
  if (bytes.size() > longest_) return std::nullopt;
  const Slot& slot = slots_[probe(bytes, hash_of(bytes))];
  if (slot.token_plus_one == Slot::kNoToken) return std::nullopt;
  return static_cast<TokenId>(slot.token_plus_one - 1);
}

}  // namespace slackwater::model
