#include "slackwater/storage/disk_tier.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/device/witness.h"
#include "storage/disk_page.h"
#include "storage/log.h"

namespace slackwater::storage {
namespace {

// Memory is allocated in these; no disk asks for more.
constexpr std::size_t kBlockBytes = 4096;

// Requests are joined and cut to this size: large enough to stream, small enough for several to be
// under way.
//
// Experiment, io_uring at depth 8 beside plain transfers of 8 MiB (Zen 3, virtual disk), pages of
// 36 KiB read and written, share of the sequential rate: 0.69 and 0.59 at 512 KiB, 0.81 and 0.71 at
// 1 MiB, 0.89 and 0.78 at 2 MiB, 0.83 and 0.77 at 4 MiB; depth 16 at 1 MiB 0.82 and 0.70. One by
// one, without joining, 0.52-0.64.
constexpr std::size_t kMostRequestBytes = 1 << 21;

std::string reason(int error_number) { return std::generic_category().message(error_number); }

bool is_timed_out(const IoRequest& request) { return request.status == IoStatus::kTimedOut; }

// Memory for whole blocks, at a multiple of a block's size as direct I/O asks for.
class BlockBuffer {
 public:
  explicit BlockBuffer(std::size_t bytes)
      : memory_(std::make_shared<AlignedBuffer<std::byte>>(bytes + kBlockBytes)) {
    const auto address = reinterpret_cast<std::uintptr_t>(memory_->data());
    const std::size_t padding = (kBlockBytes - address % kBlockBytes) % kBlockBytes;
    blocks_ = memory_->span().subspan(padding, bytes);
  }

  std::span<std::byte> span() const { return blocks_; }
  std::shared_ptr<void> owner() const { return memory_; }

 private:
  std::shared_ptr<AlignedBuffer<std::byte>> memory_;
  std::span<std::byte> blocks_;
};

}  // namespace

std::int64_t disk_frame_bytes(std::int64_t payload_bytes) {
  return static_cast<std::int64_t>(frame_bytes(static_cast<std::size_t>(payload_bytes)));
}

DiskTier::DiskTier(DiskTierOptions options, const Digest128& layout, std::unique_ptr<DiskIo> io)
    : options_(std::move(options)), layout_(layout), io_(std::move(io)) {}

DiskTier::SegmentFile::~SegmentFile() { ::close(descriptor); }

DiskTier::~DiskTier() {
  erase_damaged();
  if (lock_file_ >= 0) ::close(lock_file_);
}

Result<std::unique_ptr<DiskTier>> DiskTier::open(const DiskTierOptions& options,
                                                 const Digest128& layout,
                                                 std::span<const std::int64_t> payload_bytes,
                                                 std::unique_ptr<DiskIo> io) {
  std::unique_ptr<DiskTier> tier(new DiskTier(options, layout, std::move(io)));
  SLACKWATER_RETURN_IF_ERROR(tier->lock_directory());
  for (const std::int64_t bytes : payload_bytes) {
    if (bytes <= 0) {
      return make_error(ErrorCode::kInvalidArgument, "disk pages of {} bytes", bytes);
    }
    Group group;
    group.payload_bytes = bytes;
    group.frame_bytes = disk_frame_bytes(bytes);
    const std::int64_t room = options.segment_bytes - std::int64_t{kSegmentHeaderBytes};
    group.frames_per_segment =
        static_cast<std::int32_t>(std::max<std::int64_t>(1, room / group.frame_bytes));
    tier->groups_.push_back(std::move(group));
  }
  for (std::size_t group = 0; group < tier->groups_.size(); ++group) {
    SLACKWATER_RETURN_IF_ERROR(tier->take_over(group));
  }
  return tier;
}

Result<void> DiskTier::lock_directory() {
  if (options_.is_dry) return {};
  std::error_code code;
  std::filesystem::create_directories(options_.directory, code);
  if (code) {
    return make_error(ErrorCode::kUnavailable, "cannot make the directory '{}': {}",
                      options_.directory.string(), code.message());
  }
  const std::filesystem::path path = options_.directory / "lock";
  lock_file_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (lock_file_ < 0) {
    return make_error(ErrorCode::kUnavailable, "cannot write to '{}': {}; choose another directory",
                      path.string(), reason(errno));
  }
  if (::flock(lock_file_, LOCK_EX | LOCK_NB) != 0) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "another process uses the directory '{}'; choose another one",
                      options_.directory.string());
  }
  return {};
}

