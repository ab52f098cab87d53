#include "engine/bundle_format.h"

#include <algorithm>
#include <cstring>
#include <string_view>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/engine/byte_codec.h"

namespace slackwater::engine {
namespace {

using hybrid::GroupImage;
using hybrid::ImageLayout;
using hybrid::RequestImage;
using hybrid::TagImage;

constexpr std::string_view kManifestMagic = "SLKWBUN1";
constexpr std::string_view kRequestsMagic = "SLKWREQ1";

// The least bytes of one of each, so that no number is believed that cannot be.
constexpr std::uint64_t kFieldBytes = 16;
constexpr std::uint64_t kEntryBytes = 56;
constexpr std::uint64_t kPageBytes = 24;
constexpr std::uint64_t kGroupBytes = 16;
constexpr std::uint64_t kTagBytes = 41;
constexpr std::size_t kChecksumBytes = 16;

bool has_magic(std::span<const std::byte> bytes, std::string_view magic) {
  return bytes.size() >= magic.size() && std::memcmp(bytes.data(), magic.data(), magic.size()) == 0;
}

// It may become part of an error's one line.
bool is_printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7F; });
}

void put_layout(ByteWriter& to, const ImageLayout& layout) {
  to.count(layout.fields.size());
  for (const hybrid::ImageField& field : layout.fields) {
    to.text(field.name);
    to.text(field.value);
  }
}

ImageLayout get_layout(ByteReader& from) {
  ImageLayout layout;
  for (std::size_t left = from.count(kFieldBytes); left > 0 && !from.has_failed(); --left) {
    std::string name = from.text();
    layout.fields.push_back({std::move(name), from.text()});
    const hybrid::ImageField& field = layout.fields.back();
    if (!is_printable(field.name) || !is_printable(field.value)) from.fail("a field of no text");
  }
  return layout;
}

void put_group(ByteWriter& to, const GroupImage& group) {
  SLACKWATER_CHECK(group.stamps.size() == group.blocks.size(), "{} stamps of {} pages",
                   group.stamps.size(), group.blocks.size());
  to.count(group.blocks.size());
  for (std::size_t page = 0; page < group.blocks.size(); ++page) {
    to.i64(group.blocks[page]);
    to.digest(group.stamps[page]);
  }
  to.blob(group.bytes);
}

GroupImage get_group(ByteReader& from) {
  GroupImage group;
  const std::size_t pages = from.count(kPageBytes);
  group.blocks.reserve(pages);
  group.stamps.reserve(pages);
  for (std::size_t page = 0; page < pages; ++page) {
    group.blocks.push_back(from.i64());
    group.stamps.push_back(from.digest());
  }
  group.bytes = from.blob();
  return group;
}

void put_tag(ByteWriter& to, const TagImage& tag) {
  to.i64(tag.page_position);
  to.i32(tag.num_records);
  to.i32(tag.num_pending);
  to.boolean(tag.is_saved);
  to.digest(tag.stamp);
  to.blob(tag.saved);
}

TagImage get_tag(ByteReader& from) {
  TagImage tag;
  tag.page_position = from.i64();
  tag.num_records = from.i32();
  tag.num_pending = from.i32();
  tag.is_saved = from.boolean();
  tag.stamp = from.digest();
  tag.saved = from.blob();
  return tag;
}

BundleEntry get_entry(ByteReader& from) {
  BundleEntry entry;
  entry.offset = from.u64();
  entry.record_bytes = from.u64();
  entry.image_bytes = from.u64();
  entry.record_checksum = from.digest();
  entry.image_checksum = from.digest();
  return entry;
}

// One after another, without a hole, to the end of the file: so nothing in there is nobody's.
void get_entries(ByteReader& from, std::size_t count, BundleManifest& manifest) {
  std::uint64_t next = kRequestsHeaderBytes;
  for (std::size_t i = 0; i < count && !from.has_failed(); ++i) {
    const BundleEntry entry = get_entry(from);
    const std::uint64_t left = manifest.requests_bytes - next;
    if (entry.offset != next || entry.record_bytes > left ||
        entry.image_bytes > left - entry.record_bytes) {
      from.fail(fmt::format("request {} has {} and {} bytes at {}, where {} of {} bytes are taken",
                            i, entry.record_bytes, entry.image_bytes, entry.offset, next,
                            manifest.requests_bytes));
      return;
    }
    next += entry.record_bytes + entry.image_bytes;
    manifest.entries.push_back(entry);
  }
  if (next != manifest.requests_bytes) {
    from.fail(fmt::format("requests end at {} of {} bytes", next, manifest.requests_bytes));
  }
}

}  // namespace

std::vector<std::byte> encode_manifest(const BundleManifest& manifest) {
  ByteWriter to;
  to.bytes(std::as_bytes(std::span(kManifestMagic)));
  to.u32(kBundleVersion);
  to.u32(static_cast<std::uint32_t>(manifest.entries.size()));
  to.u64(manifest.header.process_epoch);
  to.digest(manifest.header.layout.digest());
  to.u64(manifest.requests_bytes);
  put_layout(to, manifest.header.layout);
  to.blob(manifest.header.record);
  for (const BundleEntry& entry : manifest.entries) {
    to.u64(entry.offset);
    to.u64(entry.record_bytes);
    to.u64(entry.image_bytes);
    to.digest(entry.record_checksum);
    to.digest(entry.image_checksum);
  }
  to.digest(xxh3_128(to.view()));
  return to.take();
}

