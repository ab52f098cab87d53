// The control plane of the cache on named workloads, token for token those that other engines were
// measured on: what one step, one prompt, one eviction cost besides the model.
//
//   slackwater_cache_workloads [--smoke] [--only NAME] [--tokens-per-block P] [--pages N]
//       [--repetitions R] [--log FILE]
//
// One JSON object per line: medians over repetitions of medians, and the 99th percentile over all
// samples. Pages are tiny, so that only bookkeeping is measured; there is no host tier.
//
//   workload  a sample
//   grant     one decode step of R running sequences: room for one more token each; per sequence
//   commit    the same, and the token is committed
//   match     b: a prompt of 99,968 known and 32 new tokens is looked up and pinned
//   admit     ... gets its pages and its index tables
//   publish   ... commits its new tokens
//   release   ... and ends
//   cycle     c: a prompt of 2,048 new tokens in a full pool, from lookup to end
//   get, free d: n pages for a sequence, and back
//   evict     e: one page more in a pool full of idle ones
//   suspend, resume   g: 2,048 tokens of prompt and 64 generated, at once
//   events    c with cache events less c without them, per event, in alternating pairs; the keys
//   are
//             made outside of it, and drain is what that costs per event
//   memory    bytes of bookkeeping per page of a pool full of finished prompts
//   adjust    shares change so that 1,000 of 10,000 slots of 36 KiB go to another pool, while a
//             suspended sequence has all of them and 1,000 low ones are free
//
// Beside `adjust` the same pieces are copied by memcpy, in memory that is mapped alike, and as many
// bytes of memory as change hands are given back to the system and taken from it, before or after
// it by turns. Its bar is 80 % of the rate of memcpy, and a millisecond; what memory of the system
// costs is told beside it.
//
// `match_cold` and so on are b after everything has been driven out of the processor's caches.
// f, growth with N, is tools/cache_growth.py: it counts instructions of timed().

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <malloc.h>

#include "slackwater/cache/kv_cache_manager.h"
#include "slackwater/device/cpu_device.h"

namespace slackwater::cache {
namespace {

using Tokens = std::vector<TokenId>;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kPageBytes = 64;
constexpr std::int64_t kStateBytes = 128;
constexpr std::int64_t kPromptTokens = 2048;

struct Options {
  bool is_smoke = false;
  std::string only;
  std::string log;  // every call is written there; empty: no log
  std::int32_t tokens_per_block = 16;
  std::int64_t num_pages = 100'000;
  int repetitions = 7;
};

[[noreturn]] void fail(const std::string& text) {
  std::fprintf(stderr, "%s\n", text.c_str());
  std::exit(1);
}

template <class T>
T get(Result<T> result) {
  if (!result.has_value()) fail(result.error().text());
  return *std::move(result);
}

void get(const Result<void>& result) {
  if (!result.has_value()) fail(result.error().text());
}

// The tokens of a sequence of the workloads.
Tokens tokens_of(std::uint64_t sequence, std::int64_t count, std::int64_t first = 0) {
  Tokens tokens;
  tokens.reserve(static_cast<std::size_t>(count));
  for (std::int64_t i = first; i < first + count; ++i) {
    std::uint64_t x =
        sequence * 0x9E3779B97F4A7C15u + static_cast<std::uint64_t>(i) * 0xC2B2AE3D27D4EB4Fu;
    x ^= x >> 32;
    x *= 0xC2B2AE3D27D4EB4Fu;
    tokens.push_back(static_cast<TokenId>((x >> 40) % 50'000));
  }
  return tokens;
}

double percentile(std::vector<double> values, double share) {
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1,
                         static_cast<std::size_t>(share * static_cast<double>(values.size())))];
}

// Samples of one figure, by repetition.
class Samples {
 public:
  void begin_repetition() { by_repetition_.emplace_back(); }
  void add(double ns) { by_repetition_.back().push_back(ns); }
  double median() const {
    std::vector<double> medians;
    for (const auto& samples : by_repetition_) medians.push_back(percentile(samples, 0.5));
    return percentile(medians, 0.5);
  }
  // How far the medians of the repetitions lie apart, as a share of the median.
  double spread() const {
    std::vector<double> medians;
    for (const auto& samples : by_repetition_) medians.push_back(percentile(samples, 0.5));
    const auto [least, most] = std::minmax_element(medians.begin(), medians.end());
    return (*most - *least) / median();
  }
  double p99() const {
    std::vector<double> all;
    for (const auto& samples : by_repetition_)
      all.insert(all.end(), samples.begin(), samples.end());
    return percentile(all, 0.99);
  }
  std::size_t repetitions() const { return by_repetition_.size(); }
  std::size_t size() const {
    std::size_t count = 0;
    for (const auto& samples : by_repetition_) count += samples.size();
    return count;
  }

