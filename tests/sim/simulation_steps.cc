// Batches of the simulation: which rows, their step on the device, and the same rows alone.

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "simulation.h"

namespace slackwater::hybrid {

using device::Event;
using device::EventStatus;
using kernels::ExecutionContext;

namespace {

constexpr std::uint64_t kNoTokens = 0x5EED;

std::uint64_t fold(std::uint64_t before, TokenId token) {
  std::uint64_t z = (before ^ static_cast<std::uint32_t>(token)) * 0xBF58476D1CE4E5B9u;
  return z ^ (z >> 29);
}

}  // namespace

// What an attention layer keeps of each token: a digest of all tokens up to it.
std::vector<std::uint64_t> attention_words(std::span<const TokenId> tokens) {
  std::vector<std::uint64_t> words;
  std::uint64_t word = kNoTokens;
  for (const TokenId token : tokens) words.push_back(word = fold(word, token));
  return words;
}

// The hidden state of a token, as far as it is kept for a prediction block.
void fill_hidden(std::uint64_t word, std::span<float> hidden) {
  for (std::size_t i = 0; i < hidden.size(); ++i) {
    word = fold(word, static_cast<TokenId>(i));
    hidden[i] = static_cast<float>(word >> 40);
  }
}

// One step of one batch, as it runs on the stream. Looks at the memory of its slots and at nothing
// that the host may change meanwhile.
struct Simulation::Work {
  const KdaModel* model = nullptr;
  std::vector<kernels::RecurrentPages> pages;     // [layers]
  std::vector<kernels::ReplayRecords> records;    // [layers]
  std::vector<KdaModel::Row> rows;                // [rows]
  std::vector<const std::int32_t*> pending;       // [rows]; null where the host knows
  std::vector<std::vector<SlotId>> blocks;        // [rows]
  std::vector<std::vector<std::uint64_t>> words;  // [rows][first + tokens]
  PageTable attention;
  PageTable hidden;
  PageTable hidden_cache;
  std::size_t hidden_size = 0;
  std::shared_ptr<StepResult> result;
  bool is_to_fail = false;

  bool operator()(ExecutionContext& on) {
    for (std::size_t i = 0; i < rows.size(); ++i) {
      if (pending[i] == nullptr) continue;
      // Of a slot whose contents did not arrive it is any number.
      rows[i].num_pending = std::clamp(*pending[i], 0, records[0].max_records);
    }
    result->next = model->run(on, pages, records, rows);
    for (std::size_t i = 0; i < words.size(); ++i) {
      if (words[i].empty()) continue;
      result->mismatches[i] = read_and_write_attention(i);
      if (hidden_size > 0) write_hidden(i);
    }
    return !is_to_fail;
  }

