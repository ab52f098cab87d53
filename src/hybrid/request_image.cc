// A suspended request as bytes: out of the pools, and back into others.

#include "slackwater/hybrid/request_image.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "hybrid/hybrid_request.h"
#include "slackwater/base/certificate.h"
#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/hybrid/hybrid_cache_manager.h"

namespace slackwater::hybrid {

using cache::SequenceStatus;
using device::Event;
using device::EventStatus;

namespace {

// The buffers of a layer group, as they lie one after another in a page of an image.
struct PageBuffer {
  PageTable table;
  std::int64_t bytes = 0;
  std::int64_t offset = 0;
};
struct PageShape {
  std::vector<PageBuffer> buffers;
  std::int64_t bytes = 0;
};

PageShape page_shape(const cache::KvCacheManager& cache, LayerGroupId group) {
  PageShape shape;
  for (const cache::BufferLocation& buffer : cache.layer_groups().buffers()) {
    if (buffer.layer_group != group) continue;
    const Result<PageTable> table = cache.page_table(buffer.layer, buffer.role);
    SLACKWATER_CHECK(table.has_value(), "{}", table.error().text());
    shape.buffers.push_back({*table, buffer.bytes, shape.bytes});
    shape.bytes += buffer.bytes;
  }
  return shape;
}

// Prefix digests of a request's tokens, of any position.
class PrefixChain {
 public:
  PrefixChain(const cache::ReuseScope& scope, std::span<const TokenId> tokens,
              cache::KvCacheManager& cache)
      : tokens_(tokens), tokens_per_block_(cache.tokens_per_block()), cache_(cache) {
    ends_.push_back(cache::root_prefix(scope));
    for (std::int64_t end = tokens_per_block_; end <= std::ssize(tokens_);
         end += tokens_per_block_) {
      ends_.push_back(next(ends_.back(), end - tokens_per_block_, end));
    }
  }

  // CHECK: no further than the tokens.
  Digest128 at(std::int64_t position) const {
    SLACKWATER_CHECK(position <= std::ssize(tokens_), "the prefix at {} of {} tokens", position,
                     tokens_.size());
    const std::int64_t block = position / tokens_per_block_;
    const Digest128& parent = ends_[static_cast<std::size_t>(block)];
    const std::int64_t begin = block * tokens_per_block_;
    return begin == position ? parent : next(parent, begin, position);
  }
  // Where a block ends, or what is kept of it.
  std::int64_t end_of(std::int64_t block, std::int64_t kept) const {
    return std::min((block + 1) * tokens_per_block_, kept);
  }

 private:
  Digest128 next(const Digest128& parent, std::int64_t begin, std::int64_t end) const {
    return cache::next_prefix(
        parent,
        tokens_.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(end - begin)),
        cache_.token_digests());
  }

