#ifndef SLACKWATER_KERNELS_TEST_SUPPORT_H_
#define SLACKWATER_KERNELS_TEST_SUPPORT_H_

// What the tests of the kernels share: seeded values, arrays that notice a kernel which reads or
// writes where it must not, and comparisons of bits that say where two results part.

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

#include <fmt/core.h>
#include <gtest/gtest.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/dtype.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/thread_pool.h"
#include "slackwater/kernels/execution_context.h"
#include "testing/seed.h"

namespace slackwater::kernels::test {

// Rounding error of one operation, relative to its result.
inline constexpr double kEps = 0x1p-24;

// The seed of the run, printed before the first value is drawn.
inline std::uint64_t run_seed() {
  static const std::uint64_t seed = test_seed();
  return seed;
}

// A stream of values: a function of the run's seed and the stream's number.
class Random {
 public:
  explicit Random(std::uint64_t stream)
      : state_(run_seed() * 0x9E3779B97F4A7C15u + stream * 0xD1B54A32D192ED03u) {}

  // SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014).
  std::uint64_t bits() {
    std::uint64_t z = (state_ += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }

  // In [0, n).
  std::int32_t below(std::int32_t n) {
    return static_cast<std::int32_t>(bits() % static_cast<std::uint64_t>(n));
  }

  // In [low, high), 24 random bits.
  float uniform(float low, float high) {
    return low + (high - low) * (static_cast<float>(bits() >> 40) * 0x1p-24f);
  }

  // In (-4, 4), over several binades, so that sums in another order round otherwise.
  float value() { return uniform(-1.0f, 1.0f) * static_cast<float>(1 << below(3)); }

  // A permutation of [0, n).
  std::vector<std::int32_t> permutation(std::int32_t n) {
    std::vector<std::int32_t> order(static_cast<std::size_t>(n));
    for (std::int32_t i = 0; i < n; ++i) {
      const std::int32_t j = below(i + 1);
      order[static_cast<std::size_t>(i)] = order[static_cast<std::size_t>(j)];
      order[static_cast<std::size_t>(j)] = i;
    }
    return order;
  }

 private:
  std::uint64_t state_;
};

// Every byte of memory that is nobody's. As f32, f16 and bf16 it is a NaN.
inline constexpr unsigned char kPoisonByte = 0xFF;

inline float poison() { return std::bit_cast<float>(0xFFFFFFFFu); }

inline bool is_poison(std::span<const std::byte> bytes) {
  for (const std::byte byte : bytes) {
    if (byte != std::byte{kPoisonByte}) return false;
  }
  return true;
}

template <class T>
std::uint32_t bits_of(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return std::bit_cast<std::uint32_t>(value);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return value.bits;
  } else {
    return static_cast<std::uint32_t>(value);
  }
}

template <class T>
std::string describe(T value) {
  if constexpr (std::is_same_v<T, float>) {
    return fmt::format("{:#010x} ({:.9g})", bits_of(value), value);
  } else if constexpr (std::is_same_v<T, Bf16>) {
    return fmt::format("{:#06x} ({:.4g})", value.bits, bf16_to_f32(value));
  } else {
    return fmt::format("{}", value);
  }
}

// Where a row array lies: `offset` elements past a 64-byte boundary, `gap` elements of poison
// after each row.
struct Placement {
  std::int64_t offset = 0;
  std::int64_t gap = 0;
  // Elements of poison after the last row. 0 for an input: its last value is the last of its
  // allocation, so that AddressSanitizer sees a read past it.
  std::int64_t tail = 0;
};

inline constexpr Placement kPackedInput{};
inline constexpr Placement kAwkwardInput{.offset = 1, .gap = 5};
inline constexpr Placement kPackedOutput{.tail = 32};
inline constexpr Placement kAwkwardOutput{.offset = 3, .gap = 7, .tail = 32};

// [rows, columns] elements within poison. Starts as poison.
template <class T>
class PaddedRows {
 public:
  PaddedRows(std::int64_t rows, std::int64_t columns, Placement placement = kAwkwardInput)
      : rows_(rows),
        columns_(columns),
        placement_(placement),
        storage_(static_cast<std::size_t>(
            placement.offset + (rows > 0 ? (rows - 1) * stride() + columns : 0) + placement.tail)) {
    clear();
  }

