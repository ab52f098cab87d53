#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>

#include <fmt/format.h>

#include "cache/log_format.h"
#include "slackwater/base/numeric.h"
#include "slackwater/cache/operation_log.h"

namespace slackwater::cache {
namespace {

struct KindName {
  std::string_view name;
  bool is_about_sequence = false;
};

constexpr std::array<KindName, kNumLoggedKinds> kKinds = {{
    {""},
    {"opening"},
    {"create", true},
    {"resume", true},
    {"suspend", true},
    {"close", true},
    {"resize", true},
    {"commit", true},
    {"stop_committing", true},
    {"reserve_snapshot", true},
    {"cancel_snapshot", true},
    {"set_index_table", true},
    {"clear_reusable_blocks"},
    {"shutdown"},
    {"set_quota"},
    {"token digest"},
    {"resize", true},
    {"adjust"},
    {"prefetch", true},
    {"prefetch of a prompt"},
    {"plan_drop", true},
    {"drop"},
    {"commit_statistics", true},
    {"discard_statistics", true},
    {"commit", true},
    {"take_statistics"},
    {"trim", true},
}};

// Bytes of a file that may be anything, in one line.
std::string printable(std::string_view bytes) {
  std::string text(bytes);
  std::replace_if(
      text.begin(), text.end(), [](char c) { return c < 0x20 || c > 0x7E; }, '?');
  return text;
}

}  // namespace

std::string_view to_string(LoggedKind kind) {
  const auto index = static_cast<std::size_t>(kind);
  return index < kKinds.size() ? kKinds[index].name : "unknown";
}

std::string LoggedCall::describe() const {
  return kKinds[static_cast<std::size_t>(kind)].is_about_sequence
             ? fmt::format("call {}, {} of sequence {} at offset {}", number, to_string(kind),
                           subject, offset)
             : fmt::format("call {}, {} at offset {}", number, to_string(kind), offset);
}

Result<std::unique_ptr<LogReader>> LogReader::open(const std::filesystem::path& path) {
  std::unique_ptr<LogReader> log(new LogReader());
  log->name_ = path.string();
  const int file = ::open(log->name_.c_str(), O_RDONLY | O_CLOEXEC);
  const auto reason = [] { return std::system_category().message(errno); };
  if (file < 0) {
    return make_error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kUnavailable,
                      "cannot open the operation log '{}': {}", log->name_, reason());
  }
  struct ::stat status = {};
  void* mapped = MAP_FAILED;
  const bool is_file = ::fstat(file, &status) == 0 && S_ISREG(status.st_mode);
  const auto size = static_cast<std::size_t>(is_file ? status.st_size : 0);
  if (size > 0) mapped = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file, 0);
  ::close(file);
  if (mapped != MAP_FAILED) log->file_ = {static_cast<const std::byte*>(mapped), size};
  SLACKWATER_RETURN_IF_ERROR(log->read_header());
  return log;
}

LogReader::~LogReader() {
  if (!file_.empty()) {
    ::munmap(const_cast<std::byte*>(file_.data()), file_.size());
  }
}

tl::unexpected<Error> LogReader::damaged(std::string_view what) const {
  return make_error(ErrorCode::kDataLoss, "the operation log '{}' {} at offset {}", name_, what,
                    offset_);
}

