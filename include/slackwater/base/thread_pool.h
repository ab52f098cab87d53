#ifndef SLACKWATER_BASE_THREAD_POOL_H_
#define SLACKWATER_BASE_THREAD_POOL_H_

#include <cstdint>
#include <memory>
#include <thread>
#include <type_traits>
#include <vector>

namespace slackwater {

// Half-open range of items.
struct ItemRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;
};

// The share of worker `worker` of `num_items` items: contiguous, ascending, sizes differ by at
// most one, and a function of its arguments only. `num_items` >= 0, 0 <= `worker` < `num_workers`.
constexpr ItemRange split_items(std::int64_t num_items, int worker, int num_workers) {
  // floor(num_items * worker / num_workers), without a product that could overflow.
  const std::int64_t each = num_items / num_workers;
  const std::int64_t rest = num_items % num_workers;
  return {each * worker + rest * worker / num_workers,
          each * (worker + 1) + rest * (worker + 1) / num_workers};
}

// A fixed set of workers that run the same function side by side.
//
// The caller is worker 0; `num_threads - 1` threads belong to the pool. Between steps they park
// on a futex; while a Step is alive they spin, because a futex wake costs 5 us and a forward
// step has a hundred parallel regions. A spinning thread gives its core up after a while, so a
// machine with fewer cores than threads makes progress too. The caller waits for the end of a
// region in the same way, within a Step and without one.
//
// Invariants:
//   I1  every worker runs the function of a region exactly once, with its own number.
//   I2  what happens before run() is visible to all workers; what they did is visible after it.
//   I3  each pool thread runs in the fixed floating-point mode (FpModeGuard) for its whole life;
//       worker 0 runs in its caller's.
// Ownership: owns its threads; the destructor joins them.
// Threads: run() and Step are for one caller thread at a time; regions do not nest, and a Step
// neither begins nor ends within one (CHECK).
// Errors: std::system_error from the constructor where the system has no thread left, as from any
// thread; nothing stays behind. A function that throws terminates the process.
// Cost: run() allocates nothing; about 0.4 us within a Step where each thread has a core
// to itself, 4 us and more outside.
class ThreadPool {
 public:
  // `num_threads` >= 1, the caller included.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls `function(worker)` for every worker 0 .. num_threads - 1, and waits for all of them.
  template <class Function>
  void run(Function&& function) noexcept {
    using Callable = std::remove_reference_t<Function>;
    run_erased([](void* callee, int worker) { (*static_cast<Callable*>(callee))(worker); },
               const_cast<void*>(static_cast<const void*>(std::addressof(function))));
  }

  // While one is alive the workers spin between regions instead of parking. The first one wakes
  // them, so that they are up when the first region comes. Steps may nest.
  class Step {
   public:
    explicit Step(ThreadPool& pool);
    ~Step();
    Step(const Step&) = delete;
    Step& operator=(const Step&) = delete;

   private:
    ThreadPool& pool_;
  };

 private:
  using Erased = void (*)(void* callee, int worker);
  struct Shared;

  void run_erased(Erased function, void* callee) noexcept;
  void work(int worker) noexcept;
  void end_workers() noexcept;

  int num_threads_;
  std::unique_ptr<Shared> shared_;
  std::vector<std::thread> threads_;
};

}  // namespace slackwater

#endif  // SLACKWATER_BASE_THREAD_POOL_H_
