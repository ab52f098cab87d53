// Files and texts that nobody would write. The first byte chooses what the rest of the input is.

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "model/splitter.h"
#include "slackwater/base/check.h"
#include "slackwater/model/text_stream.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::model {
namespace {

constexpr std::int32_t kDemoVocabSize = 2064;
constexpr std::string_view kNoSpecials = R"({"added_tokens_decoder": {}})";
constexpr std::string_view kDigits =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

const Tokenizer& demo() {
  static const Tokenizer tokenizer = [] {
    auto loaded = Tokenizer::load(SLACKWATER_SOURCE_DIR "/models/demo", kDemoVocabSize);
    SLACKWATER_CHECK(loaded.has_value(), "{}", loaded.error().text());
    return *std::move(loaded);
  }();
  return tokenizer;
}

// The lines of the 256 single bytes.
std::string byte_lines() {
  std::string lines;
  for (unsigned byte = 0; byte < 256; ++byte) {
    lines += kDigits[byte >> 2];
    lines += kDigits[(byte & 3) << 4];
    lines += fmt::format("== {}\n", byte);
  }
  return lines;
}

void expect_round_trip(const Tokenizer& tokenizer, std::string_view text) {
  const auto tokens = tokenizer.encode(text);
  SLACKWATER_CHECK(tokens.has_value(), "{}", tokens.error().text());
  for (const TokenId token : *tokens) {
    SLACKWATER_CHECK(!tokenizer.is_special(token), "text became special token {}", token);
  }
  SLACKWATER_CHECK(*tokenizer.decode(*tokens) == text, "{} bytes came back changed", text.size());
}

void load_and_use(std::string_view ranks, std::string_view config, std::int32_t vocab_size) {
  const auto tokenizer = Tokenizer::from_bytes(ranks, config, vocab_size);
  if (!tokenizer.has_value()) {
    const std::string& text = tokenizer.error().text();
    SLACKWATER_CHECK(!text.empty() && text.find('\n') == std::string::npos, "{}", text);
    return;
  }
  SLACKWATER_CHECK(tokenizer->vocab_size() == vocab_size, "{} ids", tokenizer->vocab_size());
  for (TokenId token = 0; token < vocab_size; ++token) {
    const std::string_view name = tokenizer->special_name(token);
    SLACKWATER_CHECK(name.empty() != tokenizer->token_bytes(token).empty(), "token {}", token);
    SLACKWATER_CHECK(name.empty() || tokenizer->special_id(name) == token, "token {}", token);
  }
  expect_round_trip(*tokenizer, config);
  expect_round_trip(*tokenizer, ranks.substr(0, 4096));
}

void encode_text(std::string_view text) {
  expect_round_trip(demo(), text);
  const auto with_specials = demo().encode(text, Tokenizer::SpecialText::kAsTokens);
  SLACKWATER_CHECK(with_specials.has_value(), "{}", with_specials.error().text());
  std::string spelled;
  for (const TokenId token : *with_specials) {
    spelled += demo().is_special(token) ? demo().special_name(token) : demo().token_bytes(token);
  }
  SLACKWATER_CHECK(spelled == text, "{} bytes became others", text.size());
}

void split_with_both_engines(std::string_view text) {
  static const auto fastest = Splitter::compile(Splitter::Engine::kFastest);
  static const auto interpreter = Splitter::compile(Splitter::Engine::kInterpreter);
  const auto pieces = fastest->split(text);
  const auto same = interpreter->split(text);
  SLACKWATER_CHECK(pieces.has_value() && same.has_value(), "refused");
  SLACKWATER_CHECK(*pieces == *same, "{} and {} pieces", pieces->size(), same->size());
}

// The first line is a stop text, the rest is streamed, once in tokens and once byte by byte.
void stream_text(std::string_view input) {
  const std::size_t line_end = input.find('\n');
  if (line_end == std::string_view::npos) return;
  std::vector<std::string> stop = {std::string(input.substr(0, line_end))};
  if (!validate_stop(stop).has_value()) stop.clear();
  const std::string_view text = input.substr(line_end + 1);
  std::vector<TokenId> bytes;
  for (const char byte : text) bytes.push_back(static_cast<unsigned char>(byte));
  std::string texts[2];
  bool stopped[2] = {};
  const std::vector<TokenId> cuts[2] = {bytes, *demo().encode(text)};
  for (int cut = 0; cut < 2; ++cut) {
    TextStream text_stream(demo(), stop);
    for (const TokenId token : cuts[cut]) texts[cut] += text_stream.push(token).text;
    const TextStream::Piece rest = text_stream.finish();
    texts[cut] += rest.text;
    stopped[cut] = rest.stopped;
  }
  SLACKWATER_CHECK(texts[0] == texts[1] && stopped[0] == stopped[1], "{} and {} bytes",
                   texts[0].size(), texts[1].size());
  SLACKWATER_CHECK(stop.empty() || texts[0].find(stop[0]) == std::string::npos, "not stopped");
}

}  // namespace
}  // namespace slackwater::model

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace slackwater::model;
  if (size == 0) return 0;
  static const std::string ranks = byte_lines();
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 6) {
    case 0: load_and_use(input, kNoSpecials, 300); break;
    case 1: load_and_use(ranks + std::string(input), kNoSpecials, 300); break;
    case 2: load_and_use(ranks, input, 260); break;
    case 3: encode_text(input); break;
    case 4: split_with_both_engines(input); break;
    default: stream_text(input); break;
  }
  return 0;
}
