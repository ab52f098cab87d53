#include "cli/load_progress.h"

#include <unistd.h>

#include <fmt/format.h>

#include "cli/standard_streams.h"

namespace slackwater::cli {

LoadProgress::LoadProgress(std::string what)
    : what_(std::move(what)), is_terminal_(::isatty(STDERR_FILENO) == 1), last_(clock_.now()) {}

void LoadProgress::report(std::size_t done_bytes, std::size_t total_bytes) {
  const Nanoseconds interval =
      is_terminal_ ? std::chrono::milliseconds(100) : std::chrono::seconds(2);
  if (clock_.now() - last_ < interval) return;
  last_ = clock_.now();
  constexpr double kMegabyte = 1e6;
  write_standard_error(fmt::format("{}loading {}: {:.0f} of {:.0f} MB{}", is_terminal_ ? "\r" : "",
                                   what_, static_cast<double>(done_bytes) / kMegabyte,
                                   static_cast<double>(total_bytes) / kMegabyte,
                                   is_terminal_ ? "" : "\n"));
  is_shown_ = is_terminal_;
}

void LoadProgress::finish() {
  if (!is_shown_) return;
  // Erase the line; the cursor stays at its start.
  write_standard_error("\r\x1b[K");
  is_shown_ = false;
}

}  // namespace slackwater::cli
