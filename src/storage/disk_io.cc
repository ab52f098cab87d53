#include "slackwater/storage/disk_io.h"

#include <liburing.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "slackwater/base/check.h"
#include "storage/log.h"

namespace slackwater::storage {
namespace {

using SteadyTime = std::chrono::steady_clock::time_point;

// Transfers all of a request, whatever the kernel cuts it into.
void transfer_one(IoRequest& request) {
  std::size_t done = 0;
  while (done < request.buffer.size()) {
    std::byte* const at = request.buffer.data() + done;
    const std::size_t left = request.buffer.size() - done;
    const auto offset = static_cast<off_t>(request.offset + done);
    const ssize_t count = request.kind == IoRequest::Kind::kRead
                              ? ::pread(request.file, at, left, offset)
                              : ::pwrite(request.file, at, left, offset);
    if (count > 0) {
      done += static_cast<std::size_t>(count);
    } else if (count == 0) {
      request.status = IoStatus::kShort;
      return;
    } else if (errno != EINTR) {
      request.status = IoStatus::kFailed;
      request.error_number = errno;
      return;
    }
  }
  request.status = IoStatus::kDone;
}

class BlockingDiskIo final : public DiskIo {
 public:
  std::string_view name() const override { return "direct calls"; }

  void transfer(std::span<IoRequest> requests, const std::shared_ptr<void>&, Nanoseconds) override {
    for (IoRequest& request : requests) transfer_one(request);
  }
};

// What the threads of a ThreadedDiskIo share, and outlives it while one of them is stuck.
struct IoQueue {
  // One transfer: a copy of its requests, so that a late answer finds its place.
  struct Batch {
    std::vector<IoRequest> requests;
    std::shared_ptr<void> buffers;
    std::size_t num_taken = 0;
    std::size_t num_ended = 0;
  };

  std::mutex mutex;
  std::condition_variable has_work;
  std::condition_variable has_result;
  std::deque<std::shared_ptr<Batch>> batches;
  int num_busy = 0;
  bool is_closing = false;

  void work() {
    std::unique_lock lock(mutex);
    while (true) {
      has_work.wait(lock, [&] { return is_closing || !batches.empty(); });
      if (is_closing) return;
      const std::shared_ptr<Batch> batch = batches.front();
      IoRequest request = batch->requests[batch->num_taken];
      if (++batch->num_taken == batch->requests.size()) batches.pop_front();
      const std::size_t index = batch->num_taken - 1;
      ++num_busy;
      lock.unlock();
      transfer_one(request);
      lock.lock();
      --num_busy;
      batch->requests[index] = request;
      ++batch->num_ended;
      has_result.notify_all();
    }
  }
};

class ThreadedDiskIo final : public DiskIo {
 public:
  explicit ThreadedDiskIo(int num_threads) : queue_(std::make_shared<IoQueue>()) {
    SLACKWATER_CHECK(num_threads >= 1, "{} threads", num_threads);
    // Fewer threads than asked for are slower, and that is all.
    try {
      for (int i = 0; i < num_threads; ++i) {
        threads_.emplace_back([queue = queue_] { queue->work(); });
      }
    } catch (const std::system_error&) {
      if (threads_.empty()) log_warning("no thread for the disk: its pages will be misses");
    }
  }

  ~ThreadedDiskIo() override {
    bool is_stuck = false;
    {
      const std::scoped_lock lock(queue_->mutex);
      queue_->is_closing = true;
      is_stuck = queue_->num_busy > 0;
    }
    queue_->has_work.notify_all();
    // A thread whose request never ends is left to itself; it shares all it touches.
    for (std::thread& thread : threads_) is_stuck ? thread.detach() : thread.join();
  }

  std::string_view name() const override { return "threads"; }

  void transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers,
                Nanoseconds timeout) override {
    if (requests.empty()) return;
    const auto batch = std::make_shared<IoQueue::Batch>();
    batch->requests.assign(requests.begin(), requests.end());
    for (IoRequest& request : batch->requests) request.status = IoStatus::kTimedOut;
    batch->buffers = buffers;
    std::unique_lock lock(queue_->mutex);
    queue_->batches.push_back(batch);
    queue_->has_work.notify_all();
    queue_->has_result.wait_for(lock, timeout,
                                [&] { return batch->num_ended == batch->requests.size(); });
    // What nobody has begun is not begun any more.
    std::erase(queue_->batches, batch);
    std::copy(batch->requests.begin(), batch->requests.end(), requests.begin());
  }

 private:
  const std::shared_ptr<IoQueue> queue_;
  std::vector<std::thread> threads_;
};

// Owners of memory that the kernel may write to until the process ends.
void keep_for_ever(std::shared_ptr<void> owner) {
  static std::mutex mutex;
  static auto* const owners = new std::vector<std::shared_ptr<void>>();
  const std::scoped_lock lock(mutex);
  owners->push_back(std::move(owner));
}

// One ring. A request is in it until its answer is reaped, in its own transfer or, late, in
// another.
class UringDiskIo final : public DiskIo {
 public:
  static Result<std::unique_ptr<DiskIo>> make(unsigned depth) {
    std::unique_ptr<UringDiskIo> io(new UringDiskIo(depth));
    if (const int error = ::io_uring_queue_init(depth, &io->ring_, 0); error != 0) {
      return make_error(ErrorCode::kUnavailable, "no io_uring: {}", std::strerror(-error));
    }
    io->has_ring_ = true;
    return io;
  }

