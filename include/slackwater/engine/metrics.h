#ifndef SLACKWATER_ENGINE_METRICS_H_
#define SLACKWATER_ENGINE_METRICS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "slackwater/engine/config.h"
#include "slackwater/engine/statistics.h"

namespace prometheus {
class Registry;
}

namespace slackwater::engine {

struct EngineMetricsOptions {
  // [layer groups] the label `group`, as cache::GroupView::name has it; numbers where it is
  // shorter.
  std::vector<std::string> group_names;
  std::int32_t tokens_per_block = 32;
};

// An engine's statistics as Prometheus metrics; docs/metrics.md lists them.
//
// Nothing is counted here: update() takes a snapshot, and counters grow by what it has more than
// the one before. A figure that has become smaller is that of an engine that began anew, and counts
// from 0; the metrics go on growing.
//
// Source: the exposition format and the naming rules of Prometheus.
// Invariants:
//   I1  no counter ever decreases.
//   I2  for one engine each counter is the figure of its latest snapshot.
// Ownership: owns the registry and the metrics.
// Threads: all members may be called from any thread.
// Errors: none.
// Cost: update() some microseconds; the steps of an engine pay nothing.
class EngineMetrics {
 public:
  explicit EngineMetrics(EngineMetricsOptions options = {});
  ~EngineMetrics();

  // What the engine has done up to now; `drafter` is the one it has.
  void update(const EngineStatistics& statistics, DrafterKind drafter);

  // The exposition format, version 0.0.4: UTF-8, one line per figure.
  std::string text() const;

  // For whoever collects several registries, or adds metrics of his own.
  prometheus::Registry& registry();

 private:
  struct Parts;

  std::unique_ptr<Parts> parts_;
};

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_METRICS_H_
