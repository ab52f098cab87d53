#include "cli/bench_generate_command.h"

#include <fstream>
#include <string>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/build_info.h"
#include "cli/standard_streams.h"
#include "slackwater/model/tokenizer.h"

namespace slackwater::cli {
namespace {

nlohmann::ordered_json json_of(const model::Spread& spread) {
  return {{"median", spread.median}, {"min", spread.min}, {"max", spread.max}};
}

std::string processor_name() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string text_of(const model::SpeedReport& report) {
  return fmt::format(
      "prompt     {:10.0f} tokens/s  (min {:.0f}, max {:.0f})\n"
      "generated  {:10.0f} tokens/s  (min {:.0f}, max {:.0f})\n"
      "weights    {:.1f} MB a token, read ceiling {:.1f} GB/s, share {:.0f} %\n",
      report.prompt_rate.median, report.prompt_rate.min, report.prompt_rate.max,
      report.generated_rate.median, report.generated_rate.min, report.generated_rate.max,
      static_cast<double>(report.active_bytes) / 1e6, report.read_ceiling / 1e9,
      100 * report.share_of_ceiling);
}

std::string json_of(const BenchGenerateCommand& command, const model::SpeedReport& report,
                    kernels::Target target) {
  const nlohmann::ordered_json line = {{"bench", "generate"},
                                       {"commit", kBuildCommit},
                                       {"compiler", kBuildCompiler},
                                       {"cpu", processor_name()},
                                       {"target", kernels::to_string(target)},
                                       {"threads", num_threads(command.model)},
                                       {"model", command.model.directory.string()},
                                       {"prompt_tokens", command.options.prompt_tokens},
                                       {"max_tokens", command.options.max_tokens},
                                       {"sequences", command.options.sequences},
                                       {"repetitions", command.options.repetitions},
                                       {"prompt_tokens_per_s", json_of(report.prompt_rate)},
                                       {"generated_tokens_per_s", json_of(report.generated_rate)},
                                       {"active_weight_bytes", report.active_bytes},
                                       {"read_ceiling_bytes_per_s", report.read_ceiling},
                                       {"share_of_read_ceiling", report.share_of_ceiling}};
  // A path may hold any bytes.
  return line.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<void> check(const BenchGenerateCommand& command) {
  SLACKWATER_RETURN_IF_ERROR(target(command.model));
  return {};
}

Result<void> run(const BenchGenerateCommand& command) {
  SLACKWATER_ASSIGN_OR_RETURN(const model::ModelConfig config,
                              model::load_config(command.model.directory));
  SLACKWATER_ASSIGN_OR_RETURN(const model::Tokenizer tokenizer,
                              model::Tokenizer::load(command.model.directory, config.vocab_size));
  SLACKWATER_ASSIGN_OR_RETURN(const kernels::Target chosen_target, target(command.model));
  ThreadPool pool(num_threads(command.model));
  kernels::ExecutionContext context(pool, chosen_target);
  SLACKWATER_ASSIGN_OR_RETURN(const model::Model loaded, load_model(command.model, context));
  SLACKWATER_ASSIGN_OR_RETURN(
      const model::SpeedReport report,
      model::measure_speed(loaded, tokenizer.num_ranks(), context, command.options));
  return write_standard_output(command.is_json ? json_of(command, report, chosen_target)
                                               : text_of(report));
}

}  // namespace slackwater::cli
