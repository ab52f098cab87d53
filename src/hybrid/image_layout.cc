// What decides how the bytes of an image are to be read, and the digests that vouch for one.

#include <algorithm>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "slackwater/base/certificate.h"
#include "slackwater/base/dtype.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"
#include "slackwater/hybrid/request_image.h"
#include "slackwater/kernels/numerics.h"

namespace slackwater::hybrid {
namespace {

// All of a shape is one value: who reads that it differs sees both.
std::string describe(const KdaShape& shape) {
  return fmt::format("{} heads of {}, windows over {} taps in {}, {}", shape.num_heads,
                     shape.head_dim, shape.conv_taps, to_string(shape.conv_dtype),
                     shape.conv_layout == ConvLayout::kQThenKThenV ? "sections" : "interleaved");
}

class LayoutFields {
 public:
  template <class Value>
  void add(std::string name, const Value& value) {
    layout_.fields.push_back({std::move(name), fmt::format("{}", value)});
  }
  void add_group(const cache::LayerGroupDesc& group, std::span<const cache::BufferLocation> all) {
    add(fmt::format("layer group {}", group.id.value()), group.name);
    for (const cache::BufferLocation& buffer : all) {
      if (buffer.layer_group != group.id) continue;
      add(fmt::format("layer {} {}", buffer.layer, buffer.role),
          fmt::format("{} bytes in {}", buffer.bytes, buffer.num_subblocks));
    }
  }
  void add_tag(const ReplayState& tag) {
    const std::string& name = tag.group_tag();
    add(fmt::format("state of '{}'", name), describe(tag.shape()));
    for (const SlotEntry& entry : tag.registry().entries()) {
      add(fmt::format("entry {} of '{}'", entry.name, name),
          fmt::format("{} bytes in {}{}", entry.bytes_per_layer, entry.num_layers,
                      entry.is_record ? ", a record" : ""));
    }
  }
  ImageLayout take() { return std::move(layout_); }

 private:
  ImageLayout layout_;
};

std::string_view value_of(const ImageLayout& layout, std::string_view name) {
  const auto at = std::find_if(layout.fields.begin(), layout.fields.end(),
                               [&](const ImageField& field) { return field.name == name; });
  return at == layout.fields.end() ? std::string_view("not there") : std::string_view(at->value);
}

}  // namespace

Digest128 ImageLayout::digest() const {
  LayoutDigest digest;
  for (const ImageField& field : fields) digest.add(field.name, field.value);
  return digest.digest();
}

std::optional<std::string> difference(const ImageLayout& there, const ImageLayout& here) {
  if (there == here) return std::nullopt;
  const std::size_t common = std::min(there.fields.size(), here.fields.size());
  std::size_t at = 0;
  while (at < common && there.fields[at] == here.fields[at]) ++at;
  // One that only one side has moves all behind it.
  const std::string& name = at < here.fields.size() ? here.fields[at].name : there.fields[at].name;
  return fmt::format("{} is {} there and {} here", name, value_of(there, name),
                     value_of(here, name));
}

std::int64_t RequestImage::bytes() const {
  std::int64_t bytes = 0;
  for (const GroupImage& group : groups) bytes += std::ssize(group.bytes);
  for (const TagImage& tag : tags) bytes += std::ssize(tag.saved);
  return bytes;
}

Digest128 seal_of(const RequestImage& image) {
  LayoutDigest digest;
  digest.add("layout", image.layout.digest());
  digest.add("epoch", static_cast<std::int64_t>(image.epoch));
  digest.add("round", static_cast<std::int64_t>(image.round));
  digest.add("kept", image.kept);
  digest.add("history", image.history);
  digest.add("capacity", image.capacity);
  digest.add("has_pages", std::int64_t{image.has_pages});
  digest.add("tokens", xxh3_128(std::as_bytes(std::span(image.tokens))));
  for (const GroupImage& group : image.groups) {
    digest.add("pages", std::ssize(group.blocks));
    for (const std::int64_t block : group.blocks) digest.add("block", block);
    for (const Digest128& stamp : group.stamps) digest.add("stamp", stamp);
  }
  for (const TagImage& tag : image.tags) {
    digest.add("page_position", tag.page_position);
    digest.add("records", tag.num_records);
    digest.add("pending", tag.num_pending);
    digest.add("is_saved", std::int64_t{tag.is_saved});
    digest.add("saved", tag.stamp);
  }
  return digest.digest();
}

ImageLayout HybridCacheManager::image_layout() const {
  LayoutFields fields;
  fields.add("image version", kRequestImageVersion);
  fields.add("numerics version", kernels::kNumericsVersion);
  fields.add("model", to_hex(config_.cache.model));
  fields.add("tokens_per_block", kv_cache_->tokens_per_block());
  fields.add("placement of records", to_string(config_.placement));
  fields.add("records a slot", config_.replay.has_value() ? config_.replay->num_records : 0);
  fields.add("hidden state", config_.mtp_hidden_size);
  fields.add("kv_dtype", config_.kv_dtype);
  const cache::LayerGroups& groups = kv_cache_->layer_groups();
  for (const cache::LayerGroupDesc& group : groups.groups()) {
    fields.add_group(group, groups.buffers());
  }
  for (const auto& tag : tags_) fields.add_tag(*tag);
  return fields.take();
}

}  // namespace slackwater::hybrid
