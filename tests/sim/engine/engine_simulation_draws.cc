// What a seed draws: the engine, its pools and faults, and the requests.

#include <algorithm>
#include <limits>
#include <utility>

#include <gtest/gtest.h>

#include "engine_simulation.h"
#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::engine {

namespace {

using device::CopyFault;

// Of the recurrent state of one request, with records.
std::int64_t state_bytes(const model::ModelConfig& config, std::int32_t max_drafts) {
  const std::int64_t width = config.kda_width();
  const std::int64_t floats =
      kernels::kda_state_floats(config.kda_num_heads, config.kda_head_dim) +
      kernels::kda_window_floats(config.kda_num_heads, config.kda_head_dim) +
      3 * kernels::kda_conv_record_floats(max_drafts, width) +
      kernels::kda_qkg_record_floats(max_drafts, width) + max_drafts * width +
      max_drafts * kernels::kda_beta_record_stride(config.kda_num_heads);
  return config.num_kda_layers() * floats * 4 + (1 + max_drafts) * config.hidden_size * 4;
}

}  // namespace

void EngineSimulation::draw_config() {
  config_.loop = options_.loop.value_or(any_of({LoopKind::kPlain, LoopKind::kOverlap}));
  config_.speculation.drafter = options_.drafter.value_or(any_of(
      {DrafterKind::kNone, DrafterKind::kNgram, DrafterKind::kMtp, DrafterKind::kDraftModel}));
  config_.speculation.max_drafts = any_of({1, 3, 3, 5});
  config_.speculation.adapt_length = !once_in(3);
  config_.speculation.ngram_min = any_of({1, 2});
  config_.speculation.ngram_max = any_of({2, 4});
  scheduler::SchedulerConfig& scheduler = config_.scheduler;
  scheduler.max_batch_size = static_cast<std::int32_t>(between(1, 8));
  scheduler.chunk_unit = any_of({1, 4, 8});
  scheduler.max_num_tokens = any_of({8, 16, 32, 64});
  scheduler.max_context_length =
      std::max<std::int64_t>(scheduler.chunk_unit, any_of({4, 8, 16, 64}));
  config_.placement =
      any_of({hybrid::ReplayPlacement::kInPool, hybrid::ReplayPlacement::kBesidePool});
  config_.suspend_policy =
      any_of({hybrid::SuspendPolicy::kSave, hybrid::SuspendPolicy::kCommitIfKnown});
  config_.enable_block_reuse = !once_in(4);
  config_.snapshot_interval = any_of({0, 0, 5, 16});
  config_.enable_rebalance = config_.placement == hybrid::ReplayPlacement::kInPool && !once_in(3);
  config_.rebalance_check_interval = static_cast<std::int32_t>(between(1, 12));
  config_.rebalance = {.min_samples = between(0, 3),
                       .update_interval = between(1, 3),
                       .cooldown = Nanoseconds(0),
                       .threshold = 1.05,
                       .decay = 0.5};
  if (options_.has_faults && once_in(3)) copy_fault_permille_ = any_of<std::uint64_t>({5, 50, 200});
  if (options_.has_faults && once_in(3)) step_fault_permille_ = any_of<std::uint64_t>({5, 30});
  if (options_.has_faults && once_in(4)) commit_fault_percent_ = 30;
  config_.fail_step = [this](std::int64_t) {
    return is_running_ && below(1000) < step_fault_permille_;
  };
  max_live_ = options_.max_live > 0 ? options_.max_live : 2 + below(11);
  draw_pools();
}