  ~UringDiskIo() override {
    if (!has_ring_) return;
    // Buffers of requests that never ended stay: the kernel may still write to them.
    for (Flight& flight : flights_) {
      if (flight.is_used) keep_for_ever(std::move(flight.buffers));
    }
    ::io_uring_queue_exit(&ring_);
  }

  std::string_view name() const override { return "io_uring"; }

  void transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers,
                Nanoseconds timeout) override {
    const SteadyTime deadline = std::chrono::steady_clock::now() + timeout;
    requests_ = requests;
    for (IoRequest& request : requests) {
      request.status = is_broken_ ? IoStatus::kFailed : IoStatus::kTimedOut;
      request.error_number = is_broken_ ? EIO : 0;
    }
    if (is_broken_) return;
    std::size_t num_started = 0;
    num_open_ = requests.size();
    while (num_open_ > 0) {
      while (num_started < requests.size() && start(num_started, 0, buffers)) ++num_started;
      if (!reap_one(deadline)) break;
    }
    // Late answers belong to nobody.
    for (Flight& flight : flights_) flight.request = kNobody;
  }

 private:
  static constexpr int kMostSubmits = 100;
  static constexpr std::size_t kNobody = static_cast<std::size_t>(-1);

  struct Flight {
    bool is_used = false;
    std::size_t request = kNobody;  // of the transfer under way
    std::size_t done_before = 0;    // bytes of it that earlier submissions transferred
    std::shared_ptr<void> buffers;
  };

  explicit UringDiskIo(unsigned depth) : flights_(depth) {}

  // Submits what is left of a request after `done` bytes. False when the ring is full.
  bool start(std::size_t index, std::size_t done, const std::shared_ptr<void>& buffers) {
    const auto free = std::find_if(flights_.begin(), flights_.end(),
                                   [](const Flight& flight) { return !flight.is_used; });
    if (free == flights_.end()) return false;
    io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
    if (entry == nullptr) return false;
    const IoRequest& request = requests_[index];
    std::byte* const at = request.buffer.data() + done;
    const auto left = static_cast<unsigned>(
        std::min<std::size_t>(request.buffer.size() - done, std::size_t{1} << 30));
    if (request.kind == IoRequest::Kind::kRead) {
      ::io_uring_prep_read(entry, request.file, at, left, request.offset + done);
    } else {
      ::io_uring_prep_write(entry, request.file, at, left, request.offset + done);
    }
    *free = {true, index, done, buffers};
    ::io_uring_sqe_set_data64(entry, static_cast<std::uint64_t>(free - flights_.begin()));
    // What the kernel does not take now would be begun by a later transfer, when its file may be
    // gone. Such a ring is not used again.
    for (int tries = 0; ::io_uring_submit(&ring_) < 1; ++tries) {
      if (tries == kMostSubmits) {
        is_broken_ = true;
        break;
      }
    }
    return true;
  }

  // Waits for one answer and files it. False at the deadline.
  bool reap_one(SteadyTime deadline) {
    io_uring_cqe* answer = nullptr;
    while (true) {
      const auto left = std::chrono::duration_cast<Nanoseconds>(
          std::max(deadline - std::chrono::steady_clock::now(), SteadyTime::duration::zero()));
      __kernel_timespec wait = {left.count() / 1'000'000'000, left.count() % 1'000'000'000};
      const int error = ::io_uring_wait_cqe_timeout(&ring_, &answer, &wait);
      if (error == 0) break;
      if (error != -EINTR && error != -EAGAIN) return false;
    }
    Flight& flight = flights_[static_cast<std::size_t>(::io_uring_cqe_get_data64(answer))];
    const int result = answer->res;
    ::io_uring_cqe_seen(&ring_, answer);
    const Flight landed = std::exchange(flight, Flight());
    if (landed.request != kNobody) file(landed, result);
    return true;
  }

  void file(const Flight& landed, int result) {
    IoRequest& request = requests_[landed.request];
    const std::size_t done = landed.done_before + static_cast<std::size_t>(std::max(result, 0));
    const bool goes_on =
        result == -EINTR || result == -EAGAIN || (result > 0 && done < request.buffer.size());
    if (goes_on && start(landed.request, done, landed.buffers)) return;
    --num_open_;
    if (result < 0) {
      request.status = IoStatus::kFailed;
      request.error_number = -result;
    } else {
      request.status = done == request.buffer.size() ? IoStatus::kDone : IoStatus::kShort;
    }
  }

  io_uring ring_ = {};
  bool has_ring_ = false;
  bool is_broken_ = false;
  std::vector<Flight> flights_;  // [depth]
  std::span<IoRequest> requests_;
  std::size_t num_open_ = 0;
};

}  // namespace

std::unique_ptr<DiskIo> make_blocking_disk_io() { return std::make_unique<BlockingDiskIo>(); }

std::unique_ptr<DiskIo> make_threaded_disk_io(int num_threads) {
  return std::make_unique<ThreadedDiskIo>(num_threads);
}

Result<std::unique_ptr<DiskIo>> make_uring_disk_io(unsigned depth) {
  SLACKWATER_CHECK(depth >= 1, "depth {}", depth);
  return UringDiskIo::make(depth);
}

std::unique_ptr<DiskIo> make_best_disk_io() {
  // Deeper queues add latency for large blocks and gain nothing; fewer leave the disk idle.
  constexpr unsigned kDepth = 8;
  constexpr int kThreads = 4;
  auto uring = make_uring_disk_io(kDepth);
  return uring.has_value() ? *std::move(uring) : make_threaded_disk_io(kThreads);
}

}  // namespace slackwater::storage