  std::span<const TokenId> tokens_;
  const std::int64_t tokens_per_block_;
  cache::KvCacheManager& cache_;
  std::vector<Digest128> ends_;  // [full blocks + 1]
};

Digest128 stamp(const PrefixChain& prefixes, Certificate certificate,
                std::span<const std::byte> bytes) {
  certificate.owner = PrefixOwner{prefixes.at(certificate.position)};
  return LayoutDigest()
      .add("certificate", certificate.digest())
      .add("bytes", xxh3_128(bytes))
      .digest();
}

// Of a page its block tells where it belongs; what lies beside a state is told apart by P.
constexpr std::uint32_t kBesidePages = std::uint32_t{1} << 31;

using Tags = std::span<const std::unique_ptr<ReplayState>>;

// The recurrent tag whose states a layer group holds.
std::optional<std::size_t> tag_of(Tags tags, std::size_t group) {
  for (std::size_t t = 0; t < tags.size(); ++t) {
    if (tags[t]->layer_group() == LayerGroupId(static_cast<std::int32_t>(group))) return t;
  }
  return std::nullopt;
}

// What the stamps of an image must be.
struct Stamps {
  std::vector<std::vector<Digest128>> pages;  // [layer groups][pages]
  std::vector<Digest128> saved;               // [tags]
};

Stamps stamps_of(const RequestImage& image, const PrefixChain& prefixes, Tags tags) {
  Stamps stamps;
  for (std::size_t g = 0; g < image.groups.size(); ++g) {
    const GroupImage& group = image.groups[g];
    const std::optional<std::size_t> tag = tag_of(tags, g);
    std::vector<Digest128>& pages = stamps.pages.emplace_back();
    const std::size_t bytes = group.blocks.empty() ? 0 : group.bytes.size() / group.blocks.size();
    for (const std::int64_t block : group.blocks) {
      const Certificate certificate = {.owner = {},
                                       .position = tag.has_value()
                                                       ? image.tags[*tag].page_position
                                                       : prefixes.end_of(block, image.kept),
                                       .layer_group = LayerGroupId(static_cast<std::int32_t>(g)),
                                       .generation = static_cast<std::uint32_t>(block)};
      pages.push_back(stamp(prefixes, certificate,
                            std::span(group.bytes).subspan(pages.size() * bytes, bytes)));
    }
  }
  for (std::size_t t = 0; t < image.tags.size(); ++t) {
    const TagImage& tag = image.tags[t];
    const Certificate certificate = {
        .owner = {},
        .position = tag.page_position,
        .layer_group = tags[t]->layer_group(),
        .generation = kBesidePages | static_cast<std::uint32_t>(tag.num_pending)};
    stamps.saved.push_back(stamp(prefixes, certificate, tag.saved));
  }
  return stamps;
}

Result<void> check_text(RequestId request, std::span<const TokenId> tokens, ErrorCode code) {
  const auto at = std::find_if(tokens.begin(), tokens.end(), cache::is_digest_token);
  if (at == tokens.end()) return {};
  return make_error(code,
                    "token {} of request {} stands for a digest, which only the process knows that "
                    "made it; images are of text",
                    at - tokens.begin(), request.value());
}

tl::unexpected<Error> damaged(const std::string& what) {
  return make_error(ErrorCode::kDataLoss,
                    "an image whose {}: it is not what was exported; compute the request again "
                    "from its tokens",
                    what);
}

// Queues a copy of all buffers between pages of an image, one after another, and slots: into the
// image where its bytes may be written, else out of it.
template <class Byte>
void queue_copies(device::Stream& stream, const PageShape& shape, std::span<const SlotId> slots,
                  std::span<Byte* const> pages) {
  for (const PageBuffer& buffer : shape.buffers) {
    device::CopyBatch batch;
    batch.piece_bytes = static_cast<std::size_t>(buffer.bytes);
    for (std::size_t i = 0; i < slots.size(); ++i) {
      Byte* const in_image = pages[i] + buffer.offset;
      std::byte* const in_pool = layer_address(buffer.table, slots[i]);
      if constexpr (std::is_const_v<Byte>) {
        batch.pieces.push_back({in_pool, in_image});
      } else {
        batch.pieces.push_back({in_image, in_pool});
      }
    }
    if (!batch.pieces.empty()) stream.copy(std::move(batch));
  }
}

}  // namespace

Result<void> HybridCacheManager::make_image_stream() {
  if (image_stream_ != nullptr) return {};
  SLACKWATER_ASSIGN_OR_RETURN(image_stream_, device_.make_stream("request images"));
  return {};
}

// --- Out.

Result<void> HybridCacheManager::check_export(const HybridRequest& request,
                                              std::span<const TokenId> tokens) const {
  const std::uint64_t id = request.id.value();
  if (request.sequence.status() != SequenceStatus::kSuspended) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "export of request {}, which is {}; suspend it", id,
                      to_string(request.sequence.status()));
  }
  if (!request.open_rounds.empty() && !SLACKWATER_MUTANT(hybrid_export_while_pending)) {
    return make_error(
        ErrorCode::kFailedPrecondition,
        "export of request {}, of whose round {} the acceptance is not recorded; call "
        "update_resources first",
        id, request.open_rounds.front().round);
  }
  if (request.is_lost) {
    return make_error(ErrorCode::kDataLoss, "export of request {}, whose state is lost; restart it",
                      id);
  }
  std::int64_t least = request.was_resumed ? request.kept : 0;
  for (const StateCursor& cursor : request.cursors) {
    if (request.was_resumed) least = std::max(least, cursor.page_position);
  }
  if (std::ssize(tokens) < least) {
    return make_error(ErrorCode::kInvalidArgument,
                      "export of request {} with {} of its tokens; its pages stand for {}: give "
                      "those, or more",
                      id, tokens.size(), least);
  }
  return check_text(request.id, tokens, ErrorCode::kUnimplemented);
}

