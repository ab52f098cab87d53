#ifndef SLACKWATER_CLI_LOAD_PROGRESS_H_
#define SLACKWATER_CLI_LOAD_PROGRESS_H_

#include <cstddef>
#include <string>

#include "slackwater/base/clock.h"

namespace slackwater::cli {

// Says on standard error how far loading is: a line that is rewritten on a terminal, else a line
// every two seconds, so that a quick load leaves logs alone.
//
// Invariants:
//   I1  on a terminal the line is gone after finish().
// Threads: one.
// Errors: none; what cannot be shown is not shown.
class LoadProgress {
 public:
  explicit LoadProgress(std::string what);
  ~LoadProgress() { finish(); }
  LoadProgress(const LoadProgress&) = delete;
  LoadProgress& operator=(const LoadProgress&) = delete;

  void report(std::size_t done_bytes, std::size_t total_bytes);
  void finish();

 private:
  RealClock clock_;
  std::string what_;
  bool is_terminal_;
  bool is_shown_ = false;
  Nanoseconds last_;
};

}  // namespace slackwater::cli

#endif  // SLACKWATER_CLI_LOAD_PROGRESS_H_