void EngineSimulation::draw_pools() {
  PoolConfig& pools = config_.pools;
  const model::ModelConfig& target = models_.target->config();
  pools.tokens_per_block = any_of({4, 8, 16});
  max_prompt_ = any_of({12, 30, 60});
  max_answer_ = any_of({8, 24, 40});
  if (options_.is_under_pressure) {
    config_.scheduler.max_batch_size = 8;
    max_prompt_ = 30;
    max_answer_ = 40;
  }
  const std::int64_t longest = std::min<std::int64_t>(max_prompt_ + max_answer_, target.max_length);
  // Enough for one of the longest, up to a few of them.
  const std::int64_t of_one = ceil_div<std::int64_t>(longest + 24, pools.tokens_per_block);
  pools.num_blocks = static_cast<std::int32_t>(of_one * between(4, 16) / 4);
  pools.num_slots = static_cast<std::int32_t>(between(config_.enable_block_reuse ? 2 : 1, 6));
  const std::int32_t drafts = config_.speculation.max_drafts;
  const std::int64_t one = state_bytes(target, drafts) +
                           state_bytes(models_.draft->config(), drafts) + (std::int64_t{64} << 10);
  pools.host_bytes = one * any_of({0, 2, 4, 8, 40});
  if (options_.is_under_pressure) {
    pools.num_slots = 4;
    pools.host_bytes = one * 80;
    max_live_ = std::max<std::size_t>(max_live_, 16);
  }
  if (pools.host_bytes > 0 && once_in(8)) {
    directory_ = std::make_unique<TemporaryDirectory>();
    pools.disk_directory = directory_->path();
    pools.disk_bytes = one * 40;
  }
  if (!options_.is_under_pressure && once_in(6)) {
    pools.device_bytes = one * (4 + pools.num_slots);
    pools.num_slots = pools.num_blocks = 0;
  }
  pools.guarantee_suspend = pools.host_bytes > 0 && once_in(3);
  // One request is promised half of what there is.
  if (config_.enable_rebalance || pools.guarantee_suspend) pools.num_blocks *= 2;
  pools.grain_bytes = pools.device_bytes > 0 || pools.disk_bytes > 0 ? 4096 : any_of({0, 4096});
}

// Where the host cannot take what is asked of it, it is asked for less.
void EngineSimulation::make_engine() {
  device::SimOptions sim;
  sim.seed = options_.seed;
  sim.copy_fault = [this](std::int64_t) {
    if (!is_running_ || below(1000) >= copy_fault_permille_) return CopyFault::kNone;
    const auto fault = static_cast<CopyFault>(1 + below(3));
    if (fault != CopyFault::kDelay) ++tally_.faults;
    return fault;
  };
  sim.refuse_commit = [this](std::int64_t) {
    const bool is_refused = is_running_ && below(100) < commit_fault_percent_;
    tally_.faults += is_refused ? 1 : 0;
    return is_refused;
  };
  device_ = std::make_unique<device::SimDevice>(sim);
  const EngineParts parts = {.device = device_.get(),
                             .context = &context_,
                             .model = models_.target.get(),
                             .draft_model = models_.draft.get(),
                             .tokenizer = models_.tokenizer};
  for (int attempt = 0;; ++attempt) {
    Result<std::unique_ptr<Engine>> made = Engine::create(parts, config_);
    if (made.has_value()) {
      engine_ = *std::move(made);
      break;
    }
    SLACKWATER_CHECK(attempt < 6 && made.error().code() == ErrorCode::kInvalidArgument, "{}; {}",
                     made.error().text(), describe());
    if (config_.pools.guarantee_suspend) {
      config_.pools.guarantee_suspend = false;
    } else {
      const bool is_device = made.error().text().find("device tier") != std::string::npos;
      (is_device ? config_.pools.device_bytes : config_.pools.host_bytes) *= 2;
    }
  }
}

std::string EngineSimulation::describe() const {
  const PoolConfig& pools = config_.pools;
  return fmt::format(
      "seed {}: drafter {} of {}, loop {}, {} slots, {} blocks of {}, device {}, host {}, disk {}, "
      "{} {}, "
      "policy {}, reuse {}, rebalance {}, snapshots {}, batch {} x {} tokens, chunks {} to {}, {} "
      "live, prompts to {}, answers to {}, faults {} {} {}",
      options_.seed, to_string(config_.speculation.drafter), config_.speculation.max_drafts,
      to_string(config_.loop), pools.num_slots, pools.num_blocks, pools.tokens_per_block,
      pools.device_bytes, pools.host_bytes, pools.disk_bytes,
      pools.guarantee_suspend ? "guaranteed," : "", hybrid::to_string(config_.placement),
      static_cast<int>(config_.suspend_policy), config_.enable_block_reuse,
      config_.enable_rebalance, config_.snapshot_interval, config_.scheduler.max_batch_size,
      config_.scheduler.max_num_tokens, config_.scheduler.chunk_unit,
      config_.scheduler.max_context_length, max_live_, max_prompt_, max_answer_,
      copy_fault_permille_, step_fault_permille_, commit_fault_percent_);
}

// --- Requests.

