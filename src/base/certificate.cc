#include "slackwater/base/certificate.h"

#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <random>
#include <span>

#include <fmt/format.h>

namespace slackwater {
namespace {

// Little-endian words one after another.
class Words {
 public:
  void add(std::uint64_t value) {
    static_assert(std::endian::native == std::endian::little, "words are hashed as they lie");
    std::memcpy(bytes_.data() + size_, &value, sizeof(value));
    size_ += sizeof(value);
  }
  std::span<const std::byte> span() const { return std::span(bytes_).first(size_); }

 private:
  std::array<std::byte, 64> bytes_ = {};
  std::size_t size_ = 0;
};

enum class OwnerKind : std::uint64_t { kPrefix = 1, kRequest = 2 };

}  // namespace

Digest128 Certificate::digest() const {
  // The kind comes first, so that no prefix can be read as a request.
  Words words;
  if (const auto* prefix = std::get_if<PrefixOwner>(&owner)) {
    words.add(static_cast<std::uint64_t>(OwnerKind::kPrefix));
    words.add(prefix->prefix.low);
    words.add(prefix->prefix.high);
    words.add(0);
  } else {
    const RequestOwner& request = std::get<RequestOwner>(owner);
    words.add(static_cast<std::uint64_t>(OwnerKind::kRequest));
    words.add(request.process_epoch);
    words.add(request.request.value());
    words.add(request.round);
  }
  words.add(static_cast<std::uint64_t>(position));
  words.add(static_cast<std::uint64_t>(layer_group.value()));
  words.add(generation);
  return xxh3_128(words.span());
}

Result<void> Certificate::check(const Digest128& stored) const {
  const Digest128 expected = digest();
  if (stored == expected) return {};
  return make_error(ErrorCode::kDataLoss, "certificate {} instead of {}: this is not {}",
                    to_hex(stored), to_hex(expected), describe());
}

std::string Certificate::describe() const {
  std::string who;
  if (const auto* prefix = std::get_if<PrefixOwner>(&owner)) {
    who = fmt::format("prefix {}", to_hex(prefix->prefix));
  } else {
    const RequestOwner& request = std::get<RequestOwner>(owner);
    who = fmt::format("request {} of {} process, round {}", request.request.value(),
                      request.process_epoch == process_epoch() ? "this" : "another", request.round);
  }
  return fmt::format("{}, position {}, layer group {}, generation {}", who, position,
                     layer_group.value(), generation);
}

std::uint64_t process_epoch() {
  static const std::uint64_t epoch = [] {
    std::random_device device;
    return std::uint64_t{device()} << 32 | device();
  }();
  return epoch;
}

LayoutDigest& LayoutDigest::add(std::string_view name, std::int64_t value) {
  return add(name, fmt::format("i{}", value));
}

LayoutDigest& LayoutDigest::add(std::string_view name, const Digest128& value) {
  return add(name, "d" + to_hex(value));
}

LayoutDigest& LayoutDigest::add(std::string_view name, std::string_view value) {
  add_bytes(name);
  add_bytes(value);
  return *this;
}

// With its length in front, so that a name cannot run into a value.
void LayoutDigest::add_bytes(std::string_view bytes) {
  Words size;
  size.add(bytes.size());
  hash_.update(size.span());
  hash_.update(std::as_bytes(std::span(bytes)));
}

}  // namespace slackwater
