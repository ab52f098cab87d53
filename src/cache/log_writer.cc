#include "cache/log_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "slackwater/base/numeric.h"

namespace slackwater::cache {
namespace {

// By which the file grows: room that is asked for is there, so that no store can find the disk
// full.
constexpr std::size_t kStepBytes = 1 << 20;

std::string reason(int error) { return std::system_category().message(error); }

}  // namespace

Result<std::unique_ptr<LogWriter>> LogWriter::create(const OperationLogOptions& options,
                                                     std::string_view config) {
  std::unique_ptr<LogWriter> log(new LogWriter());
  SLACKWATER_RETURN_IF_ERROR(log->open(options, config));
  return log;
}

Result<void> LogWriter::open(const OperationLogOptions& options, std::string_view config) {
  options_ = options;
  const std::string name = options.path.string();
  file_ = ::open(name.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
  if (file_ < 0 && errno == EEXIST) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "the operation log '{}' is there already; move it away", name);
  }
  if (file_ < 0) {
    return make_error(ErrorCode::kUnavailable, "cannot make the operation log '{}': {}", name,
                      reason(errno));
  }
  const std::size_t first =
      round_up<std::size_t>(sizeof(LogHeader) + config.size(), sizeof(std::uint64_t));
  max_bytes_ = round_up<std::size_t>(std::max(static_cast<std::size_t>(options.max_bytes), first),
                                     kStepBytes);
  void* const mapped = ::mmap(nullptr, max_bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
  if (mapped == MAP_FAILED) {
    return make_error(ErrorCode::kUnavailable, "cannot map the operation log '{}' of {} bytes: {}",
                      name, max_bytes_, reason(errno));
  }
  base_ = static_cast<std::byte*>(mapped);
  cursor_ = end_ = base_;
  if (!extend(first)) {
    return make_error(ErrorCode::kUnavailable, "no room on disk for the operation log '{}'", name);
  }
  has_header_ = true;
  LogHeader& front = header();
  std::copy(std::begin(kLogMagic), std::end(kLogMagic), front.magic);
  front.version = kLogVersion;
  front.config_bytes = config.size();
  front.first_record = first;
  front.checksum = xxh3_128(std::as_bytes(std::span(config))).low;
  std::memcpy(base_ + sizeof(LogHeader), config.data(), config.size());
  cursor_ = base_ + first;
  return {};
}

LogWriter::~LogWriter() {
  if (has_header_) {
    if (!is_stopped_) {
      header().end = static_cast<std::uint64_t>(cursor_ - base_);
      header().state = LogState::kClosed;
    }
    // What is left over at the end is zeros, and readers know where it ends.
    [[maybe_unused]] const int cut = ::ftruncate(file_, static_cast<off_t>(header().end));
  }
  if (file_ >= 0 && (!has_header_ || is_discarded_)) ::unlink(options_.path.c_str());
  if (base_ != nullptr) ::munmap(base_, max_bytes_);
  if (file_ >= 0) ::close(file_);
}

// Room for so many bytes past the cursor. False when the log has ended.
bool LogWriter::extend(std::size_t bytes) {
  if (is_stopped_) return false;
  const auto size = static_cast<std::size_t>(end_ - base_);
  const std::size_t wanted =
      round_up(static_cast<std::size_t>(cursor_ - base_) + bytes, kStepBytes);
  if (wanted > max_bytes_) {
    stop(fmt::format("has its {} bytes; calls from here on are not in it", max_bytes_));
    return false;
  }
  const int error =
      ::posix_fallocate(file_, static_cast<off_t>(size), static_cast<off_t>(wanted - size));
  if (error != 0) {
    stop(fmt::format("cannot grow beyond {} bytes: {}; calls from here on are not in it", size,
                     reason(error)));
    return false;
  }
  end_ = base_ + wanted;
  return true;
}

// The log ends before the call that is being made.
void LogWriter::stop(std::string_view why) {
  is_stopped_ = true;
  if (has_header_) {
    // Without the call that is being made, if there is one.
    if (record_ != nullptr) cursor_ = record_;
    header().end = static_cast<std::uint64_t>(cursor_ - base_);
    header().state = LogState::kFull;
  }
  end_ = cursor_;
  if (options_.warn) {
    options_.warn(fmt::format("the operation log '{}' {}", options_.path.string(), why));
  }
}

void LogWriter::end(std::uint8_t outcome) {
  if (record_ == nullptr || is_stopped_) return;
  const auto num_answers = static_cast<std::size_t>(cursor_ - answers_);
  cursor_ = answers_ + (num_answers + 7) / 8 * 8;
  if (cursor_ > end_ && !extend(0)) return;
  LogRecord record;
  std::memcpy(&record, record_, sizeof record);
  record.outcome = outcome;
  record.num_answers = static_cast<std::uint32_t>(num_answers);
  record.check = check_.add(record, std::span<const std::byte>(record_ + sizeof record, cursor_));
  std::memcpy(record_, &record, sizeof record);
  record_ = nullptr;
  count_call();
}

void LogWriter::wait_for_turn() {
  ++num_waiting_;
  while (is_busy_.exchange(1) != 0) is_busy_.wait(1);
  --num_waiting_;
}

void LogWriter::note_large(std::uint64_t answer) {
  while (answer >= 0x40) {
    put(static_cast<std::uint8_t>(0xC0 | (answer & 0x3F)));
    answer >>= 6;
  }
  put(static_cast<std::uint8_t>(0x80 | answer));
}

std::uint64_t LogWriter::number_of(const device::Event& event) {
  if (event.is_null()) return 0;
  for (std::size_t i = 0; i < kNumEvents; ++i) {
    if (events_[(latest_ + kNumEvents - i) % kNumEvents] == event) return 2 + i;
  }
  latest_ = (latest_ + 1) % kNumEvents;
  events_[latest_] = event;
  return 1;
}

}  // namespace slackwater::cache