std::filesystem::path DiskTier::segment_path(std::size_t group, std::size_t segment) const {
  // The number tells groups of equal size apart.
  return options_.directory /
         fmt::format("pages-{}-{}-{:05}.slk", group, groups_[group].payload_bytes, segment);
}

std::int64_t DiskTier::segment_file_bytes(const Group& group) const {
  return std::int64_t{kSegmentHeaderBytes} + group.frames_per_segment * group.frame_bytes;
}

// A file descriptor, or -1 with errno. Direct where that works.
int DiskTier::open_file(const std::filesystem::path& path, int flags) {
  if (options_.direct) {
    const int file = ::open(path.c_str(), flags | O_DIRECT | O_CLOEXEC, 0644);
    if (file >= 0 && takes_sectors(file)) return file;
    if (file < 0 && errno != EINVAL) return file;
    if (file >= 0) ::close(file);
  }
  return ::open(path.c_str(), flags | O_CLOEXEC, 0644);
}

// Some disks ask direct I/O for blocks of 4096 bytes; theirs go through the page cache.
bool DiskTier::takes_sectors(int file) const {
  const BlockBuffer blocks(2 * kSectorBytes);
  return ::pread(file, blocks.span().data() + kSectorBytes, kSectorBytes, kSectorBytes) >= 0 ||
         errno != EINVAL;
}

// The segments that an earlier process left, as far as they belong to this layout; the first that
// does not, and all after it, are removed.
Result<void> DiskTier::open_segments(std::size_t index) {
  Group& group = groups_[index];
  if (options_.is_dry) return {};
  const BlockBuffer block(kSegmentHeaderBytes);
  while (true) {
    const std::filesystem::path path = segment_path(index, group.files.size());
    const int descriptor = open_file(path, O_RDWR);
    if (descriptor < 0 && errno == ENOENT) break;
    if (descriptor < 0) {
      return make_error(ErrorCode::kUnavailable,
                        "cannot open '{}': {}; make it readable or remove it", path.string(),
                        reason(errno));
    }
    auto file = std::make_shared<SegmentFile>(descriptor);
    const ssize_t count = ::pread(descriptor, block.span().data(), block.span().size(), 0);
    if (count < 0) {
      return make_error(ErrorCode::kUnavailable, "cannot read '{}': {}", path.string(),
                        reason(errno));
    }
    const auto header = read_segment_header(block.span().first(static_cast<std::size_t>(count)));
    const bool is_ours = header.has_value() && header->layout == layout_ &&
                         header->payload_bytes == static_cast<std::uint64_t>(group.payload_bytes) &&
                         header->num_frames == static_cast<std::uint64_t>(group.frames_per_segment);
    if (!is_ours) break;
    group.files.push_back(std::move(file));
  }
  remove_segments(index, group.files.size());
  return {};
}

// What was found, as a witness knows it: which slots, in which order.
void DiskTier::recall_found(Group& group) {
  const std::size_t count = device::witnessed([&] { return group.by_sequence.size(); });
  auto at = group.by_sequence.begin();
  for (std::size_t i = 0; i < count; ++i) {
    const std::int32_t slot =
        device::witnessed([&] { return group.found.at((at++)->second).slot.value(); });
    if (options_.is_dry) note_found(group, Digest128{i + 1, 0}, SlotId(slot), i + 1);
  }
}

Result<void> DiskTier::take_over(std::size_t index) {
  Group& group = groups_[index];
  SLACKWATER_RETURN_IF_ERROR(open_segments(index));
  group.files.resize(device::witnessed([&] { return group.files.size(); }));
  group.slots.grow(static_cast<std::int32_t>(group.files.size()) * group.frames_per_segment);
  while (group.slots.allocate().has_value()) {
  }
  for (std::size_t segment = 0; segment < group.files.size() && !options_.is_dry; ++segment) {
    scan_segment(index, segment);
  }
  recall_found(group);
  // Slots in which nothing was found are free.
  std::vector<bool> is_found(static_cast<std::size_t>(group.slots.capacity()), false);
  for (const auto& [certificate, found] : group.found) {
    is_found[static_cast<std::size_t>(found.slot.value())] = true;
  }
  for (std::int32_t slot = 0; slot < group.slots.capacity(); ++slot) {
    if (!is_found[static_cast<std::size_t>(slot)]) group.slots.release(SlotId(slot));
  }
  frames_found_ += std::ssize(group.found);
  return {};
}

