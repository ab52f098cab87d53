#ifndef SLACKWATER_HYBRID_SLOT_REGISTRY_H_
#define SLACKWATER_HYBRID_SLOT_REGISTRY_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/base/digest.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/base/page_table.h"
#include "slackwater/device/device.h"
#include "slackwater/storage/pool_group.h"

namespace slackwater::hybrid {

// One thing that is kept for every slot of a recurrent pool, beside the pool.
struct SlotEntry {
  std::string name;                  // "kda_v_cache"; once in a registry
  std::int64_t bytes_per_layer = 0;  // of one slot
  std::int32_t num_layers = 1;       // one after another within a slot
  // What a slot holds for somebody who has no state yet; runs on a stream. Empty: whatever is
  // there, because nobody reads it before it is written.
  std::function<void(std::span<std::byte> bytes)> reset;
  // Unreachable while no drafts are pending: a save after a commit leaves it out.
  bool is_record = false;
  std::string group_tag = "target";  // whose recurrent pool it is kept for
};

// Bytes of one slot of these entries, and so of one save, padding included.
std::int64_t save_bytes_of(std::span<const SlotEntry> entries);

// kInvalidArgument for entries without bytes or layers, or two of one name.
Result<void> check_entries(std::span<const SlotEntry> entries, std::string_view registry);

// What a slot held, in host memory, until it is restored or dropped.
struct SavedSlot {
  SlotId place;          // in the registry's host memory
  device::Event copied;  // done when all bytes are there; failed: there are none
  std::int64_t bytes = 0;
  Digest128 owner;  // certificate of whom it belongs to
};

struct SlotRelocation {
  SlotId from;
  SlotId to;
};

struct SlotRestore {
  SavedSlot saved;
  SlotId to;
};

// What one batch does to the slots. Destinations are distinct; a slot may be the source of one and
// the destination of another.
struct SlotChanges {
  std::vector<SlotRelocation> relocations;
  std::vector<SlotRestore> restores;
  std::vector<SlotId> resets;

  bool is_empty() const { return relocations.empty() && restores.empty() && resets.empty(); }
  void clear();
};

struct SlotRegistryOptions {
  std::string name;  // for error texts and streams
  std::vector<SlotEntry> entries;
  std::int32_t num_slots = 0;
  std::int32_t max_slots = 0;   // addresses are kept for so many; 0: num_slots
  std::int64_t save_bytes = 0;  // host memory for saved slots: as many as fit
  // Of the device's memory and the host's; 0: 2 MiB, and 4 KiB for saves smaller than that.
  std::int64_t grain_bytes = 0;
  bool prefers_pinned = true;  // host memory that the device copies from without a detour
};

struct SlotRegistryCounters {
  std::int64_t saves = 0;
  std::int64_t restores = 0;
  std::int64_t relocations = 0;
  std::int64_t resets = 0;
  std::int64_t drops = 0;
  std::int64_t bytes_saved = 0;
  std::int64_t bytes_restored = 0;
};

// The one list of everything that is indexed by the slots of a recurrent pool and lies beside it.
// Whatever is an entry here follows its request: every operation goes over all entries, because a
// slot's entries are one piece of memory. Adding a buffer is adding an entry.
//
// All copies run on a stream of the registry's own, ordered with the steps' stream by events: a
// failed copy is told apart from a failed step.
//
// Source: the per-slot buffers of TensorRT-LLM's replay path and their one list
// (_kda_replay_state_buffers), kda_replay.md 1.3, 3.3 and 9.
// Invariants (check_invariants):
//   I1  base() never changes; slots [0, num_slots) are backed by memory.
//   I2  saved slots in use <= reservations <= max_saves: whoever has reserved can save.
// Ownership: owns the entries' memory and that of the saved slots; borrows the device. Who owns
// which slot is the pool's to know.
// Threads: one thread; the work runs in the order of the streams.
// Errors: create: kInvalidArgument for entries without bytes or two of one name, for host memory
// that holds no whole slot; as Device. resize: kOutOfRange beyond max_slots, kResourceExhausted.
// Slots past num_slots() are CHECKs here: who calls has looked.
// Cost: save and restore copy bytes_per_slot(), a relocation as well; a reset what its entries
// write. What nobody asks for costs nothing.
class SlotRegistry {
 public:
  static Result<std::unique_ptr<SlotRegistry>> create(device::Device& device,
                                                      SlotRegistryOptions options);
  ~SlotRegistry();

