#include "model/splitter.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <limits>
#include <string>

#include <fmt/format.h>

#include "model/utf8.h"
#include "slackwater/base/check.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::model {
namespace {

// The training pattern in PCRE2's syntax. Three things are written differently there:
//
// - Class intersection. The training pattern has [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]], which
//   PCRE2 lacks. The general categories are a partition, so the same set is the complement of the
//   other categories and Han. A plain class also backtracks without a frame per character, which
//   a group with a look-ahead does not: a text of one long word needs no more room than a short.
// - Script. \p{Han} means the property Script to Rust; PCRE2 takes it for Script_Extensions, which
//   has the ideographic comma and full stop and 286 characters more. \p{sc:Han} is Script in both.
// - White space. Rust's \s is the property White_Space; PCRE2's has U+180E besides.
std::string split_pattern() {
  const std::string space =
      R"(\t-\r\x20\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";
  const std::string upper = R"([^\p{sc:Han}\p{Ll}\p{N}\p{P}\p{S}\p{Z}\p{C}])";
  const std::string lower = R"([^\p{sc:Han}\p{Lu}\p{Lt}\p{N}\p{P}\p{S}\p{Z}\p{C}])";
  const std::string before_word = R"([^\r\n\p{L}\p{N}]?)";
  const std::string contraction = R"((?i:'s|'t|'re|'ve|'m|'ll|'d)?)";
  const std::array<std::string, 8> alternatives = {
      R"(\p{sc:Han}+)",
      before_word + upper + "*" + lower + "+" + contraction,
      before_word + upper + "+" + lower + "*" + contraction,
      R"(\p{N}{1,3})",
      R"(\x20?[^)" + space + R"(\p{L}\p{N}]+[\r\n]*)",
      "[" + space + R"(]*[\r\n]+)",
      "[" + space + "]+(?![^" + space + "])",
      "[" + space + "]+",
  };
  return fmt::format("{}", fmt::join(alternatives, "|"));
}

struct FreePcre2 {
  void operator()(pcre2_code* code) const { pcre2_code_free(code); }
  void operator()(pcre2_match_context* context) const { pcre2_match_context_free(context); }
  void operator()(pcre2_match_data* data) const { pcre2_match_data_free(data); }
};
template <class T>
using Owned = std::unique_ptr<T, FreePcre2>;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 128> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// Length of the longest beginning of `text` that is well-formed UTF-8.
std::size_t well_formed_size(std::string_view text) {
  std::size_t size = 0;
  while (size < text.size()) {
    const Utf8Prefix next = read_utf8(text.substr(size));
    if (next.kind != Utf8Prefix::Kind::kCharacter) break;
    size += next.size;
  }
  return size;
}

}  // namespace

struct Splitter::Pattern {
  Owned<pcre2_code> code;
  Owned<pcre2_match_context> limits;
  bool is_machine_code = false;

  // Appends the pieces of `text`, which is well-formed UTF-8.
  //
  // The text was validated once, outside, so that PCRE2 need not: its own check, and its mode for
  // invalid text, read the whole rest of the text again for every piece when interpreting.
  Result<void> split_well_formed(std::string_view text, pcre2_match_data* match,
                                 std::vector<std::string_view>& pieces) const {
    const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
    const PCRE2_SIZE* bounds = pcre2_get_ovector_pointer(match);
    for (std::size_t begin = 0; begin < text.size();) {
      const int matched = pcre2_match(code.get(), subject, text.size(), begin, PCRE2_NO_UTF_CHECK,
                                      match, limits.get());
      SLACKWATER_CHECK(matched != PCRE2_ERROR_NOMATCH,
                       "the split pattern has no alternative for byte {} of {}", begin,
                       text.size());
      if (matched < 0) {
        return make_error(ErrorCode::kResourceExhausted,
                          "PCRE2 gives up at byte {} of a text of {}: {}; shorten the text", begin,
                          text.size(), pcre2_message(matched));
      }
      SLACKWATER_CHECK(bounds[0] == begin && bounds[1] > begin && bounds[1] <= text.size(),
                       "match [{}, {}) at byte {} of {}", bounds[0], bounds[1], begin, text.size());
      pieces.push_back(text.substr(begin, bounds[1] - begin));
      begin = bounds[1];
    }
    return {};
  }
};

Splitter::Splitter(std::unique_ptr<const Pattern> pattern) : pattern_(std::move(pattern)) {}
Splitter::Splitter(Splitter&&) noexcept = default;
Splitter& Splitter::operator=(Splitter&&) noexcept = default;
Splitter::~Splitter() = default;

Result<Splitter> Splitter::compile(Engine engine) {
  const std::string source = split_pattern();
  auto pattern = std::make_unique<Pattern>();
  int code = 0;
  PCRE2_SIZE offset = 0;
  // Anchored when compiled: the same option given to a match would rule out machine code.
  pattern->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(source.data()), source.size(),
                                    PCRE2_UTF | PCRE2_ANCHORED, &code, &offset, nullptr));
  if (pattern->code == nullptr) {
    return make_error(ErrorCode::kUnimplemented,
                      "PCRE2 refuses the split pattern at byte {}: {}; use PCRE2 10.40 or later, "
                      "built with Unicode",
                      offset, pcre2_message(code));
  }
  pattern->limits.reset(pcre2_match_context_create(nullptr));
  if (pattern->limits == nullptr) {
    return make_error(ErrorCode::kResourceExhausted, "no memory for a PCRE2 match context");
  }
  // The limit guards against patterns that explode; this one takes a few steps per character, and
  // the default of ten million would refuse a long run of capital letters.
  pcre2_set_match_limit(pattern->limits.get(), std::numeric_limits<std::uint32_t>::max());
  // A refusal is no error: PCRE2 may be built without machine code, and a hardened system may
  // forbid it. The interpreter then matches the same pattern.
  pattern->is_machine_code =
      engine == Engine::kFastest && pcre2_jit_compile(pattern->code.get(), PCRE2_JIT_COMPLETE) == 0;
  return Splitter(std::move(pattern));
}

bool Splitter::is_compiled_to_machine_code() const { return pattern_->is_machine_code; }

Result<std::vector<std::string_view>> Splitter::split(std::string_view text) const {
  if (text.size() > kMaxTextBytes) {
    return make_error(ErrorCode::kOutOfRange, "a text of {} bytes; at most {} are split at once",
                      text.size(), kMaxTextBytes);
  }
  std::vector<std::string_view> pieces;
  const Owned<pcre2_match_data> match(pcre2_match_data_create(1, nullptr));
  if (match == nullptr) {
    return make_error(ErrorCode::kResourceExhausted, "no memory for PCRE2 match data");
  }
  while (!text.empty()) {
    const std::size_t size = well_formed_size(text);
    SLACKWATER_RETURN_IF_ERROR(
        pattern_->split_well_formed(text.substr(0, size), match.get(), pieces));
    text.remove_prefix(size);
    if (text.empty()) break;
    pieces.push_back(text.substr(0, 1));
    text.remove_prefix(1);
  }
  return pieces;
}

}  // namespace slackwater::model
