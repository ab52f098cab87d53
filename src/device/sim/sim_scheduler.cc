#include "device/sim/sim_scheduler.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "slackwater/base/check.h"

namespace slackwater::device {
namespace {

// Portions per look: never, rarely, often, nearly everything at once.
constexpr std::uint64_t kEagerness[] = {1, 2, 4, 64};

// Streams are favoured and starved by these odds, drawn again after this many portions.
constexpr std::uint64_t kWeights[] = {1, 8, 64};
constexpr int kPortionsPerWeights = 48;

// A delayed copy lets this many portions of other work pass.
constexpr int kDelayPortions = 64;

}  // namespace

EventStatus SimEvent::status() {
  if (EventState::status() == EventStatus::kPending) scheduler_.advance();
  return EventState::status();
}

EventStatus SimEvent::wait() {
  while (EventState::status() == EventStatus::kPending) {
    SLACKWATER_CHECK(!scheduler_.is_running(), "an item waits for {}", waker());
    SLACKWATER_CHECK(scheduler_.run_one(), "nothing left to run, and {} has not come", waker());
  }
  return EventState::status();
}

EventStatus SimEvent::wait_for(Nanoseconds) {
  while (EventState::status() == EventStatus::kPending && scheduler_.run_one()) {
  }
  return EventState::status();
}

SimStream::SimStream(SimScheduler& scheduler, std::string name)
    : Stream(std::move(name)), scheduler_(scheduler) {
  scheduler_.add(*this);
}

SimStream::~SimStream() {
  while (!tasks_.empty()) {
    SLACKWATER_CHECK(scheduler_.run_one(), "stream {} ends with work that cannot run", name());
  }
  scheduler_.remove(*this);
}

void SimStream::wait(const Event& event) { push({Wait{event}}); }

void SimStream::run(Item item) { push({std::move(item)}); }

void SimStream::copy(CopyBatch batch) {
  const CopyFault fault = scheduler_.next_copy_fault();
  const std::size_t total = batch.piece_bytes * batch.pieces.size();
  // Backends may copy the pieces in any order.
  for (std::size_t i = batch.pieces.size(); i > 1; --i) {
    std::swap(batch.pieces[i - 1], batch.pieces[scheduler_.draw(i)]);
  }
  Copy copy{std::move(batch), total};
  if (fault == CopyFault::kRefuse || fault == CopyFault::kTear) {
    copy.fails = true;
    copy.total_bytes = fault == CopyFault::kTear && total > 0 ? scheduler_.draw(total) : 0;
  }
  push({std::move(copy), fault == CopyFault::kDelay ? kDelayPortions : 0});
}

Event SimStream::record(bool keeps_failure) {
  EventSource source(Event(new SimEvent(scheduler_, name() + " stream")));
  Event event = source.event();
  push({Record{std::move(source), keeps_failure}});
  return event;
}

void SimStream::push(Task task) {
  tasks_.push_back(std::move(task));
  scheduler_.advance();
}

bool SimStream::is_runnable() {
  while (!tasks_.empty()) {
    const Wait* wait = std::get_if<Wait>(&tasks_.front().what);
    if (wait == nullptr) return true;
    if (!wait->event.is_done()) return false;
    tasks_.pop_front();
  }
  return false;
}

void SimStream::run_portion() {
  auto& what = tasks_.front().what;
  if (const Item* item = std::get_if<Item>(&what)) {
    if (!(*item)()) has_failed_ = true;
  } else if (Copy* copy = std::get_if<Copy>(&what)) {
    if (!continue_copy(*copy)) return;
    if (copy->fails) has_failed_ = true;
  } else {
    Record& record = std::get<Record>(what);
    const bool failed = has_failed_;
    has_failed_ = failed && record.keeps_failure;
    record.source.complete(failed ? EventStatus::kFailed : EventStatus::kSucceeded);
  }
  tasks_.pop_front();
}

// Copies some bytes, in the middle of a piece or over many; true when it has ended.
bool SimStream::continue_copy(Copy& copy) {
  const std::size_t left = copy.total_bytes - copy.copied_bytes;
  const bool is_last = left == 0 || scheduler_.draw(3) == 0;
  std::size_t portion = is_last ? left : 1 + scheduler_.draw(left);
  while (portion > 0) {
    const std::size_t index = copy.copied_bytes / copy.batch.piece_bytes;
    const std::size_t offset = copy.copied_bytes % copy.batch.piece_bytes;
    const std::size_t bytes = std::min(portion, copy.batch.piece_bytes - offset);
    const CopyPiece& piece = copy.batch.pieces[index];
    std::memcpy(piece.target + offset, piece.source + offset, bytes);
    copy.copied_bytes += bytes;
    portion -= bytes;
  }
  return copy.copied_bytes == copy.total_bytes;
}

SimScheduler::SimScheduler(SimOptions options)
    : options_(std::move(options)),
      random_(options_.seed),
      eagerness_(kEagerness[random_() % std::size(kEagerness)]) {
  ledger_->set_budget(MemoryKind::kDevice, options_.device_bytes);
  ledger_->set_budget(MemoryKind::kPinnedHost, options_.pinned_host_bytes);
  ledger_->set_budget(MemoryKind::kPageableHost, options_.pageable_host_bytes);
}

void SimScheduler::add(SimStream& stream) {
  entries_.push_back({&stream, kWeights[draw(std::size(kWeights))]});
}

void SimScheduler::remove(SimStream& stream) {
  std::erase_if(entries_, [&](const Entry& entry) { return entry.stream == &stream; });
}

void SimScheduler::draw_weights() {
  for (Entry& entry : entries_) entry.weight = kWeights[draw(std::size(kWeights))];
  portions_until_weights_ = kPortionsPerWeights;
}

// A runnable stream by weight; a sleeping one only when no other is runnable, if at all.
SimStream* SimScheduler::choose(Sleepers sleepers) {
  if (--portions_until_weights_ <= 0) draw_weights();
  std::vector<Entry> awake;
  std::vector<Entry> asleep;
  std::uint64_t total = 0;
  for (const Entry& entry : entries_) {
    if (!entry.stream->is_runnable()) continue;
    if (entry.stream->is_asleep()) {
      entry.stream->nap();
      asleep.push_back(entry);
    } else {
      awake.push_back(entry);
      total += entry.weight;
    }
  }
  if (awake.empty()) {
    if (asleep.empty() || sleepers == Sleepers::kStay) return nullptr;
    SimStream* stream = asleep[draw(asleep.size())].stream;
    stream->wake();
    return stream;
  }
  std::uint64_t ticket = draw(total);
  for (const Entry& entry : awake) {
    if (ticket < entry.weight) return entry.stream;
    ticket -= entry.weight;
  }
  return awake.back().stream;
}

bool SimScheduler::run_one() { return run_portion(Sleepers::kMayWake); }

bool SimScheduler::run_portion(Sleepers sleepers) {
  SLACKWATER_CHECK(!is_running_, "simulated work runs other simulated work");
  const WitnessPause pause;
  is_running_ = true;
  SimStream* const stream = choose(sleepers);
  if (stream != nullptr) stream->run_portion();
  is_running_ = false;
  return stream != nullptr;
}

void SimScheduler::advance() {
  if (is_running_) return;
  std::uint64_t portions = draw(eagerness_);
  while (portions > 0 && run_portion(Sleepers::kStay)) --portions;
}

CopyFault SimScheduler::next_copy_fault() {
  const std::int64_t index = num_copies_++;
  return options_.copy_fault ? options_.copy_fault(index) : CopyFault::kNone;
}

bool SimScheduler::refuses_commit() {
  const std::int64_t index = num_commits_++;
  return options_.refuse_commit && options_.refuse_commit(index);
}

}  // namespace slackwater::device
