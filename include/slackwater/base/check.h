#ifndef SLACKWATER_BASE_CHECK_H_
#define SLACKWATER_BASE_CHECK_H_

#include <string>

#include <fmt/core.h>

namespace slackwater {

// Prints `file:line: CHECK(expression) failed: text` to standard error and aborts. One line,
// written by one system call, so that concurrent failures stay readable.
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& text);

}  // namespace slackwater

// Aborts with the numbers when our own code is wrong. Always on; the condition must be O(1).
//   SLACKWATER_CHECK(slot < num_slots, "slot {} of {}", slot, num_slots);
#define SLACKWATER_CHECK(condition, ...) \
  (static_cast<bool>(condition)          \
       ? static_cast<void>(0)            \
       : ::slackwater::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)))

// The same, only in the presets dev, relassert, tsan and mutants.
#if defined(SLACKWATER_DCHECKS)
#define SLACKWATER_DCHECK(condition, ...) SLACKWATER_CHECK(condition, __VA_ARGS__)
#else
// Compiled, so that it cannot rot and what only it names counts as used, but never evaluated.
#define SLACKWATER_DCHECK(condition, ...) \
  (true ? static_cast<void>(0) : SLACKWATER_CHECK(condition, __VA_ARGS__))
#endif

#endif  // SLACKWATER_BASE_CHECK_H_
