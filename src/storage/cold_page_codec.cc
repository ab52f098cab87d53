#include "slackwater/storage/cold_page_codec.h"

#include <algorithm>

namespace slackwater::storage {
namespace {

class ConcatenatingCodec final : public ColdPageCodec {
 public:
  std::string_view name() const override { return "concatenation"; }

  Result<std::int64_t> cold_page_bytes(LayerGroupId, const SlotSizes& slot_bytes) override {
    std::int64_t bytes = 0;
    for (const std::int64_t slot : slot_bytes) bytes += slot;
    return bytes;
  }

  void encode(device::Stream& stream, LayerGroupId, const PoolGroup& pools,
              std::span<const ColdPair> pages) override {
    queue(stream, pools, pages, [](std::byte* slot, std::byte* blob) {
      return device::CopyPiece{blob, slot};
    });
  }

  void decode(device::Stream& stream, LayerGroupId, const PoolGroup& pools,
              std::span<const ColdPair> pages) override {
    queue(stream, pools, pages, [](std::byte* slot, std::byte* blob) {
      return device::CopyPiece{slot, blob};
    });
  }

 private:
  // One batch per pool, in ascending order of the slots' addresses.
  template <class Piece>
  static void queue(device::Stream& stream, const PoolGroup& pools, std::span<const ColdPair> pages,
                    Piece piece) {
    std::vector<ColdPair> ordered(pages.begin(), pages.end());
    std::sort(ordered.begin(), ordered.end(),
              [](const ColdPair& a, const ColdPair& b) { return a.slot < b.slot; });
    if (ordered.empty()) return;
    const SlotSizes& copied =
        ordered.front().durable != nullptr ? *ordered.front().durable : pools.slot_bytes();
    std::int64_t offset = 0;
    for (std::size_t pool = 0; pool < pools.slot_bytes().size(); ++pool) {
      const std::int64_t bytes = copied[pool];
      device::CopyBatch batch;
      batch.piece_bytes = static_cast<std::size_t>(bytes);
      batch.pieces.reserve(ordered.size());
      for (const ColdPair& page : ordered) {
        batch.pieces.push_back(piece(pools.address(pool, page.slot), page.blob + offset));
      }
      if (bytes > 0) stream.copy(std::move(batch));
      offset += pools.slot_bytes()[pool];
    }
  }
};

}  // namespace

std::unique_ptr<ColdPageCodec> make_concatenating_codec() {
  return std::make_unique<ConcatenatingCodec>();
}

}  // namespace slackwater::storage
