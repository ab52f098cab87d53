#ifndef SLACKWATER_DEVICE_WITNESS_H_
#define SLACKWATER_DEVICE_WITNESS_H_

#include <cstdint>
#include <utility>

namespace slackwater::device {

// Stands beside a thread and notes what it learns of the world: whether an event is done, whether
// memory was to be had. Told the same again, the same code decides the same, without a device.
//
// Whoever asks the world something goes through witnessed(); whatever runs on behalf of the device
// while he asks is not his to note (WitnessPause).
//
// Source: record and replay of a deterministic program's inputs, as in rr (O'Callahan et al.,
// 2017). Invariants:
//   I1  one witness per thread at a time; none while it asks the world.
// Ownership: none; a WitnessScope ends before its witness does.
// Threads: a witness is used by one thread at a time.
// Errors: none.
// Cost: without one, a load and a branch per question.
class Witness {
 public:
  // One that recalls answers questions itself, and nobody asks the world.
  explicit Witness(bool recalls) : recalls_(recalls) {}
  virtual ~Witness() = default;
  Witness(const Witness&) = delete;
  Witness& operator=(const Witness&) = delete;

  bool recalls() const { return recalls_; }
  virtual std::uint64_t recall() = 0;
  virtual void note(std::uint64_t answer) = 0;

  // This thread's; null where there is none.
  static Witness* current() { return current_; }

 private:
  friend class WitnessScope;

  static inline constinit thread_local Witness* current_ = nullptr;
  const bool recalls_;
};

// While it lives, `witness` stands beside this thread; null: nobody does.
//
// Invariants:
//   I1  scopes end in the opposite order of their beginnings.
// Ownership: none.
// Threads: the one that made it.
// Errors: none.
class WitnessScope {
 public:
  explicit WitnessScope(Witness* witness) : before_(std::exchange(Witness::current_, witness)) {}
  ~WitnessScope() { Witness::current_ = before_; }
  WitnessScope(const WitnessScope&) = delete;
  WitnessScope& operator=(const WitnessScope&) = delete;

 private:
  Witness* const before_;
};

// While it lives, what runs on this thread runs on behalf of the device.
//
// Invariants: as WitnessScope.
// Ownership: none.
// Threads: the one that made it.
// Errors: none.
class WitnessPause {
 public:
  WitnessPause() : nobody_(nullptr) {}

 private:
  const WitnessScope nobody_;
};

// The answer to a question that the code cannot answer from what it knows: a number, a yes or no,
// a status.
template <class Ask>
auto witnessed(const Ask& ask) -> decltype(ask()) {
  Witness* const witness = Witness::current();
  if (witness == nullptr) [[likely]]
    return ask();
  using Answer = decltype(ask());
  if (witness->recalls()) return static_cast<Answer>(witness->recall());
  const Answer answer = [&] {
    const WitnessPause pause;
    return ask();
  }();
  witness->note(static_cast<std::uint64_t>(answer));
  return answer;
}

}  // namespace slackwater::device

#endif  // SLACKWATER_DEVICE_WITNESS_H_
