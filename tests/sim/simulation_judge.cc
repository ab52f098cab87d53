// What the simulation compares, and with what.

#include <algorithm>
#include <cstring>

#include "simulation.h"

namespace slackwater::hybrid {

using device::EventStatus;

Simulation::Request* Simulation::find(RequestId id) {
  for (Request& request : requests_) {
    if (request.id == id) return &request;
  }
  return nullptr;
}

// Of every request that has slots, all that is kept there is what it has alone.
void Simulation::judge() {
  manager().synchronize();
  look_at_steps();
  for (Request& request : requests_) {
    const bool has_lost = request.arrivals.status() == EventStatus::kFailed;
    if (has_lost || *request.is_suspect || request.is_lost || request.has_ended) continue;
    if (request.has_moved_aside) continue;
    for (std::size_t tag = 0; tag < num_tags(); ++tag) compare(request, tag);
  }
}

// Steps that have ended said what the requests say alone; of those that have failed the manager is
// told now.
void Simulation::look_at_steps() {
  while (!steps_.empty() && steps_.front().done.is_done() && steps_.front().read.is_done()) {
    look_at_step(steps_.front());
    steps_.pop_front();
  }
}

void Simulation::look_at_step(const QueuedStep& step) {
  if (step.is_to_fail) {
    ASSERT_EQ(step.done.status(), EventStatus::kFailed);
    manager().fail_step(step.setup);
    for (const Expected& row : step.expected) {
      Request* const request = find(row.id);
      if (request != nullptr && request->is_suspect == row.is_suspect) request->is_lost = true;
    }
    return;
  }
  for (std::size_t i = 0; i < step.expected.size(); ++i) {
    const Expected& row = step.expected[i];
    if (*row.is_suspect || row.ready.status() == EventStatus::kFailed) continue;
    ASSERT_EQ(step.result->next[i], row.next) << "what request " << row.id.value() << " said";
    ASSERT_EQ(step.result->mismatches[i], 0) << "attention of request " << row.id.value();
  }
}

void Simulation::compare(Request& request, std::size_t tag) {
  const auto slot = manager().state_index(request.id, name(tag));
  if (!slot.has_value()) return;
  ReplayState& state = manager().replay_state(name(tag));
  const std::span<const SlotId> pages = manager().sequence(request.id).slots(state.layer_group());
  ASSERT_EQ(pages.size(), 1u);
  const LoneRequest& alone = request.alone[tag];
  const auto where = [&](std::string_view what, std::size_t layer) {
    return fmt::format("{} of layer {} ({}) of request {}, slot {}, page at {}", what, layer,
                       name(tag), request.id.value(), slot->value(), alone.page_position());
  };
  ++tally_.states_compared;
  // A row at position 0 does not read its page.
  for (std::size_t layer = 0; layer < state.layers().size() && alone.page_position() > 0; ++layer) {
    const auto own_state = request.alone[tag].state().state(layer);
    const auto own_window = request.alone[tag].state().window(layer);
    const kernels::RecurrentPages there = state.pages(layer);
    const std::int64_t offset = pages[0].value() * there.slot_stride;
    ASSERT_EQ(std::memcmp(there.state_base + offset, own_state.data(), own_state.size_bytes()), 0)
        << where("state", layer);
    ASSERT_EQ(std::memcmp(there.window_base + offset, own_window.data(), own_window.size_bytes()),
              0)
        << where("window", layer);
  }
  if (tag == 0) compare_hidden(request, pages[0], *slot);
  if (!state.has_replay()) return;
  if (!request.awaits_host()) {
    ASSERT_EQ(*state.pending(*slot), alone.num_pending()) << where("pending drafts", 0);
  }
  // Where the page is another one already, its records are not there; none of them counts.
  if (pages[0] == *slot) compare_records(request, tag, *slot);
}

void Simulation::compare_records(Request& request, std::size_t tag, SlotId slot) {
  ReplayState& state = manager().replay_state(name(tag));
  const std::int64_t width = state.shape().width();
  const std::int64_t heads = state.shape().num_heads;
  const std::int64_t stride = kernels::kda_beta_record_stride(heads);
  const std::int32_t count = request.alone[tag].num_records();
  for (std::size_t layer = 0; layer < state.layers().size() && count > 0; ++layer) {
    const kernels::ReplayRecords own = request.alone[tag].state().records(layer);
    const kernels::ReplayRecords there = state.records(layer);
    const std::int64_t offset = slot.value() * there.slot_stride;
    const auto is_same = [&](const float* a, const float* b, std::int64_t floats) {
      return std::memcmp(a + offset, b, static_cast<std::size_t>(floats) * sizeof(float)) == 0;
    };
    for (std::size_t section = 0; section < 3; ++section) {
      const std::int64_t window = kernels::kWindowRows * width;
      ASSERT_TRUE(is_same(there.conv_base[section] + window, own.conv_base[section] + window,
                          count * width))
          << "raw projections of layer " << layer << " of request " << request.id.value();
    }
    ASSERT_TRUE(is_same(there.qkg_base, own.qkg_base, count * 3 * width))
        << "pairs and decays of layer " << layer << " of request " << request.id.value();
    ASSERT_TRUE(is_same(there.v_base, own.v_base, count * width))
        << "values of layer " << layer << " of request " << request.id.value();
    for (std::int32_t r = 0; r < count; ++r) {
      ASSERT_TRUE(is_same(there.beta_base + r * stride, own.beta_base + r * stride, heads))
          << "betas of layer " << layer << " of request " << request.id.value();
    }
  }
}

// The hidden state of the page's last token, and of the drafts past it that were accepted.
void Simulation::compare_hidden(Request& request, SlotId page, SlotId slot) {
  const auto size = static_cast<std::size_t>(manager().config().mtp_hidden_size);
  const LoneRequest& alone = request.alone[0];
  if (size == 0 || alone.page_position() == 0) return;
  const std::vector<std::uint64_t> words = attention_words(request.tokens);
  std::vector<float> own(size);
  const auto expect_own = [&](const float* there, std::int64_t token) {
    fill_hidden(words[static_cast<std::size_t>(token)], own);
    ASSERT_EQ(std::memcmp(there, own.data(), size * sizeof(float)), 0)
        << "hidden state of token " << token << " of request " << request.id.value();
  };
  ReplayState& state = manager().replay_state();
  expect_own(state.mtp_hidden(page), alone.page_position() - 1);
  for (std::int32_t r = 0; r < alone.num_pending() && page == slot; ++r) {
    expect_own(state.mtp_hidden_cache(slot) + static_cast<std::size_t>(r) * size,
               alone.page_position() + r);
  }
}

}  // namespace slackwater::hybrid
