#ifndef SLACKWATER_BASE_DIGEST_H_
#define SLACKWATER_BASE_DIGEST_H_

#include <array>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

namespace slackwater {

// 128 bits that stand for some bytes. Safe as a key only where the bytes are compared on a hit.
struct Digest128 {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  friend constexpr auto operator<=>(const Digest128&, const Digest128&) = default;
};

// XXH3-128 of `bytes`, seeded. The same on every machine (xxHash 0.8, canonical form).
Digest128 xxh3_128(std::span<const std::byte> bytes, std::uint64_t seed = 0);

// 32 lower-case hexadecimal digits, high word first.
std::string to_hex(const Digest128& digest);

// SHA-256, for keys that leave the process.
using Sha256Digest = std::array<std::byte, 32>;
Sha256Digest sha256(std::span<const std::byte> bytes);

// 64 lower-case hexadecimal digits.
std::string to_hex(const Sha256Digest& digest);

// XXH3-128 of bytes that arrive in pieces; equal to xxh3_128 of their concatenation.
//
// Invariants:
//   I1  digest() depends on the concatenation of all updates, not on how it was cut.
// Ownership: owns the hashing state; move-only.
// Threads: one thread at a time.
// Errors: none.
class StreamingXxh3 {
 public:
  explicit StreamingXxh3(std::uint64_t seed = 0);
  ~StreamingXxh3();
  StreamingXxh3(StreamingXxh3&&) noexcept;
  StreamingXxh3& operator=(StreamingXxh3&&) noexcept;

  void update(std::span<const std::byte> bytes);
  Digest128 digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace slackwater

#endif  // SLACKWATER_BASE_DIGEST_H_
