#include "kernels/sample/sample_simd.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/reference/reference.h"
#include "kernels/sample/rank_keys.h"
#include "kernels/sample/sample_checks.h"
#include "kernels/simd_targets.h"
#include "slackwater/base/mutant.h"
#include "slackwater/base/philox.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/sample/sample_simd.cc"
#include <hwy/foreach_target.h>
#include <hwy/highway.h>

#if SLACKWATER_SIMD_PASS
#include "kernels/simd.h"

HWY_BEFORE_NAMESPACE();
namespace slackwater::kernels::HWY_NAMESPACE {
namespace {

using DI = hn::RebindToSigned<D>;
using DU = hn::RebindToUnsigned<D>;
using VI = hn::Vec<DI>;
using VU = hn::Vec<DU>;

// Tokens that one vector of Philox counters serves: each counter gives four words.
inline constexpr std::int64_t kChunk = 4 * kLanes;

// Tokens that one worker should have before a second one is woken.
inline constexpr std::int64_t kGrainTokens = 8192;

// Width in z of what top-p collects and sorts at once. A nucleus rarely reaches further below
// the best token; where it does, the next band follows.
inline constexpr float kBandWidth = 4;

// Weights below z_max - 42 are +0, so no running sum reaches its goal past the last band.
inline constexpr int kBands = 11;

// A worker's scratch: two rows padded to whole chunks (and words of a mask), and twice their
// keys with room for one more.
struct Scratch {
  float* logits;
  float* z;
  RankKey* keys;
  RankKey* spare_keys;
};

Scratch cut_scratch(std::span<std::byte> bytes, std::int32_t vocabulary) {
  const auto padded = round_up<std::int64_t>(vocabulary, 64);
  auto* keys = reinterpret_cast<RankKey*>(bytes.data());
  RankKey* spare_keys = keys + padded + 64;
  auto* floats = reinterpret_cast<float*>(spare_keys + padded + 64);
  return {.logits = floats, .z = floats + padded, .keys = keys, .spare_keys = spare_keys};
}

// `count` floats from x; past x[0, left) they are `padding`, and nothing is read there. Gives x
// itself where it has all of them, else a filled `buffer`.
HWY_INLINE const float* whole(const float* x, std::int64_t left, std::int64_t count, float padding,
                              float* buffer) {
  if (left >= count) return x;
  for (std::int64_t i = 0; i < count; ++i) buffer[i] = i < left ? x[i] : padding;
  return buffer;
}

// One vector of x[i, n), padded.
HWY_INLINE V load_padded(const float* x, std::int64_t i, std::int64_t n, float padding) {
  alignas(64) float buffer[kLanes];
  return load(whole(x + i, n - i, kLanes, padding, buffer));
}

HWY_INLINE float log_of(float x) { return hn::GetLane(log<Ops>(broadcast(x))); }

// A token and the value it was chosen by; value -infinity: there is none.
struct Best {
  float value = -HUGE_VALF;
  TokenId token = 0;
};

// The best per lane, while token ids ascend: the first of equals stays.
struct LaneBest {
  V value;
  VI token;

  HWY_INLINE void offer(V v, VI t) {
    const auto is_better = hn::Gt(v, value);
    value = hn::IfThenElse(is_better, v, value);
    token = hn::IfThenElse(hn::RebindMask(DI(), is_better), t, token);
  }

