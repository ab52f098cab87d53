#ifndef SLACKWATER_STORAGE_TRANSIENT_BYTES_H_
#define SLACKWATER_STORAGE_TRANSIENT_BYTES_H_

#include <span>

#include "slackwater/device/stream.h"
#include "slackwater/storage/cold_page_codec.h"
#include "slackwater/storage/pool_group.h"

namespace slackwater::storage {

// Queues that what slots hold past ColdPair::durable is filled with 0xDD, in builds with DCHECKs:
// whoever reads what was another request's shows. Nothing for pages that have all their bytes.
void poison_transient(device::Stream& stream, const PoolGroup& pools,
                      std::span<const ColdPair> pages);

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_TRANSIENT_BYTES_H_
