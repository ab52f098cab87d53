#include <csignal>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <string>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/bench_generate_command.h"
#include "cli/build_info.h"
#include "cli/generate_command.h"
#include "cli/model_directory.h"
#include "cli/standard_output.h"

namespace slackwater::cli {
namespace {

// Exit codes, as documented in --help.
constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kUsage = 2;

constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();

int fail(int exit_code, std::string_view text) {
  fmt::print(stderr, "slackwater: {}\n", text);
  return exit_code;
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--model", options.directory,
                 "Model directory: config.json, *.safetensors, tiktoken.model "
                 "(default: the demo model)");
  app.add_option("--threads", options.num_threads, "Threads (default: one per core)")
      ->check(CLI::Range(1, kMostThreads));
  app.add_option("--target", options.target,
                 "reference, avx2, avx512 or neon (default: the fastest); changes speed only");
}

void add_generate(CLI::App& parent, GenerateCommand& command) {
  CLI::App& app = *parent.add_subcommand("generate", "Write an answer to a prompt");
  add_model_options(app, command.model);
  app.add_option("--prompt", command.prompt, "Text to continue; may be empty");
  app.add_option("--prompt-file", command.prompt_file, "File that holds the prompt, any bytes");
  app.add_option("--max-tokens", command.options.max_tokens, "Tokens to write at most")
      ->check(CLI::Range(0, kMostTokens))
      ->capture_default_str();
  kernels::SamplingParameters& sampling = command.options.sampling;
  app.add_option("--temperature", sampling.temperature, "0: always the likeliest token")
      ->capture_default_str();
  app.add_option("--top-k", sampling.top_k, "Keep the k likeliest tokens; 0: all")
      ->capture_default_str();
  app.add_option("--top-p", sampling.top_p, "Keep the likeliest tokens of this mass")
      ->capture_default_str();
  app.add_option("--min-p", sampling.min_p, "Keep tokens at least this likely next to the best")
      ->capture_default_str();
  app.add_option("--seed", command.seed, "Seed of the noise (default: drawn, and reported)");
  app.add_option("--stop", command.options.stop, "Text that ends the answer; may be repeated")
      ->allow_extra_args(false);
  app.add_option("--chunk", command.options.chunk,
                 "Prompt tokens per forward pass; changes speed only")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--json", command.is_json, "Print one JSON object instead of text");
}

void add_bench(CLI::App& parent, BenchGenerateCommand& command) {
  CLI::App& bench = *parent.add_subcommand("bench", "Measure speed");
  bench.require_subcommand(1);
  CLI::App& app = *bench.add_subcommand("generate", "Prompts and greedy decoding of one batch");
  add_model_options(app, command.model);
  app.add_option("--prompt-tokens", command.options.prompt_tokens, "Prompt tokens of each sequence")
      ->check(CLI::Range(1, kMostTokens))
      ->capture_default_str();
  app.add_option("--max-tokens", command.options.max_tokens, "Tokens to generate for each sequence")
      ->check(CLI::Range(2, kMostTokens))
      ->capture_default_str();
  app.add_option("--sequences", command.options.sequences, "Sequences that decode as one batch")
      ->check(CLI::Range(1, 4096))
      ->capture_default_str();
  app.add_option("--repeat", command.options.repetitions, "Repetitions after one warm-up")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--chunk", command.options.chunk, "Prompt tokens per forward pass")
      ->check(CLI::Range(1, 1 << 20))
      ->capture_default_str();
  app.add_flag("--json", command.is_json, "Print one JSON line");
}

// Runs a command whose options are checked first: those are usage, the rest is failure.
template <class Command>
int execute(const Command& command) {
  if (const Result<void> usable = check(command); !usable.has_value()) {
    return fail(kUsage, usable.error().text());
  }
  if (const Result<void> done = run(command); !done.has_value()) {
    return fail(kFailure, done.error().text());
  }
  return kSuccess;
}

int parse_and_execute(int argc, char** argv) {
  CLI::App app("Slackwater runs hybrid language models (full attention with Kimi Delta Attention)");
  app.name("slackwater");
  app.footer("Exit codes: 0 success, 1 failure, 2 wrong usage.");
  app.require_subcommand(1);
  app.set_version_flag("--version", fmt::format("slackwater {} ({})", kBuildVersion, kBuildCommit));
  GenerateCommand generate;
  BenchGenerateCommand bench;
  generate.model.directory = bench.model.directory = default_model_directory();
  add_generate(app, generate);
  add_bench(app, bench);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& asked) {
    // --help and --version: CLI11 holds the text.
    const std::string text =
        asked.get_name() == "CallForVersion" ? std::string(asked.what()) + "\n" : app.help();
    const Result<void> written = write_standard_output(text);
    return written.has_value() ? kSuccess : fail(kFailure, written.error().text());
  } catch (const CLI::ParseError& error) {
    return fail(kUsage, fmt::format("{}; see slackwater --help", error.what()));
  }
  return app.got_subcommand("generate") ? execute(generate) : execute(bench);
}

}  // namespace
}  // namespace slackwater::cli

int main(int argc, char** argv) {
  // A reader that goes away is an error of write(), with a message, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  return slackwater::cli::parse_and_execute(argc, argv);
}
