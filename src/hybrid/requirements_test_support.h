#ifndef SLACKWATER_HYBRID_REQUIREMENTS_TEST_SUPPORT_H_
#define SLACKWATER_HYBRID_REQUIREMENTS_TEST_SUPPORT_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "hybrid/hybrid_test_support.h"
#include "slackwater/device/sim_device.h"

namespace slackwater::hybrid {

// R1 to R22, each under both placements; docs/replay.md lists them.
class Requirements : public testing::TestWithParam<ReplayPlacement> {
 protected:
  WorldOptions options(std::int32_t num_slots = 5) const {
    WorldOptions made;
    made.placement = GetParam();
    made.num_slots = num_slots;
    return made;
  }
  bool is_in_pool() const { return GetParam() == ReplayPlacement::kInPool; }
};

// A buffer of one slot and layer: where it lies.
inline std::span<std::byte> buffer_of(ReplayState& state, std::size_t layer, std::string_view name,
                                      std::int64_t bytes, SlotId slot) {
  return {layer_address(state.table(layer, name), slot), static_cast<std::size_t>(bytes)};
}

// All that a kernel writes for a slot, buffer by buffer: state and window, then the records.
inline std::vector<std::span<std::byte>> buffers_of(ReplayState& state, SlotId slot) {
  std::vector<std::span<std::byte>> buffers;
  for (std::size_t layer = 0; layer < state.layers().size(); ++layer) {
    const auto add = [&](std::string_view name, std::int64_t bytes) {
      buffers.push_back(buffer_of(state, layer, name, bytes, slot));
    };
    add(kSsmState, state.shape().state_bytes());
    add(kConvState, state.shape().window_bytes());
    for (const RecordBuffer& record : record_buffers(state.shape(), state.max_records(), 0)) {
      if (state.has_replay()) add(record.name, record.bytes_per_layer);
    }
  }
  return buffers;
}

// Writes what no other salt writes, other bytes in every buffer of every layer, and P. For whoever
// is on the stream or has waited for it.
inline void write_slot(ReplayState& state, SlotId slot, std::uint32_t salt, std::int32_t pending) {
  std::uint32_t number = salt * 2654435761u;
  const auto write = [&](std::span<std::byte> bytes) {
    for (std::byte& byte : bytes) {
      number = number * 1664525u + 1013904223u;
      byte = static_cast<std::byte>(number >> 24);
    }
  };
  write(state.registry().slot(slot));
  for (const std::span<std::byte> buffer : buffers_of(state, slot)) write(buffer);
  if (state.has_replay()) *state.pending(slot) = pending;
}

inline std::vector<std::byte> read_slot(ReplayState& state, SlotId slot) {
  const std::span<std::byte> beside = state.registry().slot(slot);
  std::vector<std::byte> all(beside.begin(), beside.end());
  for (const std::span<std::byte> buffer : buffers_of(state, slot)) {
    all.insert(all.end(), buffer.begin(), buffer.end());
  }
  return all;
}

// Requests whose steps write patterns instead of running a model: what belongs to whom is seen in
// every byte.
struct Puppets : World {
  using World::World;

  ReplayState& state(std::string_view tag = "target") { return manager->replay_state(tag); }

  // A request with a prompt that is computed.
  void enter(std::uint64_t id, std::int32_t prompt_length = 6) {
    start(id, numbers(static_cast<TokenId>(10 * id), prompt_length), 60);
    read_prompt(id, prompt_length);
  }
  void read_prompt(std::uint64_t id, std::int32_t count) {
    manager->step_queued(set_up({context_row(id, 0, count)}));
  }
  // Where it goes on.
  std::int64_t kept(std::uint64_t id) const { return manager->position(RequestId(id))->kept; }
  std::int32_t pending(std::uint64_t id) const {
    return manager->position(RequestId(id))->num_pending;
  }
  BatchRow next_row(std::uint64_t id, std::int32_t num_drafts = 3) const {
    return verify_row(id, kept(id), num_drafts);
  }
  BatchSetup verify(std::uint64_t id, std::int32_t num_drafts = 3) {
    BatchSetup setup = set_up({next_row(id, num_drafts)});
    manager->step_queued(setup);
    return setup;
  }
  // A round of which some drafts are kept; the slot holds the pattern of `salt` then.
  void round(std::uint64_t id, std::int32_t num_accepted, std::uint32_t salt) {
    verify(id);
    write(id, salt, num_accepted);
    accept(id, num_accepted);
    ASSERT_TRUE(manager->resize(RequestId(id), 60).has_value());
  }
  void write(std::uint64_t id, std::uint32_t salt, std::int32_t pending) {
    manager->synchronize();
    write_slot(state(), slot_of(id), salt, pending);
  }
  // The same as a step that is on the stream.
  void queue_write(std::uint64_t id, std::uint32_t salt, std::int32_t pending,
                   std::function<void()> before = {}) {
    stream->run([this, slot = slot_of(id), salt, pending, before = std::move(before)] {
      if (before) before();
      write_slot(state(), slot, salt, pending);
      return true;
    });
  }
  std::vector<std::byte> contents(std::uint64_t id) {
    manager->synchronize();
    return read_slot(state(), slot_of(id));
  }
  std::int32_t device_pending(std::uint64_t id) {
    manager->synchronize();
    return *state().pending(slot_of(id));
  }
  // Brings it back into a batch of its own, as a row that generates; the batch is not queued.
  BatchSetup wake(std::uint64_t id) {
    resume(id);
    EXPECT_TRUE(manager->resize(RequestId(id), 60).has_value());
    return set_up({next_row(id)});
  }
  std::int64_t num_saved() const {
    std::int64_t saved = 0;
    for (const RegistryView& registry : manager->view().registries) saved += registry.num_saved;
    return saved;
  }
  std::int32_t num_reserved() const { return manager->view().registries[0].num_reserved; }
  ErrorCode refusal(const std::vector<BatchRow>& rows) {
    BatchSetup setup;
    const Result<void> done = manager->setup_state_indices(rows, setup);
    EXPECT_FALSE(done.has_value());
    return done.has_value() ? ErrorCode::kUnavailable : done.error().code();
  }
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_REQUIREMENTS_TEST_SUPPORT_H_