 private:
  std::vector<std::vector<double>> by_repetition_;
};

// What is between the two looks at the clock, by a name that a profiler can be told.
__attribute__((noinline)) void timed(const std::function<void()>& work) { work(); }

double ns_of(const std::function<void()>& work) {
  const auto start = Clock::now();
  timed(work);
  return std::chrono::duration<double, std::nano>(Clock::now() - start).count();
}

// What was measured: named by whoever runs this.
std::string commit_name() {
  const char* const name = std::getenv("SLACKWATER_COMMIT");
  return name == nullptr ? "unknown" : name;
}

// Drives everything else out of the caches.
void flush_caches() {
  static std::vector<std::uint64_t> large(std::size_t{32} << 20);
  for (std::size_t i = 0; i < large.size(); i += 8) large[i] += i;
}

// In use by malloc: not the pages of the device, which are mapped.
std::int64_t heap_bytes() {
  const struct mallinfo2 info = mallinfo2();
  return static_cast<std::int64_t>(info.uordblks + info.hblkhd);
}

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);) {
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

// A hybrid cache: one group of attention, one recurrent state per sequence.
class Bench {
 public:
  Bench(const Options& options, std::int64_t num_pages, std::int64_t num_states,
        std::int32_t max_events = 0)
      : options_(options), device_(device::make_cpu_device()) {
    KvCacheConfig config;
    config.tokens_per_block = options.tokens_per_block;
    config.layers.resize(2);
    config.layers[0].buffers = {{"kv", kPageBytes}};
    config.layers[1].layer = 1;
    config.layers[1].kind = Recurrent();
    config.layers[1].buffers = {{"state", kStateBytes}};
    config.grain_bytes = 4096;
    if (!options.log.empty()) std::filesystem::remove(options.log);
    config.operation_log.path = options.log;
    const std::int64_t page_bytes = (num_pages * kPageBytes + 4095) / 4096 * 4096;
    const std::int64_t state_bytes = (num_states * kStateBytes + 4095) / 4096 * 4096;
    config.device_bytes = page_bytes + state_bytes;
    const double share = static_cast<double>(page_bytes) / static_cast<double>(config.device_bytes);
    config.initial_pool_ratio = {share, 1 - share};
    config.max_util_for_resume = 1;
    config.text_only = true;
    config.max_events = max_events;
    manager_ = get(KvCacheManager::create(*device_, std::move(config)));
    stream_ = get(device_->make_stream("compute"));
  }

  KvCacheManager& manager() { return *manager_; }

  Sequence create(const Tokens& tokens) {
    SequenceOptions options;
    options.tokens = tokens;
    options.request = RequestId(next_request_++);
    return get(manager_->create_sequence(options));
  }
  void resume(Sequence& sequence) { get(sequence.resume(*stream_)); }

  // A prompt that is computed in one go; what is not known of it is committed.
  Sequence prompt(const Tokens& tokens) {
    Sequence sequence = create(tokens);
    resume(sequence);
    get(sequence.resize(std::ssize(tokens)));
    get(sequence.commit(std::span(tokens).subspan(static_cast<std::size_t>(sequence.history()))));
    return sequence;
  }

  // Finished prompts in every page that is free, or in a share of them.
  void fill(double share) {
    const TierRoom room = manager_->room(storage::Tier::kDevice, LayerGroupId(0));
    const std::int64_t blocks = kPromptTokens / options_.tokens_per_block;
    const auto target = static_cast<std::int64_t>(static_cast<double>(room.free) * share);
    for (std::int64_t used = 0; used + (share < 1 ? blocks : 0) <= target; used += blocks) {
      prompt(tokens_of(1'000'000 + num_filled_++, kPromptTokens)).close();
    }
  }

  void report(std::string_view name, const Samples& samples, std::string_view more) const {
    const double median = samples.median();
    fmt::print(
        "{{\"workload\":\"{}\",\"pages\":{},\"tokens_per_block\":{},{}\"median_ns\":{:.0f},"
        "\"p99_ns\":{:.0f},\"repetitions\":{},\"samples\":{},\"spread\":{:.2f},\"commit\":\"{}\","
        "\"cpu\":\"{}\",\"compiler\":\"{}\"}}"
        "\n",
        name, manager_->room(storage::Tier::kDevice, LayerGroupId(0)).total,
        options_.tokens_per_block, more, median, samples.p99(), samples.repetitions(),
        samples.size(), samples.spread(), commit_name(), cpu_name(), __VERSION__);
    std::fflush(stdout);
  }

 private:
  const Options& options_;
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<device::Stream> stream_;
  std::uint64_t next_request_ = 1;
  std::uint64_t num_filled_ = 0;
};

std::int64_t states_for(std::int64_t num_pages, const Options& options, std::int64_t running) {
  return num_pages * options.tokens_per_block / kPromptTokens + 2 * running + 64;
}

// a. `commits`: the token is committed too.
void grant(const Options& options, std::int64_t num_running, bool commits) {
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, num_running));
  std::vector<Sequence> running;
  std::vector<Tokens> tokens;
  const std::int64_t block = options.tokens_per_block;
  const std::int64_t steps = block + options.repetitions * 32;
  for (std::int64_t j = 0; j < num_running; ++j) {
    const std::int64_t length = 256 + j % block;
    tokens.push_back(tokens_of(static_cast<std::uint64_t>(j), length + steps));
    running.push_back(bench.prompt(Tokens(tokens.back().begin(), tokens.back().begin() + length)));
  }
  bench.fill(1);
  const auto step = [&] {
    for (std::size_t j = 0; j < running.size(); ++j) {
      Sequence& sequence = running[j];
      const std::int64_t length = sequence.capacity();
      get(sequence.resize(length + 1, commits ? sequence.history() : length));
      if (!commits) continue;
      get(sequence.commit(
          std::span(tokens[j]).subspan(static_cast<std::size_t>(sequence.num_committed()), 1)));
    }
  };
  for (std::int64_t i = 0; i < block; ++i) step();
  Samples samples;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    samples.begin_repetition();
    for (int i = 0; i < 32; ++i) samples.add(ns_of(step) / static_cast<double>(num_running));
  }
  bench.report(commits ? "commit" : "grant", samples, fmt::format("\"running\":{},", num_running));
}

