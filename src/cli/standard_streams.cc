#include "cli/standard_streams.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

#include <fmt/format.h>

namespace slackwater::cli {
namespace {

// Writes all of `text`; 0, or the system's error number.
int write_all(int stream, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(stream, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
    } else if (errno != EINTR) {
      return errno;
    }
  }
  return 0;
}

}  // namespace

Result<void> write_standard_output(std::string_view text) {
  if (const int error = write_all(STDOUT_FILENO, text); error != 0) {
    return make_error(ErrorCode::kUnavailable,
                      "cannot write to standard output: {}; check where it is redirected",
                      std::generic_category().message(error));
  }
  return {};
}

void write_standard_error(std::string_view text) {
  static_cast<void>(write_all(STDERR_FILENO, text));
}

std::string in_one_line(std::string_view text) {
  std::string line;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte == 0x7F) {
      line += fmt::format("\\x{:02x}", byte);
    } else {
      line += c;
    }
  }
  return line;
}

}  // namespace slackwater::cli
