#ifndef SLACKWATER_STORAGE_COLD_PAGE_CODEC_H_
#define SLACKWATER_STORAGE_COLD_PAGE_CODEC_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/device/stream.h"
#include "slackwater/storage/pool_group.h"
#include "slackwater/storage/slot_solver.h"

namespace slackwater::storage {

// A page in its slots on the device, and the blob it is off the device.
struct ColdPair {
  SlotId slot;
  std::byte* blob = nullptr;  // cold_page_bytes() of them
  // [pools] how much of each slot it is, from the start: of a page without transient bytes. Null:
  // all. The same for all pages of a call.
  const SlotSizes* durable = nullptr;
};

// How a page becomes one opaque blob when it leaves the device, and a page again.
//
// The bytes of a blob decide which pool it lives in off the device, so layer groups that share
// slots on the device need not share them there, and the other way round.
//
// Source: the cold-page codec of TensorRT-LLM's KV cache manager V2, kvcm_v2.md 3.13.
// Invariants:
//   I1  decode(encode(page)) gives the bytes of the page that anybody reads: those that are
//       ColdPair::durable where it is given, and what else is in blob and slot is undefined then.
//   I2  the size of a blob depends on the layer group only.
// Ownership: none; addresses are the caller's until the queued work has ended.
// Threads: encode and decode are called by one thread; the work they queue runs on the stream.
// Errors: cold_page_bytes gives kInvalidArgument or kUnimplemented for slots the codec cannot
// take. Work that fails fails the next event of the stream.
class ColdPageCodec {
 public:
  virtual ~ColdPageCodec() = default;

  virtual std::string_view name() const = 0;

  // Bytes of the blob of one page of `group`, whose slots have these sizes.
  virtual Result<std::int64_t> cold_page_bytes(LayerGroupId group, const SlotSizes& slot_bytes) = 0;

  // Queues the copies from slots to blobs, and from blobs to slots.
  virtual void encode(device::Stream& stream, LayerGroupId group, const PoolGroup& pools,
                      std::span<const ColdPair> pages) = 0;
  virtual void decode(device::Stream& stream, LayerGroupId group, const PoolGroup& pools,
                      std::span<const ColdPair> pages) = 0;
};

// The slots of a page one after another, in the order of the pools: lossless, and one copy per
// page where the page lies in one pool.
std::unique_ptr<ColdPageCodec> make_concatenating_codec();

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_COLD_PAGE_CODEC_H_
