// Speed of the kernels beside what the machine allows. Each benchmark states the bytes and the
// operations of one call that cannot be avoided, and reports
//   read_share   bytes per second over the read ceiling of the same footprint
//   fma_share    operations per second over the ceiling of fused multiply-adds
// both ceilings measured in the same run with the same threads. The larger one is the share of
// the roofline.

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <benchmark/benchmark.h>
#include <fmt/core.h>

#include "slackwater/base/aligned_buffer.h"
#include "slackwater/base/numeric.h"
#include "slackwater/kernels/ceiling.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/kernels/matmul.h"
#include "slackwater/kernels/mla.h"

namespace slackwater::kernels {
namespace {

// Where the weights, states or latent rows of a call come from: the same ones each time, or the
// next of a working set that no cache holds.
enum class Source { kHot, kMemory };

struct MatmulWorkload {
  const char* name;
  std::int32_t num_outputs, num_inputs, rows;
  DType dtype;
  Source source;
};
constexpr MatmulWorkload kMatmulWorkloads[] = {
    {"demo/decode", 640, 192, 1, DType::kBf16, Source::kHot},
    {"demo/decode_f32", 640, 192, 1, DType::kF32, Source::kHot},
    {"demo/rows_6", 640, 192, 6, DType::kBf16, Source::kHot},
    {"demo/rows_64", 640, 192, 64, DType::kBf16, Source::kHot},
    {"kimi_linear/decode", 4096, 2304, 1, DType::kBf16, Source::kMemory},
    {"kimi_linear/decode_out", 2304, 4096, 1, DType::kBf16, Source::kMemory},
    {"kimi_linear/rows_6", 4096, 2304, 6, DType::kBf16, Source::kMemory},
    {"kimi_linear/rows_64", 4096, 2304, 64, DType::kBf16, Source::kMemory},
};

struct KdaWorkload {
  const char* name;
  std::int32_t num_heads, head_dim, num_tokens;
  Source source;
  std::int32_t max_records = 0;
};
constexpr KdaWorkload kKdaWorkloads[] = {
    {"demo/decode", 4, 64, 1, Source::kHot},
    {"demo/prefill_64", 4, 64, 64, Source::kHot},
    {"kimi_linear/decode_hot", 32, 128, 1, Source::kHot},
    {"kimi_linear/decode", 32, 128, 1, Source::kMemory},
    {"kimi_linear/prefill_64", 32, 128, 64, Source::kMemory},
};

// A verify round beside the decode steps that it stands for: as many drafts as there is room for
// records. `kimi_k3` is one of 16 ranks.
struct VerifyWorkload {
  const char* name;
  std::int32_t num_heads, head_dim, max_records;
};
constexpr VerifyWorkload kVerifyWorkloads[] = {
    {"kimi_linear/3_drafts", 32, 128, 3},
    {"kimi_linear/7_drafts", 32, 128, 7},
    {"kimi_k3/3_drafts", 6, 128, 3},
    {"kimi_k3/7_drafts", 6, 128, 7},
};

struct MlaWorkload {
  const char* name;
  std::int32_t heads, rank, width, num_tokens, num_keys;  // keys that the last token attends to
  DType dtype;
  Source source;
};
constexpr MlaWorkload kMlaWorkloads[] = {
    {"demo/decode_256", 4, 64, 80, 1, 256, DType::kF32, Source::kHot},
    {"demo/prefill_64", 4, 64, 80, 64, 256, DType::kF32, Source::kHot},
    {"kimi_linear/decode_4k", 32, 512, 576, 1, 4096, DType::kF32, Source::kMemory},
    {"kimi_linear/decode_4k_bf16", 32, 512, 576, 1, 4096, DType::kBf16, Source::kMemory},
};

using Seconds = std::chrono::duration<double>;

Seconds now() { return std::chrono::steady_clock::now().time_since_epoch(); }

// Threads and a context; the workers spin while a benchmark runs, as in a forward step.
struct Runner {
  explicit Runner(int num_threads) : pool(num_threads), context(pool), step(pool) {}

