#include "cli/generate_command.h"

#include <array>
#include <cerrno>
#include <cstdio>
#include <memory>
#include <random>
#include <system_error>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/standard_streams.h"

namespace slackwater::cli {
namespace {

std::uint64_t draw_seed() {
  std::random_device device;
  return std::uint64_t{device()} << 32 | device();
}

// All bytes of a file, a pipe or a terminal. It ends reading past what a tokenizer takes, so that
// an endless pipe is refused.
Result<std::string> read_file(const std::filesystem::path& path) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"),
                                                             std::fclose);
  std::string bytes;
  std::array<char, 1 << 16> block;
  while (file != nullptr) {
    const std::size_t count = std::fread(block.data(), 1, block.size(), file.get());
    bytes.append(block.data(), count);
    if (bytes.size() > model::kMaxTextBytes) {
      return make_error(ErrorCode::kOutOfRange,
                        "the prompt file '{}' has more than {} bytes; shorten it", path.string(),
                        model::kMaxTextBytes);
    }
    if (count < block.size()) break;
  }
  if (file == nullptr || std::ferror(file.get()) != 0) {
    return make_error(ErrorCode::kUnavailable,
                      "cannot read the prompt file '{}': {}; check its name", path.string(),
                      std::generic_category().message(errno));
  }
  return bytes;
}

Result<std::string> read_prompt(const GenerateCommand& command) {
  if (command.prompt.has_value()) return *command.prompt;
  return read_file(*command.prompt_file);
}

double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

// Items per second; 0 where nothing was done.
double rate(std::int64_t items, Nanoseconds time) {
  return items == 0 ? 0.0 : static_cast<double>(items) / seconds(time);
}

Result<void> print_json(const model::GenerateResult& result, std::span<const TokenId> prompt_tokens,
                        std::uint64_t seed, Nanoseconds load_time) {
  const nlohmann::ordered_json answer = {
      {"prompt_tokens", prompt_tokens},
      {"tokens", result.tokens},
      {"text", result.text},
      {"finish_reason", to_string(result.finish_reason)},
      {"seed", seed},
      {"timings",
       {{"load_s", seconds(load_time)},
        {"prompt_s", seconds(result.prompt_time)},
        {"generation_s", seconds(result.generation_time)},
        {"prompt_tokens_per_s", rate(std::ssize(prompt_tokens), result.prompt_time)},
        {"generated_tokens_per_s", rate(result.generated_steps, result.generation_time)}}}};
  return write_standard_output(answer.dump() + "\n");
}

void print_speed(const model::GenerateResult& result, std::int64_t num_prompt_tokens,
                 std::string_view seed_note) {
  write_standard_error(fmt::format(
      "[prompt: {} tokens, {:.0f} tokens/s; generated: {} tokens, {:.0f} tokens/s{}]\n",
      num_prompt_tokens, rate(num_prompt_tokens, result.prompt_time), result.tokens.size(),
      rate(result.generated_steps, result.generation_time), seed_note));
}

}  // namespace

Result<void> check(const GenerateCommand& command) {
  if (command.prompt.has_value() == command.prompt_file.has_value()) {
    return make_error(ErrorCode::kInvalidArgument, "give either --prompt or --prompt-file");
  }
  SLACKWATER_RETURN_IF_ERROR(target(command.model));
  return model::validate(command.options);
}

Result<void> run(const GenerateCommand& command) {
  // All that is quick to refuse comes before the weights.
  const RealClock clock;
  const Nanoseconds started = clock.now();
  SLACKWATER_ASSIGN_OR_RETURN(const std::string prompt, read_prompt(command));
  SLACKWATER_ASSIGN_OR_RETURN(const model::ModelConfig config,
                              model::load_config(command.model.directory));
  SLACKWATER_ASSIGN_OR_RETURN(const model::Tokenizer tokenizer,
                              model::Tokenizer::load(command.model.directory, config.vocab_size));
  SLACKWATER_ASSIGN_OR_RETURN(const std::vector<TokenId> prompt_tokens,
                              model::encode_prompt(config, tokenizer, prompt));
  SLACKWATER_RETURN_IF_ERROR(model::validate_prompt(config, prompt_tokens));

  SLACKWATER_ASSIGN_OR_RETURN(const kernels::Target chosen_target, target(command.model));
  ThreadPool pool(num_threads(command.model));
  kernels::ExecutionContext context(pool, chosen_target);
  SLACKWATER_ASSIGN_OR_RETURN(const model::Model loaded, load_model(command.model, context));
  const Nanoseconds load_time = clock.now() - started;

  model::GenerateOptions options = command.options;
  options.sampling.seed = command.seed.has_value() ? *command.seed : draw_seed();

  if (!command.is_json) options.on_text = write_standard_output;
  SLACKWATER_ASSIGN_OR_RETURN(
      const model::GenerateResult result,
      model::generate_solo(loaded, tokenizer, context, prompt_tokens, options));
  if (command.is_json) {
    return print_json(result, prompt_tokens, options.sampling.seed, load_time);
  }
  SLACKWATER_RETURN_IF_ERROR(write_standard_output("\n"));
  // A greedy answer does not depend on the seed.
  const bool seed_matters = options.sampling.temperature > 0;
  print_speed(result, std::ssize(prompt_tokens),
              seed_matters ? fmt::format("; seed {}", options.sampling.seed) : "");
  return {};
}

}  // namespace slackwater::cli