  HWY_INLINE Best best() const {
    alignas(64) float values[kLanes];
    alignas(64) std::int32_t tokens[kLanes];
    hn::Store(value, D(), values);
    hn::Store(token, DI(), tokens);
    Best best;
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_tie = values[lane] == best.value && tokens[lane] < best.token;
      if (values[lane] > best.value || is_tie) best = {values[lane], tokens[lane]};
    }
    return best;
  }
};

// Not by default initialisers: an implicit constructor is not compiled for the target.
HWY_INLINE LaneBest no_best() { return {broadcast(-HUGE_VALF), hn::Zero(DI())}; }

// The highest value, the lowest token on ties; `is_finite`: all values are finite.
HWY_INLINE Best highest(const float* x, std::int64_t n, bool& is_finite) {
  LaneBest best = no_best();
  // v - v is +0 where v is finite and NaN elsewhere; the bits of a NaN survive an or.
  V excess = broadcast(0.0f);
  VI token = hn::Iota(DI(), 0);
  for (std::int64_t i = 0; i < n; i += kLanes) {
    // Copies of the last value change nothing: their ids are higher.
    const V v = load_padded(x, i, n, x[n - 1]);
    excess = hn::Or(excess, hn::Sub(v, v));
    best.offer(v, token);
    token = hn::Add(token, hn::Set(DI(), kLanes));
  }
  is_finite = hn::AllTrue(D(), hn::Eq(excess, broadcast(0.0f)));
  return best.best();
}

HWY_INLINE Best highest(const float* x, std::int64_t n) {
  bool is_finite = false;
  return highest(x, n, is_finite);
}

// Penalties and bias, in place.
Result<void> adjust(const SampleRow& row, float* logits) {
  const SamplingParameters& parameters = row.parameters;
  for (const TokenCount& entry : row.counts) {
    float& logit = logits[entry.token];
    const float before = logit;
    logit = std::fma(-parameters.frequency_penalty, static_cast<float>(entry.count), logit);
    logit = logit - parameters.presence_penalty;
    if (!std::isfinite(logit)) {
      return tl::unexpected<Error>(overflow_by_penalties(entry.token, before, logit));
    }
  }
  for (const TokenBias& entry : row.bias) {
    float& logit = logits[entry.token];
    const float before = logit;
    logit = logit + entry.bias;
    if (SLACKWATER_MUTANT(sample_presence_always)) logit = logit - parameters.presence_penalty;
    if (logit == HUGE_VALF) {
      return tl::unexpected<Error>(overflow_by_bias(entry.token, before, entry.bias));
    }
  }
  return {};
}

// -infinity for what is not allowed; writes whole words of 64, as long as a padded row is. Words
// that allow nothing are the common case.
void apply_mask(std::span<const std::uint64_t> allowed, float* logits) {
  for (const std::uint64_t word : allowed) {
    if (word == 0) {
      std::fill_n(logits, 64, -HUGE_VALF);
    } else {
      for (std::uint64_t left = ~word; left != 0; left &= left - 1) {
        logits[std::countr_zero(left)] = -HUGE_VALF;
      }
    }
    logits += 64;
  }
}

// What turns a logit into a logprob: l_max, and the log of the f64 sum of exp(l - l_max) in
// ascending token id.
struct Normalizer {
  float l_max = 0;
  float log_sum = 0;

  float logprob(float logit) const { return (logit - l_max) - log_sum; }
};

HWY_INLINE Normalizer normalizer_of(const float* logits, std::int64_t n, float l_max) {
  alignas(64) float weights[kLanes];
  double sum = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const V l = load_padded(logits, i, n, -HUGE_VALF);
    store(exp<Ops>(hn::Sub(l, broadcast(l_max))), weights);
    for (const float weight : weights) sum += static_cast<double>(weight);
  }
  return {.l_max = l_max, .log_sum = log_of(static_cast<float>(sum))};
}

// The `wanted` > 0 first of x[0, n) by (value down, id up), to the front of `keys`; the last of
// them is at wanted - 1. Returns how many there are.
HWY_INLINE std::int64_t select_first(const float* x, std::int64_t n, std::int64_t wanted,
                                     RankKey* keys) {
  // Beyond this many the best are selected and the rest is dropped: O(n) altogether.
  const std::int64_t room = std::max<std::int64_t>(2 * wanted, 1024);
  std::int64_t count = 0;
  bool has_floor = false;
  float floor = -HUGE_VALF;  // of what is selected; later ids must lie above it
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const V v = load_padded(x, i, n, -HUGE_VALF);
    if (has_floor && hn::AllFalse(D(), hn::Gt(v, broadcast(floor)))) continue;
    const std::int64_t end = std::min<std::int64_t>(i + kLanes, n);
    for (std::int64_t token = i; token < end; ++token) {
      keys[count] = rank_key(x[token], static_cast<TokenId>(token));
      count += !has_floor || floor < x[token];
    }
    if (count < room) continue;
    count = keep_first(keys, count, wanted);
    floor = value_of(keys[wanted - 1]);
    has_floor = true;
  }
  return keep_first(keys, count, wanted);
}

