#include "slackwater/model/tokenizer.h"

#include <utility>

#include "model/byte_pair.h"
#include "model/rank_table.h"
#include "model/special_tokens.h"
#include "model/splitter.h"
#include "slackwater/base/check.h"
#include "slackwater/model/mapped_file.h"

namespace slackwater::model {
namespace {

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

}  // namespace

struct Tokenizer::Parts {
  RankTable ranks;
  SpecialTokens specials;
  Splitter splitter;
};

// The contents of a file, and what errors call it.
struct Tokenizer::File {
  std::string name;
  std::string_view bytes;
};

Tokenizer::Tokenizer(std::unique_ptr<const Parts> parts) : parts_(std::move(parts)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::load(const std::filesystem::path& model_dir, std::int32_t vocab_size) {
  const std::filesystem::path rank_path = model_dir / "tiktoken.model";
  const std::filesystem::path config_path = model_dir / "tokenizer_config.json";
  SLACKWATER_ASSIGN_OR_RETURN(const MappedFile ranks, MappedFile::open(rank_path));
  SLACKWATER_ASSIGN_OR_RETURN(const MappedFile config, MappedFile::open(config_path));
  return assemble({fmt::format("'{}'", rank_path.string()), text_of(ranks)},
                  {fmt::format("'{}'", config_path.string()), text_of(config)}, vocab_size);
}

Result<Tokenizer> Tokenizer::from_bytes(std::string_view rank_file, std::string_view config_json,
                                        std::int32_t vocab_size) {
  return assemble({"rank file", rank_file}, {"tokenizer config", config_json}, vocab_size);
}

Result<Tokenizer> Tokenizer::assemble(const File& ranks_file, const File& config,
                                      std::int32_t vocab_size) {
  auto ranks = RankTable::parse(ranks_file.bytes);
  if (!ranks) return tl::unexpected(ranks.error().with_context(ranks_file.name));
  auto specials = SpecialTokens::parse(config.bytes, ranks->size(), vocab_size);
  if (!specials) return tl::unexpected(specials.error().with_context(config.name));
  SLACKWATER_ASSIGN_OR_RETURN(Splitter splitter, Splitter::compile());
  return Tokenizer(std::unique_ptr<const Parts>(
      new Parts{*std::move(ranks), *std::move(specials), std::move(splitter)}));
}

Result<void> Tokenizer::append_text(std::string_view text, std::vector<TokenId>& tokens) const {
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<std::string_view> pieces,
                              parts_->splitter.split(text));
  for (const std::string_view piece : pieces) append_merged(parts_->ranks, piece, tokens);
  return {};
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view bytes,
                                               SpecialText special_text) const {
  if (bytes.size() > kMaxTextBytes) {
    return make_error(ErrorCode::kOutOfRange, "a text of {} bytes; at most {} are encoded at once",
                      bytes.size(), kMaxTextBytes);
  }
  std::vector<TokenId> tokens;
  std::size_t text_begin = 0;  // of the text before the next special token
  std::size_t position = special_text == SpecialText::kAsTokens ? 0 : bytes.size();
  while (position < bytes.size()) {
    const auto special = parts_->specials.match_at(bytes.substr(position));
    if (!special) {
      ++position;
      continue;
    }
    SLACKWATER_RETURN_IF_ERROR(
        append_text(bytes.substr(text_begin, position - text_begin), tokens));
    tokens.push_back(*special);
    position += special_name(*special).size();
    text_begin = position;
  }
  SLACKWATER_RETURN_IF_ERROR(append_text(bytes.substr(text_begin), tokens));
  return tokens;
}

Result<std::string> Tokenizer::decode(std::span<const TokenId> tokens) const {
  std::string bytes;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= vocab_size()) {
      return make_error(ErrorCode::kOutOfRange, "token {} at {} of {}; the vocabulary has {}",
                        tokens[i], i, tokens.size(), vocab_size());
    }
    bytes += token_bytes(tokens[i]);
  }
  return bytes;
}

std::int32_t Tokenizer::num_ranks() const { return parts_->ranks.size(); }

std::int32_t Tokenizer::vocab_size() const { return num_ranks() + parts_->specials.size(); }

bool Tokenizer::is_special(TokenId token) const {
  SLACKWATER_CHECK(token >= 0 && token < vocab_size(), "token {} of {}", token, vocab_size());
  return token >= num_ranks();
}

std::string_view Tokenizer::token_bytes(TokenId token) const {
  return is_special(token) ? std::string_view() : parts_->ranks.bytes(token);
}

std::string_view Tokenizer::special_name(TokenId token) const {
  return is_special(token) ? parts_->specials.name(token) : std::string_view();
}

std::optional<TokenId> Tokenizer::special_id(std::string_view name) const {
  return parts_->specials.find(name);
}

}  // namespace slackwater::model
