#include "slackwater/base/check.h"

#include <unistd.h>

#include <cstdlib>

namespace slackwater {

void check_failed(const char* file, int line, const char* expression, const std::string& text) {
  const std::string message =
      fmt::format("{}:{}: CHECK({}) failed: {}\n", file, line, expression, text);
  // The process ends in the next line; a message that could not be written changes nothing.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  std::abort();
}

}  // namespace slackwater
