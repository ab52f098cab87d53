#ifndef SLACKWATER_MODEL_UTF8_H_
#define SLACKWATER_MODEL_UTF8_H_

#include <cstddef>
#include <string_view>

namespace slackwater::model {

// What the first bytes of some text are.
struct Utf8Prefix {
  enum class Kind {
    kCharacter,   // one well-formed sequence of `size` bytes, 1 to 4
    kIncomplete,  // all bytes there are, 1 to 3, and more bytes could complete them
    kIllFormed,   // `size` bytes, 1 to 3, that no continuation can complete
  };
  Kind kind = Kind::kIllFormed;
  std::size_t size = 0;
};

// Classifies the beginning of `bytes`, which is not empty. O(1).
//
// Source: the well-formed sequences are table 3-7 of the Unicode Standard. An ill-formed prefix is
// a maximal subpart in the sense of its section 3.9: the longest beginning of a well-formed
// sequence, or one byte where there is none. Replacing each one by U+FFFD is what the WHATWG
// decoder does; an incomplete prefix at the end of the text is one maximal subpart as well.
Utf8Prefix read_utf8(std::string_view bytes);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_UTF8_H_
