#ifndef SLACKWATER_SCHEDULER_FAKE_RESIDENCY_TEST_SUPPORT_H_
#define SLACKWATER_SCHEDULER_FAKE_RESIDENCY_TEST_SUPPORT_H_

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "slackwater/base/check.h"
#include "slackwater/base/error.h"
#include "slackwater/base/ids.h"
#include "slackwater/scheduler/scheduler.h"

namespace slackwater::scheduler {

// What a FakeResidency has. Without host pages and host slots there is no colder tier.
struct FakePools {
  std::int64_t tokens_per_page = 1;
  std::int64_t pages = 1 << 20;
  std::int64_t slots = 1 << 20;
  std::int64_t host_pages = 0;
  std::int64_t host_slots = 0;
  std::int64_t saves = 1 << 20;  // with a host: one for everybody who is resident
};

// One call that a FakeResidency was asked.
struct FakeCall {
  enum class Kind { kPrepare, kResize, kRelease, kAllocate, kSuspend, kRecompute } kind;
  RequestId request;
  friend bool operator==(const FakeCall&, const FakeCall&) = default;
};

// Requests that are nothing but counts: pages, a slot and a save each. What is suspended can lie
// anywhere and changes places freely, so all that counts is that what is locked fits the device,
// and everything the device and the host. A refused call changes nothing. Aborts where the contract
// of RequestResidency is broken.
class FakeResidency final : public RequestResidency {
 public:
  struct Entry {
    bool is_resident = false;
    bool is_active = false;
    bool is_started = false;
    std::int64_t matched = 0;   // what prepare_context() finds when there is nothing
    std::int64_t computed = 0;  // tokens
    std::int64_t capacity = 0;  // tokens that there is room for
    // What the next question about it is answered with.
    bool has_script = false;
    FakeCall::Kind scripted = FakeCall::Kind::kPrepare;
    ErrorCode code = ErrorCode::kResourceExhausted;
  };

  explicit FakeResidency(const FakePools& pools) : pools_(pools) {}

  Result<std::int64_t> prepare_context(RequestId request) override {
    note(FakeCall::Kind::kPrepare, request);
    Entry& entry = at(request);
    SLACKWATER_RETURN_IF_ERROR(follow_script(FakeCall::Kind::kPrepare, request));
    if (!entry.is_active) {
      const std::int64_t capacity = entry.is_resident ? entry.capacity : entry.matched;
      SLACKWATER_RETURN_IF_ERROR(take(entry, capacity));
      if (!entry.is_started) entry.computed = entry.matched;
    }
    return entry.computed;
  }

  Result<void> resize_context(RequestId request, std::int64_t num_tokens,
                              std::int32_t num_drafts) override {
    note(FakeCall::Kind::kResize, request);
    SLACKWATER_RETURN_IF_ERROR(follow_script(FakeCall::Kind::kResize, request));
    Entry& entry = at(request);
    SLACKWATER_CHECK(entry.is_active, "request {} is not prepared", request.value());
    SLACKWATER_CHECK(num_tokens > 0 && num_drafts >= 0, "{} {}", num_tokens, num_drafts);
    return take(entry, entry.computed + num_tokens + num_drafts);
  }

  void release_context(RequestId request) override {
    note(FakeCall::Kind::kRelease, request);
    Entry& entry = at(request);
    SLACKWATER_CHECK(entry.is_active && !entry.is_started, "request {}", request.value());
    free(request);
  }

  Result<void> allocate_generation(RequestId request, std::int32_t num_drafts) override {
    note(FakeCall::Kind::kAllocate, request);
    SLACKWATER_RETURN_IF_ERROR(follow_script(FakeCall::Kind::kAllocate, request));
    Entry& entry = at(request);
    SLACKWATER_CHECK(entry.is_resident && entry.is_started, "request {}", request.value());
    return take(entry, entry.computed + 1 + num_drafts);
  }

  void suspend(RequestId request) override {
    note(FakeCall::Kind::kSuspend, request);
    Entry& entry = at(request);
    SLACKWATER_CHECK(entry.is_active, "request {}", request.value());
    SLACKWATER_CHECK(can_evict(), "there is no host");
    count(entry, -1);
    entry.is_active = false;
    count(entry, 1);
  }

  void recompute(RequestId request) override {
    note(FakeCall::Kind::kRecompute, request);
    SLACKWATER_CHECK(at(request).is_started, "request {}", request.value());
    free(request);
  }