// b.
void long_prompt(const Options& options, bool is_cold) {
  constexpr std::int64_t kKnown = 99'968;
  constexpr std::int64_t kNew = 32;
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, 64));
  const Tokens known = tokens_of(1, kKnown);
  {
    Sequence first = bench.create(known);
    bench.resume(first);
    for (std::int64_t end = 0; end < kKnown;) {
      const std::int64_t begin = end;
      end = std::min(kKnown, end + 8192);
      get(first.resize(end));
      get(first.commit(std::span(known).subspan(static_cast<std::size_t>(begin),
                                                static_cast<std::size_t>(end - begin))));
    }
  }
  bench.fill(0.95);
  Samples match, admit, publish, total, release;
  std::uint64_t n = 0;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    for (Samples* samples : {&match, &admit, &publish, &total, &release}) {
      samples->begin_repetition();
    }
    for (int i = 0; i < 10; ++i) {
      Tokens prompt = known;
      for (const TokenId token : tokens_of(2 + n++, kNew, kKnown)) prompt.push_back(token);
      Sequence sequence;
      if (is_cold) flush_caches();
      const double of_match = ns_of([&] { sequence = bench.create(prompt); });
      if (sequence.num_committed() != kKnown) {
        fail(fmt::format("{} of {} tokens were found", sequence.num_committed(), kKnown));
      }
      const double of_admit = ns_of([&] {
        bench.resume(sequence);
        get(sequence.resize(kKnown + kNew));
      });
      const double of_publish = ns_of([&] {
        get(sequence.commit(std::span(prompt).subspan(static_cast<std::size_t>(kKnown))));
      });
      match.add(of_match);
      admit.add(of_admit);
      publish.add(of_publish);
      total.add(of_match + of_admit + of_publish);
      if (is_cold) flush_caches();
      release.add(ns_of([&] { sequence.close(); }));
    }
  }
  const std::pair<const char*, const Samples*> figures[] = {{"match", &match},
                                                            {"admit", &admit},
                                                            {"publish", &publish},
                                                            {"total", &total},
                                                            {"release", &release}};
  for (const auto& [name, samples] : figures) {
    bench.report(fmt::format("{}{}", name, is_cold ? "_cold" : ""), *samples, "");
  }
}

