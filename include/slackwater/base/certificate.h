#ifndef SLACKWATER_BASE_CERTIFICATE_H_
#define SLACKWATER_BASE_CERTIFICATE_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"

namespace slackwater {

// Whoever has this prefix: a page that may be shared.
struct PrefixOwner {
  Digest128 prefix;  // chained digest of all tokens up to the page's position
  friend bool operator==(const PrefixOwner&, const PrefixOwner&) = default;
};

// One request in one round of its life: a page of its own.
struct RequestOwner {
  std::uint64_t process_epoch = 0;
  RequestId request;
  std::uint64_t round = 0;
  friend bool operator==(const RequestOwner&, const RequestOwner&) = default;
};

// Who may read a page, and what it is supposed to hold.
//
// Every page and every slot carries the digest of one. It is compared when a page is bound,
// restored, resumed or hit, never per step over a whole table. Where it does not match, the page
// counts as absent and is computed again: one counter goes up, and no token changes.
//
// Invariants:
//   I1  two certificates have equal digests only if they are equal (128 bits, XXH3).
//   I2  a certificate of a request never matches one of another process, even with the same
//       request id: process_epoch() is random.
// Threads: a value.
// Errors: check() gives kDataLoss.
struct Certificate {
  std::variant<PrefixOwner, RequestOwner> owner;
  std::int64_t position = 0;  // tokens that the page's contents stand for
  LayerGroupId layer_group;
  std::uint32_t generation = 0;  // told apart from earlier contents of the same page

  // What storage keeps and compares.
  Digest128 digest() const;
  // kDataLoss unless `stored` is digest(); the text names what was expected.
  Result<void> check(const Digest128& stored) const;
  // "request 7 of this process, round 2, position 64, layer group 1, generation 0".
  std::string describe() const;

  friend bool operator==(const Certificate&, const Certificate&) = default;
};

// A random number of this process, the same for its whole life.
std::uint64_t process_epoch();

// The digest of everything that decides how bytes in a pool or a file are to be read: format
// version, numerics, model, groups, dtypes, shapes. Kept per pool and per file; bytes under
// another layout are foreign.
//
// Invariants:
//   I1  the result depends on the names, the values and their order; no two different sequences of
//       fields are joined to the same bytes.
// Ownership: owns the hashing state.
// Threads: one.
// Errors: none.
class LayoutDigest {
 public:
  LayoutDigest& add(std::string_view name, std::int64_t value);
  LayoutDigest& add(std::string_view name, std::string_view value);
  LayoutDigest& add(std::string_view name, const Digest128& value);
  Digest128 digest() const { return hash_.digest(); }

 private:
  void add_bytes(std::string_view bytes);

  StreamingXxh3 hash_;
};

}  // namespace slackwater

#endif  // SLACKWATER_BASE_CERTIFICATE_H_
