#ifndef SLACKWATER_ENGINE_POOLS_H_
#define SLACKWATER_ENGINE_POOLS_H_

#include <cstdint>

#include "slackwater/base/error.h"
#include "slackwater/engine/engine.h"
#include "slackwater/hybrid/config.h"

namespace slackwater::engine {

// Whether the parts fit together and the configuration can work: kInvalidArgument or
// kUnimplemented, with the value, the limit and the remedy.
Result<void> validate(const EngineParts& parts, const EngineConfig& config);

// The configuration of all state: layers of the model, of its prediction block and of the draft
// model, and what the pools of each layer group get. `config` is valid.
Result<hybrid::HybridConfig> make_hybrid_config(const EngineParts& parts,
                                                const EngineConfig& config);

// Positions for which a single request finds blocks, whatever becomes of the shares: where they
// follow the load, or the host can take all that is in use, half of the blocks that there are at
// first.
Result<std::int64_t> tokens_for_one(const EngineParts& parts, const EngineConfig& config);

// Positions past a request's last token that its rows may ask room for.
std::int64_t positions_past_end(const EngineConfig& config);

}  // namespace slackwater::engine

#endif  // SLACKWATER_ENGINE_POOLS_H_