// What was saved beside its pages, with what was accepted since.
Result<void> HybridCacheManager::read_saves(HybridRequest& request, RequestImage& image) {
  request.ready.wait();
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    const StateCursor& cursor = request.cursors[t];
    const SlotRegistry& registry = tags_[t]->registry();
    if (cursor.saved.has_value()) cursor.saved->copied.wait();
    if (is_lost(request, t)) {
      return make_error(ErrorCode::kDataLoss,
                        "export of request {}, whose state is lost; restart it",
                        request.id.value());
    }
    TagImage& tag = image.tags.emplace_back();
    tag.page_position = cursor.page_position;
    tag.num_records = cursor.num_records;
    tag.num_pending = cursor.num_pending;
    tag.is_saved = cursor.saved.has_value();
    if (!tag.is_saved) continue;
    const std::span<const std::byte> saved = registry.saved_bytes(*cursor.saved);
    tag.saved.assign(saved.begin(), saved.end());
    const auto pending = registry.offset_of(kPrevNumAcceptedTokens);
    if (!pending.has_value() || !cursor.accepted_override.has_value()) continue;
    if (SLACKWATER_MUTANT(hybrid_image_forgets_override)) continue;
    std::memcpy(tag.saved.data() + *pending, &*cursor.accepted_override, sizeof(std::int32_t));
  }
  return {};
}

// Its pages, which are active by now.
Result<void> HybridCacheManager::copy_out(HybridRequest& request, RequestImage& image) {
  image.groups.resize(kv_cache_->layer_groups().size());
  for (std::size_t g = 0; g < image.groups.size(); ++g) {
    const LayerGroupId id(static_cast<std::int32_t>(g));
    const PageShape shape = page_shape(*kv_cache_, id);
    GroupImage& group = image.groups[g];
    std::vector<SlotId> slots;
    const std::span<const SlotId> table = request.sequence.slots(id);
    for (std::size_t block = 0; block < table.size(); ++block) {
      if (table[block] == cache::kNoSlot) continue;
      group.blocks.push_back(static_cast<std::int64_t>(block));
      slots.push_back(table[block]);
    }
    if (tag_of(tags_, g).has_value() && slots.empty()) {
      return make_error(ErrorCode::kFailedPrecondition,
                        "export of request {}, which has no page for its state: its end is "
                        "published; free it",
                        request.id.value());
    }
    if (SLACKWATER_MUTANT(hybrid_image_block_order)) std::reverse(slots.begin(), slots.end());
    group.bytes.resize(slots.size() * static_cast<std::size_t>(shape.bytes));
    std::vector<std::byte*> pages;
    for (std::size_t i = 0; i < slots.size(); ++i) {
      pages.push_back(group.bytes.data() + i * static_cast<std::size_t>(shape.bytes));
    }
    queue_copies<std::byte>(*image_stream_, shape, slots, pages);
  }
  return {};
}

// They come to the device for as long as it takes.
Result<void> HybridCacheManager::read_pages(HybridRequest& request, RequestImage& image) {
  SLACKWATER_RETURN_IF_ERROR(make_image_stream());
  // The last step may still be under way.
  image_stream_->wait(stream_.mark());
  const Result<Event> arrived = request.sequence.resume(*image_stream_);
  Result<void> copied;
  if (arrived.has_value()) {
    copied = copy_out(request, image);
    const EventStatus status = image_stream_->synchronize();
    const bool has_arrived = arrived->wait() == EventStatus::kSucceeded;
    const Result<void> suspended = request.sequence.suspend();
    SLACKWATER_CHECK(suspended.has_value(), "{}", suspended.error().text());
    if (!copied.has_value()) return copied;
    if (has_arrived && status == EventStatus::kSucceeded) return {};
    if (has_arrived) {
      return make_error(ErrorCode::kUnavailable,
                        "export of request {}: a copy of its pages failed; export it again",
                        request.id.value());
    }
  } else if (arrived.error().code() != ErrorCode::kDataLoss) {
    return tl::unexpected<Error>(arrived.error());
  }
  request.is_lost = true;
  ++counters_.lost_requests;
  return make_error(ErrorCode::kDataLoss, "export of request {}, whose pages are lost; restart it",
                    request.id.value());
}