  ThreadPool pool;
  ExecutionContext context;
  ThreadPool::Step step;
};

// "From memory" is at least twice the L3 that the machine reports, and at least 1 GiB.
std::size_t memory_bytes() {
  const long l3 = ::sysconf(_SC_LEVEL3_CACHE_SIZE);
  const std::size_t least = std::size_t{1} << 30;
  return std::max(least, 2 * static_cast<std::size_t>(std::max(l3, 0L)));
}

// Ceilings of this run, measured when first asked for. Outside of any Step.
double read_ceiling(int num_threads, std::size_t footprint) {
  static std::map<std::pair<int, std::size_t>, double> measured;
  double& ceiling = measured[{num_threads, footprint}];
  if (ceiling == 0) {
    ThreadPool pool(num_threads);
    ExecutionContext context(pool);
    ceiling = read_ceiling_bytes_per_second(context, footprint);
  }
  return ceiling;
}

double fma_ceiling(int num_threads) {
  static std::map<int, double> measured;
  double& ceiling = measured[num_threads];
  if (ceiling == 0) {
    ThreadPool pool(num_threads);
    ExecutionContext context(pool);
    ceiling = fma_ceiling_flops(context);
  }
  return ceiling;
}

// Values in (-1, 1) as bf16, and as f32 when read in pairs: SplitMix64, no denormals.
void fill_random(std::span<std::byte> bytes) {
  auto* values = reinterpret_cast<Bf16*>(bytes.data());
  std::uint64_t state = 20261129;
  for (std::size_t i = 0; i < bytes.size() / sizeof(Bf16); ++i) {
    std::uint64_t z = (state += 0x9E3779B97F4A7C15u);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z ^= z >> 27;
    values[i] = f32_to_bf16(static_cast<float>(static_cast<std::int64_t>(z)) * 0x1p-63f);
  }
}

AlignedBuffer<float> random_floats(std::int64_t count) {
  AlignedBuffer<float> values(static_cast<std::size_t>(count));
  fill_random(std::as_writable_bytes(values.span()));
  return values;
}

// Bytes of the working set, shared by all benchmarks and filled anew for each, because some of
// them write it.
std::span<std::byte> working_set(std::string_view user, std::size_t bytes) {
  static AlignedBuffer<std::byte> buffer;
  static std::string last_user;
  const bool is_larger = bytes > buffer.size();
  if (is_larger) buffer = AlignedBuffer<std::byte>(bytes);
  if (is_larger || last_user != user) {
    constexpr std::size_t kBlock = 1 << 20;
    const std::size_t first = std::min(kBlock, bytes);
    fill_random(buffer.span().first(first));
    for (std::size_t at = first; at < bytes; at += first) {
      std::memcpy(buffer.data() + at, buffer.data(), std::min(first, bytes - at));
    }
    last_user = user;
  }
  return buffer.span().first(bytes);
}

// How many pieces of `piece_bytes` a workload goes through.
std::int64_t num_pieces(Source source, std::size_t piece_bytes) {
  if (source == Source::kHot) return 1;
  return static_cast<std::int64_t>(ceil_div(memory_bytes(), piece_bytes));
}

// What one call must move and compute, and the size of what it is taken from.
struct Work {
  double bytes = 0;
  double operations = 0;
  std::size_t footprint = 0;
};

// The footprint whose ceiling a workload is compared with; few different ones, because each takes
// a second to measure.
std::size_t ceiling_footprint(std::size_t footprint) {
  return footprint >= memory_bytes() ? memory_bytes() : std::bit_ceil(footprint);
}

void report(benchmark::State& state, const Work& work, int num_threads) {
  using benchmark::Counter;
  const auto rate = Counter::kIsIterationInvariantRate;
  state.counters["bytes"] = work.bytes;
  state.counters["operations"] = work.operations;
  state.counters["GB/s"] = Counter(work.bytes / 1e9, rate);
  state.counters["GFLOP/s"] = Counter(work.operations / 1e9, rate);
  state.counters["read_share"] =
      Counter(work.bytes / read_ceiling(num_threads, ceiling_footprint(work.footprint)), rate);
  state.counters["fma_share"] = Counter(work.operations / fma_ceiling(num_threads), rate);
}

void run_matmul(benchmark::State& state, const MatmulWorkload& workload, int num_threads) {
  const std::size_t weight_bytes =
      packed_bytes(workload.num_outputs, workload.num_inputs, workload.dtype);
  const std::int64_t copies = num_pieces(workload.source, weight_bytes);
  const auto weights = working_set(workload.name, static_cast<std::size_t>(copies) * weight_bytes);
  const AlignedBuffer<float> x = random_floats(std::int64_t{workload.rows} * workload.num_inputs);
  AlignedBuffer<float> y(static_cast<std::size_t>(workload.rows * workload.num_outputs));
  MatmulArgs job = {
      .weights = {weights.data(), workload.dtype, workload.num_outputs, workload.num_inputs},
      .x = x.data(),
      .x_stride = workload.num_inputs,
      .y = y.data(),
      .y_stride = workload.num_outputs,
      .rows = workload.rows};
  {
    Runner runner(num_threads);
    std::int64_t copy = 0;
    for (auto _ : state) {
      job.weights.panels = weights.data() + static_cast<std::size_t>(copy) * weight_bytes;
      matmul(runner.context, job);
      copy = copy + 1 < copies ? copy + 1 : 0;
    }
  }
  report(state,
         {.bytes = static_cast<double>(weight_bytes + (x.size() + y.size()) * sizeof(float)),
          .operations = 2.0 * workload.rows * workload.num_outputs * workload.num_inputs,
          .footprint = weights.size()},
         num_threads);
}

// One sequence's step: inputs, constants, and pages in the working set.
class KdaCall {
 public:
  KdaCall(std::string_view name, const KdaWorkload& workload) : KdaCall(name, workload, 0) {}
  // With so many slots, or with as many as the workload's source asks for.
  KdaCall(std::string_view name, const KdaWorkload& workload, std::int64_t num_slots)
      : workload_(workload),
        width_(std::int64_t{workload.num_heads} * workload.head_dim),
        projected_(random_floats(projected_width() * workload.num_tokens)),
        decay_(random_floats(width_ * workload.num_tokens)),
        o_(static_cast<std::size_t>(width_ * workload.num_tokens)),
        constants_(random_floats(13 * width_)),
        decay_rate_(static_cast<std::size_t>(workload.num_heads)),
        num_slots_(num_slots > 0 ? num_slots : num_pieces(workload.source, slot_bytes())),
        pages_(working_set(name, static_cast<std::size_t>(num_slots_) * slot_bytes())) {
    std::ranges::fill(decay_rate_.span(), 1.0f);
    args_.num_heads = workload.num_heads;
    args_.head_dim = workload.head_dim;
    for (std::size_t i = 0; i < 3; ++i) {
      args_.qkv[i] = projected_.data() + static_cast<std::int64_t>(i) * width_;
      args_.conv_weight[i] = constants_.data() + static_cast<std::int64_t>(4 * i) * width_;
    }
    args_.beta = projected_.data() + projected_width() - workload.num_heads;
    args_.qkv_stride = args_.beta_stride = projected_width();
    args_.decay = decay_.data();
    args_.o = o_.data();
    args_.decay_stride = args_.o_stride = width_;
    args_.dt_bias = constants_.data() + 12 * width_;
    args_.decay_rate = decay_rate_.data();
    float* next = reinterpret_cast<float*>(pages_.data());
    const auto take = [&next](std::int64_t floats) { return std::exchange(next, next + floats); };
    const auto stride = static_cast<std::int64_t>(slot_bytes() / sizeof(float));
    args_.pages.state_base = take(state_floats());
    args_.pages.window_base = take(window_floats());
    args_.pages.slot_stride = stride;
    args_.pages.num_slots = static_cast<std::int32_t>(num_slots_);
    const std::int64_t max_records = workload.max_records;
    for (float*& conv : records_.conv_base) {
      conv = take(kda_conv_record_floats(max_records, width_));
    }
    records_.qkg_base = take(kda_qkg_record_floats(max_records, width_));
    records_.v_base = take(max_records * width_);
    records_.beta_base = take(max_records * kda_beta_record_stride(workload.num_heads));
    records_.slot_stride = stride;
    records_.num_slots = args_.pages.num_slots;
    records_.max_records = workload.max_records;
  }
  KdaCall(const KdaCall&) = delete;
  KdaCall& operator=(const KdaCall&) = delete;

