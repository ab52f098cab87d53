#ifndef SLACKWATER_MODEL_BASE64_H_
#define SLACKWATER_MODEL_BASE64_H_

#include <string>
#include <string_view>

namespace slackwater::model {

// Decodes `text` and appends the bytes to `out`. False, and `out` as before, where `text` is not
// the one canonical encoding of any bytes: padded to a multiple of four, no other characters, and
// zero in the bits that the last character has over.
//
// Source: RFC 4648, sections 3.5 and 4.
bool append_base64_decoded(std::string_view text, std::string& out);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_BASE64_H_
