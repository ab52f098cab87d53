#include "model/base64.h"

#include <array>
#include <cstddef>
#include <cstdint>

namespace slackwater::model {
namespace {

constexpr std::string_view kAlphabet =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
constexpr std::uint8_t kForeign = 64;

constexpr std::array<std::uint8_t, 256> make_sextets() {
  std::array<std::uint8_t, 256> sextets{};
  sextets.fill(kForeign);
  for (std::size_t i = 0; i < kAlphabet.size(); ++i) {
    sextets[static_cast<unsigned char>(kAlphabet[i])] = static_cast<std::uint8_t>(i);
  }
  return sextets;
}
constexpr std::array<std::uint8_t, 256> kSextets = make_sextets();

}  // namespace

bool append_base64_decoded(std::string_view text, std::string& out) {
  if (text.size() % 4 != 0) return false;
  for (int padding = 0; padding < 2 && text.ends_with('='); ++padding) text.remove_suffix(1);

  const std::size_t size_before = out.size();
  std::uint32_t bits = 0;  // the low `num_bits` are not yet written
  int num_bits = 0;
  for (const char character : text) {
    const std::uint8_t sextet = kSextets[static_cast<unsigned char>(character)];
    if (sextet == kForeign) {
      out.resize(size_before);
      return false;
    }
    bits = (bits << 6) | sextet;
    num_bits += 6;
    if (num_bits < 8) continue;
    num_bits -= 8;
    out.push_back(static_cast<char>((bits >> num_bits) & 0xFFu));
    bits &= (1u << num_bits) - 1u;
  }
  if (bits != 0) {
    out.resize(size_before);
    return false;
  }
  return true;
}

}  // namespace slackwater::model