// Looks at the first sector of every frame of a segment.
void DiskTier::scan_segment(std::size_t index, std::size_t segment) {
  constexpr std::int32_t kFramesAtOnce = 64;
  Group& group = groups_[index];
  const BlockBuffer blocks(std::size_t{kFramesAtOnce} * kFrameHeaderBytes);
  const auto payload = static_cast<std::size_t>(group.payload_bytes);
  for (std::int32_t first = 0; first < group.frames_per_segment; first += kFramesAtOnce) {
    const std::int32_t count = std::min(kFramesAtOnce, group.frames_per_segment - first);
    std::vector<IoRequest> requests;
    for (std::int32_t i = 0; i < count; ++i) {
      IoRequest request;
      request.file = group.files[segment]->descriptor;
      request.offset =
          kSegmentHeaderBytes + static_cast<std::uint64_t>((first + i) * group.frame_bytes);
      request.buffer =
          blocks.span().subspan(static_cast<std::size_t>(i) * kFrameHeaderBytes, kFrameHeaderBytes);
      requests.push_back(request);
    }
    if (!transfer(requests, blocks.owner())) return;
    for (std::int32_t i = 0; i < count; ++i) {
      const IoRequest& request = requests[static_cast<std::size_t>(i)];
      if (request.status != IoStatus::kDone) continue;
      const auto header = read_frame_header(request.buffer, payload);
      if (!header.has_value() || header->layout != layout_) continue;
      const auto slot = static_cast<std::int32_t>(segment) * group.frames_per_segment + first + i;
      note_found(group, header->certificate, SlotId(slot), header->sequence);
    }
  }
}

// The newest frame of a certificate counts.
void DiskTier::note_found(Group& group, const Digest128& certificate, SlotId slot,
                          std::uint64_t sequence) {
  next_sequence_ = std::max(next_sequence_.load(), sequence + 1);
  const auto before = group.found.find(certificate);
  if (before != group.found.end()) {
    if (before->second.sequence > sequence) return;
    group.by_sequence.erase({before->second.sequence, certificate});
  }
  group.found[certificate] = {slot, sequence};
  group.by_sequence.emplace(sequence, certificate);
}

void DiskTier::drop_found(Group& group, const Digest128& certificate) {
  const auto at = group.found.find(certificate);
  group.by_sequence.erase({at->second.sequence, certificate});
  group.found.erase(at);
}

Result<std::shared_ptr<DiskTier::SegmentFile>> DiskTier::make_segment(std::size_t index,
                                                                      std::size_t segment) {
  const Group& group = groups_[index];
  if (options_.is_dry) return std::shared_ptr<SegmentFile>();
  const std::filesystem::path path = segment_path(index, segment);
  // Through the page cache: room is made by small writes where the file system knows no other way.
  const int made = ::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (made < 0) {
    return make_error(ErrorCode::kUnavailable, "cannot make '{}': {}", path.string(),
                      reason(errno));
  }
  const BlockBuffer block(kSegmentHeaderBytes);
  write_segment_header({static_cast<std::uint64_t>(group.payload_bytes),
                        static_cast<std::uint64_t>(group.frames_per_segment), layout_},
                       block.span());
  int error = ::posix_fallocate(made, 0, segment_file_bytes(group));
  if (error == 0) {
    const ssize_t count = ::pwrite(made, block.span().data(), block.span().size(), 0);
    if (count != static_cast<ssize_t>(block.span().size())) error = count < 0 ? errno : ENOSPC;
  }
  if (error == 0 && ::fsync(made) != 0) error = errno;
  ::close(made);
  const int opened = error == 0 ? open_file(path, O_RDWR) : -1;
  if (opened >= 0) return std::make_shared<SegmentFile>(opened);
  if (error == 0) error = errno;
  ::unlink(path.c_str());
  return make_error(ErrorCode::kResourceExhausted, "no room for '{}' of {} bytes: {}",
                    path.string(), segment_file_bytes(group), reason(error));
}

void DiskTier::remove_segments(std::size_t index, std::size_t num_left) {
  Group& group = groups_[index];
  const std::scoped_lock lock(files_mutex_);
  while (group.files.size() > num_left) {
    group.files.pop_back();
  }
  if (options_.is_dry) return;
  for (std::size_t segment = num_left; ::unlink(segment_path(index, segment).c_str()) == 0;) {
    ++segment;
  }
}

