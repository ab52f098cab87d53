#ifndef SLACKWATER_ENGINE_SAVED_REQUEST_H_
#define SLACKWATER_ENGINE_SAVED_REQUEST_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/error.h"
#include "slackwater/engine/request.h"

namespace slackwater::engine {

// Raised when the fields of a record change.
inline constexpr std::uint32_t kSavedRequestVersion = 1;

// What an engine knows of a request beside its state: its record in a bundle.
//
// Format: docs/formats/bundle.md, "The engine's record".
struct SavedRequest {
  RequestId id;
  std::int32_t choice = 0;
  GenerationRequest asked;      // without on_output
  std::vector<TokenId> tokens;  // the prompt, and what was told of the answer
  std::vector<TokenId> drafts;  // proposed for the next round
  bool has_state = false;       // the image has pages
  std::int64_t num_matched = 0;
  std::int64_t cursor = 0;
  std::int64_t context_end = 0;
  bool has_run_before = false;
  std::int64_t num_reused = 0;
  std::int32_t num_suspends = 0;
  std::int32_t num_recomputes = 0;
  std::int64_t drafts_proposed = 0;
  std::int64_t drafts_accepted = 0;
};

std::vector<std::byte> encode(const SavedRequest& request);
// kInvalidArgument for another version, kDataLoss with the offset for bytes that are no record.
Result<SavedRequest> decode_request(std::span<const std::byte> record);

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_SAVED_REQUEST_H_
