#include "cli/demo_report.h"

#include <algorithm>
#include <array>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "slackwater/model/generate.h"

namespace slackwater::cli {
namespace {

using storage::kNumTiers;
using Flows = std::array<std::array<std::int64_t, kNumTiers>, kNumTiers>;

Flows flows_of(const engine::EngineStatistics& statistics) {
  Flows flows = {};
  for (const cache::GroupStatistics& group : statistics.cache_statistics.groups) {
    for (std::size_t from = 0; from < kNumTiers; ++from) {
      for (std::size_t to = 0; to < kNumTiers; ++to) {
        flows[from][to] += group.moved[from][to].bytes;
      }
    }
  }
  const auto device = static_cast<std::size_t>(storage::Tier::kDevice);
  const auto host = static_cast<std::size_t>(storage::Tier::kHost);
  flows[device][host] += statistics.hybrid.bytes_saved;
  flows[host][device] += statistics.hybrid.bytes_restored;
  return flows;
}

std::string difference(const DemoRequest& request, std::string_view got, std::string_view alone) {
  constexpr std::size_t kShown = 60;
  return fmt::format("request {}: '{}' and alone '{}'", request.id.value(), got.substr(0, kShown),
                     alone.substr(0, kShown));
}

// Where the tokens part, so that a difference can be looked for.
std::string first_difference(const DemoRequest& request, const model::GenerateResult& alone) {
  const auto parts = std::mismatch(request.tokens.begin(), request.tokens.end(),
                                   alone.tokens.begin(), alone.tokens.end());
  return fmt::format(", from token {} of {} and {} on", parts.first - request.tokens.begin(),
                     request.tokens.size(), alone.tokens.size());
}

}  // namespace

Result<DemoComparison> compare_with_solo(EngineHost& host, const DemoRun& run,
                                         const std::function<void(std::size_t done)>& progress) {
  DemoComparison comparison;
  std::size_t done = 0;
  for (const DemoRequest& request : run.requests()) {
    progress(done++);
    if (request.error.has_value()) {
      comparison.differences.push_back(
          fmt::format("request {}: {}", request.id.value(), request.error->text()));
      continue;
    }
    model::GenerateOptions options;
    options.max_tokens = request.asked.max_tokens;
    options.sampling = request.asked.sampling;
    options.sampling.seed = kernels::choice_seed(request.asked.sampling.seed,
                                                 static_cast<std::uint32_t>(request.choice));
    options.bias = request.asked.logit_bias;
    options.stop = request.asked.stop;
    SLACKWATER_ASSIGN_OR_RETURN(
        const model::GenerateResult alone,
        model::generate_solo(host.model(), host.tokenizer(), host.solo_context(),
                             request.asked.prompt_tokens, options));
    if (request.tokens == alone.tokens && request.text == alone.text) continue;
    comparison.differences.push_back(difference(request, request.text, alone.text) +
                                     first_difference(request, alone));
  }
  return comparison;
}

std::int64_t bytes_moved(const engine::EngineStatistics& statistics) {
  std::int64_t bytes = 0;
  for (const auto& row : flows_of(statistics)) {
    for (const std::int64_t flow : row) bytes += flow;
  }
  return bytes;
}

std::string summary_line(const DemoFigures& figures) {
  const engine::EngineStatistics& all = figures.statistics;
  return fmt::format(
      "requests {} · tokens {} · suspends {} · resumes {} (old slot {}, new slot {}) · late "
      "acceptances {} · rebalances {} · moved {:.1f} MB · differences {}\n",
      figures.num_requests, figures.num_tokens, all.suspends, all.resumes,
      all.hybrid.resumes_in_old_slot, all.hybrid.resumes_in_new_slot, all.hybrid.late_acceptances,
      all.rebalances, static_cast<double>(bytes_moved(all)) / 1e6, figures.num_differences);
}

std::string summary_json(const DemoFigures& figures) {
  const engine::EngineStatistics& all = figures.statistics;
  const auto seconds = [](Nanoseconds time) { return std::chrono::duration<double>(time).count(); };
  nlohmann::ordered_json moved = nlohmann::ordered_json::object();
  const Flows flows = flows_of(all);
  for (std::size_t from = 0; from < kNumTiers; ++from) {
    for (std::size_t to = 0; to < kNumTiers; ++to) {
      if (flows[from][to] == 0) continue;
      moved[fmt::format("{}_to_{}", to_string(static_cast<storage::Tier>(from)),
                        to_string(static_cast<storage::Tier>(to)))] = flows[from][to];
    }
  }
  std::int64_t certificate_failures = all.hybrid.certificate_failures;
  for (const cache::GroupStatistics& group : all.cache_statistics.groups) {
    certificate_failures += group.certificate_failures;
  }
  const nlohmann::ordered_json object = {{"drafter", figures.drafter},
                                         {"loop", figures.loop},
                                         {"seed", figures.seed},
                                         {"requests", figures.num_requests},
                                         {"tokens", figures.num_tokens},
                                         {"steps", all.steps},
                                         {"failed_steps", all.failed_steps},
                                         {"suspends", all.suspends},
                                         {"suspends_in_flight", all.suspends_in_flight},
                                         {"resumes", all.resumes},
                                         {"resumes_old_slot", all.hybrid.resumes_in_old_slot},
                                         {"resumes_new_slot", all.hybrid.resumes_in_new_slot},
                                         {"late_acceptances", all.hybrid.late_acceptances},
                                         {"recomputes", all.recomputes},
                                         {"losses", all.losses},
                                         {"rebalances", all.rebalances},
                                         {"bytes_moved", moved},
                                         {"drafts_proposed", all.drafts_proposed},
                                         {"drafts_accepted", all.drafts_accepted},
                                         {"reused_tokens", figures.num_reused},
                                         {"recomputed_tokens", all.recomputed_tokens},
                                         {"certificate_failures", certificate_failures},
                                         {"differences", figures.num_differences},
                                         {"seconds", seconds(figures.engine_time)},
                                         {"solo_seconds", seconds(figures.solo_time)}};
  return object.dump() + "\n";
}

}  // namespace slackwater::cli
