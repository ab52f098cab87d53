#include "slackwater/model/text_stream.h"

#include <gtest/gtest.h>

#include "model/file_test_support.h"
#include "model/tokenizer_test_support.h"
#include "model/utf8.h"

namespace slackwater::model {
namespace {

using Strings = std::vector<std::string>;

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// A vocabulary of the 256 single bytes, these tokens, and one special token at its end.
Tokenizer tokenizer_of(const Strings& more) {
  return value_of(Tokenizer::from_bytes(rank_file(byte_tokens(more)),
                                        R"({"added_tokens_decoder": {}})",
                                        static_cast<std::int32_t>(257 + more.size())));
}

const Tokenizer& byte_tokenizer() {
  static const Tokenizer tokenizer = tokenizer_of({});
  return tokenizer;
}

struct Outcome {
  std::string text;
  bool stopped = false;
  friend bool operator==(const Outcome&, const Outcome&) = default;
  friend void PrintTo(const Outcome& outcome, std::ostream* out) {
    *out << ::testing::PrintToString(outcome.text) << (outcome.stopped ? " stopped" : "");
  }
};

bool is_well_formed(std::string_view text) {
  while (!text.empty()) {
    const Utf8Prefix prefix = read_utf8(text);
    if (prefix.kind != Utf8Prefix::Kind::kCharacter) return false;
    text.remove_prefix(prefix.size);
  }
  return true;
}

// All tokens through a stream.
Outcome stream(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens,
               const Strings& stop) {
  TextStream text_stream(tokenizer, stop);
  Outcome outcome;
  for (const TokenId token : tokens) {
    const TextStream::Piece piece = text_stream.push(token);
    EXPECT_TRUE(is_well_formed(piece.text)) << ::testing::PrintToString(piece.text);
    outcome.text += piece.text;
    if (piece.stopped) return {outcome.text, true};
  }
  const TextStream::Piece rest = text_stream.finish();
  EXPECT_TRUE(is_well_formed(rest.text)) << ::testing::PrintToString(rest.text);
  return {outcome.text + rest.text, rest.stopped};
}

// The same with a token for each byte.
Outcome stream_bytes(std::string_view bytes, const Strings& stop) {
  std::vector<TokenId> tokens;
  for (const char byte : bytes) tokens.push_back(static_cast<unsigned char>(byte));
  return stream(byte_tokenizer(), tokens, stop);
}

std::string replaced(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const Utf8Prefix prefix = read_utf8(bytes);
    text +=
        prefix.kind == Utf8Prefix::Kind::kCharacter ? bytes.substr(0, prefix.size) : kReplacement;
    bytes.remove_prefix(prefix.size);
  }
  return text;
}

// The naive form: replace everything, then look for the stop text that ends first.
Outcome decode_then_search(std::string_view bytes, const Strings& stop) {
  const std::string text = replaced(bytes);
  for (std::size_t end = 0; end <= text.size(); ++end) {
    const std::string_view so_far = std::string_view(text).substr(0, end);
    std::size_t longest = 0;
    for (const std::string& s : stop) {
      if (so_far.ends_with(s)) longest = std::max(longest, s.size());
    }
    if (longest > 0) return {text.substr(0, end - longest), true};
  }
  return {text, false};
}

TEST(TextStream, HoldsACharacterBackUntilItsLastByte) {
  TextStream text_stream(byte_tokenizer(), {});
  EXPECT_EQ(text_stream.push(0xF0).text, "");
  EXPECT_EQ(text_stream.push(0x9F).text, "");
  EXPECT_EQ(text_stream.push(0x9A).text, "");
  EXPECT_EQ(text_stream.push(0x80).text, "🚀");
  EXPECT_EQ(text_stream.finish().text, "");
}

TEST(TextStream, ReplacesBytesOnceTheyAreProvenWrong) {
  TextStream text_stream(byte_tokenizer(), {});
  EXPECT_EQ(text_stream.push(0xE2).text, "");
  EXPECT_EQ(text_stream.push(0x82).text, "");
  EXPECT_EQ(text_stream.push('a').text,
            "\xEF\xBF\xBD"
            "a");
  EXPECT_EQ(text_stream.push(0xFF).text, kReplacement);
  EXPECT_EQ(text_stream.push(0xF0).text, "");
  EXPECT_EQ(text_stream.push(0xF0).text, kReplacement);
  EXPECT_EQ(text_stream.push(0x80).text, "\xEF\xBF\xBD\xEF\xBF\xBD");
  EXPECT_EQ(text_stream.push(0xF0).text, "");
  EXPECT_EQ(text_stream.push(0x9F).text, "");
  EXPECT_EQ(text_stream.push(0x9A).text, "");
  EXPECT_EQ(text_stream.finish().text, kReplacement);
}

TEST(TextStream, SpecialTokensAddNothing) {
  TextStream text_stream(byte_tokenizer(), {"abc"});
  EXPECT_EQ(text_stream.push(0xC3).text, "");
  EXPECT_EQ(text_stream.push(256).text, "");
  EXPECT_EQ(text_stream.push(0xA9).text, "é");
  EXPECT_EQ(text_stream.push('a').text, "");
  EXPECT_EQ(text_stream.push(256).text, "");
  EXPECT_EQ(text_stream.push('d').text, "ad");
}

TEST(TextStream, LetsGoOfWhatCannotBecomeAStopText) {
  TextStream text_stream(byte_tokenizer(), {"aab"});
  EXPECT_EQ(text_stream.push('a').text, "");
  EXPECT_EQ(text_stream.push('a').text, "");
  EXPECT_EQ(text_stream.push('a').text, "a");  // "aa" may still become "aab"
  EXPECT_EQ(text_stream.push('c').text, "aac");
  EXPECT_EQ(text_stream.push('a').text, "");
  EXPECT_EQ(text_stream.finish().text, "a");
}

TEST(TextStream, EndsBeforeAStopTextThatSpansTokens) {
  EXPECT_EQ(stream_bytes("one END two", {"END"}), (Outcome{"one ", true}));
  EXPECT_EQ(stream_bytes("one EN", {"END"}), (Outcome{"one EN", false}));
  EXPECT_EQ(stream_bytes("caf\xC3\xA9!", {"é"}), (Outcome{"caf", true}));
  const Tokenizer tokenizer = tokenizer_of({"ne E", "ND tw"});  // 256, 257
  EXPECT_EQ(stream(tokenizer, {'o', 256, 257, 'o'}, {"END"}), (Outcome{"one ", true}));
}

TEST(TextStream, TheStopTextThatIsCompleteFirstWins) {
  EXPECT_EQ(stream_bytes("xabcd", {"abcd", "bc"}), (Outcome{"xa", true}));
  EXPECT_EQ(stream_bytes("xabc", {"bc", "abc"}), (Outcome{"x", true}));
  const Tokenizer tokenizer = tokenizer_of({"xabcd"});
  EXPECT_EQ(stream(tokenizer, {256}, {"abcd", "bc"}), (Outcome{"xa", true}));
}

TEST(TextStream, NothingComesAfterAStop) {
  TextStream text_stream(byte_tokenizer(), {"b"});
  EXPECT_TRUE(text_stream.push('b').stopped);
  EXPECT_EQ(text_stream.push('c').text, "");
  EXPECT_TRUE(text_stream.push('c').stopped);
  EXPECT_EQ(text_stream.push(0xC3).text, "");
  const TextStream::Piece rest = text_stream.finish();
  EXPECT_EQ(rest.text, "");
  EXPECT_TRUE(rest.stopped);
}

TEST(TextStream, StopTextsAreLookedForAfterReplacement) {
  EXPECT_EQ(stream_bytes("ab\xC3 c", {"b\xEF\xBF\xBD "}), (Outcome{"a", true}));
  EXPECT_EQ(stream_bytes("ab\xC3", {"b\xEF\xBF\xBD"}), (Outcome{"a", true}));
  // No byte of a character is a text of its own.
  expect_refused(validate_stop(Strings{"ok", "\xA9"}), ErrorCode::kInvalidArgument, {"'\\xa9'"});
}

TEST(TextStream, StopTextsAreChecked) {
  EXPECT_TRUE(validate_stop({}).has_value());
  EXPECT_TRUE(validate_stop(Strings{"\n", "é", std::string("\0", 1)}).has_value());
  expect_refused(validate_stop(Strings{"ok", ""}), ErrorCode::kInvalidArgument, {"empty"});
  expect_refused(validate_stop(Strings{"a\xC3"}), ErrorCode::kInvalidArgument, {"not UTF-8"});
}

TEST(TextStreamDeathTest, AStopTextThatWasNotValidatedIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  EXPECT_DEATH(TextStream(byte_tokenizer(), {""}), "a stop text is empty");
}

TEST(TextStreamDeathTest, ATokenAfterTheEndIsABug) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  TextStream text_stream(byte_tokenizer(), {});
  text_stream.finish();
  EXPECT_DEATH(text_stream.push('a'), "after the end");
}

