#include "testing/allocation_counter.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace slackwater {
namespace {

std::atomic<std::int64_t> allocations = 0;

void* count_and_allocate(std::size_t bytes, std::size_t alignment) {
  allocations.fetch_add(1, std::memory_order_relaxed);
  const std::size_t rounded = (std::max<std::size_t>(bytes, 1) + alignment - 1) / alignment;
  void* memory = std::aligned_alloc(alignment, rounded * alignment);
  if (memory == nullptr) std::abort();
  return memory;
}

}  // namespace

std::int64_t num_heap_allocations() { return allocations.load(std::memory_order_relaxed); }

}  // namespace slackwater

void* operator new(std::size_t bytes) {
  return slackwater::count_and_allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return slackwater::count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return slackwater::count_and_allocate(bytes, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new(std::size_t bytes, std::align_val_t alignment, const std::nothrow_t&) noexcept {
  return slackwater::count_and_allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