// c.
void cycle(const Options& options) {
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, 64));
  bench.fill(1);
  Samples samples;
  std::uint64_t n = 0;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    samples.begin_repetition();
    for (int i = 0; i < 50; ++i) {
      const Tokens tokens = tokens_of(10 + n++, kPromptTokens);
      std::int64_t num_hits = 0;  // in blocks, with or without a state
      samples.add(ns_of([&] {
        Sequence sequence = bench.prompt(tokens);
        num_hits = sequence.match().content / options.tokens_per_block;
        sequence.close();
      }));
      if (num_hits != 0) fail(fmt::format("{} blocks of a new prompt were found", num_hits));
    }
  }
  bench.report("cycle", samples, "\"hits\":0,");
}

// d.
void get_and_free(const Options& options, std::int64_t count) {
  Bench bench(options, options.num_pages, 64);
  Sequence sequence = bench.create({});
  bench.resume(sequence);
  Samples of_get, of_free;
  const int samples = count == 1000 ? 100 : 500;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    of_get.begin_repetition();
    of_free.begin_repetition();
    for (int i = 0; i < samples; ++i) {
      of_get.add(ns_of([&] { get(sequence.resize(count * options.tokens_per_block)); }));
      of_free.add(ns_of([&] { get(sequence.resize(0)); }));
    }
  }
  // A call is not much longer than a look at the clock: the same without one in between.
  constexpr int kPairs = 64;
  Samples of_pair;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    of_pair.begin_repetition();
    for (int i = 0; i < samples / 10; ++i) {
      const double ns = ns_of([&] {
        for (int pair = 0; pair < kPairs; ++pair) {
          get(sequence.resize(count * options.tokens_per_block));
          get(sequence.resize(0));
        }
      });
      of_pair.add(ns / kPairs);
    }
  }
  const std::string more = fmt::format("\"n\":{},", count);
  bench.report("get", of_get, more);
  bench.report("free", of_free, more);
  bench.report("get_and_free", of_pair, fmt::format("{}\"per_sample\":{},", more, 2 * kPairs));
}

// e.
void evict(const Options& options) {
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, 64));
  Sequence sequence = bench.create({});
  bench.resume(sequence);
  bench.fill(1);
  // The last prompt may have left a page or two.
  while (bench.manager().room(storage::Tier::kDevice, LayerGroupId(0)).free > 0) {
    get(sequence.resize(sequence.capacity() + options.tokens_per_block));
  }
  Samples samples;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    samples.begin_repetition();
    for (int i = 0; i < 200; ++i) {
      samples.add(
          ns_of([&] { get(sequence.resize(sequence.capacity() + options.tokens_per_block)); }));
    }
  }
  bench.report("evict", samples, "");
}