  std::int64_t rows() const { return rows_; }
  std::int64_t columns() const { return columns_; }
  std::int64_t stride() const { return columns_ + placement_.gap; }
  T* data() { return storage_.data() + placement_.offset; }
  const T* data() const { return storage_.data() + placement_.offset; }
  T* row(std::int64_t r) { return data() + r * stride(); }
  const T* row(std::int64_t r) const { return data() + r * stride(); }
  std::span<const T> row_span(std::int64_t r) const {
    return {row(r), static_cast<std::size_t>(columns_)};
  }

  // Everything is poison again.
  void clear() {
    if (storage_.empty()) return;
    std::memset(static_cast<void*>(storage_.data()), kPoisonByte, storage_.size() * sizeof(T));
  }

  // Calls `draw()` for every element, in order.
  template <class Draw>
  PaddedRows& fill(const Draw& draw) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      for (std::int64_t c = 0; c < columns_; ++c) row(r)[c] = draw();
    }
    return *this;
  }
  PaddedRows& fill(Random& random) {
    return fill([&] { return random.value(); });
  }

  void copy_from(const PaddedRows& other) {
    for (std::int64_t r = 0; r < rows_; ++r) {
      std::copy(other.row(r), other.row(r) + columns_, row(r));
    }
  }

  // What lies outside the rows is still poison.
  testing::AssertionResult padding_is_intact() const {
    const std::int64_t size = static_cast<std::int64_t>(storage_.size());
    const std::int64_t step = std::max<std::int64_t>(1, stride());
    for (std::int64_t i = 0; i < size; ++i) {
      const std::int64_t from_data = i - placement_.offset;
      const std::int64_t r = from_data / step;
      const bool inside = from_data >= 0 && r < rows_ && from_data % step < columns_;
      const T& element = storage_[static_cast<std::size_t>(i)];
      if (!inside && !is_poison(std::as_bytes(std::span(&element, 1)))) {
        return testing::AssertionFailure()
               << "padding was written: row " << r << ", column " << from_data - r * step
               << " holds " << describe(element);
      }
    }
    return testing::AssertionSuccess();
  }

 private:
  std::int64_t rows_;
  std::int64_t columns_;
  Placement placement_;
  AlignedBuffer<T> storage_;
};

using Floats = PaddedRows<float>;

// The same bits; else where the first difference is, how many there are, and the bits.
template <class T>
testing::AssertionResult equal_bits(std::span<const T> actual, std::span<const T> expected) {
  if (actual.size() != expected.size()) {
    return testing::AssertionFailure() << actual.size() << " values, expected " << expected.size();
  }
  std::size_t first = actual.size();
  std::size_t differences = 0;
  for (std::size_t i = actual.size(); i-- > 0;) {
    if (bits_of(actual[i]) == bits_of(expected[i])) continue;
    first = i;
    ++differences;
  }
  if (differences == 0) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << differences << " of " << actual.size() << " differ, first at " << first << ": "
         << describe(actual[first]) << ", expected " << describe(expected[first]);
}

inline testing::AssertionResult equal_bits(const std::vector<float>& actual,
                                           const std::vector<float>& expected) {
  return equal_bits(std::span<const float>(actual), std::span<const float>(expected));
}

// The rows have the same bits, and the padding of `actual` is intact.
template <class T>
testing::AssertionResult equal_bits(const PaddedRows<T>& actual, const PaddedRows<T>& expected) {
  if (actual.rows() != expected.rows()) {
    return testing::AssertionFailure() << actual.rows() << " rows, expected " << expected.rows();
  }
  for (std::int64_t r = 0; r < actual.rows(); ++r) {
    const testing::AssertionResult row = equal_bits(actual.row_span(r), expected.row_span(r));
    if (!row) return testing::AssertionFailure() << "row " << r << ": " << row.message();
  }
  return actual.padding_is_intact();
}

// |actual - exact| <= bound. A NaN is never close.
inline testing::AssertionResult is_close(double actual, double exact, double bound) {
  const double error = std::fabs(actual - exact);
  if (error <= bound) return testing::AssertionSuccess();
  return testing::AssertionFailure()
         << fmt::format("{:.9g} is {:.3g} from {:.9g}, {:.2f} times the bound", actual, error,
                        exact, error / bound);
}

