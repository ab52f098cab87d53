#include "slackwater/base/thread_pool.h"

#include <atomic>
#include <cstddef>

#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"

namespace slackwater {
namespace {

// Two cache lines: adjacent lines are fetched in pairs by the usual prefetchers.
constexpr std::size_t kNoSharing = 128;

// Pauses, of some 25 ns, before a waiting thread begins to yield.
//
// Experiment, 2 threads on 2 cores of a busy Zen 3, medians of 100 empty regions in a row. With a
// core for each thread a region takes 0.4 us for every count from 16 to 4096, and 0.5 us (256 and
// more) or 0.8 us (32, 64) after 2 us of serial work: a yield on a free core costs little. With
// both threads on one core it takes 3.3 us (0), 5 us (32), 7 us (64), 10 us (128), 17 us (256)
// and 60 us (1024): every pause is taken from the thread that is waited for.
constexpr int kMaxPauses = 64;

// The signal word. One variable says all there is to know, so that a worker never combines two
// values that do not belong together, and can sleep on the very word it has judged.
//   bit 0      a Step is alive: spin
//   bit 1      the pool is going away: leave
//   bits 2-31  regions published so far, modulo 2^30; a worker takes part in every region, so
//              it is never more than one behind
constexpr std::uint32_t kStepping = 1;
constexpr std::uint32_t kStopping = 2;
constexpr std::uint32_t kRegion = 4;

constexpr bool same_region(std::uint32_t a, std::uint32_t b) { return a / kRegion == b / kRegion; }

void pause_core() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  // `yield` is a no-operation on most cores; `isb` costs about what the x86 pause does.
  asm volatile("isb" : : : "memory");
#endif
}

// Waits a little, and a little more politely each time.
class Backoff {
 public:
  explicit Backoff(int max_pauses) : max_pauses_(max_pauses) {}

  void wait_once() {
    if (num_pauses_ < max_pauses_) {
      ++num_pauses_;
      pause_core();
    } else {
      std::this_thread::yield();
    }
  }

 private:
  int max_pauses_;
  int num_pauses_ = 0;
};

// Whoever a thread with no core of its own waits for needs the core it waits on.
int choose_max_pauses(int num_threads) {
  const auto num_cores = static_cast<int>(std::thread::hardware_concurrency());
  return num_threads <= num_cores ? kMaxPauses : 0;
}

}  // namespace

// What the threads share, by who writes it.
struct ThreadPool::Shared {
  explicit Shared(int pauses) : max_pauses(pauses) {}

  // Written by the caller, read by all workers. `function` and `callee` are plain: they are
  // written before the release of `signal` that publishes a region, and not again before every
  // worker's arrival has been acquired.
  alignas(kNoSharing) std::atomic<std::uint32_t> signal{0};
  Erased function = nullptr;
  void* callee = nullptr;
  const int max_pauses;

  // Written by the workers: regions they have finished, summed, modulo 2^32. It only counts up:
  // a reset would be one more transfer of this line before each region.
  alignas(kNoSharing) std::atomic<std::uint32_t> arrivals{0};

  // The caller's own. `in_region` is atomic because a worker that nests by mistake reads it.
  alignas(kNoSharing) std::atomic<bool> in_region{false};
  std::uint32_t expected_arrivals = 0;
  int step_depth = 0;

  // Waits for a region after the one of `seen`, or for the end; returns the signal that says so.
  std::uint32_t await_signal(std::uint32_t seen) const {
    Backoff backoff(max_pauses);
    std::uint32_t current = signal.load(std::memory_order_acquire);
    while (same_region(current, seen) && (current & kStopping) == 0) {
      if ((current & kStepping) != 0) {
        backoff.wait_once();
      } else {
        signal.wait(current, std::memory_order_acquire);
      }
      current = signal.load(std::memory_order_acquire);
    }
    return current;
  }