  std::byte* place(std::size_t row, std::int64_t position) const {
    const auto block = static_cast<std::size_t>(position / attention.tokens_per_block);
    return layer_address(attention, blocks[row][block]) + position % attention.tokens_per_block * 8;
  }
  std::int32_t read_and_write_attention(std::size_t row) const {
    std::int32_t mismatches = 0;
    for (std::int64_t at = 0; at < std::ssize(words[row]); ++at) {
      const std::uint64_t word = words[row][static_cast<std::size_t>(at)];
      if (at >= rows[row].first_position) {
        std::memcpy(place(row, at), &word, sizeof(word));
      } else if (std::memcmp(place(row, at), &word, sizeof(word)) != 0) {
        ++mismatches;
      }
    }
    return mismatches;
  }
  void write_hidden(std::size_t row) const {
    const auto word_of = [&](std::int64_t token) {
      return words[row][static_cast<std::size_t>(rows[row].first_position + token)];
    };
    for (const kernels::StateWrite& write : rows[row].writes) {
      auto* const to = reinterpret_cast<float*>(layer_address(hidden, write.page));
      fill_hidden(word_of(write.count - 1), {to, hidden_size});
    }
    if (records[0].max_records == 0) return;
    const std::int32_t written = rows[row].writes.back().count;
    auto* cache = reinterpret_cast<float*>(layer_address(hidden_cache, rows[row].slot));
    for (std::int64_t t = written; t < std::ssize(rows[row].tokens); ++t, cache += hidden_size) {
      fill_hidden(word_of(t), {cache, hidden_size});
    }
  }
};

// --- Which rows.

// A chunk of what is known and not computed, with pages for the snapshots worth taking in it.
std::optional<Simulation::Planned> Simulation::plan_context(Request& request) {
  const std::int64_t first = request.computed;
  if (!request.rounds.empty() || request.num_known() < 1) return std::nullopt;
  if (request.alone[0].page_position() != first) return std::nullopt;
  const std::int64_t count = between(1, std::min<std::int64_t>(request.num_known(), 12));
  if (!make_room(request, first + count)) return std::nullopt;
  reserve_snapshots(request, first, first + count);
  const auto tokens = request.known(first, count);
  return Planned{&request,
                 World::context_row(request.id.value(), first, static_cast<std::int32_t>(count)),
                 {tokens.begin(), tokens.end()},
                 first};
}

void Simulation::reserve_snapshots(Request& request, std::int64_t first, std::int64_t end) {
  if (below(4) == 0) return;
  const auto points = manager().snapshot_points(request.id, std::ssize(request.tokens));
  ASSERT_TRUE(points.has_value()) << points.error().text();
  for (const std::int64_t point : *points) {
    if (point <= first || point > end) continue;
    if (point <= manager().sequence(request.id).history()) continue;
    const auto is_past = [&](const LoneRequest& alone) { return alone.page_position() >= point; };
    if (std::any_of(request.alone.begin(), request.alone.end(), is_past)) continue;
    const auto reserved = manager().reserve_snapshot(request.id, point);
    if (reserved.has_value()) {
      ++tally_.snapshots;
    } else {
      ASSERT_TRUE(may_be(reserved.error(), request)) << reserved.error().text();
    }
  }
}

// A round: golden tokens, and drafts of which any number may be right.
std::optional<Simulation::Planned> Simulation::plan_verify(Request& request, bool with_drafts) {
  if (request.awaits_host() || request.num_known() < 1) return std::nullopt;
  const bool is_ahead = !request.rounds.empty();
  if (is_ahead && (request.rounds.size() >= 3 || has_draft_model_)) return std::nullopt;
  const std::int64_t known = request.num_known();
  const std::int64_t written = is_ahead || below(4) != 0 ? 1 : between(1, known);
  if (request.computed + written + max_drafts_ + 1 > max_length_) return std::nullopt;
  Tokens drafts;
  if (with_drafts && written == known && max_drafts_ > 0) {
    drafts = request.plan;
    if (drafts.empty()) {
      const std::int64_t count = between(1, max_drafts_);
      drafts = draw_drafts(request, count);
    }
  }
  std::int64_t end = written + std::ssize(drafts);
  end += is_ahead ? manager().position(request.id)->kept : request.computed;
  for (const OpenRound& round : request.rounds) end += round.num_written + round.num_drafts;
  if (!make_room(request, end)) return std::nullopt;
  const auto golden = request.known(request.computed, written);
  Planned planned{&request, {}, {golden.begin(), golden.end()}, request.computed};
  planned.tokens.insert(planned.tokens.end(), drafts.begin(), drafts.end());
  planned.row = {.request = request.id,
                 .kind = RowKind::kGeneration,
                 .first_position = request.computed,
                 .num_tokens = static_cast<std::int32_t>(planned.tokens.size()),
                 .num_written = static_cast<std::int32_t>(written)};
  if (is_ahead) planned.row.first_position.reset();
  return planned;
}

// Of `count` drafts the first ones are right, the next one is not.
Tokens Simulation::draw_drafts(Request& request, std::int64_t count) {
  const std::int64_t right = between(0, count);
  Tokens drafts;
  for (std::int64_t i = 0; i < count; ++i) {
    const TokenId will_say = request.foresight.at(world_->context, std::ssize(request.tokens) + i);
    drafts.push_back(i < right ? will_say : (will_say + 1) % KdaModel::kVocabulary);
  }
  return drafts;
}

// Back as context, where its page is: drafts that were pending are computed again.
std::optional<Simulation::Planned> Simulation::plan_rewind(Request& request) {
  const LoneRequest& alone = request.alone[0];
  if (!request.rounds.empty() || has_draft_model_ || alone.num_pending() == 0) return std::nullopt;
  const std::int64_t first = alone.page_position();
  // What others may see is not written again.
  if (first < manager().sequence(request.id).num_committed()) return std::nullopt;
  const std::int64_t count = between(1, std::ssize(request.tokens) - first);
  if (!make_room(request, first + count)) return std::nullopt;
  ++tally_.rewinds;
  const auto tokens = request.known(first, count);
  return Planned{&request,
                 World::context_row(request.id.value(), first, static_cast<std::int32_t>(count)),
                 {tokens.begin(), tokens.end()},
                 first};
}

// Rows of several requests, of one kind or of both.
void Simulation::run_rows(Operation operation) {
  for (Request& request : requests_) {
    if (below(8) == 0) publish(request);
  }
  std::vector<Planned> rows;
  const std::uint64_t most = 1 + below(4);
  std::vector<Request*> at_end;
  for (Request& request : requests_) {
    if (rows.size() >= most) break;
    if (below(3) == 0 || request.has_ended || request.is_lost) continue;
    if (request.rounds.empty() && request.computed + max_drafts_ + 2 > max_length_) {
      at_end.push_back(&request);
      continue;
    }
    if (request.awaits_host() && below(2) == 0) accept(request);
    if (status(request) != cache::SequenceStatus::kActive && below(2) == 0) continue;
    if (!activate(request)) continue;
    const bool is_reading = request.num_known() > 1 && below(4) != 0;
    std::optional<Planned> planned;
    if (operation == kRewind) planned = plan_rewind(request);
    if (!planned.has_value() && (operation == kContext || is_reading)) {
      planned = plan_context(request);
    }
    if (!planned.has_value()) planned = plan_verify(request, operation != kDecode);
    if (planned.has_value()) rows.push_back(*std::move(planned));
  }
  if (!at_end.empty()) finish_one(*at_end[below(at_end.size())]);
  // Room for one may have cost another its place.
  std::erase_if(rows, [&](const Planned& row) {
    return row.request->is_lost || status(*row.request) != cache::SequenceStatus::kActive;
  });
  if (!rows.empty()) run_batch(std::move(rows), 0);
}

// The draft model goes on behind the target, and then ahead of it: after the golden token, draft
// after draft, which only the target's round will accept.
void Simulation::run_draft_model() {
  Request* const request = draw_request();
  if (!has_draft_model_ || request == nullptr || request->has_ended || request->is_lost) return;
  if (!request->rounds.empty() || !activate(*request)) return;
  const LoneRequest& alone = request->alone[1];
  Planned planned{request, {}, {}, alone.position()};
  planned.row.request = request->id;
  if (!request->plan.empty() && alone.page_position() == request->computed + 1) {
    const auto next = static_cast<std::size_t>(alone.num_records());
    if (next + 1 >= request->plan.size()) return;
    planned.row.kind = RowKind::kDraft;
    planned.first = alone.page_position() + alone.num_records();
    planned.tokens = {request->plan[next]};
  } else {
    const bool is_at_end = request->num_known() == 1 && max_drafts_ > 0 &&
                           request->computed + max_drafts_ + 2 <= max_length_ && below(3) != 0;
    const std::int64_t ready = request->computed + (is_at_end ? 1 : 0) - alone.position();
    if (ready < 1) return;
    const std::int64_t count = is_at_end ? ready : between(1, ready);
    const auto tokens = request->known(alone.position(), count);
    planned.tokens = {tokens.begin(), tokens.end()};
    planned.row.kind = alone.num_pending() == 0 && !is_at_end && below(2) == 0
                           ? RowKind::kContext
                           : RowKind::kGeneration;
    if (is_at_end) request->plan = draw_drafts(*request, between(1, max_drafts_));
  }
  planned.row.first_position = planned.first;
  planned.row.num_tokens = static_cast<std::int32_t>(planned.tokens.size());
  planned.row.num_written = planned.row.kind == RowKind::kDraft ? 0 : planned.row.num_tokens;
  if (!make_room(*request, planned.first + planned.row.num_tokens)) return;
  run_batch({std::move(planned)}, 1);
}

// --- The step.

void Simulation::run_batch(std::vector<Planned> rows, std::size_t tag) {
  if (!set_up(rows, tag, setup_)) return;
  std::erase_if(rows, [](const Planned& row) { return row.request->is_lost; });
  if (below(100) < unqueued_percent_) {
    // Given up: it has lost nothing.
    ++tally_.unqueued;
    return;
  }
  if (setup_.rows.empty()) return;
  queue(rows, tag, setup_);
}

bool Simulation::set_up(const std::vector<Planned>& rows, std::size_t tag, BatchSetup& setup) {
  std::vector<BatchRow> wanted;
  std::vector<const Request*> known_lost;
  for (const Planned& row : rows) {
    wanted.push_back(row.row);
    if (row.request->arrivals.status() == EventStatus::kFailed) known_lost.push_back(row.request);
  }
  std::vector<std::optional<SlotId>> before;
  for (const Request& request : requests_) {
    before.push_back(manager().state_index(request.id, name(tag)));
  }
  const auto done = manager().setup_state_indices(wanted, name(tag), setup);
  EXPECT_TRUE(done.has_value()) << done.error().text();
  if (!done.has_value()) return false;
  std::size_t index = 0;
  for (Request& request : requests_) {
    const auto now = manager().state_index(request.id, name(tag));
    request.has_moved_aside |= now != before[index++] && copy_fault_permille_ > 0;
  }
  for (const Planned& row : rows) row.request->has_moved_aside = false;
  for (const RequestId id : setup.lost) {
    Request* const request = find(id);
    EXPECT_TRUE(tally_.faults > 0) << "request " << id.value() << " is lost without a fault";
    request->is_lost = true;
  }
  std::size_t next = 0;
  for (const Planned& row : rows) {
    if (row.request->is_lost) continue;
    const RowSetup& found = setup.rows[next++];
    EXPECT_EQ(found.row.request, row.request->id);
    // What is known to be lost is not set up, or the row says so once all of it has come to an end.
    const bool is_known =
        std::find(known_lost.begin(), known_lost.end(), row.request) != known_lost.end();
    EXPECT_FALSE(is_known && found.ready.status() == EventStatus::kSucceeded);
    const std::array<Event, 2> both = {row.request->arrivals, found.ready};
    row.request->arrivals = device::merge(both);
  }
  if (world_->manager->config().num_dummies > 0 && below(2) == 0) {
    const std::size_t padded = setup.rows.size() + 1;
    const auto made = manager().pad_to(padded, setup);
    if (made.has_value()) {
      ++tally_.dummies;
    } else {
      EXPECT_EQ(made.error().code(), ErrorCode::kResourceExhausted) << made.error().text();
    }
  }
  return true;
}

Simulation::Work Simulation::make_work(const std::vector<Planned>& rows, std::size_t tag,
                                       const BatchSetup& setup) {
  Work work;
  ReplayState& state = manager().replay_state(name(tag));
  work.model = &model(tag);
  for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
    work.pages.push_back(state.pages(layer));
    work.records.push_back(state.records(layer));
  }
  work.result = std::make_shared<StepResult>();
  work.result->mismatches.resize(setup.rows.size());
  work.result->num_accepted_tokens.resize(setup.rows.size());
  for (std::size_t i = 0; i < setup.rows.size(); ++i) {
    const RowSetup& row = setup.rows[i];
    work.rows.push_back({.tokens = row.is_dummy ? Tokens{1} : rows[i].tokens,
                         .first_position = row.is_dummy ? 0 : rows[i].first,
                         .slot = row.slot,
                         .num_pending = row.num_pending.value_or(0),
                         .writes = row.writes});
    work.pending.push_back(row.num_pending.has_value() ? nullptr : state.pending(row.slot));
    if (tag == 1 || row.is_dummy) continue;
    const Request& request = *rows[i].request;
    const auto slots = manager().sequence(request.id).slots(LayerGroupId(0));
    work.blocks.emplace_back(slots.begin(), slots.end());
    const auto before = request.known(0, rows[i].first);
    Tokens all(before.begin(), before.end());
    all.insert(all.end(), rows[i].tokens.begin(), rows[i].tokens.end());
    work.words.push_back(attention_words(all));
  }
  work.attention = *manager().kv_cache().page_table(0, "kv_latent");
  work.hidden_size = static_cast<std::size_t>(manager().config().mtp_hidden_size);
  if (tag == 1) work.hidden_size = 0;
  if (work.hidden_size > 0) {
    work.hidden = state.table(0, kMtpHidden);
    if (state.has_replay()) work.hidden_cache = state.table(0, kMtpHiddenCache);
  }
  return work;
}

