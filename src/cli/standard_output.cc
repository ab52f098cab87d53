#include "cli/standard_output.h"

#include <unistd.h>

#include <cerrno>
#include <system_error>

namespace slackwater::cli {

Result<void> write_standard_output(std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = ::write(STDOUT_FILENO, text.data(), text.size());
    if (written >= 0) {
      text.remove_prefix(static_cast<std::size_t>(written));
      continue;
    }
    if (errno == EINTR) continue;
    return make_error(ErrorCode::kUnavailable,
                      "cannot write to standard output: {}; check where it is redirected",
                      std::generic_category().message(errno));
  }
  return {};
}

}  // namespace slackwater::cli