// The best logprobs of a row.
void fill_top_logprobs(const float* logits, std::int64_t n, const Normalizer& normalizer,
                       std::span<TokenLogprob> top, RankKey* keys) {
  if (top.empty()) return;
  const std::int64_t count = select_first(logits, n, std::ssize(top), keys);
  std::sort(keys, keys + count, std::greater<>());
  for (std::size_t i = 0; i < top.size(); ++i) {
    const TokenId token = token_of(keys[i]);
    top[i] = {.token = token, .logprob = normalizer.logprob(logits[token])};
  }
}

// What comes at or before (z, token) in the order (z down, id up). The default: everything.
struct Cut {
  float z = -HUGE_VALF;
  TokenId token = std::numeric_limits<TokenId>::max();
};

HWY_INLINE Cut cut_at(RankKey last) { return {.z = value_of(last), .token = token_of(last)}; }

HWY_INLINE hn::Mask<D> is_within(const Cut& cut, V z, VI token) {
  const V cut_z = broadcast(cut.z);
  const auto is_early = hn::Not(hn::Gt(token, hn::Set(DI(), cut.token)));
  const auto is_tie = hn::And(hn::Eq(z, cut_z), hn::RebindMask(D(), is_early));
  return hn::Or(hn::Gt(z, cut_z), is_tie);
}

// Puts -infinity in place of z outside `cut`, or with a weight below min_p, and returns the f64
// sum of the weights that are left, in ascending token id.
HWY_INLINE double drop_and_sum(float* z, std::int64_t n, float z_max, const Cut& cut, float min_p) {
  alignas(64) float weights[kLanes];
  VI token = hn::Iota(DI(), 0);
  double total = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const V v = load(z + i);
    const auto is_early = is_within(cut, v, token);
    token = hn::Add(token, hn::Set(DI(), kLanes));
    if (hn::AllFalse(D(), is_early)) {
      store(broadcast(-HUGE_VALF), z + i);
      continue;
    }
    const V w = exp<Ops>(hn::Sub(v, broadcast(z_max)));
    const auto is_kept = hn::And(is_early, hn::Ge(w, broadcast(min_p)));
    store(hn::IfThenElse(is_kept, v, broadcast(-HUGE_VALF)), z + i);
    const V left = hn::IfThenElseZero(is_kept, w);
    // Adding +0 to a sum that is not negative changes nothing.
    if (hn::AllFalse(D(), hn::Gt(left, broadcast(0.0f)))) continue;
    store(left, weights);
    for (const float weight : weights) {
      total += static_cast<double>(weight);
      if (SLACKWATER_MUTANT(sample_total_in_float)) total = static_cast<float>(total);
    }
  }
  return total;
}

// The keys of lower <= z < upper.
HWY_INLINE std::int64_t collect_band(const float* z, std::int64_t n, float lower, float upper,
                                     RankKey* keys) {
  std::int64_t count = 0;
  for (std::int64_t i = 0; i < n; i += kLanes) {
    const V v = load(z + i);
    const auto is_inside = hn::And(hn::Ge(v, broadcast(lower)), hn::Lt(v, broadcast(upper)));
    if (hn::AllFalse(D(), is_inside)) continue;
    for (std::int64_t token = i; token < i + kLanes; ++token) {
      const float rank = SLACKWATER_MUTANT(sample_top_p_by_id) ? 0.0f : z[token];
      keys[count] = rank_key(rank, static_cast<TokenId>(token));
      count += lower <= z[token] && z[token] < upper;
    }
  }
  return count;
}

