#ifndef SLACKWATER_DEVICE_CPU_DEVICE_H_
#define SLACKWATER_DEVICE_CPU_DEVICE_H_

#include <cstddef>
#include <limits>
#include <memory>

#include "slackwater/device/device.h"

namespace slackwater::device {

struct CpuDeviceOptions {
  // Budgets, in bytes. "Device memory" is host memory with a budget of its own.
  std::size_t device_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t pinned_host_bytes = std::numeric_limits<std::size_t>::max();
  std::size_t pageable_host_bytes = std::numeric_limits<std::size_t>::max();
};

// The CPU in the place of an accelerator. Streams are real queues, each with a thread of its own
// that runs in the fixed floating-point mode, so that an ordering mistake is a real one. All
// kinds of memory are anonymous mappings on huge pages where the system has them; a copy is a
// memcpy per piece. May be used from any thread.
std::unique_ptr<Device> make_cpu_device(const CpuDeviceOptions& options = {});

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_CPU_DEVICE_H_
