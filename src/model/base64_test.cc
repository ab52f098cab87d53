#include "model/base64.h"

#include <optional>

#include <gtest/gtest.h>

#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

std::optional<std::string> decoded(std::string_view text) {
  std::string bytes;
  if (!append_base64_decoded(text, bytes)) return std::nullopt;
  return bytes;
}

// RFC 4648, section 10.
TEST(Base64, DecodesTheExamplesOfTheStandard) {
  EXPECT_EQ(decoded(""), "");
  EXPECT_EQ(decoded("Zg=="), "f");
  EXPECT_EQ(decoded("Zm8="), "fo");
  EXPECT_EQ(decoded("Zm9v"), "foo");
  EXPECT_EQ(decoded("Zm9vYg=="), "foob");
  EXPECT_EQ(decoded("Zm9vYmE="), "fooba");
  EXPECT_EQ(decoded("Zm9vYmFy"), "foobar");
  EXPECT_EQ(decoded("+/+/"), "\xFB\xFF\xBF");
}

TEST(Base64, RefusesWhatIsNotTheOneEncoding) {
  for (const std::string_view text :
       {"Z",      "Zg",   "Zg=",   "Zg===",    "Zm9",      "=",    "==",   "===",
        "====",   "Z===", "Zm9v=", "Zm9v====", "Zg==Zg==", "Z=g=", "=Zm9", "Zm 9v",
        "Zm9v\n", "Zm9_", "Zm9-",  "Zm9\xC3",  "Zh==",     "Zn==", "Zm9=", "Zm+="}) {
    EXPECT_EQ(decoded(text), std::nullopt) << text;
  }
}

TEST(Base64, LeavesTheOutputAsItWasWhenItRefuses) {
  std::string bytes = "kept";
  EXPECT_FALSE(append_base64_decoded("Zm9vYmF!", bytes));
  EXPECT_EQ(bytes, "kept");
  EXPECT_TRUE(append_base64_decoded("Zm9v", bytes));
  EXPECT_EQ(bytes, "keptfoo");
}

TEST(Base64, DecodesWhatWasEncoded) {
  std::mt19937_64 random(test_seed());
  for (std::size_t round = 0; round < 2000; ++round) {
    const std::string bytes = random_bytes(random, round % 40);
    ASSERT_EQ(decoded(encode_base64(bytes)), bytes);
  }
}

// Of four characters exactly the encodings of one, two and three bytes decode.
TEST(Base64, EveryTextThatDecodesIsTheEncodingOfItsBytes) {
  std::mt19937_64 random(test_seed());
  int num_decoded = 0;
  for (int round = 0; round < 200000; ++round) {
    const std::string text = random_string(random, "AQgwBZ+/9=", 4);
    const auto bytes = decoded(text);
    if (!bytes) continue;
    ASSERT_EQ(encode_base64(*bytes), text);
    ++num_decoded;
  }
  EXPECT_GT(num_decoded, 1000);
}

}  // namespace
}  // namespace slackwater::model
