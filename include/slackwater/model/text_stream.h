#ifndef SLACKWATER_MODEL_TEXT_STREAM_H_
#define SLACKWATER_MODEL_TEXT_STREAM_H_

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::model {

// Whether these can be stop texts: kInvalidArgument for one that is empty, or is not well-formed
// UTF-8 and so occurs in no text.
Result<void> validate_stop(std::span<const std::string> stop);

// Turns tokens into text as they are made, and lets go only of what is certain.
//
// Two things may be held back: up to three bytes that may still become a character, and text that
// may still become a stop text. Bytes that no continuation can complete become U+FFFD, one for
// each maximal subpart. Stop texts are looked for in the text after that replacement, so they
// match what a reader sees; the one that is complete first ends the text, and of several that are
// complete at the same character the one that begins first.
//
// Source: Unicode Standard, section 3.9 (maximal subparts); Knuth, Morris, Pratt, "Fast pattern
// matching in strings", 1977.
// Invariants:
//   I1  all pieces together are well-formed UTF-8, as is each.
//   I2  they depend on the bytes of the tokens, not on how these are cut into tokens; which piece
//       a character comes with depends on the cut only as far as no earlier piece could have it.
//   I3  what is held back is the longest end of the text that begins a stop text.
//   I4  after a stop nothing more comes.
// Ownership: borrows the tokenizer, which must outlive it.
// Threads: one at a time.
// Errors: none; a token outside the vocabulary, or one after finish(), is a bug (CHECK).
// Cost: O(bytes * number of stop texts), and memory for the longest of them.
class TextStream {
 public:
  // `stop` may be empty. Its entries pass validate_stop (CHECK).
  TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop);

  struct Piece {
    std::string text;
    bool stopped = false;  // a stop text is complete; the text of all pieces ends before it
  };

  // Special tokens add nothing.
  Piece push(TokenId token);

  // What is still held back, at the end of the tokens: an incomplete character is U+FFFD then,
  // which may complete a stop text as well.
  Piece finish();

 private:
  // One stop text, and how much of it the text ends with.
  struct Stop {
    std::string text;
    // [size], for each beginning of `text` the length of its longest proper end that begins it.
    std::vector<std::size_t> borders;
    std::size_t matched = 0;

    explicit Stop(std::string stop_text);
    bool advance(char byte);
  };

  Piece take_certain(std::string_view text);

  const Tokenizer* tokenizer_;
  std::vector<Stop> stops_;
  std::string bytes_;  // an incomplete character, 0 to 3 bytes
  std::string held_;   // text that may become a stop text
  bool stopped_ = false;
  bool finished_ = false;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_TEXT_STREAM_H_
