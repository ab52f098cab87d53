#include "slackwater/cache/log_replay.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "cache/log_config.h"
#include "cache/log_writer.h"
#include "cache/replay_device.h"

namespace slackwater::cache {
namespace {

// How many events a commit may name.
constexpr std::size_t kNumEvents = 8;

constexpr std::int32_t kMaxEventTokens = 1 << 26;

std::string outcome_text(const std::optional<ErrorCode>& refusal) {
  return refusal.has_value() ? fmt::format("was refused as {}", to_string(*refusal)) : "succeeded";
}

}  // namespace

LogReplay::~LogReplay() = default;

Result<std::unique_ptr<LogReplay>> LogReplay::open(const std::filesystem::path& path,
                                                   const LogReplayOptions& options) {
  std::unique_ptr<LogReplay> replay(new LogReplay());
  SLACKWATER_ASSIGN_OR_RETURN(replay->log_, LogReader::open(path));
  SLACKWATER_RETURN_IF_ERROR(replay->make_manager(options));
  return replay;
}

tl::unexpected<Error> LogReplay::differs(std::string_view how) const {
  return make_error(ErrorCode::kDataLoss, "{} {}; the log was made by another program, or edited",
                    call_.describe(), how);
}

// The first record says what its making learned.
Result<void> LogReplay::make_manager(const LogReplayOptions& options) {
  SLACKWATER_ASSIGN_OR_RETURN(KvCacheConfig config, read_log_config(log_->config()));
  reuse_ = {config.enable_partial_reuse, config.reuse_match_backoff};
  // Room for their tokens is kept, a block's for each.
  config.max_events = std::min(options.max_events, kMaxEventTokens / config.tokens_per_block);
  SLACKWATER_ASSIGN_OR_RETURN(const std::optional<LoggedCall> first, log_->next());
  if (!first.has_value() || first->kind != LoggedKind::kOpen || !first->has_returned ||
      first->refusal.has_value()) {
    return make_error(ErrorCode::kDataLoss,
                      "the operation log '{}' has no calls: its process ended at offset {}, before "
                      "its cache was made",
                      log_->name(), first.has_value() ? first->offset : 0);
  }
  call_ = *first;
  device_ = std::make_unique<ReplayDevice>();
  SLACKWATER_ASSIGN_OR_RETURN(stream_, device_->make_stream("a step"));
  Recollection recollection(call_.answers);
  const device::WitnessScope scope(&recollection);
  SLACKWATER_ASSIGN_OR_RETURN(manager_, KvCacheManager::create(*device_, std::move(config)));
  if (!recollection.is_exhausted()) return differs("learns something else than it did");
  return {};
}

Result<bool> LogReplay::step() {
  if (interrupted_.has_value()) return false;
  SLACKWATER_ASSIGN_OR_RETURN(const std::optional<LoggedCall> next, log_->next());
  if (!next.has_value()) return false;
  if (!next->has_returned) {
    interrupted_ = next;
    return false;
  }
  call_ = *next;
  SLACKWATER_RETURN_IF_ERROR(make_call());
  ++num_calls_;
  return true;
}

Result<void> LogReplay::make_call() {
  Recollection recollection(call_.answers);
  const Result<void> done = [&] {
    const device::WitnessScope scope(&recollection);
    return perform();
  }();
  const std::optional<ErrorCode> refusal =
      done.has_value() ? std::nullopt : std::optional(done.error().code());
  if (refusal != call_.refusal) {
    return differs(fmt::format("{} and now {}{}", outcome_text(call_.refusal),
                               outcome_text(refusal),
                               done.has_value() ? "" : " (" + done.error().text() + ")"));
  }
  if (recollection.is_exhausted()) return {};
  return differs(fmt::format("learned {} answers; now it asks for {} more and leaves {}",
                             call_.answers.size(), recollection.num_missing(),
                             recollection.num_left()));
}

Result<std::span<const TokenId>> LogReplay::tokens(std::size_t first_word,
                                                   std::uint64_t count) const {
  if (first_word > call_.words.size() || count > 2 * (call_.words.size() - first_word)) {
    return differs(fmt::format("names {} tokens and has room for fewer", count));
  }
  const auto words = call_.words.subspan(first_word);
  return std::span(reinterpret_cast<const TokenId*>(words.data()), static_cast<std::size_t>(count));
}

Result<Sequence*> LogReplay::subject() {
  if (call_.subject < sequences_.size()) return &sequences_[call_.subject];
  return differs(fmt::format("is about one of {} sequences", sequences_.size()));
}

Result<void> LogReplay::perform() {
  switch (call_.kind) {
    case LoggedKind::kCreate: return create();
    case LoggedKind::kClear: return manager_->clear_reusable_blocks();
    case LoggedKind::kShutdown: return manager_->shutdown();
    case LoggedKind::kSetQuota: {
      SLACKWATER_ASSIGN_OR_RETURN(const storage::Tier tier, tier_of(0));
      return manager_->set_quota(tier, number(1));
    }
    case LoggedKind::kTakeStatistics: manager_->take_statistics(); return {};
    case LoggedKind::kAdjust: return manager_->adjust(Nanoseconds(number(0)));
    case LoggedKind::kPrefetchPrompt: return prefetch_prompt();
    case LoggedKind::kDrop: {
      const auto plan = plans_.find(word(0));
      if (plan == plans_.end()) return differs("drops a plan that was not made");
      const Result<void> dropped = plan->second.drop();
      plans_.erase(plan);
      return dropped;
    }
    case LoggedKind::kTokenDigest: {
      const auto token = static_cast<TokenId>(call_.value);
      Sha256Digest digest = {};
      if (call_.words.size() != 4 || !is_digest_token(token)) return differs("has no digest");
      std::memcpy(digest.data(), call_.words.data(), digest.size());
      manager_->token_digests().recall(token, digest);
      return {};
    }
    case LoggedKind::kOpen: return differs("is a second beginning");
    default: break;
  }
  SLACKWATER_ASSIGN_OR_RETURN(Sequence* const sequence, subject());
  return perform_on(*sequence);
}

Result<void> LogReplay::perform_on(Sequence& sequence) {
  switch (call_.kind) {
    case LoggedKind::kResume: {
      const auto resumed = sequence.resume(*stream_);
      if (resumed.has_value()) return {};
      return tl::unexpected<Error>(resumed.error());
    }
    case LoggedKind::kSuspend: return sequence.suspend();
    case LoggedKind::kClose: sequence.close(); return {};
    case LoggedKind::kResize:
    case LoggedKind::kResizeWithin: return resize(sequence);
    case LoggedKind::kTrim: return sequence.trim(number(0));
    case LoggedKind::kCommit:
    case LoggedKind::kCommitOne: return commit(sequence);
    case LoggedKind::kStopCommitting: return sequence.stop_committing();
    case LoggedKind::kReserveSnapshot: return sequence.reserve_snapshot(number(0));
    case LoggedKind::kCancelSnapshot: sequence.cancel_snapshot(number(0)); return {};
    case LoggedKind::kSetIndexTable: return set_index_table(sequence);
    case LoggedKind::kPrefetch: {
      SLACKWATER_ASSIGN_OR_RETURN(const storage::Tier tier, tier_of(0));
      return sequence.prefetch(tier);
    }
    case LoggedKind::kPlanDrop: return plan_drop(sequence);
    case LoggedKind::kCommitStatistics: sequence.commit_statistics(); return {};
    case LoggedKind::kDiscardStatistics: sequence.discard_statistics(); return {};
    default: return differs("is no call of a sequence");
  }
}

// Of calls that have one.
ReuseScope LogReplay::scope() const {
  ReuseScope scope;
  if ((call_.value & 1) != 0) scope.adapter = word(1);
  if ((call_.value & 2) != 0) scope.salt = word(2);
  return scope;
}

Result<void> LogReplay::create() {
  SequenceOptions options;
  const std::uint32_t parts = call_.value;
  SLACKWATER_ASSIGN_OR_RETURN(options.tokens, tokens(5, word(0)));
  options.scope = scope();
  options.request = RequestId(word(3));
  options.is_dummy = (parts & 8) != 0;
  options.is_recompute = (parts & 16) != 0;
  options.expected_prompt_length = number(4);
  // What it said is among the answers.
  if ((parts & 4) != 0) options.priority = [](BlockOrdinal, LayerGroupId) { return Priority{0}; };
  SLACKWATER_ASSIGN_OR_RETURN(Sequence sequence, manager_->create_sequence(options));
  sequences_.push_back(std::move(sequence));
  tables_.resize(tables_.size() + manager_->layer_groups().size());
  return {};
}

Result<storage::Tier> LogReplay::tier_of(std::size_t index) const {
  if (word(index) < storage::kNumTiers) return static_cast<storage::Tier>(word(index));
  return differs("is about a tier that is not there");
}

Result<void> LogReplay::prefetch_prompt() {
  SLACKWATER_ASSIGN_OR_RETURN(const auto prompt, tokens(4, word(0)));
  SLACKWATER_ASSIGN_OR_RETURN(const storage::Tier tier, tier_of(3));
  const auto brought = manager_->prefetch(scope(), prompt, tier);
  if (brought.has_value()) return {};
  return tl::unexpected<Error>(brought.error());
}

Result<void> LogReplay::plan_drop(Sequence& sequence) {
  SLACKWATER_ASSIGN_OR_RETURN(std::optional<PlannedDrop> plan, sequence.plan_drop());
  if (plan.has_value()) {
    const std::uint64_t number = plan->plan_;
    plans_.emplace(number, *std::move(plan));
  }
  return {};
}

Result<void> LogReplay::resize(Sequence& sequence) {
  if (call_.kind == LoggedKind::kResize) return sequence.resize(number(0), number(1));
  const auto more = static_cast<std::int16_t>(static_cast<std::uint16_t>(call_.value));
  return sequence.resize(sequence.capacity() + more, sequence.history() + (call_.value >> 16));
}

Result<void> LogReplay::commit(Sequence& sequence) {
  CommitOptions options;
  if (call_.event == 1) {
    events_.push_back(device_->make_event("a step").event());
    if (events_.size() > kNumEvents) events_.erase(events_.begin());
    options.written = events_.back();
  } else if (call_.event > 1) {
    const std::size_t before = call_.event - 2u;
    if (before >= events_.size()) return differs("names an event that was not there");
    options.written = events_[events_.size() - 1 - before];
  }
  if (call_.kind == LoggedKind::kCommitOne) {
    const auto token = static_cast<TokenId>(call_.value);
    return sequence.commit(std::span(&token, 1), options);
  }
  options.is_end = (call_.value & 1) != 0;
  options.publishes_state = (call_.value & 2) != 0;
  SLACKWATER_ASSIGN_OR_RETURN(const auto committed, tokens(1, word(0)));
  return sequence.commit(committed, options);
}

Result<void> LogReplay::set_index_table(Sequence& sequence) {
  const std::size_t num_groups = manager_->layer_groups().size();
  const auto group = static_cast<LayerGroupId::ValueType>(number(0));
  // A table that is refused is not used.
  std::vector<SlotId> unused;
  const bool is_there = group >= 0 && std::cmp_less(group, num_groups);
  std::vector<SlotId>& table =
      is_there ? tables_[call_.subject * num_groups + static_cast<std::size_t>(group)] : unused;
  std::vector<SlotId> wanted(static_cast<std::size_t>(word(1)));
  SLACKWATER_RETURN_IF_ERROR(sequence.set_index_table(LayerGroupId(group), wanted));
  table = std::move(wanted);
  return {};
}

}  // namespace slackwater::cache
