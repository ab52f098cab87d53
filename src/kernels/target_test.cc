#include "slackwater/kernels/target.h"

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater::kernels {
namespace {

using testing::HasSubstr;

constexpr Target kAllTargets[] = {Target::kReference, Target::kAvx2, Target::kAvx512,
                                  Target::kNeon};

bool is_runnable(Target target) { return std::ranges::count(runnable_targets(), target) == 1; }

// Sets $SLACKWATER_TARGET for its scope.
class TargetVariable {
 public:
  explicit TargetVariable(const char* value) {
    if (const char* before = std::getenv(kName); before != nullptr) before_ = before;
    if (value != nullptr) {
      ::setenv(kName, value, 1);
    } else {
      ::unsetenv(kName);
    }
  }
  ~TargetVariable() {
    if (before_.has_value()) {
      ::setenv(kName, before_->c_str(), 1);
    } else {
      ::unsetenv(kName);
    }
  }
  TargetVariable(const TargetVariable&) = delete;
  TargetVariable& operator=(const TargetVariable&) = delete;

 private:
  static constexpr const char* kName = "SLACKWATER_TARGET";
  std::optional<std::string> before_;
};

TEST(Target, TheReferenceRunsEverywhereAndComesFirst) {
  ASSERT_FALSE(runnable_targets().empty());
  EXPECT_EQ(runnable_targets().front(), Target::kReference);
}

TEST(Target, RunnableTargetsAreListedOnceSlowestFirst) {
  EXPECT_TRUE(std::ranges::is_sorted(runnable_targets(), {}, vector_lanes));
  EXPECT_EQ(std::ranges::adjacent_find(runnable_targets()), runnable_targets().end());
}

TEST(Target, ThisMachineRunsAVectorForm) {
  if (runnable_targets().size() == 1) {
    GTEST_SKIP() << "no fused vectors here: every comparison with the reference is empty";
  }
  EXPECT_GT(vector_lanes(runnable_targets().back()), 1);
}

TEST(Target, NamesOfRunnableTargetsRoundTrip) {
  for (const Target target : runnable_targets()) {
    const Result<Target> parsed = parse_target(to_string(target));
    ASSERT_TRUE(parsed.has_value()) << to_string(target);
    EXPECT_EQ(*parsed, target);
  }
}

TEST(Target, AKnownNameThatCannotRunHereIsUnimplementedAndSaysWhatCan) {
  int num_refused = 0;
  for (const Target target : kAllTargets) {
    if (is_runnable(target)) continue;
    ++num_refused;
    const Result<Target> parsed = parse_target(to_string(target));
    ASSERT_FALSE(parsed.has_value()) << to_string(target);
    EXPECT_EQ(parsed.error().code(), ErrorCode::kUnimplemented);
    EXPECT_THAT(parsed.error().text(), HasSubstr(std::string(to_string(target))));
    EXPECT_THAT(parsed.error().text(), HasSubstr("reference"));
  }
  // No machine is both x86-64 and AArch64.
  EXPECT_GE(num_refused, 1);
}

TEST(Target, AnUnknownNameIsInvalidAndListsWhatRuns) {
  for (const char* name : {"", "avx", "AVX2", "avx2 ", "emu128"}) {
    const Result<Target> parsed = parse_target(name);
    ASSERT_FALSE(parsed.has_value()) << name;
    EXPECT_EQ(parsed.error().code(), ErrorCode::kInvalidArgument);
    for (const Target target : runnable_targets()) {
      EXPECT_THAT(parsed.error().text(), HasSubstr(std::string(to_string(target))));
    }
  }
}

TEST(Target, BestIsTheFastestThatRunsUnlessTheEnvironmentChooses) {
  {
    const TargetVariable unset(nullptr);
    EXPECT_EQ(best_target(), runnable_targets().back());
  }
  for (const Target target : runnable_targets()) {
    const TargetVariable variable(std::string(to_string(target)).c_str());
    EXPECT_EQ(best_target(), target);
  }
}

TEST(TargetDeathTest, AnEnvironmentThatNamesNoTargetStopsTheProgram) {
  const TargetVariable variable("sse2");
  EXPECT_DEATH(best_target(), "SLACKWATER_TARGET: unknown target 'sse2'");
}

TEST(Target, LanesAreThoseOfItsVectors) {
  EXPECT_EQ(vector_lanes(Target::kReference), 1);
  EXPECT_EQ(vector_lanes(Target::kAvx2), 8);
  EXPECT_EQ(vector_lanes(Target::kAvx512), 16);
  EXPECT_EQ(vector_lanes(Target::kNeon), 4);
}

}  // namespace
}  // namespace slackwater::kernels