// The shortest prefix in (z down, id up) whose running sum of weights reaches `enough`.
HWY_INLINE Cut prefix_cut(const float* z, std::int64_t n, float z_max, double enough,
                          const Scratch& scratch) {
  alignas(64) float values[kLanes];
  double sum = 0;
  float upper = HUGE_VALF;
  for (int band = 1; band <= kBands; ++band) {
    const float lower = z_max - kBandWidth * static_cast<float>(band);
    const std::int64_t count = collect_band(z, n, lower, upper, scratch.keys);
    const RankKey* keys = sort_by_value(scratch.keys, scratch.spare_keys, count);
    for (std::int64_t i = 0; i < count; i += kLanes) {
      const std::int64_t lanes = std::min<std::int64_t>(kLanes, count - i);
      for (std::int64_t lane = 0; lane < kLanes; ++lane) {
        values[lane] = lane < lanes ? value_of(keys[i + lane]) : z_max;
      }
      store(exp<Ops>(hn::Sub(load(values), broadcast(z_max))), values);
      for (std::int64_t lane = 0; lane < lanes; ++lane) {
        sum += static_cast<double>(values[lane]);
        if (sum >= enough) return cut_at(keys[i + lane]);
      }
    }
    upper = lower;
  }
  return {};
}

struct Product {
  VU low;
  VU high;
};

// 32 x 32 = 64 bits per lane; all lanes of b are equal.
HWY_INLINE Product multiply(VU a, VU b) {
  const hn::RepartitionToWide<DU> wide;
  const auto even = hn::MulEven(a, b);
  const auto odd = hn::MulEven(hn::BitCast(DU(), hn::ShiftRight<32>(hn::BitCast(wide, a))), b);
  return {.low = hn::OddEven(hn::BitCast(DU(), hn::ShiftLeft<32>(odd)), hn::BitCast(DU(), even)),
          .high = hn::OddEven(hn::BitCast(DU(), odd), hn::BitCast(DU(), hn::ShiftRight<32>(even)))};
}

HWY_INLINE VU broadcast_bits(std::uint64_t bits) {
  return hn::Set(DU(), static_cast<std::uint32_t>(bits));
}

struct Words {
  VU v[4];
};

// philox_4x32_10() of kLanes counters, whose first words are `first`, `first` + 1 and on: word w
// of lane j belongs to token 4 * (first + j) + w.
HWY_INLINE Words philox(std::uint32_t first, const SampleRow& row) {
  const std::uint64_t position =
      SLACKWATER_MUTANT(sample_noise_by_row) ? 0 : static_cast<std::uint64_t>(row.position);
  Words c = {{hn::Iota(DU(), first), broadcast_bits(position), broadcast_bits(position >> 32),
              broadcast_bits(row.stream)}};
  VU key0 = broadcast_bits(row.parameters.seed);
  VU key1 = broadcast_bits(row.parameters.seed >> 32);
  for (int round = 0; round < kPhiloxRounds; ++round) {
    const Product p0 = multiply(c.v[0], broadcast_bits(kPhiloxMultiplier0));
    const Product p1 = multiply(c.v[2], broadcast_bits(kPhiloxMultiplier1));
    c = {{hn::Xor(hn::Xor(p1.high, c.v[1]), key0), p1.low, hn::Xor(hn::Xor(p0.high, c.v[3]), key1),
          p0.low}};
    key0 = hn::Add(key0, broadcast_bits(kPhiloxKeyStep0));
    key1 = hn::Add(key1, broadcast_bits(kPhiloxKeyStep1));
  }
  return c;
}

HWY_INLINE V gumbel_of(VU word) {
  const VU half = hn::ShiftRight<9>(word);
  const VU odd = hn::Add(hn::Add(half, half), broadcast_bits(1));
  return gumbel<Ops>(hn::ConvertTo(D(), hn::BitCast(DI(), odd)));
}

