#include "slackwater/storage/copy_engine.h"

#include <algorithm>
#include <string>

#include "slackwater/base/mutant.h"
#include "slackwater/base/thread_pool.h"

namespace slackwater::storage {

Result<std::unique_ptr<CopyEngine>> CopyEngine::create(device::Device& device,
                                                       const std::string& name, int num_threads) {
  if (num_threads != 1 && num_threads != 2) {
    return make_error(ErrorCode::kInvalidArgument, "{} copy threads; use 1 or 2", num_threads);
  }
  auto engine = std::make_unique<CopyEngine>();
  for (int i = 0; i < num_threads; ++i) {
    SLACKWATER_ASSIGN_OR_RETURN(auto stream, device.make_stream(name + " " + std::to_string(i)));
    engine->streams_.push_back(std::move(stream));
  }
  return engine;
}

device::Event CopyEngine::submit(std::span<const device::Event> before,
                                 std::span<const device::Event> sources,
                                 std::span<const ColdPair> pages, const Queue& queue) {
  const int num_shares = static_cast<int>(
      std::min<std::size_t>(streams_.size(), std::max<std::size_t>(1, pages.size())));
  std::vector<device::Event> ends;
  for (int share = 0; share < num_shares; ++share) {
    device::Stream& stream = *streams_[static_cast<std::size_t>(share)];
    for (const device::Event& event : before) {
      if (!SLACKWATER_MUTANT(copy_skips_wait)) stream.wait(event);
    }
    for (const device::Event& source : sources) {
      stream.wait(source);
      if (source.status() == device::EventStatus::kSucceeded) continue;
      stream.run([source] {
        return source.status() == device::EventStatus::kSucceeded ||
               SLACKWATER_MUTANT(copy_of_a_failed_page);
      });
    }
    const ItemRange range = split_items(std::ssize(pages), share, num_shares);
    {
      // What a codec asks is its own affair.
      const device::WitnessPause pause;
      queue(stream, pages.subspan(static_cast<std::size_t>(range.begin),
                                  static_cast<std::size_t>(range.end - range.begin)));
    }
    ends.push_back(stream.record());
  }
  return device::merge(ends);
}

void CopyEngine::synchronize() {
  for (const auto& stream : streams_) stream->synchronize();
}

}  // namespace slackwater::storage
