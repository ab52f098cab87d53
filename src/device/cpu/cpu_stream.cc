#include "device/cpu/cpu_stream.h"

#include <cstring>
#include <utility>

#include "slackwater/base/fp_mode.h"

namespace slackwater::device {
namespace {

void copy_pieces(const CopyBatch& batch) {
  for (const CopyPiece& piece : batch.pieces) {
    std::memcpy(piece.target, piece.source, batch.piece_bytes);
  }
}

}  // namespace

CpuStream::CpuStream(std::string name)
    : Stream(std::move(name)), worker_([this] { this->work(); }) {}

CpuStream::~CpuStream() {
  {
    const std::scoped_lock lock(mutex_);
    is_closing_ = true;
  }
  not_empty_.notify_one();
  worker_.join();
}

void CpuStream::wait(const Event& event) {
  // A finished event needs no place in the queue: nothing can undo it.
  const WitnessPause pause;
  if (!event.is_done()) push(Wait{event});
}

void CpuStream::run(Item item) { push(std::move(item)); }

void CpuStream::copy(CopyBatch batch) { push(std::move(batch)); }

Event CpuStream::record(bool keeps_failure) {
  {
    // Nothing is under way, so nothing has to be waited for: no event, and no worker woken for it.
    const std::scoped_lock lock(mutex_);
    if (tasks_.empty() && !is_working_ && !has_failed_) return {};
  }
  EventSource source(Event(new EventState(name() + " stream")));
  Event event = source.event();
  push(Record{std::move(source), keeps_failure});
  return event;
}

void CpuStream::push(Task task) {
  {
    const std::scoped_lock lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  not_empty_.notify_one();
}

void CpuStream::work() {
  const FpModeGuard fp_mode;
  std::unique_lock lock(mutex_);
  while (true) {
    not_empty_.wait(lock, [this] { return is_closing_ || !tasks_.empty(); });
    if (tasks_.empty()) return;
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    is_working_ = true;
    lock.unlock();
    execute(task);
    lock.lock();
    is_working_ = false;
  }
}

void CpuStream::execute(Task& task) {
  if (const Wait* wait = std::get_if<Wait>(&task)) {
    wait->event.wait();
  } else if (const Item* item = std::get_if<Item>(&task)) {
    if (!(*item)()) has_failed_ = true;
  } else if (const CopyBatch* batch = std::get_if<CopyBatch>(&task)) {
    copy_pieces(*batch);
  } else {
    Record& record = std::get<Record>(task);
    const bool failed = has_failed_;
    has_failed_ = failed && record.keeps_failure;
    record.source.complete(failed ? EventStatus::kFailed : EventStatus::kSucceeded);
  }
}

}  // namespace slackwater::device