// The highest of the tokens that are left, its z, and the row whose noise decides.
struct Draw {
  const SampleRow& row;
  TokenId best_token;
  float z_max;
};

// Below this z no noise makes a token the winner: it would have to exceed the score of the best
// token, and noise is at most 16.64. Up to 2^16 in magnitude the roundings of z + noise, and of
// the limit itself, add up to less than 0.02.
//
// The best token by l may share its z with lower tokens, and a filter that ends among those may
// drop it. Then every token that is left has z_max, and that is above the limit.
HWY_INLINE float contender_limit(const Draw& draw) {
  if (!(-0x1p16f <= draw.z_max && draw.z_max <= 0x1p16f)) return -HUGE_VALF;
  const auto id = static_cast<std::uint32_t>(draw.best_token);
  const Words words = philox(id / 4, draw.row);
  return draw.z_max + hn::GetLane(gumbel_of(words.v[id % 4])) - 16.7f;
}

// The token with the highest z + noise within `cut`, the lowest on ties. z = x / temperature.
template <bool kDivide>
HWY_INLINE TokenId noisy_best(const float* x, std::int64_t n, const Draw& draw, const Cut& cut) {
  const V temperature = broadcast(draw.row.parameters.temperature);
  const float contender = contender_limit(draw);
  const V limit = broadcast(contender < cut.z ? cut.z : contender);
  const VI lane_tokens = hn::Mul(hn::Iota(DI(), 0), hn::Set(DI(), 4));
  alignas(64) float buffer[kChunk];
  LaneBest best = no_best();
  for (std::int64_t i = 0; i < n; i += kChunk) {
    V z[4];
    hn::LoadInterleaved4(D(), whole(x + i, n - i, kChunk, -HUGE_VALF, buffer), z[0], z[1], z[2],
                         z[3]);
    if constexpr (kDivide) {
      for (V& v : z) v = hn::Div(v, temperature);
    }
    const auto is_contender = hn::Or(hn::Or(hn::Ge(z[0], limit), hn::Ge(z[1], limit)),
                                     hn::Or(hn::Ge(z[2], limit), hn::Ge(z[3], limit)));
    if (hn::AllFalse(D(), is_contender)) continue;
    const Words words = philox(static_cast<std::uint32_t>(i / 4), draw.row);
    for (int w = 0; w < 4; ++w) {
      const VI token = hn::Add(lane_tokens, hn::Set(DI(), static_cast<std::int32_t>(i + w)));
      const V score = hn::Add(z[w], gumbel_of(words.v[w]));
      best.offer(hn::IfThenElse(is_within(cut, z[w], token), score, broadcast(-HUGE_VALF)), token);
    }
  }
  return best.best().token;
}

// z = l / T, padded with -infinity to whole chunks.
HWY_INLINE void scale(const float* logits, std::int64_t n, float temperature, float* z) {
  const std::int64_t padded = round_up(n, kChunk);
  for (std::int64_t i = 0; i < padded; i += kLanes) {
    store(hn::Div(load_padded(logits, i, n, -HUGE_VALF), broadcast(temperature)), z + i);
  }
}

TokenId draw_token(const Draw& draw, const float* logits, std::int64_t n, const Scratch& scratch) {
  const SamplingParameters& parameters = draw.row.parameters;
  const bool has_top_k = 0 < parameters.top_k && parameters.top_k < n;
  const bool has_weights = parameters.min_p > 0 || parameters.top_p < 1;
  if (!has_top_k && !has_weights) return noisy_best<true>(logits, n, draw, Cut());

  float* z = scratch.z;
  scale(logits, n, parameters.temperature, z);
  Cut cut;
  if (has_top_k) {
    select_first(z, n, parameters.top_k, scratch.keys);
    cut = cut_at(scratch.keys[parameters.top_k - 1]);
  }
  if (has_weights) {
    const double total = drop_and_sum(z, n, draw.z_max, cut, parameters.min_p);
    if (parameters.top_p < 1) {
      const double enough = static_cast<double>(parameters.top_p) * total;
      cut = prefix_cut(z, n, draw.z_max, enough, scratch);
    }
  }
  return noisy_best<false>(z, n, draw, cut);
}

