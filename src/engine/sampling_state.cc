#include "engine/sampling_state.h"

#include <algorithm>
#include <cmath>
#include <string_view>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/cache/priority.h"
#include "slackwater/model/generate.h"
#include "slackwater/model/text_stream.h"

namespace slackwater::engine {
namespace {

constexpr std::size_t kFirstPlaces = 32;

// A list of tokens in the field `field`: all of the vocabulary, and none twice.
Result<void> check_tokens(std::string_view field, std::vector<TokenId> tokens,
                          std::int32_t vocabulary) {
  for (const TokenId token : tokens) {
    if (token < 0 || token >= vocabulary) {
      return make_error(ErrorCode::kInvalidArgument,
                        "token {} in {} is outside the vocabulary; use [0, {})", token, field,
                        vocabulary);
    }
  }
  std::ranges::sort(tokens);
  const auto twice = std::ranges::adjacent_find(tokens);
  if (twice != tokens.end()) {
    return make_error(ErrorCode::kInvalidArgument, "token {} stands in {} twice; list it once",
                      *twice, field);
  }
  return {};
}

Result<void> check_logit_bias(std::span<const kernels::TokenBias> bias, std::int32_t vocabulary) {
  std::vector<TokenId> tokens;
  std::int64_t num_forbidden = 0;
  for (const kernels::TokenBias& entry : bias) {
    tokens.push_back(entry.token);
    num_forbidden += entry.bias == -HUGE_VALF ? 1 : 0;
    if (!(entry.bias < HUGE_VALF)) {
      return make_error(ErrorCode::kInvalidArgument,
                        "logit_bias {} of token {} is neither finite nor -infinity, which forbids "
                        "the token",
                        entry.bias, entry.token);
    }
  }
  SLACKWATER_RETURN_IF_ERROR(check_tokens("logit_bias", std::move(tokens), vocabulary));
  if (num_forbidden == vocabulary) {
    return make_error(ErrorCode::kInvalidArgument,
                      "logit_bias forbids all {} tokens of the vocabulary; leave one",
                      num_forbidden);
  }
  return {};
}

Result<void> check_stops(const GenerationRequest& request, std::int32_t vocabulary,
                         bool has_tokenizer) {
  if (!request.stop.empty() && !has_tokenizer) {
    return make_error(ErrorCode::kInvalidArgument,
                      "stop has {} texts, and an engine without a tokenizer writes none; use "
                      "stop_token_ids",
                      request.stop.size());
  }
  SLACKWATER_RETURN_IF_ERROR(model::validate_stop(request.stop));
  return check_tokens("stop_token_ids", request.stop_token_ids, vocabulary);
}

// A number that has to be in [low, high].
Result<void> check_range(std::string_view field, std::int32_t value, std::int32_t low,
                         std::int32_t high) {
  if (low <= value && value <= high) return {};
  return make_error(ErrorCode::kInvalidArgument, "{} {} is out of range; use {} to {}", field,
                    value, low, high);
}

}  // namespace

Result<void> validate(const GenerationRequest& request, const model::ModelConfig& config,
                      bool has_tokenizer) {
  if (request.max_tokens < 0) {
    return make_error(ErrorCode::kInvalidArgument, "max_tokens {} is negative; use 0 or more",
                      request.max_tokens);
  }
  // A small vocabulary has fewer tokens than may be asked about.
  const std::int32_t max_top = std::min(kMaxTopLogprobs, config.vocab_size);
  SLACKWATER_RETURN_IF_ERROR(check_range("num_top_logprobs", request.num_top_logprobs, 0, max_top));
  SLACKWATER_RETURN_IF_ERROR(check_range("num_choices", request.num_choices, 1, kMaxChoices));
  SLACKWATER_RETURN_IF_ERROR(
      check_range("page_priority", request.page_priority, 0, cache::kMaxPriority));
  SLACKWATER_RETURN_IF_ERROR(kernels::validate(request.sampling));
  SLACKWATER_RETURN_IF_ERROR(check_logit_bias(request.logit_bias, config.vocab_size));
  SLACKWATER_RETURN_IF_ERROR(check_stops(request, config.vocab_size, has_tokenizer));
  return model::validate_prompt(config, request.prompt_tokens);
}

SamplingState::SamplingState(const GenerationRequest& request, std::int32_t choice)
    : parameters_(request.sampling),
      bias_(request.logit_bias),
      wants_logprobs_(request.wants_logprobs || request.num_top_logprobs > 0),
      num_top_logprobs_(request.num_top_logprobs) {
  SLACKWATER_CHECK(0 <= choice && choice < request.num_choices, "choice {} of {}", choice,
                   request.num_choices);
  parameters_.seed =
      kernels::choice_seed(request.sampling.seed, static_cast<std::uint32_t>(choice));
  if (SLACKWATER_MUTANT(engine_choices_share_a_seed)) parameters_.seed = request.sampling.seed;
  if (has_penalties()) places_.resize(kFirstPlaces);
}

void SamplingState::add(TokenId token) {
  if (!has_penalties()) return;
  std::size_t place = find(token);
  if (places_[place] != 0) {
    ++counts_[places_[place] - 1].count;
    return;
  }
  if (2 * (counts_.size() + 1) > places_.size()) {
    grow();
    place = find(token);
  }
  counts_.push_back({token, 1});
  places_[place] = static_cast<std::uint32_t>(counts_.size());
}

kernels::SampleRow SamplingState::row_for(const float* logits, std::int64_t position) const {
  kernels::SampleRow row;
  row.logits = logits;
  row.parameters = parameters_;
  row.position = position;
  row.counts = counts_;
  row.bias = bias_;
  row.wants_logprob = wants_logprobs_;
  return row;
}

void SamplingState::fill_counts(std::span<const TokenId> drafts,
                                std::vector<kernels::TokenCount>& counts) const {
  counts.clear();
  if (!has_penalties()) return;
  counts.insert(counts.end(), counts_.begin(), counts_.end());
  if (SLACKWATER_MUTANT(engine_counts_miss_drafts)) return;
  for (const TokenId draft : drafts) {
    const std::uint32_t number = places_[find(draft)];
    if (number != 0) {
      ++counts[number - 1].count;
      continue;
    }
    // Not generated so far: among the few that drafts have added, or new.
    const auto added = counts.begin() + std::ssize(counts_);
    const auto at = std::find_if(added, counts.end(), [draft](const kernels::TokenCount& entry) {
      return entry.token == draft;
    });
    if (at == counts.end()) {
      counts.push_back({draft, 1});
    } else {
      ++at->count;
    }
  }
}

bool SamplingState::has_penalties() const {
  return parameters_.frequency_penalty != 0 || parameters_.presence_penalty != 0;
}

void SamplingState::check_invariants() const {
  if (!has_penalties()) {
    SLACKWATER_CHECK(counts_.empty(), "I1: {} counts without penalties", counts_.size());
    return;
  }
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    SLACKWATER_CHECK(counts_[i].count > 0, "I1: count {} of token {}", counts_[i].count,
                     counts_[i].token);
    SLACKWATER_CHECK(places_[find(counts_[i].token)] == i + 1, "I1: token {} is not found",
                     counts_[i].token);
  }
}

std::size_t SamplingState::find(TokenId token) const {
  const std::size_t mask = places_.size() - 1;
  std::size_t place = (static_cast<std::uint32_t>(token) * 0x9E3779B97F4A7C15u >> 32) & mask;
  while (places_[place] != 0 && counts_[places_[place] - 1].token != token) {
    place = (place + 1) & mask;
  }
  return place;
}

void SamplingState::grow() {
  places_.assign(2 * places_.size(), 0);
  counts_.reserve(places_.size() / 2);
  for (std::size_t i = 0; i < counts_.size(); ++i) {
    places_[find(counts_[i].token)] = static_cast<std::uint32_t>(i + 1);
  }
}

}  // namespace slackwater::engine