void Simulation::queue(const std::vector<Planned>& rows, std::size_t tag, const BatchSetup& setup) {
  Work work = make_work(rows, tag, setup);
  QueuedStep step;
  step.result = work.result;
  step.is_to_fail = work.is_to_fail = below(1000) < step_fault_permille_;
  if (step.is_to_fail) {
    step.setup = setup;
    ++tally_.failed_steps;
    ++tally_.faults;
  }
  world_->context.enqueue(*world_->stream, std::move(work));
  step.done = world_->stream->record();
  manager().step_queued(setup);
  ++tally_.steps;
  bool has_drafts = false;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    Request& request = *rows[i].request;
    const std::array<Event, 2> both = {request.written, step.done};
    request.written = device::merge(both);
    if (step.is_to_fail) *request.is_suspect = true;
    step.expected.push_back(
        {request.id, run_alone(rows[i], tag), request.arrivals, request.is_suspect});
    if (tag == 0) note_said(rows[i], setup.rows[i], step.expected.back().next);
    has_drafts = has_drafts || request.awaits_host();
  }
  if (tag == 0 && has_drafts && below(100) < on_device_percent_)
    accept_on_device(step, rows, setup);
  steps_.push_back(std::move(step));
}

Tokens Simulation::run_alone(const Planned& row, std::size_t tag) {
  LoneRequest& alone = row.request->alone[tag];
  switch (row.row.kind) {
    case RowKind::kContext: return alone.context(world_->context, row.tokens);
    case RowKind::kGeneration:
      return alone.generation(world_->context, row.tokens, row.row.num_written);
    case RowKind::kDraft: return alone.draft(world_->context, row.tokens);
  }
  return {};
}