std::int32_t DiskTier::grow(std::size_t index, std::int32_t num_slots) {
  Group& group = groups_[index];
  const auto slots_of = [&] {
    return static_cast<std::int32_t>(group.files.size()) * group.frames_per_segment;
  };
  while (slots_of() < num_slots) {
    Result<std::shared_ptr<SegmentFile>> file = make_segment(index, group.files.size());
    if (!file.has_value()) {
      warn_once(Trouble::kSpace,
                fmt::format("{}; the disk tier stays smaller than asked for", file.error().text()));
      break;
    }
    const std::scoped_lock lock(files_mutex_);
    group.files.push_back(*std::move(file));
  }
  const std::int32_t made = device::witnessed([&] { return std::min(num_slots, slots_of()); });
  group.slots.grow(std::max(group.slots.capacity(), made));
  return group.slots.capacity();
}

Result<void> DiskTier::shrink(std::size_t index, std::int32_t num_slots, const MoveFrame& move) {
  Group& group = groups_[index];
  // What nobody asked for goes first.
  while (group.slots.num_occupied() > num_slots && !group.found.empty()) {
    const Digest128 oldest = group.by_sequence.begin()->second;
    group.slots.release(group.found.at(oldest).slot);
    drop_found(group, oldest);
  }
  // Retired frames past the end go with it; each of the others has to fit below.
  const auto gone = std::count_if(group.retired.begin(), group.retired.end(),
                                  [&](SlotId slot) { return slot.value() >= num_slots; });
  if (group.slots.num_occupied() - gone > num_slots) {
    return make_error(
        ErrorCode::kResourceExhausted,
        "{} disk pages of {} bytes are held, {} would be left of {}; release {} first",
        group.slots.num_occupied(), group.payload_bytes, num_slots, group.slots.capacity(),
        group.slots.num_occupied() - num_slots);
  }
  group.slots.begin_shrink(num_slots);
  for (const SlotId from : group.slots.slots_to_vacate()) {
    const auto found = std::find_if(group.found.begin(), group.found.end(),
                                    [&](const auto& entry) { return entry.second.slot == from; });
    if (found != group.found.end()) {
      drop_found(group, Digest128(found->first));
    } else if (group.retired.erase(from) == 0) {
      move(from, *group.slots.allocate());
    }
    group.slots.release(from);
  }
  for (const device::Event& last_use : group.slots.finish_shrink()) last_use.wait();
  {
    const std::scoped_lock lock(files_mutex_);
    const auto is_gone = [&](SlotId slot) { return slot.value() >= num_slots; };
    std::erase_if(group.refused, is_gone);
    std::erase_if(group.damaged, is_gone);
  }
  const auto segments = static_cast<std::size_t>((num_slots + group.frames_per_segment - 1) /
                                                 group.frames_per_segment);
  remove_segments(index, std::min(segments, group.files.size()));
  return {};
}

std::int32_t DiskTier::num_free(std::size_t index) const {
  const Group& group = groups_[index];
  const std::scoped_lock lock(files_mutex_);
  const auto refused = std::count_if(group.refused.begin(), group.refused.end(),
                                     [&](SlotId slot) { return !group.slots.is_occupied(slot); });
  return group.slots.num_free() + static_cast<std::int32_t>(group.found.size()) -
         static_cast<std::int32_t>(device::witnessed([&] { return refused; }));
}

std::optional<SlotGrant> DiskTier::allocate(std::size_t index) {
  Group& group = groups_[index];
  while (auto grant = group.slots.allocate()) {
    const std::scoped_lock lock(files_mutex_);
    if (!device::witnessed([&] { return group.refused.erase(grant->slot) > 0; })) return grant;
    // It was given back before its write had failed.
    group.retired.insert(grant->slot);
  }
  if (group.found.empty()) return std::nullopt;
  const Digest128 oldest = group.by_sequence.begin()->second;
  const SlotGrant grant{group.found.at(oldest).slot, {}};
  drop_found(group, oldest);
  return grant;
}

SlotGrant DiskTier::take_retired(std::size_t index) {
  std::set<SlotId>& retired = groups_[index].retired;
  SLACKWATER_CHECK(!retired.empty(), "no slot of group {} is out of service", index);
  return {retired.extract(retired.begin()).value(), {}};
}