Tokens EngineSimulation::draw_tokens(std::int64_t count) {
  Tokens tokens;
  if (!models_.text.empty()) {
    const auto most = static_cast<std::int64_t>(models_.text.size());
    while (std::ssize(tokens) < count) {
      const std::int64_t length = std::min(count - std::ssize(tokens), most);
      const std::int64_t first = between(0, most - length);
      tokens.insert(tokens.end(), models_.text.begin() + first,
                    models_.text.begin() + first + length);
    }
    return tokens;
  }
  const auto vocabulary = static_cast<std::uint64_t>(models_.target->config().vocab_size);
  while (std::ssize(tokens) < count) tokens.push_back(static_cast<TokenId>(below(vocabulary)));
  return tokens;
}

// Some ask what another one asked, or go on from what it was told.
Tokens EngineSimulation::draw_prompt() {
  const std::int64_t length = between(1, max_prompt_);
  Tokens prompt;
  if (!prompts_.empty() && !once_in(3)) {
    prompt = prompts_[below(prompts_.size())];
    if (std::ssize(prompt) > length) prompt.resize(static_cast<std::size_t>(length));
    if (once_in(2)) return prompt;
  }
  for (const TokenId token : draw_tokens(length - std::ssize(prompt))) prompt.push_back(token);
  if (prompt.empty()) prompt = draw_tokens(1);
  if (prompts_.size() < 4 || once_in(8)) prompts_.push_back(prompt);
  if (prompts_.size() > 12) prompts_.erase(prompts_.begin());
  return prompt;
}

void EngineSimulation::draw_sampling(GenerationRequest& request) {
  kernels::SamplingParameters& sampling = request.sampling;
  sampling.temperature = any_of({0.0f, 0.0f, 0.8f});
  sampling.seed = below(3);
  if (once_in(6)) sampling.top_k = static_cast<std::int32_t>(between(1, 8));
  if (once_in(6)) sampling.top_p = 0.9f;
  if (once_in(8)) sampling.min_p = 0.05f;
  if (once_in(6)) sampling.frequency_penalty = 0.4f;
  if (once_in(6)) sampling.presence_penalty = 1.5f;
  const auto vocabulary = static_cast<std::uint64_t>(models_.target->config().vocab_size);
  if (once_in(5)) {
    const auto token = static_cast<TokenId>(below(vocabulary));
    request.logit_bias = {{.token = token, .bias = any_of({3.0f, -100.0f})}};
    if (once_in(2)) {
      request.logit_bias.push_back({.token = (token + 1) % static_cast<TokenId>(vocabulary),
                                    .bias = -std::numeric_limits<float>::infinity()});
    }
  }
  if (once_in(5)) request.stop_token_ids = {static_cast<TokenId>(below(vocabulary))};
  if (models_.tokenizer != nullptr && once_in(3)) request.stop = {any_of({"the", "e ", "\n", ","})};
  if (once_in(6)) request.num_top_logprobs = static_cast<std::int32_t>(between(1, 3));
  request.wants_logprobs = request.num_top_logprobs > 0 || once_in(8);
  request.ignore_eos = once_in(3);
}

GenerationRequest EngineSimulation::draw_request() {
  GenerationRequest request;
  request.prompt_tokens = draw_prompt();
  request.max_tokens = static_cast<std::int32_t>(between(0, max_answer_));
  draw_sampling(request);
  // What is said twice cannot be sampled: an error that the request alone has too.
  if (once_in(32)) {
    request.sampling.frequency_penalty = 3e38f;
    request.logit_bias = {{.token = 7, .bias = 3.3e38f}};
  }
  if (once_in(6)) request.num_choices = static_cast<std::int32_t>(between(2, 3));
  request.enable_speculation = !once_in(8);
  if (once_in(6)) request.scope.salt = below(2);
  request.page_priority = any_of({35, 35, 0, 70});
  const std::int64_t longest = engine_->max_sequence_length();
  if (std::ssize(request.prompt_tokens) >= longest) {
    request.prompt_tokens.resize(static_cast<std::size_t>(std::max<std::int64_t>(1, longest - 1)));
  }
  request.max_tokens = static_cast<std::int32_t>(
      std::min<std::int64_t>(request.max_tokens, longest - std::ssize(request.prompt_tokens)));
  return request;
}

}  // namespace slackwater::engine