// Slots of a pool, all poison at first, `offset` bytes past a 64-byte boundary.
class PoisonedPages {
 public:
  PoisonedPages(std::int32_t num_slots, std::int64_t slot_bytes, std::int64_t offset)
      : num_slots_(num_slots),
        slot_bytes_(slot_bytes),
        offset_(offset),
        storage_(static_cast<std::size_t>(offset + num_slots * slot_bytes)) {
    std::memset(storage_.data(), kPoisonByte, storage_.size());
  }

  std::int32_t num_slots() const { return num_slots_; }
  std::int64_t slot_bytes() const { return slot_bytes_; }
  std::byte* base() { return storage_.data() + offset_; }
  const std::byte* base() const { return storage_.data() + offset_; }

  std::span<std::byte> slot(SlotId id) {
    return {base() + id.value() * slot_bytes_, static_cast<std::size_t>(slot_bytes_)};
  }
  std::span<const std::byte> slot(SlotId id) const {
    return {base() + id.value() * slot_bytes_, static_cast<std::size_t>(slot_bytes_)};
  }

  // All slots, to compare with or to start from again.
  std::vector<std::byte> contents() const { return {base(), base() + num_slots_ * slot_bytes_}; }
  void assign(const std::vector<std::byte>& saved) {
    std::copy(saved.begin(), saved.end(), base());
  }

  // The slots hold these bytes; else which slot differs first, and where.
  testing::AssertionResult equal_bytes(const std::vector<std::byte>& expected) const {
    const std::byte* bytes = base();
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (bytes[i] == expected[i]) continue;
      const std::int64_t at = static_cast<std::int64_t>(i) / 4 * 4;
      return testing::AssertionFailure()
             << fmt::format("slot {} differs at byte {}: {}, expected {}", at / slot_bytes_,
                            at % slot_bytes_, word(bytes + at), word(expected.data() + at));
    }
    return testing::AssertionSuccess();
  }

 private:
  static std::string word(const std::byte* bytes) {
    float value = 0;
    std::memcpy(&value, bytes, sizeof value);
    return describe(value);
  }

  std::int32_t num_slots_;
  std::int64_t slot_bytes_;
  std::int64_t offset_;
  AlignedBuffer<std::byte> storage_;
};

// Threads and a context for one form of the kernels.
struct Runner {
  explicit Runner(Target target, int num_threads = 1) : pool(num_threads), context(pool, target) {}

  ThreadPool pool;
  ExecutionContext context;
};

// The forms to compare with the reference. Empty on a machine without fused vectors, where
// target_test says so.
inline std::span<const Target> fast_targets() { return runnable_targets().subspan(1); }

// Puts the calling thread into a mode that no kernel is written for: rounds upward, flushes
// denormal results and operands to zero.
class HostileFpMode {
 public:
  HostileFpMode() : saved_(read()) { write(kHostile); }
  ~HostileFpMode() { write(saved_); }
  HostileFpMode(const HostileFpMode&) = delete;
  HostileFpMode& operator=(const HostileFpMode&) = delete;

  // Nobody changed the mode since.
  bool is_in_force() const { return read() == kHostile; }

 private:
#if defined(__x86_64__)
  // MXCSR: all exceptions masked, FTZ (bit 15), round up (bit 14), DAZ (bit 6).
  static constexpr std::uint64_t kHostile = 0xDFC0;
  static std::uint64_t read() {
    // The sticky flags are whatever the test's own arithmetic left.
    return _mm_getcsr() & ~std::uint64_t{0x3F};
  }
  static void write(std::uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  // FPCR: FZ (bit 24), round up (bit 22).
  static constexpr std::uint64_t kHostile = 1u << 24 | 1u << 22;
  static std::uint64_t read() {
    std::uint64_t mode = 0;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void write(std::uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

  std::uint64_t saved_;
};

// Runs `kernel()` under a hostile mode; false when it did not give the mode back.
template <class Kernel>
[[nodiscard]] bool run_in_hostile_mode(const Kernel& kernel) {
  const HostileFpMode mode;
  kernel();
  return mode.is_in_force();
}

}  // namespace slackwater::kernels::test

#endif  // SLACKWATER_KERNELS_TEST_SUPPORT_H_
