#include "slackwater/base/check.h"

#include <unistd.h>

#include <cstdlib>

namespace slackwater {

namespace {

thread_local const CheckNote* current_note = nullptr;

}  // namespace

CheckNote::CheckNote(std::string text) : text_(std::move(text)), before_(current_note) {
  current_note = this;
}

CheckNote::~CheckNote() { current_note = before_; }

void check_failed(const char* file, int line, const char* expression, const std::string& text) {
  const std::string message =
      fmt::format("{}:{}: CHECK({}) failed: {}{}\n", file, line, expression, text,
                  current_note == nullptr ? "" : fmt::format(" (while {})", current_note->text_));
  // The process ends in the next line; a message that could not be written changes nothing.
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, message.data(), message.size());
  std::abort();
}

}  // namespace slackwater
