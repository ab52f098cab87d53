#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "slackwater/engine/config.h"
#include "slackwater/engine/request.h"
#include "slackwater/engine/statistics.h"

namespace slackwater::engine {
namespace {

TEST(Names, EveryDrafterIsParsedFromItsName) {
  for (const auto& [kind, name] :
       {std::pair(DrafterKind::kNone, "none"), std::pair(DrafterKind::kNgram, "ngram"),
        std::pair(DrafterKind::kMtp, "mtp"), std::pair(DrafterKind::kDraftModel, "model")}) {
    EXPECT_EQ(to_string(kind), name);
    ASSERT_TRUE(parse_drafter(name).has_value()) << name;
    EXPECT_EQ(*parse_drafter(name), kind);
  }
}

TEST(Names, EveryLoopIsParsedFromItsName) {
  for (const auto& [kind, name] :
       {std::pair(LoopKind::kPlain, "plain"), std::pair(LoopKind::kOverlap, "overlap")}) {
    EXPECT_EQ(to_string(kind), name);
    ASSERT_TRUE(parse_loop(name).has_value()) << name;
    EXPECT_EQ(*parse_loop(name), kind);
  }
}

TEST(Names, AnUnknownNameIsRefusedWithThoseThereAre) {
  const auto drafter = parse_drafter("eagle");
  ASSERT_FALSE(drafter.has_value());
  EXPECT_EQ(drafter.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(drafter.error().text(), "unknown drafter 'eagle'; known: none, ngram, mtp, model");
  const auto loop = parse_loop("");
  ASSERT_FALSE(loop.has_value());
  EXPECT_EQ(loop.error().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(loop.error().text(), "unknown loop ''; known: plain, overlap");
  EXPECT_FALSE(parse_drafter("Ngram").has_value());
}

TEST(Names, ReasonsAndStatesAreTheirHeadersWords) {
  EXPECT_EQ(to_string(FinishReason::kLength), "length");
  EXPECT_EQ(to_string(FinishReason::kStop), "stop");
  EXPECT_EQ(to_string(FinishReason::kCancelled), "cancelled");
  EXPECT_EQ(to_string(FinishReason::kError), "error");
  EXPECT_EQ(to_string(RequestState::kWaiting), "waiting");
  EXPECT_EQ(to_string(RequestState::kContext), "context");
  EXPECT_EQ(to_string(RequestState::kRunning), "running");
  EXPECT_EQ(to_string(RequestState::kSuspended), "suspended");
  EXPECT_EQ(to_string(RequestState::kFinished), "finished");
}

TEST(NamesDeathTest, AValueThatIsNoneOfThemIsABug) {
  EXPECT_DEATH(static_cast<void>(to_string(static_cast<RequestState>(9))), "request state 9");
}

}  // namespace
}  // namespace slackwater::engine
