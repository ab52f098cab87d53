#ifndef SLACKWATER_STORAGE_DISK_PAGE_H_
#define SLACKWATER_STORAGE_DISK_PAGE_H_

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"

namespace slackwater::storage {

// Pages on disk: headers and checks. The byte tables are in docs/formats/disk_page.md.

// Frames are whole sectors, so that direct I/O can move them and little is lost to rounding.
inline constexpr std::size_t kSectorBytes = 512;
inline constexpr std::size_t kSegmentHeaderBytes = 4096;
// The first sector of a frame; the payload comes after it.
inline constexpr std::size_t kFrameHeaderBytes = kSectorBytes;

// Bytes of a frame that holds a page of `payload_bytes`.
constexpr std::size_t frame_bytes(std::size_t payload_bytes) {
  return (kFrameHeaderBytes + payload_bytes + kSectorBytes - 1) / kSectorBytes * kSectorBytes;
}

// What all frames of a segment file have in common.
struct SegmentHeader {
  std::uint64_t payload_bytes = 0;
  std::uint64_t num_frames = 0;
  Digest128 layout;
};

// Whose page a frame holds.
struct FrameHeader {
  Digest128 layout;
  Digest128 certificate;         // the page's owner, see base/certificate.h
  std::int64_t position = 0;     // of the certificate, for people
  std::uint32_t generation = 0;  // likewise
  std::uint32_t layer_group = 0;
  std::uint64_t sequence = 0;  // ascends with every frame written into the directory
};

// `block` has kSegmentHeaderBytes; all of it is written.
void write_segment_header(const SegmentHeader& header, std::span<std::byte> block);
// kDataLoss, with what is wrong, for anything that write_segment_header did not write.
Result<SegmentHeader> read_segment_header(std::span<const std::byte> block);

// Completes a frame whose payload lies at kFrameHeaderBytes: header, checksums, and zeroes behind.
void seal_frame(const FrameHeader& header, std::size_t payload_bytes, std::span<std::byte> frame);
// The header alone, without a look at the payload. `start` has kFrameHeaderBytes or more.
Result<FrameHeader> read_frame_header(std::span<const std::byte> start, std::size_t payload_bytes);
// The payload's checksum too. Both give kDataLoss with what is wrong.
Result<FrameHeader> check_frame(std::span<const std::byte> frame, std::size_t payload_bytes);

}  // namespace slackwater::storage

#endif  // SLACKWATER_STORAGE_DISK_PAGE_H_
