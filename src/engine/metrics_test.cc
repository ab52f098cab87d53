#include "slackwater/engine/metrics.h"

#include <fstream>
#include <map>
#include <sstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/counter.h>
#include <prometheus/registry.h>

namespace slackwater::engine {
namespace {

using ::testing::HasSubstr;

// The figures of the exposition format, by what stands before them.
std::map<std::string, double> figures(const EngineMetrics& metrics) {
  std::map<std::string, double> found;
  std::istringstream lines(metrics.text());
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with('#')) continue;
    const std::size_t space = line.rfind(' ');
    EXPECT_TRUE(found.emplace(line.substr(0, space), std::stod(line.substr(space))).second) << line;
  }
  return found;
}

// The type of every metric, by its name.
std::map<std::string, std::string> types(const std::string& text) {
  std::map<std::string, std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string hash, keyword, name, type;
    words >> hash >> keyword >> name >> type;
    if (hash == "#" && keyword == "TYPE") found[name] = type;
  }
  return found;
}

// Every figure has a value of its own.
EngineStatistics some_statistics() {
  EngineStatistics s;
  s.submitted = 20;
  s.finished = 3;
  s.cancelled = 2;
  s.failed = 1;
  s.requests_by_state = {4, 5, 6, 7, 6};
  s.steps = 100;
  s.failed_steps = 8;
  s.prompt_tokens = 1000;
  s.recomputed_tokens = 70;
  s.generated_tokens = 500;
  s.rounds = 300;
  s.drafts_proposed = 400;
  s.drafts_accepted = 200;
  s.suspends = 31;
  s.suspends_in_flight = 11;
  s.resumes = 30;
  s.recomputes = 9;
  s.losses = 10;
  s.rebalances = 12;
  s.schedule_time = std::chrono::milliseconds(1500);
  s.prepare_time = std::chrono::milliseconds(2500);
  s.wait_time = std::chrono::milliseconds(3500);
  s.outcome_time = std::chrono::milliseconds(4500);
  s.rebalance_time = std::chrono::milliseconds(5500);
  s.pressure_time = std::chrono::milliseconds(500);
  s.hybrid.resumes_in_old_slot = 13;
  s.hybrid.resumes_in_new_slot = 14;
  s.hybrid.bytes_saved = 1 << 20;
  s.hybrid.bytes_restored = 1 << 19;
  s.hybrid.late_acceptances = 15;
  s.hybrid.ignored_acceptances = 16;
  s.hybrid.certificate_failures = 17;
  s.cache.certificate_mismatches = 18;
  s.cache.pages_dropped = 19;
  s.cache.snapshots_published = 21;
  s.cache.snapshots_skipped = 22;
  s.cache_statistics.tokens.queried = 2000;
  s.cache_statistics.tokens.reused = 1200;
  s.cache_statistics.groups.resize(2);
  cache::GroupStatistics& attention = s.cache_statistics.groups[0];
  attention.use.pages_reused_full = 40;
  attention.use.pages_reused_partial = 41;
  attention.use.pages_missed = 42;
  attention.use.pages_recomputed = 43;
  attention.moved[0][1] = {.pages = 44, .bytes = 44 << 10};
  attention.moved[1][0] = {.pages = 45, .bytes = 45 << 10};
  attention.moved[1][2] = {.pages = 46, .bytes = 46 << 10};
  attention.peak_slots = {50, 51, 52};
  cache::GroupStatistics& recurrent = s.cache_statistics.groups[1];
  recurrent.use.snapshots = {.lookups = 60, .hits = 25, .misses = 35, .tokens_reused = 1100};
  return s;
}

