#include "slackwater/hybrid/slot_registry.h"

#include <algorithm>
#include <array>
#include <utility>

#include "slackwater/base/check.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/numeric.h"
#include "slackwater/storage/slot_layout.h"

namespace slackwater::hybrid {

using device::Event;
using device::MemoryKind;

namespace {

// Huge pages, which a copy of some MiB goes through faster; not for saves that would waste them.
constexpr std::int64_t kLargeGrain = 2 << 20;
constexpr std::int64_t kSmallGrain = 4096;

std::int64_t bytes_of(const SlotEntry& entry) { return entry.bytes_per_layer * entry.num_layers; }

// Where the next entry begins.
std::int64_t after(std::int64_t offset, const SlotEntry& entry) {
  return round_up(offset + bytes_of(entry), storage::kSlotAlignment);
}

}  // namespace

std::int64_t save_bytes_of(std::span<const SlotEntry> entries) {
  std::int64_t bytes = 0;
  for (const SlotEntry& entry : entries) bytes = after(bytes, entry);
  return bytes;
}

Result<void> check_entries(std::span<const SlotEntry> entries, std::string_view registry) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const SlotEntry& entry = entries[i];
    if (entry.bytes_per_layer <= 0 || entry.num_layers <= 0) {
      return make_error(ErrorCode::kInvalidArgument,
                        "entry '{}' of {} with {} layers of {} bytes; both must be positive",
                        entry.name, registry, entry.num_layers, entry.bytes_per_layer);
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (entries[other].name != entry.name) continue;
      return make_error(ErrorCode::kInvalidArgument, "two entries '{}' of {}; give each its name",
                        entry.name, registry);
    }
  }
  return {};
}

void SlotChanges::clear() {
  relocations.clear();
  restores.clear();
  resets.clear();
}

SlotRegistry::SlotRegistry(device::Device& device, SlotRegistryOptions options)
    : device_(device), options_(std::move(options)) {}

SlotRegistry::~SlotRegistry() = default;

Result<std::unique_ptr<SlotRegistry>> SlotRegistry::create(device::Device& device,
                                                           SlotRegistryOptions options) {
  SLACKWATER_RETURN_IF_ERROR(check_entries(options.entries, options.name));
  if (options.max_slots == 0) options.max_slots = options.num_slots;
  // Records come last, so that a save without them is one piece too.
  std::vector<SlotEntry> ordered;
  for (const bool is_record : {false, true}) {
    for (SlotEntry& entry : options.entries) {
      if (entry.is_record == is_record) ordered.push_back(std::move(entry));
    }
  }
  options.entries = std::move(ordered);
  std::unique_ptr<SlotRegistry> registry(new SlotRegistry(device, std::move(options)));
  registry->lay_out();
  if (registry->options_.entries.empty()) {
    registry->num_slots_ = registry->options_.num_slots;
    return registry;
  }
  SLACKWATER_RETURN_IF_ERROR(registry->make_saves());
  const SlotRegistryOptions& made = registry->options_;
  const auto reserved =
      static_cast<std::size_t>(registry->slot_stride_ * (std::int64_t{made.max_slots} + 1));
  const std::int64_t grain = made.grain_bytes > 0 ? made.grain_bytes : kLargeGrain;
  SLACKWATER_ASSIGN_OR_RETURN(
      registry->arena_,
      device.reserve_arena(MemoryKind::kDevice, reserved, static_cast<std::size_t>(grain)));
  SLACKWATER_ASSIGN_OR_RETURN(registry->stream_, device.make_stream(made.name + " slots"));
  SLACKWATER_RETURN_IF_ERROR(registry->resize(made.num_slots));
  return registry;
}

void SlotRegistry::lay_out() {
  std::int64_t next = 0;
  for (const SlotEntry& entry : options_.entries) {
    offsets_.push_back(next);
    entry_bytes_ += bytes_of(entry);
    next = after(next, entry);
    if (!entry.is_record) durable_bytes_ = next;
  }
  slot_stride_ = next;
}