  bool is_active(RequestId request) const override { return entries_[request.value()].is_active; }
  bool can_evict() const override { return pools_.host_pages > 0 || pools_.host_slots > 0; }

  // --- For whoever plays the engine.

  Entry& at(RequestId request) {
    if (entries_.size() <= request.value()) entries_.resize(request.value() + 1);
    return entries_[request.value()];
  }
  // It is there with so many tokens, and room for them only.
  void place(RequestId request, std::int64_t computed, bool is_active) {
    Entry& entry = at(request);
    entry.is_started = entry.is_resident = true;
    entry.is_active = is_active;
    entry.computed = entry.capacity = computed;
    count(entry, 1);
    SLACKWATER_CHECK(fits(), "request {}", request.value());
  }
  // Its step has ended with so many more tokens; room past them goes back.
  void advance(RequestId request, std::int64_t num_tokens) {
    Entry& entry = at(request);
    entry.is_started = true;
    entry.computed += num_tokens;
    SLACKWATER_CHECK(entry.computed <= entry.capacity, "{} of {}", entry.computed, entry.capacity);
    count(entry, -1);
    entry.capacity = entry.computed;
    count(entry, 1);
  }
  // Gives back everything.
  void free(RequestId request) {
    Entry& entry = at(request);
    if (entry.is_resident) count(entry, -1);
    entry.is_resident = entry.is_active = entry.is_started = false;
    entry.computed = entry.capacity = 0;
  }
  // The next such call about it is refused with `code`; kDataLoss frees it first.
  void refuse_next(RequestId request, FakeCall::Kind call, ErrorCode code) {
    Entry& entry = at(request);
    entry.has_script = true;
    entry.scripted = call;
    entry.code = code;
  }
  void set_recording(bool is_recording) { is_recording_ = is_recording; }
  std::vector<FakeCall> take_calls() { return std::exchange(calls_, {}); }
  const std::vector<FakeCall>& calls() const { return calls_; }
  const FakePools& pools() const { return pools_; }
  void change_pools(const FakePools& pools) { pools_ = pools; }

 private:
  // Of one state of residence.
  struct Used {
    std::int64_t pages = 0;
    std::int64_t requests = 0;
  };

  std::int64_t pages_of(std::int64_t tokens) const {
    return (tokens + pools_.tokens_per_page - 1) / pools_.tokens_per_page;
  }
  void count(const Entry& entry, std::int64_t sign) {
    Used& used = entry.is_active ? locked_ : held_;
    used.pages += sign * pages_of(entry.capacity);
    used.requests += sign;
  }

  bool fits() const {
    const Used all = {locked_.pages + held_.pages, locked_.requests + held_.requests};
    return locked_.pages <= pools_.pages && all.pages <= pools_.pages + pools_.host_pages &&
           locked_.requests <= pools_.slots && all.requests <= pools_.slots + pools_.host_slots &&
           (!can_evict() || all.requests <= pools_.saves);
  }

  // Makes it active with room for at least `capacity` tokens, or changes nothing.
  Result<void> take(Entry& entry, std::int64_t capacity) {
    const Entry before = entry;
    const Used locked = locked_, held = held_;
    if (entry.is_resident) count(entry, -1);
    entry.is_resident = entry.is_active = true;
    entry.capacity = std::max(entry.capacity, capacity);
    count(entry, 1);
    if (fits()) return {};
    entry = before;
    locked_ = locked;
    held_ = held;
    return no_room();
  }
  static Result<void> no_room() { return tl::unexpected<Error>(kNoRoom); }

  Result<void> follow_script(FakeCall::Kind call, RequestId request) {
    Entry& entry = at(request);
    if (!entry.has_script || entry.scripted != call) return {};
    entry.has_script = false;
    if (entry.code == ErrorCode::kDataLoss) free(request);
    return make_error(entry.code, "as the test says");
  }
  void note(FakeCall::Kind call, RequestId request) {
    if (is_recording_) calls_.push_back({call, request});
  }

  // Short enough to be copied without the heap.
  inline static const Error kNoRoom{ErrorCode::kResourceExhausted, "no room"};

  FakePools pools_;
  std::vector<Entry> entries_;  // by number of the request
  Used locked_, held_;
  std::vector<FakeCall> calls_;
  bool is_recording_ = false;
};

}  // namespace slackwater::scheduler

#endif  // SLACKWATER_SCHEDULER_FAKE_RESIDENCY_TEST_SUPPORT_H_
