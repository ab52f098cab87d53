#ifndef SLACKWATER_TESTING_FAULT_DISK_IO_H_
#define SLACKWATER_TESTING_FAULT_DISK_IO_H_

#include <cerrno>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "slackwater/storage/disk_io.h"

namespace slackwater::storage {

// What a bad disk does to one request.
enum class DiskFault : std::uint8_t {
  kNone,
  kShort,    // a part of the bytes, and says so
  kError,    // EIO, nothing transferred
  kNoSpace,  // ENOSPC, nothing transferred
  kStall,    // no answer before the deadline, ever
  kFlip,     // a read gives one wrong bit, a write stores one; neither says so
  kTorn,     // a write stores a part and does not say so
  kLost,     // a write stores nothing and does not say so
  kLate,     // no answer before the deadline, and the bytes move some transfers later
};
inline constexpr std::size_t kNumDiskFaults = 9;

// A disk that misbehaves on request.
class FaultDiskIo final : public DiskIo {
 public:
  // Asked once per request, numbered from 0.
  using Choose = std::function<DiskFault(std::int64_t index, const IoRequest& request)>;

  FaultDiskIo(std::unique_ptr<DiskIo> disk, Choose choose)
      : disk_(std::move(disk)), choose_(std::move(choose)) {}

  std::string_view name() const override { return "faults"; }

  // How many transfers a late one lets pass; without it, as it comes.
  void set_late_delay(int num_transfers) { late_delay_ = num_transfers; }

  void transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers,
                Nanoseconds timeout) override {
    std::erase_if(late_, [&](Late& late) {
      if (late.transfers_to_go-- > 0) return false;
      disk_->transfer(std::span(&late.request, 1), late.buffers, timeout);
      return true;
    });
    for (IoRequest& request : requests) {
      transfer_one(request, choose_(num_requests_++, request), buffers, timeout);
    }
  }

 private:
  // Keeps its memory, as a request in the kernel does.
  struct Late {
    IoRequest request;
    std::shared_ptr<void> buffers;
    int transfers_to_go = 0;
  };

  void transfer_one(IoRequest& request, DiskFault fault, const std::shared_ptr<void>& buffers,
                    Nanoseconds timeout) {
    const bool is_read = request.kind == IoRequest::Kind::kRead;
    // Somewhere in the request, a function of its number.
    const std::size_t place =
        static_cast<std::size_t>(num_requests_) * 2654435761u % request.buffer.size();
    std::byte& wrong = request.buffer[place];
    switch (fault) {
      case DiskFault::kError:
      case DiskFault::kNoSpace:
        request.status = IoStatus::kFailed;
        request.error_number = fault == DiskFault::kError ? EIO : ENOSPC;
        return;
      case DiskFault::kStall: request.status = IoStatus::kTimedOut; return;
      case DiskFault::kLate:
        request.status = IoStatus::kTimedOut;
        late_.push_back({request, buffers, late_delay_.value_or(static_cast<int>(place % 8))});
        return;
      case DiskFault::kLost: request.status = is_read ? IoStatus::kShort : IoStatus::kDone; return;
      case DiskFault::kShort:
      case DiskFault::kTorn: {
        IoRequest part = request;
        part.buffer = request.buffer.first(place);
        disk_->transfer(std::span(&part, 1), buffers, timeout);
        const bool tells = fault == DiskFault::kShort || is_read;
        request.status = tells ? IoStatus::kShort : IoStatus::kDone;
        return;
      }
      case DiskFault::kFlip:
        if (!is_read) wrong ^= std::byte{1};
        disk_->transfer(std::span(&request, 1), buffers, timeout);
        wrong ^= std::byte{1};
        return;
      case DiskFault::kNone: disk_->transfer(std::span(&request, 1), buffers, timeout); return;
    }
  }

  const std::unique_ptr<DiskIo> disk_;
  const Choose choose_;
  std::int64_t num_requests_ = 0;
  std::vector<Late> late_;
  std::optional<int> late_delay_;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_TESTING_FAULT_DISK_IO_H_