Result<RequestImage> HybridCacheManager::export_request(RequestId id,
                                                        std::span<const TokenId> tokens) {
  SLACKWATER_ASSIGN_OR_RETURN(HybridRequest* const request, find(id));
  SLACKWATER_RETURN_IF_ERROR(check_export(*request, tokens));
  RequestImage image;
  image.layout = image_layout();
  image.epoch = request->epoch;
  image.round = request->round;
  image.kept = request->kept;
  image.history = request->sequence.history();
  image.capacity = request->sequence.capacity();
  image.has_pages = request->was_resumed;
  image.tokens.assign(tokens.begin(), tokens.end());
  if (image.has_pages) {
    SLACKWATER_RETURN_IF_ERROR(read_saves(*request, image));
    SLACKWATER_RETURN_IF_ERROR(read_pages(*request, image));
    const PrefixChain prefixes(request->scope, image.tokens, *kv_cache_);
    Stamps stamps = stamps_of(image, prefixes, tags_);
    for (std::size_t g = 0; g < image.groups.size(); ++g) {
      image.groups[g].stamps = std::move(stamps.pages[g]);
    }
    for (std::size_t t = 0; t < tags_.size(); ++t) image.tags[t].stamp = stamps.saved[t];
  }
  image.seal = seal_of(image);
  return image;
}

// --- In.

Result<void> HybridCacheManager::check_tag(const RequestImage& image, std::size_t t) const {
  const TagImage& tag = image.tags[t];
  const ReplayState& state = *tags_[t];
  const std::string& name = state.group_tag();
  const auto known = std::ssize(image.tokens);
  if (tag.page_position < 0 || tag.page_position > known || tag.num_pending < 0 ||
      tag.num_pending > tag.num_records || tag.num_records > state.max_records()) {
    return damaged(fmt::format("state of '{}' is at {} of {} tokens, with {} of {} records pending",
                               name, tag.page_position, known, tag.num_pending, tag.num_records));
  }
  if (name == "target" && tag.page_position + tag.num_pending != image.kept) {
    return damaged(fmt::format("state is at {} with {} pending, and {} tokens are kept",
                               tag.page_position, tag.num_pending, image.kept));
  }
  const std::int64_t bytes = std::ssize(tag.saved);
  if (tag.is_saved ? !state.registry().can_adopt(bytes) : bytes > 0 || tag.num_records > 0) {
    return damaged(fmt::format("save of '{}' has {} bytes of {}, and {} records", name, bytes,
                               state.registry().slot_stride(), tag.num_records));
  }
  const auto place = state.registry().offset_of(kPrevNumAcceptedTokens);
  if (!tag.is_saved || !place.has_value()) return {};
  std::int32_t pending = 0;
  std::memcpy(&pending, tag.saved.data() + *place, sizeof(pending));
  if (pending == tag.num_pending) return {};
  return damaged(fmt::format("save of '{}' has {} pending where the request has {}", name, pending,
                             tag.num_pending));
}

