#ifndef SLACKWATER_MODEL_WEIGHTS_H_
#define SLACKWATER_MODEL_WEIGHTS_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/kernels/matmul.h"
#include "slackwater/model/config.h"

namespace slackwater::model {

// Where packed weights live: a few large buffers on huge pages instead of one per tensor.
//
// Invariants:
//   I1  every allocation is 64-byte aligned, zero-filled and never moves.
// Ownership: owns the bytes; pointers into it live as long as it does.
// Threads: one thread at a time.
// Errors: none.
class WeightArena {
 public:
  // `expected_bytes`: about how much will be asked for in total.
  explicit WeightArena(std::size_t expected_bytes) : expected_bytes_(expected_bytes) {}

  std::byte* allocate(std::size_t bytes);
  std::size_t allocated_bytes() const { return allocated_bytes_; }

 private:
  std::size_t expected_bytes_;
  std::size_t allocated_bytes_ = 0;
  std::size_t used_ = 0;  // of the last buffer
  std::vector<AlignedBuffer<std::byte>> buffers_;
};

// A KDA layer. All projections of the layer's input are one matrix, so that one product reads
// the input once: outputs [q | k | v | f_a | gate or g_a | beta].
struct KdaWeights {
  kernels::PackedWeights in_proj;                 // [3P + D + (P or D) + heads, hidden]
  kernels::PackedWeights decay_up;                // f_b: [P, D]
  std::optional<kernels::PackedWeights> gate_up;  // g_b: [P, D]; none with a full-rank gate
  kernels::PackedWeights out_proj;                // [hidden, P]
  std::array<const float*, 3> conv = {};          // q, k, v: [4, P], oldest tap first
  const float* dt_bias = nullptr;                 // [P]
  const float* decay_rate = nullptr;              // [heads]: exp(A_log)
  const float* out_norm = nullptr;                // [D]
};

// An attention layer in absorbed form. Outputs of in_proj: [q | latent | k_r].
struct MlaWeights {
  kernels::PackedWeights in_proj;                // [heads * (nope + rope) + rank + rope, hidden]
  std::vector<kernels::PackedWeights> key_up;    // per head B_k^T: [rank, nope]
  std::vector<kernels::PackedWeights> value_up;  // per head B_v: [value, rank]
  kernels::PackedWeights out_proj;               // [hidden, heads * value]
  const float* latent_norm = nullptr;            // [rank]
};

// A gated feed-forward part. Outputs of gate_up: [gate | up].
struct DenseWeights {
  kernels::PackedWeights gate_up;  // [2 * width, hidden]
  kernels::PackedWeights down;     // [hidden, width]
};

// A mixture of experts with an optional shared one.
struct MoeWeights {
  kernels::PackedWeights router;          // [experts, hidden]
  const float* selection_bias = nullptr;  // [experts]
  std::vector<DenseWeights> experts;
  std::optional<DenseWeights> shared;
};

struct LayerWeights {
  const float* attention_norm = nullptr;     // input_layernorm: [hidden]
  const float* feed_forward_norm = nullptr;  // post_attention_layernorm: [hidden]
  std::variant<KdaWeights, MlaWeights> attention;
  std::variant<DenseWeights, MoeWeights> feed_forward;
};

// The multi-token-prediction block: one more attention layer with its own input projection.
struct MtpWeights {
  const float* embedding_norm = nullptr;  // enorm: [hidden]
  const float* hidden_norm = nullptr;     // hnorm: [hidden]
  kernels::PackedWeights in_proj;         // eh_proj: [hidden, 2 * hidden]
  LayerWeights layer;
  const float* head_norm = nullptr;  // shared_head.norm: [hidden]
};

// All weights of a checkpoint, packed for the kernels. Vectors are f32; matrices keep bf16 where
// the checkpoint has it.
struct ModelWeights {
  explicit ModelWeights(std::size_t expected_bytes) : arena(expected_bytes) {}

  WeightArena arena;
  const std::byte* embedding = nullptr;  // [vocabulary, hidden], row-major
  DType embedding_dtype = DType::kBf16;  // kBf16 or kF32
  std::vector<LayerWeights> layers;
  const float* final_norm = nullptr;  // [hidden]
  kernels::PackedWeights lm_head;     // [vocabulary, hidden]
  std::optional<MtpWeights> mtp;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_WEIGHTS_H_
