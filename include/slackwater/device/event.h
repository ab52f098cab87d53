#ifndef SLACKWATER_DEVICE_EVENT_H_
#define SLACKWATER_DEVICE_EVENT_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "slackwater/base/clock.h"
#include "slackwater/device/witness.h"

namespace slackwater::device {

// What became of the work an event stands for.
enum class EventStatus : std::uint8_t {
  kPending,    // not finished
  kSucceeded,  // finished, and every byte it promised is there
  kFailed,     // finished, and the bytes it was to write are undefined
};

// "pending", "succeeded", "failed".
std::string_view to_string(EventStatus status);

class Event;

// The shared part of an event: a status that changes once. Backends derive from it.
//
// Invariants:
//   I1  status goes from kPending to kSucceeded or kFailed once, and never changes again.
//   I2  what the work wrote is visible to whoever has seen a status other than kPending.
// Ownership: counted by the Event and EventSource values that point to it.
// Threads: all members may be called from any thread, except as a backend restricts it.
// Errors: none.
class EventState {
 public:
  // `waker` says who completes the event, for the text about a wait that does not end.
  explicit EventState(std::string waker) : waker_(std::move(waker)) {}
  virtual ~EventState() = default;
  EventState(const EventState&) = delete;
  EventState& operator=(const EventState&) = delete;

  virtual EventStatus status();
  // Blocks the calling thread until the event is done.
  virtual EventStatus wait();
  // Blocks until the event is done or `timeout` has passed: kPending then.
  virtual EventStatus wait_for(Nanoseconds timeout);

  // Sets the final status. CHECK: the event is pending and `status` is not.
  void complete(EventStatus status);

  const std::string& waker() const { return waker_; }

  // Whether it can only succeed.
  virtual bool is_settled() const { return false; }
  // The events this one is merged from; empty for one that stands for itself.
  virtual std::span<const Event> parts() const { return {}; }

 private:
  friend class Event;

  std::atomic<std::int64_t> references_{0};
  std::atomic<EventStatus> status_{EventStatus::kPending};
  const std::string waker_;
};

// A point in the work of a stream, or the end of one asynchronous operation.
//
// Source: CUDA events, with a status: a copy or a read that fails is told apart from one that is
// done, by whoever depends on it, whenever he looks.
//
// Invariants:
//   I1  a null event (the default) has succeeded: nothing has to be waited for.
//   I2  copies of an event stand for the same point.
// Ownership: shares the state; one pointer wide.
// Threads: a value; different copies may be used by different threads.
// Errors: a status, never an exception.
// Cost: copying is one atomic increment, nothing for a null event. status() is one load on the
// CPU. wait() sleeps on a futex, about 5 us for a wake-up.
class Event {
 public:
  Event() = default;
  // Shares `state`.
  explicit Event(EventState* state) : state_(state) { retain(); }
  Event(const Event& other) : state_(other.state_) { retain(); }
  Event(Event&& other) noexcept : state_(std::exchange(other.state_, nullptr)) {}
  Event& operator=(Event other) noexcept {
    std::swap(state_, other.state_);
    return *this;
  }
  ~Event() {
    if (state_ != nullptr) release();
  }

  bool is_null() const { return state_ == nullptr; }
  // Equal for copies of one event; null for a null event.
  const void* id() const { return state_; }
  EventStatus status() const {
    if (state_ == nullptr) return EventStatus::kSucceeded;
    return witnessed([this] { return state_->status(); });
  }
  bool is_done() const { return status() != EventStatus::kPending; }
  EventStatus wait() const {
    if (state_ == nullptr) return EventStatus::kSucceeded;
    return witnessed([this] { return state_->wait(); });
  }
  EventStatus wait_for(Nanoseconds timeout) const {
    if (state_ == nullptr) return EventStatus::kSucceeded;
    return witnessed([&] { return state_->wait_for(timeout); });
  }
  // Whether it can only succeed.
  bool is_settled() const { return state_ == nullptr || state_->is_settled(); }
  // Who completes it; empty for a null event.
  std::string_view waker() const {
    return state_ == nullptr ? std::string_view() : state_->waker();
  }

  friend bool operator==(const Event&, const Event&) = default;

 private:
  friend class EventSource;
  friend Event merge(std::span<const Event> events);
  friend Event settled(const Event& event);

  void retain() const {
    if (state_ != nullptr) state_->references_.fetch_add(1, std::memory_order_relaxed);
  }
  void release() const;

  EventState* state_ = nullptr;
};

// Done when all of `events` are; failed when one of them is. Null for an empty list, and no
// state of its own where one event is left. Merged events are taken apart, events that have
// succeeded are dropped and of those that have failed one is kept: so the result is as large as
// the work under way, however often it is merged on.
Event merge(std::span<const Event> events);

// Done when `event` is, and then it has succeeded, whatever became of that one: for whoever needs
// a place when its last user has left, and not what he left there.
Event settled(const Event& event);

// The right to complete one event, for work that is not on a stream: a disk read, say.
//
// Invariants:
//   I1  the event is completed exactly once: by complete(), or as failed by the destructor, so
//       that nobody waits for a source that is gone.
// Ownership: move-only; shares the state with its events.
// Threads: one owner at a time; its events may be used anywhere.
// Errors: none.
class EventSource {
 public:
  EventSource() = default;
  explicit EventSource(Event event) : event_(std::move(event)), is_open_(!event_.is_null()) {}
  EventSource(EventSource&& other) noexcept
      : event_(std::exchange(other.event_, Event())),
        is_open_(std::exchange(other.is_open_, false)) {}
  EventSource& operator=(EventSource&& other) noexcept {
    abandon();
    event_ = std::exchange(other.event_, Event());
    is_open_ = std::exchange(other.is_open_, false);
    return *this;
  }
  ~EventSource() { abandon(); }

  // The same before and after it is completed.
  const Event& event() const { return event_; }
  // CHECK: not completed before.
  void complete(EventStatus status);

 private:
  void abandon();

  Event event_;
  bool is_open_ = false;
};

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_EVENT_H_
