#include "storage/disk_page.h"

#include <cstring>
#include <string_view>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"

namespace slackwater::storage {
namespace {

constexpr std::string_view kSegmentMagic = "SLKWSEG1";
constexpr std::string_view kFrameMagic = "SLKWPAG1";

// Offsets, as in docs/formats/disk_page.md.
constexpr std::size_t kMagicAt = 0;
constexpr std::size_t kSegmentPayloadBytesAt = 8;
constexpr std::size_t kSegmentNumFramesAt = 16;
constexpr std::size_t kSegmentLayoutAt = 24;
constexpr std::size_t kSegmentChecksumAt = 40;
constexpr std::size_t kFrameLayoutAt = 8;
constexpr std::size_t kFrameCertificateAt = 24;
constexpr std::size_t kFramePositionAt = 40;
constexpr std::size_t kFrameGenerationAt = 48;
constexpr std::size_t kFrameLayerGroupAt = 52;
constexpr std::size_t kFrameSequenceAt = 56;
constexpr std::size_t kFrameLengthAt = 64;
constexpr std::size_t kFramePayloadChecksumAt = 72;
constexpr std::size_t kFrameHeaderChecksumAt = 88;

// Little-endian integers at offsets of a block, on any machine.
void put(std::span<std::byte> block, std::size_t at, std::uint64_t value, int bytes = 8) {
  for (int i = 0; i < bytes; ++i) {
    block[at + static_cast<std::size_t>(i)] = static_cast<std::byte>(value >> (8 * i));
  }
}
void put(std::span<std::byte> block, std::size_t at, const Digest128& digest) {
  put(block, at, digest.low);
  put(block, at + 8, digest.high);
}
std::uint64_t get(std::span<const std::byte> block, std::size_t at, int bytes = 8) {
  std::uint64_t value = 0;
  for (int i = 0; i < bytes; ++i) {
    value |= std::uint64_t{std::to_integer<unsigned>(block[at + static_cast<std::size_t>(i)])}
             << (8 * i);
  }
  return value;
}
Digest128 get_digest(std::span<const std::byte> block, std::size_t at) {
  return {get(block, at), get(block, at + 8)};
}

bool has_magic(std::span<const std::byte> block, std::string_view magic) {
  return std::memcmp(block.data() + kMagicAt, magic.data(), magic.size()) == 0;
}

std::span<const std::byte> payload_of(std::span<const std::byte> frame, std::size_t payload_bytes) {
  return frame.subspan(kFrameHeaderBytes, payload_bytes);
}

}  // namespace

void write_segment_header(const SegmentHeader& header, std::span<std::byte> block) {
  SLACKWATER_CHECK(block.size() == kSegmentHeaderBytes, "{} bytes", block.size());
  std::memset(block.data(), 0, block.size());
  std::memcpy(block.data() + kMagicAt, kSegmentMagic.data(), kSegmentMagic.size());
  put(block, kSegmentPayloadBytesAt, header.payload_bytes);
  put(block, kSegmentNumFramesAt, header.num_frames);
  put(block, kSegmentLayoutAt, header.layout);
  put(block, kSegmentChecksumAt, xxh3_128(block.first(kSegmentChecksumAt)));
}

Result<SegmentHeader> read_segment_header(std::span<const std::byte> block) {
  if (block.size() < kSegmentHeaderBytes) {
    return make_error(ErrorCode::kDataLoss, "{} bytes, a segment header has {}", block.size(),
                      kSegmentHeaderBytes);
  }
  if (!has_magic(block, kSegmentMagic)) {
    return make_error(ErrorCode::kDataLoss, "no segment header: it does not begin with {}",
                      kSegmentMagic);
  }
  if (get_digest(block, kSegmentChecksumAt) != xxh3_128(block.first(kSegmentChecksumAt))) {
    return make_error(ErrorCode::kDataLoss, "the checksum of the segment header does not match");
  }
  return SegmentHeader{get(block, kSegmentPayloadBytesAt), get(block, kSegmentNumFramesAt),
                       get_digest(block, kSegmentLayoutAt)};
}

void seal_frame(const FrameHeader& header, std::size_t payload_bytes, std::span<std::byte> frame) {
  SLACKWATER_CHECK(frame.size() == frame_bytes(payload_bytes), "a frame of {} bytes for {}",
                   frame.size(), payload_bytes);
  const std::size_t end = kFrameHeaderBytes + payload_bytes;
  std::memset(frame.data(), 0, kFrameHeaderBytes);
  std::memset(frame.data() + end, 0, frame.size() - end);
  std::memcpy(frame.data() + kMagicAt, kFrameMagic.data(), kFrameMagic.size());
  put(frame, kFrameLayoutAt, header.layout);
  put(frame, kFrameCertificateAt, header.certificate);
  put(frame, kFramePositionAt, static_cast<std::uint64_t>(header.position));
  put(frame, kFrameGenerationAt, header.generation, 4);
  put(frame, kFrameLayerGroupAt, header.layer_group, 4);
  put(frame, kFrameSequenceAt, header.sequence);
  put(frame, kFrameLengthAt, payload_bytes);
  put(frame, kFramePayloadChecksumAt, xxh3_128(payload_of(frame, payload_bytes)));
  put(frame, kFrameHeaderChecksumAt, xxh3_128(frame.first(kFrameHeaderChecksumAt)));
}

Result<FrameHeader> read_frame_header(std::span<const std::byte> start, std::size_t payload_bytes) {
  SLACKWATER_CHECK(start.size() >= kFrameHeaderBytes, "{} bytes of a frame", start.size());
  if (!has_magic(start, kFrameMagic)) {
    return make_error(ErrorCode::kDataLoss, "no page: it does not begin with {}", kFrameMagic);
  }
  if (get_digest(start, kFrameHeaderChecksumAt) != xxh3_128(start.first(kFrameHeaderChecksumAt))) {
    return make_error(ErrorCode::kDataLoss, "the checksum of the page's header does not match");
  }
  if (get(start, kFrameLengthAt) != payload_bytes) {
    return make_error(ErrorCode::kDataLoss, "the page has {} bytes, {} are expected",
                      get(start, kFrameLengthAt), payload_bytes);
  }
  FrameHeader header;
  header.layout = get_digest(start, kFrameLayoutAt);
  header.certificate = get_digest(start, kFrameCertificateAt);
  header.position = static_cast<std::int64_t>(get(start, kFramePositionAt));
  header.generation = static_cast<std::uint32_t>(get(start, kFrameGenerationAt, 4));
  header.layer_group = static_cast<std::uint32_t>(get(start, kFrameLayerGroupAt, 4));
  header.sequence = get(start, kFrameSequenceAt);
  return header;
}

Result<FrameHeader> check_frame(std::span<const std::byte> frame, std::size_t payload_bytes) {
  SLACKWATER_CHECK(frame.size() == frame_bytes(payload_bytes), "a frame of {} bytes for {}",
                   frame.size(), payload_bytes);
  SLACKWATER_ASSIGN_OR_RETURN(const FrameHeader header, read_frame_header(frame, payload_bytes));
  if (get_digest(frame, kFramePayloadChecksumAt) != xxh3_128(payload_of(frame, payload_bytes)) &&
      !SLACKWATER_MUTANT(disk_ignores_checksum)) {
    return make_error(ErrorCode::kDataLoss, "the checksum of the page's {} bytes does not match",
                      payload_bytes);
  }
  return header;
}

}  // namespace slackwater::storage
