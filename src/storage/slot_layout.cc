#include "slackwater/storage/slot_layout.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>

#include "slackwater/base/numeric.h"

namespace slackwater::storage {
namespace {

// Far below where sums of a few could overflow.
constexpr std::int64_t kMaxSlotBytes = std::int64_t{1} << 48;

Result<void> check_buffer(const BufferSpec& buffer) {
  if (buffer.bytes_per_layer <= 0 || buffer.num_layers <= 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' has {} bytes in each of {} layers; both are positive",
                      buffer.role, buffer.bytes_per_layer, buffer.num_layers);
  }
  if (buffer.bytes_per_layer > kMaxSlotBytes / buffer.num_layers) {
    return make_error(ErrorCode::kInvalidArgument,
                      "buffer '{}' has {} bytes in each of {} layers; a slot has at most {}",
                      buffer.role, buffer.bytes_per_layer, buffer.num_layers, kMaxSlotBytes);
  }
  return {};
}

}  // namespace

Result<SlotLayout> lay_out_slots(std::span<const BufferSpec> buffers, PoolPolicy policy) {
  if (buffers.empty()) {
    return make_error(ErrorCode::kInvalidArgument, "a slot needs at least one buffer");
  }
  // Slot bytes of each pool, keyed by what its buffers have in common.
  std::map<std::int64_t, std::int64_t> pools;
  const auto key_of = [&](const BufferSpec& buffer) {
    return policy == PoolPolicy::kOnePool ? 0 : buffer.bytes_per_layer;
  };
  SlotLayout layout;
  layout.buffers.resize(buffers.size());
  const auto place = [&](bool is_transient) {
    for (std::size_t b = 0; b < buffers.size(); ++b) {
      const BufferSpec& buffer = buffers[b];
      if (buffer.is_transient != is_transient) continue;
      std::int64_t& end = pools[key_of(buffer)];
      if (buffer.bytes_per_layer % kSlotAlignment == 0) end = round_up(end, kSlotAlignment);
      layout.buffers[b] = {0, end, buffer.bytes_per_layer};
      end += buffer.bytes_per_layer * buffer.num_layers;
    }
    for (auto& [key, bytes] : pools) bytes = round_up(bytes, kSlotAlignment);
  };
  for (const BufferSpec& buffer : buffers) SLACKWATER_RETURN_IF_ERROR(check_buffer(buffer));
  place(false);
  std::map<std::int64_t, std::int64_t> durable = pools;
  place(true);
  // Largest first; equal ones by key, so that the order is a function of the arguments.
  std::vector<std::pair<std::int64_t, std::int64_t>> order;
  for (const auto& [key, bytes] : pools) order.emplace_back(bytes, key);
  std::sort(order.begin(), order.end(), std::greater<>());
  for (const auto& [bytes, key] : order) {
    layout.pool_slot_bytes.push_back(bytes);
    layout.durable_bytes.push_back(durable[key]);
  }
  for (std::size_t b = 0; b < buffers.size(); ++b) {
    const auto at = std::find_if(order.begin(), order.end(), [&](const auto& pool) {
      return pool.second == key_of(buffers[b]);
    });
    layout.buffers[b].pool = static_cast<std::int32_t>(at - order.begin());
  }
  return layout;
}

}  // namespace slackwater::storage
