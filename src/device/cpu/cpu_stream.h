#ifndef SLACKWATER_DEVICE_CPU_CPU_STREAM_H_
#define SLACKWATER_DEVICE_CPU_CPU_STREAM_H_

#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <variant>

#include "slackwater/device/stream.h"

namespace slackwater::device {

// A queue with a thread of its own.
//
// Invariants: as Stream. The thread runs in the fixed floating-point mode.
// Ownership: owns the thread; the destructor joins it once the queue is empty.
// Threads: as Stream; the worker takes one item at a time.
// Errors: as Stream. The constructor throws std::system_error where no thread can be started.
class CpuStream final : public Stream {
 public:
  explicit CpuStream(std::string name);
  ~CpuStream() override;

  void wait(const Event& event) override;
  void run(Item item) override;
  void copy(CopyBatch batch) override;

 private:
  struct Wait {
    Event event;
  };
  struct Record {
    EventSource source;
    bool keeps_failure = false;
  };
  using Task = std::variant<Wait, Item, CopyBatch, Record>;

  Event record_now() override { return record(false); }
  Event mark_now() override { return record(true); }
  Event record(bool keeps_failure);
  void push(Task task);
  void work();
  void execute(Task& task);

  std::mutex mutex_;
  std::condition_variable not_empty_;
  std::deque<Task> tasks_;
  bool is_closing_ = false;
  bool is_working_ = false;  // an item is under way
  bool has_failed_ = false;  // an item since the last record(); the worker's while it works
  std::thread worker_;       // last, so that all it uses is there before it starts
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_CPU_CPU_STREAM_H_
