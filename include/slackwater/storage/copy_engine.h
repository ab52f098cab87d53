#ifndef SLACKWATER_STORAGE_COPY_ENGINE_H_
#define SLACKWATER_STORAGE_COPY_ENGINE_H_

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/device/device.h"
#include "slackwater/storage/cold_page_codec.h"

namespace slackwater::storage {

// Copies pages between device and host in batches, beside the step.
//
// A batch has one fate: its event says whether all its pages are there. It begins after the events
// it is given are done; when one of those failed, so does the batch, because it would copy bytes
// that nobody vouches for.
//
// Source: kvcm_v2.md 3.13.
// Invariants:
//   I1  nothing of a batch is read or written before the events it is given are done, nor after
//       its own event is done.
// Ownership: owns its streams.
// Threads: one caller; the work runs on one stream, or on two side by side.
// Errors: create() as Device::make_stream; afterwards failures are told by events.
// Cost: queueing is O(pages); it never waits for a copy.
class CopyEngine {
 public:
  // `num_threads` is 1 or 2.
  static Result<std::unique_ptr<CopyEngine>> create(device::Device& device, const std::string& name,
                                                    int num_threads);

  // Queues the work of a share of the pages on a stream.
  using Queue = std::function<void(device::Stream& stream, std::span<const ColdPair> pages)>;

  // `before` are waited for; those of them in `sources` decide the batch's fate too.
  device::Event submit(std::span<const device::Event> before,
                       std::span<const device::Event> sources, std::span<const ColdPair> pages,
                       const Queue& queue);

  // Something small after all that is queued so far, on the first stream.
  device::Stream& first_stream() { return *streams_.front(); }

  // Blocks until all that is queued has ended.
  void synchronize();

 private:
  std::vector<std::unique_ptr<device::Stream>> streams_;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_COPY_ENGINE_H_
