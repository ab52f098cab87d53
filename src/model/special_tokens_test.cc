#include "model/special_tokens.h"

#include <gtest/gtest.h>

#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

// Ids 256 to 263, with these entries.
Result<SpecialTokens> parse(std::string_view entries) {
  return SpecialTokens::parse(fmt::format(R"({{"added_tokens_decoder": {{{}}}}})", entries), 256,
                              264);
}

TEST(SpecialTokens, NamesComeFromTheFileAndMissingOnesAreReserved) {
  const SpecialTokens tokens = value_of(SpecialTokens::parse(
      R"({"bos_token": "[BOS]", "list": [1, {"added_tokens_decoder": 2}, [[]]],
          "added_tokens_decoder": {
            "258": {"special": true, "content": "[BOS]", "lstrip": {"content": 5}},
            "256": {"content": "\u003c|ü|>"}},
          "object": {"added_tokens_decoder": {"7": null}, "258": {"content": "x"}}})",
      256, 260));
  ASSERT_EQ(tokens.size(), 4);
  EXPECT_EQ(tokens.name(256), "<|ü|>");
  EXPECT_EQ(tokens.name(257), "<|reserved_token_257|>");
  EXPECT_EQ(tokens.name(258), "[BOS]");
  EXPECT_EQ(tokens.name(259), "<|reserved_token_259|>");
  for (TokenId token = 256; token < 260; ++token) {
    EXPECT_EQ(tokens.find(tokens.name(token)), token);
  }
  EXPECT_EQ(tokens.find("[BOS"), std::nullopt);
  EXPECT_EQ(tokens.find("[BOS]]"), std::nullopt);
  EXPECT_EQ(tokens.find("<|reserved_token_260|>"), std::nullopt);
  EXPECT_EQ(tokens.find(""), std::nullopt);
}

TEST(SpecialTokens, ThereMayBeNone) {
  const SpecialTokens tokens =
      value_of(SpecialTokens::parse(R"({"added_tokens_decoder": {}})", 256, 256));
  EXPECT_EQ(tokens.size(), 0);
  EXPECT_EQ(tokens.match_at("<|reserved_token_256|>"), std::nullopt);
}