// Whether its numbers fit each other and this layout.
Result<void> HybridCacheManager::check_parts(const RequestImage& image) const {
  if (!image.has_pages) return {};
  if (image.kept < 0 || image.kept > std::ssize(image.tokens) || image.history < 0 ||
      image.history > image.kept || image.kept > image.capacity) {
    return damaged(
        fmt::format("request has {} tokens, {} of them kept, a history of {} and a "
                    "capacity of {}",
                    image.tokens.size(), image.kept, image.history, image.capacity));
  }
  const std::size_t num_groups = kv_cache_->layer_groups().size();
  if (image.groups.size() != num_groups || image.tags.size() != tags_.size()) {
    return damaged(fmt::format("pages are of {} layer groups and {} states, of {} and {} here",
                               image.groups.size(), image.tags.size(), num_groups, tags_.size()));
  }
  for (std::size_t g = 0; g < num_groups; ++g) {
    const GroupImage& group = image.groups[g];
    const auto bytes = static_cast<std::size_t>(
        page_shape(*kv_cache_, LayerGroupId(static_cast<std::int32_t>(g))).bytes);
    const bool is_ascending = std::adjacent_find(group.blocks.begin(), group.blocks.end(),
                                                 std::greater_equal()) == group.blocks.end();
    const bool is_of_state = tag_of(tags_, g).has_value();
    if (group.bytes.size() != group.blocks.size() * bytes ||
        group.stamps.size() != group.blocks.size() || !is_ascending ||
        (!group.blocks.empty() &&
         (group.blocks.front() < 0 || group.blocks.back() >= std::int64_t{kBesidePages})) ||
        (is_of_state && group.blocks != std::vector<std::int64_t>{0})) {
      return damaged(fmt::format("layer group {} has {} bytes for {} pages of {}", g,
                                 group.bytes.size(), group.blocks.size(), bytes));
    }
  }
  for (std::size_t t = 0; t < tags_.size(); ++t) SLACKWATER_RETURN_IF_ERROR(check_tag(image, t));
  return {};
}

Result<void> HybridCacheManager::check_image(const RequestOptions& options,
                                             const RequestImage& image) const {
  const std::uint64_t id = options.request.value();
  if (const auto differs = difference(image.layout, image_layout()); differs.has_value()) {
    return make_error(
        ErrorCode::kInvalidArgument,
        "an image of request {} of another layout: {}; use the model and the settings "
        "that it was exported with",
        id, *differs);
  }
  if (seal_of(image) != image.seal && !SLACKWATER_MUTANT(hybrid_image_seal_unchecked)) {
    return damaged("seal does not match");
  }
  SLACKWATER_RETURN_IF_ERROR(
      check_text(options.request, image.tokens, ErrorCode::kInvalidArgument));
  const auto [theirs, ours] = std::mismatch(options.tokens.begin(), options.tokens.end(),
                                            image.tokens.begin(), image.tokens.end());
  const std::int64_t same = theirs - options.tokens.begin();
  if (!options.tokens.empty() && same < std::ssize(options.tokens) &&
      same < std::ssize(image.tokens)) {
    return make_error(ErrorCode::kInvalidArgument,
                      "token {} of request {} is {} and {} in its image; import it with its own",
                      same, id, *theirs, *ours);
  }
  SLACKWATER_RETURN_IF_ERROR(check_parts(image));
  const auto needs_memory = [](const TagImage& tag) { return !tag.saved.empty(); };
  if (config_.save_bytes == 0 && std::any_of(image.tags.begin(), image.tags.end(), needs_memory)) {
    return make_error(ErrorCode::kFailedPrecondition,
                      "import of request {} without host memory for what it has beside its pages; "
                      "give save_bytes",
                      id);
  }
  return {};
}

// Whether its bytes are those of its tokens, where they are said to be.
Result<void> HybridCacheManager::check_stamps(const RequestOptions& options,
                                              const RequestImage& image) {
  if (!image.has_pages || SLACKWATER_MUTANT(hybrid_image_unchecked)) return {};
  const PrefixChain prefixes(options.scope, image.tokens, *kv_cache_);
  const Stamps stamps = stamps_of(image, prefixes, tags_);
  for (std::size_t g = 0; g < image.groups.size(); ++g) {
    const auto [is, should] = std::mismatch(image.groups[g].stamps.begin(),
                                            image.groups[g].stamps.end(), stamps.pages[g].begin());
    if (is == image.groups[g].stamps.end()) continue;
    ++counters_.certificate_failures;
    const auto page = static_cast<std::size_t>(is - image.groups[g].stamps.begin());
    return damaged(
        fmt::format("page of block {} of layer group {} has stamp {}, not {} as its "
                    "bytes, tokens and scope say",
                    image.groups[g].blocks[page], g, to_hex(*is), to_hex(*should)));
  }
  for (std::size_t t = 0; t < image.tags.size(); ++t) {
    if (image.tags[t].stamp == stamps.saved[t]) continue;
    ++counters_.certificate_failures;
    return damaged(
        fmt::format("save of '{}' has stamp {}, not {} as its bytes, tokens and scope "
                    "say",
                    tags_[t]->group_tag(), to_hex(image.tags[t].stamp), to_hex(stamps.saved[t])));
  }
  return {};
}

