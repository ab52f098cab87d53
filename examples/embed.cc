// State that follows its request: one is suspended while accepted drafts are pending, others take
// its slot and write there, and it goes on in another slot with what was its own. An engine would
// run kernels::kda_step where this program fills pages and replay records with numbers.

#include <cstring>
#include <span>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "slackwater/base/digest.h"
#include "slackwater/device/cpu_device.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

using namespace slackwater;
using namespace slackwater::hybrid;
constexpr std::int32_t kSlots = 5, kDrafts = 3;

// Attention, and three KDA layers with the heads of Kimi K3 on one of 16 ranks.
HybridConfig make_config() {
  HybridConfig config;
  config.cache.device_bytes = 7 << 20;  // five pages of 1.26 MB for states, and attention
  config.cache.host_bytes = 64 << 20;
  config.cache.max_util_for_resume = 1;
  config.cache.grain_bytes = 4096;
  config.cache.layers = {{0, cache::FullAttention(), {{"kv_latent", 2304 * 32}}}};
  config.cache.constraints = {{std::vector<cache::SequenceDesc>(kSlots, {32, 0})}};
  for (std::int32_t layer = 1; layer <= 3; ++layer) config.kda_layers.push_back({layer, {6, 128}});
  config.speculation = {kDrafts};
  config.replay = {kDrafts};
  config.placement = ReplayPlacement::kBesidePool;
  config.max_batch_size = kSlots;
  config.save_bytes = 8 * save_bytes_of(slot_entries(config, "target"));
  return config;
}

// What a slot holds: its page in the pool, or the replay records beside it.
std::vector<std::span<std::byte>> pieces_of(const ReplayState& state, SlotId slot, bool is_page) {
  const KdaShape& shape = state.shape();
  auto buffers = record_buffers(shape, kDrafts, 0);
  if (is_page) buffers = {{kSsmState, shape.state_bytes()}, {kConvState, shape.window_bytes()}};
  std::vector<std::span<std::byte>> pieces;
  for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
    for (const RecordBuffer& buffer : buffers) {
      pieces.emplace_back(layer_address(state.table(layer, buffer.name), slot),
                          static_cast<std::size_t>(buffer.bytes_per_layer));
    }
  }
  return pieces;
}

// A step of one row, which leaves its request's number in all that it writes.
Result<void> step(HybridCacheManager& manager, device::Stream& stream, const BatchRow& row) {
  BatchSetup setup;
  SLACKWATER_RETURN_IF_ERROR(manager.setup_state_indices({&row, 1}, setup));
  for (const bool is_page : {true, false}) {
    stream.run([to = pieces_of(manager.replay_state(), setup.rows[0].slot, is_page),
                number = static_cast<int>(row.request.value()) + (is_page ? 0 : 100)] {
      for (const auto piece : to) std::memset(piece.data(), number, piece.size());
      return true;
    });
  }
  manager.step_queued(setup);
  return {};
}

// Prints what a request has, and returns it without the slot.
std::string look(HybridCacheManager& manager, RequestId id) {
  manager.synchronize();
  const ReplayState& state = manager.replay_state();
  const SlotId slot = *manager.state_index(id);
  std::string all = fmt::format("P = {}", *state.pending(slot));
  for (const bool is_page : {true, false}) {
    StreamingXxh3 digest;
    for (const auto piece : pieces_of(state, slot, is_page)) digest.update(piece);
    all += fmt::format(", {} {:.8}", is_page ? "page" : "records", to_hex(digest.digest()));
  }
  fmt::print("request {} in slot {}: {}\n", id.value(), slot.value(), all);
  return all;
}

Result<bool> show() {
  const auto device = device::make_cpu_device();
  SLACKWATER_ASSIGN_OR_RETURN(const auto stream, device->make_stream("steps"));
  SLACKWATER_ASSIGN_OR_RETURN(const auto manager,
                              HybridCacheManager::create(*device, *stream, nullptr, make_config()));
  const std::vector<TokenId> prompt(10, 7);
  std::string before;
  for (RequestId id(1); id.value() <= 6; id = RequestId(id.value() + 1)) {
    SLACKWATER_RETURN_IF_ERROR(manager->add_request({id, prompt, {}, {}, 0}));
    SLACKWATER_RETURN_IF_ERROR(manager->resume_request(id));
    SLACKWATER_RETURN_IF_ERROR(manager->resize(id, 20));
    // The prompt, then a round of three drafts; of those of the first request two are accepted.
    SLACKWATER_RETURN_IF_ERROR(step(*manager, *stream, {id, RowKind::kContext, 0, 10, 10}));
    SLACKWATER_RETURN_IF_ERROR(step(*manager, *stream, {id, RowKind::kGeneration, 10, 4, 1}));
    const Acceptance acceptance{id, 0, 1, before.empty() ? 2 : 1};
    SLACKWATER_RETURN_IF_ERROR(manager->update_resources({&acceptance, 1}));
    const std::string now = look(*manager, id);
    if (!before.empty()) continue;
    before = now;
    SLACKWATER_RETURN_IF_ERROR(manager->suspend_request(id));
    fmt::print("request 1 is suspended; others come, and one takes its slot\n");
  }
  SLACKWATER_RETURN_IF_ERROR(manager->suspend_request(RequestId(2)));
  SLACKWATER_RETURN_IF_ERROR(manager->resume_request(RequestId(1)));
  SLACKWATER_RETURN_IF_ERROR(manager->resize(RequestId(1), 20));
  fmt::print("request 2 is suspended; request 1 goes on in the slot that is free\n");
  BatchSetup setup;
  const BatchRow next{RequestId(1), RowKind::kGeneration, 13, 4, 1};
  SLACKWATER_RETURN_IF_ERROR(manager->setup_state_indices({&next, 1}, setup));
  return look(*manager, RequestId(1)) == before;
}

int main() {
  const Result<bool> is_same = show();
  if (!is_same.has_value()) fmt::print("{}\n", is_same.error().text());
  fmt::print("same bytes: {}\n", is_same.value_or(false) ? "yes" : "no");
  return is_same.value_or(false) ? 0 : 1;
}