// What they are with these layer groups: "target: full", of 16 tokens a block, and one without a
// name.
const std::map<std::string, double> kFiguresOfThem = {
    {"slackwater_requests{state=\"waiting\"}", 4},
    {"slackwater_requests{state=\"context\"}", 5},
    {"slackwater_requests{state=\"running\"}", 6},
    {"slackwater_requests{state=\"suspended\"}", 7},
    {"slackwater_requests_submitted_total", 20},
    {"slackwater_requests_ended_total{end=\"finished\"}", 3},
    {"slackwater_requests_ended_total{end=\"cancelled\"}", 2},
    {"slackwater_requests_ended_total{end=\"failed\"}", 1},
    {"slackwater_steps_total", 100},
    {"slackwater_failed_steps_total", 8},
    {"slackwater_context_tokens_total{computed=\"first\"}", 1000},
    {"slackwater_context_tokens_total{computed=\"again\"}", 70},
    {"slackwater_generated_tokens_total", 500},
    {"slackwater_step_seconds_total{part=\"schedule\"}", 1.5},
    {"slackwater_step_seconds_total{part=\"prepare\"}", 2.5},
    {"slackwater_step_seconds_total{part=\"wait\"}", 3.5},
    {"slackwater_step_seconds_total{part=\"outcome\"}", 4.5},
    {"slackwater_step_seconds_total{part=\"rebalance\"}", 5.5},
    {"slackwater_pressure_seconds_total", 0.5},
    {"slackwater_suspends_total", 31},
    {"slackwater_suspends_in_flight_total", 11},
    {"slackwater_resumes_total", 30},
    {"slackwater_resumed_slots_total{slot=\"old\"}", 13},
    {"slackwater_resumed_slots_total{slot=\"new\"}", 14},
    {"slackwater_slot_bytes_total{way=\"saved\"}", 1 << 20},
    {"slackwater_slot_bytes_total{way=\"restored\"}", 1 << 19},
    {"slackwater_recomputes_total", 9},
    {"slackwater_losses_total", 10},
    {"slackwater_rebalances_total", 12},
    {"slackwater_rounds_total{drafter=\"mtp\"}", 300},
    {"slackwater_proposed_drafts_total{drafter=\"mtp\"}", 400},
    {"slackwater_accepted_drafts_total{drafter=\"mtp\"}", 200},
    {"slackwater_late_acceptances_total", 15},
    {"slackwater_ignored_acceptances_total", 16},
    {"slackwater_certificate_failures_total{of=\"save\"}", 17},
    {"slackwater_certificate_failures_total{of=\"page\"}", 18},
    {"slackwater_dropped_pages_total", 19},
    {"slackwater_snapshots_total{outcome=\"published\"}", 21},
    {"slackwater_snapshots_total{outcome=\"skipped\"}", 22},
    {"slackwater_prefix_queried_tokens_total", 2000},
    {"slackwater_prefix_reused_tokens_total", 1200},
    {"slackwater_hit_tokens_total{group=\"target: full\"}", 40 * 16},
    {"slackwater_hit_tokens_total{group=\"1\"}", 1100},
    {"slackwater_prompt_pages_total{group=\"target: full\",what=\"reused\"}", 40},
    {"slackwater_prompt_pages_total{group=\"target: full\",what=\"reused_partly\"}", 41},
    {"slackwater_prompt_pages_total{group=\"target: full\",what=\"missed\"}", 42},
    {"slackwater_prompt_pages_total{group=\"target: full\",what=\"recomputed\"}", 43},
    {"slackwater_moved_pages_total{from=\"device\",group=\"target: full\",to=\"host\"}", 44},
    {"slackwater_moved_bytes_total{from=\"device\",group=\"target: full\",to=\"host\"}", 44 << 10},
    {"slackwater_moved_pages_total{from=\"host\",group=\"target: full\",to=\"device\"}", 45},
    {"slackwater_moved_bytes_total{from=\"host\",group=\"target: full\",to=\"device\"}", 45 << 10},
    {"slackwater_moved_pages_total{from=\"host\",group=\"target: full\",to=\"disk\"}", 46},
    {"slackwater_moved_bytes_total{from=\"host\",group=\"target: full\",to=\"disk\"}", 46 << 10},
    {"slackwater_peak_slots{group=\"target: full\",tier=\"device\"}", 50},
    {"slackwater_peak_slots{group=\"target: full\",tier=\"host\"}", 51},
    {"slackwater_peak_slots{group=\"target: full\",tier=\"disk\"}", 52},
    {"slackwater_snapshot_lookups_total{group=\"1\",outcome=\"hit\"}", 25},
    {"slackwater_snapshot_lookups_total{group=\"1\",outcome=\"miss\"}", 35},
};

