#include "slackwater/cache/log_inspection.h"

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cache/view_json.h"
#include "slackwater/base/check.h"
#include "slackwater/cache/cache_history.h"
#include "slackwater/cache/log_replay.h"

namespace slackwater::cache {
namespace {

// Between two looks at the history: more at once, and it has to begin anew.
constexpr std::int32_t kMaxEvents = 1 << 16;
constexpr std::int64_t kCallsPerReport = 1024;

// Makes calls up to `at`, or all.
Result<void> advance(LogReplay& replay, CacheHistory& history,
                     const LogInspectionOptions& options) {
  CheckNote note("the cache is made");
  while (!options.at.has_value() || replay.num_calls() < *options.at) {
    note.set(fmt::format("making the call after {}", replay.last_call().describe()));
    SLACKWATER_ASSIGN_OR_RETURN(const bool is_made, replay.step());
    if (!is_made) break;
    history.note_call(replay.last_call().describe());
    const std::int64_t done = replay.num_calls();
    if (options.audit_every > 0 && done % options.audit_every == 0) {
      note.set(fmt::format("auditing after {}", replay.last_call().describe()));
      replay.manager().audit();
    }
    if (options.progress && done % kCallsPerReport == 0) options.progress(done);
  }
  note.set(fmt::format("auditing after {}", replay.last_call().describe()));
  replay.manager().audit();
  if (!options.at.has_value() || replay.num_calls() == *options.at) return {};
  return make_error(ErrorCode::kOutOfRange, "call {} is past the end of the log, which has {}",
                    *options.at, replay.num_calls());
}

Result<void> check_digests(LogReplay& replay, std::span<const TokenId> prompt) {
  for (const TokenId token : prompt) {
    if (!is_digest_token(token) || replay.manager().token_digests().is_alive(token)) continue;
    return make_error(ErrorCode::kInvalidArgument,
                      "token {} of the prompt stands for no digest in this log", token);
  }
  return {};
}

// How the log stands there, in a line each.
std::string heading(const LogReplay& replay) {
  std::string text =
      replay.num_calls() == 0
          ? "Before the first call\n"
          : fmt::format("After {} calls; the last one: {}{}\n", replay.num_calls(),
                        replay.last_call().describe(),
                        replay.last_call().refusal.has_value()
                            ? fmt::format(", refused as {}", to_string(*replay.last_call().refusal))
                            : "");
  if (replay.interrupted_call().has_value()) {
    text += fmt::format("The process ended during {}\n", replay.interrupted_call()->describe());
  }
  if (replay.is_log_full())
    text += "The log was full then or later, and has no call after its end\n";
  return text + "\n";
}

std::string describe_cache(const KvCacheManager& manager) {
  return manager.describe() + "\n" + describe_tree(manager.view().tree);
}

}  // namespace

Result<std::string> inspect_log(const std::filesystem::path& path,
                                const LogInspectionOptions& options) {
  SLACKWATER_ASSIGN_OR_RETURN(const auto replay, LogReplay::open(path, {kMaxEvents}));
  CacheHistory history(replay->manager(), replay->reuse());
  SLACKWATER_RETURN_IF_ERROR(advance(*replay, history, options));
  std::optional<MatchExplanation> explanation;
  if (options.prompt.has_value()) {
    SLACKWATER_RETURN_IF_ERROR(check_digests(*replay, *options.prompt));
    explanation = history.explain(options.scope, *options.prompt);
  }
  if (!options.is_json) {
    return heading(*replay) +
           (explanation.has_value() ? describe(*explanation) : describe_cache(replay->manager()));
  }
  nlohmann::json out;
  out["num_calls"] = replay->num_calls();
  out["last_call"] = replay->last_call().describe();
  if (replay->interrupted_call().has_value()) {
    out["interrupted_call"] = replay->interrupted_call()->describe();
  }
  out["is_log_full"] = replay->is_log_full();
  if (explanation.has_value()) {
    out["explanation"] = to_json(*explanation);
  } else {
    out["cache"] = to_json(replay->manager().view());
  }
  return out.dump() + "\n";
}

}  // namespace slackwater::cache