// Fills its pages, which are active by now. Those that the image has beyond are stale.
Result<void> HybridCacheManager::copy_in(HybridRequest& request, const RequestImage& image) {
  for (std::size_t g = 0; g < image.groups.size(); ++g) {
    const LayerGroupId id(static_cast<std::int32_t>(g));
    const PageShape shape = page_shape(*kv_cache_, id);
    const GroupImage& group = image.groups[g];
    std::vector<SlotId> slots;
    std::vector<const std::byte*> pages;
    const std::span<const SlotId> table = request.sequence.slots(id);
    for (std::size_t block = 0; block < table.size(); ++block) {
      if (table[block] == cache::kNoSlot) continue;
      const auto ordinal = static_cast<std::int64_t>(block);
      const auto at = std::lower_bound(group.blocks.begin(), group.blocks.end(), ordinal);
      if (at == group.blocks.end() || *at != ordinal) {
        return damaged(fmt::format("layer group {} has no page for block {}", g, block));
      }
      slots.push_back(table[block]);
      pages.push_back(group.bytes.data() + (at - group.blocks.begin()) * shape.bytes);
    }
    queue_copies<const std::byte>(*image_stream_, shape, slots, pages);
  }
  return {};
}

// Pages, saved entries and cursors. Refused, it is for the caller to give the request up.
Result<void> HybridCacheManager::place_image(HybridRequest& request, const RequestImage& image) {
  SLACKWATER_RETURN_IF_ERROR(make_image_stream());
  SLACKWATER_RETURN_IF_ERROR(start(request));
  SLACKWATER_ASSIGN_OR_RETURN(const Event arrived, request.sequence.resume(*image_stream_));
  SLACKWATER_RETURN_IF_ERROR(request.sequence.resize(image.capacity, image.history));
  const Result<void> queued = copy_in(request, image);
  // What is queued reads the image.
  const EventStatus copied = image_stream_->synchronize();
  if (!queued.has_value()) return queued;
  if (copied != EventStatus::kSucceeded || arrived.wait() != EventStatus::kSucceeded) {
    return make_error(ErrorCode::kUnavailable,
                      "import of request {}: a copy of its pages failed; import it again",
                      request.id.value());
  }
  SLACKWATER_RETURN_IF_ERROR(request.sequence.suspend());
  request.was_resumed = true;
  request.kept = image.kept;
  for (std::size_t t = 0; t < tags_.size(); ++t) {
    StateCursor& cursor = request.cursors[t];
    const TagImage& tag = image.tags[t];
    cursor.page_position = tag.page_position;
    cursor.num_records = tag.num_records;
    if (!SLACKWATER_MUTANT(hybrid_image_forgets_pending)) cursor.num_pending = tag.num_pending;
    if (!tag.is_saved || SLACKWATER_MUTANT(hybrid_image_forgets_records)) continue;
    // Its certificate is of this process and of this life.
    cursor.saved = tags_[t]->registry().adopt(
        tag.saved, request.certificate(tags_[t]->layer_group(), ++cursor.num_saves));
  }
  return {};
}

Result<void> HybridCacheManager::import_request(const RequestOptions& options,
                                                const RequestImage& image) {
  SLACKWATER_RETURN_IF_ERROR(check_new(options.request));
  SLACKWATER_RETURN_IF_ERROR(check_image(options, image));
  SLACKWATER_RETURN_IF_ERROR(check_stamps(options, image));
  auto request = std::make_unique<HybridRequest>();
  request->id = options.request;
  request->scope = options.scope;
  request->priority = options.priority;
  request->expected_prompt_length = options.expected_prompt_length;
  request->epoch = image.epoch + 1;
  request->round = image.round;
  // With pages of its own nothing is looked for in the tree.
  const std::span<const TokenId> prompt = image.tokens;
  SLACKWATER_RETURN_IF_ERROR(open(*request, image.has_pages ? prompt.first(0) : prompt));
  const Result<void> placed = image.has_pages ? place_image(*request, image) : Result<void>();
  if (!placed.has_value()) {
    release_saves(*request);
    return placed;
  }
  keep(std::move(request));
  return {};
}

}  // namespace slackwater::hybrid
