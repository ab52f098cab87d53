#ifndef SLACKWATER_TESTING_SOLO_ORACLE_H_
#define SLACKWATER_TESTING_SOLO_ORACLE_H_

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/error.h"
#include "slackwater/engine/language_model.h"
#include "slackwater/engine/request.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/kernels/sample.h"
#include "slackwater/model/solo_storage.h"
#include "slackwater/model/text_stream.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater {

// What a request is answered when it is alone.
struct LoneAnswer {
  std::vector<engine::OutputToken> tokens;  // an end-of-sequence token included
  std::string text;                         // empty without a tokenizer
  engine::FinishReason finish_reason = engine::FinishReason::kLength;
  std::optional<Error> error;  // with kError: what kernels::sample refused
};

// The loop of model::generate_solo for whatever an engine runs: one sequence in memory of its own,
// no speculation, no sharing; the prompt in chunks, then token by token.
//
// Ownership: borrows its parts; owns one sequence.
// Threads: one.
// Errors: none; what kernels::sample refuses ends the answer, and stands in it.
class LoneGeneration {
 public:
  LoneGeneration(engine::LanguageModel& model, kernels::ExecutionContext& context,
                 const model::Tokenizer* tokenizer)
      : model_(model), context_(context), tokenizer_(tokenizer) {}

  // The model has room for `chunk` tokens and one row of logits.
  LoneAnswer run(const engine::GenerationRequest& request, std::int32_t choice,
                 std::int32_t chunk) {
    const model::ModelConfig& config = model_.config();
    const std::int64_t capacity = std::min<std::int64_t>(
        config.max_length, std::ssize(request.prompt_tokens) + request.max_tokens);
    storage_.emplace(config, capacity);
    logits_ = AlignedBuffer<float>(static_cast<std::size_t>(config.vocab_size));
    position_ = 0;
    counts_.clear();
    answer_ = {};
    if (tokenizer_ != nullptr) text_.emplace(*tokenizer_, request.stop);
    const std::span<const TokenId> prompt = request.prompt_tokens;
    for (std::size_t done = 0; done < prompt.size();) {
      const std::size_t count = std::min(static_cast<std::size_t>(chunk), prompt.size() - done);
      step(prompt.subspan(done, count));
      done += count;
    }
    while (std::ssize(answer_.tokens) < request.max_tokens) {
      const std::optional<TokenId> sampled = sample(request, choice);
      if (!sampled.has_value()) break;
      const TokenId token = *sampled;
      if (ends(request, token)) {
        answer_.finish_reason = engine::FinishReason::kStop;
        break;
      }
      // The last token is never run: nobody asks for what follows it.
      if (std::ssize(answer_.tokens) == request.max_tokens) break;
      if (position_ + 1 >= config.max_length) break;
      step(std::span(&token, 1));
    }
    if (text_.has_value() && answer_.finish_reason == engine::FinishReason::kLength) push_rest();
    return std::move(answer_);
  }

