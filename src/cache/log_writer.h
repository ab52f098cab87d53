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
#include "slackwater/cache/sequence.h"
#include "slackwater/device/event.h"
#include "slackwater/device/witness.h"

namespace slackwater::cache {

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
// Cost: about 60 instructions for a resize within blocks, 110 for other calls and 25 an answer; no
// heap allocation.
//
// Experiment (release, 10^4 pages): 382 instructions of a grant become 451, 958 of a grant and a
// commit 1,138, 1,280 of get and free 1,440; of a cycle, an eviction or a suspend 1 to 5 % more.
// Records of 24 bytes and up with their arguments as words came to 448 and 1,219.
class LogWriter final : public device::Witness {
 public:
  static Result<std::unique_ptr<LogWriter>> create(const OperationLogOptions& options,
                                                   std::string_view config);
  ~LogWriter() override;

  // Calls that have returned.
  std::int64_t num_calls() const {
    const Turn turn(*this);
    return num_calls_;
  }
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
  void start(LoggedKind kind, std::uint32_t subject, std::uint32_t value, Words... words) {
    static_assert(sizeof...(words) < kManyWords);
    std::byte* at = begin(first_word(kind, subject), value, sizeof...(words));
    if (at != nullptr) ((at = put_word(at, words)), ...);
  }
  // The same with tokens after the words.
  template <class... Words>
  void start_with(std::span<const TokenId> tokens, LoggedKind kind, std::uint32_t subject,
                  std::uint32_t value, Words... words) {
    std::byte* at =
        begin_many(first_word(kind, subject), value, sizeof...(words) + (tokens.size() + 1) / 2);
    if (at == nullptr) return;
    ((at = put_word(at, words)), ...);
    if (!tokens.empty()) std::memcpy(at, tokens.data(), tokens.size_bytes());
  }
  // A commit says which one of the latest events it was given.
  void start_commit(std::uint32_t subject, std::span<const TokenId> tokens,
                    const CommitOptions& options) {
    const std::uint64_t event = number_of(options.written) << kEventShift;
    const std::uint32_t parts =
        std::uint32_t{options.is_end} | std::uint32_t{options.publishes_state} << 1;
    if (tokens.size() == 1 && parts == 0) {
      begin(first_word(LoggedKind::kCommitOne, subject) | event,
            static_cast<std::uint32_t>(tokens[0]), 0);
    } else {
      start_tokens(first_word(LoggedKind::kCommit, subject) | event, parts, tokens);
    }
  }
  // A call that was made: a resize within blocks, which learns nothing and cannot fail.
  [[gnu::noinline]] void note_resize(std::uint32_t subject, std::int16_t more, std::uint16_t done);

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
    explicit Turn(const LogWriter& log) : log_(log) {
      std::int32_t free = kFree;
      if (!log_.turn_.compare_exchange_strong(free, kTaken)) log_.wait_for_turn();
    }
    ~Turn() {
      if (log_.turn_.exchange(kFree) == kWanted) log_.wake_next();
    }
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const LogWriter& log_;
  };
  enum TurnState : std::int32_t { kFree, kTaken, kWanted };

  static constexpr std::uint8_t kSucceeded = 1;
  static constexpr int kEventShift = 12;  // in the first word of a record
  // Room for a record without words and the answers of a small call: not asked for again.
  static constexpr std::size_t kSpareBytes = 32;

  LogWriter();
  Result<void> open(const OperationLogOptions& options, std::string_view config);
  [[gnu::cold, gnu::noinline]] void wait_for_turn() const;
  [[gnu::cold, gnu::noinline]] void wake_next() const;
  static std::uint8_t outcome_of(ErrorCode code) {
    return static_cast<std::uint8_t>(2 + static_cast<int>(code));
  }
  static std::uint64_t first_word(LoggedKind kind, std::uint32_t subject) {
    return std::uint64_t{subject} << 32 | static_cast<std::uint64_t>(kind);
  }

  // Where the words of a call go; null where the log has ended.
  std::byte* begin(std::uint64_t first, std::uint32_t value, std::size_t num_words) {
    std::byte* const record = cursor_;
    if (record + 8 * num_words > limit_ && !extend(kSpareBytes + 8 * num_words)) return nullptr;
    record_ = record;
    std::byte* const words =
        put_word(put_word(record, first), std::uint64_t{num_words} << (32 + kWordsShift) | value);
    answers_ = cursor_ = words + 8 * num_words;
    return words;
  }
  std::byte* begin_many(std::uint64_t first, std::uint32_t value, std::size_t num_words);
  void start_tokens(std::uint64_t first, std::uint32_t value, std::span<const TokenId> tokens);
  void end(std::uint8_t outcome);
  static std::byte* put_word(std::byte* at, std::uint64_t word) {
    std::memcpy(at, &word, sizeof word);
    return at + sizeof word;
  }
  void put(std::uint8_t byte) {
    if (cursor_ == end_ && !extend(1)) return;
    *cursor_++ = static_cast<std::byte>(byte);
  }
  // Which one of the latest events this is, or a new one: 0 for none, 1 for a new one, 2 and up for
  // those before, the latest first. So merged events can be told to be the same.
  std::uint64_t number_of(const device::Event& event) {
    return event.is_null() ? 0 : number_of_known(event);
  }
  std::uint64_t number_of_known(const device::Event& event);
  void note_large(std::uint64_t answer);
  [[gnu::cold, gnu::noinline]] bool extend(std::size_t bytes);
  void stop(std::string_view why);
  LogHeader& header() { return *reinterpret_cast<LogHeader*>(base_); }

  mutable std::atomic<std::int32_t> turn_{kFree};
  std::byte* cursor_ = nullptr;
  std::byte* end_ = nullptr;     // of what the file has room for
  std::byte* limit_ = nullptr;   // kSpareBytes before it
  std::byte* record_ = nullptr;  // of the call that is being made
  std::byte* answers_ = nullptr;
  LogCheck check_;
  std::int64_t num_calls_ = 0;
  bool has_header_ = false;
  bool is_stopped_ = false;
  bool is_discarded_ = false;

  static constexpr std::size_t kNumEvents = 8;
  std::array<device::Event, kNumEvents> events_;  // a ring, the latest at latest_
  std::size_t latest_ = 0;

  OperationLogOptions options_;
  const int process_;  // that made it
  int file_ = -1;
  std::byte* base_ = nullptr;
  std::size_t max_bytes_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_WRITER_H_
