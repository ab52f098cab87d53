#ifndef SLACKWATER_STORAGE_DISK_TIER_H_
#define SLACKWATER_STORAGE_DISK_TIER_H_

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "slackwater/base/clock.h"
#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/storage/disk_io.h"
#include "slackwater/storage/slot_allocator.h"

namespace slackwater::storage {

struct DiskTierOptions {
  std::filesystem::path directory;                 // made if it is not there
  std::int64_t segment_bytes = 64 << 20;           // of one file
  Nanoseconds timeout = std::chrono::seconds(10);  // of one batch of transfers
  // After a time-out the disk is left alone for so long; its pages are misses meanwhile.
  Nanoseconds pause_after_timeout = std::chrono::seconds(10);
  bool direct = true;  // past the page cache, where the file system can
  // Slots only, no files: nothing is read or written. For whoever replays what another one did.
  bool is_dry = false;
  // Told once per kind of trouble, from any thread. Empty: a warning in the log.
  std::function<void(std::string_view)> warn;
};

// Bytes of a frame on disk: its header and the payload, padded to whole sectors.
std::int64_t disk_frame_bytes(std::int64_t payload_bytes);

// Whose page a frame holds: what is written with it, and asked for when it is read.
struct DiskPage {
  Digest128 certificate;
  std::int64_t position = 0;
  std::uint32_t generation = 0;
  std::uint32_t layer_group = 0;
};

// One frame on its way to the disk or from it.
struct FrameTransfer {
  SlotId slot;
  DiskPage page;
  std::span<std::byte> frame;  // frame_size() bytes at a multiple of 512; payload at 512
  bool is_done = false;        // afterwards: the bytes are there
};

struct DiskTierStats {
  std::int64_t frames_written = 0;
  std::int64_t frames_read = 0;
  std::int64_t write_failures = 0;
  std::int64_t read_failures = 0;    // the disk did not give the bytes: a miss
  std::int64_t read_mismatches = 0;  // it gave others than were written: a miss, and erased
  std::int64_t timeouts = 0;
  std::int64_t retired_frames = 0;
  std::int64_t frames_found = 0;  // at the start, of an earlier process
};

// Frames of several sizes in files of one directory: slots that outlive the process.
//
// Every frame says whose page it holds, and carries checksums. A frame is served only when all of
// it matches; anything else is a miss. So the directory may be copied, cut, mixed with another
// model's, or left by a process that was killed in the middle of a write: the store may come back
// emptier, never wrong.
//
// Source: docs/formats/disk_page.md; the disk pools of TensorRT-LLM's KV cache manager V2 for the
// place in the hierarchy.
// Invariants:
//   I1  a frame that is read says the certificate asked for, this layout, and its own checksum.
//   I2  slots of a group are those of its SlotAllocator; what was found at the start and nobody
//       has asked for is given up, oldest first, before a group counts as full.
//   I3  one process uses a directory at a time.
//   I4  no slot that is handed out is one that the disk has refused to write to.
// Ownership: owns the files while it lives; they stay behind.
// Threads: write and read are called by one thread, seal and check by any, all else by another;
// they may be the same.
// Errors: open() gives kUnavailable or kFailedPrecondition for a directory that cannot be used.
// Afterwards trouble makes a smaller store and one warning, never an error: transfers say what
// they did not do, and allocate() finds no slot.
// Cost: opening reads the first sector of every frame.
class DiskTier {
 public:
  // `payload_bytes` [groups]: what the frames of each group hold.
  static Result<std::unique_ptr<DiskTier>> open(const DiskTierOptions& options,
                                                const Digest128& layout,
                                                std::span<const std::int64_t> payload_bytes,
                                                std::unique_ptr<DiskIo> io);
  ~DiskTier();

  std::size_t num_groups() const { return groups_.size(); }
  std::int64_t frame_size(std::size_t group) const { return groups_[group].frame_bytes; }
  const SlotAllocator& slots(std::size_t group) const { return groups_[group].slots; }

  // Makes room for `num_slots` frames, all told. Where the disk has less, for as many as it has,
  // with a warning; returns that number. Slow: it makes files.
  std::int32_t grow(std::size_t group, std::int32_t num_slots);
  // Takes slots at and past `num_slots` away; `move` copies a frame to another slot and returns
  // when it has. kResourceExhausted when more are occupied; nothing happens then.
  using MoveFrame = std::function<void(SlotId from, const SlotGrant& to)>;
  Result<void> shrink(std::size_t group, std::int32_t num_slots, const MoveFrame& move);

  std::int32_t num_free(std::size_t group) const;
  std::optional<SlotGrant> allocate(std::size_t group);
  // A slot out of service, for a caller whom num_free() had promised one when the disk had not yet
  // refused it. What is written there is most likely lost. CHECK: there is one.
  SlotGrant take_retired(std::size_t group);
  // A slot that the disk has refused to write to stays out of service.
  void release(std::size_t group, SlotId slot, const device::Event& last_use = {});
  void set_tag(std::size_t group, SlotId slot, std::int32_t tag) {
    groups_[group].slots.set_tag(slot, tag);
  }

  // Occupied slots that are nobody's page: found at the start, or out of service.
  std::int32_t num_ownerless(std::size_t group) const {
    return static_cast<std::int32_t>(groups_[group].found.size() + groups_[group].retired.size());
  }