 private:
  void step(std::span<const TokenId> tokens) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    const kernels::StateWrite write = {count, model::SoloStorage::state_page()};
    kernels::SequenceRow row;
    row.num_tokens = count;
    row.first_position = position_;
    row.block_table = storage_->block_table();
    row.state_page = model::SoloStorage::state_page();
    row.writes = std::span(&write, 1);
    const std::int32_t last = count - 1;
    model::ForwardBatch batch;
    batch.token_ids = tokens;
    batch.rows = std::span(&row, 1);
    batch.latent_pages = storage_->latent_pages();
    batch.recurrent_pages = storage_->recurrent_pages();
    batch.logit_tokens = std::span(&last, 1);
    model_.run(batch, logits_.span());
    position_ += count;
  }

  std::optional<TokenId> sample(const engine::GenerationRequest& request, std::int32_t choice) {
    kernels::SampleRow row;
    row.logits = logits_.data();
    row.parameters = request.sampling;
    row.parameters.seed =
        kernels::choice_seed(request.sampling.seed, static_cast<std::uint32_t>(choice));
    row.position = position_;
    row.counts = counts_;
    row.bias = request.logit_bias;
    engine::OutputToken& out = answer_.tokens.emplace_back();
    out.top_logprobs.resize(static_cast<std::size_t>(request.num_top_logprobs));
    row.top_logprobs = out.top_logprobs;
    row.wants_logprob = request.wants_logprobs;
    Result<kernels::SampleResult> sampled;
    kernels::SampleArgs args;
    args.vocabulary = model_.config().vocab_size;
    args.rows = std::span(&row, 1);
    args.results = std::span(&sampled, 1);
    kernels::sample(context_, args);
    if (!sampled.has_value()) {
      answer_.tokens.pop_back();
      answer_.finish_reason = engine::FinishReason::kError;
      answer_.error = sampled.error();
      return std::nullopt;
    }
    out.token = sampled->token;
    out.logprob = sampled->logprob;
    count(out.token);
    return out.token;
  }

  void count(TokenId token) {
    const auto at = std::ranges::find(counts_, token, &kernels::TokenCount::token);
    if (at == counts_.end()) {
      counts_.push_back({token, 1});
    } else {
      ++at->count;
    }
  }

  // Whether `token` is the last one.
  bool ends(const engine::GenerationRequest& request, TokenId token) {
    const auto is_among = [token](std::span<const TokenId> ids) {
      return std::ranges::find(ids, token) != ids.end();
    };
    const bool is_eos = !request.ignore_eos && is_among(model_.config().eos_ids);
    if (text_.has_value()) {
      if (is_eos) {
        push_rest();
      } else {
        model::TextStream::Piece piece = text_->push(token);
        answer_.text += piece.text;
        if (piece.stopped) return true;
        if (is_among(request.stop_token_ids)) push_rest();
      }
    }
    return is_eos || is_among(request.stop_token_ids);
  }

  // What was held back. It may complete a stop text that ends in U+FFFD.
  void push_rest() {
    const model::TextStream::Piece rest = text_->finish();
    answer_.text += rest.text;
    if (rest.stopped) answer_.finish_reason = engine::FinishReason::kStop;
  }

  engine::LanguageModel& model_;
  kernels::ExecutionContext& context_;
  const model::Tokenizer* const tokenizer_;
  std::optional<model::SoloStorage> storage_;
  std::optional<model::TextStream> text_;
  AlignedBuffer<float> logits_;
  std::vector<kernels::TokenCount> counts_;
  std::int64_t position_ = 0;
  LoneAnswer answer_;
};

// Answers of many requests, each found once. The model is its own: nobody else runs or reserves it.
//
// Ownership: borrows its parts; owns the answers.
// Threads: one.
// Errors: none.
class SoloOracle {
 public:
  static constexpr std::int32_t kChunk = 64;

  SoloOracle(engine::LanguageModel& model, kernels::ExecutionContext& context,
             const model::Tokenizer* tokenizer = nullptr)
      : generation_(model, context, tokenizer) {
    model.reserve({.max_tokens = kChunk, .max_logits = 1});
  }

  const LoneAnswer& answer(const engine::GenerationRequest& request, std::int32_t choice) {
    std::string key = key_of(request, choice);
    const auto known = answers_.find(key);
    if (known != answers_.end()) return known->second;
    return answers_.emplace(std::move(key), generation_.run(request, choice, kChunk)).first->second;
  }

 private:
  template <class T>
  static void append(std::string& key, std::span<const T> values) {
    append(key, values.size());
    const auto bytes = std::as_bytes(values);
    key.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  template <class T>
  static void append(std::string& key, const T& value) {
    key.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  // All that an answer depends on, as bytes.
  static std::string key_of(const engine::GenerationRequest& request, std::int32_t choice) {
    std::string key;
    const kernels::SamplingParameters& sampling = request.sampling;
    append(key, std::span<const TokenId>(request.prompt_tokens));
    append(key, std::span<const TokenId>(request.stop_token_ids));
    append(key, std::span<const kernels::TokenBias>(request.logit_bias));
    for (const std::string& stop : request.stop) append(key, std::span<const char>(stop));
    append(key, std::array{request.max_tokens, choice, sampling.top_k, request.num_top_logprobs,
                           std::int32_t{request.ignore_eos}, std::int32_t{request.wants_logprobs}});
    append(key, std::array{sampling.temperature, sampling.top_p, sampling.min_p,
                           sampling.frequency_penalty, sampling.presence_penalty});
    append(key, sampling.seed);
    return key;
  }

  LoneGeneration generation_;
  std::map<std::string, LoneAnswer> answers_;
};

}  // namespace slackwater

#endif  // SLACKWATER_TESTING_SOLO_ORACLE_H_
