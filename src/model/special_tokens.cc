#include "model/special_tokens.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <span>
#include <utility>

#include "model/json_events.h"
#include "slackwater/base/check.h"

namespace slackwater::model {
namespace {

constexpr std::string_view kDecoder = "added_tokens_decoder";

using Names = std::map<TokenId, std::string>;

// Takes the ids and names out of a tokenizer_config.json while it is parsed. A tree of the whole
// file would not show a member that occurs twice: the later one hides the earlier.
class ConfigReader final : public JsonEvents {
 public:
  ConfigReader() : JsonEvents(kMaxDepth) {}

  // What was read, nullopt where the file has no `added_tokens_decoder`.
  std::optional<Names> take() && {
    if (!has_decoder_) return std::nullopt;
    return std::move(names_);
  }

 private:
  enum class Kind { kObject, kString, kOther };

  // Chat templates and the like nest, but not deeply.
  static constexpr int kMaxDepth = 64;
  // depth() of the members of the file, of `added_tokens_decoder`, of one of its entries.
  static constexpr int kFile = 1;
  static constexpr int kTokens = 2;
  static constexpr int kToken = 3;

  bool on_scalar(const JsonScalar& scalar) override {
    const bool is_string = scalar.kind == JsonScalar::Kind::kString;
    if (!check(is_string ? Kind::kString : Kind::kOther, depth())) return false;
    if (!is_content(depth())) return true;
    if (scalar.text.empty()) return refuse("special token {} has an empty name", id_);
    names_[id_] = scalar.text;
    return true;
  }

  bool on_key(std::string_view name) override {
    if (depth() <= kToken) keys_[static_cast<std::size_t>(depth())] = name;
    if (depth() == kFile && name == kDecoder) {
      if (has_decoder_) return refuse("two members '{}'", kDecoder);
      has_decoder_ = true;
    }
    if (in_decoder(kTokens, depth())) return begin_token(name);
    if (is_content(depth()) && !names_[id_].empty()) {
      return refuse("special token {} has two members 'content'", id_);
    }
    return true;
  }

  bool on_object_start() override { return check(Kind::kObject, depth() - 1); }
  bool on_array_start() override { return check(Kind::kOther, depth() - 1); }
  bool on_array_end() override { return true; }

  bool on_object_end() override {
    if (in_decoder(kToken, depth() + 1) && names_[id_].empty()) {
      return refuse("special token {} has no member 'content'", id_);
    }
    return true;
  }

  // Whether the containers open around something, `depth` of them, end in the decoder.
  bool in_decoder(int wanted, int depth) const {
    return depth == wanted && keys_[kFile] == kDecoder;
  }
  bool is_content(int depth) const {
    return in_decoder(kToken, depth) && keys_[kToken] == "content";
  }

  // Whether a value of this kind may stand at the last key.
  bool check(Kind kind, int depth) {
    if (depth == 0 && kind != Kind::kObject) return refuse("the file is not a JSON object");
    if (in_decoder(kFile, depth) && kind != Kind::kObject) {
      return refuse("'{}' is not an object", kDecoder);
    }
    if (in_decoder(kTokens, depth) && kind != Kind::kObject) {
      return refuse("special token {} is not an object", id_);
    }
    if (is_content(depth) && kind != Kind::kString) {
      return refuse("special token {}: 'content' is not a string", id_);
    }
    return true;
  }

  bool begin_token(std::string_view id) {
    const char* end = id.data() + id.size();
    const auto [stop, error] = std::from_chars(id.data(), end, id_);
    if (error != std::errc() || stop != end || id_ < 0) {
      return refuse("{} is not a token id, a number from 0 to {}", in_quotes(id),
                    std::numeric_limits<TokenId>::max());
    }
    if (!names_.emplace(id_, std::string()).second) {
      return refuse("special token {} occurs twice", id_);
    }
    return true;
  }

  template <class... Args>
  bool refuse(fmt::format_string<Args...> format, Args&&... args) {
    return fail(ErrorCode::kDataLoss, fmt::format(format, std::forward<Args>(args)...));
  }

