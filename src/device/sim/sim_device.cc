#include "slackwater/device/sim_device.h"

#include <utility>

#include "device/mapped_arena.h"
#include "device/mapped_handover.h"
#include "device/sim/sim_scheduler.h"

namespace slackwater::device {
namespace {

// An arena that grows only while the adversary lets it.
class SimArena final : public Arena {
 public:
  SimArena(SimScheduler& scheduler, std::unique_ptr<Arena> arena)
      : scheduler_(scheduler), arena_(std::move(arena)) {}

  std::byte* base() const override { return arena_->base(); }
  std::size_t reserved_bytes() const override { return arena_->reserved_bytes(); }
  std::size_t committed_bytes() const override { return arena_->committed_bytes(); }
  std::size_t grain_bytes() const override { return arena_->grain_bytes(); }

 private:
  Result<void> resize_now(std::size_t bytes, Handover* handover) override {
    if (bytes > committed_bytes() && scheduler_.refuses_commit()) {
      return make_error(ErrorCode::kResourceExhausted,
                        "the simulated system has no room for an arena of {} bytes", bytes);
    }
    return arena_->resize(bytes, handover);
  }

  SimScheduler& scheduler_;
  const std::unique_ptr<Arena> arena_;
};

}  // namespace

SimDevice::SimDevice(SimOptions options)
    : scheduler_(std::make_unique<SimScheduler>(std::move(options))) {}

SimDevice::~SimDevice() = default;

Result<std::unique_ptr<Arena>> SimDevice::reserve_arena(MemoryKind kind, std::size_t bytes,
                                                        std::size_t grain_bytes) {
  SLACKWATER_ASSIGN_OR_RETURN(auto arena,
                              MappedArena::reserve(scheduler_->ledger(), kind, bytes, grain_bytes));
  return std::make_unique<SimArena>(*scheduler_, std::move(arena));
}

std::unique_ptr<Handover> SimDevice::make_handover(MemoryKind kind) {
  return std::make_unique<MappedHandover>(scheduler_->ledger(), kind);
}

Result<std::unique_ptr<Stream>> SimDevice::make_stream(std::string name) {
  return std::make_unique<SimStream>(*scheduler_, std::move(name));
}

EventSource SimDevice::make_event(std::string waker) {
  return EventSource(Event(new SimEvent(*scheduler_, std::move(waker))));
}

void SimDevice::set_budget(MemoryKind kind, std::size_t bytes) {
  scheduler_->ledger()->set_budget(kind, bytes);
}

MemoryUsage SimDevice::usage(MemoryKind kind) const { return scheduler_->ledger()->usage(kind); }

bool SimDevice::run_one() { return scheduler_->run_one(); }

void SimDevice::run_all() {
  while (scheduler_->run_one()) {
  }
}

std::int64_t SimDevice::num_copies() const { return scheduler_->num_copies(); }
std::int64_t SimDevice::num_commits() const { return scheduler_->num_commits(); }

}  // namespace slackwater::device
