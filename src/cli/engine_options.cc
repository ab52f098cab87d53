#include "cli/engine_options.h"

#include <utility>

namespace slackwater::cli {
namespace {

// Of the demo model `demo` that is `demo-draft`.
std::filesystem::path draft_directory(const ModelOptions& model_options,
                                      const EngineOptions& options) {
  if (options.draft_directory.has_value()) return *options.draft_directory;
  std::filesystem::path beside = model_options.directory;
  if (!beside.has_filename()) beside = beside.parent_path();
  beside += "-draft";
  return beside;
}

Result<void> apply(const EngineOptions& options, const model::ModelConfig& model,
                   engine::EngineConfig& config) {
  config.speculation.drafter =
      model.num_mtp_layers > 0 ? engine::DrafterKind::kMtp : engine::DrafterKind::kNone;
  if (!options.drafter.empty()) {
    SLACKWATER_ASSIGN_OR_RETURN(config.speculation.drafter, engine::parse_drafter(options.drafter));
  }
  SLACKWATER_ASSIGN_OR_RETURN(config.loop, engine::parse_loop(options.loop));
  config.speculation.max_drafts = options.max_drafts;
  config.pools.num_slots = options.num_slots;
  config.pools.num_blocks = options.num_blocks;
  config.pools.host_bytes = options.host_bytes;
  config.scheduler.max_batch_size = options.max_batch_size;
  return {};
}

}  // namespace

Result<void> check(const EngineOptions& options) {
  if (!options.drafter.empty()) {
    SLACKWATER_RETURN_IF_ERROR(engine::parse_drafter(options.drafter));
  }
  SLACKWATER_RETURN_IF_ERROR(engine::parse_loop(options.loop));
  return {};
}

Result<std::unique_ptr<EngineHost>> EngineHost::create(const ModelOptions& model_options,
                                                       const EngineOptions& options,
                                                       engine::EngineConfig config) {
  std::unique_ptr<EngineHost> host(new EngineHost);
  SLACKWATER_ASSIGN_OR_RETURN(const model::ModelConfig model,
                              model::load_config(model_options.directory));
  SLACKWATER_RETURN_IF_ERROR(apply(options, model, config));
  SLACKWATER_ASSIGN_OR_RETURN(host->tokenizer_,
                              model::Tokenizer::load(model_options.directory, model.vocab_size));
  SLACKWATER_ASSIGN_OR_RETURN(const kernels::Target chosen, target(model_options));
  const std::int32_t threads = num_threads(model_options);
  host->pool_ = std::make_unique<ThreadPool>(threads);
  host->context_ = std::make_unique<kernels::ExecutionContext>(*host->pool_, chosen);
  host->solo_pool_ = std::make_unique<ThreadPool>(threads);
  host->solo_context_ = std::make_unique<kernels::ExecutionContext>(*host->solo_pool_, chosen);
  SLACKWATER_ASSIGN_OR_RETURN(model::Model loaded, load_model(model_options, *host->context_));
  host->model_.emplace(std::move(loaded));
  host->target_ = engine::make_language_model(*host->model_, *host->context_);
  if (config.speculation.drafter == engine::DrafterKind::kDraftModel) {
    ModelOptions draft_options = model_options;
    draft_options.directory = draft_directory(model_options, options);
    SLACKWATER_ASSIGN_OR_RETURN(model::Model draft, load_model(draft_options, *host->context_));
    host->draft_.emplace(std::move(draft));
    host->drafter_ = engine::make_language_model(*host->draft_, *host->context_);
  }
  host->device_ = device::make_cpu_device();
  const engine::EngineParts parts = {.device = host->device_.get(),
                                     .context = host->context_.get(),
                                     .model = host->target_.get(),
                                     .draft_model = host->drafter_.get(),
                                     .tokenizer = &*host->tokenizer_};
  SLACKWATER_ASSIGN_OR_RETURN(host->engine_, engine::Engine::create(parts, std::move(config)));
  return host;
}

}  // namespace slackwater::cli
