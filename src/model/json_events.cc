#include "model/json_events.h"

#include <algorithm>

#include "slackwater/base/check.h"

namespace slackwater::model {
namespace {

constexpr std::size_t kMaxQuotedBytes = 120;

void append_printable(std::string& out, std::string_view text) {
  for (const char c : text.substr(0, kMaxQuotedBytes)) {
    if (c >= 0x20 && c < 0x7F) {
      out.push_back(c);
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kMaxQuotedBytes) out += "...";
}

// The parser's message without its own prefix: "[json.exception.parse_error.101] parse error at
// line 1, column 2: syntax error ...". The position is reported apart.
std::string_view bare_message(std::string_view what) {
  for (const std::string_view prefix_end : {"] ", ": "}) {
    if (prefix_end == ": " && !what.starts_with("parse error at ")) break;
    const std::size_t at = what.find(prefix_end);
    if (at != std::string_view::npos) what.remove_prefix(at + prefix_end.size());
  }
  return what;
}

}  // namespace

std::string in_quotes(std::string_view text) {
  std::string out = "'";
  append_printable(out, text);
  out.push_back('\'');
  return out;
}

std::string JsonScalar::describe() const {
  switch (kind) {
    case Kind::kNull: return "null";
    case Kind::kBool: return std::string(text);
    case Kind::kString: return "the string " + in_quotes(text);
    case Kind::kUnsigned:
    case Kind::kNegative:
    case Kind::kReal: break;
  }
  std::string out = "the number ";
  append_printable(out, text);
  return out;
}

bool JsonEvents::fail(ErrorCode code, std::string text) {
  SLACKWATER_DCHECK(!error_.has_value(), "a second error: {}", text);
  error_.emplace(code, std::move(text));
  return false;
}

bool JsonEvents::enter() {
  if (depth_ == max_depth_) {
    return fail(ErrorCode::kDataLoss,
                fmt::format("JSON nested deeper than the limit of {}", max_depth_));
  }
  ++depth_;
  return true;
}

bool JsonEvents::boolean(bool value) {
  return on_scalar({JsonScalar::Kind::kBool, 0, value ? "true" : "false"});
}

bool JsonEvents::number_integer(number_integer_t value) {
  // The parser sends whole numbers with a minus sign here, -0 included.
  const std::string text = value == 0 ? "-0" : std::to_string(value);
  return on_scalar({JsonScalar::Kind::kNegative, 0, text});
}

bool JsonEvents::number_unsigned(number_unsigned_t value) {
  const std::string text = std::to_string(value);
  return on_scalar({JsonScalar::Kind::kUnsigned, value, text});
}

bool JsonEvents::number_float(number_float_t, const string_t& text) {
  return on_scalar({JsonScalar::Kind::kReal, 0, text});
}

bool JsonEvents::string(string_t& value) {
  return on_scalar({JsonScalar::Kind::kString, 0, value});
}

bool JsonEvents::binary(binary_t&) {
  return fail(ErrorCode::kDataLoss, "binary value in a JSON text");
}

bool JsonEvents::end_object() {
  --depth_;
  return on_object_end();
}

bool JsonEvents::end_array() {
  --depth_;
  return on_array_end();
}

bool JsonEvents::parse_error(std::size_t position, const std::string&,
                             const nlohmann::detail::exception& error) {
  std::string text = fmt::format("malformed JSON at byte {}: ", position == 0 ? 0 : position - 1);
  append_printable(text, bare_message(error.what()));
  return fail(ErrorCode::kDataLoss, std::move(text));
}

Result<void> read_json(std::string_view text, JsonEvents& events) {
  // The parser takes a zero byte for the end of the text and would not look at what follows.
  if (const std::size_t zero = text.find('\0'); zero != std::string_view::npos) {
    return make_error(ErrorCode::kDataLoss, "malformed JSON at byte {}: a zero byte", zero);
  }
  nlohmann::json_sax<nlohmann::json>* const sink = &events;
  const bool complete = nlohmann::json::sax_parse(text.begin(), text.end(), sink);
  if (!complete) {
    SLACKWATER_CHECK(events.error_.has_value(), "parsing stopped without an error");
    return tl::unexpected<Error>(*std::move(events.error_));
  }
  return {};
}

}  // namespace slackwater::model
