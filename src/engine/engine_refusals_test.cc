// What can never work is refused at once, with the numbers, and nothing has changed.

#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "engine/engine_checks_test_support.h"

namespace slackwater::engine {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// What creating an engine says.
Error refusal(const EngineConfig& config, bool has_draft_model = false) {
  DemoModels& demo = DemoModels::get();
  const auto device = device::make_cpu_device();
  const auto target = make_language_model(demo.model, demo.context);
  const auto draft = make_language_model(demo.draft, demo.context);
  const auto made = Engine::create({device.get(), &demo.context, target.get(),
                                    has_draft_model ? draft.get() : nullptr, &demo.tokenizer},
                                   config);
  EXPECT_FALSE(made.has_value());
  return made.has_value() ? Error(ErrorCode::kUnavailable, "made") : made.error();
}

TEST(EngineRefusalsSlow, PoolsThatHoldNothing) {
  EngineConfig config = roomy();
  config.pools.num_slots = 0;
  EXPECT_EQ(refusal(config).code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(refusal(config).text(), HasSubstr("0 slots for recurrent states"));
  config = roomy();
  config.pools.num_blocks = 0;
  EXPECT_THAT(refusal(config).text(), HasSubstr("0 blocks for attention"));
  config.pools.num_slots = 0;
  EXPECT_THAT(refusal(config).text(), HasSubstr("0 slots and 0 blocks and 0 bytes"));
  config.pools.num_slots = -3;
  EXPECT_EQ(refusal(config).code(), ErrorCode::kInvalidArgument);
  config = roomy();
  config.pools.device_bytes = 1 << 20;
  EXPECT_THAT(refusal(config).text(), HasSubstr("give slots and blocks, or bytes"));
}

// Between nothing and one save there is nothing that a host could be of use for.
TEST(EngineRefusalsSlow, AHostThatHoldsNoSave) {
  for (const DrafterKind drafter : {DrafterKind::kNone, DrafterKind::kMtp}) {
    EngineConfig config = roomy();
    config.speculation.drafter = drafter;
    for (const std::int64_t bytes : {std::int64_t{1}, std::int64_t{1000}}) {
      config.pools.host_bytes = bytes;
      const Error error = refusal(config);
      EXPECT_EQ(error.code(), ErrorCode::kInvalidArgument);
      EXPECT_THAT(error.text(), AllOf(HasSubstr(std::to_string(bytes) + " bytes of host memory"),
                                      HasSubstr("or 0 for no host tier")));
    }
    config.pools.host_bytes = -1;
    EXPECT_THAT(refusal(config).text(), HasSubstr("-1 bytes on the host"));
  }
}

TEST(EngineRefusalsSlow, DraftersThatDoNotFit) {
  EngineConfig config = roomy();
  config.speculation.drafter = DrafterKind::kDraftModel;
  EXPECT_THAT(refusal(config).text(), HasSubstr("drafter model without a draft model"));
  config.speculation.max_drafts = 16;
  EXPECT_THAT(refusal(config, true).text(), HasSubstr("max_drafts is 16; use 1 to 15"));
  config.speculation.max_drafts = 0;
  EXPECT_THAT(refusal(config, true).text(), HasSubstr("max_drafts is 0"));
  config = roomy();
  config.speculation.drafter = DrafterKind::kNgram;
  config.speculation.ngram_min = 5;
  EXPECT_THAT(refusal(config).text(), HasSubstr("n-grams of 5 to 4 tokens"));
  EXPECT_EQ(parse_drafter("eagle").error().code(), ErrorCode::kInvalidArgument);
  EXPECT_THAT(parse_drafter("eagle").error().text(), AllOf(HasSubstr("eagle"), HasSubstr("ngram")));
}

TEST(EngineRefusalsSlow, ASchedulerThatCanScheduleNothing) {
  EngineConfig config = roomy();
  config.scheduler.max_batch_size = 0;
  EXPECT_THAT(refusal(config).text(), HasSubstr("max_batch_size is 0"));
  config = roomy();
  config.rebalance_check_interval = 0;
  EXPECT_THAT(refusal(config).text(), HasSubstr("every 0 steps; use 1 or more"));
  config = roomy();
  config.scheduler.beam_width = 4;
  EXPECT_EQ(refusal(config).code(), ErrorCode::kUnimplemented);
}

// Requests: each is refused with its numbers, and whoever is running does not notice.
TEST(EngineRefusalsSlow, RequestsThatCanNeverFitOrMeanNothing) {
  EngineConfig config = roomy();
  config.pools.num_blocks = 4;
  DemoEngine engine(config);
  const RequestId first = engine.ask(warm_request(1, 20));
  ASSERT_TRUE(engine->step().has_value());
  const auto refused = [&](const GenerationRequest& request) {
    const Result<RequestId> id = engine->submit(request);
    EXPECT_FALSE(id.has_value());
    return id.has_value() ? Error(ErrorCode::kUnavailable, "accepted") : id.error();
  };
  GenerationRequest request = demo_request(0);
  request.prompt_tokens = long_prompt(130);
  Error error = refused(request);
  EXPECT_EQ(error.code(), ErrorCode::kOutOfRange);
  EXPECT_THAT(error.text(),
              AllOf(HasSubstr("a prompt of 130 tokens and an answer of up to 24 need room for 154"),
                    HasSubstr("the pools hold " + std::to_string(engine->max_sequence_length()))));
  request = demo_request(0);
  request.prompt_tokens.clear();
  EXPECT_THAT(refused(request).text(), HasSubstr("the prompt has no tokens"));
  request = demo_request(0);
  request.prompt_tokens.push_back(1 << 30);
  EXPECT_EQ(refused(request).code(), ErrorCode::kOutOfRange);
  request = demo_request(0);
  request.max_tokens = -1;
  EXPECT_THAT(refused(request).text(), HasSubstr("max_tokens -1"));
  request = demo_request(0);
  request.num_choices = 0;
  EXPECT_THAT(refused(request).text(), HasSubstr("num_choices 0 is out of range; use 1 to 128"));
  request = demo_request(0);
  request.num_top_logprobs = 21;
  EXPECT_THAT(refused(request).text(), HasSubstr("num_top_logprobs 21"));
  request = demo_request(0);
  request.sampling.temperature = -1;
  EXPECT_EQ(refused(request).code(), ErrorCode::kInvalidArgument);
  request = demo_request(0);
  request.stop = {""};
  EXPECT_EQ(refused(request).code(), ErrorCode::kInvalidArgument);
  engine.run();
  EXPECT_EQ(engine->statistics().submitted, 1);
  expect_as_alone(engine, first, warm_request(1, 20));
  expect_nothing_left(*engine);
}

// The longest that is accepted does run, with every drafter, and alone in its pools.
TEST(EngineRefusalsSlow, TheLongestThatIsAcceptedFits) {
  for (const Setting& setting : every_setting()) {
    for (const std::int64_t host_bytes : {std::int64_t{0}, std::int64_t{64} << 20}) {
      SCOPED_TRACE(name_of(setting));
      EngineConfig config = roomy();
      config.loop = setting.loop;
      config.speculation.drafter = setting.drafter;
      config.speculation.adapt_length = false;
      config.pools.num_slots = 2;
      config.pools.num_blocks = 4;
      config.pools.host_bytes = host_bytes;
      DemoEngine engine(config);
      const std::int64_t longest = engine->max_sequence_length();
      ASSERT_GT(longest, 40);
      for (int i = 0; i < 2; ++i) {
        GenerationRequest request;
        request.prompt_tokens = long_prompt(static_cast<std::size_t>(longest) - 30, 3);
        request.max_tokens = 30;
        request.ignore_eos = true;
        const RequestId id = engine.ask(request);
        engine.run();
        expect_as_alone(engine, id, request);
        request.max_tokens = 31;
        EXPECT_FALSE(engine->submit(request).has_value());
      }
      expect_nothing_left(*engine);
    }
  }
}

TEST(EngineRefusalsSlow, RequestsThatNeverWereAreNothingToHoldOrCancel) {
  DemoEngine engine(roomy());
  engine->hold(RequestId(7), HoldPolicy::kSuspend);
  engine->release(RequestId(7));
  engine->suspend(RequestId(7));
  engine->cancel(RequestId(7));
  const Result<bool> stepped = engine->step();
  ASSERT_TRUE(stepped.has_value());
  EXPECT_FALSE(*stepped);
}

}  // namespace
}  // namespace slackwater::engine
