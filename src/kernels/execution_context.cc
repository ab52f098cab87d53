#include "slackwater/kernels/execution_context.h"

#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::kernels {

ExecutionContext::ExecutionContext(ThreadPool& pool, Target target)
    : pool_(pool), target_(target), scratch_(static_cast<std::size_t>(pool.num_threads())) {
  SLACKWATER_CHECK(std::ranges::count(runnable_targets(), target) == 1, "target {} cannot run here",
                   to_string(target));
}

void ExecutionContext::enqueue(device::Stream& stream,
                               std::function<bool(ExecutionContext&)> step) {
  stream.run([this, step = std::move(step)] {
    const ThreadPool::Step spinning(pool_);
    return step(*this);
  });
}

void ExecutionContext::reserve_scratch(std::size_t bytes) {
  for (AlignedBuffer<std::byte>& buffer : scratch_) {
    if (buffer.size() < bytes) buffer = AlignedBuffer<std::byte>(bytes);
  }
}

std::span<std::byte> ExecutionContext::scratch(int worker) {
  return scratch_[static_cast<std::size_t>(worker)].span();
}

}  // namespace slackwater::kernels
