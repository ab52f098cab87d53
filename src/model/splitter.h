#ifndef SLACKWATER_MODEL_SPLITTER_H_
#define SLACKWATER_MODEL_SPLITTER_H_

#include <cstddef>
#include <memory>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"

namespace slackwater::model {

// Cuts text into the pieces within which byte pairs are merged: words with the space before them,
// runs of Han, up to three digits, punctuation, white space.
//
// A piece is a match of the split pattern of Kimi's tokenizer. Bytes that are not well-formed
// UTF-8 are pieces of one byte each, and the text on either side of one is split as if it ended
// there. Letters, numbers and scripts are those of the Unicode version of the PCRE2 in use.
//
// Source: `pat_str` of Kimi's tokenization_kimi.py, matched by tiktoken with Rust's regex syntax;
// splitter.cc says how it is written for PCRE2.
// Invariants:
//   I1  the pieces of a text are not empty, and their concatenation is the text.
//   I2  both engines give the same pieces.
// Ownership: owns the compiled pattern; move-only. Pieces point into the caller's text.
// Threads: split() may be called from several threads at once.
// Errors: kUnimplemented from compile() where PCRE2 is too old or lacks Unicode; kOutOfRange for a
//   text of more than kMaxTextBytes; kResourceExhausted where PCRE2 gives up.
// Cost: linear in the text, whatever it is; about 40 ns a byte with machine code, four times that
//   without.
class Splitter {
 public:
  // Positions within a text fit 31 bits.

  enum class Engine {
    kFastest,      // machine code where PCRE2 can make and run it, otherwise kInterpreter
    kInterpreter,  // never machine code
  };

  static Result<Splitter> compile(Engine engine = Engine::kFastest);

  Splitter(Splitter&&) noexcept;
  Splitter& operator=(Splitter&&) noexcept;
  ~Splitter();

  // The pieces of `text`, in order; none for the empty text.
  Result<std::vector<std::string_view>> split(std::string_view text) const;

  // Whether machine code runs.
  bool is_compiled_to_machine_code() const;

 private:
  struct Pattern;
  explicit Splitter(std::unique_ptr<const Pattern> pattern);

  std::unique_ptr<const Pattern> pattern_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_SPLITTER_H_
