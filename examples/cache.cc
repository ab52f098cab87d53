// The cache from outside: two requests that begin alike, room that changes while nobody runs, and
// what was counted meanwhile.
//
//   cache
//
// Everything here is public API. An engine would run kernels where this program writes numbers:
// page_table() says where the slots lie, and the index tables of a sequence which slots are its
// own.

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <memory>
#include <numeric>
#include <span>
#include <vector>

#include <fmt/format.h>

#include "slackwater/base/clock.h"
#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/device/cpu_device.h"

namespace {

using slackwater::LayerGroupId;
using slackwater::Result;
using slackwater::SlotId;
using slackwater::TokenId;
using slackwater::cache::KvCacheManager;
using slackwater::cache::Sequence;

constexpr std::int64_t kBytesPerToken = 256;

// A layer of full attention and one with a window, in blocks of 16 tokens.
slackwater::cache::KvCacheConfig small_config() {
  slackwater::cache::KvCacheConfig config;
  config.tokens_per_block = 16;
  config.device_bytes = 4 << 20;
  config.host_bytes = 8 << 20;
  config.layers.resize(2);
  for (std::int32_t i = 0; i < 2; ++i) {
    slackwater::cache::LayerConfig& layer = config.layers[static_cast<std::size_t>(i)];
    layer.layer = i;
    layer.buffers = {{"kv", kBytesPerToken * config.tokens_per_block}};
  }
  config.layers[1].kind = slackwater::cache::SlidingWindow{64, 0};
  config.max_events = 1000;
  return config;
}

// What a kernel would do: writes the tokens from `first` on to the pages of one layer. Blocks that
// the window has left behind have none.
Result<void> queue_step(const KvCacheManager& manager, const Sequence& sequence,
                        slackwater::device::Stream& stream, std::span<const TokenId> tokens,
                        std::int64_t first) {
  for (std::int32_t layer = 0; layer < 2; ++layer) {
    SLACKWATER_ASSIGN_OR_RETURN(const auto table, manager.page_table(layer, "kv"));
    const auto slots = sequence.slots(LayerGroupId(layer));
    for (std::int64_t at = first; at < std::ssize(tokens); ++at) {
      const SlotId slot = slots[static_cast<std::size_t>(at / table.tokens_per_block)];
      if (slot == slackwater::cache::kNoSlot) continue;
      std::byte* const place =
          layer_address(table, slot) + at % table.tokens_per_block * kBytesPerToken;
      const TokenId token = tokens[static_cast<std::size_t>(at)];
      stream.run([place, token] {
        std::memcpy(place, &token, sizeof token);
        return true;
      });
    }
  }
  return {};
}

// Runs a prompt, and leaves what it computed for others to find.
Result<void> run(KvCacheManager& manager, slackwater::device::Stream& stream,
                 std::span<const TokenId> prompt) {
  slackwater::cache::SequenceOptions options;
  options.tokens = prompt;
  SLACKWATER_ASSIGN_OR_RETURN(Sequence sequence, manager.create_sequence(options));
  const std::int64_t found = sequence.num_committed();
  SLACKWATER_RETURN_IF_ERROR(sequence.resume(stream));
  SLACKWATER_RETURN_IF_ERROR(sequence.resize(std::ssize(prompt)));
  SLACKWATER_RETURN_IF_ERROR(queue_step(manager, sequence, stream, prompt, found));
  const auto computed = prompt.subspan(static_cast<std::size_t>(found));
  slackwater::cache::CommitOptions written;
  written.written = stream.record();
  SLACKWATER_RETURN_IF_ERROR(sequence.commit(computed, written));
  // Others find it once the step has succeeded. An engine waits for it anyway, to sample.
  written.written.wait();
  sequence.commit_statistics();
  fmt::print("{} tokens, of which {} were there\n", prompt.size(), found);
  return {};  // The sequence closes; its pages stay until somebody wants their room.
}

Result<void> show() {
  const auto device = slackwater::device::make_cpu_device();
  SLACKWATER_ASSIGN_OR_RETURN(const auto stream, device->make_stream("steps"));
  SLACKWATER_ASSIGN_OR_RETURN(const auto manager, KvCacheManager::create(*device, small_config()));

  std::vector<TokenId> prompt(200);
  std::iota(prompt.begin(), prompt.end(), TokenId{1});
  SLACKWATER_RETURN_IF_ERROR(run(*manager, *stream, prompt));
  prompt.resize(300, TokenId{7});
  SLACKWATER_RETURN_IF_ERROR(run(*manager, *stream, prompt));

  // Between two steps, while every sequence is suspended or closed.
  const slackwater::RealClock clock;
  if (manager->need_adjustment(clock.now())) {
    SLACKWATER_RETURN_IF_ERROR(manager->adjust(clock.now()));
  }
  SLACKWATER_RETURN_IF_ERROR(manager->set_quota(slackwater::storage::Tier::kHost, 4 << 20));

  const auto statistics = manager->statistics();
  fmt::print("{} of {} tokens were reused; {} events\n", statistics.tokens.reused,
             statistics.tokens.queried, manager->drain_events().events.size());
  fmt::print("{}", manager->describe());
  return manager->shutdown();
}

}  // namespace

int main() {
  const Result<void> done = show();
  if (done.has_value()) return 0;
  fmt::print(stderr, "cache: {}\n", done.error().text());
  return 1;
}