TEST(EngineMetrics, EveryFigureOfTheStatisticsIsAMetric) {
  EngineMetrics metrics({.group_names = {"target: full"}, .tokens_per_block = 16});
  metrics.update(some_statistics(), DrafterKind::kMtp);
  auto found = figures(metrics);
  for (const auto& [name, value] : kFiguresOfThem) {
    ASSERT_TRUE(found.contains(name)) << name << "\n" << metrics.text();
    EXPECT_DOUBLE_EQ(found[name], value) << name;
    found.erase(name);
  }
  // What is left is of layer groups that have had none of it.
  for (const auto& [name, value] : found) EXPECT_EQ(value, 0) << name;
}

TEST(EngineMetrics, CountersFollowTheLatestSnapshot) {
  EngineMetrics metrics;
  EngineStatistics statistics = some_statistics();
  metrics.update(statistics, DrafterKind::kNone);
  metrics.update(statistics, DrafterKind::kNone);
  statistics.steps += 5;
  statistics.wait_time += std::chrono::milliseconds(250);
  statistics.requests_by_state[0] = 1;
  statistics.cache_statistics.groups[0].moved[0][1].bytes += 1;
  metrics.update(statistics, DrafterKind::kNone);
  auto found = figures(metrics);
  EXPECT_EQ(found["slackwater_steps_total"], 105);
  EXPECT_EQ(found["slackwater_suspends_total"], 31);
  EXPECT_DOUBLE_EQ(found["slackwater_step_seconds_total{part=\"wait\"}"], 3.75);
  EXPECT_EQ(found["slackwater_requests{state=\"waiting\"}"], 1);
  EXPECT_EQ(found["slackwater_moved_bytes_total{from=\"device\",group=\"0\",to=\"host\"}"],
            (44 << 10) + 1);
}

TEST(EngineMetrics, GoOnGrowingWithAnotherEngine) {
  EngineMetrics metrics;
  metrics.update(some_statistics(), DrafterKind::kNgram);
  EngineStatistics other;
  other.steps = 7;
  other.drafts_proposed = 30;
  metrics.update(other, DrafterKind::kDraftModel);
  other.steps = 9;
  metrics.update(other, DrafterKind::kDraftModel);
  auto found = figures(metrics);
  EXPECT_EQ(found["slackwater_steps_total"], 109);
  EXPECT_EQ(found["slackwater_proposed_drafts_total{drafter=\"ngram\"}"], 400);
  EXPECT_EQ(found["slackwater_proposed_drafts_total{drafter=\"model\"}"], 30);
  EXPECT_EQ(found["slackwater_requests{state=\"running\"}"], 0);
}

TEST(EngineMetrics, AnAlarmIsThereBeforeItIsNeeded) {
  const EngineMetrics metrics;
  const auto found = figures(metrics);
  for (const char* name : {"slackwater_certificate_failures_total{of=\"page\"}",
                           "slackwater_certificate_failures_total{of=\"save\"}"}) {
    ASSERT_TRUE(found.contains(name));
    EXPECT_EQ(found.at(name), 0);
  }
}

TEST(EngineMetrics, OthersMayAddTheirs) {
  EngineMetrics metrics;
  prometheus::BuildCounter()
      .Name("other_total")
      .Help("Not ours.")
      .Register(metrics.registry())
      .Add({})
      .Increment(3);
  EXPECT_EQ(figures(metrics)["other_total"], 3);
}

TEST(EngineMetrics, TheDocumentListsEveryMetricWithItsType) {
  std::ifstream file(std::string(SLACKWATER_SOURCE_DIR) + "/docs/metrics.md");
  ASSERT_TRUE(file.is_open());
  std::map<std::string, std::string> documented;
  for (std::string line; std::getline(file, line);) {
    if (!line.starts_with("| `slackwater_")) continue;
    const std::size_t name_end = line.find('`', 3);
    const std::size_t type = line.find("| ", name_end) + 2;
    documented[line.substr(3, name_end - 3)] = line.substr(type, line.find(' ', type) - type);
  }
  EngineMetrics metrics;
  metrics.update(some_statistics(), DrafterKind::kNone);
  EXPECT_EQ(documented, types(metrics.text()));
}

TEST(EngineMetrics, EveryMetricHasAHelp) {
  EngineMetrics metrics;
  metrics.update(some_statistics(), DrafterKind::kNone);
  const std::string text = metrics.text();
  for (const auto& [name, type] : types(text)) {
    EXPECT_THAT(text, HasSubstr("# HELP " + name + " "));
    EXPECT_EQ(name.ends_with("_total"), type == "counter") << name;
  }
}

}  // namespace
}  // namespace slackwater::engine