Result<void> LogReader::read_header() {
  LogHeader header;
  if (file_.size() < sizeof header) {
    return make_error(ErrorCode::kDataLoss,
                      "'{}' of {} bytes is no operation log, or cut at its end", name_,
                      file_.size());
  }
  std::memcpy(&header, file_.data(), sizeof header);
  if (std::memcmp(header.magic, kLogMagic, sizeof kLogMagic) != 0) {
    return make_error(ErrorCode::kDataLoss, "'{}' is no operation log: at offset 0 it says '{}'",
                      name_, printable({header.magic, sizeof header.magic}));
  }
  if (header.version != kLogVersion) {
    return make_error(ErrorCode::kUnimplemented,
                      "the operation log '{}' has version {} at offset 8; this program reads {}",
                      name_, header.version, kLogVersion);
  }
  offset_ = sizeof header;
  const std::uint64_t first = round_up<std::uint64_t>(
      sizeof header + std::min<std::uint64_t>(header.config_bytes, file_.size()),
      sizeof(std::uint64_t));
  if (header.config_bytes > file_.size() || first > file_.size()) return damaged("is cut");
  config_ = {reinterpret_cast<const char*>(file_.data() + sizeof header),
             static_cast<std::size_t>(header.config_bytes)};
  if (header.first_record != first ||
      xxh3_128(std::as_bytes(std::span(config_))).low != header.checksum) {
    return damaged("has another configuration than was written");
  }
  is_closed_ = header.state == LogState::kClosed;
  is_full_ = header.state == LogState::kFull;
  end_ = is_closed_ || is_full_ ? header.end : file_.size();
  offset_ = first;
  if (end_ < first) return damaged("ends before its first record");
  if (end_ > file_.size()) {
    offset_ = file_.size();
    return damaged(fmt::format("is cut: it has {} bytes of {}, and ends", file_.size(), end_));
  }
  if (end_ < file_.size() && file_[end_] != std::byte{0}) {
    offset_ = end_;
    return damaged("goes on past the end that is written down,");
  }
  return {};
}

// Where a log that was not closed ends: at the first record that is not there.
Result<std::optional<LoggedCall>> LogReader::end_of_log() {
  if (is_closed_ || is_full_) return damaged("has been edited");
  offset_ = end_;
  return std::nullopt;
}

Result<std::optional<LoggedCall>> LogReader::next() {
  if (offset_ == end_) return std::nullopt;
  LogRecord record;
  if (end_ - offset_ < sizeof record) return damaged("is cut in a record");
  std::memcpy(&record, file_.data() + offset_, sizeof record);
  if (record.kind == 0) return end_of_log();
  if (record.kind >= kNumLoggedKinds) {
    return damaged(fmt::format("has a call of kind {}", record.kind));
  }
  const std::byte* at = file_.data() + offset_ + sizeof record;
  std::uint64_t left = (end_ - offset_ - sizeof record) / 8;
  std::uint64_t num_words = record.counts >> kWordsShift;
  if (num_words == kManyWords) {
    if (left == 0) return damaged("is cut in a record");
    num_words = LogCheck::word(at, 0);
    at += 8;
    --left;
  }
  if (num_words > left) return damaged("is cut in a record");
  const std::byte* const answers = at + 8 * num_words;
  LoggedCall call;
  call.number = num_read_++;
  call.offset = offset_;
  call.kind = static_cast<LoggedKind>(record.kind);
  call.subject = record.subject;
  call.value = record.value;
  call.event = record.outcome >> 4;
  call.words = {reinterpret_cast<const std::uint64_t*>(at), static_cast<std::size_t>(num_words)};
  const unsigned outcome = record.outcome & 0xF;
  if (outcome == 0) {
    // It was under way when the process ended: whatever it had learned by then follows.
    if (is_closed_ || is_full_) return damaged("has been edited");
    const std::byte* const stop = std::find(answers, file_.data() + end_, std::byte{0});
    call.answers = {reinterpret_cast<const std::uint8_t*>(answers),
                    static_cast<std::size_t>(stop - answers)};
    offset_ = end_;
    return call;
  }
  const std::uint32_t num_answers = record.counts & kMostAnswers;
  const std::uint64_t answer_words = (std::uint64_t{num_answers} + 7) / 8;
  if (answer_words > left - num_words) return damaged("is cut in a record");
  const std::byte* const rest = file_.data() + offset_ + sizeof record;
  const std::byte* const next = answers + 8 * answer_words;
  LogCheck check(check_);
  if (check.add(LogCheck::first_word(record), LogCheck::word(&record, 8), {rest, next}) !=
      record.check) {
    return damaged("has been edited");
  }
  check_ = check.state();
  call.answers = {reinterpret_cast<const std::uint8_t*>(answers), num_answers};
  call.has_returned = true;
  if (outcome > 1) call.refusal = static_cast<ErrorCode>(outcome - 2);
  offset_ = static_cast<std::uint64_t>(next - file_.data());
  return call;
}

}  // namespace slackwater::cache
