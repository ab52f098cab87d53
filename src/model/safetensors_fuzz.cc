// Any bytes are refused with one line of text, or give views that tile the data section.

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/check.h"
#include "slackwater/model/safetensors.h"

namespace slackwater::model {
namespace {

void check_views(const SafetensorsFile& file, std::span<const std::byte> whole) {
  const std::byte* const end = whole.data() + whole.size();
  const std::byte* next = nullptr;
  for (const TensorView& tensor : file.tensors()) {
    SLACKWATER_CHECK(file.find(tensor.name) == &tensor, "found another tensor");
    SLACKWATER_CHECK(tensor.bytes.data() >= whole.data() + 8, "a view starts before the data");
    SLACKWATER_CHECK(next == nullptr || tensor.bytes.data() == next, "a hole or an overlap");
    next = tensor.bytes.data() + tensor.bytes.size();
    SLACKWATER_CHECK(next <= end, "a view ends after the file");
    SLACKWATER_CHECK(tensor.num_elements() * dtype_bytes(tensor.dtype) ==
                         static_cast<std::int64_t>(tensor.bytes.size()),
                     "I3");
  }
  SLACKWATER_CHECK(next == nullptr || next == end, "trailing bytes");
}

void parse(std::span<const std::byte> whole) {
  const auto file = SafetensorsFile::parse(whole, "fuzz");
  if (file.has_value()) {
    check_views(*file, whole);
  } else {
    const std::string& text = file.error().text();
    SLACKWATER_CHECK(!text.empty() && text.size() < 2'000, "{} bytes of text", text.size());
    for (const char c : text) SLACKWATER_CHECK(c >= 0x20 && c < 0x7F, "an unprintable error");
  }
}

}  // namespace
}  // namespace slackwater::model

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const auto input = std::as_bytes(std::span(data + 1, size - 1));
  // An odd first byte: the rest is the file. An even one: the rest is a header, and its own
  // length and some data are put around it, which the fuzzer would not guess.
  if (data[0] % 2 != 0) {
    slackwater::model::parse(input);
    return 0;
  }
  std::vector<std::byte> file;
  for (int i = 0; i < 8; ++i) file.push_back(static_cast<std::byte>(input.size() >> (8 * i)));
  file.insert(file.end(), input.begin(), input.end());
  file.resize(file.size() + data[0] / 2);
  slackwater::model::parse(file);
  return 0;
}
