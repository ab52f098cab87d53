#ifndef SLACKWATER_DEVICE_SIM_SIM_SCHEDULER_H_
#define SLACKWATER_DEVICE_SIM_SIM_SCHEDULER_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "device/memory_ledger.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::device {

class SimScheduler;

// An event that lets simulated work advance when somebody looks at it.
class SimEvent final : public EventState {
 public:
  SimEvent(SimScheduler& scheduler, std::string waker)
      : EventState(std::move(waker)), scheduler_(scheduler) {}

  EventStatus status() override;
  EventStatus wait() override;
  // Simulated time does not pass: everything that can run, runs.
  EventStatus wait_for(Nanoseconds timeout) override;

 private:
  SimScheduler& scheduler_;
};

// A queue whose items are run by the scheduler, one portion at a time.
//
// Invariants: as Stream.
// Ownership: registered with the scheduler for its life; the destructor runs what is queued.
// Threads: as SimDevice.
// Errors: as Stream.
class SimStream final : public Stream {
 public:
  SimStream(SimScheduler& scheduler, std::string name);
  ~SimStream() override;

  void wait(const Event& event) override;
  void run(Item item) override;
  void copy(CopyBatch batch) override;

  bool is_empty() const { return tasks_.empty(); }
  // Drops finished waits from the front; true when the first task can run.
  bool is_runnable();
  bool is_asleep() const { return !tasks_.empty() && tasks_.front().naps > 0; }
  void nap() { --tasks_.front().naps; }
  void wake() { tasks_.front().naps = 0; }
  // Runs a part of the first task, which is runnable; removes it when it has ended.
  void run_portion();

 private:
  struct Wait {
    Event event;
  };
  struct Copy {
    CopyBatch batch;
    std::size_t total_bytes;  // less than all of them where the copy is torn
    std::size_t copied_bytes = 0;
    bool fails = false;
  };
  struct Record {
    EventSource source;
    bool keeps_failure = false;
  };
  struct Task {
    std::variant<Wait, Item, Copy, Record> what;
    int naps = 0;  // portions of other work to let pass first
  };

  Event record_now() override { return record(false); }
  Event mark_now() override { return record(true); }
  Event record(bool keeps_failure);
  void push(Task task);
  bool continue_copy(Copy& copy);

  SimScheduler& scheduler_;
  std::deque<Task> tasks_;
  bool has_failed_ = false;  // an item since the last record()
};

// Which stream runs next, and how far work gets when somebody looks.
//
// Invariants:
//   I1  only runnable tasks run; one runs at a time, and none from within another.
// Ownership: knows the streams, owns none.
// Threads: as SimDevice.
// Errors: none.
class SimScheduler {
 public:
  explicit SimScheduler(SimOptions options);

  void add(SimStream& stream);
  void remove(SimStream& stream);

  // Runs one portion; a sleeping copy only where nothing else can run.
  bool run_one();
  // Runs as much as this seed lets happen unasked: nothing, some or much.
  void advance();
  CopyFault next_copy_fault();
  bool refuses_commit();
  // Uniform in [0, bound).
  std::uint64_t draw(std::uint64_t bound) { return random_() % bound; }

  const std::shared_ptr<MemoryLedger>& ledger() const { return ledger_; }
  std::int64_t num_copies() const { return num_copies_; }
  std::int64_t num_commits() const { return num_commits_; }
  bool is_running() const { return is_running_; }

 private:
  struct Entry {
    SimStream* stream;
    std::uint64_t weight;
  };

  enum class Sleepers { kStay, kMayWake };

  SimStream* choose(Sleepers sleepers);
  bool run_portion(Sleepers sleepers);
  void draw_weights();

  const SimOptions options_;
  std::mt19937_64 random_;
  const std::uint64_t eagerness_;  // portions per look are below it
  const std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
  std::vector<Entry> entries_;
  int portions_until_weights_ = 0;
  bool is_running_ = false;
  std::int64_t num_copies_ = 0;
  std::int64_t num_commits_ = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_SIM_SIM_SCHEDULER_H_
