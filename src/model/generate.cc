#include "slackwater/model/generate.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>

#include <fmt/format.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/model/forward.h"
#include "slackwater/model/solo_storage.h"
#include "slackwater/model/text_stream.h"

namespace slackwater::model {
namespace {

// How often each token was generated; distinct, for the penalties.
class GeneratedCounts {
 public:
  void add(TokenId token) {
    const auto at = std::ranges::find(counts_, token, &kernels::TokenCount::token);
    if (at == counts_.end()) {
      counts_.push_back({token, 1});
    } else {
      ++at->count;
    }
  }
  std::span<const kernels::TokenCount> span() const { return counts_; }

 private:
  std::vector<kernels::TokenCount> counts_;
};

// One sequence: its storage, its position, and the forward passes over it.
class SoloSequence {
 public:
  SoloSequence(const Model& model, kernels::ExecutionContext& context, std::int64_t capacity,
               std::int32_t chunk)
      : storage_(model.config(), capacity),
        forward_(model, context, {.max_tokens = chunk, .max_logits = 1}),
        logits_(static_cast<std::size_t>(model.config().vocab_size)) {}

  // Runs `tokens` in chunks; logits() is that of the last one.
  void run(std::span<const TokenId> tokens) {
    const auto chunk = static_cast<std::size_t>(forward_.limits().max_tokens);
    for (std::size_t done = 0; done < tokens.size(); done += chunk) {
      const std::size_t count = std::min(chunk, tokens.size() - done);
      run_chunk(tokens.subspan(done, count), done + count == tokens.size());
    }
  }

  std::int64_t position() const { return position_; }
  std::span<const float> logits() const { return logits_.span(); }

 private:
  void run_chunk(std::span<const TokenId> tokens, bool wants_logits) {
    const auto count = static_cast<std::int32_t>(tokens.size());
    const std::array<kernels::StateWrite, 1> writes = {{{count, SoloStorage::state_page()}}};
    kernels::SequenceRow row;
    row.num_tokens = count;
    row.first_position = position_;
    row.block_table = storage_.block_table();
    row.state_page = SoloStorage::state_page();
    row.writes = writes;
    const std::int32_t last = count - 1;
    ForwardBatch batch;
    batch.token_ids = tokens;
    batch.rows = std::span(&row, 1);
    batch.latent_pages = storage_.latent_pages();
    batch.recurrent_pages = storage_.recurrent_pages();
    if (wants_logits) batch.logit_tokens = std::span(&last, 1);
    forward_.run(batch, wants_logits ? logits_.span() : std::span<float>());
    position_ += count;
  }

  SoloStorage storage_;
  ForwardPass forward_;
  AlignedBuffer<float> logits_;  // [vocabulary]
  std::int64_t position_ = 0;
};

// The loop from logits to text.
class Generation {
 public:
  Generation(const Model& model, const Tokenizer& tokenizer, kernels::ExecutionContext& context,
             const GenerateOptions& options)
      : config_(model.config()),
        context_(context),
        options_(options),
        stream_(tokenizer, options.stop) {}

  Result<GenerateResult> run(SoloSequence& sequence, std::span<const TokenId> prompt) {
    const RealClock clock;
    const Nanoseconds started = clock.now();
    sequence.run(prompt);
    const Nanoseconds prompt_done = clock.now();
    while (std::ssize(result_.tokens) < options_.max_tokens) {
      SLACKWATER_ASSIGN_OR_RETURN(const TokenId token, sample(sequence));
      SLACKWATER_RETURN_IF_ERROR(accept(token));
      if (result_.finish_reason == FinishReason::kStop) break;
      // The last token is never run: nobody asks for what follows it.
      if (std::ssize(result_.tokens) == options_.max_tokens) break;
      if (sequence.position() + 1 >= config_.max_length) break;
      sequence.run(std::span(&token, 1));
      ++result_.generated_steps;
    }
    if (result_.finish_reason != FinishReason::kStop) {
      SLACKWATER_RETURN_IF_ERROR(accept_rest());
    }
    result_.prompt_time = prompt_done - started;
    result_.generation_time = clock.now() - prompt_done;
    return std::move(result_);
  }

 private:
  Result<TokenId> sample(const SoloSequence& sequence) {
    kernels::SampleRow row;
    row.logits = sequence.logits().data();
    row.parameters = options_.sampling;
    row.position =
        SLACKWATER_MUTANT(solo_noise_one_early) ? sequence.position() - 1 : sequence.position();
    row.counts = counts_.span();
    if (!SLACKWATER_MUTANT(solo_bias_ignored)) row.bias = options_.bias;
    Result<kernels::SampleResult> sampled;
    kernels::SampleArgs args;
    args.vocabulary = config_.vocab_size;
    args.rows = std::span(&row, 1);
    args.results = std::span(&sampled, 1);
    kernels::sample(context_, args);
    if (!sampled.has_value()) {
      return tl::unexpected<Error>(sampled.error().with_context(
          fmt::format("after {} tokens of the sequence", sequence.position())));
    }
    return sampled->token;
  }

