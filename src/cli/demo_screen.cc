#include "cli/demo_screen.h"

#include <algorithm>
#include <initializer_list>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "cli/demo_report.h"
#include "slackwater/base/figures.h"

namespace slackwater::cli {
namespace {

using engine::RequestState;
using engine::RequestView;

// Columns of the table.
constexpr std::size_t kNameAt = 9;
constexpr std::size_t kStateAt = 14;
constexpr std::size_t kBarAt = 23;
constexpr std::size_t kBarWidth = 14;
constexpr std::size_t kTokensAt = 39;
constexpr std::size_t kDraftsAt = 53;
constexpr std::size_t kPendingAt = 61;
constexpr std::size_t kTextAt = 64;
constexpr std::size_t kTierWidth = 7;
constexpr std::size_t kLinesBeside = 9;  // with the cursor's; without rows, pools and counters

double seconds(Nanoseconds time) { return std::chrono::duration<double>(time).count(); }

std::string place_of(const engine::ResidencyView& residency, RequestId id) {
  const auto& all = residency.requests;
  const auto at = std::find_if(all.begin(), all.end(), [&](const engine::RequestPages& pages) {
    return pages.request == id;
  });
  if (at == all.end()) return "-";
  const bool is_on_device = at->pages[0] > 0;
  if (is_on_device && at->pages[1] + at->pages[2] > 0) return "both";
  if (is_on_device) return "device";
  return at->pages[2] > 0 ? "disk" : "host";
}

// What was said so far, as a terminal shows it in one column a character.
std::string text_of(const EngineHost& host, const DemoRequest& request) {
  constexpr std::ptrdiff_t kMost = 64;
  std::vector<TokenId> tokens = request.asked.prompt_tokens;
  tokens.insert(tokens.end(), request.tokens.begin(), request.tokens.end());
  if (std::ssize(tokens) > kMost) tokens.erase(tokens.begin(), tokens.end() - kMost);
  std::string text = host.tokenizer().decode(tokens).value_or("");
  for (char& c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x7F) c = '?';
    if (byte < 0x20) c = ' ';
  }
  return text;
}

ScreenLine row_line(const DemoRow& row, std::string_view place, ScreenLine line) {
  const RequestView& view = row.view;
  const bool sleeps = view.state == RequestState::kSuspended;
  const Ink ink = sleeps ? Ink::kBlue : Ink::kPlain;
  line.add(" ").add(place, ink).pad_to(kNameAt);
  line.add(fmt::format("#{}", view.request.value()), sleeps ? Ink::kBlue : Ink::kStrong);
  line.pad_to(kStateAt).add(sleeps ? "asleep" : to_string(view.state), ink);
  line.pad_to(kBarAt).add_bar(kBarWidth, view.num_computed, 0, row.limit);
  line.pad_to(kTokensAt);
  const bool is_prompt = view.num_computed < view.num_prompt_tokens;
  line.add(is_prompt ? fmt::format("{} of {}", view.num_computed, view.num_prompt_tokens)
                     : fmt::format("{} + {}", view.num_prompt_tokens,
                                   view.num_tokens - view.num_prompt_tokens),
           is_prompt ? Ink::kDim : ink);
  line.pad_to(kDraftsAt);
  if (view.drafts_proposed > 0) {
    line.add(share_text(view.drafts_accepted, view.drafts_proposed), ink);
  }
  line.pad_to(kPendingAt);
  if (view.num_pending > 0) line.add(fmt::format("{}", view.num_pending), Ink::kYellow);
  line.pad_to(kTextAt);
  const std::size_t width = std::max(line.width(), kTextAt) - kTextAt;
  return line.add_end(row.text, width, Ink::kDim);
}

// Slots with whoever has them, those that have just come in, then those that sleep.
std::vector<ScreenLine> rows_of(const DemoPicture& picture, const ScreenLine& empty) {
  std::vector<ScreenLine> lines;
  std::vector<const DemoRow*> in_slots;
  std::vector<const DemoRow*> others;
  std::int32_t num_slots = 0;
  for (const engine::PoolUse& pool : picture.pools) {
    if (pool.tier == storage::Tier::kDevice && !pool.holds_blocks) num_slots = pool.num_slots;
  }
  for (const DemoRow& row : picture.rows) {
    const RequestState state = row.view.state;
    if (state == RequestState::kWaiting || state == RequestState::kFinished) continue;
    const bool has_slot = state != RequestState::kSuspended && row.view.slot.has_value();
    (has_slot ? in_slots : others).push_back(&row);
    if (has_slot) num_slots = std::max(num_slots, row.view.slot->value() + 1);
  }
  for (std::int32_t slot = 0; slot < num_slots; ++slot) {
    const std::string place = fmt::format("slot {}", slot);
    const auto at = std::find_if(in_slots.begin(), in_slots.end(), [&](const DemoRow* row) {
      return row->view.slot->value() == slot;
    });
    if (at != in_slots.end()) {
      lines.push_back(row_line(**at, place, empty));
    } else {
      lines.push_back(
          ScreenLine(empty).add(" " + place, Ink::kDim).pad_to(kNameAt).add("-", Ink::kDim));
    }
  }
  for (const DemoRow* const row : others) {
    const bool sleeps = row->view.state == RequestState::kSuspended;
    lines.push_back(row_line(*row, sleeps ? row->place : "->", empty));
  }
  return lines;
}

ScreenLine waiting_line(const DemoPicture& picture, ScreenLine line) {
  line.add(" waiting ", Ink::kDim).pad_to(kNameAt);
  bool is_any = false;
  for (const DemoRow& row : picture.rows) {
    if (row.view.state != RequestState::kWaiting) continue;
    line.add(fmt::format("#{} ", row.view.request.value()));
    is_any = true;
  }
  if (!is_any) line.add("nobody");
  return line;
}

ScreenLine done_line(const DemoPicture& picture, ScreenLine line) {
  line.add(" done", Ink::kDim).pad_to(kNameAt);
  line.add_bar(kBarWidth, picture.num_finished, 0, picture.num_requests);
  return line.add(fmt::format("  {} of {} requests, {} tokens", picture.num_finished,
                              picture.num_requests, picture.num_tokens));
}

// "target: full attention" in few letters.
std::string short_name(const engine::PoolUse& pool) {
  const std::string tag = pool.name.substr(0, pool.name.find(':'));
  const std::string_view what = pool.holds_blocks ? "blocks" : "states";
  return tag == "target" ? std::string(what) : fmt::format("{} {}", tag, what);
}

// A line per pool of the device, with that of the host beside it.
std::vector<ScreenLine> pool_lines(const DemoPicture& picture, const ScreenLine& empty) {
  std::vector<ScreenLine> lines;
  for (const engine::PoolUse& on_device : picture.pools) {
    if (on_device.tier != storage::Tier::kDevice) continue;
    ScreenLine& line = lines.emplace_back(empty);
    line.add(" " + short_name(on_device), Ink::kDim);
    std::size_t at = kStateAt;
    for (const engine::PoolUse& pool : picture.pools) {
      if (pool.name != on_device.name) continue;
      line.pad_to(at).add(to_string(pool.tier), Ink::kDim).pad_to(at + kTierWidth);
      line.add_bar(kBarWidth, pool.num_in_use, pool.num_evictable, pool.num_slots);
      line.add(fmt::format(" {} of {}", pool.num_in_use + pool.num_evictable, pool.num_slots));
      at += kTierWidth + kBarWidth + 11;
    }
  }
  return lines;
}

struct Counter {
  std::string_view name;
  std::int64_t value = 0;
};

ScreenLine counter_line(std::initializer_list<Counter> counters, ScreenLine line) {
  for (const Counter& counter : counters) {
    line.add(fmt::format(" {} ", counter.name), Ink::kDim);
    line.add(fmt::format("{}  ", counter.value), counter.value > 0 ? Ink::kStrong : Ink::kDim);
  }
  return line;
}

std::vector<ScreenLine> counter_lines(const DemoPicture& picture, const ScreenLine& empty) {
  const engine::EngineStatistics& all = picture.statistics;
  return {counter_line({{"suspends", all.suspends},
                        {"in flight", all.suspends_in_flight},
                        {"resumes", all.resumes},
                        {"old slot", all.hybrid.resumes_in_old_slot},
                        {"new slot", all.hybrid.resumes_in_new_slot}},
                       empty),
          counter_line({{"late acceptances", all.hybrid.late_acceptances},
                        {"drafts", all.drafts_proposed},
                        {"accepted", all.drafts_accepted},
                        {"MB moved", bytes_moved(all) / 1000000}},
                       empty),
          counter_line({{"rebalances", all.rebalances},
                        {"failed steps", all.failed_steps},
                        {"states lost", all.losses},
                        {"given up", all.recomputes}},
                       empty)};
}

}  // namespace

