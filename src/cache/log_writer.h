#ifndef SLACKWATER_CACHE_LOG_WRITER_H_
#define SLACKWATER_CACHE_LOG_WRITER_H_

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <type_traits>

#include "cache/log_format.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/cache/config.h"
#include "slackwater/cache/operation_log.h"
#include "slackwater/device/event.h"
#include "slackwater/device/witness.h"

namespace slackwater::cache {

// Where in the first word of a commit it says which event it was given; the rest is below.
inline constexpr int kWrittenShift = 48;

// Writes the calls of a KvCacheManager into a file, with all that they learned of the world: so the
// same code, told the same, comes to the same state without any device (LogReplay).
//
// The file is mapped and grows by steps, so writing is storing, and what is written is there when
// the process is killed. A call is written before it is made: a log shows what a crash interrupted.
//
// Source: docs/formats/operation_log.md.
// Invariants:
//   I1  calls are written one at a time, in the order in which they are made.
// Ownership: owns the file; the destructor says where it ends.
// Threads: any; whoever calls waits for the one before.
// Errors: create() gives kUnavailable for a file that cannot be made and kFailedPrecondition for
// one that is there. A log that is full or has no disk left stops, and tells once.
// Cost: about 40 instructions a call and 6 an answer; no heap allocation.
class LogWriter final : public device::Witness {
 public:
  static Result<std::unique_ptr<LogWriter>> create(const OperationLogOptions& options,
                                                   std::string_view config);
  ~LogWriter() override;

  // Calls that have returned.
  std::int64_t num_calls() const { return num_calls_.load(std::memory_order_relaxed); }
  // Takes the file away: there is nothing to be done again.
  void discard() { is_discarded_ = true; }

  // Makes a call that changes something. `start` is called with this log when its turn has come,
  // and says which call it is by one of the two below.
  template <class Start, class Call>
  auto record(const Start& start, const Call& call) -> decltype(call()) {
    const Turn turn(*this);
    start(*this);
    const device::WitnessScope scope(record_ == nullptr ? nullptr : this);
    if constexpr (std::is_void_v<decltype(call())>) {
      call();
      end(kSucceeded);
    } else {
      auto result = call();
      end(result.has_value() ? kSucceeded : outcome_of(result.error().code()));
      return result;
    }
  }
  template <class... Words>
  void start(LoggedKind kind, std::uint32_t subject, Words... words) {
    std::byte* at = begin(kind, subject, sizeof...(words));
    if (at != nullptr) ((at = put_word(at, words)), ...);
  }
  template <class... Words>
  void start_with(std::span<const TokenId> tokens, LoggedKind kind, std::uint32_t subject,
                  Words... words) {
    std::byte* at = begin(kind, subject, sizeof...(words) + (tokens.size() + 1) / 2);
    if (at == nullptr) return;
    ((at = put_word(at, words)), ...);
    std::memcpy(at, tokens.data(), tokens.size_bytes());
  }
  // A call that was made: a resize within blocks, which learns nothing and cannot fail.
  void note_resize(std::uint32_t subject, std::int32_t more, std::int32_t done) {
    const Turn turn(*this);
    if (static_cast<std::size_t>(end_ - cursor_) < kShortBytes && !extend(kShortBytes)) return;
    const std::uint64_t record = std::uint64_t{subject} << 32 | std::uint64_t{kSucceeded} << 8 |
                                 static_cast<std::uint64_t>(LoggedKind::kResizeWithin);
    const std::uint64_t word =
        std::uint64_t{static_cast<std::uint32_t>(more)} << 32 | static_cast<std::uint32_t>(done);
    const std::uint64_t check = check_.add_short(record, word);
    put_word(put_word(cursor_, record | check << 16), word);
    cursor_ += kShortBytes;
    count_call();
  }

  // Which one of the latest events this is, or a new one: 0 for none, 1 for a new one, 2 and up for
  // those before, the latest first. So merged events can be told to be the same. In a turn.
  std::uint64_t number_of(const device::Event& event);

  std::uint64_t recall() override { return 0; }
  void note(std::uint64_t answer) override {
    if (answer < kSmallAnswers) [[likely]]
      return put(static_cast<std::uint8_t>(answer + 1));
    note_large(answer);
  }

 private:
  // The right to write, until it ends.
  class Turn {
   public:
    explicit Turn(LogWriter& log) : log_(log) {
      if (log_.is_busy_.exchange(1) != 0) [[unlikely]]
        log_.wait_for_turn();
    }
    ~Turn() {
      log_.is_busy_.exchange(0);
      if (log_.num_waiting_.load() != 0) [[unlikely]]
        log_.is_busy_.notify_one();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    LogWriter& log_;
  };

  static constexpr std::uint8_t kSucceeded = 1;
  static constexpr std::size_t kShortBytes = 16;
  // Room past the arguments of a call, so that the end of a small one needs no look.
  static constexpr std::size_t kSpareBytes = 8;

  LogWriter() : Witness(false) {}
  Result<void> open(const OperationLogOptions& options, std::string_view config);
  void wait_for_turn();
  static std::uint8_t outcome_of(ErrorCode code) {
    return static_cast<std::uint8_t>(2 + static_cast<int>(code));
  }

  // Where the words of a call go; null where the log has ended.
  std::byte* begin(LoggedKind kind, std::uint32_t subject, std::size_t num_words) {
    const std::size_t bytes = sizeof(LogRecord) + 8 * num_words;
    record_ = cursor_;
    if (static_cast<std::size_t>(end_ - cursor_) < bytes + kSpareBytes &&
        !extend(bytes + kSpareBytes)) {
      record_ = nullptr;
      return nullptr;
    }
    std::byte* const words =
        put_word(put_word(cursor_, std::uint64_t{subject} << 32 | static_cast<std::uint64_t>(kind)),
                 num_words);
    cursor_ += bytes;
    answers_ = cursor_;
    return words;
  }
  void end(std::uint8_t outcome);
  static std::byte* put_word(std::byte* at, std::uint64_t word) {
    std::memcpy(at, &word, sizeof word);
    return at + sizeof word;
  }
  void count_call() {
    num_calls_.store(num_calls_.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  }
  void put(std::uint8_t byte) {
    if (cursor_ == end_ && !extend(1)) return;
    *cursor_++ = static_cast<std::byte>(byte);
  }
  void note_large(std::uint64_t answer);
  bool extend(std::size_t bytes);
  void stop(std::string_view why);
  LogHeader& header() { return *reinterpret_cast<LogHeader*>(base_); }

  std::atomic<std::int32_t> is_busy_{0};
  std::atomic<std::int32_t> num_waiting_{0};
  std::byte* cursor_ = nullptr;
  std::byte* end_ = nullptr;     // of what the file has room for
  std::byte* record_ = nullptr;  // of the call that is being made
  std::byte* answers_ = nullptr;
  LogCheck check_;
  std::atomic<std::int64_t> num_calls_{0};
  bool has_header_ = false;
  bool is_stopped_ = false;
  bool is_discarded_ = false;

  static constexpr std::size_t kNumEvents = 8;
  std::array<device::Event, kNumEvents> events_;  // a ring, the latest at latest_
  std::size_t latest_ = 0;

  OperationLogOptions options_;
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::size_t max_bytes_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_WRITER_H_
