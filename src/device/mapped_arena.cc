#include "device/mapped_arena.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "device/mapped_handover.h"
#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"

namespace slackwater::device {
namespace {

constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;

// Touches every page now, in one system call, so that no step pays for a first touch. False when
// the system has no memory left. A kernel before 5.14 does not know the call; there pages arrive
// when they are used.
bool populate(std::byte* first, std::size_t bytes) {
#if defined(MADV_POPULATE_WRITE)
  return ::madvise(first, bytes, MADV_POPULATE_WRITE) == 0 || errno != ENOMEM;
#else
  static_cast<void>(first);
  static_cast<void>(bytes);
  return true;
#endif
}

}  // namespace

Result<std::unique_ptr<Arena>> MappedArena::reserve(std::shared_ptr<MemoryLedger> ledger,
                                                    MemoryKind kind, std::size_t bytes,
                                                    std::size_t grain_bytes) {
  const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  if (bytes == 0) return make_error(ErrorCode::kInvalidArgument, "an arena of 0 bytes");
  if (!std::has_single_bit(grain_bytes) || grain_bytes % page != 0) {
    return make_error(ErrorCode::kInvalidArgument,
                      "a grain of {} bytes; it is a power of two and a multiple of {}", grain_bytes,
                      page);
  }
  const auto padded = checked_add(bytes, grain_bytes - 1);
  const auto mapped = padded.has_value() ? checked_add(*padded, grain_bytes) : std::nullopt;
  if (!mapped.has_value()) {
    return make_error(ErrorCode::kInvalidArgument, "an arena of {} bytes does not fit 64 bits",
                      bytes);
  }
  std::unique_ptr<MappedArena> arena(new MappedArena(std::move(ledger), kind));
  arena->grain_ = grain_bytes;
  arena->reserved_ = *padded / grain_bytes * grain_bytes;
  arena->mapping_bytes_ = arena->reserved_ + grain_bytes;
  void* mapping = ::mmap(nullptr, arena->mapping_bytes_, PROT_NONE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return make_error(ErrorCode::kResourceExhausted, "no address space for {} bytes: {}", bytes,
                      std::strerror(errno));
  }
  arena->mapping_ = mapping;
  const auto address = reinterpret_cast<std::uintptr_t>(mapping);
  arena->base_ = reinterpret_cast<std::byte*>(round_up<std::uintptr_t>(address, grain_bytes));
  return arena;
}

MappedArena::~MappedArena() {
  if (committed_ > 0) ledger_->give_back(kind_, committed_);
  if (mapping_ != nullptr) ::munmap(mapping_, mapping_bytes_);
}

Result<void> MappedArena::resize_now(std::size_t bytes, Handover* handover) {
  auto* const mapped = dynamic_cast<MappedHandover*>(handover);
  SLACKWATER_CHECK(handover == nullptr || (mapped != nullptr && mapped->is_for(*ledger_, kind_)),
                   "an arena of {} memory with a handover of another kind or device",
                   to_string(kind_));
  if (bytes > reserved_) {
    return make_error(ErrorCode::kOutOfRange, "{} bytes of an arena of {}", bytes, reserved_);
  }
  const std::size_t end = round_up(bytes, grain_);
  if (end > committed_) return commit(end, mapped);
  if (end < committed_) decommit(end, mapped);
  return {};
}

Result<void> MappedArena::commit(std::size_t end, MappedHandover* handover) {
  const std::size_t before = committed_;
  if (handover != nullptr) committed_ += handover->take(base_ + before, end - before);
  if (committed_ == end) return {};
  Result<void> committed = commit_fresh(end);
  if (SLACKWATER_MUTANT(refused_growth_keeps_its_grains)) return committed;
  if (!committed.has_value() && before < committed_) decommit(before, handover);
  return committed;
}

Result<void> MappedArena::commit_fresh(std::size_t end) {
  const std::size_t before = committed_;
  const std::size_t added = end - before;
  SLACKWATER_RETURN_IF_ERROR(ledger_->charge(kind_, added));
  committed_ = end;
  std::byte* const first = base_ + before;
  bool is_backed = ::mprotect(first, added, PROT_READ | PROT_WRITE) == 0;
  if (is_backed) {
    if (grain_ >= kHugePageBytes) advise_huge_pages(first, added);
    is_backed = populate(first, added);
  }
  if (is_backed) return {};
  const int error = errno;
  decommit(before, nullptr);
  return make_error(ErrorCode::kResourceExhausted, "the system has no room for {} bytes: {}", added,
                    std::strerror(error));
}

void MappedArena::decommit(std::size_t end, MappedHandover* handover) {
  const std::size_t removed = committed_ - end;
  std::byte* const first = base_ + end;
  const std::size_t kept = handover == nullptr ? 0 : handover->keep(first, removed, grain_);
  if (SLACKWATER_MUTANT(kept_memory_is_not_charged)) ledger_->give_back(kind_, kept);
  // A fresh mapping in place gives the memory back and forgets its contents, which madvise does
  // not promise for locked pages.
  const int access =
      SLACKWATER_MUTANT(memory_gone_is_reachable) ? PROT_READ | PROT_WRITE : PROT_NONE;
  void* const again = ::mmap(first, removed, access,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
  SLACKWATER_CHECK(again == first, "decommit of {} bytes failed: {}", removed,
                   std::strerror(errno));
  ledger_->give_back(kind_, removed - kept);
  committed_ = end;
}

}  // namespace slackwater::device