DemoPicture picture_of(EngineHost& host, const DemoRun& run, std::string title,
                       Nanoseconds elapsed) {
  DemoPicture picture;
  picture.title = std::move(title);
  picture.elapsed = elapsed;
  picture.num_requests = run.num_requests();
  picture.num_finished = run.num_finished();
  picture.statistics = host.engine().statistics();
  picture.num_tokens = picture.statistics.generated_tokens;
  engine::ResidencyView residency = engine::residency_of(host.engine().state());
  for (const RequestView& view : host.engine().view()) {
    DemoRow& row = picture.rows.emplace_back();
    row.view = view;
    row.place = place_of(residency, view.request);
    const DemoRequest* const request = run.find(view.request);
    if (request == nullptr) continue;
    row.text = text_of(host, *request);
    row.limit = view.num_prompt_tokens + request->asked.max_tokens;
  }
  picture.pools = std::move(residency.pools);
  return picture;
}

std::vector<ScreenLine> table_of(const DemoPicture& picture, std::size_t width, std::size_t height,
                                 bool has_color) {
  const ScreenLine empty(width, has_color);
  std::vector<ScreenLine> lines;
  ScreenLine head = empty;
  head.add(" slackwater demo", Ink::kStrong);
  head.add(
      fmt::format("  step {}, {:.1f} s  ", picture.statistics.steps, seconds(picture.elapsed)));
  head.add(picture.title, Ink::kDim);
  lines.push_back(std::move(head));
  lines.push_back(empty);
  ScreenLine names = empty;
  names.add(" where", Ink::kDim).pad_to(kNameAt).add("who", Ink::kDim).pad_to(kBarAt);
  names.add("progress", Ink::kDim).pad_to(kTokensAt).add("tokens", Ink::kDim).pad_to(kDraftsAt);
  names.add("drafts", Ink::kDim).pad_to(kPendingAt).add("P", Ink::kDim).pad_to(kTextAt);
  lines.push_back(names.add("text", Ink::kDim));
  const std::vector<ScreenLine> rows = rows_of(picture, empty);
  std::vector<ScreenLine> pools = pool_lines(picture, empty);
  std::vector<ScreenLine> counters = counter_lines(picture, empty);
  const std::size_t others = kLinesBeside + pools.size() + counters.size();
  const std::size_t shown = std::min(rows.size(), std::max(height, others + 1) - others);
  lines.insert(lines.end(), rows.begin(), rows.begin() + static_cast<std::ptrdiff_t>(shown));
  if (shown < rows.size()) {
    lines.push_back(
        ScreenLine(empty).add(fmt::format(" and {} more", rows.size() - shown), Ink::kDim));
  }
  lines.push_back(empty);
  lines.push_back(waiting_line(picture, empty));
  lines.push_back(done_line(picture, empty));
  lines.push_back(empty);
  std::move(pools.begin(), pools.end(), std::back_inserter(lines));
  std::move(counters.begin(), counters.end(), std::back_inserter(lines));
  return lines;
}

std::string progress_line(const DemoPicture& picture) {
  const engine::EngineStatistics& all = picture.statistics;
  const auto& states = all.requests_by_state;
  return fmt::format(
      "step {}: {} of {} requests done, {} resident, {} asleep, {} waiting, {} tokens, {} "
      "suspends, "
      "{} resumes, {} rebalances\n",
      all.steps, picture.num_finished, picture.num_requests, states[1] + states[2], states[3],
      states[0], picture.num_tokens, all.suspends, all.resumes, all.rebalances);
}

}  // namespace slackwater::cli