  // A change of `signal` that parked workers must see. Sequentially consistent, as is the count
  // of sleepers that notify_all() looks at: either it sees the sleeper or the sleeper this value.
  void announce(std::uint32_t value) {
    signal.store(value, std::memory_order_seq_cst);
    signal.notify_all();
  }

  // Only the caller writes `signal`, so it knows what it wrote.
  std::uint32_t own_signal() const { return signal.load(std::memory_order_relaxed); }

  void publish(Erased new_function, void* new_callee) {
    function = new_function;
    callee = new_callee;
    const std::uint32_t next = own_signal() + kRegion;
    // No one parks while a Step is alive: whoever slept when it began has been notified, and a
    // sleep on an older value is refused.
    if ((next & kStepping) != 0) {
      signal.store(next, std::memory_order_release);
    } else {
      announce(next);
    }
  }

  void await_arrivals() const {
    Backoff backoff(max_pauses);
    while (arrivals.load(std::memory_order_acquire) != expected_arrivals) backoff.wait_once();
  }

  bool is_in_region() const { return in_region.load(std::memory_order_relaxed); }
};

ThreadPool::ThreadPool(int num_threads) : num_threads_(num_threads) {
  SLACKWATER_CHECK(num_threads >= 1, "{} threads", num_threads);
  shared_ = std::make_unique<Shared>(choose_max_pauses(num_threads));
  threads_.reserve(static_cast<std::size_t>(num_threads - 1));
  try {
    for (int worker = 1; worker < num_threads; ++worker) {
      threads_.emplace_back([this, worker] { work(worker); });
    }
  } catch (...) {
    end_workers();
    throw;
  }
}

ThreadPool::~ThreadPool() {
  SLACKWATER_CHECK(!shared_->is_in_region(), "the pool ends within a region");
  SLACKWATER_CHECK(shared_->step_depth == 0, "the pool ends within {} steps", shared_->step_depth);
  end_workers();
}

void ThreadPool::end_workers() noexcept {
  shared_->announce(shared_->own_signal() | kStopping);
  for (std::thread& thread : threads_) thread.join();
}

void ThreadPool::run_erased(Erased function, void* callee) noexcept {
  Shared& shared = *shared_;
  SLACKWATER_CHECK(!shared.is_in_region(), "a region of {} workers runs within a region",
                   num_threads_);
  shared.in_region.store(true, std::memory_order_relaxed);
  if (num_threads_ == 1) {
    function(callee, 0);
  } else {
    shared.expected_arrivals += static_cast<std::uint32_t>(num_threads_ - 1);
    shared.publish(function, callee);
    function(callee, 0);
    shared.await_arrivals();
  }
  shared.in_region.store(false, std::memory_order_relaxed);
}

void ThreadPool::work(int worker) noexcept {
  const FpModeGuard fp_mode;
  Shared& shared = *shared_;
  std::uint32_t seen = 0;
  while (true) {
    seen = shared.await_signal(seen);
    if ((seen & kStopping) != 0) return;
    shared.function(shared.callee, worker);
    // Releases what this worker did; the caller acquires the sum, and with it every share.
    shared.arrivals.fetch_add(1, std::memory_order_release);
  }
}

ThreadPool::Step::Step(ThreadPool& pool) : pool_(pool) {
  Shared& shared = *pool_.shared_;
  SLACKWATER_CHECK(!shared.is_in_region(), "a step begins within a region");
  if (shared.step_depth++ == 0) shared.announce(shared.own_signal() | kStepping);
}

ThreadPool::Step::~Step() {
  Shared& shared = *pool_.shared_;
  SLACKWATER_CHECK(!shared.is_in_region(), "a step ends within a region");
  // No notification: the workers are awake and look at the word before they park on it.
  if (--shared.step_depth == 0) {
    shared.signal.store(shared.own_signal() & ~kStepping, std::memory_order_release);
  }
}

}  // namespace slackwater
