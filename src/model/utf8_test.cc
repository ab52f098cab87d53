#include "model/utf8.h"

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater::model {

static bool operator==(const Utf8Prefix& a, const Utf8Prefix& b) {
  return a.kind == b.kind && a.size == b.size;
}
static void PrintTo(const Utf8Prefix& prefix, std::ostream* out) {
  *out << "kind " << static_cast<int>(prefix.kind) << " size " << prefix.size;
}

namespace {

using Kind = Utf8Prefix::Kind;

// A code point in 1 to 4 bytes, whether that form is allowed or not.
std::string spell(std::uint32_t code, std::size_t size) {
  static constexpr std::uint32_t kLead[] = {0, 0x00, 0xC0, 0xE0, 0xF0};
  std::string bytes(size, ' ');
  for (std::size_t i = size - 1; i > 0; --i, code >>= 6) {
    bytes[i] = static_cast<char>(0x80 | (code & 0x3F));
  }
  bytes[0] = static_cast<char>(kLead[size] | code);
  return bytes;
}

std::size_t shortest_form(std::uint32_t code) {
  return code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
}

TEST(Utf8, ExactlyTheShortestFormsOfScalarValuesAreCharacters) {
  for (std::size_t size = 1; size <= 4; ++size) {
    const std::uint32_t num_codes = size == 1 ? 0x80u : 1u << (5 * size + 1);
    for (std::uint32_t code = 0; code < num_codes; ++code) {
      const bool is_scalar = code < 0xD800 || (code >= 0xE000 && code <= 0x10FFFF);
      const bool want = is_scalar && shortest_form(code) == size;
      const Utf8Prefix prefix = read_utf8(spell(code, size));
      ASSERT_EQ(prefix.kind == Kind::kCharacter, want) << std::hex << code << " in " << size;
      if (want) {
        ASSERT_EQ(prefix.size, size);
      }
    }
  }
}

TEST(Utf8, WhatFollowsACharacterDoesNotMatter) {
  EXPECT_EQ(read_utf8("a\xFF"), (Utf8Prefix{Kind::kCharacter, 1}));
  EXPECT_EQ(read_utf8("\xE2\x82\xAC\x80"), (Utf8Prefix{Kind::kCharacter, 3}));
}

// A prefix is incomplete iff some one byte more leads to a longer incomplete one or a character.
TEST(Utf8, APrefixIsIncompleteIffSomeByteContinuesIt) {
  std::vector<std::string> prefixes = {""};
  for (std::size_t size = 1; size <= 3; ++size) {
    std::vector<std::string> longer;
    for (const std::string& prefix : prefixes) {
      for (int byte = 0; byte < 256; ++byte) {
        const std::string bytes = prefix + static_cast<char>(byte);
        bool can_continue = false;
        for (int next = 0; next < 256; ++next) {
          const Utf8Prefix after = read_utf8(bytes + static_cast<char>(next));
          can_continue |= after.kind != Kind::kIllFormed && after.size == size + 1;
        }
        const Utf8Prefix now = read_utf8(bytes);
        ASSERT_EQ(now.kind == Kind::kIncomplete, can_continue) << ::testing::PrintToString(bytes);
        if (can_continue) {
          ASSERT_EQ(now.size, size);
          longer.push_back(bytes);
        }
      }
    }
    prefixes = longer;
  }
}

// The example of the Unicode Standard, section 3.9, "U+FFFD substitution of maximal subparts".
TEST(Utf8, IllFormedPrefixesAreMaximalSubparts) {
  std::string text = "\x61\xF1\x80\x80\xE1\x80\xC2\x62\x80\x63\x80\xBF\x64";
  std::vector<std::size_t> sizes;
  while (!text.empty()) {
    sizes.push_back(read_utf8(text).size);
    text.erase(0, sizes.back());
  }
  EXPECT_EQ(sizes, (std::vector<std::size_t>{1, 3, 2, 1, 1, 1, 1, 1, 1, 1}));
  EXPECT_EQ(read_utf8("\xED\xA0\x80"), (Utf8Prefix{Kind::kIllFormed, 1}));
  EXPECT_EQ(read_utf8("\xF4\x90\x80\x80"), (Utf8Prefix{Kind::kIllFormed, 1}));
  EXPECT_EQ(read_utf8("\xF0\x9F\x9A!"), (Utf8Prefix{Kind::kIllFormed, 3}));
}

}  // namespace
}  // namespace slackwater::model