Result<void> SlotRegistry::make_saves() {
  if (options_.save_bytes == 0) return {};
  if (options_.save_bytes < slot_stride_) {
    return make_error(ErrorCode::kInvalidArgument,
                      "{} bytes of host memory for what {} saves; one slot has {}: give that for "
                      "each request that may start, or 0 for no suspend at all",
                      options_.save_bytes, options_.name, slot_stride_);
  }
  const std::int64_t slots = std::min<std::int64_t>(options_.save_bytes / slot_stride_, 1 << 20);
  storage::PoolGroupOptions pool;
  pool.name = options_.name + " saves";
  pool.kind = options_.prefers_pinned ? MemoryKind::kPinnedHost : MemoryKind::kPageableHost;
  pool.slot_bytes = {slot_stride_};
  pool.grain_bytes = slot_stride_ < kLargeGrain ? kSmallGrain : kLargeGrain;
  if (options_.grain_bytes > 0) pool.grain_bytes = options_.grain_bytes;
  pool.max_slots = static_cast<std::int32_t>(slots);
  SLACKWATER_ASSIGN_OR_RETURN(saves_, storage::PoolGroup::create(device_, pool));
  return saves_->grow(pool.max_slots);
}

std::int64_t SlotRegistry::bytes() const {
  return arena_ == nullptr ? 0 : static_cast<std::int64_t>(arena_->committed_bytes());
}

// The slot before the first one is scratch.
std::byte* SlotRegistry::slot_base(SlotId slot) const {
  SLACKWATER_CHECK(contains(slot), "slot {} of {} in {}", slot.value(), num_slots_, options_.name);
  return arena_->base() + slot_stride_ * (std::int64_t{slot.value()} + 1);
}

std::span<std::byte> SlotRegistry::slot(SlotId slot) const {
  if (options_.entries.empty()) return {};
  return {slot_base(slot), static_cast<std::size_t>(slot_stride_)};
}

PageTable SlotRegistry::view(std::string_view name) const {
  for (std::size_t i = 0; i < options_.entries.size(); ++i) {
    if (options_.entries[i].name != name) continue;
    return {.base = arena_->base() + slot_stride_ + offsets_[i],
            .slot_stride = slot_stride_,
            .layer_stride = options_.entries[i].bytes_per_layer,
            .num_slots = num_slots_,
            .tokens_per_block = 0,
            .slots = {}};
  }
  return {};
}

std::byte* SlotRegistry::address(std::string_view name, SlotId slot, std::int32_t layer) const {
  SLACKWATER_CHECK(contains(slot), "slot {} of {} in {}", slot.value(), num_slots_, options_.name);
  const PageTable table = view(name);
  SLACKWATER_CHECK(table.base != nullptr, "no entry '{}' in {}", name, options_.name);
  return layer_address(table, slot, layer);
}

Result<void> SlotRegistry::resize(std::int32_t num_slots) {
  if (num_slots > options_.max_slots) {
    return make_error(ErrorCode::kOutOfRange, "{} slots of {}, which was made for at most {}",
                      num_slots, options_.name, options_.max_slots);
  }
  if (options_.entries.empty()) {
    num_slots_ = num_slots;
    return {};
  }
  stream_->synchronize();
  const auto bytes = static_cast<std::size_t>(slot_stride_ * (std::int64_t{num_slots} + 1));
  SLACKWATER_RETURN_IF_ERROR(arena_->resize(bytes));
  for (std::int32_t slot = num_slots_; slot < num_slots; ++slot) {
    std::byte* const begin = arena_->base() + slot_stride_ * (std::int64_t{slot} + 1);
    std::fill_n(begin, slot_stride_, std::byte{0});
  }
  num_slots_ = num_slots;
  return {};
}

Result<void> SlotRegistry::reserve_save() {
  if (options_.entries.empty()) return {};
  if (num_reserved_ >= max_saves()) {
    return make_error(ErrorCode::kResourceExhausted,
                      "host memory for {} saves of {} bytes in {}, all of them reserved; end a "
                      "request, or give more",
                      max_saves(), slot_stride_, options_.name);
  }
  ++num_reserved_;
  return {};
}

