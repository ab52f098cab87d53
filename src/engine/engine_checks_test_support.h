#ifndef SLACKWATER_ENGINE_ENGINE_CHECKS_TEST_SUPPORT_H_
#define SLACKWATER_ENGINE_ENGINE_CHECKS_TEST_SUPPORT_H_

#include <algorithm>
#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "engine/engine_test_support.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/model/forward.h"
#include "slackwater/model/solo_storage.h"
#include "slackwater/model/text_stream.h"

namespace slackwater::engine {

// A drafter and a loop.
struct Setting {
  DrafterKind drafter = DrafterKind::kNone;
  LoopKind loop = LoopKind::kPlain;
};

inline std::vector<Setting> every_setting() {
  std::vector<Setting> all;
  for (const LoopKind loop : {LoopKind::kPlain, LoopKind::kOverlap}) {
    for (const DrafterKind drafter :
         {DrafterKind::kNone, DrafterKind::kNgram, DrafterKind::kMtp, DrafterKind::kDraftModel}) {
      all.push_back({drafter, loop});
    }
  }
  return all;
}

inline std::string name_of(const Setting& setting) {
  return std::string(to_string(setting.drafter)) + "_" + std::string(to_string(setting.loop));
}

// With every drafter in both loops.
class EverySetting : public testing::TestWithParam<Setting> {
 protected:
  static EngineConfig config() {
    EngineConfig config = roomy();
    config.speculation.drafter = GetParam().drafter;
    config.loop = GetParam().loop;
    return config;
  }
};

#define SLACKWATER_WITH_EVERY_SETTING(suite)          \
  INSTANTIATE_TEST_SUITE_P(                           \
      All, suite, testing::ValuesIn(every_setting()), \
      [](const testing::TestParamInfo<Setting>& tested) { return name_of(tested.param); })

// What a request would have got alone, with all that generate_solo does not know: token ids that
// stop, an ignored end of sequence, logprobs.
struct SoloAnswer {
  std::vector<TokenId> tokens;
  std::vector<float> logprobs;
  std::vector<std::vector<TokenId>> top_tokens;
  std::string text;
  FinishReason finish_reason = FinishReason::kLength;
};

// One sequence, token by token.
class SoloRun {
 public:
  explicit SoloRun(const GenerationRequest& request, std::int32_t choice = 0)
      : request_(request),
        storage_(model().config(), capacity()),
        forward_(model(), DemoModels::get().solo_context, {.max_tokens = 64, .max_logits = 1}),
        logits_(static_cast<std::size_t>(model().config().vocab_size)),
        stream_(DemoModels::get().tokenizer, request.stop) {
    parameters_ = request.sampling;
    parameters_.seed =
        kernels::choice_seed(request.sampling.seed, static_cast<std::uint32_t>(choice));
  }

  SoloAnswer run() {
    std::span<const TokenId> prompt = request_.prompt_tokens;
    while (prompt.size() > 64) {
      forward(prompt.first(64));
      prompt = prompt.subspan(64);
    }
    forward(prompt);
    while (std::ssize(answer_.tokens) < request_.max_tokens) {
      const TokenId token = sample();
      if (end_with(token)) return answer_;
      if (position_ + 1 >= model().config().max_length) break;
      if (std::ssize(answer_.tokens) < request_.max_tokens) forward(std::span(&token, 1));
    }
    const model::TextStream::Piece rest = stream_.finish();
    answer_.text += rest.text;
    if (rest.stopped) answer_.finish_reason = FinishReason::kStop;
    return answer_;
  }

 private:
  static const model::Model& model() { return DemoModels::get().model; }
  std::int64_t capacity() const {
    return std::min<std::int64_t>(model().config().max_length,
                                  std::ssize(request_.prompt_tokens) + request_.max_tokens + 1);
  }

  void forward(std::span<const TokenId> tokens) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    const std::array<kernels::StateWrite, 1> writes = {{{count, model::SoloStorage::state_page()}}};
    kernels::SequenceRow row;
    row.num_tokens = count;
    row.first_position = position_;
    row.block_table = storage_.block_table();
    row.state_page = model::SoloStorage::state_page();
    row.writes = writes;
    const std::int32_t last = count - 1;
    model::ForwardBatch batch;
    batch.token_ids = tokens;
    batch.rows = std::span(&row, 1);
    batch.latent_pages = storage_.latent_pages();
    batch.recurrent_pages = storage_.recurrent_pages();
    batch.logit_tokens = std::span(&last, 1);
    forward_.run(batch, logits_.span());
    position_ += count;
  }