TEST(SpecialTokens, MatchesTheLongestName) {
  const SpecialTokens tokens = value_of(parse(
      R"("256": {"content": "<a"}, "257": {"content": "<a>"}, "258": {"content": "<ab>>"},
         "259": {"content": "\u00ff"})"));
  EXPECT_EQ(tokens.match_at("<a"), 256);
  EXPECT_EQ(tokens.match_at("<a>"), 257);
  EXPECT_EQ(tokens.match_at("<a>>"), 257);
  EXPECT_EQ(tokens.match_at("<ab>"), 256);
  EXPECT_EQ(tokens.match_at("<ab>>"), 258);
  EXPECT_EQ(tokens.match_at("\u00ff!"), 259);
  EXPECT_EQ(tokens.match_at("<|reserved_token_260|>"), 260);
  EXPECT_EQ(tokens.match_at("<"), std::nullopt);
  EXPECT_EQ(tokens.match_at(" <a"), std::nullopt);
  EXPECT_EQ(tokens.match_at(""), std::nullopt);
}

TEST(SpecialTokens, MatchingEqualsTryingEveryName) {
  std::mt19937_64 random(test_seed());
  int num_matches = 0;
  for (int round = 0; round < 300; ++round) {
    std::string entries;
    std::vector<std::string> names;
    while (names.size() < 8) {
      const std::string name = random_string(random, "ab", 1 + random() % 5);
      if (std::find(names.begin(), names.end(), name) != names.end()) continue;
      entries += fmt::format(R"({}"{}": {{"content": "{}"}})", names.empty() ? "" : ",",
                             256 + names.size(), name);
      names.push_back(name);
    }
    const SpecialTokens tokens = value_of(parse(entries));
    for (int trial = 0; trial < 50; ++trial) {
      const std::string text = random_string(random, "ab", random() % 8);
      std::optional<TokenId> want;
      std::size_t longest = 0;
      for (std::size_t i = 0; i < names.size(); ++i) {
        if (!text.starts_with(names[i]) || names[i].size() <= longest) continue;
        longest = names[i].size();
        want = static_cast<TokenId>(256 + i);
      }
      ASSERT_EQ(tokens.match_at(text), want) << text;
      num_matches += want.has_value();
    }
  }
  EXPECT_GT(num_matches, 1000);
}

TEST(SpecialTokens, RefusesMalformedJsonAndSaysWhere) {
  const auto refused = [](std::string_view json, std::string_view part) {
    expect_refused(SpecialTokens::parse(json, 256, 264), ErrorCode::kDataLoss, {part});
  };
  refused(R"({"added_tokens_decoder": {"256" {}}})", "byte 32");
  refused(R"({"added_tokens_decoder": {}} x)", "byte 29");
  refused("", "byte 0");
  refused("[]", "not a JSON object");
  refused("3", "not a JSON object");
  refused("null", "not a JSON object");
  refused("{}", "no member 'added_tokens_decoder'");
  refused(R"({"x": {"added_tokens_decoder": {}}})", "no member 'added_tokens_decoder'");
  refused(R"({"added_tokens_decoder": []})", "'added_tokens_decoder' is not an object");
  refused(R"({"added_tokens_decoder": null})", "'added_tokens_decoder' is not an object");
  refused(R"({"added_tokens_decoder": {}, "added_tokens_decoder": {}})", "two members");
  refused(R"({"a": )" + std::string(100000, '['), "nested");
}

TEST(SpecialTokens, RefusesMalformedEntriesAndSaysWhich) {
  const auto refused = [](std::string_view entries, std::string_view part) {
    expect_refused(parse(entries), ErrorCode::kDataLoss, {part});
  };
  refused(R"("256": "x")", "special token 256 is not an object");
  refused(R"("256": ["content", "x"])", "special token 256 is not an object");
  refused(R"("256": {})", "special token 256 has no member 'content'");
  refused(R"("256": {"special": true})", "special token 256 has no member 'content'");
  refused(R"("256": {"x": {"content": "y"}})", "special token 256 has no member 'content'");
  refused(R"("256": {"content": 5})", "special token 256: 'content' is not a string");
  refused(R"("256": {"content": {"content": "x"}})", "'content' is not a string");
  refused(R"("256": {"content": ["x"]})", "'content' is not a string");
  refused(R"("256": {"content": ""})", "special token 256 has an empty name");
  refused(R"("256": {"content": "x", "content": "y"})", "256 has two members 'content'");
  refused(R"("256": {"content": "x"}, "256": {"content": "x"})", "256 occurs twice");
  for (const std::string_view id : {"", " 256", "256 ", "-1", "+256", "0x100", "256.0", "a",
                                    "2147483648", "99999999999999999999"}) {
    refused(fmt::format(R"("{}": {{"content": "x"}})", id), fmt::format("'{}' is not a token", id));
  }
}

TEST(SpecialTokens, RefusesEqualNames) {
  expect_refused(parse(R"("261": {"content": "[A]"}, "257": {"content": "[A]"})"),
                 ErrorCode::kDataLoss, {"special tokens 257 and 261", "'[A]'"});
  expect_refused(parse(R"("256": {"content": "<|reserved_token_260|>"})"), ErrorCode::kDataLoss,
                 {"special tokens 256 and 260"});
}

TEST(SpecialTokens, RefusesIdsThatDoNotFitTheVocabulary) {
  for (const TokenId id : {0, 255, 264, 2147483647}) {
    expect_refused(parse(fmt::format(R"("{}": {{"content": "x"}})", id)),
                   ErrorCode::kInvalidArgument,
                   {fmt::format("special token {}", id), "[256, 264)"});
  }
  const std::string_view two =
      R"({"added_tokens_decoder": {"256": {"content": "x"}, "257": {"content": "y"}}})";
  EXPECT_TRUE(SpecialTokens::parse(two, 256, 258).has_value());
  expect_refused(SpecialTokens::parse(two, 256, 257), ErrorCode::kInvalidArgument,
                 {"256 ranks", "2 special tokens", "need 258", "vocab_size is 257"});
  expect_refused(SpecialTokens::parse(two, 256, 0), ErrorCode::kInvalidArgument,
                 {"need 258", "vocab_size is 0"});
  expect_refused(SpecialTokens::parse(two, 256, -5), ErrorCode::kInvalidArgument,
                 {"need 258", "vocab_size is -5"});
  const std::int32_t too_large = 257 + SpecialTokens::kMaxSpecialTokens;
  EXPECT_TRUE(SpecialTokens::parse(two, 256, too_large - 1).has_value());
  expect_refused(SpecialTokens::parse(two, 256, too_large), ErrorCode::kInvalidArgument,
                 {"65793", "65537", "65536"});
  expect_refused(SpecialTokens::parse(two, 256, 2147483647), ErrorCode::kInvalidArgument,
                 {"2147483647", "65536"});
}

}  // namespace
}  // namespace slackwater::model
