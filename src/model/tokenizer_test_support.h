#ifndef SLACKWATER_MODEL_TOKENIZER_TEST_SUPPORT_H_
#define SLACKWATER_MODEL_TOKENIZER_TEST_SUPPORT_H_

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "model/file_test_support.h"
#include "slackwater/model/tokenizer.h"
#include "testing/seed.h"

namespace slackwater::model {

inline constexpr std::int32_t kDemoRanks = 2048;
inline constexpr std::int32_t kDemoVocabSize = 2064;

inline std::filesystem::path repository_path(std::string_view relative) {
  return std::filesystem::path(SLACKWATER_SOURCE_DIR) / relative;
}

// The value, or the end of the test program.
template <class T>
T value_of(Result<T> result) {
  if (!result.has_value()) {
    ADD_FAILURE() << result.error().text();
    std::abort();
  }
  return *std::move(result);
}

inline Tokenizer load_demo_tokenizer() {
  return value_of(Tokenizer::load(repository_path("models/demo"), kDemoVocabSize));
}

// `size` letters of `alphabet`, each as likely as the other.
inline std::string random_string(std::mt19937_64& random, std::string_view alphabet,
                                 std::size_t size) {
  std::string text(size, ' ');
  for (char& letter : text) letter = alphabet[random() % alphabet.size()];
  return text;
}

inline std::string random_bytes(std::mt19937_64& random, std::size_t size) {
  std::string bytes(size, ' ');
  for (char& byte : bytes) byte = static_cast<char>(random() & 0xFF);
  return bytes;
}

// RFC 4648, section 4.
inline std::string encode_base64(std::string_view bytes) {
  static constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); i += 3) {
    std::uint32_t bits = 0;
    for (std::size_t j = i; j < i + 3; ++j) {
      bits = (bits << 8) | (j < bytes.size() ? static_cast<unsigned char>(bytes[j]) : 0u);
    }
    for (std::size_t j = 0; j < 4; ++j) {
      const bool is_padding = i + j > bytes.size();
      text += is_padding ? '=' : kAlphabet[(bits >> (18 - 6 * j)) & 63u];
    }
  }
  return text;
}

// The 256 single bytes, ranks 0 to 255, and `more` after them.
inline std::vector<std::string> byte_tokens(const std::vector<std::string>& more = {}) {
  std::vector<std::string> tokens;
  for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
  tokens.insert(tokens.end(), more.begin(), more.end());
  return tokens;
}

// The rank file of these tokens, in order of rank.
inline std::string rank_file(const std::vector<std::string>& tokens) {
  std::string file;
  for (std::size_t rank = 0; rank < tokens.size(); ++rank) {
    file += fmt::format("{} {}\n", encode_base64(tokens[rank]), rank);
  }
  return file;
}

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_TOKENIZER_TEST_SUPPORT_H_
