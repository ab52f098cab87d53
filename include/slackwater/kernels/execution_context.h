#ifndef SLACKWATER_KERNELS_EXECUTION_CONTEXT_H_
#define SLACKWATER_KERNELS_EXECUTION_CONTEXT_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"
#include "slackwater/base/thread_pool.h"
#include "slackwater/device/stream.h"
#include "slackwater/kernels/target.h"

namespace slackwater::kernels {

// What a kernel runs on: the threads, the form of the kernels, and scratch for each worker.
//
// Invariants:
//   I1  target() is one of runnable_targets().
//   I2  results never depend on the number of threads: a kernel splits its *output*, and the
//       order of every reduction depends on its length only (docs/numerics.md, row independence).
// Ownership: borrows the pool, which must outlive it; owns the scratch.
// Threads: one caller at a time; kernels use the pool's workers inside a call.
// Errors: none.
// Cost: scratch grows to the largest request ever made and is never given back, so that a
// warmed-up step allocates nothing.
class ExecutionContext {
 public:
  explicit ExecutionContext(ThreadPool& pool, Target target = best_target());
  ExecutionContext(const ExecutionContext&) = delete;
  ExecutionContext& operator=(const ExecutionContext&) = delete;

  Target target() const { return target_; }
  ThreadPool& pool() { return pool_; }
  int num_threads() const { return pool_.num_threads(); }

  // Runs function(range, worker) over [0, num_items), cut into one contiguous range per worker.
  // Fewer than two `grain`s of items run on the caller alone: a region costs more than they do.
  // Regions do not nest: they share the workers and their scratch.
  template <class Function>
  void parallel_for(std::int64_t num_items, std::int64_t grain, Function&& function) {
    const std::int64_t shares = std::max<std::int64_t>(1, num_items / grain);
    const int workers = static_cast<int>(std::min<std::int64_t>(num_threads(), shares));
    SLACKWATER_DCHECK(!is_inline_, "a region of {} items runs within a region", num_items);
    if (workers == 1) {
      is_inline_ = true;
      function(ItemRange{0, num_items}, 0);
      is_inline_ = false;
      return;
    }
    pool_.run([&](int worker) {
      if (worker >= workers) return;
      function(split_items(num_items, worker, workers), worker);
    });
  }

  // The second form, inside an engine: queues a whole forward step as one item of a stream. It runs
  // on the stream's thread, which is worker 0 then; the other workers spin for its whole length, so
  // that no kernel pays for a wake-up. Until it has ended the context is the step's. `step` returns
  // false where it failed.
  void enqueue(device::Stream& stream, std::function<bool(ExecutionContext&)> step);

  // Makes room for `bytes` of scratch for every worker. Before a region, never inside one.
  void reserve_scratch(std::size_t bytes);

  // The scratch of `worker`, 64-byte aligned, at least the bytes reserved. Contents are left
  // over from whoever used it last.
  std::span<std::byte> scratch(int worker);

 private:
  ThreadPool& pool_;
  Target target_;
  bool is_inline_ = false;                         // a region runs on the caller alone
  std::vector<AlignedBuffer<std::byte>> scratch_;  // [num_threads]
};

}  // namespace slackwater::kernels

#endif  // SLACKWATER_KERNELS_EXECUTION_CONTEXT_H_
