#include "device/mapped_handover.h"

#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"

namespace slackwater::device {
namespace {

// The system has a limit of areas per process. Memory that has come through more arenas than this
// goes back, and comes again as one area.
constexpr std::size_t kMostPieces = 64;

constexpr int kReservation = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;

#if defined(MREMAP_DONTUNMAP)

// Whole tables of entries move where both addresses begin one, and huge pages stay whole.
constexpr std::size_t kTableBytes = std::size_t{2} << 20;

// An address at which a table begins and `bytes` fit. Somebody else may be there before us: only a
// hint, which never takes away what is not ours.
void* find_addresses(std::size_t bytes) {
  void* const found = ::mmap(nullptr, bytes + kTableBytes, PROT_NONE, kReservation, -1, 0);
  if (found == MAP_FAILED) return nullptr;
  ::munmap(found, bytes + kTableBytes);
  return reinterpret_cast<void*>(
      round_up<std::uintptr_t>(reinterpret_cast<std::uintptr_t>(found), kTableBytes));
}

// Null where the system refuses. The old addresses stay mapped, without memory, so that nobody is
// given them before they are inaccessible again.
std::byte* move_away(std::byte* first, std::size_t bytes) {
  void* const moved =
      ::mremap(first, bytes, bytes, MREMAP_MAYMOVE | MREMAP_DONTUNMAP, find_addresses(bytes));
  return moved == MAP_FAILED ? nullptr : static_cast<std::byte*>(moved);
}

bool move_to(std::byte* from, std::size_t bytes, std::byte* to) {
  if (::mremap(from, bytes, bytes, MREMAP_MAYMOVE | MREMAP_FIXED, to) != MAP_FAILED) return true;
  // It may have unmapped the addresses before it failed.
  static_cast<void>(::mmap(to, bytes, PROT_NONE, kReservation | MAP_FIXED_NOREPLACE, -1, 0));
  return false;
}

#else

// Without it, a stranger's mapping could take the old addresses in between.
std::byte* move_away(std::byte*, std::size_t) { return nullptr; }
bool move_to(std::byte*, std::size_t, std::byte*) { return false; }

#endif

}  // namespace

// The kernel moves one of its areas at a time, and does not tell where they end: grains that came
// from elsewhere are areas of their own. So a piece that it refuses is halved.
std::size_t MappedHandover::keep(std::byte* first, std::size_t bytes, std::size_t grain_bytes) {
  std::size_t kept = 0;
  while (kept < bytes && pieces_.size() < kMostPieces) {
    std::size_t piece = bytes - kept;
    std::byte* moved = move_away(first + kept, piece);
    while (moved == nullptr && errno == EFAULT && piece > grain_bytes) {
      if (SLACKWATER_MUTANT(handover_moves_one_area)) break;
      piece = round_up(piece / 2, grain_bytes);
      moved = move_away(first + kept, piece);
    }
    if (moved == nullptr) break;
    pieces_.push_back({moved, piece});
    kept += piece;
  }
  kept_bytes_ += kept;
  return kept;
}

std::size_t MappedHandover::take(std::byte* first, std::size_t bytes) {
  std::size_t taken = 0;
  while (taken < bytes && !pieces_.empty()) {
    Piece& piece = pieces_.back();
    const std::size_t part = std::min(piece.bytes, bytes - taken);
    if (!move_to(piece.first + piece.bytes - part, part, first + taken)) {
      give_back();
      return taken;
    }
    piece.bytes -= part;
    if (piece.bytes == 0) pieces_.pop_back();
    taken += part;
    kept_bytes_ -= part;
  }
  return taken;
}

void MappedHandover::give_back() {
  for (const Piece& piece : pieces_) {
    const int unmapped = ::munmap(piece.first, piece.bytes);
    SLACKWATER_CHECK(unmapped == 0, "{} kept bytes cannot be given back: {}", piece.bytes,
                     std::strerror(errno));
  }
  pieces_.clear();
  if (kept_bytes_ > 0) ledger_->give_back(kind_, kept_bytes_);
  kept_bytes_ = 0;
}

}  // namespace slackwater::device
