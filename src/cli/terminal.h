#ifndef SLACKWATER_CLI_TERMINAL_H_
#define SLACKWATER_CLI_TERMINAL_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/clock.h"

namespace slackwater::cli {

enum class Ink : std::uint8_t { kPlain, kStrong, kDim, kGreen, kYellow, kBlue, kRed };

// A line of at most so many columns; what does not fit is cut off.
//
// Invariants:
//   I1  its text takes at most `width` columns, and leaves colours as they were.
// Threads: one. Errors: none.
class ScreenLine {
 public:
  ScreenLine(std::size_t width, bool has_color) : width_(width), has_color_(has_color) {}

  // UTF-8 of one column a character; control characters become spaces.
  ScreenLine& add(std::string_view text, Ink ink = Ink::kPlain);
  // Spaces up to a column.
  ScreenLine& pad_to(std::size_t column);
  // A bar of so many columns: `full` of it, then `half`, then what is empty, in shares of `total`.
  ScreenLine& add_bar(std::size_t columns, std::int64_t full, std::int64_t half,
                      std::int64_t total);
  // Of text whose end matters: the last `columns` of it.
  ScreenLine& add_end(std::string_view text, std::size_t columns, Ink ink);

  std::size_t width() const { return width_; }
  std::size_t column() const { return column_; }
  const std::string& text() const { return text_; }

 private:
  std::size_t width_;
  bool has_color_;
  std::size_t column_ = 0;
  std::string text_;
};

// Standard error as a place where a picture is drawn over the one before.
//
// Honours NO_COLOR, and TERM=dumb, which is no terminal.
// Invariants:
//   I1  a picture is at most as wide as the terminal and less high, so that it can be drawn over.
// Threads: one.
// Errors: none; what cannot be shown is not shown.
class LiveScreen {
 public:
  LiveScreen();

  bool is_terminal() const { return is_terminal_; }
  bool has_color() const { return has_color_; }
  std::size_t width() const;
  std::size_t height() const;

  // Whether the next picture may come: a tenth of a second after the last one.
  bool is_due() const;
  // Draws over the last picture. Nothing where there is no terminal.
  void draw(const std::vector<ScreenLine>& lines);
  // The last picture stays, and the next one begins below it.
  void keep() { num_drawn_ = 0; }

 private:
  RealClock clock_;
  bool is_terminal_;
  bool has_color_;
  std::size_t num_drawn_ = 0;
  Nanoseconds last_{0};
};

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_TERMINAL_H_
