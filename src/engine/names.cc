// The words by which options, outputs and tables name what the headers enumerate.

#include <array>
#include <span>
#include <string>

#include "slackwater/base/check.h"
#include "slackwater/engine/config.h"
#include "slackwater/engine/request.h"
#include "slackwater/engine/statistics.h"

namespace slackwater::engine {
namespace {

constexpr std::array kDrafters = {DrafterKind::kNone, DrafterKind::kNgram, DrafterKind::kMtp,
                                  DrafterKind::kDraftModel};
constexpr std::array kLoops = {LoopKind::kPlain, LoopKind::kOverlap};

// The one of `kinds` that has this name.
template <class Kind>
Result<Kind> parse(std::string_view noun, std::string_view name, std::span<const Kind> kinds) {
  std::string known;
  for (const Kind kind : kinds) {
    if (to_string(kind) == name) return kind;
    if (!known.empty()) known += ", ";
    known += to_string(kind);
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown {} '{}'; known: {}", noun, name, known);
}

}  // namespace

std::string_view to_string(DrafterKind kind) {
  switch (kind) {
    case DrafterKind::kNone: return "none";
    case DrafterKind::kNgram: return "ngram";
    case DrafterKind::kMtp: return "mtp";
    case DrafterKind::kDraftModel: return "model";
  }
  SLACKWATER_CHECK(false, "drafter {}", static_cast<int>(kind));
}

Result<DrafterKind> parse_drafter(std::string_view name) {
  return parse<DrafterKind>("drafter", name, kDrafters);
}

std::string_view to_string(LoopKind kind) {
  switch (kind) {
    case LoopKind::kPlain: return "plain";
    case LoopKind::kOverlap: return "overlap";
  }
  SLACKWATER_CHECK(false, "loop {}", static_cast<int>(kind));
}

Result<LoopKind> parse_loop(std::string_view name) { return parse<LoopKind>("loop", name, kLoops); }

std::string_view to_string(FinishReason reason) {
  switch (reason) {
    case FinishReason::kLength: return "length";
    case FinishReason::kStop: return "stop";
    case FinishReason::kCancelled: return "cancelled";
    case FinishReason::kError: return "error";
  }
  SLACKWATER_CHECK(false, "finish reason {}", static_cast<int>(reason));
}

std::string_view to_string(RequestState state) {
  switch (state) {
    case RequestState::kWaiting: return "waiting";
    case RequestState::kContext: return "context";
    case RequestState::kRunning: return "running";
    case RequestState::kSuspended: return "suspended";
    case RequestState::kFinished: return "finished";
  }
  SLACKWATER_CHECK(false, "request state {}", static_cast<int>(state));
}

}  // namespace slackwater::engine
