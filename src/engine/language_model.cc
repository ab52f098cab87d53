#include "slackwater/engine/language_model.h"

#include <optional>

#include "slackwater/base/check.h"

namespace slackwater::engine {
namespace {

class TransformerModel final : public LanguageModel {
 public:
  TransformerModel(const model::Model& model, kernels::ExecutionContext& context)
      : model_(model), context_(context) {}

  const model::ModelConfig& config() const override { return model_.config(); }
  Digest128 digest() const override { return model_.digest(); }

  void reserve(model::ForwardPass::Limits limits) override {
    pass_.emplace(model_, context_, limits);
  }
  void run(const model::ForwardBatch& batch, std::span<float> logits) override {
    pass().run(batch, logits);
  }
  const float* hidden() const override { return pass().hidden(); }
  const float* first_hidden() const override { return pass().first_hidden(); }
  void run_mtp(const model::MtpBatch& batch, std::span<float> logits) override {
    pass().run_mtp(batch, logits);
  }
  const float* mtp_hidden() const override { return pass().mtp_hidden(); }

 private:
  model::ForwardPass& pass() {
    SLACKWATER_CHECK(pass_.has_value(), "a batch before reserve()");
    return *pass_;
  }
  const model::ForwardPass& pass() const { return *pass_; }

  const model::Model& model_;
  kernels::ExecutionContext& context_;
  std::optional<model::ForwardPass> pass_;
};

}  // namespace

std::unique_ptr<LanguageModel> make_language_model(const model::Model& model,
                                                   kernels::ExecutionContext& context) {
  return std::make_unique<TransformerModel>(model, context);
}

}  // namespace slackwater::engine
