#include "model/splitter.h"

#include <sys/mman.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

using Engine = Splitter::Engine;
using Pieces = std::vector<std::string>;

Pieces split(const Splitter& splitter, std::string_view text) {
  const auto pieces = value_of(splitter.split(text));
  return {pieces.begin(), pieces.end()};
}

Pieces split(std::string_view text) { return split(value_of(Splitter::compile()), text); }

std::string join(const Pieces& pieces) {
  std::string text;
  for (const std::string& piece : pieces) text += piece;
  return text;
}

std::string utf8(std::uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80 | ((code >> shift) & 0x3F)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0 | (code >> 6)), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0 | (code >> 12)), tail(6), tail(0)};
  return {static_cast<char>(0xF0 | (code >> 18)), tail(12), tail(6), tail(0)};
}

bool is_scalar(std::uint32_t code) { return code < 0xD800 || code >= 0xE000; }

// Lines of JSON, each the pieces of one text.
std::string cases_file() {
  const char* other = std::getenv("SLACKWATER_SPLITTER_CASES");
  return read_file(other != nullptr ? std::filesystem::path(other)
                                    : repository_path("tests/data/tokenizer/splitter_cases.jsonl"));
}

void expect_cases_are_cut_alike(Engine engine) {
  const Splitter splitter = value_of(Splitter::compile(engine));
  std::istringstream cases(cases_file());
  std::string line;
  int num_cases = 0;
  for (; std::getline(cases, line); ++num_cases) {
    const Pieces want = nlohmann::json::parse(line).get<Pieces>();
    ASSERT_EQ(split(splitter, join(want)), want) << "line " << num_cases + 1 << ": " << line;
  }
  EXPECT_GE(num_cases, 3000);
}

TEST(Splitter, CutsAsTheTrainingPatternWithTheFastestEngine) {
  expect_cases_are_cut_alike(Engine::kFastest);
}

TEST(Splitter, CutsAsTheTrainingPatternWithTheInterpreter) {
  expect_cases_are_cut_alike(Engine::kInterpreter);
}

TEST(Splitter, TheInterpreterRunsNoMachineCode) {
  EXPECT_FALSE(value_of(Splitter::compile(Engine::kInterpreter)).is_compiled_to_machine_code());
}

TEST(Splitter, CutsWordsNumbersPunctuationAndSpace) {
  EXPECT_EQ(split(""), Pieces{});
  EXPECT_EQ(split("Hello, world"), (Pieces{"Hello", ",", " world"}));
  EXPECT_EQ(split("1969 384,400"), (Pieces{"196", "9", " ", "384", ",", "400"}));
  EXPECT_EQ(split("it's WE'RE o'clock"), (Pieces{"it's", " WE'RE", " o", "'clock"}));
  EXPECT_EQ(split("camelCaseHTTPServer"), (Pieces{"camel", "Case", "HTTPServer"}));
  EXPECT_EQ(split("a  b\t\tc"), (Pieces{"a", " ", " b", "\t", "\tc"}));
  EXPECT_EQ(split("a \n\n b  "), (Pieces{"a", " \n\n", " b", "  "}));
  EXPECT_EQ(split("wait...\n\n"), (Pieces{"wait", "...\n\n"}));
  EXPECT_EQ(split("(word)"), (Pieces{"(word", ")"}));
}

// The ideographic stop and the closing mark U+3006 belong to Han by Script_Extensions only.
TEST(Splitter, HanIsTheScriptAndNotItsExtensions) {
  EXPECT_EQ(split("日本語。"), (Pieces{"日本語", "。"}));
  EXPECT_EQ(split("東京は、日本。"), (Pieces{"東京", "は", "、", "日本", "。"}));
  EXPECT_EQ(split("人々"), (Pieces{"人々"}));
  EXPECT_EQ(split("\u3006Aa"), (Pieces{"\u3006Aa"}));
  EXPECT_EQ(split("aA\u3006a"), (Pieces{"a", "A\u3006a"}));
}

// PCRE2 counts U+180E as white space; Unicode has not since 6.3.
TEST(Splitter, WhiteSpaceIsThatOfUnicode) {
  EXPECT_EQ(split("\u180E\u180E"), (Pieces{"\u180E\u180E"}));
  EXPECT_EQ(split("a \u180E!"), (Pieces{"a", " \u180E!"}));
  EXPECT_EQ(split("a\u00A0\u3000b"), (Pieces{"a", "\u00A0", "\u3000b"}));
  EXPECT_EQ(split("\u0085\u2028!"), (Pieces{"\u0085", "\u2028", "!"}));
}

TEST(Splitter, EveryCharacterByItselfIsOnePiece) {
  const Splitter splitter = value_of(Splitter::compile());
  for (std::uint32_t code = 0; code <= 0x10FFFF; ++code) {
    if (!is_scalar(code)) continue;
    const std::string text = utf8(code);
    const auto pieces = splitter.split(text);
    ASSERT_TRUE(pieces.has_value()) << std::hex << code;
    ASSERT_EQ(*pieces, std::vector<std::string_view>{text}) << std::hex << code;
  }
}

TEST(Splitter, IllFormedBytesArePiecesOfTheirOwn) {
  EXPECT_EQ(split("\xFF"), (Pieces{"\xFF"}));
  EXPECT_EQ(split("ab\xFF\xFE"
                  "cd"),
            (Pieces{"ab", "\xFF", "\xFE", "cd"}));
  EXPECT_EQ(split("\xE2\x82\xE2\x82\xAC"), (Pieces{"\xE2", "\x82", "\xE2\x82\xAC"}));
  EXPECT_EQ(split("\xED\xA0\x80"), (Pieces{"\xED", "\xA0", "\x80"}));
  EXPECT_EQ(split("\xC0\x80"), (Pieces{"\xC0", "\x80"}));
}

