// Any bytes are refused with one line of text, or are what they would be written as again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/bundle_format.h"
#include "slackwater/base/check.h"
#include "slackwater/engine/byte_codec.h"

namespace slackwater::engine {
namespace {

void check_text(const Error& error) {
  const std::string& text = error.text();
  SLACKWATER_CHECK(!text.empty() && text.size() < 2'000, "{} bytes of text", text.size());
  SLACKWATER_CHECK(
      std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; }),
      "an unprintable error");
}

void read_manifest(std::span<const std::byte> bytes) {
  const auto manifest = decode_manifest(bytes);
  if (!manifest.has_value()) return check_text(manifest.error());
  const std::vector<std::byte> again = encode_manifest(*manifest);
  SLACKWATER_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
                   "another manifest");
}

void read_image(std::span<const std::byte> bytes) {
  const auto image = decode_image(bytes, {});
  if (!image.has_value()) return check_text(image.error());
  const std::vector<std::byte> again = encode_image(*image);
  SLACKWATER_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()),
                   "another image");
}

}  // namespace
}  // namespace slackwater::engine

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  switch (data[0] % 3) {
    case 0: slackwater::engine::read_manifest(input); break;
    case 1: slackwater::engine::read_image(input); break;
    default: {
      // A manifest with a checksum, which the fuzzer would not guess.
      slackwater::engine::ByteWriter sealed;
      sealed.bytes(input);
      sealed.digest(slackwater::xxh3_128(input));
      slackwater::engine::read_manifest(sealed.view());
    }
  }
  return 0;
}
