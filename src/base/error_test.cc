#include "slackwater/base/error.h"

#include <memory>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater {
namespace {

Result<int> parse_digit(char text) {
  if (text < '0' || text > '9') {
    return make_error(ErrorCode::kInvalidArgument, "'{}' is not a digit", text);
  }
  return text - '0';
}

Result<void> require_even(int value) {
  if (value % 2 != 0) return make_error(ErrorCode::kOutOfRange, "{} is odd; give 0 to 8", value);
  return {};
}

Result<int> half_of(char text, std::vector<std::string>& reached) {
  SLACKWATER_ASSIGN_OR_RETURN(const int digit, parse_digit(text));
  reached.push_back("digit");
  SLACKWATER_RETURN_IF_ERROR(require_even(digit));
  reached.push_back("even");
  return digit / 2;
}

TEST(Error, CarriesItsCodeAndFormattedText) {
  const Result<int> result = parse_digit('x');
  ASSERT_FALSE(result.has_value());
  EXPECT_EQ(result.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(result.error().text(), "'x' is not a digit");
}

TEST(Error, ContextGoesInFrontAndKeepsTheCode) {
  const Error inner(ErrorCode::kDataLoss, "checksum 1f, want 2e");
  const Error outer = inner.with_context("page 7").with_context("model.safetensors");
  EXPECT_EQ(outer.code(), ErrorCode::kDataLoss);
  EXPECT_EQ(outer.text(), "model.safetensors: page 7: checksum 1f, want 2e");
  EXPECT_EQ(inner.text(), "checksum 1f, want 2e");
}

TEST(Error, EveryCodeHasItsOwnName) {
  constexpr ErrorCode kAll[] = {ErrorCode::kInvalidArgument,   ErrorCode::kOutOfRange,
                                ErrorCode::kResourceExhausted, ErrorCode::kFailedPrecondition,
                                ErrorCode::kNotFound,          ErrorCode::kDataLoss,
                                ErrorCode::kUnavailable,       ErrorCode::kUnimplemented};
  std::vector<std::string_view> names;
  for (const ErrorCode code : kAll) names.push_back(to_string(code));
  EXPECT_THAT(names, testing::ElementsAre("InvalidArgument", "OutOfRange", "ResourceExhausted",
                                          "FailedPrecondition", "NotFound", "DataLoss",
                                          "Unavailable", "Unimplemented"));
}

TEST(Error, MacrosGoOnWithTheValue) {
  std::vector<std::string> reached;
  const Result<int> half = half_of('8', reached);
  ASSERT_TRUE(half.has_value());
  EXPECT_EQ(*half, 4);
  EXPECT_THAT(reached, testing::ElementsAre("digit", "even"));
}

TEST(Error, AssignOrReturnLeavesAtTheErrorWithItsText) {
  std::vector<std::string> reached;
  const Result<int> half = half_of('?', reached);
  ASSERT_FALSE(half.has_value());
  EXPECT_EQ(half.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(half.error().text(), "'?' is not a digit");
  EXPECT_TRUE(reached.empty());
}

TEST(Error, ReturnIfErrorLeavesAtTheErrorWithItsText) {
  std::vector<std::string> reached;
  const Result<int> half = half_of('7', reached);
  ASSERT_FALSE(half.has_value());
  EXPECT_EQ(half.error().code(), ErrorCode::kOutOfRange);
  EXPECT_EQ(half.error().text(), "7 is odd; give 0 to 8");
  EXPECT_THAT(reached, testing::ElementsAre("digit"));
}

TEST(Error, AssignOrReturnMovesWhatCannotBeCopied) {
  const auto make = []() -> Result<std::unique_ptr<int>> { return std::make_unique<int>(5); };
  const auto use = [&]() -> Result<int> {
    SLACKWATER_ASSIGN_OR_RETURN(const std::unique_ptr<int> first, make());
    std::unique_ptr<int> second;
    SLACKWATER_ASSIGN_OR_RETURN(second, make());
    return *first + *second;
  };
  EXPECT_EQ(use().value(), 10);
}

TEST(Error, ReturnIfErrorEvaluatesItsExpressionOnce) {
  int calls = 0;
  const auto fails = [&]() -> Result<void> {
    ++calls;
    return make_error(ErrorCode::kUnavailable, "call {}", calls);
  };
  const auto use = [&]() -> Result<int> {
    SLACKWATER_RETURN_IF_ERROR(fails());
    return 1;
  };
  EXPECT_EQ(use().error().text(), "call 1");
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace slackwater
