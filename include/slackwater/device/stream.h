#ifndef SLACKWATER_DEVICE_STREAM_H_
#define SLACKWATER_DEVICE_STREAM_H_

#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/device/event.h"

namespace slackwater::device {

struct CopyPiece {
  std::byte* target = nullptr;
  const std::byte* source = nullptr;
};

// Pieces of equal size, copied in any order and side by side: no target overlaps another piece.
struct CopyBatch {
  std::size_t piece_bytes = 0;
  std::vector<CopyPiece> pieces;
};

// An ordered queue of work: items run one after another, each after all that were queued before.
//
// Source: CUDA streams. What differs: an item can fail, and the event after it says so.
//
// Invariants:
//   I1  an item begins after every earlier item of the stream has ended, and after every event
//       passed to wait() before it is done, whatever its status.
//   I2  an event of record() is done once all earlier items have ended; it has failed if one of
//       the items since the previous record() failed.
//   I3  what an item wrote is visible to items after it, and to whoever has seen its event done.
// Ownership: owns its queue. The destructor waits for what is queued.
// Threads: one thread queues at a time. Items run on a thread of the backend's.
// Errors: none when queueing; failures are told by events.
// Cost: queueing takes a lock and may allocate a queue node; it never waits for work.
class Stream {
 public:
  // Returns false when the work failed and what it writes is undefined.
  using Item = std::function<bool()>;

  explicit Stream(std::string name) : name_(std::move(name)) {}
  virtual ~Stream() = default;
  Stream(const Stream&) = delete;
  Stream& operator=(const Stream&) = delete;

  // Later items begin after `event` is done. Null and finished events cost nothing.
  virtual void wait(const Event& event) = 0;
  virtual void run(Item item) = 0;
  virtual void copy(CopyBatch batch) = 0;
  Event record() { return seen(record_now()); }
  // The same, for somebody else than whoever queued the items: the next record() still tells of
  // their failures.
  Event mark() { return seen(mark_now()); }

  // Blocks the caller until everything queued has ended; the status as record() would give it.
  EventStatus synchronize() { return record().wait(); }

  const std::string& name() const { return name_; }

 private:
  virtual Event record_now() = 0;
  virtual Event mark_now() = 0;

  // Whether there is anything to wait for.
  static Event seen(Event event) {
    return witnessed([&] { return event.is_null(); }) ? Event() : event;
  }

  const std::string name_;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_STREAM_H_
