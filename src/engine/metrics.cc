#include "slackwater/engine/metrics.h"

#include <array>
#include <map>
#include <mutex>
#include <utility>

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "slackwater/base/mutant.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::engine {
namespace {

using cache::GroupStatistics;
using prometheus::Labels;

constexpr double kSecondsOfNanosecond = 1e-9;

// A counter and the figure that it was told last.
class Follower {
 public:
  Follower(prometheus::Counter& counter, double scale) : counter_(&counter), scale_(scale) {}

  void follow(std::int64_t total) {
    const std::int64_t more = total < last_ ? total : total - last_;
    last_ = SLACKWATER_MUTANT(engine_metrics_add_totals) ? 0 : total;
    if (more > 0) counter_->Increment(static_cast<double>(more) * scale_);
  }

 private:
  prometheus::Counter* counter_;
  double scale_;
  std::int64_t last_ = 0;
};

// Of metrics with several rows.
constexpr const char* kEndHelp = "Requests that are over, by how they ended.";
constexpr const char* kComputedHelp =
    "Tokens computed as context, for the first time or again after their state was given up.";
constexpr const char* kPartHelp =
    "Time of the thread that steps, by part of the step: schedule, prepare, wait, outcome, "
    "rebalance.";
constexpr const char* kSlotHelp =
    "Requests set up after a resume, in the slot they had before or in a new one.";
constexpr const char* kWayHelp =
    "Bytes beside the pools that were saved at a suspend and restored after a resume.";
constexpr const char* kCertificateHelp =
    "Pages and saves that were not those of their reader, and were not read. Must be 0.";
constexpr const char* kSnapshotHelp = "Snapshots of recurrent states, published or skipped.";
constexpr const char* kPromptPagesHelp =
    "Pages of prompts by layer group: reused whole or in part, missed, or computed again.";
constexpr const char* kLookupHelp =
    "Prompts for which a recurrent layer group was asked for a snapshot.";

// One line of an engine's counters. Rows of one name stand together and have one help.
struct EngineRow {
  const char* name;
  const char* help;
  const char* label;  // null: none
  const char* value;
  std::int64_t (*read)(const EngineStatistics&);
  double scale = 1;
};

constexpr EngineRow kEngineRows[] = {
    {"slackwater_requests_submitted_total", "Requests taken up, choices counted each.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.submitted; }},
    {"slackwater_requests_ended_total", kEndHelp, "end", "finished",
     [](const EngineStatistics& s) { return s.finished; }},
    {"slackwater_requests_ended_total", kEndHelp, "end", "cancelled",
     [](const EngineStatistics& s) { return s.cancelled; }},
    {"slackwater_requests_ended_total", kEndHelp, "end", "failed",
     [](const EngineStatistics& s) { return s.failed; }},

    {"slackwater_steps_total", "Steps queued.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.steps; }},
    {"slackwater_failed_steps_total", "Steps that failed on the device.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.failed_steps; }},
    {"slackwater_context_tokens_total", kComputedHelp, "computed", "first",
     [](const EngineStatistics& s) { return s.prompt_tokens; }},
    {"slackwater_context_tokens_total", kComputedHelp, "computed", "again",
     [](const EngineStatistics& s) { return s.recomputed_tokens; }},
    {"slackwater_generated_tokens_total", "Tokens generated.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.generated_tokens; }},
    {"slackwater_step_seconds_total", kPartHelp, "part", "schedule",
     [](const EngineStatistics& s) { return s.schedule_time.count(); }, kSecondsOfNanosecond},
    {"slackwater_step_seconds_total", kPartHelp, "part", "prepare",
     [](const EngineStatistics& s) { return s.prepare_time.count(); }, kSecondsOfNanosecond},
    {"slackwater_step_seconds_total", kPartHelp, "part", "wait",
     [](const EngineStatistics& s) { return s.wait_time.count(); }, kSecondsOfNanosecond},
    {"slackwater_step_seconds_total", kPartHelp, "part", "outcome",
     [](const EngineStatistics& s) { return s.outcome_time.count(); }, kSecondsOfNanosecond},
    {"slackwater_step_seconds_total", kPartHelp, "part", "rebalance",
     [](const EngineStatistics& s) { return s.rebalance_time.count(); }, kSecondsOfNanosecond},

    {"slackwater_pressure_seconds_total",
     "Time of steps lost to pressure: what suspends, resumes and recomputes took.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.pressure_time.count(); },
     kSecondsOfNanosecond},
    {"slackwater_suspends_total", "Requests suspended.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.suspends; }},
    {"slackwater_suspends_in_flight_total",
     "Of those suspended, requests whose step had not ended.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.suspends_in_flight; }},
    {"slackwater_resumes_total", "Requests resumed.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.resumes; }},
    {"slackwater_resumed_slots_total", kSlotHelp, "slot", "old",
     [](const EngineStatistics& s) { return s.hybrid.resumes_in_old_slot; }},
    {"slackwater_resumed_slots_total", kSlotHelp, "slot", "new",
     [](const EngineStatistics& s) { return s.hybrid.resumes_in_new_slot; }},
    {"slackwater_slot_bytes_total", kWayHelp, "way", "saved",
     [](const EngineStatistics& s) { return s.hybrid.bytes_saved; }},
    {"slackwater_slot_bytes_total", kWayHelp, "way", "restored",
     [](const EngineStatistics& s) { return s.hybrid.bytes_restored; }},
    {"slackwater_recomputes_total", "Requests given up to make room, to be computed again.",
     nullptr, nullptr, [](const EngineStatistics& s) { return s.recomputes; }},
    {"slackwater_losses_total", "Requests given up because a step or a copy failed.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.losses; }},
    {"slackwater_rebalances_total", "Times that the pools were given other shares.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.rebalances; }},

    {"slackwater_late_acceptances_total", "Acceptances that came after their request's suspend.",
     nullptr, nullptr, [](const EngineStatistics& s) { return s.hybrid.late_acceptances; }},
    {"slackwater_ignored_acceptances_total", "Acceptances of another round or epoch, or of nobody.",
     nullptr, nullptr, [](const EngineStatistics& s) { return s.hybrid.ignored_acceptances; }},
    {"slackwater_certificate_failures_total", kCertificateHelp, "of", "page",
     [](const EngineStatistics& s) { return s.cache.certificate_mismatches; }},
    {"slackwater_certificate_failures_total", kCertificateHelp, "of", "save",
     [](const EngineStatistics& s) { return s.hybrid.certificate_failures; }},

    {"slackwater_prefix_queried_tokens_total", "Tokens of prompts that were looked for.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.cache_statistics.tokens.queried; }},
    {"slackwater_prefix_reused_tokens_total", "Of those, tokens that need not be computed.",
     nullptr, nullptr, [](const EngineStatistics& s) { return s.cache_statistics.tokens.reused; }},
    {"slackwater_snapshots_total", kSnapshotHelp, "outcome", "published",
     [](const EngineStatistics& s) { return s.cache.snapshots_published; }},
    {"slackwater_snapshots_total", kSnapshotHelp, "outcome", "skipped",
     [](const EngineStatistics& s) { return s.cache.snapshots_skipped; }},
    {"slackwater_dropped_pages_total", "Pages that left the last tier.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.cache.pages_dropped; }},
};

// Those that are told apart by drafter.
constexpr EngineRow kDrafterRows[] = {
    {"slackwater_rounds_total", "Rounds of generation, one per request and step, by drafter.",
     nullptr, nullptr, [](const EngineStatistics& s) { return s.rounds; }},
    {"slackwater_proposed_drafts_total", "Drafts that were verified, by drafter.", nullptr, nullptr,
     [](const EngineStatistics& s) { return s.drafts_proposed; }},
    {"slackwater_accepted_drafts_total", "Of those, drafts that the model itself samples.", nullptr,
     nullptr, [](const EngineStatistics& s) { return s.drafts_accepted; }},
};

struct GroupRow {
  const char* name;
  const char* help;
  const char* label;
  const char* value;
  std::int64_t (*read)(const GroupStatistics&);
};

constexpr GroupRow kGroupRows[] = {
    {"slackwater_prompt_pages_total", kPromptPagesHelp, "what", "reused",
     [](const GroupStatistics& g) { return g.use.pages_reused_full; }},
    {"slackwater_prompt_pages_total", kPromptPagesHelp, "what", "reused_partly",
     [](const GroupStatistics& g) { return g.use.pages_reused_partial; }},
    {"slackwater_prompt_pages_total", kPromptPagesHelp, "what", "missed",
     [](const GroupStatistics& g) { return g.use.pages_missed; }},
    {"slackwater_prompt_pages_total", kPromptPagesHelp, "what", "recomputed",
     [](const GroupStatistics& g) { return g.use.pages_recomputed; }},
    {"slackwater_snapshot_lookups_total", kLookupHelp, "outcome", "hit",
     [](const GroupStatistics& g) { return g.use.snapshots.hits; }},
    {"slackwater_snapshot_lookups_total", kLookupHelp, "outcome", "miss",
     [](const GroupStatistics& g) { return g.use.snapshots.misses; }},
};

constexpr std::array kTiers = {storage::Tier::kDevice, storage::Tier::kHost, storage::Tier::kDisk};
static_assert(kTiers.size() == storage::kNumTiers);

}  // namespace

struct EngineMetrics::Parts {
  explicit Parts(EngineMetricsOptions chosen) : options(std::move(chosen)) {
    for (const EngineRow& row : kEngineRows) {
      Labels labels;
      if (row.label != nullptr) labels.emplace(row.label, row.value);
      engine.push_back(follower(row.name, row.help, labels, row.scale));
    }
    auto& requests = prometheus::BuildGauge()
                         .Name("slackwater_requests")
                         .Help("Requests that are not over, by state.")
                         .Register(registry);
    for (const RequestState state : {RequestState::kWaiting, RequestState::kContext,
                                     RequestState::kRunning, RequestState::kSuspended}) {
      states.emplace_back(state, &requests.Add({{"state", std::string(to_string(state))}}));
    }
  }

  Follower follower(const char* name, const char* help, const Labels& labels, double scale = 1) {
    return {prometheus::BuildCounter().Name(name).Help(help).Register(registry).Add(labels), scale};
  }

  // The metrics of one layer group, in the order in which follow_group() takes them.
  struct Group {
    std::vector<Follower> rows;            // [kGroupRows]
    std::vector<Follower> hits;            // [1] tokens
    std::vector<Follower> moved;           // [from][to != from] pages, bytes
    std::vector<prometheus::Gauge*> peak;  // [tiers]
  };

  void add_group() {
    const std::size_t number = groups.size();
    const std::string name =
        number < options.group_names.size() ? options.group_names[number] : std::to_string(number);
    Group& group = groups.emplace_back();
    for (const GroupRow& row : kGroupRows) {
      group.rows.push_back(follower(row.name, row.help, {{"group", name}, {row.label, row.value}}));
    }
    group.hits.push_back(follower("slackwater_hit_tokens_total",
                                  "Tokens of prompts for which a layer group had what is needed: "
                                  "whole blocks, or up to a snapshot.",
                                  {{"group", name}}));
    auto& peak = prometheus::BuildGauge()
                     .Name("slackwater_peak_slots")
                     .Help("The most slots occupied at once where a layer group's pages lie.")
                     .Register(registry);
    for (const storage::Tier from : kTiers) {
      const std::string tier(to_string(from));
      group.peak.push_back(&peak.Add({{"group", name}, {"tier", tier}}));
      for (const storage::Tier to : kTiers) {
        if (to == from) continue;
        const Labels way = {{"group", name}, {"from", tier}, {"to", std::string(to_string(to))}};
        group.moved.push_back(
            follower("slackwater_moved_pages_total", "Pages moved between tiers.", way));
        group.moved.push_back(
            follower("slackwater_moved_bytes_total", "Bytes moved between tiers.", way));
      }
    }
  }

  void follow_group(Group& group, const GroupStatistics& figures) {
    for (std::size_t i = 0; i < std::size(kGroupRows); ++i) {
      group.rows[i].follow(kGroupRows[i].read(figures));
    }
    // Only recurrent groups are asked for snapshots; they have no blocks.
    const cache::SnapshotStatistics& snapshots = figures.use.snapshots;
    group.hits[0].follow(snapshots.lookups > 0
                             ? snapshots.tokens_reused
                             : figures.use.pages_reused_full * options.tokens_per_block);
    auto moved = group.moved.begin();
    for (std::size_t from = 0; from < kTiers.size(); ++from) {
      group.peak[from]->Set(figures.peak_slots[from]);
      for (std::size_t to = 0; to < kTiers.size(); ++to) {
        if (to == from) continue;
        const cache::PageFlow& flow = SLACKWATER_MUTANT(engine_metrics_swap_ways)
                                          ? figures.moved[to][from]
                                          : figures.moved[from][to];
        (moved++)->follow(flow.pages);
        (moved++)->follow(flow.bytes);
      }
    }
  }

  // Those of one drafter: [kDrafterRows].
  std::vector<Follower>& of_drafter(DrafterKind drafter) {
    std::vector<Follower>& rows = drafters[drafter];
    for (std::size_t i = rows.size(); i < std::size(kDrafterRows); ++i) {
      rows.push_back(follower(kDrafterRows[i].name, kDrafterRows[i].help,
                              {{"drafter", std::string(to_string(drafter))}}));
    }
    return rows;
  }

  const EngineMetricsOptions options;
  std::mutex mutex;  // of all below but the registry, which has its own
  prometheus::Registry registry;
  std::vector<Follower> engine;  // [kEngineRows]
  std::vector<std::pair<RequestState, prometheus::Gauge*>> states;
  std::map<DrafterKind, std::vector<Follower>> drafters;
  std::vector<Group> groups;
};

EngineMetrics::EngineMetrics(EngineMetricsOptions options)
    : parts_(std::make_unique<Parts>(std::move(options))) {}

EngineMetrics::~EngineMetrics() = default;

void EngineMetrics::update(const EngineStatistics& statistics, DrafterKind drafter) {
  const std::lock_guard lock(parts_->mutex);
  for (std::size_t i = 0; i < std::size(kEngineRows); ++i) {
    parts_->engine[i].follow(kEngineRows[i].read(statistics));
  }
  std::vector<Follower>& of_drafter = parts_->of_drafter(drafter);
  for (std::size_t i = 0; i < std::size(kDrafterRows); ++i) {
    of_drafter[i].follow(kDrafterRows[i].read(statistics));
  }
  for (const auto& [state, gauge] : parts_->states) {
    gauge->Set(
        static_cast<double>(statistics.requests_by_state.at(static_cast<std::size_t>(state))));
  }
  const std::vector<GroupStatistics>& groups = statistics.cache_statistics.groups;
  while (parts_->groups.size() < groups.size()) parts_->add_group();
  for (std::size_t i = 0; i < groups.size(); ++i) {
    parts_->follow_group(parts_->groups[i], groups[i]);
  }
}

std::string EngineMetrics::text() const {
  return prometheus::TextSerializer().Serialize(parts_->registry.Collect());
}

prometheus::Registry& EngineMetrics::registry() { return parts_->registry; }

}  // namespace slackwater::engine