  // The slot of a page that an earlier process left, now the caller's. The newest one of several.
  std::optional<SlotId> adopt(std::size_t group, const Digest128& certificate);

  // Makes frames of payloads: headers and checksums. On any thread.
  void seal(std::size_t group, std::span<FrameTransfer> frames);
  // Transfers sealed frames, or frames to be checked; neighbours go in one request. Each says by
  // is_done what became of it. `buffers` owns the frames' memory. False when a deadline passed:
  // the memory may still be written to, and must not be used again.
  bool write(std::size_t group, std::span<FrameTransfer> frames,
             const std::shared_ptr<void>& buffers);
  bool read(std::size_t group, std::span<FrameTransfer> frames,
            const std::shared_ptr<void>& buffers);
  // Frames that were not even tried count as misses too.
  void note_missed(std::size_t num_frames);
  // All checks of frames that were read: is_done stays only where every one holds. On any thread.
  void check(std::size_t group, std::span<FrameTransfer> frames);

  DiskTierStats stats() const;
  std::string_view io_name() const { return io_->name(); }
  std::string describe() const;  // lines for people
  void check_invariants() const;

 private:
  struct Found {
    SlotId slot;
    std::uint64_t sequence = 0;
  };
  // An open file, for as long as a request may use it.
  struct SegmentFile {
    explicit SegmentFile(int opened) : descriptor(opened) {}
    ~SegmentFile();
    SegmentFile(const SegmentFile&) = delete;
    SegmentFile& operator=(const SegmentFile&) = delete;

    const int descriptor;
  };
  struct Group {
    std::int64_t payload_bytes = 0;
    std::int64_t frame_bytes = 0;
    std::int32_t frames_per_segment = 0;
    std::vector<std::shared_ptr<SegmentFile>> files;  // [segments]
    SlotAllocator slots;
    std::map<Digest128, Found> found;  // of an earlier process, not yet asked for
    std::set<std::pair<std::uint64_t, Digest128>> by_sequence;  // `found`, oldest first
    std::set<SlotId> refused;                                   // writes failed; under files_mutex_
    std::set<SlotId> damaged;                                   // hold no page any more; likewise
    std::set<SlotId> retired;                                   // released after that
  };
  // One request, and the frames [first, end) of a transfer that it moves bytes of.
  struct Piece {
    IoRequest request;
    std::size_t first = 0;
    std::size_t end = 0;
  };
  using SteadyTime = std::chrono::steady_clock::time_point;
  enum class Trouble { kSpace, kWrite, kRead, kMismatch, kTimeout, kCount };

  DiskTier(DiskTierOptions options, const Digest128& layout, std::unique_ptr<DiskIo> io);

  Result<void> lock_directory();
  Result<void> take_over(std::size_t group);
  Result<void> open_segments(std::size_t group);
  void recall_found(Group& group);
  void scan_segment(std::size_t group, std::size_t segment);
  void note_found(Group& group, const Digest128& certificate, SlotId slot, std::uint64_t sequence);
  void drop_found(Group& group, const Digest128& certificate);
  std::filesystem::path segment_path(std::size_t group, std::size_t segment) const;
  std::int64_t segment_file_bytes(const Group& group) const;
  int open_file(const std::filesystem::path& path, int flags);
  Result<std::shared_ptr<SegmentFile>> make_segment(std::size_t group, std::size_t segment);
  void remove_segments(std::size_t group, std::size_t num_left);
  std::shared_ptr<SegmentFile> file_of(std::size_t group, SlotId slot) const;
  static std::vector<Piece> pieces_of(std::span<const IoRequest> requests);
  bool transfer_frames(std::size_t group, std::span<FrameTransfer> frames, IoRequest::Kind kind,
                       const std::shared_ptr<void>& buffers, std::vector<IoRequest>& requests);
  bool transfer(std::span<IoRequest> requests, const std::shared_ptr<void>& buffers);
  void note_write(std::size_t group, const IoRequest& request, FrameTransfer& frame);
  void note_read(const IoRequest& request, FrameTransfer& frame);
  void check_frame_of(std::size_t group, FrameTransfer& frame);
  void erase_damaged();
  bool takes_sectors(int file) const;
  void warn_once(Trouble trouble, const std::string& text);

  const DiskTierOptions options_;
  const Digest128 layout_;
  const std::unique_ptr<DiskIo> io_;
  int lock_file_ = -1;
  std::vector<Group> groups_;
  mutable std::mutex files_mutex_;  // Group::files, refused and damaged, which all threads look at
  std::atomic<std::uint64_t> next_sequence_{1};
  std::atomic<std::uint32_t> warned_{0};  // bit per Trouble
  SteadyTime stalled_until_{};            // of the thread that transfers

  struct Counters {
    std::atomic<std::int64_t> frames_written{0};
    std::atomic<std::int64_t> frames_read{0};
    std::atomic<std::int64_t> write_failures{0};
    std::atomic<std::int64_t> read_failures{0};
    std::atomic<std::int64_t> read_mismatches{0};
    std::atomic<std::int64_t> timeouts{0};
  };
  Counters counters_;
  std::int64_t frames_found_ = 0;
};

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_DISK_TIER_H_
