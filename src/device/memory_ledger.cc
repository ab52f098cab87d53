#include "device/memory_ledger.h"

#include "slackwater/base/check.h"

namespace slackwater::device {

std::string_view to_string(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kDevice: return "device";
    case MemoryKind::kPinnedHost: return "pinned host";
    case MemoryKind::kPageableHost: return "pageable host";
  }
  return "unknown";
}

Result<void> MemoryLedger::charge(MemoryKind kind, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  MemoryUsage& usage = usage_[static_cast<std::size_t>(kind)];
  // The budget may lie below what is committed.
  if (usage.committed_bytes > usage.budget_bytes ||
      bytes > usage.budget_bytes - usage.committed_bytes) {
    return make_error(ErrorCode::kResourceExhausted,
                      "need {} bytes of {} memory, {} of a budget of {} are committed", bytes,
                      to_string(kind), usage.committed_bytes, usage.budget_bytes);
  }
  usage.committed_bytes += bytes;
  return {};
}

void MemoryLedger::give_back(MemoryKind kind, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  MemoryUsage& usage = usage_[static_cast<std::size_t>(kind)];
  SLACKWATER_CHECK(bytes <= usage.committed_bytes, "{} bytes given back of {}", bytes,
                   usage.committed_bytes);
  usage.committed_bytes -= bytes;
}

void MemoryLedger::set_budget(MemoryKind kind, std::size_t bytes) {
  const std::scoped_lock lock(mutex_);
  usage_[static_cast<std::size_t>(kind)].budget_bytes = bytes;
}

MemoryUsage MemoryLedger::usage(MemoryKind kind) const {
  const std::scoped_lock lock(mutex_);
  return usage_[static_cast<std::size_t>(kind)];
}

}  // namespace slackwater::device