void SlotRegistry::release_save() {
  if (options_.entries.empty()) return;
  SLACKWATER_CHECK(num_reserved_ > num_saved(), "{} reservations, {} saved slots in {}",
                   num_reserved_, num_saved(), options_.name);
  --num_reserved_;
}

std::int64_t SlotRegistry::num_saved() const {
  return saves_ == nullptr ? 0 : saves_->slots().num_occupied();
}

void SlotRegistry::copy(std::byte* to, const std::byte* from, std::int64_t bytes) {
  device::CopyBatch batch;
  batch.piece_bytes = static_cast<std::size_t>(bytes);
  batch.pieces.push_back({to, from});
  stream_->copy(std::move(batch));
}

SavedSlot SlotRegistry::save(SlotId slot, const Digest128& owner, bool with_records,
                             device::Stream& stream) {
  SavedSlot saved;
  saved.owner = owner;
  if (options_.entries.empty()) return saved;
  const auto grant = saves_ == nullptr ? std::nullopt : saves_->allocate();
  SLACKWATER_CHECK(grant.has_value(), "no room to save slot {} of {}: {} of {} saves reserved",
                   slot.value(), options_.name, num_reserved_, max_saves());
  saved.place = grant->slot;
  saved.bytes = with_records ? slot_stride_ : durable_bytes_;
  if (SLACKWATER_MUTANT(hybrid_forget_one_buffer)) {
    saved.bytes = offsets_.back();
  }
  if (!SLACKWATER_MUTANT(hybrid_save_before_step)) stream_->wait(stream.mark());
  stream_->wait(grant->ready);
  ++counters_.saves;
  counters_.bytes_saved += saved.bytes;
  if (saved.bytes > 0 && !SLACKWATER_MUTANT(hybrid_skip_save)) {
    copy(saves_->address(0, saved.place), slot_base(slot), saved.bytes);
  }
  saved.copied = stream_->record();
  // Whoever gets the slot next writes behind this.
  stream.wait(saved.copied);
  return saved;
}

void SlotRegistry::drop(const SavedSlot& saved) {
  if (options_.entries.empty()) return;
  ++counters_.drops;
  saves_->release(saved.place, device::settled(saved.copied));
}

std::span<const std::byte> SlotRegistry::saved_bytes(const SavedSlot& saved) const {
  if (options_.entries.empty()) return {};
  SLACKWATER_CHECK(saved.copied.status() == device::EventStatus::kSucceeded,
                   "saved bytes of {} whose copy is {}", options_.name,
                   to_string(saved.copied.status()));
  return {saves_->address(0, saved.place), static_cast<std::size_t>(saved.bytes)};
}

bool SlotRegistry::can_adopt(std::int64_t bytes) const {
  return bytes == slot_stride_ || bytes == durable_bytes_;
}

SavedSlot SlotRegistry::adopt(std::span<const std::byte> bytes, const Digest128& owner) {
  SavedSlot saved;
  saved.owner = owner;
  if (options_.entries.empty()) return saved;
  const auto grant = saves_ == nullptr ? std::nullopt : saves_->allocate();
  SLACKWATER_CHECK(grant.has_value() && can_adopt(std::ssize(bytes)),
                   "no room for {} saved bytes in {}: {} of {} saves reserved", bytes.size(),
                   options_.name, num_reserved_, max_saves());
  saved.place = grant->slot;
  saved.bytes = std::ssize(bytes);
  grant->ready.wait();
  std::copy(bytes.begin(), bytes.end(), saves_->address(0, saved.place));
  return saved;
}

std::optional<std::int64_t> SlotRegistry::offset_of(std::string_view name) const {
  for (std::size_t i = 0; i < options_.entries.size(); ++i) {
    if (options_.entries[i].name == name) return offsets_[i];
  }
  return std::nullopt;
}

