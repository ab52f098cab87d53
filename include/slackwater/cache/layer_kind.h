#ifndef SLACKWATER_CACHE_LAYER_KIND_H_
#define SLACKWATER_CACHE_LAYER_KIND_H_

#include <cstdint>
#include <string>
#include <variant>

namespace slackwater::cache {

// How long the pages of a layer are needed.

// Every token attends to all before it: no page is ever let go.
struct FullAttention {
  friend bool operator==(const FullAttention&, const FullAttention&) = default;
};

// A token attends to the first `num_sink_tokens` tokens and to the last `window`, itself among
// them: of what lies before the next token, window - 1 are needed.
struct SlidingWindow {
  std::int64_t window = 0;
  std::int64_t num_sink_tokens = 0;
  friend bool operator==(const SlidingWindow&, const SlidingWindow&) = default;
};

// One state per sequence instead of pages per block. Saved copies of it are snapshots.
struct Recurrent {
  friend bool operator==(const Recurrent&, const Recurrent&) = default;
};

using LayerKind = std::variant<FullAttention, SlidingWindow, Recurrent>;

// Blocks [begin, end).
struct BlockRange {
  std::int64_t begin = 0;
  std::int64_t end = 0;

  constexpr std::int64_t size() const { return end > begin ? end - begin : 0; }
  constexpr bool contains(std::int64_t block) const { return begin <= block && block < end; }
  friend bool operator==(const BlockRange&, const BlockRange&) = default;
};

// What both contain.
constexpr BlockRange intersect(const BlockRange& a, const BlockRange& b) {
  const std::int64_t begin = a.begin > b.begin ? a.begin : b.begin;
  const std::int64_t end = a.end < b.end ? a.end : b.end;
  return {begin, end > begin ? end : begin};
}

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_LAYER_KIND_H_