  // Advances the sequence of the next slot.
  void advance(ExecutionContext& context) { advance(context, workload_.num_tokens); }
  // The same by its first tokens only.
  void advance(ExecutionContext& context, std::int32_t num_tokens) {
    const StateWrite write = {.count = num_tokens, .page = SlotId(slot_)};
    args_.records = {};
    run(context, {.num_tokens = num_tokens, .writes = std::span(&write, 1)});
    next_slot();
  }
  // A verify round of the sequence of the next slot: one token and `num_drafts`.
  void verify(ExecutionContext& context, std::int32_t num_pending, std::int32_t num_drafts) {
    const StateWrite write = {.count = 1, .page = SlotId(slot_)};
    args_.records = records_;
    run(context,
        {.num_tokens = 1 + num_drafts, .writes = std::span(&write, 1), .num_pending = num_pending});
    next_slot();
  }
  // Reads the sequence of slot 0 and writes nothing back.
  void look(ExecutionContext& context) { run(context, {.num_tokens = workload_.num_tokens}); }

  std::int64_t num_slots() const { return num_slots_; }

  // The state of slot 0.
  std::span<float> state() {
    return {args_.pages.state_base, static_cast<std::size_t>(state_floats())};
  }

  // State and window in and out; four inputs and one output a token. Seven operations for each
  // value of the state: a product and three fused steps.
  Work work() const {
    const std::int64_t floats =
        2 * (state_floats() + window_floats()) + 5 * width_ * workload_.num_tokens;
    return {.bytes = static_cast<double>(floats) * sizeof(float),
            .operations = 7.0 * static_cast<double>(state_floats()) * workload_.num_tokens,
            .footprint = pages_.size()};
  }