// Where the request stands now, and what it says next.
void Simulation::note_said(const Planned& row, const RowSetup& setup, const Tokens& next) {
  Request& request = *row.request;
  const std::int64_t written =
      row.row.kind == RowKind::kContext ? row.row.num_tokens : row.row.num_written;
  const auto num_drafts = static_cast<std::int32_t>(row.row.num_tokens - written);
  std::int32_t accepted = 0;
  while (accepted < num_drafts && next[static_cast<std::size_t>(written - 1 + accepted)] ==
                                      row.tokens[static_cast<std::size_t>(written + accepted)]) {
    ++accepted;
  }
  request.plan.clear();
  request.computed = row.first + written + accepted;
  for (std::int64_t i = 0; i <= accepted; ++i) {
    const std::int64_t position = row.first + written + i;
    const TokenId said = next[static_cast<std::size_t>(written - 1 + i)];
    if (position == std::ssize(request.tokens)) request.tokens.push_back(said);
    EXPECT_EQ(request.tokens[static_cast<std::size_t>(position)],
              request.foresight.at(world_->context, position));
  }
  if (row.row.kind == RowKind::kContext) return;
  ++tally_.rounds;
  tally_.drafts_accepted += accepted;
  if (num_drafts > 0 || !request.rounds.empty()) {
    request.rounds.push_back(
        {setup.round, static_cast<std::int32_t>(written), num_drafts, accepted, num_drafts == 0});
  } else if (has_draft_model_) {
    request.alone[1].accept(request.computed, 0);
  }
}

