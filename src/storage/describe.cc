// What storage says of itself, in lines for people.

#include <algorithm>
#include <string>

#include "slackwater/base/figures.h"
#include "slackwater/storage/tiered_store.h"

namespace slackwater::storage {
namespace {

std::string slots_text(std::int32_t total, std::int32_t free) {
  return fmt::format("{} of {} slots occupied ({}), {} free", total - free, total,
                     share_text(total - free, total), free);
}

}  // namespace

std::string SlotAllocator::describe() const {
  std::string text = slots_text(capacity_, capacity_ - num_occupied_);
  text += fmt::format(", {} at most so far", high_water_);
  if (is_shrinking()) {
    text += fmt::format("; shrinking to {}, {} to vacate", *shrink_end_, num_occupied_past_end_);
  }
  return text;
}

std::string PoolGroup::describe() const {
  std::int64_t slot = 0;
  for (const std::int64_t bytes : options_.slot_bytes) slot += bytes;
  return fmt::format("{}: {}; {} a slot in {}, {} committed", name(), slots_.describe(),
                     bytes_text(slot), count_text(std::ssize(options_.slot_bytes), "pool"),
                     bytes_text(committed_bytes()));
}

std::string DiskTier::describe() const {
  std::string text = fmt::format("directory {}, by {}\n", options_.directory.string(), io_name());
  for (std::size_t g = 0; g < groups_.size(); ++g) {
    text += fmt::format(
        "group {}: {}; {} a frame, {}\n", g, slots_text(groups_[g].slots.capacity(), num_free(g)),
        bytes_text(frame_size(g)), count_text(std::ssize(groups_[g].files), "file"));
    text += fmt::format("  nobody's: {} found at the start, {} out of service\n",
                        groups_[g].found.size(), groups_[g].retired.size());
  }
  const DiskTierStats now = stats();
  text += fmt::format("frames written:   {}, {} failed\n", now.frames_written, now.write_failures);
  text += fmt::format("frames read:      {}, {} failed, {} not what was written\n", now.frames_read,
                      now.read_failures, now.read_mismatches);
  text += fmt::format("deadlines passed: {}\n", now.timeouts);
  return text;
}

std::string TieredStore::describe() const {
  std::string text;
  const TieredStoreStats now = stats();
  for (const Tier tier : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    if (!has_tier(tier)) continue;
    const auto t = static_cast<std::size_t>(tier);
    text += fmt::format("{:<7} quota {}, {}\n", fmt::format("{}:", to_string(tier)),
                        bytes_text(quota(tier)), count_text(now.pages[t], "page"));
    for (std::size_t pool = 0; pool < num_pool_groups(tier); ++pool) {
      std::string members;
      PoolStats stats;
      for (std::size_t g = 0; g < layer_groups_.size(); ++g) {
        const LayerGroupId id(static_cast<std::int32_t>(g));
        if (pool_group(tier, id) != pool) continue;
        stats = pool_stats(tier, id);
        members += fmt::format("{}'{}'", members.empty() ? "" : ", ", layer_groups_[g].spec.name);
      }
      text += fmt::format("  pool {}: {}, {} reserved; {} a slot; {}\n", pool,
                          slots_text(stats.num_slots, stats.num_free), stats.num_reserved,
                          bytes_text(stats.slot_bytes), members);
    }
  }
  text += fmt::format("moved:  {}, {}\n", count_text(now.pages_moved, "page"),
                      bytes_text(now.bytes_moved));
  for (const Tier from : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
    for (const Tier to : {Tier::kDevice, Tier::kHost, Tier::kDisk}) {
      const std::int64_t pages =
          now.pages_by_way[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
      if (pages == 0) continue;
      text += fmt::format("  {:<6} to {:<6} {}\n", to_string(from), to_string(to),
                          count_text(pages, "page"));
    }
  }
  text += fmt::format("certificates that did not match: {}\n", now.certificate_mismatches);
  return text;
}

}  // namespace slackwater::storage
