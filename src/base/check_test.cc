#include "slackwater/base/check.h"

#include <gtest/gtest.h>

namespace slackwater {
namespace {

TEST(CheckDeathTest, PrintsThePlaceTheExpressionAndTheNumbers) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int slot = 12;
  const int num_slots = 8;
  EXPECT_DEATH(SLACKWATER_CHECK(slot < num_slots, "slot {} of {}", slot, num_slots),
               "check_test\\.cc:[0-9]+: CHECK\\(slot < num_slots\\) failed: slot 12 of 8\n");
}

TEST(CheckDeathTest, SaysWhatWasBeingDone) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const CheckNote outer("reading a file");
  {
    CheckNote inner("reading line 1");
    inner.set("reading line 2");
    EXPECT_DEATH(SLACKWATER_CHECK(false, "no"), "failed: no \\(while reading line 2\\)\n");
  }
  EXPECT_DEATH(SLACKWATER_CHECK(false, "no"), "failed: no \\(while reading a file\\)\n");
}

TEST(Check, EvaluatesItsConditionOnceAndItsTextNever) {
  int evaluations = 0;
  int texts = 0;
  SLACKWATER_CHECK(++evaluations > 0, "text {}", ++texts);
  EXPECT_EQ(evaluations, 1);
  EXPECT_EQ(texts, 0);
}

TEST(Check, IsAnExpressionThatNeedsNoBraces) {
  bool is_else_taken = false;
  if (is_else_taken)
    SLACKWATER_CHECK(true, "not reached");
  else
    is_else_taken = true;
  EXPECT_TRUE(is_else_taken);
}

#if defined(SLACKWATER_DCHECKS)
TEST(CheckDeathTest, DcheckPrintsTheNumbersToo) {
  GTEST_FLAG_SET(death_test_style, "threadsafe");
  const int depth = 3;
  EXPECT_DEATH(SLACKWATER_DCHECK(depth == 0, "depth {}", depth),
               "CHECK\\(depth == 0\\) failed: depth 3");
}
#else
TEST(Check, DcheckIsNotEvaluatedWhenOff) {
  int evaluations = 0;
  SLACKWATER_DCHECK(++evaluations < 0, "evaluated {} times", evaluations);
  EXPECT_EQ(evaluations, 0);
}
#endif

}  // namespace
}  // namespace slackwater