Result<BundleManifest> decode_manifest(std::span<const std::byte> bytes) {
  if (!has_magic(bytes, kManifestMagic)) {
    return make_error(ErrorCode::kDataLoss, "offset 0: it does not begin with {}", kManifestMagic);
  }
  ByteReader from(bytes);
  from.bytes(kManifestMagic.size());
  const std::uint32_t version = from.u32();
  SLACKWATER_RETURN_IF_ERROR(from.status());
  if (version != kBundleVersion) {
    return make_error(ErrorCode::kInvalidArgument,
                      "offset 8: version {}, this program reads version {}", version,
                      kBundleVersion);
  }
  if (from.num_left() < kChecksumBytes) {
    return make_error(ErrorCode::kDataLoss, "offset {}: {} bytes are left, a checksum has {}",
                      from.offset(), from.num_left(), kChecksumBytes);
  }
  const std::span<const std::byte> body = bytes.first(bytes.size() - kChecksumBytes);
  const Digest128 checksum = ByteReader(bytes.subspan(body.size())).digest();
  const Digest128 computed = xxh3_128(body);
  if (checksum != computed && !SLACKWATER_MUTANT(bundle_ignores_manifest_checksum)) {
    return make_error(ErrorCode::kDataLoss, "offset {}: checksum {}, that of its bytes is {}",
                      body.size(), to_hex(checksum), to_hex(computed));
  }
  from = ByteReader(body);
  from.bytes(kManifestMagic.size() + sizeof(version));
  BundleManifest manifest;
  const std::uint32_t num_requests = from.u32();
  manifest.header.process_epoch = from.u64();
  const Digest128 layout = from.digest();
  manifest.requests_bytes = from.u64();
  if (manifest.requests_bytes < kRequestsHeaderBytes) from.fail("requests without their header");
  manifest.header.layout = get_layout(from);
  if (manifest.header.layout.digest() != layout) from.fail("the layout is not that of its digest");
  manifest.header.record = from.blob();
  if (num_requests > from.num_left() / kEntryBytes) {
    from.fail(fmt::format("{} requests in {} bytes", num_requests, from.num_left()));
  }
  get_entries(from, num_requests, manifest);
  SLACKWATER_RETURN_IF_ERROR(from.end());
  return manifest;
}

std::vector<std::byte> encode_requests_header(std::uint64_t process_epoch) {
  ByteWriter to;
  to.bytes(std::as_bytes(std::span(kRequestsMagic)));
  to.u64(process_epoch);
  return to.take();
}

Result<void> check_requests_header(std::span<const std::byte> bytes, std::uint64_t process_epoch) {
  if (!has_magic(bytes, kRequestsMagic)) {
    return make_error(ErrorCode::kDataLoss, "offset 0: it does not begin with {}", kRequestsMagic);
  }
  ByteReader from(bytes.subspan(kRequestsMagic.size()));
  const std::uint64_t epoch = from.u64();
  if (from.end().has_value() && epoch == process_epoch) return {};
  return make_error(ErrorCode::kDataLoss, "offset 8: of process {:016x}, its manifest of {:016x}",
                    epoch, process_epoch);
}

std::vector<std::byte> encode_image(const RequestImage& image) {
  ByteWriter to;
  to.u64(image.epoch);
  to.u64(image.round);
  to.i64(image.kept);
  to.i64(image.history);
  to.i64(image.capacity);
  to.boolean(image.has_pages);
  to.digest(image.seal);
  to.count(image.tokens.size());
  for (const TokenId token : image.tokens) to.i32(token);
  to.count(image.groups.size());
  for (const GroupImage& group : image.groups) put_group(to, group);
  to.count(image.tags.size());
  for (const TagImage& tag : image.tags) put_tag(to, tag);
  return to.take();
}

Result<RequestImage> decode_image(std::span<const std::byte> bytes, const ImageLayout& layout) {
  ByteReader from(bytes);
  RequestImage image;
  image.layout = layout;
  image.epoch = from.u64();
  image.round = from.u64();
  image.kept = from.i64();
  image.history = from.i64();
  image.capacity = from.i64();
  image.has_pages = from.boolean();
  image.seal = from.digest();
  image.tokens.resize(from.count(sizeof(TokenId)));
  for (TokenId& token : image.tokens) token = from.i32();
  for (std::size_t left = from.count(kGroupBytes); left > 0 && !from.has_failed(); --left) {
    image.groups.push_back(get_group(from));
  }
  for (std::size_t left = from.count(kTagBytes); left > 0 && !from.has_failed(); --left) {
    image.tags.push_back(get_tag(from));
  }
  SLACKWATER_RETURN_IF_ERROR(from.end());
  return image;
}

}  // namespace slackwater::engine
