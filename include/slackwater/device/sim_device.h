#ifndef SLACKWATER_DEVICE_SIM_DEVICE_H_
#define SLACKWATER_DEVICE_SIM_DEVICE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>

#include "slackwater/device/device.h"

namespace slackwater::device {

class SimScheduler;

// What the simulated device does to one copy.
enum class CopyFault : std::uint8_t {
  kNone,
  kDelay,   // it begins only after much other work, or when nothing else can run
  kRefuse,  // it fails and writes nothing
  kTear,    // it fails after a part of its bytes, in the middle of a piece
};

struct SimOptions {
  std::uint64_t seed = 0;
  std::size_t device_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t pinned_host_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t pageable_host_bytes = std::numeric_limits<std::size_t>::max();
  // Asked once per copy, in the order in which copies are queued, from 0. Empty: no faults.
  std::function<CopyFault(std::int64_t copy_index)> copy_fault;
  // Asked whenever an arena grows, from 0; true refuses it. Empty: only budgets refuse.
  std::function<bool(std::int64_t commit_index)> refuse_commit;
};

// A device with an adversary: queued work runs in any order that the declared dependencies allow,
// chosen by a seed. A copy runs in portions with other work between them, so that a missing wait
// shows as torn bytes. The items run the real functions; only order, delay and failure are
// invented. The same seed and the same calls give the same run.
//
// Nothing runs by itself: work advances when somebody queues, looks at an event or waits, by an
// amount that depends on the seed, from "at once" to "only when waited for".
//
// Source: deterministic simulation as TigerBeetle and FoundationDB use it.
// Invariants:
//   I1  what runs next is runnable: its stream's earlier items and the events it waits for are
//       done.
//   I2  waiting for an event that no queued work can complete is a CHECK that names the waker.
// Threads: one thread for the device and everything it hands out.
// Errors: as Device; an item that waits for an event of its own device is a CHECK.
class SimDevice final : public Device {
 public:
  explicit SimDevice(SimOptions options);
  ~SimDevice() override;

  std::string_view name() const override { return "sim"; }
  Result<std::unique_ptr<Arena>> reserve_arena(MemoryKind kind, std::size_t bytes,
                                               std::size_t grain_bytes) override;
  std::unique_ptr<Handover> make_handover(MemoryKind kind) override;
  Result<std::unique_ptr<Stream>> make_stream(std::string name) override;
  EventSource make_event(std::string waker) override;
  void set_budget(MemoryKind kind, std::size_t bytes) override;
  MemoryUsage usage(MemoryKind kind) const override;

  // Runs one portion of work. False when nothing is runnable.
  bool run_one();
  // Runs until nothing is runnable.
  void run_all();

  // Copies queued and commits asked for so far: what the fault functions count.
  std::int64_t num_copies() const;
  std::int64_t num_commits() const;

 private:
  std::unique_ptr<SimScheduler> scheduler_;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_SIM_DEVICE_H_
