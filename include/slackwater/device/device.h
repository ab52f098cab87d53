#ifndef SLACKWATER_DEVICE_DEVICE_H_
#define SLACKWATER_DEVICE_DEVICE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "slackwater/base/error.h"
#include "slackwater/device/arena.h"
#include "slackwater/device/event.h"
#include "slackwater/device/handover.h"
#include "slackwater/device/stream.h"

namespace slackwater::device {

// Where memory lies and what a device can do with it.
enum class MemoryKind : std::uint8_t {
  kDevice,        // kernels work here
  kPinnedHost,    // the device copies from and to it without a detour; never paged out
  kPageableHost,  // ordinary memory
};
inline constexpr std::size_t kNumMemoryKinds = 3;

// "device", "pinned host", "pageable host".
std::string_view to_string(MemoryKind kind);

// Bytes of one kind of memory.
struct MemoryUsage {
  std::size_t committed_bytes = 0;
  std::size_t budget_bytes = 0;
};

// Memory, streams and events of one accelerator, or of the CPU in its place.
//
// Nothing above this room calls a vendor API. Backends: CpuDevice, on which
// streams are real queues with a thread each; SimDevice, which runs the same work in the most
// inconvenient order the declared dependencies allow.
//
// Invariants:
//   I1  committed bytes of a kind never exceed the budget that was set when they were committed.
// Ownership: outlives everything it hands out.
// Threads: as the backend says.
// Errors: kInvalidArgument for a size of zero, kResourceExhausted where the system has no
// address space, memory or thread left.
class Device {
 public:
  virtual ~Device() = default;
  Device() = default;
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  virtual std::string_view name() const = 0;

  // Addresses for `bytes`, rounded up to the grain, none of them backed. `grain_bytes` is a power
  // of two and a multiple of the system's page size.
  virtual Result<std::unique_ptr<Arena>> reserve_arena(MemoryKind kind, std::size_t bytes,
                                                       std::size_t grain_bytes) = 0;
  // For arenas of this kind that change together. Null where nothing is gained by it.
  virtual std::unique_ptr<Handover> make_handover(MemoryKind kind) = 0;
  virtual Result<std::unique_ptr<Stream>> make_stream(std::string name) = 0;
  // An event that is completed by hand; `waker` names who does it.
  virtual EventSource make_event(std::string waker) = 0;

  // Limits what may be committed from now on; what is committed already stays. A budget below it
  // refuses growth until arenas have shrunk.
  virtual void set_budget(MemoryKind kind, std::size_t bytes) = 0;
  virtual MemoryUsage usage(MemoryKind kind) const = 0;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_DEVICE_H_