// Every source is read before it is written: those first that nobody reads any more, and of a ring
// one by way of the scratch slot.
void SlotRegistry::relocate(std::span<const SlotRelocation> relocations) {
  constexpr SlotId kScratch{-1};
  waiting_.assign(relocations.begin(), relocations.end());
  counters_.relocations += std::ssize(relocations);
  const auto address = [&](SlotId slot) {
    return slot == kScratch ? arena_->base() : slot_base(slot);
  };
  while (!waiting_.empty()) {
    const auto is_free = [&](const SlotRelocation& move) {
      return std::none_of(waiting_.begin(), waiting_.end(),
                          [&](const SlotRelocation& other) { return other.from == move.to; });
    };
    auto next = std::find_if(waiting_.begin(), waiting_.end(), is_free);
    if (SLACKWATER_MUTANT(hybrid_relocate_in_order)) next = waiting_.begin();
    if (next == waiting_.end()) {
      SlotRelocation& first = waiting_.front();
      copy(address(kScratch), address(first.from), slot_stride_);
      first.from = kScratch;
      continue;
    }
    copy(address(next->to), address(next->from), slot_stride_);
    waiting_.erase(next);
  }
}

void SlotRegistry::reset(SlotId slot) {
  ++counters_.resets;
  stream_->run([this, base = slot_base(slot)] {
    for (std::size_t i = 0; i < options_.entries.size(); ++i) {
      const SlotEntry& entry = options_.entries[i];
      if (!entry.reset) continue;
      entry.reset({base + offsets_[i], static_cast<std::size_t>(bytes_of(entry))});
    }
    return true;
  });
}

void SlotRegistry::apply(const SlotChanges& changes, device::Stream& stream, Applied& applied) {
  applied.restored.clear();
  applied.moved = {};
  if (changes.is_empty() || options_.entries.empty()) {
    applied.restored.resize(changes.restores.size());
    return;
  }
  stream_->wait(stream.mark());
  const auto restore_all = [&] {
    for (const SlotRestore& restore : changes.restores) {
      stream_->wait(restore.saved.copied);
      if (restore.saved.bytes > 0) {
        copy(slot_base(restore.to), saves_->address(0, restore.saved.place), restore.saved.bytes);
      }
      if (SLACKWATER_MUTANT(hybrid_restore_wrong_layer)) {
        const std::int64_t first = offsets_.back();
        copy(slot_base(restore.to) + first,
             saves_->address(0, restore.saved.place) + first +
                 options_.entries.back().bytes_per_layer,
             bytes_of(options_.entries.back()) - options_.entries.back().bytes_per_layer);
      }
      ++counters_.restores;
      counters_.bytes_restored += restore.saved.bytes;
      const Event read = stream_->record();
      const std::array<Event, 2> both = {restore.saved.copied, read};
      applied.restored.push_back(device::merge(both));
      saves_->release(restore.saved.place, SLACKWATER_MUTANT(hybrid_saved_bytes_reused)
                                               ? Event()
                                               : device::settled(read));
    }
  };
  if (SLACKWATER_MUTANT(hybrid_restore_before_relocation)) restore_all();
  if (!changes.relocations.empty()) {
    relocate(changes.relocations);
    applied.moved = stream_->record();
  }
  if (!SLACKWATER_MUTANT(hybrid_restore_before_relocation)) restore_all();
  for (const SlotId slot : changes.resets) reset(slot);
  stream.wait(stream_->mark());
}

void SlotRegistry::synchronize() {
  if (stream_ != nullptr) stream_->synchronize();
}

std::string SlotRegistry::describe() const {
  return fmt::format("{}: {} slots of {} bytes in {} entries, {} of {} saves reserved, {} used",
                     options_.name, num_slots_, entry_bytes_, options_.entries.size(),
                     num_reserved_, max_saves(), num_saved());
}

void SlotRegistry::check_invariants() const {
  if (options_.entries.empty()) return;
  SLACKWATER_CHECK(static_cast<std::int64_t>(arena_->committed_bytes()) >=
                       slot_stride_ * (std::int64_t{num_slots_} + 1),
                   "I1: {} bytes for {} slots of {}", arena_->committed_bytes(), num_slots_,
                   slot_stride_);
  SLACKWATER_CHECK(num_saved() <= num_reserved_ && num_reserved_ <= max_saves(),
                   "I2: {} saved, {} reserved of {}", num_saved(), num_reserved_, max_saves());
  if (saves_ != nullptr) saves_->check_invariants();
}

}  // namespace slackwater::hybrid
