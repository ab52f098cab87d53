#include <charconv>
#include <csignal>
#include <cstdint>
#include <exception>
#include <limits>
#include <new>
#include <string>
#include <type_traits>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "cli/bench_generate_command.h"
#include "cli/build_info.h"
#include "cli/demo_command.h"
#include "cli/generate_command.h"
#include "cli/inspect_command.h"
#include "cli/model_directory.h"
#include "cli/run_command.h"
#include "cli/standard_streams.h"

namespace slackwater::cli {
namespace {

// Exit codes, as documented in --help.
constexpr int kSuccess = 0;
constexpr int kFailure = 1;
constexpr int kUsage = 2;

constexpr std::int32_t kMostTokens = std::numeric_limits<std::int32_t>::max();
constexpr std::int32_t kMostSlots = 1 << 20;
constexpr std::int64_t kMostCalls = std::numeric_limits<std::int64_t>::max();

int fail(int exit_code, std::string_view text) {
  write_standard_error(fmt::format("slackwater: {}\n", in_one_line(text)));
  return exit_code;
}

// Accepts what std::from_chars does, all of it and nothing else: CLI11 clamps what is too large,
// reads a leading zero as octal and takes an empty value for zero.
template <class Number = void, class Target>
CLI::Option* add_number(CLI::App& app, const std::string& name, Target& value,
                        const std::string& description) {
  using Parsed = std::conditional_t<std::is_void_v<Number>, Target, Number>;
  CLI::Option* const option = app.add_option_function<std::string>(
      name,
      [name, &value](const std::string& text) {
        Parsed parsed{};
        const char* const end = text.data() + text.size();
        const auto [stop, error] = std::from_chars(text.data(), end, parsed);
        if (error != std::errc() || stop != end) {
          throw CLI::ValidationError(
              name,
              fmt::format("'{}' is not {} that fits", text,
                          std::is_floating_point_v<Parsed> ? "a number" : "a decimal integer"));
        }
        value = parsed;
      },
      description);
  if constexpr (std::is_same_v<Parsed, Target>) option->default_str(fmt::format("{}", value));
  return option;
}

void add_model_options(CLI::App& app, ModelOptions& options) {
  app.add_option("--model", options.directory,
                 "Model directory: config.json, *.safetensors, tiktoken.model "
                 "(default: the demo model)");
  add_number(app, "--threads", options.num_threads, "Threads (default: one per core)")
      ->default_str("")
      ->check(CLI::Range(1, kMostThreads));
  app.add_option("--target", options.target,
                 "reference, avx2, avx512 or neon (default: the fastest); changes speed only");
}

void add_generate(CLI::App& parent, GenerateCommand& command) {
  CLI::App& app = *parent.add_subcommand("generate", "Write an answer to a prompt");
  add_model_options(app, command.model);
  app.add_option("--prompt", command.prompt, "Text to continue; may be empty");
  app.add_option("--prompt-file", command.prompt_file, "File that holds the prompt, any bytes");
  add_number(app, "--max-tokens", command.options.max_tokens, "Tokens to write at most")
      ->check(CLI::Range(0, kMostTokens));
  kernels::SamplingParameters& sampling = command.options.sampling;
  add_number(app, "--temperature", sampling.temperature, "0: always the likeliest token");
  add_number(app, "--top-k", sampling.top_k, "Keep the k likeliest tokens; 0: all");
  add_number(app, "--top-p", sampling.top_p, "Keep the likeliest tokens of this mass");
  add_number(app, "--min-p", sampling.min_p, "Keep tokens at least this likely next to the best");
  add_number<std::uint64_t>(app, "--seed", command.seed,
                            "Seed of the noise (default: drawn, and reported)");
  app.add_option("--stop", command.options.stop, "Text that ends the answer; may be repeated")
      ->allow_extra_args(false);
  add_number(app, "--chunk", command.options.chunk,
             "Prompt tokens per forward pass; changes speed only")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--json", command.is_json, "Print one JSON object instead of text");
}

void add_bench(CLI::App& parent, BenchGenerateCommand& command) {
  CLI::App& bench = *parent.add_subcommand("bench", "Measure speed");
  bench.require_subcommand(1);
  CLI::App& app = *bench.add_subcommand("generate", "Prompts and greedy decoding of one batch");
  add_model_options(app, command.model);
  add_number(app, "--prompt-tokens", command.options.prompt_tokens,
             "Prompt tokens of each sequence")
      ->check(CLI::Range(1, kMostTokens));
  add_number(app, "--max-tokens", command.options.max_tokens,
             "Tokens to generate for each sequence")
      ->check(CLI::Range(2, kMostTokens));
  add_number(app, "--sequences", command.options.sequences, "Sequences that decode as one batch")
      ->check(CLI::Range(1, 4096));
  add_number(app, "--repeat", command.options.repetitions, "Repetitions after one warm-up")
      ->check(CLI::Range(1, 1000));
  add_number(app, "--chunk", command.options.chunk, "Prompt tokens per forward pass")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--json", command.is_json, "Print one JSON line");
}

void add_inspect(CLI::App& parent, InspectCommand& command) {
  CLI::App& app = *parent.add_subcommand(
      "inspect", "Show what a cache held, from its operation log, and why a match ends");
  app.add_option("LOG", command.log, "Operation log of a KvCacheManager")->required();
  add_number<std::int64_t>(app, "--at", command.options.at,
                           "Calls to go through (default: all of the log)")
      ->check(CLI::Range(std::int64_t{0}, kMostCalls));
  app.add_flag("--json", command.options.is_json, "Print one JSON object instead of text");
  app.add_option("--explain", command.explain,
                 "Say why the match of a prompt ends where it ends: its tokens, 1,2,3 or 100..131");
  add_number<std::uint64_t>(app, "--adapter", command.options.scope.adapter,
                            "Adapter of the prompt to explain");
  add_number<std::uint64_t>(app, "--salt", command.options.scope.salt,
                            "Salt of the prompt to explain");
  add_number(app, "--audit-every", command.options.audit_every,
             "Check all invariants after every so many calls; 0: at the end")
      ->check(CLI::Range(std::int64_t{0}, kMostCalls));
}

void add_engine_options(CLI::App& app, EngineOptions& options) {
  app.add_option("--drafter", options.drafter,
                 "none, ngram, mtp or model (default: mtp where the model has it, else none)");
  app.add_option("--loop", options.loop, "plain or overlap")->default_str(options.loop);
  add_number(app, "--max-drafts", options.max_drafts, "Drafts of a round at most")
      ->check(CLI::Range(1, 15));
  app.add_option("--draft-model", options.draft_directory,
                 "Directory of the draft model (default: that of the model with -draft)");
  add_number(app, "--slots", options.num_slots, "States of requests on the device")
      ->check(CLI::Range(1, kMostSlots));
  add_number(app, "--blocks", options.num_blocks, "Blocks of attention on the device")
      ->check(CLI::Range(1, kMostSlots));
  add_number(app, "--host-bytes", options.host_bytes,
             "For what leaves the device; 0: who makes room is computed again")
      ->check(CLI::Range(std::int64_t{0}, kMostCalls));
  add_number(app, "--batch", options.max_batch_size, "Requests of one step at most")
      ->check(CLI::Range(1, 4096));
}

void add_demo(CLI::App& parent, DemoCommand& command) {
  CLI::App& app = *parent.add_subcommand(
      "demo", "Many requests over little memory, with faults; then the same alone, and compare");
  add_model_options(app, command.model);
  add_engine_options(app, command.engine);
  DemoOptions& demo = command.demo;
  add_number(app, "--requests", demo.num_requests, "Requests")->check(CLI::Range(1, 100000));
  add_number(app, "--max-tokens", demo.max_tokens, "Tokens of an answer on average")
      ->check(CLI::Range(1, 1 << 20));
  add_number(app, "--temperature", demo.temperature, "0: always the likeliest token");
  add_number(app, "--seed", demo.seed, "Of sampling, and of all that goes wrong");
  add_number(app, "--suspend-every", demo.suspend_every,
             "Steps between two suspends in the middle of a round, on average; 0: none")
      ->check(CLI::Range(0, kMostTokens));
  add_number(app, "--fault-every", demo.fault_every,
             "Steps between two that fail, on average; 0: none")
      ->check(CLI::Range(0, kMostTokens));
  add_number<std::int32_t>(app, "--pace", command.pace_ms,
                           "Milliseconds after each step (default: 40 on a terminal, else 0)")
      ->check(CLI::Range(0, 10000));
  app.add_option("--save-bundle", command.save_bundle,
                 "Stop in the middle of a round, and write the requests to this new directory");
  add_number(app, "--at-step", command.at_step, "When to do so: not before this step")
      ->check(CLI::Range(std::int64_t{0}, kMostCalls));
  app.add_option("--load-bundle", command.load_bundle, "Go on with the requests of a bundle");
  app.add_flag("--json", command.is_json, "Print one JSON object, and no table");
}

void add_run(CLI::App& parent, RunCommand& command) {
  CLI::App& app = *parent.add_subcommand(
      "run", "Answer many prompts: a JSON object a line in, an answer a line out");
  app.footer(
      "Fields of a line: prompt or prompt_tokens; id, max_tokens, temperature, top_p, top_k, "
      "min_p, "
      "frequency_penalty, presence_penalty, seed, stop, stop_token_ids, ignore_eos, n, logit_bias, "
      "logprobs (true, or how many), priority, speculation.\n"
      "Killed? The same command goes on: answers that are in --output are not asked for again.");
  add_model_options(app, command.model);
  add_engine_options(app, command.engine);
  app.add_option("--prompts", command.prompts, "File with a JSON object a line")->required();
  app.add_option("--output", command.output,
                 "File to which answers are appended (default: standard output)");
  add_number(app, "--seed", command.seed, "Plus its number: the seed of a line without one");
  add_number(app, "--in-flight", command.num_in_flight, "Answers under way at once")
      ->check(CLI::Range(1, 1 << 20));
  app.add_flag("--tokens", command.has_tokens, "Write tokens beside the text");
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
  DemoCommand demo;
  RunCommand batch;
  InspectCommand inspect;
  generate.model.directory = bench.model.directory = default_model_directory();
  demo.model.directory = batch.model.directory = generate.model.directory;
  add_generate(app, generate);
  add_demo(app, demo);
  add_run(app, batch);
  add_bench(app, bench);
  add_inspect(app, inspect);
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
  if (app.got_subcommand("generate")) return execute(generate);
  if (app.got_subcommand("demo")) return execute(demo);
  if (app.got_subcommand("run")) return execute(batch);
  return app.got_subcommand("inspect") ? execute(inspect) : execute(bench);
}

// The library throws nothing of its own; what is left is the system's: no memory, no thread.
int run_program(int argc, char** argv) {
  try {
    return parse_and_execute(argc, argv);
  } catch (const std::bad_alloc&) {
    return fail(kFailure, "out of memory; ask for fewer tokens, sequences or threads");
  } catch (const std::exception& error) {
    return fail(kFailure, error.what());
  }
}

}  // namespace
}  // namespace slackwater::cli

int main(int argc, char** argv) {
  // A reader that goes away is an error of write(), with a message, not a silent death.
  std::signal(SIGPIPE, SIG_IGN);
  return slackwater::cli::run_program(argc, argv);
}
