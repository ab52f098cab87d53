#ifndef SLACKWATER_ENGINE_BUNDLE_FORMAT_H_
#define SLACKWATER_ENGINE_BUNDLE_FORMAT_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/engine/bundle.h"
#include "slackwater/hybrid/request_image.h"

namespace slackwater::engine {

// The bytes of a bundle, without files. The byte tables are in docs/formats/bundle.md.

inline constexpr std::uint32_t kBundleVersion = 1;
inline constexpr std::size_t kRequestsHeaderBytes = 16;
// Nobody has so much to say about requests; a larger manifest is not read at all.
inline constexpr std::uint64_t kMostManifestBytes = std::uint64_t{1} << 28;

// Where a request lies in the file of requests: its record, and its image right behind.
struct BundleEntry {
  std::uint64_t offset = 0;
  std::uint64_t record_bytes = 0;
  std::uint64_t image_bytes = 0;
  Digest128 record_checksum;
  Digest128 image_checksum;
};

struct BundleManifest {
  BundleHeader header;
  std::uint64_t requests_bytes = 0;  // of the file of requests
  std::vector<BundleEntry> entries;
};

std::vector<std::byte> encode_manifest(const BundleManifest& manifest);
// kInvalidArgument for another version, kDataLoss with offset and fault for all else.
Result<BundleManifest> decode_manifest(std::span<const std::byte> bytes);

// The first bytes of the file of requests.
std::vector<std::byte> encode_requests_header(std::uint64_t process_epoch);
Result<void> check_requests_header(std::span<const std::byte> bytes, std::uint64_t process_epoch);

// All of an image but its layout, which is the bundle's.
std::vector<std::byte> encode_image(const hybrid::RequestImage& image);
Result<hybrid::RequestImage> decode_image(std::span<const std::byte> bytes,
                                          const hybrid::ImageLayout& layout);

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_BUNDLE_FORMAT_H_
