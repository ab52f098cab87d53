#ifndef SLACKWATER_ENGINE_TEXT_OUTPUT_H_
#define SLACKWATER_ENGINE_TEXT_OUTPUT_H_

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/model/text_stream.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::engine {

// From the tokens of one choice to its text and its end, as model::generate_solo does it.
//
// A token that ends the answer is one of its tokens and adds no text; what was held back comes with
// it. A stop text ends the text before it, within accepted drafts too: tokens after the one that
// completes it are not to be pushed. Without a tokenizer there is no text, and only tokens stop.
//
// Invariants:
//   I1  all texts together are those of generate_solo for the same tokens, however they come.
//   I2  after `finished` nothing more comes.
// Ownership: borrows the tokenizer, which must outlive it.
// Threads: one at a time.
// Errors: none; a token after the end is a bug (CHECK).
// Cost: that of model::TextStream. A state that was lost is made again by pushing the same tokens.
class TextOutput {
 public:
  // `tokenizer` may be null where `stop` is empty (CHECK). `stop_token_ids` end the answer beside
  // `eos_ids`, and do so with `ignore_eos` too.
  TextOutput(const model::Tokenizer* tokenizer, std::vector<std::string> stop,
             std::span<const TokenId> eos_ids, std::span<const TokenId> stop_token_ids,
             bool ignore_eos);

  struct Step {
    std::string text;  // that has become certain
    bool finished = false;
  };

  // The next token of the answer. `finished`: it is its last, and all text is out.
  Step push(TokenId token);

  // There are no more tokens: gives what is held back. An incomplete character may complete a stop
  // text as U+FFFD: then `finished` is true. Nothing after push() has said `finished`.
  Step finish();

  bool is_finished() const { return is_finished_; }

 private:
  std::optional<model::TextStream> stream_;
  std::vector<TokenId> ends_;  // tokens that end the answer
  bool is_finished_ = false;   // by a token or a text
  bool is_closed_ = false;     // by finish()
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_TEXT_OUTPUT_H_
