#ifndef SLACKWATER_ENGINE_TIMED_H_
#define SLACKWATER_ENGINE_TIMED_H_

#include "slackwater/base/clock.h"

namespace slackwater::engine {

// Adds the time of its own life to `total`.
class Timed {
 public:
  Timed(const Clock& clock, Nanoseconds& total)
      : clock_(clock), total_(total), started_(clock.now()) {}
  ~Timed() { total_ += clock_.now() - started_; }
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;

 private:
  const Clock& clock_;
  Nanoseconds& total_;
  const Nanoseconds started_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_TIMED_H_