  std::array<std::string, kToken + 1> keys_;  // [depth], the last key at each
  bool has_decoder_ = false;
  TokenId id_ = 0;  // of the entry that is read
  Names names_;     // an entry that is read has an empty name until its `content`
};

Result<Names> read_names(std::string_view config_json) {
  ConfigReader reader;
  SLACKWATER_RETURN_IF_ERROR(read_json(config_json, reader));
  std::optional<Names> names = std::move(reader).take();
  if (!names) {
    return make_error(ErrorCode::kDataLoss, "no member '{}'; it may be an empty object", kDecoder);
  }
  return *std::move(names);
}

Result<void> check_ids(const Names& names, std::int32_t num_ranks, std::int32_t vocab_size) {
  const std::int64_t num_ids =
      static_cast<std::int64_t>(num_ranks) + static_cast<std::int64_t>(names.size());
  if (num_ids > vocab_size) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} ranks and {} special tokens need {} ids, but vocab_size is {}; the "
                      "files belong to different models",
                      num_ranks, names.size(), num_ids, vocab_size);
  }
  if (vocab_size - num_ranks > SpecialTokens::kMaxSpecialTokens) {
    return make_error(ErrorCode::kInvalidArgument,
                      "vocab_size {} leaves {} ids beside {} ranks, but at most {} are special; "
                      "the files belong to different models",
                      vocab_size, vocab_size - num_ranks, num_ranks,
                      SpecialTokens::kMaxSpecialTokens);
  }
  for (const auto& [id, name] : names) {
    if (id >= num_ranks && id < vocab_size) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "special token {} lies outside [{}, {}), from the number of ranks to "
                      "vocab_size",
                      id, num_ranks, vocab_size);
  }
  return {};
}

}  // namespace

Result<SpecialTokens> SpecialTokens::parse(std::string_view config_json, std::int32_t num_ranks,
                                           std::int32_t vocab_size) {
  SLACKWATER_ASSIGN_OR_RETURN(Names names, read_names(config_json));
  SLACKWATER_RETURN_IF_ERROR(check_ids(names, num_ranks, vocab_size));

  SpecialTokens tokens;
  tokens.first_id_ = num_ranks;
  for (TokenId id = num_ranks; id < vocab_size; ++id) {
    const auto found = names.find(id);
    tokens.names_.push_back(found != names.end() ? std::move(found->second)
                                                 : fmt::format("<|reserved_token_{}|>", id));
  }
  tokens.by_name_.resize(tokens.names_.size());
  std::iota(tokens.by_name_.begin(), tokens.by_name_.end(), num_ranks);
  std::ranges::sort(tokens.by_name_, {}, [&](TokenId id) { return tokens.name(id); });
  const auto twin =
      std::ranges::adjacent_find(tokens.by_name_, {}, [&](TokenId id) { return tokens.name(id); });
  if (twin != tokens.by_name_.end()) {
    const auto [low, high] = std::minmax(*twin, *std::next(twin));
    return make_error(ErrorCode::kDataLoss, "special tokens {} and {} have the same name {}", low,
                      high, in_quotes(tokens.name(low)));
  }
  return tokens;
}

std::string_view SpecialTokens::name(TokenId token) const {
  SLACKWATER_CHECK(token >= first_id_ && token - first_id_ < size(), "token {} of [{}, {})", token,
                   first_id_, first_id_ + size());
  return names_[static_cast<std::size_t>(token - first_id_)];
}

std::optional<TokenId> SpecialTokens::find(std::string_view wanted) const {
  const auto found =
      std::ranges::lower_bound(by_name_, wanted, {}, [&](TokenId id) { return name(id); });
  if (found == by_name_.end() || name(*found) != wanted) return std::nullopt;
  return *found;
}

std::optional<TokenId> SpecialTokens::match_at(std::string_view text) const {
  std::optional<TokenId> longest;
  // The names in `rest` begin with the same `depth` bytes as the text. The shortest comes first.
  std::span<const TokenId> rest = by_name_;
  for (std::size_t depth = 0; !rest.empty(); ++depth) {
    if (name(rest.front()).size() == depth) {
      longest = rest.front();
      rest = rest.subspan(1);
    }
    if (depth == text.size()) break;
    const auto next = std::ranges::equal_range(
        rest, static_cast<unsigned char>(text[depth]), {},
        [&](TokenId id) { return static_cast<unsigned char>(name(id)[depth]); });
    rest = {next.begin(), next.end()};
  }
  return longest;
}

}  // namespace slackwater::model
