#include "slackwater/model/solo_storage.h"

#include "slackwater/base/check.h"
#include "slackwater/base/numeric.h"
#include "slackwater/kernels/kda.h"

namespace slackwater::model {

std::int64_t recurrent_layer_floats(const ModelConfig& config) {
  return kernels::kda_state_floats(config.kda_num_heads, config.kda_head_dim) +
         kernels::kda_window_floats(config.kda_num_heads, config.kda_head_dim);
}

std::vector<kernels::RecurrentPages> recurrent_views(const ModelConfig& config,
                                                     const PageTable& table) {
  std::vector<kernels::RecurrentPages> views;
  const std::int64_t state = kernels::kda_state_floats(config.kda_num_heads, config.kda_head_dim);
  for (std::int32_t layer = 0; layer < config.num_kda_layers(); ++layer) {
    kernels::RecurrentPages pages;
    pages.state_base = reinterpret_cast<float*>(table.base + layer * table.layer_stride);
    pages.window_base = pages.state_base + state;
    pages.slot_stride = table.slot_stride / static_cast<std::int64_t>(sizeof(float));
    pages.num_slots = table.num_slots;
    views.push_back(pages);
  }
  return views;
}

std::vector<kernels::LatentPages> latent_views(const ModelConfig& config, const PageTable& table,
                                               DType dtype) {
  std::vector<kernels::LatentPages> views;
  for (std::int32_t layer = 0; layer < config.num_mla_layers(); ++layer) {
    kernels::LatentPages pages;
    pages.base = table.base + layer * table.layer_stride;
    pages.slot_stride = table.slot_stride;
    pages.token_stride = std::int64_t{config.mla_row_width()} * dtype_bytes(dtype);
    pages.num_slots = table.num_slots;
    pages.tokens_per_block = table.tokens_per_block;
    pages.width = config.mla_row_width();
    pages.dtype = dtype;
    views.push_back(pages);
  }
  return views;
}

SoloStorage::SoloStorage(const ModelConfig& config, std::int64_t capacity) {
  constexpr std::int32_t kTokensPerBlock = 32;
  constexpr std::int64_t kFloatBytes = sizeof(float);
  SLACKWATER_CHECK(capacity > 0, "capacity {}", capacity);
  const std::int64_t num_blocks = ceil_div<std::int64_t>(capacity, kTokensPerBlock);
  for (std::int64_t b = 0; b < num_blocks; ++b) {
    blocks_.push_back(SlotId(static_cast<std::int32_t>(b)));
  }

  PageTable latent;
  latent.layer_stride = std::int64_t{kTokensPerBlock} * config.mla_row_width() * kFloatBytes;
  latent.slot_stride = latent.layer_stride * config.num_mla_layers();
  latent.num_slots = static_cast<std::int32_t>(num_blocks);
  latent.tokens_per_block = kTokensPerBlock;
  latent_bytes_ =
      AlignedBuffer<std::byte>(static_cast<std::size_t>(num_blocks * latent.slot_stride));
  latent.base = latent_bytes_.data();
  latent_pages_ = latent_views(config, latent, DType::kF32);

  PageTable recurrent;
  recurrent.num_slots = 1;
  recurrent.layer_stride = recurrent_layer_floats(config) * kFloatBytes;
  recurrent.slot_stride = recurrent.layer_stride * config.num_kda_layers();
  recurrent_ = AlignedBuffer<float>(static_cast<std::size_t>(recurrent.slot_stride / kFloatBytes));
  recurrent.base = reinterpret_cast<std::byte*>(recurrent_.data());
  recurrent_pages_ = recurrent_views(config, recurrent);
}

}  // namespace slackwater::model
