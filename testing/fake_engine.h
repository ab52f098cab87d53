#ifndef SLACKWATER_TESTING_FAKE_ENGINE_H_
#define SLACKWATER_TESTING_FAKE_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/cache/kv_cache_manager.h"

namespace slackwater::cache {

// An engine without a model: what it keeps of a token is a digest of all tokens up to it, and a
// state is a fold of digests. So every byte that a sequence is given can be checked, and a page of
// anybody else shows.
//
// A buffer of a layer with pages per block holds 8 bytes a token; that of a recurrent layer 8. A
// transient one holds what the last step of the same sequence has left there, and poison before its
// first, where it goes on from a snapshot.
class FakeEngine {
 public:
  FakeEngine(KvCacheManager& manager, device::Device& device)
      : manager_(manager), stream_(*device.make_stream("compute")) {}

  device::Stream& stream() { return *stream_; }

  // Digests of all prefixes of `tokens`: [0] of none.
  static std::vector<std::uint64_t> digests(std::span<const TokenId> tokens) {
    std::vector<std::uint64_t> all = {0x5EEDu};
    for (const TokenId token : tokens) all.push_back(fold(all.back(), token));
    return all;
  }

  // Queues the step that computes tokens [from, tokens.size()): it reads all that comes before as
  // far as the layers see it, and writes pages, the state, and snapshots that are reserved.
  // Returns the event after it. What is read and is not right is counted, by the step if it has a
  // counter, else in mismatches().
  using Counter = std::shared_ptr<std::atomic<std::int64_t>>;
  device::Event step(const Sequence& sequence, std::span<const TokenId> tokens, std::int64_t from,
                     Counter counter = nullptr) {
    if (counter == nullptr) counter = mismatches_;
    const auto all = std::make_shared<std::vector<std::uint64_t>>(digests(tokens));
    for (const BufferLocation& buffer : manager_.layer_groups().buffers()) {
      const LayerGroupDesc& group = manager_.layer_groups().group(buffer.layer_group);
      PageTable table = *manager_.page_table(buffer.layer, buffer.role);
      const auto salt = static_cast<std::uint64_t>(buffer.layer) * 0x9E3779B97F4A7C15u;
      const auto slots = sequence.slots(buffer.layer_group);
      Work work{std::move(table), {slots.begin(), slots.end()}, all, counter, salt, from};
      if (group.buffers[buffer.buffer].is_transient) {
        queue_record(sequence, std::move(work));
      } else if (work.table.tokens_per_block == 0) {
        queue_state(sequence, buffer.layer_group, std::move(work));
      } else {
        queue_blocks(group.kind, std::move(work));
      }
    }
    return stream_->record();
  }

  std::int64_t mismatches() const { return *mismatches_; }

 private:
  static std::uint64_t fold(std::uint64_t before, TokenId token) {
    std::uint64_t z = (before ^ static_cast<std::uint32_t>(token)) * 0xBF58476D1CE4E5B9u;
    return z ^ (z >> 29);
  }

  static std::uint64_t read(const std::byte* at) {
    std::uint64_t word = 0;
    std::memcpy(&word, at, sizeof(word));
    return word;
  }
  static void write(std::byte* at, std::uint64_t word) { std::memcpy(at, &word, sizeof(word)); }

  // Whether the token after `history` tokens sees token `position`.
  static bool sees(const LayerKind& kind, std::int64_t history, std::int64_t position) {
    const auto* window = std::get_if<SlidingWindow>(&kind);
    return window == nullptr || position < window->num_sink_tokens ||
           position >= history + 1 - window->window;
  }

  // What a step does with one buffer.
  struct Work {
    PageTable table;
    std::vector<SlotId> slots;
    std::shared_ptr<std::vector<std::uint64_t>> digests;
    Counter mismatches;
    std::uint64_t salt = 0;
    std::int64_t from = 0;

    std::uint64_t word(std::int64_t length) const {
      return (*digests)[static_cast<std::size_t>(length)] ^ salt;
    }
    std::int64_t end() const { return std::ssize(*digests) - 1; }
    // Where a token's word lies; null where its block has no page.
    std::byte* place(std::int64_t position) const {
      const SlotId slot = slots[static_cast<std::size_t>(position / table.tokens_per_block)];
      if (slot == kNoSlot) return nullptr;
      return layer_address(table, slot) + position % table.tokens_per_block * 8;
    }
  };

  void queue_blocks(const LayerKind& kind, Work work) {
    stream_->run([kind, work = std::move(work)] {
      for (std::int64_t position = 0; position < work.from; ++position) {
        if (!sees(kind, work.from, position)) continue;
        const std::byte* const at = work.place(position);
        if (at == nullptr || read(at) != work.word(position + 1)) ++*work.mismatches;
      }
      for (std::int64_t position = work.from; position < work.end(); ++position) {
        std::byte* const at = work.place(position);
        if (at != nullptr) write(at, work.word(position + 1));
      }
      return true;
    });
  }

  void queue_record(const Sequence& sequence, Work work) {
    work.salt ^= 0x7EC07Du;
    const std::int64_t begun_at = sequence.match().reused;
    stream_->run([work = std::move(work), begun_at] {
      std::byte* const at = layer_address(work.table, work.slots.at(0));
      if (work.from > begun_at && read(at) != work.word(work.from)) ++*work.mismatches;
#if defined(SLACKWATER_DCHECKS)
      const bool is_copy = work.from == begun_at && begun_at > 0;
      if (is_copy && read(at) != 0xDDDDDDDDDDDDDDDDu) ++*work.mismatches;
#endif
      write(at, work.word(work.end()));
      return true;
    });
  }

  void queue_state(const Sequence& sequence, LayerGroupId group, Work work) {
    std::vector<std::pair<std::int64_t, SlotId>> snapshots;
    for (std::int64_t position = work.from + 1; position <= work.end(); ++position) {
      const auto slot = sequence.snapshot_slot(group, position);
      if (slot.has_value()) snapshots.emplace_back(position, *slot);
    }
    stream_->run([work = std::move(work), snapshots] {
      std::byte* const at = layer_address(work.table, work.slots.at(0));
      if (work.from > 0 && read(at) != work.word(work.from)) ++*work.mismatches;
      for (const auto& [position, slot] : snapshots) {
        write(layer_address(work.table, slot), work.word(position));
      }
      write(at, work.word(work.end()));
      return true;
    });
  }

  KvCacheManager& manager_;
  std::unique_ptr<device::Stream> stream_;
  Counter mismatches_ = std::make_shared<std::atomic<std::int64_t>>(0);
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_TESTING_FAKE_ENGINE_H_
