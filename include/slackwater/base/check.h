#ifndef SLACKWATER_BASE_CHECK_H_
#define SLACKWATER_BASE_CHECK_H_

#include <string>
#include <utility>

#include <fmt/core.h>

namespace slackwater {

// Prints `file:line: CHECK(expression) failed: text` to standard error and aborts. One line,
// written by one system call, so that concurrent failures stay readable.
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& text);

// What this thread is doing, for the text of a check that fails meanwhile: ` (while TEXT)`.
//
// Invariants:
//   I1  notes end in the opposite order of their beginnings; the last one is told.
// Threads: the one that made it.
// Errors: none.
class CheckNote {
 public:
  explicit CheckNote(std::string text);
  ~CheckNote();
  CheckNote(const CheckNote&) = delete;
  CheckNote& operator=(const CheckNote&) = delete;

  void set(std::string text) { text_ = std::move(text); }

 private:
  friend void check_failed(const char*, int, const char*, const std::string&);

  std::string text_;
  const CheckNote* const before_;
};

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
