#ifndef SLACKWATER_HYBRID_HYBRID_VIEW_H_
#define SLACKWATER_HYBRID_HYBRID_VIEW_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "slackwater/base/ids.h"
#include "slackwater/cache/sequence.h"
#include "slackwater/hybrid/batch.h"

namespace slackwater::hybrid {

// What has happened since the start. Registries of several tags are added up.
struct HybridCounters {
  std::int64_t suspends = 0;
  std::int64_t resumes = 0;
  std::int64_t resumes_in_old_slot = 0;  // counted when they are set up
  std::int64_t resumes_in_new_slot = 0;
  std::int64_t saves = 0;
  std::int64_t restores = 0;
  std::int64_t relocations = 0;
  std::int64_t resets = 0;
  std::int64_t drops = 0;
  std::int64_t bytes_saved = 0;
  std::int64_t bytes_restored = 0;
  std::int64_t commits = 0;              // of pending drafts
  std::int64_t late_acceptances = 0;     // that came after the suspend
  std::int64_t ignored_acceptances = 0;  // of another round or epoch, or of nobody
  std::int64_t lost_requests = 0;        // that must come back as context
  std::int64_t certificate_failures = 0;
  std::int64_t publishes_refused = 0;  // past what is kept, or short of the page
  std::int64_t snapshots_skipped = 0;  // of publish(), because the page was not of the end
};

// One request and one recurrent pool.
struct SlotView {
  std::string group_tag;
  std::optional<SlotId> slot;
  bool is_saved = false;
  std::optional<std::int32_t> accepted_override;
  std::int64_t page_position = 0;
  std::int32_t num_pending = 0;
};

struct RequestView {
  RequestId request;
  cache::SequenceStatus status = cache::SequenceStatus::kSuspended;
  RequestPosition position;
  std::vector<SlotView> slots;
};

struct RegistryView {
  std::string group_tag;
  std::int32_t num_slots = 0;  // of the registry
  std::int32_t num_pool_slots = 0;
  std::int64_t bytes_per_slot = 0;
  std::int64_t bytes = 0;
  std::int32_t num_reserved = 0;
  std::int32_t max_saves = 0;
  std::int64_t num_saved = 0;
};

// All there is to see, as plain data.
struct HybridView {
  std::vector<RequestView> requests;
  std::vector<RegistryView> registries;
  HybridCounters counters;
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_HYBRID_VIEW_H_
