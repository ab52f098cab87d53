#ifndef SLACKWATER_CACHE_RECYCLING_MEMORY_H_
#define SLACKWATER_CACHE_RECYCLING_MEMORY_H_

#include <array>
#include <bit>
#include <cstddef>
#include <memory_resource>
#include <new>

namespace slackwater::cache {

// Memory for what grows and goes all the time: what is given back is kept, by size, for whoever
// wants as much. The pools of the standard library look for the chunk of every block that comes
// back, and keep chunks twice as large as what they are used for.
//
// Invariants:
//   I1  a block is in use, or in the list of its size, which is a power of two.
// Ownership: owns what has been given back; what is in use must be given back before it ends.
// Threads: one.
// Errors: std::bad_alloc.
// Cost: O(1); the heap only where no block of the size has been given back.
class RecyclingMemory final : public std::pmr::memory_resource {
 public:
  RecyclingMemory() = default;
  RecyclingMemory(const RecyclingMemory&) = delete;
  RecyclingMemory& operator=(const RecyclingMemory&) = delete;
  ~RecyclingMemory() override {
    for (Block* block : free_) {
      while (block != nullptr) {
        Block* const next = block->next;
        ::operator delete(block);
        block = next;
      }
    }
  }

 private:
  struct Block {
    Block* next;
  };

  static std::size_t size_class(std::size_t bytes) {
    return static_cast<std::size_t>(
        std::bit_width((bytes < sizeof(Block) ? sizeof(Block) : bytes) - 1));
  }

  void* do_allocate(std::size_t bytes, std::size_t alignment) override {
    if (alignment > __STDCPP_DEFAULT_NEW_ALIGNMENT__) throw std::bad_alloc();
    Block*& first = free_[size_class(bytes)];
    if (first == nullptr) return ::operator new (std::size_t{1} << size_class(bytes));
    Block* const block = first;
    first = block->next;
    return block;
  }
  void do_deallocate(void* block, std::size_t bytes, std::size_t) override {
    Block*& first = free_[size_class(bytes)];
    first = new (block) Block{first};
  }
  bool do_is_equal(const std::pmr::memory_resource& other) const noexcept override {
    return this == &other;
  }

  std::array<Block*, 64> free_ = {};  // by size class
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_RECYCLING_MEMORY_H_
