#ifndef SLACKWATER_STORAGE_TIERED_STORE_OPTIONS_H_
#define SLACKWATER_STORAGE_TIERED_STORE_OPTIONS_H_

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/storage/cold_page_codec.h"
#include "slackwater/storage/disk_io.h"
#include "slackwater/storage/disk_tier.h"
#include "slackwater/storage/slot_layout.h"

namespace slackwater::storage {

// What a TieredStore is made from.

// Layers whose pages live and die together.
struct LayerGroupSpec {
  std::string name;
  SlotLayout layout;
  double ratio = 1;            // its share of a tier's bytes, as of the device; any scale
  std::int64_t min_slots = 1;  // on the device, whatever the ratio
  std::int64_t min_host_slots = 0;
  std::int64_t max_slots = std::numeric_limits<std::int64_t>::max();
};

struct TieredStoreOptions {
  std::vector<LayerGroupSpec> layer_groups;
  Digest128 layout;  // of everything that decides how bytes are read; kept with every file

  // Quotas in bytes; 0 means that there is no such tier. The largest ones bound later changes.
  std::int64_t device_bytes = 0;
  std::int64_t host_bytes = 0;
  std::int64_t disk_bytes = 0;
  std::int64_t max_device_bytes = 0;  // 0: device_bytes
  std::int64_t max_host_bytes = 0;    // 0: host_bytes

  // Grains; 0 means those of slot_solver.h.
  std::int64_t device_grain_bytes = 0;
  std::int64_t host_grain_bytes = 0;
  std::int64_t disk_grain_bytes = 0;

  std::shared_ptr<ColdPageCodec> codec;  // null: concatenation
  DiskTierOptions disk;
  std::unique_ptr<DiskIo> disk_io;  // null: make_best_disk_io()
  std::size_t staging_bytes = 64 << 20;
  int copy_threads = 1;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_TIERED_STORE_OPTIONS_H_
