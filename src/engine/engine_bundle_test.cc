// Requests over a restart: a bundle is written in the middle of speculation, and another engine
// goes on with it.

#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "engine/saved_request.h"
#include "testing/temporary_directory.h"

namespace slackwater::engine {
namespace {

EngineConfig small(DrafterKind drafter, LoopKind loop) {
  EngineConfig config = roomy();
  config.speculation.drafter = drafter;
  config.loop = loop;
  config.pools.num_slots = 4;
  config.pools.num_blocks = 8;
  return config;
}

struct Case {
  DrafterKind drafter;
  LoopKind loop;
  hybrid::ReplayPlacement placement;
};

class EngineBundle : public testing::TestWithParam<Case> {};

TEST_P(EngineBundle, AnotherEngineGoesOnWithTheSameTokens) {
  const TemporaryDirectory directory;
  EngineConfig config = small(GetParam().drafter, GetParam().loop);
  config.placement = GetParam().placement;
  std::map<RequestId, Answer> before;
  std::vector<GenerationRequest> asked;
  {
    DemoEngine engine(config);
    for (std::size_t i = 0; i < 6; ++i) {
      GenerationRequest request = demo_request(i, 30);
      request.sampling.temperature = i % 2 == 0 ? 0.0F : 0.8F;
      request.sampling.seed = i;
      request.sampling.frequency_penalty = i == 3 ? 0.5F : 0.0F;
      request.num_choices = i == 4 ? 2 : 1;
      engine.ask(request);
      asked.push_back(request);
    }
    for (int i = 0; i < 9; ++i) ASSERT_TRUE(*engine->step());
    const Result<void> saved = engine->save_bundle(directory.path() / "bundle");
    ASSERT_TRUE(saved.has_value()) << saved.error().text();
    before = engine.answers();
    // Whoever wrote it goes on, too.
    engine.run();
    EXPECT_EQ(engine.count_differences(), 0);
  }
  DemoEngine engine(config);
  std::map<RequestId, Answer> after = before;
  const auto resumed =
      engine->load_bundle(directory.path() / "bundle", [&](const RequestOutput& output) {
        Answer& answer = after[output.request];
        for (const OutputToken& token : output.tokens) answer.tokens.push_back(token.token);
        answer.text += output.text;
        answer.finish_reason = output.finish_reason;
      });
  ASSERT_TRUE(resumed.has_value()) << resumed.error().text();
  ASSERT_GE(resumed->size(), 3U);
  for (const ResumedRequest& request : *resumed) {
    EXPECT_EQ(request.answer, before[request.id].tokens);
    EXPECT_EQ(request.text, before[request.id].text);
  }
  engine->audit();
  engine.run();
  for (const ResumedRequest& request : *resumed) {
    const model::GenerateResult alone = DemoEngine::answer_alone(request.request, request.choice);
    EXPECT_EQ(after[request.id].tokens, alone.tokens) << request.id.value();
    EXPECT_EQ(after[request.id].text, alone.text) << request.id.value();
  }
  EXPECT_EQ(engine->statistics().hybrid.certificate_failures, 0);
  // What was computed before the restart is not computed again, but for those that had to wait.
  EXPECT_EQ(engine->statistics().recomputed_tokens, 0);
  const RequestId next = engine.ask(demo_request(0, 2));
  EXPECT_GT(next.value(), resumed->back().id.value());
}

INSTANTIATE_TEST_SUITE_P(
    All, EngineBundle,
    testing::Values(Case{DrafterKind::kNone, LoopKind::kPlain, hybrid::ReplayPlacement::kInPool},
                    Case{DrafterKind::kNgram, LoopKind::kOverlap, hybrid::ReplayPlacement::kInPool},
                    Case{DrafterKind::kMtp, LoopKind::kOverlap, hybrid::ReplayPlacement::kInPool},
                    Case{DrafterKind::kMtp, LoopKind::kPlain, hybrid::ReplayPlacement::kBesidePool},
                    Case{DrafterKind::kDraftModel, LoopKind::kOverlap,
                         hybrid::ReplayPlacement::kInPool}),
    [](const testing::TestParamInfo<Case>& tested) {
      return std::string(to_string(tested.param.drafter)) + "_" +
             std::string(to_string(tested.param.loop)) +
             (tested.param.placement == hybrid::ReplayPlacement::kInPool ? "_in" : "_beside");
    });

TEST(EngineBundleRefusals, NameWhatDiffersAndChangeNothing) {
  const TemporaryDirectory directory;
  const EngineConfig config = small(DrafterKind::kMtp, LoopKind::kPlain);
  DemoEngine writer(config);
  for (std::size_t i = 0; i < 3; ++i) writer.ask(demo_request(i, 30));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(*writer->step());
  const auto path = directory.path() / "bundle";
  ASSERT_TRUE(writer->save_bundle(path).has_value());
  EXPECT_EQ(writer->save_bundle(path).error().code(), ErrorCode::kFailedPrecondition)
      << "there is a bundle already";

  EngineConfig other = config;
  other.speculation.max_drafts = 2;
  DemoEngine of_another(other);
  const auto refused = of_another->load_bundle(path, {});
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kInvalidArgument) << refused.error().text();
  EXPECT_FALSE(of_another->has_work());

  // A flipped bit in the last request: those before it are not taken up either.
  DemoEngine reader(config);
  const auto file = path / "requests.slk";
  const auto size = static_cast<std::streamoff>(std::filesystem::file_size(file));
  {
    std::fstream bytes(file, std::ios::in | std::ios::out | std::ios::binary);
    bytes.seekg(size - 1000);
    const char value = static_cast<char>(bytes.get() ^ 4);
    bytes.seekp(size - 1000);
    bytes.put(value);
  }
  const auto damaged = reader->load_bundle(path, {});
  ASSERT_FALSE(damaged.has_value());
  EXPECT_EQ(damaged.error().code(), ErrorCode::kDataLoss) << damaged.error().text();
  EXPECT_FALSE(reader->has_work());
  reader->audit();
  EXPECT_TRUE(reader->view().empty());
}

TEST(SavedRequest, EveryBeginningOfARecordIsRefused) {
  SavedRequest request;
  request.id = RequestId(7);
  request.asked = demo_request(1);
  request.asked.stop = {"end"};
  request.asked.logit_bias = {{3, -1.5F}};
  request.asked.scope.salt = 9;
  request.tokens = request.asked.prompt_tokens;
  request.tokens.push_back(5);
  request.drafts = {1, 2};
  const std::vector<std::byte> record = encode(request);
  const Result<SavedRequest> whole = decode_request(record);
  ASSERT_TRUE(whole.has_value());
  EXPECT_EQ(encode(*whole), record);
  EXPECT_EQ(whole->tokens, request.tokens);
  for (std::size_t size = 0; size < record.size(); ++size) {
    EXPECT_FALSE(decode_request(std::span(record).first(size)).has_value()) << size;
  }
}

}  // namespace
}  // namespace slackwater::engine
