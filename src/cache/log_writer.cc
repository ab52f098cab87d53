#include "cache/log_writer.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "slackwater/base/numeric.h"

namespace slackwater::cache {
namespace {

// By which the file grows: room that is asked for is there, so that no store can find the disk
// full.
constexpr std::size_t kStepBytes = 1 << 20;

std::string reason(int error) { return std::system_category().message(error); }

}  // namespace

LogWriter::LogWriter() : Witness(false), process_(::getpid()) {}

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
  cursor_ = end_ = limit_ = base_;
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
  // The copy of a process that was forked leaves the file to the other one.
  if (has_header_ && process_ == ::getpid()) {
    if (!is_stopped_) {
      header().end = static_cast<std::uint64_t>(cursor_ - base_);
      header().state = LogState::kClosed;
    }
    // What is left over at the end is zeros, and readers know where it ends.
    [[maybe_unused]] const int cut = ::ftruncate(file_, static_cast<off_t>(header().end));
  }
  if (file_ >= 0 && (!has_header_ || is_discarded_) && process_ == ::getpid())
    ::unlink(options_.path.c_str());
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
  int error = EINTR;
  while (error == EINTR) {
    error = ::posix_fallocate(file_, static_cast<off_t>(size), static_cast<off_t>(wanted - size));
  }
  if (error != 0) {
    stop(fmt::format("cannot grow beyond {} bytes: {}; calls from here on are not in it", size,
                     reason(error)));
    return false;
  }
  end_ = base_ + wanted;
  limit_ = end_ - kSpareBytes;
  return true;
}

// The log ends before the call that is being made.
void LogWriter::stop(std::string_view why) {
  is_stopped_ = true;
  if (has_header_) {
    // Without the call that is being made, if there is one.
    if (record_ != nullptr) cursor_ = std::exchange(record_, nullptr);
    header().end = static_cast<std::uint64_t>(cursor_ - base_);
    header().state = LogState::kFull;
  }
  end_ = cursor_;
  limit_ = end_ - kSpareBytes;  // as everywhere, so that nothing more fits
  if (options_.warn) {
    options_.warn(fmt::format("the operation log '{}' {}", options_.path.string(), why));
  }
}

// The same for any number of words.
std::byte* LogWriter::begin_many(std::uint64_t first, std::uint32_t value, std::size_t num_words) {
  if (num_words < kManyWords) return begin(first, value, num_words);
  std::byte* const at = begin(first, value, num_words + 1);
  if (at == nullptr) return nullptr;
  put_word(record_ + 8, std::uint64_t{kManyWords} << (32 + kWordsShift) | value);
  return put_word(at, num_words);
}

void LogWriter::start_tokens(std::uint64_t first, std::uint32_t value,
                             std::span<const TokenId> tokens) {
  std::byte* const at = begin_many(first, value, 1 + (tokens.size() + 1) / 2);
  if (at == nullptr) return;
  std::byte* const after = put_word(at, tokens.size());
  if (!tokens.empty()) std::memcpy(after, tokens.data(), tokens.size_bytes());
}

void LogWriter::note_resize(std::uint32_t subject, std::int16_t more, std::uint16_t done) {
  const std::uint64_t first =
      first_word(LoggedKind::kResizeWithin, subject) | std::uint64_t{kSucceeded} << 8;
  const std::uint64_t second = std::uint32_t{done} << 16 | static_cast<std::uint16_t>(more);
  const Turn turn(*this);
  if (cursor_ > limit_ && !extend(kSpareBytes)) return;
  const std::uint64_t check = check_.add(first, second);
  cursor_ = put_word(put_word(cursor_, first | check << 16), second);
  ++num_calls_;
}

void LogWriter::end(std::uint8_t outcome) {
  std::byte* const record = std::exchange(record_, nullptr);
  if (record == nullptr) return;
  const std::uint64_t first = LogCheck::word(record, 0) | std::uint64_t{outcome} << 8;
  std::uint64_t second = LogCheck::word(record, 8);
  std::uint64_t check = 0;
  if (cursor_ == record + sizeof(LogRecord)) {
    check = check_.add(first, second);
  } else {
    const auto num_answers = static_cast<std::uint64_t>(cursor_ - answers_);
    if (num_answers > kMostAnswers) {
      record_ = record;
      stop(fmt::format("has no room for the {} answers of a call; calls from here on are not in it",
                       num_answers));
      record_ = nullptr;
      return;
    }
    second |= num_answers << 32;
    // The file grows by whole words, so there is room for the padding.
    cursor_ = answers_ + (num_answers + 7) / 8 * 8;
    check =
        check_.add(first, second, std::span<const std::byte>(record + sizeof(LogRecord), cursor_));
  }
  // The word that says that it has returned comes last: what is there when it is, is whole.
  put_word(record + 8, second);
  std::atomic_signal_fence(std::memory_order_release);
  put_word(record, first | check << 16);
  ++num_calls_;
}

// Whoever waits says so, and whoever leaves wakes one.
void LogWriter::wait_for_turn() const {
  while (turn_.exchange(kWanted) != kFree) turn_.wait(kWanted);
}

void LogWriter::wake_next() const { turn_.notify_one(); }

void LogWriter::note_large(std::uint64_t answer) {
  while (answer >= 0x40) {
    put(static_cast<std::uint8_t>(0xC0 | (answer & 0x3F)));
    answer >>= 6;
  }
  put(static_cast<std::uint8_t>(0x80 | answer));
}

std::uint64_t LogWriter::number_of_known(const device::Event& event) {
  for (std::size_t i = 0; i < kNumEvents; ++i) {
    if (events_[(latest_ + kNumEvents - i) % kNumEvents] == event) return 2 + i;
  }
  latest_ = (latest_ + 1) % kNumEvents;
  events_[latest_] = event;
  return 1;
}

}  // namespace slackwater::cache
