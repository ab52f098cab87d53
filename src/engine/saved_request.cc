#include "engine/saved_request.h"

#include <optional>

#include "slackwater/engine/byte_codec.h"

namespace slackwater::engine {
namespace {

void put_tokens(ByteWriter& out, std::span<const TokenId> tokens) {
  out.count(tokens.size());
  for (const TokenId token : tokens) out.i32(token);
}

std::vector<TokenId> get_tokens(ByteReader& in) {
  std::vector<TokenId> tokens(in.count(4));
  for (TokenId& token : tokens) token = in.i32();
  return tokens;
}

void put_optional(ByteWriter& out, const std::optional<std::uint64_t>& value) {
  out.boolean(value.has_value());
  out.u64(value.value_or(0));
}

std::optional<std::uint64_t> get_optional(ByteReader& in) {
  const bool is_there = in.boolean();
  const std::uint64_t value = in.u64();
  return is_there ? std::optional(value) : std::nullopt;
}

void put_asked(ByteWriter& out, const GenerationRequest& asked) {
  out.i32(asked.max_tokens);
  out.f32(asked.sampling.temperature);
  out.i32(asked.sampling.top_k);
  out.f32(asked.sampling.top_p);
  out.f32(asked.sampling.min_p);
  out.f32(asked.sampling.frequency_penalty);
  out.f32(asked.sampling.presence_penalty);
  out.u64(asked.sampling.seed);
  out.count(asked.logit_bias.size());
  for (const kernels::TokenBias& bias : asked.logit_bias) {
    out.i32(bias.token);
    out.f32(bias.bias);
  }
  out.count(asked.stop.size());
  for (const std::string& text : asked.stop) out.text(text);
  put_tokens(out, asked.stop_token_ids);
  out.boolean(asked.ignore_eos);
  out.boolean(asked.wants_logprobs);
  out.i32(asked.num_top_logprobs);
  out.i32(asked.num_choices);
  out.boolean(asked.enable_speculation);
  put_optional(out, asked.scope.adapter);
  put_optional(out, asked.scope.salt);
  out.i32(asked.page_priority);
}

void get_asked(ByteReader& in, GenerationRequest& asked) {
  asked.max_tokens = in.i32();
  asked.sampling.temperature = in.f32();
  asked.sampling.top_k = in.i32();
  asked.sampling.top_p = in.f32();
  asked.sampling.min_p = in.f32();
  asked.sampling.frequency_penalty = in.f32();
  asked.sampling.presence_penalty = in.f32();
  asked.sampling.seed = in.u64();
  asked.logit_bias.resize(in.count(8));
  for (kernels::TokenBias& bias : asked.logit_bias) {
    bias.token = in.i32();
    bias.bias = in.f32();
  }
  asked.stop.resize(in.count(8));
  for (std::string& text : asked.stop) text = in.text();
  asked.stop_token_ids = get_tokens(in);
  asked.ignore_eos = in.boolean();
  asked.wants_logprobs = in.boolean();
  asked.num_top_logprobs = in.i32();
  asked.num_choices = in.i32();
  asked.enable_speculation = in.boolean();
  asked.scope.adapter = get_optional(in);
  asked.scope.salt = get_optional(in);
  asked.page_priority = in.i32();
}

}  // namespace

std::vector<std::byte> encode(const SavedRequest& request) {
  ByteWriter out;
  out.u32(kSavedRequestVersion);
  out.u64(request.id.value());
  out.i32(request.choice);
  put_asked(out, request.asked);
  put_tokens(out, request.asked.prompt_tokens);
  const auto answer =
      std::span<const TokenId>(request.tokens).subspan(request.asked.prompt_tokens.size());
  put_tokens(out, answer);
  put_tokens(out, request.drafts);
  out.boolean(request.has_state);
  out.i64(request.num_matched);
  out.i64(request.cursor);
  out.i64(request.context_end);
  out.boolean(request.has_run_before);
  out.i64(request.num_reused);
  out.i32(request.num_suspends);
  out.i32(request.num_recomputes);
  out.i64(request.drafts_proposed);
  out.i64(request.drafts_accepted);
  return out.take();
}

Result<SavedRequest> decode_request(std::span<const std::byte> record) {
  ByteReader in(record);
  const std::uint32_t version = in.u32();
  if (!in.has_failed() && version != kSavedRequestVersion) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a request's record of version {}; this engine reads {}: load the bundle "
                      "with the engine that wrote it",
                      version, kSavedRequestVersion);
  }
  SavedRequest request;
  request.id = RequestId(in.u64());
  request.choice = in.i32();
  get_asked(in, request.asked);
  request.asked.prompt_tokens = get_tokens(in);
  request.tokens = request.asked.prompt_tokens;
  const std::vector<TokenId> answer = get_tokens(in);
  request.tokens.insert(request.tokens.end(), answer.begin(), answer.end());
  request.drafts = get_tokens(in);
  request.has_state = in.boolean();
  request.num_matched = in.i64();
  request.cursor = in.i64();
  request.context_end = in.i64();
  request.has_run_before = in.boolean();
  request.num_reused = in.i64();
  request.num_suspends = in.i32();
  request.num_recomputes = in.i32();
  request.drafts_proposed = in.i64();
  request.drafts_accepted = in.i64();
  SLACKWATER_RETURN_IF_ERROR(in.end());
  return request;
}

}  // namespace slackwater::engine
