#include "slackwater/model/text_stream.h"

#include <algorithm>
#include <utility>

#include "model/json_events.h"
#include "model/utf8.h"
#include "slackwater/base/check.h"

namespace slackwater::model {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

bool is_well_formed(std::string_view text) {
  while (!text.empty()) {
    const Utf8Prefix prefix = read_utf8(text);
    if (prefix.kind != Utf8Prefix::Kind::kCharacter) return false;
    text.remove_prefix(prefix.size);
  }
  return true;
}

// Moves what is certain from the front of `bytes` to the end of `text`.
void move_characters(std::string& bytes, std::string& text) {
  std::string_view rest = bytes;
  while (!rest.empty()) {
    const Utf8Prefix prefix = read_utf8(rest);
    if (prefix.kind == Utf8Prefix::Kind::kIncomplete) break;
    text +=
        prefix.kind == Utf8Prefix::Kind::kCharacter ? rest.substr(0, prefix.size) : kReplacement;
    rest.remove_prefix(prefix.size);
  }
  bytes.erase(0, bytes.size() - rest.size());
}

}  // namespace

Result<void> validate_stop(std::span<const std::string> stop) {
  for (const std::string& text : stop) {
    if (text.empty()) {
      return make_error(ErrorCode::kInvalidArgument, "a stop text is empty; leave it out instead");
    }
    if (!is_well_formed(text)) {
      return make_error(ErrorCode::kInvalidArgument, "the stop text {} is not UTF-8",
                        in_quotes(text));
    }
  }
  return {};
}

TextStream::Stop::Stop(std::string stop_text) : text(std::move(stop_text)), borders(text.size()) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    std::size_t border = borders[i - 1];
    while (border > 0 && text[border] != text[i]) border = borders[border - 1];
    borders[i] = border + (text[border] == text[i] ? 1 : 0);
  }
}

// Takes the next byte of the text; true when it completes the stop text. Not called after that.
bool TextStream::Stop::advance(char byte) {
  while (matched > 0 && text[matched] != byte) matched = borders[matched - 1];
  if (text[matched] == byte) ++matched;
  return matched == text.size();
}

TextStream::TextStream(const Tokenizer& tokenizer, std::vector<std::string> stop)
    : tokenizer_(&tokenizer) {
  const Result<void> valid = validate_stop(stop);
  SLACKWATER_CHECK(valid.has_value(), "{}", valid.error().text());
  for (std::string& text : stop) stops_.emplace_back(std::move(text));
}

TextStream::Piece TextStream::push(TokenId token) {
  SLACKWATER_CHECK(!finished_, "token {} after the end", token);
  bytes_ += tokenizer_->token_bytes(token);
  std::string text;
  move_characters(bytes_, text);
  return take_certain(text);
}

TextStream::Piece TextStream::finish() {
  finished_ = true;
  // At most three bytes of one incomplete character: one maximal subpart.
  Piece piece = take_certain(std::exchange(bytes_, {}).empty() ? std::string_view() : kReplacement);
  piece.text += std::exchange(held_, {});
  return piece;
}

TextStream::Piece TextStream::take_certain(std::string_view text) {
  if (stopped_) return {"", true};
  for (const char byte : text) {
    held_.push_back(byte);
    std::size_t complete = 0;
    for (Stop& stop : stops_) {
      if (stop.advance(byte)) complete = std::max(complete, stop.text.size());
    }
    if (complete == 0) continue;
    // All of it is held: I3 holds for every stop text, and it begins itself.
    SLACKWATER_CHECK(complete <= held_.size(), "a stop text of {} bytes, {} held", complete,
                     held_.size());
    stopped_ = true;
    held_.resize(held_.size() - complete);
    return {std::exchange(held_, {}), true};
  }
  std::size_t keep = 0;
  for (const Stop& stop : stops_) keep = std::max(keep, stop.matched);
  std::string rest = held_.substr(held_.size() - keep);
  held_.resize(held_.size() - keep);
  return {std::exchange(held_, std::move(rest)), false};
}

}  // namespace slackwater::model