// g.
void preempt(const Options& options) {
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, 64));
  Samples of_suspend, of_resume;
  std::uint64_t n = 0;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    of_suspend.begin_repetition();
    of_resume.begin_repetition();
    for (int i = 0; i < 10; ++i) {
      const Tokens tokens = tokens_of(10 + n++, kPromptTokens + 64);
      Sequence sequence = bench.prompt(Tokens(tokens.begin(), tokens.begin() + kPromptTokens));
      for (std::size_t at = kPromptTokens; at < tokens.size(); ++at) {
        get(sequence.resize(sequence.capacity() + 1));
        get(sequence.commit(std::span(tokens).subspan(at, 1)));
      }
      of_suspend.add(ns_of([&] { get(sequence.suspend()); }));
      of_resume.add(ns_of([&] { bench.resume(sequence); }));
      if (sequence.num_committed() != std::ssize(tokens)) fail("tokens were lost");
    }
  }
  bench.report("suspend", of_suspend, "");
  bench.report("resume", of_resume, "\"tokens_lost\":0,");
}

// What a cache event costs: two caches do the same in turn, and one of them notes what happens.
void events(const Options& options) {
  constexpr int kPairs = 100;
  const std::int64_t num_states = states_for(options.num_pages, options, 64);
  Bench silent(options, options.num_pages, num_states);
  Bench noting(options, options.num_pages, num_states, 1 << 18);
  silent.fill(1);
  noting.fill(1);
  Samples of_event, of_drain;
  std::int64_t num_events = 0;
  std::uint64_t n = 0;
  for (int repetition = -1; repetition < options.repetitions; ++repetition) {
    DrainedEvents drained = noting.manager().drain_events();
    std::vector<double> more;
    for (int i = 0; i < kPairs; ++i) {
      const Tokens tokens = tokens_of(10 + n++, kPromptTokens);
      const auto cycle = [&](Bench& bench) { return ns_of([&] { bench.prompt(tokens).close(); }); };
      const double first = cycle(i % 2 == 0 ? silent : noting);
      const double second = cycle(i % 2 == 0 ? noting : silent);
      more.push_back(i % 2 == 0 ? second - first : first - second);
    }
    const double of_all = ns_of([&] { drained = noting.manager().drain_events(); });
    if (repetition < 0) continue;  // memory that is touched for the first time
    if (drained.num_lost > 0) fail("the queue has overflown");
    num_events = std::ssize(drained.events);
    of_event.begin_repetition();
    for (const double ns : more) of_event.add(ns * kPairs / static_cast<double>(num_events));
    of_drain.begin_repetition();
    of_drain.add(of_all / static_cast<double>(num_events));
  }
  const std::string more = fmt::format("\"events\":{},", num_events);
  noting.report("events", of_event, more);
  noting.report("drain", of_drain, more);
}

// What is known of a page beside its bytes, all of it.
void memory(const Options& options) {
  const std::int64_t before = heap_bytes();
  Bench bench(options, options.num_pages, states_for(options.num_pages, options, 64));
  bench.fill(1);
  const std::int64_t bytes = heap_bytes() - before;
  const TierRoom pages = bench.manager().room(storage::Tier::kDevice, LayerGroupId(0));
  const TierRoom states = bench.manager().room(storage::Tier::kDevice, LayerGroupId(1));
  const std::int64_t count = pages.total + states.total;
  const std::int64_t of_tokens =
      4 * std::int64_t{pages.evictable} * std::int64_t{options.tokens_per_block};
  fmt::print(
      "{{\"workload\":\"memory\",\"pages\":{},\"states\":{},\"tokens_per_block\":{},\"bytes\":{},"
      "\"bytes_per_page\":{:.1f},\"bytes_per_page_beside_tokens\":{:.1f}}}\n",
      pages.total, states.total, options.tokens_per_block, bytes,
      static_cast<double>(bytes) / static_cast<double>(count),
      static_cast<double>(bytes - of_tokens) / static_cast<double>(count));
}