// Logits of a row on their way to a token.
struct Logits {
  const float* values;
  Best best;
};

// Finite logits, with penalties and bias where there are any: then in scratch, where a mask may
// change them too.
Result<Logits> prepare(const SampleRow& row, std::int64_t n, const Scratch& scratch) {
  bool is_finite = false;
  Logits logits = {.values = row.logits, .best = highest(row.logits, n, is_finite)};
  if (!is_finite) return tl::unexpected<Error>(non_finite_logit(row.logits, n));
  const bool is_adjusted = !row.counts.empty() || !row.bias.empty();
  if (!is_adjusted && row.allowed.empty()) return logits;

  std::memcpy(scratch.logits, row.logits, static_cast<std::size_t>(n) * sizeof(float));
  logits.values = scratch.logits;
  if (!is_adjusted) return logits;
  SLACKWATER_RETURN_IF_ERROR(adjust(row, scratch.logits));
  logits.best = highest(scratch.logits, n);
  if (logits.best.value == -HUGE_VALF) return tl::unexpected<Error>(no_token_left());
  return logits;
}

Result<SampleResult> sample_row(const SampleRow& row, std::int64_t n, const Scratch& scratch) {
  SLACKWATER_ASSIGN_OR_RETURN(const Logits logits, prepare(row, n, scratch));
  const bool wants_logprob = row.wants_logprob || !row.top_logprobs.empty();
  Normalizer normalizer;
  if (wants_logprob) {
    normalizer = normalizer_of(logits.values, n, logits.best.value);
    fill_top_logprobs(logits.values, n, normalizer, row.top_logprobs, scratch.keys);
  }

  Best best = logits.best;
  if (!row.allowed.empty()) {
    apply_mask(row.allowed, scratch.logits);
    best = highest(scratch.logits, n);
    if (best.value == -HUGE_VALF) return tl::unexpected<Error>(no_token_left());
  }
  SampleResult result = {.token = best.token};
  const float temperature = row.parameters.temperature;
  if (temperature != 0) {
    const float z_max = best.value / temperature;
    if (!std::isfinite(z_max)) {
      return tl::unexpected<Error>(overflow_by_temperature(best.token, best.value, temperature));
    }
    result.token = draw_token({row, best.token, z_max}, logits.values, n, scratch);
  }
  if (wants_logprob) result.logprob = normalizer.logprob(logits.values[result.token]);
  return result;
}

}  // namespace

void sample(ExecutionContext& context, const SampleArgs& args) {
  const std::int64_t grain = std::max<std::int64_t>(1, kGrainTokens / args.vocabulary);
  context.parallel_for(std::ssize(args.rows), grain, [&](ItemRange rows, int worker) HWY_ATTR {
    const Scratch scratch = cut_scratch(context.scratch(worker), args.vocabulary);
    for (std::int64_t i = rows.begin; i < rows.end; ++i) {
      const auto row = static_cast<std::size_t>(i);
      if (!args.results[row].has_value()) continue;
      args.results[row] = sample_row(args.rows[row], args.vocabulary, scratch);
    }
  });
}

}  // namespace slackwater::kernels::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();
#endif  // SLACKWATER_SIMD_PASS

#if HWY_ONCE
namespace slackwater::kernels {

SampleFunction* sample_simd(Target target) { return SLACKWATER_SIMD_FUNCTION(target, sample); }

std::size_t sample_scratch_bytes(std::int32_t vocabulary) {
  const auto padded = round_up<std::size_t>(static_cast<std::size_t>(vocabulary), 64);
  return 2 * (padded + 64) * sizeof(RankKey) + 2 * padded * sizeof(float);
}

}  // namespace slackwater::kernels
#endif  // HWY_ONCE