void DiskTier::release(std::size_t index, SlotId slot, const device::Event& last_use) {
  Group& group = groups_[index];
  {
    const std::scoped_lock lock(files_mutex_);
    if (device::witnessed([&] { return group.refused.erase(slot) > 0; })) {
      group.retired.insert(slot);
      return;
    }
  }
  group.slots.release(slot, last_use);
}

std::optional<SlotId> DiskTier::adopt(std::size_t index, const Digest128& certificate) {
  Group& group = groups_[index];
  const auto at = group.found.find(certificate);
  if (at == group.found.end()) return std::nullopt;
  const SlotId slot = at->second.slot;
  drop_found(group, certificate);
  return slot;
}

std::shared_ptr<DiskTier::SegmentFile> DiskTier::file_of(std::size_t index, SlotId slot) const {
  const Group& group = groups_[index];
  const auto segment = static_cast<std::size_t>(slot.value() / group.frames_per_segment);
  const std::scoped_lock lock(files_mutex_);
  return segment < group.files.size() ? group.files[segment] : nullptr;
}

// False when a deadline passed: what did not answer may still touch the memory.
bool DiskTier::transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers) {
  if (std::chrono::steady_clock::now() < stalled_until_) {
    // Nothing is begun on a disk that does not answer, so nobody waits for each page in turn.
    for (IoRequest& request : requests) {
      request.status = IoStatus::kFailed;
      request.error_number = ETIMEDOUT;
    }
    return true;
  }
  io_->transfer(requests, buffers, options_.timeout);
  if (std::none_of(requests.begin(), requests.end(), is_timed_out)) return true;
  stalled_until_ = std::chrono::steady_clock::now() + options_.pause_after_timeout;
  ++counters_.timeouts;
  warn_once(Trouble::kTimeout,
            fmt::format("the disk of '{}' did not answer within {:.1f} s; its pages are misses",
                        options_.directory.string(),
                        std::chrono::duration<double>(options_.timeout).count()));
  return false;
}

void DiskTier::seal(std::size_t index, std::span<FrameTransfer> frames) {
  for (const FrameTransfer& frame : frames) {
    const DiskPage& page = frame.page;
    seal_frame({layout_, page.certificate, page.position, page.generation, page.layer_group,
                next_sequence_++},
               static_cast<std::size_t>(groups_[index].payload_bytes), frame.frame);
  }
}

// Cuts and joins the requests of frames that lie one after another in file and memory into pieces
// of the size that suits a disk.
std::vector<DiskTier::Piece> DiskTier::pieces_of(std::span<const IoRequest> requests) {
  std::vector<Piece> pieces;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    const IoRequest& next = requests[i];
    if (!pieces.empty()) {
      IoRequest& last = pieces.back().request;
      const std::size_t bytes = last.buffer.size();
      if (last.file == next.file && last.offset + bytes == next.offset &&
          last.buffer.data() + bytes == next.buffer.data() &&
          bytes + next.buffer.size() <= kMostRequestBytes) {
        last.buffer = {last.buffer.data(), bytes + next.buffer.size()};
        pieces.back().end = i + 1;
        continue;
      }
    }
    for (std::size_t at = 0; at < next.buffer.size(); at += kMostRequestBytes) {
      Piece piece{next, i, i + 1};
      piece.request.offset += at;
      piece.request.buffer =
          next.buffer.subspan(at, std::min(kMostRequestBytes, next.buffer.size() - at));
      pieces.push_back(piece);
    }
  }
  return pieces;
}

