#ifndef SLACKWATER_MODEL_SPECIAL_TOKENS_H_
#define SLACKWATER_MODEL_SPECIAL_TOKENS_H_

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::model {

// The tokens of a vocabulary that stand for no text: begin and end of a sequence, roles, ... They
// have the ids from the number of ranks up to the vocabulary size.
//
// Source: `added_tokens_decoder` in the tokenizer_config.json of Hugging Face checkpoints, an
// object of `"id": {"content": name, ...}`. Ids without an entry are `<|reserved_token_ID|>`, as
// in Kimi's tokenization_kimi.py.
// Invariants:
//   I1  every id in [first_id, first_id + size()) has a name; names are not empty and differ.
// Ownership: owns the names; a value.
// Threads: immutable once made.
// Errors: from parse(): kDataLoss for text that is not such an object, kInvalidArgument where its
//   ids do not fit the vocabulary; nothing is made then.
// Cost: match_at() is O(length of the match * log size()).
class SpecialTokens {
 public:
  // A vocabulary that leaves more ids than this to special tokens belongs to other ranks.
  static constexpr std::int32_t kMaxSpecialTokens = 65536;

  // `num_ranks` >= 0 and `vocab_size` are the bounds of the ids. Members of the file besides
  // `added_tokens_decoder` are ignored, and so are those of an entry besides `content`.
  static Result<SpecialTokens> parse(std::string_view config_json, std::int32_t num_ranks,
                                     std::int32_t vocab_size);

  std::int32_t size() const { return static_cast<std::int32_t>(names_.size()); }

  // The name of `token`, first_id <= token < first_id + size().
  std::string_view name(TokenId token) const;

  std::optional<TokenId> find(std::string_view name) const;

  // The special token whose name `text` begins with; the one of the longest name where there are
  // several.
  std::optional<TokenId> match_at(std::string_view text) const;

 private:
  SpecialTokens() = default;

  TokenId first_id_ = 0;
  std::vector<std::string> names_;  // [size], by id
  std::vector<TokenId> by_name_;    // ids in the order of their names' bytes
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_SPECIAL_TOKENS_H_