  TokenId sample() {
    kernels::SampleRow row;
    row.logits = logits_.data();
    row.parameters = parameters_;
    row.position = position_;
    std::vector<kernels::TokenCount> counts;
    for (const auto& [token, count] : counts_) counts.push_back({token, count});
    row.counts = counts;
    row.bias = request_.logit_bias;
    row.wants_logprob = request_.wants_logprobs || request_.num_top_logprobs > 0;
    std::vector<kernels::TokenLogprob> top(static_cast<std::size_t>(request_.num_top_logprobs));
    row.top_logprobs = top;
    Result<kernels::SampleResult> sampled;
    kernels::sample(DemoModels::get().solo_context, {.vocabulary = model().config().vocab_size,
                                                     .rows = std::span(&row, 1),
                                                     .results = std::span(&sampled, 1)});
    EXPECT_TRUE(sampled.has_value()) << sampled.error().text();
    answer_.tokens.push_back(sampled->token);
    answer_.logprobs.push_back(sampled->logprob);
    std::vector<TokenId>& tokens = answer_.top_tokens.emplace_back();
    for (const kernels::TokenLogprob& best : top) tokens.push_back(best.token);
    ++counts_[sampled->token];
    return sampled->token;
  }

  bool end_with(TokenId token) {
    const auto& eos = model().config().eos_ids;
    const bool is_end = std::ranges::count(request_.stop_token_ids, token) > 0 ||
                        (!request_.ignore_eos && std::ranges::count(eos, token) > 0);
    const model::TextStream::Piece piece = is_end ? stream_.finish() : stream_.push(token);
    answer_.text += piece.text;
    if (is_end || piece.stopped) answer_.finish_reason = FinishReason::kStop;
    return is_end || piece.stopped;
  }

  const GenerationRequest& request_;
  kernels::SamplingParameters parameters_;
  model::SoloStorage storage_;
  model::ForwardPass forward_;
  AlignedBuffer<float> logits_;
  model::TextStream stream_;
  std::map<TokenId, std::int32_t> counts_;
  std::int64_t position_ = 0;
  SoloAnswer answer_;
};

inline SoloAnswer alone(const GenerationRequest& request, std::int32_t choice = 0) {
  return SoloRun(request, choice).run();
}

// The answer of one choice is the one it would have got alone: tokens, text and reason, and the
// logprobs where those were asked for.
inline void expect_as_alone(DemoEngine& engine, RequestId id, const GenerationRequest& request,
                            std::int32_t choice = 0) {
  const SoloAnswer expected = alone(request, choice);
  const Answer& mine = engine.answer(RequestId(id.value() + static_cast<std::uint64_t>(choice)));
  SCOPED_TRACE(testing::Message() << "request " << id.value() << " choice " << choice);
  EXPECT_EQ(mine.tokens, expected.tokens);
  EXPECT_EQ(mine.text, expected.text);
  ASSERT_TRUE(mine.finish_reason.has_value());
  EXPECT_EQ(to_string(*mine.finish_reason), to_string(expected.finish_reason));
  if (request.wants_logprobs || request.num_top_logprobs > 0) {
    EXPECT_EQ(mine.logprobs, expected.logprobs);
  }
}

// A request whose tokens depend on its number in every way.
inline GenerationRequest warm_request(std::size_t number, std::int32_t max_tokens = 24) {
  GenerationRequest request = demo_request(number, max_tokens);
  request.sampling.temperature = number % 2 == 0 ? 0.0F : 0.8F;
  request.sampling.seed = 17 * number + 1;
  return request;
}

// A prompt of so many tokens of the demo model's own words.
inline std::vector<TokenId> long_prompt(std::size_t length, std::size_t salt = 0) {
  const std::vector<std::string> prompts = demo_prompts();
  std::vector<TokenId> tokens = DemoModels::get().encode(prompts[salt % prompts.size()]);
  for (std::size_t i = salt; tokens.size() < length; ++i) {
    const std::vector<TokenId> more = DemoModels::get().encode(prompts[i % prompts.size()]);
    tokens.insert(tokens.end(), more.begin() + 1, more.end());
  }
  tokens.resize(length);
  return tokens;
}

// Nothing of any request is left: no sequence, no save, no slot that cannot be had.
inline void expect_nothing_left(Engine& engine) {
  engine.audit();
  EXPECT_FALSE(engine.has_work());
  EXPECT_TRUE(engine.view().empty());
  const hybrid::HybridView view = engine.state().view();
  EXPECT_TRUE(view.requests.empty());
  for (const hybrid::RegistryView& registry : view.registries) {
    EXPECT_EQ(registry.num_saved, 0) << registry.group_tag;
    EXPECT_EQ(registry.num_reserved, 0) << registry.group_tag;
  }
  cache::KvCacheManager& cache = engine.state().kv_cache();
  EXPECT_EQ(cache.num_open_sequences(), 0u);
  for (const cache::LayerGroupDesc& group : cache.layer_groups().groups()) {
    const cache::TierRoom room = cache.room(storage::Tier::kDevice, group.id);
    EXPECT_EQ(room.unavailable, 0) << group.group_tag;
    EXPECT_EQ(room.free + room.evictable, room.total) << group.group_tag;
  }
  const EngineStatistics statistics = engine.statistics();
  EXPECT_EQ(statistics.hybrid.certificate_failures, 0);
  EXPECT_EQ(statistics.submitted, statistics.finished + statistics.cancelled + statistics.failed);
}

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_ENGINE_CHECKS_TEST_SUPPORT_H_