// The device compares what was said with the drafts, and knows how many are kept before the host.
void Simulation::accept_on_device(QueuedStep& step, const std::vector<Planned>& rows,
                                  const BatchSetup& setup) {
  std::vector<Tokens> tokens;
  std::vector<std::int32_t> written;
  for (const Planned& row : rows) {
    tokens.push_back(row.tokens);
    written.push_back(row.row.kind == RowKind::kContext ? row.row.num_tokens : row.row.num_written);
  }
  world_->stream->run([result = step.result, tokens, written] {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto golden = static_cast<std::size_t>(written[i]);
      std::size_t kept = 0;
      while (golden + kept < tokens[i].size() &&
             result->next[i][golden - 1 + kept] == tokens[i][golden + kept]) {
        ++kept;
      }
      result->num_accepted_tokens[i] = static_cast<std::int32_t>(kept) + 1;
    }
    return true;
  });
  manager().record_acceptance(setup, step.result->num_accepted_tokens.data());
  step.read = world_->stream->mark();
  for (const Planned& row : rows) {
    Request& request = *row.request;
    if (!request.awaits_host()) continue;
    if (manager().position(request.id)->is_acceptance_pending) continue;
    request.rounds.back().is_on_device = true;
    ++tally_.on_device;
    const std::int64_t page = request.alone[0].page_position();
    // A draft model's count waits for the host.
    request.alone[0].accept(page, request.computed - page);
  }
}

}  // namespace slackwater::hybrid
