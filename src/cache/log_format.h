#ifndef SLACKWATER_CACHE_LOG_FORMAT_H_
#define SLACKWATER_CACHE_LOG_FORMAT_H_

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

#include "slackwater/base/digest.h"

namespace slackwater::cache {

// The layout of an operation log: docs/formats/operation_log.md.

static_assert(std::endian::native == std::endian::little);

inline constexpr char kLogMagic[8] = {'S', 'L', 'K', 'W', 'L', 'O', 'G', '1'};
// Raised whenever the same calls and answers may lead to another state.
inline constexpr std::uint32_t kLogVersion = 2;

// One past the last LoggedKind.
inline constexpr std::uint8_t kNumLoggedKinds = 27;

enum class LogState : std::uint32_t { kOpen = 0, kClosed = 1, kFull = 2 };

// The front of the file; the configuration follows.
struct LogHeader {
  char magic[8] = {};
  std::uint32_t version = 0;
  LogState state = LogState::kOpen;
  std::uint64_t config_bytes = 0;
  std::uint64_t first_record = 0;  // offset
  std::uint64_t end = 0;           // offset; 0 while the log is open
  std::uint64_t checksum = 0;      // of the configuration: the low half of its XXH3-128
};
static_assert(sizeof(LogHeader) == 48);

// In front of every call; its words follow, and then what it learned of the world.
struct LogRecord {
  std::uint8_t kind = 0;     // LoggedKind; 0: the log ends here
  std::uint8_t outcome = 0;  // low half: 0 it did not return, 1 it succeeded, 2 + n refused with
                             // code n; high half: which event a commit was given
  std::uint16_t check = 0;   // of everything up to the end of this record but for this field
  std::uint32_t subject = 0;
  std::uint32_t value = 0;
  std::uint32_t counts = 0;  // low 24 bits: bytes of answers, padded with zeros to a multiple of 8;
                             // high 8 bits: words; kManyWords: their number is a word before them
};
static_assert(sizeof(LogRecord) == 16);

inline constexpr int kWordsShift = 24;
inline constexpr std::uint32_t kManyWords = 0xFF;
inline constexpr std::uint32_t kMostAnswers = (1u << kWordsShift) - 1;

// An answer as bytes that are never 0: below this in one byte, which holds it and 1 more; above in
// bytes of 6 bits, lowest first, with the bits 0x80, and 0x40 where another one follows.
inline constexpr std::uint64_t kSmallAnswers = 0x7F;

// The running check over records: any change of one of them changes it from there on.
class LogCheck {
 public:
  LogCheck() = default;
  explicit LogCheck(std::uint64_t state) : state_(state) {}

  // A record as two words, without its check, and what follows it, a multiple of 8 bytes; returns
  // its check.
  std::uint16_t add(std::uint64_t first, std::uint64_t second, std::span<const std::byte> rest) {
    add_word(first);
    add_word(second);
    if (rest.size() > kHashedBytes) {
      add_word(xxh3_128(rest).low);
    } else {
      for (std::size_t i = 0; i < rest.size(); i += 8) add_word(word(rest.data(), i));
    }
    return next();
  }
  // The same for a short record, which is two words and nothing else.
  std::uint16_t add(std::uint64_t first, std::uint64_t second) {
    add_word(first);
    add_word(second);
    return next();
  }
  std::uint64_t state() const { return state_; }

  static std::uint64_t word(const void* bytes, std::size_t offset) {
    std::uint64_t word = 0;
    std::memcpy(&word, static_cast<const std::byte*>(bytes) + offset, sizeof word);
    return word;
  }
  // The first word of a record, without its check.
  static std::uint64_t first_word(const LogRecord& record) {
    static_assert(offsetof(LogRecord, check) == 2);
    return word(&record, 0) & ~std::uint64_t{0xFFFF0000};
  }

 private:
  static constexpr std::size_t kHashedBytes = 128;

  void add_word(std::uint64_t word) { state_ = (state_ ^ word) * 0x9E3779B97F4A7C15u; }
  std::uint16_t next() {
    state_ ^= state_ >> 32;
    return static_cast<std::uint16_t>(state_ >> 48);
  }

  std::uint64_t state_ = 0;
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LOG_FORMAT_H_
