#include "slackwater/engine/byte_codec.h"

#include <bit>
#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::engine {

void ByteWriter::put(std::uint64_t value, int num_bytes) {
  for (int i = 0; i < num_bytes; ++i) bytes_.push_back(static_cast<std::byte>(value >> (8 * i)));
}

void ByteWriter::f32(float value) { u32(std::bit_cast<std::uint32_t>(value)); }

void ByteWriter::f64(double value) { u64(std::bit_cast<std::uint64_t>(value)); }

void ByteWriter::digest(const Digest128& value) {
  u64(value.low);
  u64(value.high);
}

void ByteWriter::bytes(std::span<const std::byte> values) {
  bytes_.insert(bytes_.end(), values.begin(), values.end());
}

void ByteWriter::text(std::string_view value) {
  count(value.size());
  bytes(std::as_bytes(std::span(value)));
}

void ByteWriter::blob(std::span<const std::byte> values) {
  count(values.size());
  bytes(values);
}

bool ByteReader::has(std::uint64_t num_bytes) {
  if (has_failed()) return false;
  if (num_bytes <= num_left()) return true;
  fail(fmt::format("{} bytes are wanted, {} are left", num_bytes, num_left()));
  return false;
}

std::uint64_t ByteReader::get(std::uint64_t num_bytes) {
  std::uint64_t value = 0;
  const std::span<const std::byte> from = bytes(num_bytes);
  for (std::size_t i = 0; i < from.size(); ++i) {
    value |= std::uint64_t{std::to_integer<unsigned>(from[i])} << (8 * i);
  }
  return value;
}

bool ByteReader::boolean() {
  const std::uint8_t value = u8();
  if (value > 1) fail(fmt::format("{} where 0 or 1 is expected", value));
  return value == 1;
}

float ByteReader::f32() { return std::bit_cast<float>(u32()); }

double ByteReader::f64() { return std::bit_cast<double>(u64()); }

Digest128 ByteReader::digest() {
  const std::uint64_t low = u64();
  return {low, u64()};
}

std::span<const std::byte> ByteReader::bytes(std::uint64_t num_bytes) {
  if (!has(num_bytes)) return {};
  const auto at = static_cast<std::size_t>(offset_);
  offset_ += num_bytes;
  return bytes_.subspan(at, static_cast<std::size_t>(num_bytes));
}

std::string ByteReader::text() {
  const std::span<const std::byte> from = bytes(u64());
  return {reinterpret_cast<const char*>(from.data()), from.size()};
}

std::vector<std::byte> ByteReader::blob() {
  const std::span<const std::byte> from = bytes(u64());
  return {from.begin(), from.end()};
}

std::size_t ByteReader::count(std::uint64_t item_bytes) {
  SLACKWATER_CHECK(item_bytes > 0, "items of no bytes");
  const std::uint64_t number = u64();
  if (has_failed()) return 0;
  if (number <= num_left() / item_bytes) return static_cast<std::size_t>(number);
  fail(fmt::format("{} items of {} bytes or more, and {} bytes are left", number, item_bytes,
                   num_left()));
  return 0;
}

void ByteReader::fail(std::string what) {
  if (has_failed()) return;
  fault_ = std::move(what);
}

Result<void> ByteReader::status() const {
  if (!has_failed()) return {};
  return make_error(ErrorCode::kDataLoss, "offset {}: {}", offset_, fault_);
}

Result<void> ByteReader::end() const {
  SLACKWATER_RETURN_IF_ERROR(status());
  if (num_left() == 0) return {};
  return make_error(ErrorCode::kDataLoss, "offset {}: {} bytes are left over", offset_, num_left());
}

}  // namespace slackwater::engine