TEST(Splitter, TextEndsBeforeAnIllFormedByte) {
  EXPECT_EQ(split("a  \xFF"
                  "b"),
            (Pieces{"a", "  ", "\xFF", "b"}));
  EXPECT_EQ(split("a  ."), (Pieces{"a", " ", " ."}));
  EXPECT_EQ(split("it'\xFF"
                  "s"),
            (Pieces{"it", "'", "\xFF", "s"}));
}

TEST(Splitter, PiecesOfRandomBytesConcatenateToThem) {
  std::mt19937_64 random(test_seed());
  const Splitter fastest = value_of(Splitter::compile(Engine::kFastest));
  const Splitter interpreter = value_of(Splitter::compile(Engine::kInterpreter));
  for (int round = 0; round < 20000; ++round) {
    std::string text;
    for (std::size_t part = random() % 6; part > 0; --part) {
      const auto code = static_cast<std::uint32_t>(random() % (random() % 2 ? 0x110000 : 0x3100));
      text += random() % 3 == 0 ? random_bytes(random, random() % 3)
              : is_scalar(code) ? utf8(code)
                                : random_string(random, "aB 1'\n.", 3);
    }
    const Pieces pieces = split(fastest, text);
    ASSERT_EQ(join(pieces), text);
    for (const std::string& piece : pieces) ASSERT_FALSE(piece.empty());
    ASSERT_EQ(split(interpreter, text), pieces) << ::testing::PrintToString(text);
  }
}

// Where an engine looked at the rest of a long run again for each piece, or for each character,
// these would take hours; where it kept something for each character, it would refuse.
TEST(Splitter, AMegabyteOfAnythingIsCut) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  struct Case {
    std::string before, unit, after;
    std::size_t num_pieces;
  };
  const std::vector<Case> cases = {
      {"", "a", "", 1},
      {"", "A", "", 1},
      {"", "A", "1", 2},
      {"!", "A", "", 1},
      {"", " ", "", 1},
      {"", " ", "x", 2},
      {"", "\t", "!", 3},
      {"", "\n", "", 1},
      {"\n", " ", "", 2},
      {"\n", " ", "x", 3},
      {"", "\n ", "x", 2},
      {"", "!", "", 1},
      {"", "! ", "", kSize / 2 + 1},
      {"", "1", "", (kSize + 2) / 3},
      {"", " a", "", kSize / 2},
      {"", "Aa", "", kSize / 2},
      {"", "'s", "", kSize / 4},
      {"", "漢", "", 1},
      {"", "א", "", 1},
      {"", "א", "A", 2},
      {"א", "A", "", 2},
      {"", "אA", "", 2},
      {"", "\u0301", "", 1},
      {"", "!\u0301", "", kSize / 3},
      {"", "\u01C5", "", 1},
      {"", "\xFF", "", kSize},
      {"", "\xE2\x82", "", kSize},
      {"", "a\xFF", "", kSize},
      {"", "\u0085", "", 1},
      {"", "\xF0\x9F\x9A\x80", "", 1},
  };
  for (const Engine engine : {Engine::kFastest, Engine::kInterpreter}) {
    const Splitter splitter = value_of(Splitter::compile(engine));
    for (const Case& c : cases) {
      std::string text = c.before;
      for (std::size_t i = 0; i < kSize / c.unit.size(); ++i) text += c.unit;
      text += c.after;
      const auto pieces = splitter.split(text);
      ASSERT_TRUE(pieces.has_value()) << pieces.error().text();
      EXPECT_EQ(pieces->size(), c.num_pieces) << ::testing::PrintToString(c.before + c.unit);
      EXPECT_EQ(pieces->back().data() + pieces->back().size(), text.data() + text.size());
    }
  }
}

// PCRE2's own limit is ten million steps.
TEST(SplitterSlow, ALongRunOfCapitalsIsNotRefused) {
  const std::string text(std::size_t{24} << 20, 'A');
  for (const Engine engine : {Engine::kFastest, Engine::kInterpreter}) {
    const auto pieces = value_of(Splitter::compile(engine)).split(text);
    ASSERT_TRUE(pieces.has_value()) << pieces.error().text();
    EXPECT_EQ(pieces->size(), 1u);
  }
}

TEST(Splitter, RefusesATextWhosePositionsDoNotFit) {
  // Addresses without memory behind them: the length is refused before anything is read.
  const std::size_t size = kMaxTextBytes + 1;
  void* pages =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  const auto pieces = value_of(Splitter::compile()).split({static_cast<const char*>(pages), size});
  ASSERT_FALSE(pieces.has_value());
  EXPECT_EQ(pieces.error().code(), ErrorCode::kOutOfRange);
  EXPECT_NE(pieces.error().text().find("2147483648"), std::string::npos);
  ::munmap(pages, size);
}

TEST(SplitterThreads, OneSplitterServesSeveralThreads) {
  const Splitter splitter = value_of(Splitter::compile());
  const std::string text = "It's 1969: the Eagle\n\n  landed, 着陸した。";
  const Pieces want = split(splitter, text);
  std::atomic<int> num_equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 500; ++round) num_equal += split(splitter, text) == want;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, 4 * 500);
}

}  // namespace
}  // namespace slackwater::model
