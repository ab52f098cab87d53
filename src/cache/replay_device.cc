#include "cache/replay_device.h"

#include <sys/mman.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "cache/log_format.h"
#include "slackwater/base/numeric.h"

namespace slackwater::cache {
namespace {

using device::EventStatus;

// Addresses that nobody touches, so no memory.
class ReplayArena final : public device::Arena {
 public:
  ReplayArena(void* mapping, std::size_t mapping_bytes, std::size_t reserved, std::size_t grain)
      : mapping_(mapping),
        mapping_bytes_(mapping_bytes),
        base_(reinterpret_cast<std::byte*>(
            round_up(reinterpret_cast<std::uintptr_t>(mapping), std::uintptr_t{grain}))),
        reserved_(reserved),
        grain_(grain) {}
  ~ReplayArena() override { ::munmap(mapping_, mapping_bytes_); }

  std::byte* base() const override { return base_; }
  std::size_t reserved_bytes() const override { return reserved_; }
  std::size_t committed_bytes() const override { return committed_; }
  std::size_t grain_bytes() const override { return grain_; }

 private:
  Result<void> resize_now(std::size_t bytes, device::Handover*) override {
    committed_ = round_up(bytes, grain_);
    return {};
  }

  void* const mapping_;
  const std::size_t mapping_bytes_;
  std::byte* const base_;
  const std::size_t reserved_;
  const std::size_t grain_;
  std::size_t committed_ = 0;
};

class ReplayEvent final : public device::EventState {
 public:
  ReplayEvent() : EventState("a replay") {}
  EventStatus status() override { return EventStatus::kSucceeded; }
  EventStatus wait() override { return EventStatus::kSucceeded; }
  EventStatus wait_for(Nanoseconds) override { return EventStatus::kSucceeded; }
};

device::Event replay_event() { return device::Event(new ReplayEvent()); }

class ReplayStream final : public device::Stream {
 public:
  using Stream::Stream;

  void wait(const device::Event&) override {}
  void run(Item) override {}
  void copy(device::CopyBatch) override {}

 private:
  device::Event record_now() override { return replay_event(); }
  device::Event mark_now() override { return replay_event(); }
};

}  // namespace

Result<std::unique_ptr<device::Arena>> ReplayDevice::reserve_arena(device::MemoryKind,
                                                                   std::size_t bytes,
                                                                   std::size_t grain_bytes) {
  const std::size_t reserved = round_up(bytes, grain_bytes);
  const std::size_t mapped = reserved + grain_bytes;
  // Readable and writable, for builds that poison what is released.
  void* const mapping = ::mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    return make_error(ErrorCode::kResourceExhausted, "no addresses for {} bytes: {}", mapped,
                      std::system_category().message(errno));
  }
  return std::make_unique<ReplayArena>(mapping, mapped, reserved, grain_bytes);
}

Result<std::unique_ptr<device::Stream>> ReplayDevice::make_stream(std::string name) {
  return std::make_unique<ReplayStream>(std::move(name));
}

device::EventSource ReplayDevice::make_event(std::string) {
  return device::EventSource(replay_event());
}

std::uint64_t Recollection::recall() {
  if (next_ == answers_.size()) {
    ++num_missing_;
    return static_cast<std::uint64_t>(EventStatus::kSucceeded);
  }
  const std::uint8_t first = answers_[next_++];
  if (first <= kSmallAnswers) return first - 1u;
  std::uint64_t answer = first & 0x3Fu;
  int shift = 6;
  for (std::uint8_t byte = first; (byte & 0x40) != 0 && next_ < answers_.size() && shift < 66;
       shift += 6) {
    byte = answers_[next_++];
    answer |= std::uint64_t{byte & 0x3Fu} << shift;
  }
  return answer;
}

Result<std::int64_t> RecalledCodec::cold_page_bytes(LayerGroupId group, const storage::SlotSizes&) {
  const auto index = static_cast<std::size_t>(group.value());
  if (index >= bytes_.size()) {
    return make_error(ErrorCode::kInvalidArgument, "layer group {} of {}", group.value(),
                      bytes_.size());
  }
  return bytes_[index];
}

}  // namespace slackwater::cache
