#include "slackwater/model/tokenizer.h"

#include <sys/mman.h>

#include <atomic>
#include <thread>

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include "model/file_test_support.h"
#include "model/tokenizer_test_support.h"

namespace slackwater::model {
namespace {

using SpecialText = Tokenizer::SpecialText;

const Tokenizer& demo() {
  static const Tokenizer tokenizer = load_demo_tokenizer();
  return tokenizer;
}

std::vector<TokenId> encode(const Tokenizer& tokenizer, std::string_view text,
                            SpecialText special_text = SpecialText::kAsText) {
  return value_of(tokenizer.encode(text, special_text));
}

std::string decode(const Tokenizer& tokenizer, const std::vector<TokenId>& tokens) {
  return value_of(tokenizer.decode(tokens));
}

nlohmann::json golden_cases() {
  return nlohmann::json::parse(read_file(repository_path("tests/golden/demo.json")))["cases"];
}

TEST(Tokenizer, GoldenPromptsHaveTheGoldenTokens) {
  int num_cases = 0;
  for (const nlohmann::json& golden : golden_cases()) {
    std::vector<TokenId> tokens = encode(demo(), golden["prompt"].get<std::string>());
    tokens.insert(tokens.begin(), demo().special_id("[BOS]").value());
    EXPECT_EQ(tokens, golden["prompt_tokens"].get<std::vector<TokenId>>()) << golden["name"];
    ++num_cases;
  }
  EXPECT_EQ(num_cases, 10);
}

TEST(Tokenizer, GoldenTokensHaveTheGoldenText) {
  for (const nlohmann::json& golden : golden_cases()) {
    EXPECT_EQ(decode(demo(), golden["tokens"].get<std::vector<TokenId>>()),
              golden["text"].get<std::string>())
        << golden["name"];
  }
}

TEST(Tokenizer, EveryIdIsEitherBytesOrSpecial) {
  ASSERT_EQ(demo().num_ranks(), kDemoRanks);
  ASSERT_EQ(demo().vocab_size(), kDemoVocabSize);
  for (TokenId token = 0; token < demo().vocab_size(); ++token) {
    EXPECT_EQ(demo().is_special(token), token >= kDemoRanks);
    EXPECT_EQ(demo().token_bytes(token).empty(), token >= kDemoRanks);
    EXPECT_EQ(demo().special_name(token).empty(), token < kDemoRanks);
    if (demo().is_special(token)) {
      EXPECT_EQ(demo().special_id(demo().special_name(token)), token);
    }
  }
  EXPECT_EQ(demo().special_name(2048), "[BOS]");
  EXPECT_EQ(demo().special_name(2055), "<|im_middle|>");
  EXPECT_EQ(demo().special_name(2056), "<|reserved_token_2056|>");
  EXPECT_EQ(demo().special_id("[NONE]"), std::nullopt);
}

// A token that merging reaches encodes to itself.
TEST(Tokenizer, TokensOfTheDemoModelEncodeToThemselves) {
  for (TokenId token = 0; token < kDemoRanks; ++token) {
    const std::string bytes(demo().token_bytes(token));
    const std::vector<TokenId> tokens = encode(demo(), bytes);
    EXPECT_EQ(decode(demo(), tokens), bytes);
    // What the split pattern cuts apart, or what is no whole character, is more than one piece.
    if (tokens.size() == 1) {
      EXPECT_EQ(tokens[0], token);
    }
  }
}

TEST(Tokenizer, NothingIsEncodedAsNothing) {
  EXPECT_TRUE(encode(demo(), "").empty());
  EXPECT_TRUE(encode(demo(), "", SpecialText::kAsTokens).empty());
  EXPECT_EQ(decode(demo(), {}), "");
}

TEST(Tokenizer, TextThatLooksLikeASpecialTokenStaysText) {
  for (TokenId special = kDemoRanks; special < kDemoVocabSize; ++special) {
    const std::string name(demo().special_name(special));
    const std::vector<TokenId> tokens = encode(demo(), name);
    EXPECT_EQ(decode(demo(), tokens), name);
    for (const TokenId token : tokens) EXPECT_FALSE(demo().is_special(token)) << name;
    EXPECT_EQ(value_of(demo().encode(name)), tokens) << "the default";
  }
}

TEST(Tokenizer, SpecialTokensAreParsedWhenAskedFor) {
  EXPECT_EQ(encode(demo(), "[BOS]", SpecialText::kAsTokens), (std::vector<TokenId>{2048}));
  EXPECT_EQ(encode(demo(), "[BOS][EOS]<|reserved_token_2060|>", SpecialText::kAsTokens),
            (std::vector<TokenId>{2048, 2049, 2060}));
  EXPECT_EQ(encode(demo(), "[BOS", SpecialText::kAsTokens), encode(demo(), "[BOS"));

  // The text between special tokens is split as if it stood alone: a space at its end is not
  // kept for what follows.
  std::vector<TokenId> want = {2052};
  for (const TokenId token : encode(demo(), "the sea  ")) want.push_back(token);
  want.push_back(2051);
  for (const TokenId token : encode(demo(), "x<|im")) want.push_back(token);
  EXPECT_EQ(encode(demo(), "<|im_user|>the sea  <|im_end|>x<|im", SpecialText::kAsTokens), want);
}

TEST(Tokenizer, SpecialTokensDecodeToNothing) {
  EXPECT_EQ(decode(demo(), {2048, 'a', 2063, 'b', 2049}), "ab");
}

TEST(Tokenizer, DecodeRefusesIdsOutsideTheVocabulary) {
  for (const TokenId token : {-1, kDemoVocabSize, 2147483647}) {
    expect_refused(demo().decode(std::vector<TokenId>{97, token}), ErrorCode::kOutOfRange,
                   {fmt::format("token {} at 1 of 2", token), "2064"});
  }
}

TEST(Tokenizer, EncodeRefusesATextWhosePositionsDoNotFit) {
  // Addresses without memory behind them: the length is refused before anything is read.
  const std::size_t size = std::size_t{1} << 31;
  void* pages =
      ::mmap(nullptr, size, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(pages, MAP_FAILED);
  for (const SpecialText special_text : {SpecialText::kAsText, SpecialText::kAsTokens}) {
    expect_refused(demo().encode({static_cast<const char*>(pages), size}, special_text),
                   ErrorCode::kOutOfRange, {"2147483648", "2147483647"});
  }
  ::munmap(pages, size);
}

TEST(Tokenizer, RandomBytesComeBackAsTheyWere) {
  std::mt19937_64 random(test_seed());
  for (int round = 0; round < 5000; ++round) {
    std::string bytes;
    for (std::size_t part = random() % 6; part > 0; --part) {
      switch (random() % 4) {
        case 0: bytes += random_bytes(random, random() % 20); break;
        case 1: bytes += demo().token_bytes(static_cast<TokenId>(random() % kDemoRanks)); break;
        case 2: bytes += demo().special_name(static_cast<TokenId>(2048 + random() % 16)); break;
        default: bytes += random_string(random, "ab A'1\n .", random() % 100); break;
      }
    }
    ASSERT_EQ(decode(demo(), encode(demo(), bytes)), bytes) << ::testing::PrintToString(bytes);
  }
}

TEST(Tokenizer, AMegabyteOfAnythingComesBackAsItWas) {
  constexpr std::size_t kSize = std::size_t{1} << 20;
  std::mt19937_64 random(test_seed());
  for (const std::string& text :
       {std::string(kSize, 'a'), std::string(kSize, ' '), std::string(kSize, '<'),
        std::string(kSize, '\xFF'), random_string(random, "etaoin", kSize),
        random_bytes(random, kSize)}) {
    for (const SpecialText special_text : {SpecialText::kAsText, SpecialText::kAsTokens}) {
      ASSERT_TRUE(decode(demo(), encode(demo(), text, special_text)) == text);
    }
  }
}

TEST(Tokenizer, LoadingFromAFileAndFromItsBytesIsTheSame) {
  const Tokenizer tokenizer = value_of(Tokenizer::from_bytes(
      read_file(repository_path("models/demo/tiktoken.model")),
      read_file(repository_path("models/demo/tokenizer_config.json")), kDemoVocabSize));
  for (TokenId token = 0; token < kDemoVocabSize; ++token) {
    ASSERT_EQ(tokenizer.token_bytes(token), demo().token_bytes(token));
    ASSERT_EQ(tokenizer.special_name(token), demo().special_name(token));
  }
}

TEST(Tokenizer, LoadNamesTheFileThatIsMissing) {
  const TempDirectory directory;
  const auto load = [&] { return Tokenizer::load(directory.path(), 258); };
  expect_refused(load(), ErrorCode::kNotFound, {(directory.path() / "tiktoken.model").string()});
  directory.write("tiktoken.model", rank_file(byte_tokens()));
  expect_refused(load(), ErrorCode::kNotFound,
                 {(directory.path() / "tokenizer_config.json").string()});
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {}})");
  EXPECT_TRUE(load().has_value());
}

TEST(Tokenizer, LoadNamesTheFileAndThePlaceThatIsBroken) {
  const TempDirectory directory;
  const auto load = [&] { return Tokenizer::load(directory.path(), 258); };
  const auto good_ranks = directory.write("tiktoken.model", rank_file(byte_tokens()));
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"256": }})");
  expect_refused(load(), ErrorCode::kDataLoss, {"tokenizer_config.json'", "byte 33"});
  directory.write("tokenizer_config.json", R"({"added_tokens_decoder": {"300": {"content":"x"}}})");
  expect_refused(load(), ErrorCode::kInvalidArgument,
                 {"tokenizer_config.json'", "special token 300", "[256, 258)"});
  directory.write("tiktoken.model", "AA== 0\nAQ= 1\n");
  expect_refused(load(), ErrorCode::kDataLoss, {"tiktoken.model'", "line 2", "'AQ='"});
}

TEST(Tokenizer, RefusesAVocabularyThatDoesNotMatch) {
  const std::string ranks = rank_file(byte_tokens());
  const std::string_view config = R"({"added_tokens_decoder": {"256": {"content": "x"}}})";
  EXPECT_TRUE(Tokenizer::from_bytes(ranks, config, 257).has_value());
  expect_refused(Tokenizer::from_bytes(ranks, config, 256), ErrorCode::kInvalidArgument,
                 {"256 ranks", "1 special tokens", "257", "vocab_size is 256"});
  expect_refused(Tokenizer::from_bytes(ranks, R"({"added_tokens_decoder": {}})", 255),
                 ErrorCode::kInvalidArgument, {"256 ranks", "vocab_size is 255"});
}

TEST(TokenizerThreads, OneTokenizerServesSeveralThreads) {
  const std::string text = "[BOS]It came to pass\n\n in 1969, 着陸した, " + std::string(300, 'a');
  const std::vector<TokenId> want = encode(demo(), text, SpecialText::kAsTokens);
  std::atomic<int> num_equal = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 300; ++round) {
        num_equal += encode(demo(), text, SpecialText::kAsTokens) == want;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(num_equal, 4 * 300);
}

}  // namespace
}  // namespace slackwater::model
