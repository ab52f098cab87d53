#include "slackwater/kernels/target.h"

#include <cstdlib>
#include <string>
#include <vector>

#include "kernels/simd_targets.h"
// After simd_targets.h, which says which targets exist.
#include <hwy/targets.h>

namespace slackwater::kernels {
namespace {

std::vector<Target> find_runnable_targets() {
  std::vector<Target> targets = {Target::kReference};
  const auto supported = hwy::SupportedTargets();
#if HWY_TARGETS & HWY_AVX2
  if (supported & HWY_AVX2) targets.push_back(Target::kAvx2);
#endif
#if HWY_TARGETS & HWY_AVX3
  if (supported & HWY_AVX3) targets.push_back(Target::kAvx512);
#endif
#if HWY_TARGETS & HWY_NEON
  if (supported & HWY_NEON) targets.push_back(Target::kNeon);
#endif
  return targets;
}

std::string list_of(std::span<const Target> targets) {
  std::string names;
  for (const Target target : targets) {
    if (!names.empty()) names += ", ";
    names += to_string(target);
  }
  return names;
}

bool is_runnable(Target target) {
  for (const Target runnable : runnable_targets()) {
    if (runnable == target) return true;
  }
  return false;
}

}  // namespace

std::string_view to_string(Target target) {
  switch (target) {
    case Target::kReference: return "reference";
    case Target::kAvx2: return "avx2";
    case Target::kAvx512: return "avx512";
    case Target::kNeon: return "neon";
  }
  SLACKWATER_CHECK(false, "target {}", static_cast<int>(target));
}

Result<Target> parse_target(std::string_view name) {
  for (const Target target : {Target::kReference, Target::kAvx2, Target::kAvx512, Target::kNeon}) {
    if (to_string(target) != name) continue;
    if (is_runnable(target)) return target;
    return make_error(ErrorCode::kUnimplemented,
                      "target {} cannot run on this machine; it can run {}", name,
                      list_of(runnable_targets()));
  }
  return make_error(ErrorCode::kInvalidArgument, "unknown target '{}'; this machine can run {}",
                    name, list_of(runnable_targets()));
}

std::span<const Target> runnable_targets() {
  static const std::vector<Target> targets = find_runnable_targets();
  return targets;
}

Result<Target> default_target() {
  const char* name = std::getenv("SLACKWATER_TARGET");
  if (name == nullptr) return runnable_targets().back();
  return parse_target(name).map_error(
      [](const Error& error) { return error.with_context("SLACKWATER_TARGET"); });
}

Target best_target() {
  const Result<Target> target = default_target();
  SLACKWATER_CHECK(target.has_value(), "{}", target.error().text());
  return *target;
}

int vector_lanes(Target target) {
  switch (target) {
    case Target::kReference: return 1;
    case Target::kAvx2: return 8;
    case Target::kAvx512: return 16;
    case Target::kNeon: return 4;
  }
  SLACKWATER_CHECK(false, "target {}", static_cast<int>(target));
}

}  // namespace slackwater::kernels