// One request per frame, as it ended. Where a piece that joins several frames does not succeed,
// each of them is tried by itself, so that no frame fails for its neighbour. False when a deadline
// passed.
bool DiskTier::transfer_frames(std::size_t index, std::span<FrameTransfer> frames,
                               IoRequest::Kind kind, const std::shared_ptr<void>& buffers,
                               std::vector<IoRequest>& requests) {
  const Group& group = groups_[index];
  // What late requests keep alive: the frames' memory and the files.
  const auto owner = std::make_shared<
      std::pair<std::shared_ptr<void>, std::vector<std::shared_ptr<SegmentFile>>>>();
  owner->first = buffers;
  for (const FrameTransfer& frame : frames) {
    const std::shared_ptr<SegmentFile> file = file_of(index, frame.slot);
    SLACKWATER_CHECK(file != nullptr, "slot {} has no file", frame.slot.value());
    if (owner->second.empty() || owner->second.back() != file) owner->second.push_back(file);
    IoRequest request;
    request.kind = kind;
    request.file = file->descriptor;
    request.offset = kSegmentHeaderBytes +
                     static_cast<std::uint64_t>(frame.slot.value() % group.frames_per_segment *
                                                group.frame_bytes);
    request.buffer = frame.frame;
    requests.push_back(request);
  }
  const std::vector<Piece> pieces = pieces_of(requests);
  std::vector<IoRequest> transfers;
  for (const Piece& piece : pieces) transfers.push_back(piece.request);
  bool is_complete = transfer(transfers, owner);

  for (IoRequest& request : requests) request.status = IoStatus::kDone;
  std::vector<std::size_t> again;
  for (std::size_t p = 0; p < pieces.size(); ++p) {
    const IoStatus status = transfers[p].status;
    if (status == IoStatus::kDone) continue;
    const bool is_joined = pieces[p].end - pieces[p].first > 1;
    for (std::size_t i = pieces[p].first; i < pieces[p].end; ++i) {
      // A time-out of one piece is the last word on its frame.
      if (requests[i].status == IoStatus::kTimedOut) continue;
      requests[i].status = status;
      requests[i].error_number = transfers[p].error_number;
      if (is_joined && status != IoStatus::kTimedOut) again.push_back(i);
    }
  }
  if (again.empty()) return is_complete;
  transfers.clear();
  for (const std::size_t i : again) transfers.push_back(requests[i]);
  is_complete = transfer(transfers, owner) && is_complete;
  for (std::size_t i = 0; i < again.size(); ++i) requests[again[i]] = transfers[i];
  return is_complete;
}

bool DiskTier::write(std::size_t index, std::span<FrameTransfer> frames,
                     const std::shared_ptr<void>& buffers) {
  std::vector<IoRequest> requests;
  const bool is_complete =
      transfer_frames(index, frames, IoRequest::Kind::kWrite, buffers, requests);
  for (std::size_t i = 0; i < frames.size(); ++i) note_write(index, requests[i], frames[i]);
  return is_complete;
}

void DiskTier::note_write(std::size_t index, const IoRequest& request, FrameTransfer& frame) {
  frame.is_done = request.status == IoStatus::kDone;
  {
    const std::scoped_lock lock(files_mutex_);
    Group& group = groups_[index];
    group.damaged.erase(frame.slot);
    if (frame.is_done) {
      group.refused.erase(frame.slot);
    } else {
      group.refused.insert(frame.slot);
    }
  }
  if (frame.is_done) {
    ++counters_.frames_written;
    return;
  }
  ++counters_.write_failures;
  if (request.status == IoStatus::kTimedOut) return;
  const int error = request.status == IoStatus::kShort ? ENOSPC : request.error_number;
  warn_once(Trouble::kWrite,
            fmt::format("cannot write to '{}': {}; the disk tier gets smaller by every page that "
                        "fails",
                        options_.directory.string(), reason(error)));
}

bool DiskTier::read(std::size_t index, std::span<FrameTransfer> frames,
                    const std::shared_ptr<void>& buffers) {
  std::vector<IoRequest> requests;
  const bool is_complete =
      transfer_frames(index, frames, IoRequest::Kind::kRead, buffers, requests);
  for (std::size_t i = 0; i < frames.size(); ++i) note_read(requests[i], frames[i]);
  return is_complete;
}

void DiskTier::note_missed(std::size_t num_frames) {
  counters_.read_failures += static_cast<std::int64_t>(num_frames);
}

// A read that fails is a miss; the page may be good, only this answer is missing. A file that ends
// within the page is left to the check, which finds what is there to be no page.
void DiskTier::note_read(const IoRequest& request, FrameTransfer& frame) {
  frame.is_done = request.status == IoStatus::kDone || request.status == IoStatus::kShort;
  if (request.status == IoStatus::kShort) {
    std::memset(frame.frame.data(), 0, kFrameHeaderBytes);
  }
  if (frame.is_done) return;
  ++counters_.read_failures;
  if (request.status == IoStatus::kFailed) {
    warn_once(Trouble::kRead,
              fmt::format("cannot read from '{}': {}; its pages are misses",
                          options_.directory.string(), reason(request.error_number)));
  }
}

