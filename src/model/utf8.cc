#include "model/utf8.h"

#include "slackwater/base/check.h"

namespace slackwater::model {
namespace {

// What a lead byte asks for. Only the byte after it has bounds of its own: they rule out overlong
// forms, surrogates and code points past U+10FFFF.
struct Lead {
  std::size_t size = 0;  // 0 where no well-formed sequence begins with this byte
  unsigned char second_min = 0x80;
  unsigned char second_max = 0xBF;
};

Lead classify_lead(unsigned char byte) {
  if (byte < 0x80) return {1};
  if (byte < 0xC2) return {0};
  if (byte < 0xE0) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

Utf8Prefix read_utf8(std::string_view bytes) {
  SLACKWATER_DCHECK(!bytes.empty(), "nothing to read");
  const Lead lead = classify_lead(static_cast<unsigned char>(bytes[0]));
  if (lead.size == 0) return {Utf8Prefix::Kind::kIllFormed, 1};
  for (std::size_t i = 1; i < lead.size; ++i) {
    if (i == bytes.size()) return {Utf8Prefix::Kind::kIncomplete, i};
    const auto byte = static_cast<unsigned char>(bytes[i]);
    const unsigned char min = i == 1 ? lead.second_min : 0x80;
    const unsigned char max = i == 1 ? lead.second_max : 0xBF;
    if (byte < min || byte > max) return {Utf8Prefix::Kind::kIllFormed, i};
  }
  return {Utf8Prefix::Kind::kCharacter, lead.size};
}

}  // namespace slackwater::model