  // Appends `token`; sets the finish reason where it ends the answer.
  Result<void> accept(TokenId token) {
    result_.tokens.push_back(token);
    const kernels::SamplingParameters& sampling = options_.sampling;
    if (sampling.frequency_penalty != 0 || sampling.presence_penalty != 0) counts_.add(token);
    if (std::ranges::count(config_.eos_ids, token) > 0) {
      result_.finish_reason = FinishReason::kStop;
      return accept_rest();
    }
    return accept(stream_.push(token));
  }

  // What was held back. It may complete a stop text that ends in U+FFFD.
  Result<void> accept_rest() { return accept(stream_.finish()); }

  Result<void> accept(TextStream::Piece piece) {
    if (piece.stopped) result_.finish_reason = FinishReason::kStop;
    return emit(std::move(piece.text));
  }

  Result<void> emit(std::string text) {
    if (text.empty()) return {};
    result_.text += text;
    return options_.on_text ? options_.on_text(text) : Result<void>();
  }

  const ModelConfig& config_;
  kernels::ExecutionContext& context_;
  const GenerateOptions& options_;
  TextStream stream_;
  GeneratedCounts counts_;
  GenerateResult result_;
};

// What can be said of biases without a model.
Result<void> validate_bias(std::span<const kernels::TokenBias> bias) {
  std::vector<TokenId> tokens;
  for (const kernels::TokenBias& entry : bias) {
    if (!(entry.bias < std::numeric_limits<float>::infinity())) {
      return make_error(ErrorCode::kInvalidArgument,
                        "bias {} of token {}; use a finite number, or -infinity to forbid it",
                        entry.bias, entry.token);
    }
    tokens.push_back(entry.token);
  }
  std::ranges::sort(tokens);
  const auto twice = std::ranges::adjacent_find(tokens);
  if (twice == tokens.end()) return {};
  return make_error(ErrorCode::kInvalidArgument, "token {} has two biases: add them up", *twice);
}

Result<void> validate_bias_tokens(const ModelConfig& config,
                                  std::span<const kernels::TokenBias> bias) {
  for (const kernels::TokenBias& entry : bias) {
    if (0 <= entry.token && entry.token < config.vocab_size) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "token {} has a bias, but the vocabulary has {} tokens; use one of 0 to {}",
                      entry.token, config.vocab_size, config.vocab_size - 1);
  }
  return {};
}

}  // namespace

Result<void> validate(const GenerateOptions& options) {
  SLACKWATER_RETURN_IF_ERROR(kernels::validate(options.sampling));
  SLACKWATER_RETURN_IF_ERROR(validate_bias(options.bias));
  if (options.max_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument, "max_tokens {} is negative; use 0 or more",
                      options.max_tokens);
  }
  if (options.chunk < 1) {
    return make_error(ErrorCode::kInvalidArgument, "chunk {} is not positive; use 1 or more",
                      options.chunk);
  }
  return validate_stop(options.stop);
}

Result<void> validate_prompt(const ModelConfig& config, std::span<const TokenId> prompt_tokens) {
  if (prompt_tokens.empty()) {
    return make_error(ErrorCode::kInvalidArgument,
                      "the prompt has no tokens; begin it with the begin-of-sequence token {}",
                      config.bos_id);
  }
  if (std::ssize(prompt_tokens) >= config.max_length) {
    return make_error(ErrorCode::kOutOfRange,
                      "the prompt has {} tokens; this model's sequences have at most {}, one of "
                      "them to be generated: shorten the prompt",
                      prompt_tokens.size(), config.max_length);
  }
  for (const TokenId id : prompt_tokens) {
    if (id < 0 || id >= config.vocab_size) {
      return make_error(ErrorCode::kOutOfRange, "prompt token {} of a vocabulary of {}", id,
                        config.vocab_size);
    }
  }
  return {};
}

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
  }
  SLACKWATER_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

Result<std::vector<TokenId>> encode_prompt(const ModelConfig& config, const Tokenizer& tokenizer,
                                           std::string_view text) {
  SLACKWATER_ASSIGN_OR_RETURN(std::vector<TokenId> tokens, tokenizer.encode(text));
  tokens.insert(tokens.begin(), config.bos_id);
  return tokens;
}

Result<GenerateResult> generate_solo(const Model& model, const Tokenizer& tokenizer,
                                     kernels::ExecutionContext& context,
                                     std::span<const TokenId> prompt_tokens,
                                     const GenerateOptions& options) {
  SLACKWATER_RETURN_IF_ERROR(validate(options));
  SLACKWATER_RETURN_IF_ERROR(validate_prompt(model.config(), prompt_tokens));
  SLACKWATER_RETURN_IF_ERROR(validate_bias_tokens(model.config(), options.bias));
  const std::int64_t capacity = std::min<std::int64_t>(
      model.config().max_length, std::ssize(prompt_tokens) + options.max_tokens);
  const std::int32_t chunk =
      static_cast<std::int32_t>(std::min<std::int64_t>(options.chunk, std::ssize(prompt_tokens)));
  SoloSequence sequence(model, context, capacity, chunk);
  Generation generation(model, tokenizer, context, options);
  return generation.run(sequence, prompt_tokens);
}

}  // namespace slackwater::model