  std::int32_t num_slots() const { return num_slots_; }
  std::int32_t max_slots() const { return options_.max_slots; }
  bool contains(SlotId slot) const { return 0 <= slot.value() && slot.value() < num_slots_; }
  // Bytes of one slot, padding between entries left out; 0 without entries.
  std::int64_t bytes_per_slot() const { return entry_bytes_; }
  std::int64_t slot_stride() const { return slot_stride_; }
  std::int64_t bytes() const;  // committed, of the device
  const std::vector<SlotEntry>& entries() const { return options_.entries; }

  // Where an entry lies: layer l of slot s at base + s * slot_stride + l * layer_stride. A null
  // base where there is no such entry.
  PageTable view(std::string_view name) const;
  std::byte* address(std::string_view name, SlotId slot, std::int32_t layer = 0) const;
  // All of a slot.
  std::span<std::byte> slot(SlotId slot) const;

  // More or fewer slots; what stays keeps its contents, what is new is zero. Waits for the
  // registry's own work; nobody has work queued on the slots that go.
  Result<void> resize(std::int32_t num_slots);

  // The right to one saved slot at a time, until it is given back.
  Result<void> reserve_save();
  void release_save();
  std::int32_t num_reserved() const { return num_reserved_; }
  std::int32_t max_saves() const { return saves_ == nullptr ? 0 : saves_->num_slots(); }
  std::int64_t bytes_per_save() const { return slot_stride_; }
  std::int64_t num_saved() const;

  // Queues a copy of the slot to host memory, after what is queued on `stream` and before whatever
  // is queued there later. `with_records` false leaves out what is unreachable. CHECK: reserved.
  SavedSlot save(SlotId slot, const Digest128& owner, bool with_records, device::Stream& stream);
  // Makes all changes as one permutation, after what is queued on `stream` and before whatever is
  // queued there later: every relocation's source is read before anybody writes to it. What was
  // saved has arrived in its slot when its `restored` event says so, and its bytes go back with
  // that. Relocations share the fate of `moved`.
  struct Applied {
    std::vector<device::Event> restored;  // [restores]
    device::Event moved;                  // null without relocations
  };
  void apply(const SlotChanges& changes, device::Stream& stream, Applied& applied);
  // Gives up what was saved. The memory goes back when the copy has ended.
  void drop(const SavedSlot& saved);

  // The bytes of what was saved. CHECK: its copy has succeeded.
  std::span<const std::byte> saved_bytes(const SavedSlot& saved) const;
  // Whether a save has so many bytes, with its records or without.
  bool can_adopt(std::int64_t bytes) const;
  // A saved slot made of the bytes of one that was saved elsewhere, with the same entries; waits
  // for whoever had the memory before. CHECK: reserved, and can_adopt().
  SavedSlot adopt(std::span<const std::byte> bytes, const Digest128& owner);
  // Where an entry lies within a saved slot; nothing where there is no such entry.
  std::optional<std::int64_t> offset_of(std::string_view name) const;

  const SlotRegistryCounters& counters() const { return counters_; }
  void synchronize();
  std::string describe() const;
  void check_invariants() const;

 private:
  SlotRegistry(device::Device& device, SlotRegistryOptions options);
  void lay_out();
  Result<void> make_saves();
  void relocate(std::span<const SlotRelocation> relocations);
  void copy(std::byte* to, const std::byte* from, std::int64_t bytes);
  void reset(SlotId slot);
  std::byte* slot_base(SlotId slot) const;

  device::Device& device_;
  SlotRegistryOptions options_;
  std::vector<std::int64_t> offsets_;  // [entries] within a slot
  std::int64_t entry_bytes_ = 0;
  std::int64_t durable_bytes_ = 0;  // of a slot, before the records
  std::int64_t slot_stride_ = 0;
  std::int32_t num_slots_ = 0;
  std::int32_t num_reserved_ = 0;
  std::unique_ptr<device::Arena> arena_;       // [num_slots + 1]: the first one is a scratch slot
  std::unique_ptr<storage::PoolGroup> saves_;  // host memory; null without
  std::vector<SlotRelocation> waiting_;        // of a permutation; kept for its memory
  SlotRegistryCounters counters_;
  std::unique_ptr<device::Stream> stream_;  // last: its work ends while all of it is there
};

}  // namespace slackwater::hybrid

#endif  // SLACKWATER_HYBRID_SLOT_REGISTRY_H_