// Texts that nearly stop all the time, and stop texts that overlap themselves and each other.
TEST(TextStream, EqualsDecodingEverythingAndThenSearching) {
  std::mt19937_64 random(test_seed());
  const Strings units = {"a", "b", "ab", "é", "€", "🚀", "\xEF\xBF\xBD"};
  const std::string broken("\xC3\xA9\xE2\x82\xF0\x9F\xFF\xED", 8);
  int num_stopped = 0;
  for (int round = 0; round < 30000; ++round) {
    const std::size_t num_units = 1 + random() % units.size();
    const auto any_text = [&](std::size_t longest) {
      std::string text;
      for (std::size_t i = 1 + random() % longest; i > 0; --i) text += units[random() % num_units];
      return text;
    };
    Strings stop(random() % 4);
    for (std::string& s : stop) s = any_text(5);
    std::string bytes;
    for (int i = 0; i < 4; ++i) {
      bytes += random() % 3 == 0 ? random_string(random, broken, random() % 4) : any_text(8);
    }
    const Outcome want = decode_then_search(bytes, stop);
    ASSERT_EQ(stream_bytes(bytes, stop), want)
        << "round " << round << ": " << ::testing::PrintToString(bytes) << " stop "
        << ::testing::PrintToString(stop);
    num_stopped += want.stopped;
  }
  EXPECT_GT(num_stopped, 5000);
  EXPECT_LT(num_stopped, 25000);
}

