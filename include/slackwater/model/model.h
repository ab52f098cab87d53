#ifndef SLACKWATER_MODEL_MODEL_H_
#define SLACKWATER_MODEL_MODEL_H_

#include <cstddef>
#include <filesystem>
#include <functional>
#include <memory>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/kernels/execution_context.h"
#include "slackwater/model/config.h"

namespace slackwater::model {

struct ModelWeights;

// A model in memory: its configuration and its packed weights.
//
// Source: the published Hugging Face layout of Kimi-Linear (config.json, *.safetensors).
// Invariants:
//   I1  every tensor that the configuration asks for was there with its exact shape, every value
//       was finite, and the checkpoint held nothing else.
// Ownership: owns the weights; the checkpoint's files are closed once loaded.
// Threads: immutable after load; any number of forward passes may share it.
// Errors: load() passes on those of the configuration and the checkpoint; kNotFound for a missing
//   tensor, kInvalidArgument for a shape, a dtype or a tensor that the configuration does not
//   know, kDataLoss for a value that is not finite.
// Cost: about the bytes of the checkpoint, in huge pages where the kernel gives them.
class Model {
 public:
  struct LoadOptions {
    // Called now and then while loading.
    std::function<void(std::size_t done_bytes, std::size_t total_bytes)> progress;
  };
  static Result<Model> load(const std::filesystem::path& directory,
                            kernels::ExecutionContext& context, const LoadOptions& options);
  ~Model();
  Model(Model&&) noexcept;

  const ModelConfig& config() const { return config_; }
  const ModelWeights& weights() const { return *weights_; }
  // Whether there is a multi-token-prediction block.
  bool has_mtp() const { return config_.num_mtp_layers > 0; }

  // Stands for config.json and all values of all tensors, by their names: the same for every load
  // of the same model, however its tensors are spread over files. Taken while loading.
  const Digest128& digest() const { return digest_; }

  // Bytes of all packed weights.
  std::size_t weight_bytes() const;

  // Bytes of weights that one token alone reads: without the input embedding, the experts that
  // are not chosen, and the multi-token-prediction block.
  std::size_t active_weight_bytes() const;

 private:
  Model(ModelConfig config, std::unique_ptr<ModelWeights> weights, const Digest128& digest);

  ModelConfig config_;
  std::unique_ptr<ModelWeights> weights_;
  Digest128 digest_;
};

}  // namespace slackwater::model

#endif  // SLACKWATER_MODEL_MODEL_H_
