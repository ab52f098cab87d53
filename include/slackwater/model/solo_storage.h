#ifndef SLACKWATER_MODEL_SOLO_STORAGE_H_
#define SLACKWATER_MODEL_SOLO_STORAGE_H_

#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/page_table.h"
#include "slackwater/kernels/views.h"
#include "slackwater/model/config.h"

namespace slackwater::model {

// All state of one sequence in one piece: latent rows and the recurrent page, with an identity
// block table. No pools, no sharing, no eviction.
//
// The solo generate loop runs on it, and stays the oracle of everything that manages state: it
// includes nothing of storage, cache, hybrid, scheduler or engine.
//
// Slots are slot-major, as in the pools to come: all layers of a slot lie together. Latent slot b
// is block b; recurrent slot 0 is the sequence's page.
//
// Invariants:
//   I1  block b lies in slot b, and nothing moves.
// Ownership: owns the bytes; the views end with it.
// Threads: as the forward pass that uses the views.
// Errors: none; sizes are checked (CHECK).
// Cost: capacity * MLA layers * row bytes + KDA layers * state bytes.
class SoloStorage {
 public:
  // Room for `capacity` > 0 tokens.
  SoloStorage(const ModelConfig& config, std::int64_t capacity);

  std::span<const kernels::LatentPages> latent_pages() const { return latent_pages_; }
  std::span<const kernels::RecurrentPages> recurrent_pages() const { return recurrent_pages_; }
  kernels::BlockTable block_table() const { return blocks_; }

  static SlotId state_page() { return SlotId(0); }

 private:
  AlignedBuffer<std::byte> latent_bytes_;
  AlignedBuffer<float> recurrent_;
  std::vector<SlotId> blocks_;                            // identity
  std::vector<kernels::LatentPages> latent_pages_;        // [num_mla_layers]
  std::vector<kernels::RecurrentPages> recurrent_pages_;  // [num_kda_layers]
};

// Views of the layers of a recurrent pool: `table` points at slot 0 of floats laid out
// [slot][layer][state | window].
std::vector<kernels::RecurrentPages> recurrent_views(const ModelConfig& config,
                                                     const PageTable& table);

// Views of the layers of a latent pool, laid out [slot][layer][token][row].
std::vector<kernels::LatentPages> latent_views(const ModelConfig& config, const PageTable& table,
                                               DType dtype);

// Floats of one layer in a recurrent slot: state, then window.
std::int64_t recurrent_layer_floats(const ModelConfig& config);

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_SOLO_STORAGE_H_
