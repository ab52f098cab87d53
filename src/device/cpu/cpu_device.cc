#include "slackwater/device/cpu_device.h"

#include <system_error>
#include <utility>

#include "device/cpu/cpu_stream.h"
#include "device/mapped_arena.h"
#include "device/mapped_handover.h"
#include "device/memory_ledger.h"

namespace slackwater::device {
namespace {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(const CpuDeviceOptions& options) {
    ledger_->set_budget(MemoryKind::kDevice, options.device_bytes);
    ledger_->set_budget(MemoryKind::kPinnedHost, options.pinned_host_bytes);
    ledger_->set_budget(MemoryKind::kPageableHost, options.pageable_host_bytes);
  }

  std::string_view name() const override { return "cpu"; }

  Result<std::unique_ptr<Arena>> reserve_arena(MemoryKind kind, std::size_t bytes,
                                               std::size_t grain_bytes) override {
    return MappedArena::reserve(ledger_, kind, bytes, grain_bytes);
  }

  std::unique_ptr<Handover> make_handover(MemoryKind kind) override {
    return std::make_unique<MappedHandover>(ledger_, kind);
  }

  Result<std::unique_ptr<Stream>> make_stream(std::string name) override {
    try {
      return std::make_unique<CpuStream>(std::move(name));
    } catch (const std::system_error& error) {
      return make_error(ErrorCode::kResourceExhausted, "no thread for a stream: {}", error.what());
    }
  }

  EventSource make_event(std::string waker) override {
    return EventSource(Event(new EventState(std::move(waker))));
  }

  void set_budget(MemoryKind kind, std::size_t bytes) override { ledger_->set_budget(kind, bytes); }
  MemoryUsage usage(MemoryKind kind) const override { return ledger_->usage(kind); }

 private:
  const std::shared_ptr<MemoryLedger> ledger_ = std::make_shared<MemoryLedger>();
};

}  // namespace

std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options) {
  return std::make_unique<CpuDevice>(options);
}

}  // namespace slackwater::device
