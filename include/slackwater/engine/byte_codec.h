#ifndef SLACKWATER_ENGINE_BYTE_CODEC_H_
#define SLACKWATER_ENGINE_BYTE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"

namespace slackwater::engine {

// Values one after another as bytes: integers little-endian, floats by their bits, texts and lists
// with their length in front. The same on every machine; docs/formats/bundle.md is written in it.
//
// Invariants:
//   I1  what was written is what a ByteReader reads, in the same order.
// Ownership: owns the bytes.
// Threads: one.
// Errors: none.
class ByteWriter {
 public:
  void u8(std::uint8_t value) { put(value, 1); }
  void u32(std::uint32_t value) { put(value, 4); }
  void u64(std::uint64_t value) { put(value, 8); }
  void i32(std::int32_t value) { u32(static_cast<std::uint32_t>(value)); }
  void i64(std::int64_t value) { u64(static_cast<std::uint64_t>(value)); }
  void boolean(bool value) { u8(value ? 1 : 0); }
  void f32(float value);
  void f64(double value);
  void digest(const Digest128& value);             // 16 bytes, low word first
  void bytes(std::span<const std::byte> values);   // as they are, without their number
  void text(std::string_view value);               // u64 bytes, then those
  void blob(std::span<const std::byte> values);    // likewise
  void count(std::size_t number) { u64(number); }  // in front of a list

  std::size_t size() const { return bytes_.size(); }
  std::span<const std::byte> view() const { return bytes_; }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  void put(std::uint64_t value, int num_bytes);

  std::vector<std::byte> bytes_;
};

// Reads what a ByteWriter wrote, or whatever else there is: nothing is read past the end, and no
// number of items is believed that could not be there. The first fault stays: all later reads give
// zeros, so a caller looks once, at the end.
//
// Invariants:
//   I1  offset() never passes the end; it stays where the first fault was.
//   I2  count() is at most what is left, so it bounds every allocation that follows from it.
// Ownership: borrows the bytes.
// Threads: one.
// Errors: status() and end() give kDataLoss with offset and fault.
class ByteReader {
 public:
  explicit ByteReader(std::span<const std::byte> bytes) : bytes_(bytes) {}

  std::uint8_t u8() { return static_cast<std::uint8_t>(get(1)); }
  std::uint32_t u32() { return static_cast<std::uint32_t>(get(4)); }
  std::uint64_t u64() { return get(8); }
  std::int32_t i32() { return static_cast<std::int32_t>(u32()); }
  std::int64_t i64() { return static_cast<std::int64_t>(u64()); }
  bool boolean();  // a fault unless 0 or 1
  float f32();
  double f64();
  Digest128 digest();
  std::span<const std::byte> bytes(std::uint64_t num_bytes);
  std::string text();
  std::vector<std::byte> blob();
  // Of items that take at least so many bytes each. `item_bytes` > 0.
  std::size_t count(std::uint64_t item_bytes);
  // Notes a fault of the caller's own at the present offset, unless there was one.
  void fail(std::string what);

  std::uint64_t offset() const { return offset_; }
  std::uint64_t num_left() const { return bytes_.size() - offset_; }
  bool has_failed() const { return !fault_.empty(); }
  // Whether all that was read so far was there.
  Result<void> status() const;
  // And nothing is left over.
  Result<void> end() const;

 private:
  std::uint64_t get(std::uint64_t num_bytes);
  bool has(std::uint64_t num_bytes);

  std::span<const std::byte> bytes_;
  std::uint64_t offset_ = 0;
  std::string fault_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_BYTE_CODEC_H_
