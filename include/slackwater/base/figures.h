#ifndef SLACKWATER_BASE_FIGURES_H_
#define SLACKWATER_BASE_FIGURES_H_

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include <fmt/core.h>

namespace slackwater {

// Figures as people read them.

// Bytes in the largest unit of which there is at least one: "512 B", "36 KiB", "1.5 GiB".
inline std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<std::string_view, 6> kUnits = {"B", "KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  const bool is_whole = value == static_cast<double>(static_cast<std::int64_t>(value));
  return is_whole ? fmt::format("{:.0f} {}", value, kUnits[unit])
                  : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

// A part of a whole: "37 %"; "-" of nothing. What is little is not called none, and nearly all not
// all: "<1 %", ">99 %".
inline std::string share_text(std::int64_t part, std::int64_t whole) {
  if (whole <= 0) return "-";
  const double percent = 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  if (part > 0 && percent < 1) return "<1 %";
  if (part < whole && percent > 99) return ">99 %";
  return fmt::format("{:.0f} %", percent);
}

// "1 page", "3 pages".
inline std::string count_text(std::int64_t count, std::string_view noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

}  // namespace slackwater

#endif  // SLACKWATER_BASE_FIGURES_H_
