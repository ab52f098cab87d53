#ifndef SLACKWATER_MODEL_CHECKPOINT_H_
#define SLACKWATER_MODEL_CHECKPOINT_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/model/safetensors.h"

namespace slackwater::model {

// Whether `directory` is there and is one. Errors: kNotFound, kInvalidArgument.
Result<void> check_model_directory(const std::filesystem::path& directory);

// The tensors of a model directory, be they in one file or in many.
//
// The directory holds either `model.safetensors`, or `model.safetensors.index.json` and the shards
// it names. Where every tensor is called `language_model.*` (Kimi K3) that prefix is dropped;
// `vision_tower.*` and `mm_projector.*` are left out and counted.
//
// Source: the layout Hugging Face writes; the index and its checks in docs/formats/safetensors.md.
// Invariants:
//   I1  names are unique over all shards.
//   I2  with an index: every mapped tensor lies in the shard it is mapped to, and every tensor of
//       every shard is mapped.
//   I3  tensors() ascends by name, so it is the same however the tensors are spread over shards.
// Ownership: owns the mappings of all shards. Views stay valid when the object is moved, and end
//   with it. Move-only.
// Threads: immutable once made; any thread may read.
// Errors: kNotFound for a directory, an index or a shard that is not there, kInvalidArgument where
//   the directory holds both forms, kDataLoss where index and shards contradict each other, and
//   those of SafetensorsFile::open. An extra tensor in a shard is refused: whoever writes an index
//   names all tensors, so one too many means files of two versions.
// Cost: all headers are read and sorted, O(n log n); tensor bytes are not touched.
class Checkpoint {
 public:
  static Result<Checkpoint> open(const std::filesystem::path& directory);

  Checkpoint(Checkpoint&&) noexcept = default;
  Checkpoint& operator=(Checkpoint&&) noexcept = default;

  // kNotFound names the tensor. O(log n).
  Result<TensorView> find(std::string_view name) const;

  // All tensors in ascending order of name.
  std::span<const TensorView> tensors() const { return tensors_; }

  // Bytes of all tensors().
  std::uint64_t total_bytes() const { return total_bytes_; }

  std::size_t num_shards() const { return shards_.size(); }

  // Tensors of other parts of the model (vision), which are not in tensors().
  std::size_t num_ignored() const { return num_ignored_; }

 private:
  Checkpoint() = default;
  Result<void> index_tensors();

  std::string directory_;
  std::vector<SafetensorsFile> shards_;
  std::vector<TensorView> tensors_;
  std::uint64_t total_bytes_ = 0;
  std::size_t num_ignored_ = 0;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_CHECKPOINT_H_
