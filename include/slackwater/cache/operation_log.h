#ifndef SLACKWATER_CACHE_OPERATION_LOG_H_
#define SLACKWATER_CACHE_OPERATION_LOG_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater::cache {

// Calls that an operation log knows. The numbers are those of the file.
enum class LoggedKind : std::uint8_t {
  kOpen = 1,
  kCreate = 2,
  kResume = 3,
  kSuspend = 4,
  kClose = 5,
  kResize = 6,
  kCommit = 7,
  kStopCommitting = 8,
  kReserveSnapshot = 9,
  kCancelSnapshot = 10,
  kSetIndexTable = 11,
  kClear = 12,
  kShutdown = 13,
  kSetQuota = 14,
  kTokenDigest = 15,
  kResizeWithin = 16,  // a resize that changed no block
  kAdjust = 17,
  kPrefetch = 18,        // of a sequence
  kPrefetchPrompt = 19,  // of the manager
  kPlanDrop = 20,
  kDrop = 21,
  kCommitStatistics = 22,
  kDiscardStatistics = 23,
  kCommitOne = 24,  // of one token, not the last
  kTakeStatistics = 25,
  kTrim = 26,
};

// "create", "resume", ...
std::string_view to_string(LoggedKind kind);

// A call as a log has it. Views are of the log.
struct LoggedCall {
  std::int64_t number = 0;   // from 1; 0 is the making of the manager
  std::uint64_t offset = 0;  // in the file
  LoggedKind kind = LoggedKind::kOpen;
  std::uint32_t subject = 0;              // of a sequence: how many were made before it
  std::uint32_t value = 0;                // a part of what it was called with
  std::uint8_t event = 0;                 // that a commit was given
  std::span<const std::uint64_t> words;   // what it was called with: operation_log.md
  std::span<const std::uint8_t> answers;  // what it learned of the world
  bool has_returned = false;
  std::optional<ErrorCode> refusal;  // nothing where it succeeded, or has not returned

  // "call 12, a commit of sequence 3 at offset 4096".
  std::string describe() const;
};

// The calls of a KvCacheManager, read back one after another (KvCacheConfig::operation_log).
//
// A log that was closed says where it ends. One whose process was killed ends with the last call
// that began, and that one may not have returned.
//
// Source: docs/formats/operation_log.md.
// Invariants:
//   I1  a call that is given is as it was written: each carries a check over all before it.
// Ownership: maps the file, which must stay as it is; calls are views of it.
// Threads: one at a time.
// Errors: kNotFound for no file; kDataLoss with the offset for one that is cut, edited or no log;
// kUnimplemented for one of another version.
class LogReader {
 public:
  static Result<std::unique_ptr<LogReader>> open(const std::filesystem::path& path);
  ~LogReader();
  LogReader(const LogReader&) = delete;
  LogReader& operator=(const LogReader&) = delete;

  // The next call; nothing at the end.
  Result<std::optional<LoggedCall>> next();
  const std::string& name() const { return name_; }  // of the file
  // What the manager was made from, as JSON.
  std::string_view config() const { return config_; }
  // Whether it had no room for more: the manager went on without it.
  bool is_full() const { return is_full_; }

 private:
  LogReader() = default;
  Result<void> read_header();
  Result<std::optional<LoggedCall>> end_of_log();
  tl::unexpected<Error> damaged(std::string_view what) const;

  std::string name_;
  std::span<const std::byte> file_;
  std::string_view config_;
  std::uint64_t offset_ = 0;
  std::uint64_t end_ = 0;  // of the records
  std::int64_t num_read_ = 0;
  std::uint64_t check_ = 0;
  bool is_closed_ = false;
  bool is_full_ = false;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_OPERATION_LOG_H_
