#include "slackwater/base/aligned_buffer.h"

#include <algorithm>
#include <bit>
#include <cstdint>

#include <gtest/gtest.h>

#include "slackwater/base/ids.h"

namespace slackwater {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;

template <class T>
std::size_t misalignment(const AlignedBuffer<T>& buffer, std::size_t alignment) {
  return std::bit_cast<std::uintptr_t>(buffer.data()) % alignment;
}

// Leaves non-zero bytes where the next allocation of this size is likely to come from.
template <class T>
void dirty_the_heap(std::size_t size) {
  AlignedBuffer<T> buffer(size);
  std::memset(static_cast<void*>(buffer.data()), 0xA5, size * sizeof(T));
}

template <class T>
void expect_aligned_and_zero(std::size_t size) {
  dirty_the_heap<T>(size);
  const AlignedBuffer<T> buffer(size);
  ASSERT_EQ(buffer.size(), size);
  ASSERT_EQ(buffer.span().size(), size);
  EXPECT_EQ(misalignment(buffer, kBufferAlignment), 0u) << size;
  EXPECT_TRUE(std::all_of(buffer.span().begin(), buffer.span().end(), [](T element) {
    return element == T{};
  })) << size;
}

TEST(AlignedBuffer, IsAlignedAndZeroAtEverySize) {
  for (const std::size_t size : {1, 3, 7, 15, 16, 17, 63, 64, 65, 500, 4096, 100'001}) {
    expect_aligned_and_zero<float>(size);
    expect_aligned_and_zero<std::uint8_t>(size);
    expect_aligned_and_zero<std::uint64_t>(size);
    expect_aligned_and_zero<SlotId>(size);
  }
}

TEST(AlignedBuffer, LiesOnAHugePageFromFourMebibytesOn) {
  constexpr std::size_t kLarge = std::size_t{4} << 20;
  for (const std::size_t bytes : {kLarge, kLarge + 1, 3 * kHugePage - 5}) {
    dirty_the_heap<std::uint8_t>(bytes);
    const AlignedBuffer<std::uint8_t> buffer(bytes);
    EXPECT_EQ(misalignment(buffer, kHugePage), 0u) << bytes;
    EXPECT_EQ(std::count(buffer.span().begin(), buffer.span().end(), 0),
              static_cast<std::ptrdiff_t>(bytes));
  }
}

TEST(AlignedBuffer, HoldsWhatIsWritten) {
  AlignedBuffer<int> buffer(5);
  for (std::size_t i = 0; i < buffer.size(); ++i) buffer[i] = static_cast<int>(i * i);
  const AlignedBuffer<int>& view = buffer;
  EXPECT_EQ(view[4], 16);
  EXPECT_EQ(view.span()[3], 9);
  EXPECT_EQ(view.data()[2], 4);
  EXPECT_FALSE(view.empty());
}

TEST(AlignedBuffer, IsNullWithoutElements) {
  const AlignedBuffer<float> none;
  const AlignedBuffer<float> zero(0);
  EXPECT_EQ(none.data(), nullptr);
  EXPECT_EQ(zero.data(), nullptr);
  EXPECT_TRUE(zero.empty());
  EXPECT_TRUE(zero.span().empty());
}

TEST(AlignedBuffer, MovesItsMemoryAndIsEmptyAfterwards) {
  static_assert(!std::is_copy_constructible_v<AlignedBuffer<int>>);
  AlignedBuffer<int> source(10);
  source[9] = 7;
  const int* const data = source.data();
  AlignedBuffer<int> target(std::move(source));
  EXPECT_EQ(target.data(), data);
  EXPECT_EQ(target.size(), 10u);
  EXPECT_EQ(source.data(), nullptr);  // NOLINT(bugprone-use-after-move): this is the claim.
  EXPECT_EQ(source.size(), 0u);

  AlignedBuffer<int> assigned(3);
  assigned = std::move(target);
  EXPECT_EQ(assigned.data(), data);
  EXPECT_EQ(assigned[9], 7);
  EXPECT_EQ(target.size(), 0u);  // NOLINT(bugprone-use-after-move): this is the claim.
}

TEST(AlignedBufferDeathTest, RefusesASizeWhoseBytesWrap) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  constexpr std::size_t kWraps = (std::numeric_limits<std::size_t>::max() / 8) + 2;
  EXPECT_DEATH(AlignedBuffer<std::uint64_t>{kWraps}, "2305843009213693953 elements of 8 bytes");
}

}  // namespace
}  // namespace slackwater
