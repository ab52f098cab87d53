#ifndef SLACKWATER_ENGINE_ENGINE_TEST_SUPPORT_H_
#define SLACKWATER_ENGINE_ENGINE_TEST_SUPPORT_H_

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/device/cpu_device.h"
#include "slackwater/engine/engine.h"
#include "slackwater/model/generate.h"

namespace slackwater::engine {

// The demo models, loaded once.
struct DemoModels {
  ThreadPool pool{2};
  kernels::ExecutionContext context{pool};
  // The oracle's: an engine may still be running when it is asked.
  ThreadPool solo_pool{1};
  kernels::ExecutionContext solo_context{solo_pool};
  model::Model model = *model::Model::load("models/demo", context, {});
  model::Model draft = *model::Model::load("models/demo-draft", context, {});
  model::Tokenizer tokenizer = *model::Tokenizer::load("models/demo", model.config().vocab_size);

  static DemoModels& get() {
    static auto* const models = new DemoModels;
    return *models;
  }

  std::vector<TokenId> encode(const std::string& text) const {
    return *model::encode_prompt(model.config(), tokenizer, text);
  }
};

inline std::vector<std::string> demo_prompts() {
  return {
      "lighthouse (noun):",
      "wander (verb):",
      "And it came to pass in those days, that",
      "the sea and the shore, the sea and the shore, the sea and the shore, the sea and",
      "oak, oak tree (noun): a deciduous tree\nelm, elm tree (noun): any of various trees\nash, "
      "ash tree (noun):",
      "In the beginning God created the heaven and the earth. And the earth was without form, "
      "and void; and darkness was upon the face of the deep.",
      "a",
      "river (noun): a large natural stream of water\nlake (noun): a body of water\nbrook "
      "(noun):"};
}

// What an answer came to.
struct Answer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::string text;
  std::optional<FinishReason> finish_reason;
  std::optional<Error> error;
  std::int64_t num_reused = 0;
};

// An engine over the demo model, and what came out of it.
class DemoEngine {
 public:
  explicit DemoEngine(EngineConfig config, device::Device* device = nullptr) {
    DemoModels& demo = DemoModels::get();
    if (device == nullptr) {
      own_device_ = device::make_cpu_device();
      device = own_device_.get();
    }
    target_ = make_language_model(demo.model, demo.context);
    draft_ = make_language_model(demo.draft, demo.context);
    Result<std::unique_ptr<Engine>> made = Engine::create(
        {device, &demo.context, target_.get(), draft_.get(), &demo.tokenizer}, std::move(config));
    EXPECT_TRUE(made.has_value()) << made.error().text();
    engine_ = *std::move(made);
  }

  Engine& operator*() { return *engine_; }
  Engine* operator->() { return engine_.get(); }

  // Submits, and remembers what is to come.
  RequestId ask(GenerationRequest request) {
    request.on_output = [this](const RequestOutput& output) { note(output); };
    const Result<RequestId> id = engine_->submit(request);
    EXPECT_TRUE(id.has_value()) << id.error().text();
    asked_.emplace(*id, std::move(request));
    return *id;
  }
  void note(const RequestOutput& output) {
    Answer& answer = answers_[output.request];
    EXPECT_FALSE(answer.finish_reason.has_value()) << "output after the last one";
    for (const OutputToken& token : output.tokens) {
      answer.tokens.push_back(token.token);
      answer.logprobs.push_back(token.logprob);
    }
    answer.text += output.text;
    answer.finish_reason = output.finish_reason;
    answer.error = output.error;
    answer.num_reused = output.num_reused_tokens;
  }
  const Answer& answer(RequestId id) { return answers_[id]; }
  const std::map<RequestId, Answer>& answers() const { return answers_; }

  void run() {
    bool goes_on = true;
    while (goes_on) {
      const Result<bool> stepped = engine_->step();
      ASSERT_TRUE(stepped.has_value()) << stepped.error().text();
      goes_on = *stepped;
    }
  }

  // Differences from the oracle over all answers.
  int count_differences() {
    int differences = 0;
    for (const auto& [id, request] : asked_) {
      for (std::int32_t choice = 0; choice < request.num_choices; ++choice) {
        const Answer& mine = answers_[RequestId(id.value() + static_cast<std::uint64_t>(choice))];
        const model::GenerateResult alone = answer_alone(request, choice);
        if (mine.tokens == alone.tokens && mine.text == alone.text) continue;
        ++differences;
        ADD_FAILURE() << "request " << id.value() << " choice " << choice << ": '" << mine.text
                      << "' and alone '" << alone.text << "'";
      }
    }
    return differences;
  }

  static model::GenerateResult answer_alone(const GenerationRequest& request,
                                            std::int32_t choice = 0) {
    DemoModels& demo = DemoModels::get();
    model::GenerateOptions options;
    options.max_tokens = request.max_tokens;
    options.sampling = request.sampling;
    options.sampling.seed =
        kernels::choice_seed(request.sampling.seed, static_cast<std::uint32_t>(choice));
    options.bias = request.logit_bias;
    options.stop = request.stop;
    return *model::generate_solo(demo.model, demo.tokenizer, demo.solo_context,
                                 request.prompt_tokens, options);
  }

 private:
  std::unique_ptr<device::Device> own_device_;
  std::unique_ptr<LanguageModel> target_;
  std::unique_ptr<LanguageModel> draft_;
  std::map<RequestId, GenerationRequest> asked_;
  std::map<RequestId, Answer> answers_;
  std::unique_ptr<Engine> engine_;
};

inline GenerationRequest demo_request(std::size_t number, std::int32_t max_tokens = 24) {
  const std::vector<std::string> prompts = demo_prompts();
  GenerationRequest request;
  request.prompt_tokens = DemoModels::get().encode(prompts[number % prompts.size()]);
  request.max_tokens = max_tokens;
  return request;
}

inline EngineConfig roomy() {
  EngineConfig config;
  config.pools.num_slots = 16;
  config.pools.num_blocks = 64;
  config.pools.host_bytes = 64 << 20;
  return config;
}

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_ENGINE_TEST_SUPPORT_H_
