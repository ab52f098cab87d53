#include "cache/kinds/layer_kind_json.h"

#include <string>

namespace slackwater::cache {

nlohmann::json to_json(const LayerKind& kind) {
  if (const auto* window = std::get_if<SlidingWindow>(&kind)) {
    return {
        {"kind", "sliding window"}, {"window", window->window}, {"sinks", window->num_sink_tokens}};
  }
  return {{"kind", std::holds_alternative<Recurrent>(kind) ? "recurrent" : "full attention"}};
}

Result<LayerKind> layer_kind_from_json(const nlohmann::json& json) {
  const auto name = json.at("kind").get<std::string>();
  if (name == "full attention") return FullAttention();
  if (name == "recurrent") return Recurrent();
  if (name == "sliding window") {
    return SlidingWindow{json.at("window").get<std::int64_t>(),
                         json.at("sinks").get<std::int64_t>()};
  }
  return make_error(ErrorCode::kDataLoss, "a layer of the kind '{}'", name);
}

}  // namespace slackwater::cache