void DiskTier::check(std::size_t index, std::span<FrameTransfer> frames) {
  for (FrameTransfer& frame : frames) {
    if (frame.is_done) check_frame_of(index, frame);
  }
}

void DiskTier::check_frame_of(std::size_t index, FrameTransfer& frame) {
  Result<FrameHeader> header =
      check_frame(frame.frame, static_cast<std::size_t>(groups_[index].payload_bytes));
  if (header.has_value() && header->layout != layout_) {
    header = make_error(ErrorCode::kDataLoss, "the page is of another layout");
  }
  if (header.has_value() && header->certificate != frame.page.certificate &&
      !SLACKWATER_MUTANT(disk_ignores_certificate)) {
    header = make_error(ErrorCode::kDataLoss, "the page belongs to {}, not to {}",
                        to_hex(header->certificate), to_hex(frame.page.certificate));
  }
  if (header.has_value() &&
      (header->position != frame.page.position || header->generation != frame.page.generation ||
       header->layer_group != frame.page.layer_group)) {
    header = make_error(ErrorCode::kDataLoss,
                        "position {}, generation {} and layer group {} instead of {}, {} and {}",
                        header->position, header->generation, header->layer_group,
                        frame.page.position, frame.page.generation, frame.page.layer_group);
  }
  frame.is_done = header.has_value();
  if (frame.is_done) {
    ++counters_.frames_read;
    return;
  }
  ++counters_.read_mismatches;
  {
    const std::scoped_lock lock(files_mutex_);
    groups_[index].damaged.insert(frame.slot);
  }
  warn_once(Trouble::kMismatch, fmt::format("a page in '{}' is damaged and counts as a miss: {}",
                                            options_.directory.string(), header.error().text()));
}

// Makes damaged frames that nobody has written again hold no page, so that no later process finds
// them. At the end, when no transfer is under way; as far as the disk answers.
void DiskTier::erase_damaged() {
  const BlockBuffer zeroes(kFrameHeaderBytes);
  for (std::size_t index = 0; index < groups_.size(); ++index) {
    const Group& group = groups_[index];
    for (const SlotId slot : group.damaged) {
      const std::shared_ptr<SegmentFile> file = file_of(index, slot);
      if (file == nullptr) continue;
      IoRequest request;
      request.kind = IoRequest::Kind::kWrite;
      request.file = file->descriptor;
      request.offset =
          kSegmentHeaderBytes +
          static_cast<std::uint64_t>(slot.value() % group.frames_per_segment * group.frame_bytes);
      request.buffer = zeroes.span();
      if (!transfer(std::span(&request, 1), zeroes.owner())) return;
    }
  }
}

void DiskTier::warn_once(Trouble trouble, const std::string& text) {
  const std::uint32_t bit = 1u << static_cast<unsigned>(trouble);
  if ((warned_.fetch_or(bit) & bit) != 0) return;
  if (options_.warn) {
    options_.warn(text);
  } else {
    log_warning(text);
  }
}

DiskTierStats DiskTier::stats() const {
  DiskTierStats stats;
  stats.frames_written = counters_.frames_written;
  stats.frames_read = counters_.frames_read;
  stats.write_failures = counters_.write_failures;
  stats.read_failures = counters_.read_failures;
  stats.read_mismatches = counters_.read_mismatches;
  stats.timeouts = counters_.timeouts;
  for (const Group& group : groups_) stats.retired_frames += std::ssize(group.retired);
  stats.frames_found = frames_found_;
  return stats;
}

void DiskTier::check_invariants() const {
  const std::scoped_lock lock(files_mutex_);
  for (const Group& group : groups_) {
    group.slots.check_invariants();
    for (const SlotId slot : group.retired) {
      SLACKWATER_CHECK(group.slots.is_occupied(slot), "I4: slot {} is retired and free",
                       slot.value());
    }
    SLACKWATER_CHECK(group.found.size() == group.by_sequence.size(), "I2: {} found, {} in order",
                     group.found.size(), group.by_sequence.size());
    for (const auto& [certificate, found] : group.found) {
      SLACKWATER_CHECK(group.slots.is_occupied(found.slot), "I2: slot {} was found and is free",
                       found.slot.value());
    }
  }
}

}  // namespace slackwater::storage
