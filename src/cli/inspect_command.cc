#include "cli/inspect_command.h"

#include <charconv>
#include <cstdint>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "cli/standard_streams.h"

namespace slackwater::cli {
namespace {

constexpr std::size_t kMostTokens = 1 << 24;

std::optional<TokenId> to_token(std::string_view text) {
  TokenId token = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), token);
  if (error != std::errc() || stop != text.data() + text.size()) return std::nullopt;
  return token;
}

// "7,100..131": single tokens, and all from one to another.
Result<std::vector<TokenId>> parse_tokens(std::string_view text) {
  std::vector<TokenId> tokens;
  while (true) {
    const std::string_view item = text.substr(0, text.find(','));
    const std::size_t dots = item.find("..");
    const auto first = to_token(item.substr(0, dots));
    const auto last = dots == std::string_view::npos ? first : to_token(item.substr(dots + 2));
    if (!first.has_value() || !last.has_value() || *last < *first) {
      return make_error(ErrorCode::kInvalidArgument,
                        "--explain: '{}' is no token, and no range of them such as 100..131", item);
    }
    const auto count = static_cast<std::size_t>(std::int64_t{*last} - *first + 1);
    if (tokens.size() + count > kMostTokens) {
      return make_error(ErrorCode::kInvalidArgument, "--explain: more than {} tokens", kMostTokens);
    }
    for (std::int64_t token = *first; token <= *last; ++token) {
      tokens.push_back(static_cast<TokenId>(token));
    }
    if (item.size() == text.size()) return tokens;
    text.remove_prefix(item.size() + 1);
  }
}

// A line on a terminal that is rewritten, and gone at the end.
class Progress {
 public:
  ~Progress() {
    if (is_shown_) write_standard_error("\r\x1b[K");
  }
  void report(std::int64_t num_calls) {
    if (!is_terminal_ || num_calls % (1 << 16) != 0) return;
    write_standard_error(fmt::format("\r{} calls", num_calls));
    is_shown_ = true;
  }

 private:
  const bool is_terminal_ = ::isatty(STDERR_FILENO) == 1;
  bool is_shown_ = false;
};

}  // namespace

Result<void> check(const InspectCommand& command) {
  if (command.explain.has_value()) SLACKWATER_RETURN_IF_ERROR(parse_tokens(*command.explain));
  return {};
}

Result<void> run(const InspectCommand& command) {
  cache::LogInspectionOptions options = command.options;
  if (command.explain.has_value()) {
    SLACKWATER_ASSIGN_OR_RETURN(options.prompt, parse_tokens(*command.explain));
  }
  Progress progress;
  options.progress = [&](std::int64_t num_calls) { progress.report(num_calls); };
  SLACKWATER_ASSIGN_OR_RETURN(const std::string text, cache::inspect_log(command.log, options));
  return write_standard_output(text);
}

}  // namespace slackwater::cli
