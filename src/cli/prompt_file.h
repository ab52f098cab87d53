#ifndef SLACKWATER_CLI_PROMPT_FILE_H_
#define SLACKWATER_CLI_PROMPT_FILE_H_

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/engine/request.h"

namespace slackwater::cli {

// One line of a file of prompts: what it asks for, and under which name.
struct PromptLine {
  std::int64_t number = 0;  // 1-based
  std::string id;           // as JSON: "\"a\"" or "7"; the line's number where it has none
  std::variant<std::string, std::vector<TokenId>> prompt;
  engine::GenerationRequest request;  // but for the prompt
};

// What a line has for an answer where it cannot be read.
struct PromptFault {
  std::int64_t number = 0;
  std::optional<std::string> id;  // where that much can be read
  Error error;
};

// Reads one line of JSON. Fields, all but the prompt optional: id, prompt or prompt_tokens,
// max_tokens, temperature, top_p, top_k, min_p, frequency_penalty, presence_penalty, seed, stop,
// stop_token_ids, ignore_eos, n, logit_bias, logprobs, priority, speculation. Others are refused:
// what is misspelt shall not be ignored.
//
// A line without a seed has `default_seed` plus its number.
tl::expected<PromptLine, PromptFault> parse_prompt_line(std::string_view text, std::int64_t number,
                                                        std::uint64_t default_seed);

// The lines of a file, one at a time, so that its size does not matter.
//
// Ownership: owns the open file.
// Threads: one.
// Errors: kUnavailable with the system's reason; kOutOfRange for a line longer than any prompt.
class LineReader {
 public:
  static Result<LineReader> open(const std::filesystem::path& path);

  // The next line without its end; nothing at the end of the file. Empty ones are lines, too.
  Result<std::optional<std::string>> next();
  std::int64_t num_lines() const { return num_lines_; }  // read so far
  std::int64_t num_bytes() const { return num_bytes_; }
  std::int64_t total_bytes() const { return total_bytes_; }  // 0: not known

 private:
  using File = std::unique_ptr<std::FILE, int (*)(std::FILE*)>;
  LineReader(std::filesystem::path path, File file, std::int64_t total_bytes)
      : path_(std::move(path)), file_(std::move(file)), total_bytes_(total_bytes) {}

  std::filesystem::path path_;
  File file_;
  std::int64_t total_bytes_;
  std::int64_t num_lines_ = 0;
  std::int64_t num_bytes_ = 0;
};

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_PROMPT_FILE_H_
