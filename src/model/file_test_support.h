#ifndef SLACKWATER_MODEL_FILE_TEST_SUPPORT_H_
#define SLACKWATER_MODEL_FILE_TEST_SUPPORT_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/base/error.h"
#include "testing/temporary_directory.h"

namespace slackwater::model {

// A directory that goes away with the test, and files in it.
class TempDirectory : public TemporaryDirectory {
 public:
  std::filesystem::path write(std::string_view name, std::string_view content) const {
    const std::filesystem::path file = path() / name;
    std::ofstream out(file, std::ios::binary);
    out.write(content.data(), static_cast<std::streamsize>(content.size()));
    EXPECT_TRUE(out.flush().good()) << file;
    return file;
  }
};

inline std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.good()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

inline std::span<const std::byte> as_byte_span(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The bytes of a safetensors file: length, header, data.
inline std::string safetensors_bytes(std::string_view header, std::string_view data) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(header.size() >> (8 * i)));
  return out.append(header).append(data);
}

// A file of one-dimensional U8 tensors whose bytes are the given strings.
struct NamedBytes {
  std::string name;
  std::string bytes;
};

inline std::string safetensors_of(const std::vector<NamedBytes>& tensors) {
  std::string header = "{";
  std::string data;
  for (const NamedBytes& tensor : tensors) {
    header += fmt::format(R"({}"{}":{{"dtype":"U8","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", tensor.name, tensor.bytes.size(),
                          data.size(), data.size() + tensor.bytes.size());
    data += tensor.bytes;
  }
  return safetensors_bytes(header + "}", data);
}

// Expects a refusal with this code and one line of text that holds every one of `parts`.
template <class T>
void expect_refused(const Result<T>& result, ErrorCode code,
                    std::initializer_list<std::string_view> parts) {
  ASSERT_FALSE(result.has_value()) << "accepted";
  const Error& error = result.error();
  EXPECT_EQ(to_string(error.code()), to_string(code)) << error.text();
  EXPECT_EQ(error.text().find('\n'), std::string::npos) << error.text();
  for (const std::string_view part : parts) {
    EXPECT_THAT(error.text(), testing::HasSubstr(std::string(part)));
  }
}

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_FILE_TEST_SUPPORT_H_