// What adjust() cannot do without: the copies. And what it would pay beside them for memory that
// changes hands, if that were not handed over but came from the system, which clears it.
struct AdjustFloor {
  double copy_ns = 0;
  double memory_ns = 0;
};
AdjustFloor adjust_floor(device::Device& device, std::size_t slot_bytes, std::size_t num_slots,
                         std::size_t num_moved) {
  constexpr std::size_t kGrain = std::size_t{2} << 20;
  const auto make = [&](std::size_t bytes) {
    auto arena = get(device.reserve_arena(device::MemoryKind::kDevice, bytes, kGrain));
    get(arena->resize(bytes));
    return arena;
  };
  const auto slots = make(num_slots * slot_bytes);
  const auto other = make(kGrain);
  AdjustFloor floor;
  floor.copy_ns = ns_of([&] {
    for (std::size_t i = 0; i < num_moved; ++i) {
      std::memcpy(slots->base() + i * slot_bytes,
                  slots->base() + (num_slots - num_moved + i) * slot_bytes, slot_bytes);
    }
  });
  const auto gainer = get(
      device.reserve_arena(device::MemoryKind::kDevice, num_moved * slot_bytes + kGrain, kGrain));
  floor.memory_ns = ns_of([&] {
    get(slots->resize((num_slots - num_moved) * slot_bytes));
    get(gainer->resize(num_moved * slot_bytes));
  });
  return floor;
}

// h. One pair of samples: a cache that has just been filled, and its floor.
class AdjustPair {
 public:
  AdjustPair(const Options& options, std::int64_t num_slots)
      : device_(device::make_cpu_device()), num_slots_(num_slots) {
    KvCacheConfig config;
    config.tokens_per_block = options.tokens_per_block;
    config.layers.resize(2);
    config.layers[0].buffers = {{"kv", kSlotBytes}};
    config.layers[1].layer = 1;
    config.layers[1].kind = Recurrent();
    // kUsualBlocks blocks beside one state: three quarters of the bytes, where there were five
    // sixths.
    config.layers[1].buffers = {{"state", kSlotBytes * kUsualBlocks / 3}};
    config.grain_bytes = 2 << 20;
    config.device_bytes = kSlotBytes * num_slots * 12 / 10;
    config.initial_pool_ratio = {10.0 / 12, 2.0 / 12};
    config.max_util_for_resume = 1;
    config.rebalance = {
        .min_samples = 1, .update_interval = 1, .cooldown = {}, .threshold = 1.01, .decay = 0.5};
    manager_ = get(KvCacheManager::create(*device_, std::move(config)));
    stream_ = get(device_->make_stream("compute"));
  }

  static constexpr std::int64_t kSlotBytes = 36 << 10;
  static constexpr std::int64_t kUsualBlocks = 30;

  void run(bool is_floor_first) {
    const std::int64_t block = manager_->tokens_per_block();
    const auto slots = [&] {
      return std::int64_t{manager_->room(storage::Tier::kDevice, LayerGroupId(0)).total};
    };
    const std::int64_t before = slots();
    const auto sequence = [&](std::int64_t num_blocks, bool is_dummy) {
      SequenceOptions sequence_options;
      sequence_options.is_dummy = is_dummy;
      Sequence made = get(manager_->create_sequence(sequence_options));
      get(made.resume(*stream_));
      get(made.resize(num_blocks * block));
      return made;
    };
    sequence(kUsualBlocks, false).close();
    // A few more than have to go, which grains may ask for.
    Sequence low = sequence(before - num_slots_ * 89 / 100, true);
    Sequence sleeper = sequence(num_slots_ * 89 / 100, true);
    get(sleeper.suspend());
    low.close();
    const std::int64_t expected = num_slots_ / 10;
    if (is_floor_first) measure_floor(before, expected);
    adjust_ns = ns_of([&] { get(manager_->adjust(std::chrono::seconds(1))); });
    num_moved = before - slots();
    if (!is_floor_first) measure_floor(before, expected);
    if (num_moved <= 0) fail("no slot has moved");
  }

  double adjust_ns = 0;
  AdjustFloor floor;
  std::int64_t num_moved = 0;

 private:
  void measure_floor(std::int64_t num_slots, std::int64_t num_moved_then) {
    floor =
        adjust_floor(*device_, static_cast<std::size_t>(kSlotBytes),
                     static_cast<std::size_t>(num_slots), static_cast<std::size_t>(num_moved_then));
  }

