#ifndef SLACKWATER_TESTING_PADDING_CODEC_H_
#define SLACKWATER_TESTING_PADDING_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/storage/cold_page_codec.h"

namespace slackwater::storage {

// Rounds every blob up, so that pages of different slots are blobs of one size, or gives pages of
// equal slots blobs of different sizes.
class PaddingCodec final : public ColdPageCodec {
 public:
  explicit PaddingCodec(std::vector<std::int64_t> bytes) : bytes_(std::move(bytes)) {}

  std::string_view name() const override { return "padding"; }
  Result<std::int64_t> cold_page_bytes(LayerGroupId group, const SlotSizes&) override {
    return bytes_.at(static_cast<std::size_t>(group.value()));
  }
  void encode(device::Stream& stream, LayerGroupId group, const PoolGroup& pools,
              std::span<const ColdPair> pages) override {
    plain_->encode(stream, group, pools, pages);
  }
  void decode(device::Stream& stream, LayerGroupId group, const PoolGroup& pools,
              std::span<const ColdPair> pages) override {
    plain_->decode(stream, group, pools, pages);
  }

 private:
  const std::vector<std::int64_t> bytes_;  // [layer groups]
  const std::unique_ptr<ColdPageCodec> plain_ = make_concatenating_codec();
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_TESTING_PADDING_CODEC_H_