 private:
  std::int64_t state_floats() const {
    return kda_state_floats(workload_.num_heads, workload_.head_dim);
  }
  std::int64_t window_floats() const {
    return kda_window_floats(workload_.num_heads, workload_.head_dim);
  }
  std::int64_t records_floats() const {
    const std::int64_t max_records = workload_.max_records;
    if (max_records == 0) return 0;
    return 3 * kda_conv_record_floats(max_records, width_) +
           kda_qkg_record_floats(max_records, width_) + max_records * width_ +
           max_records * kda_beta_record_stride(workload_.num_heads);
  }
  std::size_t slot_bytes() const {
    return static_cast<std::size_t>(state_floats() + window_floats() + records_floats()) *
           sizeof(float);
  }

  // A row of projections as a forward step makes them: [q | k | v | f_a | gate | beta].
  std::int64_t projected_width() const {
    return 4 * width_ + workload_.head_dim + workload_.num_heads;
  }

  void next_slot() { slot_ = slot_ + 1 < num_slots_ ? slot_ + 1 : 0; }

  void run(ExecutionContext& context, SequenceRow row) {
    row.first_position = 100;
    row.state_page = SlotId(slot_);
    args_.rows = std::span(&row, 1);
    kda_step(context, args_);
  }

  KdaWorkload workload_;
  std::int64_t width_;
  AlignedBuffer<float> projected_, decay_, o_, constants_, decay_rate_;
  std::int64_t num_slots_;
  std::span<std::byte> pages_;
  std::int32_t slot_ = 0;
  KdaStepArgs args_;
  ReplayRecords records_;
};

void run_kda(benchmark::State& state, const KdaWorkload& workload, int num_threads) {
  KdaCall call(fmt::format("kda/{}", workload.name), workload);
  {
    Runner runner(num_threads);
    for (auto _ : state) call.advance(runner.context);
  }
  report(state, call.work(), num_threads);
}

// What a state full of very small values costs, as a ratio to an ordinary one: the median of nine
// alternating pairs. At the limit of what is ever stored it should be 1; `denormal` is a state
// that the rule of docs/numerics.md keeps from arising, and shows what the rule is for.
void run_kda_tiny(benchmark::State& state) {
  constexpr int kPairs = 9;
  constexpr int kCalls = 20;
  KdaCall call("kda/tiny", {"tiny", 32, 128, 1, Source::kHot});
  Runner runner(1);
  const std::vector<float> ordinary(call.state().begin(), call.state().end());
  const auto time_state = [&](float factor) {
    for (std::size_t i = 0; i < ordinary.size(); ++i) {
      // At least `factor`: nothing smaller than 2^-64 is ever stored.
      call.state()[i] = factor * (ordinary[i] < 0 ? ordinary[i] - 1.0f : ordinary[i] + 1.0f);
    }
    call.look(runner.context);
    const Seconds begin = now();
    for (int i = 0; i < kCalls; ++i) call.look(runner.context);
    return (now() - begin).count();
  };
  for (auto _ : state) {
    std::map<std::string, std::vector<double>> ratios;
    double total = 0;
    for (int pair = 0; pair < kPairs; ++pair) {
      const double usual = time_state(1.0f);
      ratios["tiny"].push_back(time_state(0x1p-64f) / usual);
      ratios["denormal"].push_back(time_state(0x1p-128f) / usual);
      total += usual;
    }
    for (auto& [name, values] : ratios) {
      std::ranges::sort(values);
      state.counters[name + "_ratio"] = values[kPairs / 2];
      state.counters[name + "_min"] = values.front();
      state.counters[name + "_max"] = values.back();
    }
    state.SetIterationTime(total / (kPairs * kCalls));
  }
}

double median(std::vector<double>& values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

// Verify rounds, with no and with all records pending, beside decode steps; states and records from
// memory. Each iteration times one of each in turn, and the ratios are of one iteration; reported
// are medians, which a row that was interrupted does not move:
//   to_bar_P    a round over the larger of a decode step and the time that its tokens and records
//               take where the state of the head is in the cache
//   gain        8 decode steps over a round of 1 + 7 tokens with 3 pending
void run_verify(benchmark::State& state, const VerifyWorkload& workload, int num_threads) {
  constexpr int kHotCalls = 16;
  const std::int32_t drafts = workload.max_records;
  KdaCall cold(fmt::format("verify/{}", workload.name),
               {workload.name, workload.num_heads, workload.head_dim, 1 + drafts, Source::kMemory,
                workload.max_records});
  // One head, whose state fits the second level. It lies where the first slot of `cold` does.
  KdaCall hot("verify/hot", {"hot", 1, workload.head_dim, 1, Source::kHot});
  Runner runner(num_threads);
  const auto time = [](int count, const auto& call) {
    const Seconds begin = now();
    for (int i = 0; i < count; ++i) call();
    return (now() - begin).count() / count;
  };
  const auto time_verify = [&](std::int32_t pending) {
    return time(1, [&] { cold.verify(runner.context, pending, drafts); });
  };
  // Leaves records of a sequence in every slot.
  for (std::int64_t i = 0; i < cold.num_slots(); ++i) cold.verify(runner.context, 0, drafts);
  std::map<std::string, std::vector<double>> seen;
  for (auto _ : state) {
    const double decode = time(1, [&] { cold.advance(runner.context, 1); });
    time(kHotCalls, [&] { hot.advance(runner.context); });
    const double head_token = time(kHotCalls, [&] { hot.advance(runner.context); });
    const double token = head_token * ceil_div(workload.num_heads, num_threads);
    seen["decode_us"].push_back(1e6 * decode);
    seen["token_us"].push_back(1e6 * token);
    double total = decode;
    for (const std::int32_t pending : {0, 3, drafts}) {
      const double verify = time_verify(pending);
      const std::string name = pending == 0 ? "0" : pending == drafts ? "M" : "3";
      seen["verify_us_" + name].push_back(1e6 * verify);
      seen["to_bar_" + name].push_back(verify / std::max(decode, (pending + 1 + drafts) * token));
      if (pending == 3 && drafts == 7) seen["gain"].push_back(8 * decode / verify);
      total += verify;
    }
    state.SetIterationTime(total);
  }
  for (auto& [name, values] : seen) state.counters[name] = median(values);
}

// Rounds over 40 MiB of states, for a tool that counts cache misses: what two of them count more
// than one is what one of them costs.
void run_misses(benchmark::State& state, std::int32_t num_heads, std::int32_t num_drafts) {
  const std::int32_t num_slots = 640 / num_heads;
  KdaCall call(fmt::format("misses/{}", num_drafts),
               {"misses", num_heads, 128, 1 + num_drafts, Source::kHot, num_drafts}, num_slots);
  Runner runner(1);
  for (auto _ : state) {
    for (std::int64_t i = 0; i < num_slots; ++i) {
      if (num_drafts == 0) call.advance(runner.context);
      if (num_drafts > 0) call.verify(runner.context, num_drafts, num_drafts);
    }
  }
}

void run_mla(benchmark::State& state, const MlaWorkload& workload, int num_threads) {
  constexpr std::int32_t kTokensPerBlock = 32;
  const std::int64_t row_bytes = std::int64_t{workload.width} * dtype_bytes(workload.dtype);
  const std::size_t sequence_bytes = static_cast<std::size_t>(workload.num_keys * row_bytes);
  const std::int64_t sequences = num_pieces(workload.source, sequence_bytes);
  const auto pages = working_set(fmt::format("mla/{}", workload.name),
                                 static_cast<std::size_t>(sequences) * sequence_bytes);
  const std::int32_t blocks = workload.num_keys / kTokensPerBlock;
  // Blocks of all sequences, interleaved as they are when sequences grow side by side.
  std::vector<std::vector<SlotId>> tables(static_cast<std::size_t>(sequences));
  for (std::int32_t slot = 0; slot < sequences * blocks; ++slot) {
    tables[static_cast<std::size_t>(slot % sequences)].push_back(SlotId(slot));
  }
  const AlignedBuffer<float> q =
      random_floats(std::int64_t{workload.num_tokens} * workload.heads * workload.width);
  AlignedBuffer<float> latent(
      static_cast<std::size_t>(workload.num_tokens * workload.heads * workload.rank));
  SequenceRow row = {.first_token = 0,
                     .num_tokens = workload.num_tokens,
                     .first_position = workload.num_keys - workload.num_tokens,
                     .block_table = {},
                     .state_page = {},
                     .writes = {}};
  const MlaAttentionArgs args = {
      .q = q.data(),
      .q_stride = std::int64_t{workload.heads} * workload.width,
      .latent = latent.data(),
      .latent_stride = std::int64_t{workload.heads} * workload.rank,
      .heads = workload.heads,
      .rank = workload.rank,
      .scale = 0.05f,
      .pages = {.base = pages.data(),
                .slot_stride = kTokensPerBlock * row_bytes,
                .token_stride = row_bytes,
                .num_slots = static_cast<std::int32_t>(sequences) * blocks,
                .tokens_per_block = kTokensPerBlock,
                .width = workload.width,
                .dtype = workload.dtype},
      .rows = std::span(&row, 1)};
  {
    Runner runner(num_threads);
    std::size_t sequence = 0;
    for (auto _ : state) {
      row.block_table = tables[sequence];
      mla_attention(runner.context, args);
      sequence = sequence + 1 < tables.size() ? sequence + 1 : 0;
    }
  }
  // Token t of n attends to keys - n + 1 + t of them.
  const double pairs = workload.num_tokens * (workload.num_keys - 0.5 * (workload.num_tokens - 1));
  report(state,
         {.bytes = static_cast<double>(sequence_bytes + (q.size() + latent.size()) * sizeof(float)),
          .operations = 2.0 * pairs * workload.heads * (workload.width + workload.rank),
          .footprint = pages.size()},
         num_threads);
}

// Registers each workload with one thread and with all. Some take the
// time themselves.
template <class Workload, class Run>
void register_workloads(std::string_view kernel, const Workload& workloads, Run run,
                        bool measures_itself = false) {
  const int all = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  for (const auto& workload : workloads) {
    for (const int num_threads : {1, all}) {
      const std::string name = fmt::format("{}/{}/threads:{}", kernel, workload.name, num_threads);
      auto* registered = benchmark::RegisterBenchmark(
          name.c_str(), [=](benchmark::State& state) { run(state, workload, num_threads); });
      measures_itself ? registered->UseManualTime() : registered->UseRealTime();
      if (all == 1) break;
    }
  }
}

void register_misses() {
  for (const std::int32_t num_heads : {32, 6}) {
    for (const std::int32_t num_drafts : {0, 3, 7}) {
      for (const int rounds : {1, 2}) {
        const std::string name = fmt::format("kda_step/misses/{}_heads/{}_drafts/rounds:{}",
                                             num_heads, num_drafts, rounds);
        benchmark::RegisterBenchmark(name.c_str(), [=](benchmark::State& state) {
          run_misses(state, num_heads, num_drafts);
        })->Iterations(rounds);
      }
    }
  }
}

[[maybe_unused]] const bool registered = [] {
  benchmark::AddCustomContext("target", std::string(to_string(best_target())));
  benchmark::AddCustomContext("compiler", __VERSION__);
  register_workloads("matmul", kMatmulWorkloads, run_matmul);
  register_workloads("kda_step", kKdaWorkloads, run_kda);
  benchmark::RegisterBenchmark("kda_step/tiny_state", run_kda_tiny)->UseManualTime()->Iterations(1);
  register_workloads("kda_step/verify", kVerifyWorkloads, run_verify, true);
  register_misses();
  register_workloads("mla_attention", kMlaWorkloads, run_mla);
  return true;
}();

}  // namespace
}  // namespace slackwater::kernels