  std::unique_ptr<device::Device> device_;
  const std::int64_t num_slots_;
  std::unique_ptr<KvCacheManager> manager_;
  std::unique_ptr<device::Stream> stream_;
};

void adjust(const Options& options) {
  const std::int64_t num_slots = options.is_smoke ? 1000 : 10'000;
  Samples of_adjust, of_copy, of_memory;
  std::int64_t num_moved = 0;
  for (int repetition = 0; repetition < options.repetitions; ++repetition) {
    AdjustPair pair(options, num_slots);
    pair.run(repetition % 2 == 0);
    for (const auto& [samples, ns] :
         {std::pair{&of_adjust, pair.adjust_ns}, std::pair{&of_copy, pair.floor.copy_ns},
          std::pair{&of_memory, pair.floor.memory_ns}}) {
      samples->begin_repetition();
      samples->add(ns);
    }
    num_moved = pair.num_moved;
  }
  const double bar = of_copy.median() / 0.8 + 1e6;
  fmt::print(
      "{{\"workload\":\"adjust\",\"slots\":{},\"moved\":{},\"bytes\":{},\"median_ns\":{:.0f},"
      "\"spread\":{:.2f},\"memcpy_ns\":{:.0f},\"memory_ns\":{:.0f},\"bar_ns\":{:.0f},"
      "\"share_of_bar\":{:.2f},\"repetitions\":{},"
      "\"commit\":\"{}\",\"cpu\":\"{}\",\"compiler\":\"{}\"}}\n",
      num_slots, num_moved, num_moved * AdjustPair::kSlotBytes, of_adjust.median(),
      of_adjust.spread(), of_copy.median(), of_memory.median(), bar, of_adjust.median() / bar,
      of_adjust.repetitions(), commit_name(), cpu_name(), __VERSION__);
  std::fflush(stdout);
}

void run(const Options& options) {
  const std::pair<const char*, std::function<void()>> workloads[] = {
      {"grant", [&] { grant(options, 256, false); }},
      {"grant1", [&] { grant(options, 1, false); }},
      {"commit", [&] { grant(options, 256, true); }},
      {"match", [&] { long_prompt(options, false); }},
      {"match_cold", [&] { long_prompt(options, true); }},
      {"cycle", [&] { cycle(options); }},
      {"get", [&] { get_and_free(options, 1); }},
      {"get10", [&] { get_and_free(options, 10); }},
      {"get1000", [&] { get_and_free(options, 1000); }},
      {"evict", [&] { evict(options); }},
      {"suspend", [&] { preempt(options); }},
      {"events", [&] { events(options); }},
      {"memory", [&] { memory(options); }},
      {"adjust", [&] { adjust(options); }},
  };
  for (const auto& [name, work] : workloads) {
    if (!options.only.empty() && options.only != name) continue;
    // The long prompt does not fit a smaller pool.
    const bool fits = options.num_pages * options.tokens_per_block > 110'000;
    if (std::string_view(name).starts_with("match") && !fits) continue;
    work();
  }
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    const bool has_value = i + 1 < argc;
    if (argument == "--smoke") {
      options.is_smoke = true;
      options.num_pages = 10'000;
      options.repetitions = 1;
    } else if (argument == "--only" && has_value) {
      options.only = argv[++i];
    } else if (argument == "--log" && has_value) {
      options.log = argv[++i];
    } else if (argument == "--tokens-per-block" && has_value) {
      options.tokens_per_block = std::atoi(argv[++i]);
    } else if (argument == "--repetitions" && has_value) {
      options.repetitions = std::atoi(argv[++i]);
    } else if (argument == "--pages" && has_value) {
      options.num_pages = std::atoll(argv[++i]);
    } else {
      fail(fmt::format("unknown argument {}; see the top of bench/cache_workloads.cc", argument));
    }
  }
  return options;
}

}  // namespace
}  // namespace slackwater::cache

int main(int argc, char** argv) {
  const auto options = slackwater::cache::parse(argc, argv);
  slackwater::cache::run(options);
  return 0;
}
