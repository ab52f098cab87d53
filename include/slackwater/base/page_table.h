#ifndef SLACKWATER_BASE_PAGE_TABLE_H_
#define SLACKWATER_BASE_PAGE_TABLE_H_

#include <cstddef>
#include <cstdint>
#include <span>

#include "slackwater/base/ids.h"

namespace slackwater {

// Where the pages of one (layer group, role) lie, and which of them one sequence uses.
//
// Cache and storage hand it out; hybrid, the engine and the solo loop make kernel views of it
// (kernels/views.h). Plain bytes: whoever builds the view knows the element type.
//
// Source: ARCHITECTURE.md; slot-major layout, so that all buffers of one slot
// lie together and a page moves by one contiguous copy.
//
// The bytes of layer `l` (0-based within its group) in slot `s` begin at
//   base + s * slot_stride + l * layer_stride.
// An index table entry is the slot of that block; for a recurrent group the table has one entry.
struct PageTable {
  std::byte* base = nullptr;          // slot 0, layer 0 of this role
  std::int64_t slot_stride = 0;       // bytes from one slot to the next
  std::int64_t layer_stride = 0;      // bytes from one layer to the next within a slot
  std::int32_t num_slots = 0;         // bound of every entry of `slots`
  std::int32_t tokens_per_block = 0;  // 0 for a recurrent group
  std::span<const SlotId> slots;      // [num_blocks], block ordinal -> slot
};

// Where layer `layer` of slot `slot` begins. In 64 bits whatever the strides: pools are larger than
// 2^32 bytes.
inline std::byte* layer_address(const PageTable& table, SlotId slot, std::int32_t layer = 0) {
  return table.base + std::int64_t{slot.value()} * table.slot_stride +
         std::int64_t{layer} * table.layer_stride;
}

}  // namespace slackwater

#endif  // SLACKWATER_BASE_PAGE_TABLE_H_