// The pieces so far are all of the text that no continuation can take back.
TEST(TextStream, HoldsBackTheLeastThatMayStillStop) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 5000; ++round) {
    const Strings stop = {random_string(random, "ab", 1 + random() % 10),
                          random_string(random, "ab", 1 + random() % 10)};
    // Beginnings of the stop texts, one after another, so that matches fail late.
    std::string text;
    while (text.size() < 40) {
      const std::string& s = stop[random() % 2];
      text += s.substr(0, random() % (s.size() + 1));
      if (random() % 4 == 0) text += "abc"[random() % 3];
    }
    TextStream text_stream(byte_tokenizer(), stop);
    std::string given;
    for (std::size_t seen = 1; seen <= text.size(); ++seen) {
      const std::string_view so_far = std::string_view(text).substr(0, seen);
      const TextStream::Piece piece = text_stream.push(static_cast<unsigned char>(so_far.back()));
      given += piece.text;
      if (piece.stopped) break;
      std::size_t hold = 0;
      for (const std::string& s : stop) {
        for (std::size_t size = 1; size < s.size(); ++size) {
          if (so_far.ends_with(s.substr(0, size))) hold = std::max(hold, size);
        }
      }
      ASSERT_EQ(given, so_far.substr(0, seen - hold)) << ::testing::PrintToString(stop);
    }
  }
}

TEST(TextStream, TheTextDoesNotDependOnHowTheBytesAreCutIntoTokens) {
  std::mt19937_64 random(test_seed());
  const std::string alphabet("ab\xC3\xA9\xE2\x82\xAC\xFF", 8);
  Strings longer;
  for (std::size_t i = 0; i < 600; ++i) {
    const std::string token = random_string(random, alphabet, 2 + random() % 5);
    if (std::ranges::find(longer, token) == longer.end()) longer.push_back(token);
  }
  const Tokenizer tokenizer = tokenizer_of(longer);
  const TokenId special = tokenizer.num_ranks();
  for (int round = 0; round < 5000; ++round) {
    std::vector<TokenId> tokens;
    std::string bytes;
    for (int i = 0; i < 8; ++i) {
      tokens.push_back(static_cast<TokenId>(256 + random() % (longer.size() + 1)));
      bytes += tokenizer.token_bytes(tokens.back());
    }
    Strings stop;
    if (round % 2 == 0) stop = {"ab", "ba\xEF\xBF\xBD", "é"};
    const Outcome want = stream_bytes(bytes, stop);
    ASSERT_EQ(stream(tokenizer, tokens, stop), want) << ::testing::PrintToString(bytes);
  }
  EXPECT_TRUE(tokenizer.is_special(special));
}

// Where the whole stop text was compared again for each byte, this would take hours.
TEST(TextStream, ALongStopTextCostsNoMoreThanAShortOne) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  const std::string stop = std::string(kSize, 'a') + "b";
  const Tokenizer tokenizer = tokenizer_of({std::string(1000, 'a')});
  TextStream text_stream(tokenizer, {stop});
  std::size_t given = 0;
  for (std::size_t i = 0; i < 2 * kSize / 1000; ++i) given += text_stream.push(256).text.size();
  EXPECT_EQ(given, 2 * kSize / 1000 * 1000 - kSize);
  EXPECT_TRUE(text_stream.push('b').stopped);
}

}  // namespace
}  // namespace slackwater::model
