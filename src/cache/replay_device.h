#ifndef SLACKWATER_CACHE_REPLAY_DEVICE_H_
#define SLACKWATER_CACHE_REPLAY_DEVICE_H_

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "slackwater/device/device.h"
#include "slackwater/device/witness.h"
#include "slackwater/storage/cold_page_codec.h"

namespace slackwater::cache {

// A device that does nothing and has always done it: work that is queued is dropped, memory is
// addresses, every event has succeeded. With somebody who recalls beside the caller, that is
// enough.
//
// Invariants: as Device; events are never null.
// Ownership: outlives what it hands out.
// Threads: any; it has no state.
// Errors: kResourceExhausted where the system has no addresses left.
class ReplayDevice final : public device::Device {
 public:
  std::string_view name() const override { return "replay"; }
  Result<std::unique_ptr<device::Arena>> reserve_arena(device::MemoryKind kind, std::size_t bytes,
                                                       std::size_t grain_bytes) override;
  std::unique_ptr<device::Handover> make_handover(device::MemoryKind) override { return nullptr; }
  Result<std::unique_ptr<device::Stream>> make_stream(std::string name) override;
  device::EventSource make_event(std::string waker) override;
  void set_budget(device::MemoryKind, std::size_t) override {}
  device::MemoryUsage usage(device::MemoryKind) const override { return {}; }
};

// Answers what a call had learned, in the order in which it did.
//
// Invariants:
//   I1  questions past the last answer are told that all is well, and counted.
// Ownership: views the answers.
// Threads: one.
// Errors: none.
class Recollection final : public device::Witness {
 public:
  explicit Recollection(std::span<const std::uint8_t> answers) : Witness(true), answers_(answers) {}

  std::uint64_t recall() override;
  void note(std::uint64_t) override {}

  // Whether everything was asked, and nothing else.
  bool is_exhausted() const { return next_ == answers_.size() && num_missing_ == 0; }
  std::size_t num_missing() const { return num_missing_; }
  std::size_t num_left() const { return answers_.size() - next_; }

 private:
  const std::span<const std::uint8_t> answers_;
  std::size_t next_ = 0;
  std::size_t num_missing_ = 0;
};

// Knows how large the blobs of another codec were.
class RecalledCodec final : public storage::ColdPageCodec {
 public:
  explicit RecalledCodec(std::vector<std::int64_t> bytes) : bytes_(std::move(bytes)) {}

  std::string_view name() const override { return "recalled"; }
  Result<std::int64_t> cold_page_bytes(LayerGroupId group, const storage::SlotSizes&) override;
  void encode(device::Stream&, LayerGroupId, const storage::PoolGroup&,
              std::span<const storage::ColdPair>) override {}
  void decode(device::Stream&, LayerGroupId, const storage::PoolGroup&,
              std::span<const storage::ColdPair>) override {}

 private:
  const std::vector<std::int64_t> bytes_;  // [layer groups]
};

}  // namespace slackwater::cache

#endif  // SLACKWATER_CACHE_REPLAY_DEVICE_H_
