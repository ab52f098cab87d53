#ifndef SLACKWATER_STORAGE_DISK_IO_H_
#define SLACKWATER_STORAGE_DISK_IO_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/error.h"

namespace slackwater::storage {

enum class IoStatus : std::uint8_t {
  kDone,      // all bytes
  kShort,     // fewer: the file ends before them, or the disk took no more
  kFailed,    // see error_number
  kTimedOut,  // not finished when the deadline passed; it may still touch the buffer
};

// One read or write of a whole number of bytes at an offset, and what became of it.
struct IoRequest {
  enum class Kind : std::uint8_t { kRead, kWrite };

  Kind kind = Kind::kRead;
  int file = -1;
  std::uint64_t offset = 0;
  std::span<std::byte> buffer;

  IoStatus status = IoStatus::kTimedOut;
  int error_number = 0;  // errno, with kFailed
};

// Reads and writes files, many at a time.
//
// Invariants:
//   I1  a request is transferred completely, or its status says that it was not.
//   I2  transfer() returns by its deadline, even when the disk never answers. What has not
//       finished then keeps `buffers` alive until it has.
// Ownership: shares `buffers` with requests that outlive their deadline.
// Threads: one transfer at a time.
// Errors: per request; a transfer as a whole does not fail.
class DiskIo {
 public:
  virtual ~DiskIo() = default;

  // "io_uring", "threads", "direct calls".
  virtual std::string_view name() const = 0;

  // Blocks until all requests have ended or `timeout` has passed. `buffers` owns the memory of all
  // request buffers.
  virtual void transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers,
                        Nanoseconds timeout) = 0;
};

// On the calling thread, one request after another. It cannot time out.
std::unique_ptr<DiskIo> make_blocking_disk_io();

// On threads of its own. The destructor leaves threads behind that the disk does not answer.
std::unique_ptr<DiskIo> make_threaded_disk_io(int num_threads);

// By io_uring, `depth` requests at a time. kUnavailable where the kernel or a sandbox has none.
Result<std::unique_ptr<DiskIo>> make_uring_disk_io(unsigned depth);

// io_uring where it works, else threads.
std::unique_ptr<DiskIo> make_best_disk_io();

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_DISK_IO_H_
