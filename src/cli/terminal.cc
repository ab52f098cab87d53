#include "cli/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>

#include "cli/standard_streams.h"

namespace slackwater::cli {
namespace {

constexpr Nanoseconds kInterval = std::chrono::milliseconds(100);

std::string_view code_of(Ink ink) {
  switch (ink) {
    case Ink::kStrong: return "\x1b[1m";
    case Ink::kDim: return "\x1b[2m";
    case Ink::kGreen: return "\x1b[32m";
    case Ink::kYellow: return "\x1b[33m";
    case Ink::kBlue: return "\x1b[34m";
    case Ink::kRed: return "\x1b[31m";
    case Ink::kPlain: break;
  }
  return "";
}

bool is_continuation(char c) { return (static_cast<unsigned char>(c) & 0xC0) == 0x80; }

std::size_t columns_of(std::string_view text) {
  return static_cast<std::size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return !is_continuation(c); }));
}

// The first `columns` characters.
std::string_view head(std::string_view text, std::size_t columns) {
  std::size_t end = 0;
  while (end < text.size()) {
    if (!is_continuation(text[end])) {
      if (columns == 0) break;
      --columns;
    }
    ++end;
  }
  return text.substr(0, end);
}

bool is_set(const char* name) {
  const char* const value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

winsize terminal_size() {
  winsize size = {};
  if (::ioctl(STDERR_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
  return size;
}

}  // namespace

ScreenLine& ScreenLine::add(std::string_view text, Ink ink) {
  const std::string_view shown = head(text, width_ - column_);
  if (shown.empty()) return *this;
  const std::string_view code = has_color_ ? code_of(ink) : "";
  text_ += code;
  for (const char c : shown) text_ += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  if (!code.empty()) text_ += "\x1b[0m";
  column_ += columns_of(shown);
  return *this;
}

ScreenLine& ScreenLine::pad_to(std::size_t column) {
  if (column > column_) add(std::string(column - column_, ' '));
  return *this;
}

ScreenLine& ScreenLine::add_bar(std::size_t columns, std::int64_t full, std::int64_t half,
                                std::int64_t total) {
  const auto share = [&](std::int64_t part) {
    if (total <= 0) return std::size_t{0};
    const std::int64_t most = std::clamp<std::int64_t>(part, 0, total);
    const auto wide = static_cast<std::int64_t>(columns);
    return static_cast<std::size_t>((most * wide + total / 2) / total);
  };
  const std::size_t first = share(full);
  const std::size_t second = std::max(share(full + half), first);
  std::string bar;
  for (std::size_t i = 0; i < first; ++i) bar += "█";
  add(bar, Ink::kGreen);
  bar.clear();
  for (std::size_t i = first; i < second; ++i) bar += "▒";
  add(bar, Ink::kYellow);
  bar.clear();
  for (std::size_t i = second; i < columns; ++i) bar += "·";
  return add(bar, Ink::kDim);
}

ScreenLine& ScreenLine::add_end(std::string_view text, std::size_t columns, Ink ink) {
  const std::size_t all = columns_of(text);
  if (all > columns) text.remove_prefix(head(text, all - columns).size());
  return add(text, ink);
}

LiveScreen::LiveScreen() {
  const char* const kind = std::getenv("TERM");
  const bool is_dumb = kind != nullptr && std::string_view(kind) == "dumb";
  is_terminal_ = ::isatty(STDERR_FILENO) == 1 && !is_dumb;
  has_color_ = is_terminal_ && !is_set("NO_COLOR");
}

std::size_t LiveScreen::width() const { return terminal_size().ws_col; }
std::size_t LiveScreen::height() const { return terminal_size().ws_row; }

bool LiveScreen::is_due() const {
  return is_terminal_ && (num_drawn_ == 0 || clock_.now() - last_ >= kInterval);
}

// In one write, line by line, so that nothing flickers.
void LiveScreen::draw(const std::vector<ScreenLine>& lines) {
  if (!is_terminal_) return;
  const std::size_t most = std::max<std::size_t>(2, height()) - 1;
  const std::size_t count = std::min(lines.size(), most);
  std::string text;
  if (num_drawn_ > 0) text = "\x1b[" + std::to_string(num_drawn_) + "F";
  for (std::size_t i = 0; i < count; ++i) text += lines[i].text() + "\x1b[K\n";
  text += "\x1b[J";
  write_standard_error(text);
  num_drawn_ = count;
  last_ = clock_.now();
}

}  // namespace slackwater::cli
