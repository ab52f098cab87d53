#include "slackwater/base/ids.h"

#include <algorithm>
#include <array>
#include <bit>
#include <limits>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include <gtest/gtest.h>

namespace slackwater {
namespace {

// Whether the expression compiles.
template <class A, class B>
concept Comparable = requires(A a, B b) {
  a == b;
};
template <class A, class B>
concept Ordered = requires(A a, B b) {
  a < b;
};
template <class A, class B>
concept Addable = requires(A a, B b) {
  a + b;
};
template <class A>
concept Incrementable = requires(A a) {
  ++a;
};

TEST(StrongInt, CannotBeMixedWithAnotherIdOrANumber) {
  static_assert(!std::is_convertible_v<SlotId, BlockOrdinal>);
  static_assert(!std::is_constructible_v<SlotId, BlockOrdinal>);
  static_assert(!std::is_assignable_v<SlotId&, BlockOrdinal>);
  static_assert(!std::is_convertible_v<std::int32_t, SlotId>);
  static_assert(!std::is_convertible_v<SlotId, std::int32_t>);
  static_assert(!std::is_assignable_v<SlotId&, std::int32_t>);
  static_assert(!std::is_assignable_v<std::int32_t&, SlotId>);
  static_assert(!Comparable<SlotId, BlockOrdinal> && !Ordered<SlotId, BlockOrdinal>);
  static_assert(!Comparable<SlotId, std::int32_t> && !Ordered<SlotId, std::int32_t>);
  static_assert(!std::is_same_v<SlotId, LayerGroupId> && !Comparable<SlotId, LayerGroupId>);
}

TEST(StrongInt, HasNoArithmetic) {
  static_assert(!Addable<SlotId, SlotId> && !Addable<SlotId, std::int32_t>);
  static_assert(!Incrementable<SlotId>);
}

TEST(StrongInt, ConvertsBothWaysWhenAsked) {
  static_assert(std::is_constructible_v<SlotId, std::int32_t>);
  static_assert(SlotId(7).value() == 7 && static_cast<std::int32_t>(SlotId(7)) == 7);
  constexpr std::uint64_t kMax = std::numeric_limits<std::uint64_t>::max();
  static_assert(RequestId(kMax).value() == kMax);
  EXPECT_EQ(SlotId().value(), 0);
}

TEST(StrongInt, HasTheLayoutOfItsInteger) {
  static_assert(sizeof(SlotId) == sizeof(std::int32_t));
  static_assert(alignof(SlotId) == alignof(std::int32_t));
  static_assert(sizeof(RequestId) == sizeof(std::uint64_t));
  static_assert(std::is_trivially_copyable_v<SlotId> && std::is_standard_layout_v<SlotId>);
  const std::array<SlotId, 3> ids{SlotId(-1), SlotId(0), SlotId(0x12345678)};
  const auto integers = std::bit_cast<std::array<std::int32_t, 3>>(ids);
  EXPECT_EQ(integers, (std::array<std::int32_t, 3>{-1, 0, 0x12345678}));
}

TEST(StrongInt, OrdersAsItsInteger) {
  EXPECT_EQ(SlotId(3), SlotId(3));
  EXPECT_NE(SlotId(3), SlotId(4));
  EXPECT_LT(SlotId(-1), SlotId(0));
  EXPECT_GT(RequestId(~std::uint64_t{0}), RequestId(1));
  std::vector<SlotId> ids{SlotId(2), SlotId(0), SlotId(1)};
  std::sort(ids.begin(), ids.end());
  EXPECT_EQ(ids, (std::vector<SlotId>{SlotId(0), SlotId(1), SlotId(2)}));
}

TEST(StrongInt, NextFollowsAndLeavesTheOriginal) {
  const RequestId first(41);
  EXPECT_EQ(first.next(), RequestId(42));
  EXPECT_EQ(first, RequestId(41));
}

TEST(StrongInt, IsAKeyOfHashTables) {
  std::unordered_set<SlotId> ids;
  for (std::int32_t i = 0; i < 1000; ++i) ids.insert(SlotId(i % 250));
  EXPECT_EQ(ids.size(), 250u);
  EXPECT_TRUE(ids.contains(SlotId(249)));
  EXPECT_FALSE(ids.contains(SlotId(250)));
  EXPECT_EQ(std::hash<SlotId>()(SlotId(99)), std::hash<std::int32_t>()(99));
}

}  // namespace
}  // namespace slackwater
