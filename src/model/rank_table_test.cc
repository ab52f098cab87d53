#include "model/rank_table.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The text of the refusal, "" where there is none.
std::string refusal(std::string_view file, ErrorCode code = ErrorCode::kDataLoss) {
  const auto table = RankTable::parse(file);
  if (table.has_value()) return "";
  EXPECT_EQ(table.error().code(), code);
  EXPECT_EQ(table.error().text().find('\n'), std::string::npos);
  return table.error().text();
}

const std::string kBytes = rank_file(byte_tokens());  // 256 lines

TEST(RankTable, FindsEachTokenByItsBytes) {
  const std::vector<std::string> tokens = byte_tokens({"ab", "abc", std::string("\0\0", 2)});
  const RankTable table = value_of(RankTable::parse(rank_file(tokens)));
  ASSERT_EQ(table.size(), 259);
  for (TokenId token = 0; token < table.size(); ++token) {
    const std::string& bytes = tokens[static_cast<std::size_t>(token)];
    EXPECT_EQ(table.bytes(token), bytes);
    EXPECT_EQ(table.find(bytes), token);
  }
  EXPECT_EQ(table.find("bc"), std::nullopt);
  EXPECT_EQ(table.find("abcd"), std::nullopt);
  EXPECT_EQ(table.find(""), std::nullopt);
}

TEST(RankTable, EqualsAListOfTheTokensOfTheDemoModel) {
  const std::string file = read_file(repository_path("models/demo/tiktoken.model"));
  const RankTable table = value_of(RankTable::parse(file));
  ASSERT_EQ(table.size(), kDemoRanks);
  std::vector<std::string> tokens;
  for (TokenId token = 0; token < table.size(); ++token) tokens.emplace_back(table.bytes(token));
  EXPECT_EQ(rank_file(tokens), file);
  for (TokenId token = 0; token < table.size(); ++token) {
    EXPECT_EQ(table.find(table.bytes(token)), token);
  }
}

TEST(RankTable, LineEndsAndTheOrderOfLinesDoNotMatter) {
  std::string crlf;
  std::string reversed = encode_base64("ab") + " 256";  // no line end after the last
  for (int byte = 0; byte < 256; ++byte) {
    const std::string line = fmt::format("{} {}", encode_base64(byte_tokens()[byte]), byte);
    crlf += line + "\r\n\r\n\n";
    reversed.insert(0, line + "\n");
  }
  crlf += encode_base64("ab") + " 256\r\n";
  for (const std::string& file : {crlf, reversed}) {
    const auto table = RankTable::parse(file);
    ASSERT_TRUE(table.has_value()) << table.error().text();
    EXPECT_EQ(table->size(), 257);
    EXPECT_EQ(table->find("ab"), 256);
    EXPECT_EQ(table->bytes(65), "A");
  }
}

TEST(RankTable, RefusesABadLineAndSaysWhich) {
  EXPECT_THAT(refusal(kBytes + "YWI\n"), HasSubstr("line 257"));
  EXPECT_THAT(refusal(kBytes + "YWI= \n"), HasSubstr("line 257: rank '' is not a number"));
  EXPECT_THAT(refusal(kBytes + "\n\nYWI 256\n"), HasSubstr("line 259: 'YWI' is not canonical"));
  EXPECT_THAT(refusal(kBytes + "YWJ= 256\n"), HasSubstr("line 257: 'YWJ=' is not canonical"));
  EXPECT_THAT(refusal(kBytes + "YWI= 256 \n"), HasSubstr("line 257: rank '256 ' is not"));
  EXPECT_THAT(refusal(kBytes + "YWI= -1\n"), HasSubstr("line 257: rank '-1' is not"));
  EXPECT_THAT(refusal(kBytes + "YWI= +256\n"), HasSubstr("line 257: rank '+256' is not"));
  EXPECT_THAT(refusal(kBytes + "YWI= 0x100\n"), HasSubstr("line 257: rank '0x100' is not"));
  EXPECT_THAT(refusal(kBytes + "YWI=  256\n"), HasSubstr("line 257: rank ' 256' is not"));
  EXPECT_THAT(refusal(kBytes + " 256\n"), HasSubstr("line 257: the token of rank 256 is empty"));
}

TEST(RankTable, RefusesRanksThatDoNotFit) {
  for (const std::string_view rank : {"2147483648", "4294967296", "18446744073709551616",
                                      "99999999999999999999999999999999999999999999999999"}) {
    EXPECT_THAT(refusal(fmt::format("{}YWI= {}\n", kBytes, rank)),
                AllOf(HasSubstr("line 257"), HasSubstr(rank), HasSubstr("2147483647")));
  }
}

TEST(RankTable, RefusesARankTakenTwice) {
  EXPECT_EQ(refusal(kBytes + "YWI= 7\n"), "lines 8 and 257 both have rank 7");
}

TEST(RankTable, RefusesAGapInTheRanks) {
  EXPECT_EQ(refusal(kBytes + "YWI= 257\n"),
            "257 tokens, but rank 256 is missing and line 257 has rank 257");
  EXPECT_EQ(refusal(kBytes + "YWI= 2147483647\n"),
            "257 tokens, but rank 256 is missing and line 257 has rank 2147483647");
}

TEST(RankTable, RefusesEqualBytes) {
  EXPECT_EQ(refusal(kBytes + "YWI= 256\nYWI= 257\n"),
            "lines 257 and 258: ranks 256 and 257 have equal bytes");
  EXPECT_EQ(refusal(kBytes + "YQ== 256\n"), "lines 98 and 257: ranks 97 and 256 have equal bytes");
}

TEST(RankTable, RefusesAByteWithoutAToken) {
  for (const int missing : {0, 0x41, 0xFF}) {
    std::vector<std::string> tokens = byte_tokens({"ab"});
    tokens.erase(tokens.begin() + missing);
    EXPECT_THAT(refusal(rank_file(tokens)), HasSubstr(fmt::format("byte 0x{:02X}", missing)));
  }
  EXPECT_THAT(refusal(""), HasSubstr("byte 0x00"));
}

TEST(RankTable, ErrorsShowForeignTextOnOneLineAndShort) {
  const std::string text = refusal(kBytes + "a\x01\xC3\x1B[31m\x7F" + std::string(100000, 'x'));
  EXPECT_THAT(text, HasSubstr("line 257"));
  EXPECT_LT(text.size(), 400u);
  for (const char c : text) EXPECT_TRUE(c >= 0x20 && c < 0x7F) << static_cast<int>(c);
}

// Cuts and flips anywhere in a file: a table or a refusal, nothing else.
TEST(RankTable, ABrokenFileIsNeverATableOfOtherTokens) {
  std::mt19937_64 random(test_seed());
  const std::string good = rank_file(byte_tokens({"ab", "cd", "abcd"}));
  int num_refused = 0;
  for (int round = 0; round < 5000; ++round) {
    std::string file = good;
    file[random() % file.size()] = static_cast<char>(random() & 0xFF);
    const auto table = RankTable::parse(file);
    if (!table.has_value()) {
      ++num_refused;
      continue;
    }
    // What still parses says what it says: written out again, it is the same table.
    std::vector<std::string> tokens;
    for (TokenId token = 0; token < table->size(); ++token) {
      tokens.emplace_back(table->bytes(token));
    }
    const RankTable again = value_of(RankTable::parse(rank_file(tokens)));
    for (TokenId token = 0; token < again.size(); ++token) {
      ASSERT_EQ(again.bytes(token), table->bytes(token));
    }
  }
  EXPECT_GT(num_refused, 4000);
}

}  // namespace
}  // namespace slackwater::model
