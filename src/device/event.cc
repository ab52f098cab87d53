#include "slackwater/device/event.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "slackwater/base/check.h"

namespace slackwater::device {
namespace {

// Several events as one.
// An event that follows from others, and remembers how it ended: they may follow from others again,
// and be asked by many.
class DerivedState : public EventState {
 public:
  using EventState::EventState;

  EventStatus status() final {
    return remember([this] { return look(); });
  }
  EventStatus wait() final {
    return remember([this] { return look_until_done(); });
  }
  EventStatus wait_for(Nanoseconds timeout) final {
    return remember([&] { return look_for(timeout); });
  }

 private:
  virtual EventStatus look() = 0;
  virtual EventStatus look_until_done() = 0;
  virtual EventStatus look_for(Nanoseconds timeout) = 0;

  template <class Look>
  EventStatus remember(const Look& look) {
    EventStatus known = end_.load(std::memory_order_acquire);
    if (known != EventStatus::kPending) return known;
    known = look();
    if (known != EventStatus::kPending) end_.store(known, std::memory_order_release);
    return known;
  }

  std::atomic<EventStatus> end_{EventStatus::kPending};
};

class MergedState final : public DerivedState {
 public:
  explicit MergedState(std::vector<Event> events)
      : DerivedState("the work of several events"), events_(std::move(events)) {}

  std::span<const Event> parts() const override { return events_; }
  bool is_settled() const override {
    return std::all_of(events_.begin(), events_.end(),
                       [](const Event& event) { return event.is_settled(); });
  }

 private:
  EventStatus look() override {
    return combine([](const Event& event) { return event.status(); });
  }
  EventStatus look_until_done() override {
    return combine([](const Event& event) { return event.wait(); });
  }
  EventStatus look_for(Nanoseconds timeout) override {
    const auto deadline = std::chrono::steady_clock::now() + timeout;
    return combine([&](const Event& event) {
      const Nanoseconds left = deadline - std::chrono::steady_clock::now();
      return event.wait_for(std::max(left, Nanoseconds{0}));
    });
  }

  template <class Look>
  EventStatus combine(Look look) const {
    EventStatus all = EventStatus::kSucceeded;
    for (const Event& event : events_) {
      const EventStatus one = look(event);
      if (one == EventStatus::kPending) return one;
      if (one == EventStatus::kFailed) all = one;
    }
    return all;
  }

  const std::vector<Event> events_;
};

// The end of an event, without its fate.
class SettledState final : public DerivedState {
 public:
  explicit SettledState(Event event)
      : DerivedState(std::string(event.waker())), event_(std::move(event)) {}

  bool is_settled() const override { return true; }

 private:
  EventStatus look() override { return without_fate(event_.status()); }
  EventStatus look_until_done() override { return without_fate(event_.wait()); }
  EventStatus look_for(Nanoseconds timeout) override {
    return without_fate(event_.wait_for(timeout));
  }

  static EventStatus without_fate(EventStatus status) {
    return status == EventStatus::kFailed ? EventStatus::kSucceeded : status;
  }

  const Event event_;
};

}  // namespace

std::string_view to_string(EventStatus status) {
  switch (status) {
    case EventStatus::kPending: return "pending";
    case EventStatus::kSucceeded: return "succeeded";
    case EventStatus::kFailed: return "failed";
  }
  return "unknown";
}

EventStatus EventState::status() { return status_.load(std::memory_order_acquire); }

EventStatus EventState::wait() {
  status_.wait(EventStatus::kPending, std::memory_order_acquire);
  return status_.load(std::memory_order_acquire);
}

EventStatus EventState::wait_for(Nanoseconds timeout) {
  // A futex wait with a time-out is not in the standard library; deadlines here are for disks
  // and shutdown, where a millisecond is nothing.
  constexpr auto kNap = std::chrono::microseconds(200);
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  EventStatus now = status();
  while (now == EventStatus::kPending && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(kNap);
    now = status();
  }
  return now;
}

void EventState::complete(EventStatus status) {
  SLACKWATER_CHECK(status != EventStatus::kPending, "completed as pending by {}", waker_);
  const EventStatus before = status_.exchange(status, std::memory_order_acq_rel);
  SLACKWATER_CHECK(before == EventStatus::kPending, "completed twice by {}", waker_);
  status_.notify_all();
}

void Event::release() const {
  if (state_->references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete state_;
}

Event merge(std::span<const Event> events) {
  std::vector<Event> kept;
  bool has_failed = false;
  const auto keep = [&](const Event& event) {
    const EventStatus status = event.status();
    if (status == EventStatus::kSucceeded || (status == EventStatus::kFailed && has_failed)) return;
    if (status == EventStatus::kFailed) has_failed = true;
    const bool is_new = kept.empty() || witnessed([&] {
                          return std::find(kept.begin(), kept.end(), event) == kept.end();
                        });
    if (is_new) kept.push_back(event);
  };
  for (const Event& event : events) {
    if (event.is_null()) continue;
    const std::span<const Event> parts = event.state_->parts();
    // Where another one had more, this one stands for them.
    const std::size_t count = witnessed([&] { return parts.size(); });
    for (std::size_t i = 0; i < count; ++i) keep(i < parts.size() ? parts[i] : event);
    if (count == 0) keep(event);
  }
  if (kept.empty()) return {};
  if (kept.size() == 1) return kept.front();
  return Event(new MergedState(std::move(kept)));
}

Event settled(const Event& event) {
  if (event.is_done()) return {};
  const bool is_settled = witnessed([&] { return event.state_->is_settled(); });
  return is_settled ? event : Event(new SettledState(event));
}

void EventSource::complete(EventStatus status) {
  SLACKWATER_CHECK(is_open_, "there is no event to complete");
  is_open_ = false;
  // A copy of our own: whoever waits may destroy this source once the status is there.
  const Event event = event_;
  event.state_->complete(status);
}

void EventSource::abandon() {
  if (is_open_) complete(EventStatus::kFailed);
}

}  // namespace slackwater::device
