#include "slackwater/model/config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>
#include <string>
#include <utility>

#include "model/json_events.h"
#include "slackwater/base/check.h"
#include "slackwater/base/fp_mode.h"
#include "slackwater/kernels/kda.h"
#include "slackwater/model/checkpoint.h"
#include "slackwater/model/mapped_file.h"

namespace slackwater::model {
namespace {

using nlohmann::json;

static_assert(kKdaHeadMultiple == kernels::kValueTile && kKdaMaxHeadDim == kernels::kMaxKdaHeadDim);

constexpr std::string_view kConfigFile = "config.json";
constexpr std::string_view kArchitecture = "KimiLinearForCausalLM";
constexpr std::string_view kModelType = "kimi_linear";
constexpr int kMaxDepth = 16;
// The published files have 3 KB.
constexpr std::size_t kMaxConfigBytes = std::size_t{16} << 20;

// Looks over the text before a tree is built of it: bounded depth, and no member named twice, of
// which the tree would silently keep the last.
class ConfigGuard final : public JsonEvents {
 public:
  ConfigGuard() : JsonEvents(kMaxDepth) {}

 private:
  bool on_scalar(const JsonScalar&) override { return true; }
  bool on_array_start() override { return true; }
  bool on_array_end() override { return true; }
  bool on_object_start() override {
    members_.emplace_back();
    return true;
  }
  bool on_object_end() override {
    members_.pop_back();
    return true;
  }
  bool on_key(std::string_view name) override {
    if (members_.back().emplace(name).second) return true;
    return fail(ErrorCode::kDataLoss, fmt::format("member {} appears twice", in_quotes(name)));
  }

  std::vector<std::set<std::string>> members_;  // of the objects that are open
};

std::string describe(const json& value) {
  switch (value.type()) {
    case json::value_t::object: return "an object";
    case json::value_t::array: return "a list";
    case json::value_t::string: return in_quotes(value.get_ref<const std::string&>());
    default: return value.dump();  // a number, true, false or null
  }
}

struct Range {
  std::int64_t min = 1;
  std::int64_t max = kMaxModelSize;
};
constexpr Range kCount = {0, kMaxModelSize};  // where none is legal too

// The members of one object. Reading one that is missing or wrong records an error and gives a
// value that fits the type; only the first error is kept, so a section is read in straight lines
// and checked once.
class Fields {
 public:
  // `error` is where the first refusal of this and of other objects goes.
  Fields(const json& object, std::string prefix, std::optional<Error>& error)
      : object_(object), prefix_(std::move(prefix)), error_(error) {}

  std::int32_t integer(std::string_view name, Range range = {});
  std::int32_t integer_or(std::string_view name, std::int32_t absent, Range range = {});
  float real(std::string_view name);
  bool flag_or(std::string_view name, bool absent);
  // A whole number in [1, num_layers] for each entry; empty where the member is absent.
  std::vector<std::int32_t> layers(std::string_view name, std::int32_t num_layers);
  TokenId token(std::string_view name, std::int32_t vocab_size);
  // A token or a list of at least one.
  std::vector<TokenId> tokens(std::string_view name, std::int32_t vocab_size);

  // Refuse as kUnimplemented every value but the one that is built; absent is as `absent` says.
  enum class Absent { kRefused, kFine };
  void only(std::string_view name, std::string_view built, Absent absent = Absent::kFine);
  void only(std::string_view name, std::int64_t built);
  // Refuses as kUnimplemented a member that is present and neither null nor false.
  void none(std::string_view name, std::string_view what);

  // Null where the member is absent or null, which mean the same.
  const json* find(std::string_view name) const;
  // `what` completes the sentence "field 'name' is value; ...".
  void refuse(std::string_view name, const json& value, std::string_view what,
              ErrorCode code = ErrorCode::kInvalidArgument);
  void missing(std::string_view name);

 private:
  void record(ErrorCode code, std::string text);
  const json* require(std::string_view name);
  std::int32_t to_integer(std::string_view name, const json& value, Range range);

  const json& object_;
  const std::string prefix_;
  std::optional<Error>& error_;
};

void Fields::record(ErrorCode code, std::string text) {
  if (!error_.has_value()) error_.emplace(code, std::move(text));
}

const json* Fields::find(std::string_view name) const {
  const auto at = object_.find(name);
  return at == object_.end() || at->is_null() ? nullptr : &*at;
}

void Fields::refuse(std::string_view name, const json& value, std::string_view what,
                    ErrorCode code) {
  record(code, fmt::format("field '{}{}' is {}; {}", prefix_, name, describe(value), what));
}

void Fields::missing(std::string_view name) {
  record(ErrorCode::kInvalidArgument,
         fmt::format("field '{}{}' is missing; add it", prefix_, name));
}

const json* Fields::require(std::string_view name) {
  const json* const value = find(name);
  if (value == nullptr) missing(name);
  return value;
}

std::int32_t Fields::to_integer(std::string_view name, const json& value, Range range) {
  SLACKWATER_DCHECK(range.max <= std::numeric_limits<std::int32_t>::max(), "{}", range.max);
  const bool is_small =
      value.is_number_integer() &&
      (!value.is_number_unsigned() || std::in_range<std::int64_t>(value.get<std::uint64_t>()));
  const std::int64_t number = is_small ? value.get<std::int64_t>() : -1;
  if (!is_small || number < range.min || number > range.max) {
    refuse(name, value, fmt::format("must be a whole number from {} to {}", range.min, range.max));
    return static_cast<std::int32_t>(range.min);
  }
  return static_cast<std::int32_t>(number);
}

std::int32_t Fields::integer(std::string_view name, Range range) {
  const json* const value = require(name);
  return value == nullptr ? static_cast<std::int32_t>(range.min) : to_integer(name, *value, range);
}

std::int32_t Fields::integer_or(std::string_view name, std::int32_t absent, Range range) {
  const json* const value = find(name);
  return value == nullptr ? absent : to_integer(name, *value, range);
}

float Fields::real(std::string_view name) {
  const json* const value = require(name);
  if (value == nullptr) return 1.0f;
  // A double beyond the range of float becomes infinite, or 0, which the caller's bounds refuse.
  const float number = value->is_number() ? static_cast<float>(value->get<double>())
                                          : std::numeric_limits<float>::quiet_NaN();
  if (!std::isfinite(number)) refuse(name, *value, "must be a number within the range of float");
  return number;
}

bool Fields::flag_or(std::string_view name, bool absent) {
  const json* const value = find(name);
  if (value == nullptr) return absent;
  if (!value->is_boolean()) {
    refuse(name, *value, "must be true or false");
    return absent;
  }
  return value->get<bool>();
}

std::vector<std::int32_t> Fields::layers(std::string_view name, std::int32_t num_layers) {
  const json* const value = find(name);
  std::vector<std::int32_t> out;
  if (value == nullptr) return out;
  if (!value->is_array()) {
    refuse(name, *value, "must be a list of layer numbers, counted from 1");
    return out;
  }
  for (const json& layer : *value) out.push_back(to_integer(name, layer, {1, num_layers}));
  return out;
}

TokenId Fields::token(std::string_view name, std::int32_t vocab_size) {
  return integer(name, {0, vocab_size - 1});
}

std::vector<TokenId> Fields::tokens(std::string_view name, std::int32_t vocab_size) {
  const json* const value = require(name);
  if (value == nullptr) return {};
  if (!value->is_array()) return {token(name, vocab_size)};
  if (value->empty()) refuse(name, *value, "must name at least one token");
  std::vector<TokenId> out;
  for (const json& id : *value) out.push_back(to_integer(name, id, {0, vocab_size - 1}));
  return out;
}

void Fields::only(std::string_view name, std::string_view built, Absent absent) {
  const json* const value = find(name);
  if (value == nullptr) {
    if (absent == Absent::kRefused) missing(name);
    return;
  }
  if (!value->is_string()) {
    refuse(name, *value, "must be a string");
  } else if (value->get_ref<const std::string&>() != built) {
    refuse(name, *value, fmt::format("only '{}' is built", built), ErrorCode::kUnimplemented);
  }
}

void Fields::only(std::string_view name, std::int64_t built) {
  const json* const value = find(name);
  if (value == nullptr) return;
  if (!value->is_number_integer()) {
    refuse(name, *value, "must be a whole number");
  } else if (*value != built) {
    refuse(name, *value, fmt::format("only {} is built", built), ErrorCode::kUnimplemented);
  }
}

void Fields::none(std::string_view name, std::string_view what) {
  const json* const value = find(name);
  if (value == nullptr || *value == false) return;
  refuse(name, *value, fmt::format("{} not built", what), ErrorCode::kUnimplemented);
}

// One config.json on its way into a ModelConfig.
class ConfigParser {
 public:
  explicit ConfigParser(const json& root) : fields_(root, "", error_) {}

  Result<ModelConfig> parse();

 private:
  void check_family();
  void refuse_extensions();
  void read_sizes();
  void read_linear_attention();
  void read_layer_kinds(Fields& linear);
  void read_mla();
  void read_experts();
  void read_tokens();
  void check_widths();
  void check_width(std::string_view what, std::int64_t width);
  void set_kind(std::int32_t layer, LayerKind kind);

  void contradiction(std::string text) {
    if (!error_.has_value()) error_.emplace(ErrorCode::kInvalidArgument, std::move(text));
  }

  std::optional<Error> error_;
  Fields fields_;
  ModelConfig config_;
  std::vector<std::optional<LayerKind>> kinds_;
};

Result<ModelConfig> ConfigParser::parse() {
  // Sections read what earlier ones found, so a section runs only on sound ground.
  using Section = void (ConfigParser::*)();
  for (const Section section :
       {&ConfigParser::check_family, &ConfigParser::refuse_extensions, &ConfigParser::read_sizes,
        &ConfigParser::read_linear_attention, &ConfigParser::read_mla, &ConfigParser::read_experts,
        &ConfigParser::read_tokens, &ConfigParser::check_widths}) {
    (this->*section)();
    if (error_.has_value()) return tl::unexpected<Error>(*error_);
  }
  return std::move(config_);
}

void ConfigParser::check_family() {
  fields_.only("model_type", kModelType, Fields::Absent::kRefused);
  const json* const architectures = fields_.find("architectures");
  if (architectures == nullptr) return;
  if (!architectures->is_array() || architectures->size() != 1 ||
      !architectures->at(0).is_string()) {
    fields_.refuse("architectures", *architectures, "must be a list of one string");
  } else if (architectures->at(0).get_ref<const std::string&>() != kArchitecture) {
    fields_.refuse("architectures", architectures->at(0),
                   fmt::format("only '{}' is built", kArchitecture), ErrorCode::kUnimplemented);
  }
}

// What other members of the family have and this library has not.
void ConfigParser::refuse_extensions() {
  fields_.only("hidden_act", "silu");
  fields_.none("quantization_config", "quantised weights are");
  fields_.none("attn_res_block_size", "attention residuals are");
  fields_.none("mla_use_output_gate", "an output gate of MLA layers is");
  fields_.none("routed_expert_hidden_size", "experts in a latent space are");
  fields_.none("latent_moe_use_norm", "experts in a latent space are");
  fields_.none("q_lora_rank", "low-rank queries are");
  fields_.none("rope_scaling", "rotary embedding is");
  fields_.none("tie_word_embeddings", "an output layer tied to the embedding is");
}

void ConfigParser::read_sizes() {
  config_.vocab_size = fields_.integer("vocab_size");
  config_.hidden_size = fields_.integer("hidden_size");
  config_.num_layers = fields_.integer("num_hidden_layers");
  config_.intermediate_size = fields_.integer("intermediate_size");
  config_.rms_norm_eps = fields_.real("rms_norm_eps");
  if (!(config_.rms_norm_eps > 0.0f)) {
    if (const json* const value = fields_.find("rms_norm_eps")) {
      fields_.refuse("rms_norm_eps", *value, "must be greater than 0 as a float");
    }
  }
  config_.num_mtp_layers = fields_.integer_or("num_nextn_predict_layers", 0, kCount);
  if (config_.num_mtp_layers > 1) {
    fields_.refuse("num_nextn_predict_layers", *fields_.find("num_nextn_predict_layers"),
                   "at most one prediction block is built", ErrorCode::kUnimplemented);
  }

  const char* const length =
      fields_.find("model_max_length") != nullptr ? "model_max_length" : "max_position_embeddings";
  if (fields_.find(length) == nullptr) return fields_.missing("model_max_length");
  config_.max_length = fields_.integer(length);
  if (fields_.integer_or("max_position_embeddings", config_.max_length) != config_.max_length) {
    fields_.refuse("max_position_embeddings", *fields_.find("max_position_embeddings"),
                   fmt::format("but model_max_length is {}", config_.max_length));
  }
  for (const char* const name : {"dtype", "torch_dtype"}) {
    const json* const value = fields_.find(name);
    if (value != nullptr && *value != "bfloat16" && *value != "float16" && *value != "float32") {
      fields_.refuse(name, *value, "weights are 'bfloat16', 'float16' or 'float32'",
                     value->is_string() ? ErrorCode::kUnimplemented : ErrorCode::kInvalidArgument);
    }
  }
}

void ConfigParser::read_linear_attention() {
  const json* const object = fields_.find("linear_attn_config");
  if (object == nullptr) {
    config_.layer_kinds.assign(static_cast<std::size_t>(config_.num_layers), LayerKind::kMla);
    return;
  }
  if (!object->is_object())
    return fields_.refuse("linear_attn_config", *object, "must be an object");
  Fields linear(*object, "linear_attn_config.", error_);
  read_layer_kinds(linear);
  config_.full_rank_output_gate = linear.flag_or("use_full_rank_gate", false);
  if (linear.find("gate_lower_bound") != nullptr) {
    config_.gate_lower_bound = linear.real("gate_lower_bound");
    if (*config_.gate_lower_bound >= 0.0f) {
      linear.refuse("gate_lower_bound", *linear.find("gate_lower_bound"), "must be less than 0");
    }
  }
  if (config_.num_kda_layers() == 0) return;

  config_.kda_num_heads = linear.integer("num_heads");
  config_.kda_head_dim = linear.integer("head_dim");
  if (config_.kda_head_dim % kKdaHeadMultiple != 0 || config_.kda_head_dim > kKdaMaxHeadDim) {
    if (const json* const value = linear.find("head_dim")) {
      linear.refuse(
          "head_dim", *value,
          fmt::format("only multiples of {} up to {} are built", kKdaHeadMultiple, kKdaMaxHeadDim),
          ErrorCode::kUnimplemented);
    }
  }
  config_.conv_kernel_size = linear.integer("short_conv_kernel_size");
  linear.only("short_conv_kernel_size", kConvKernelSize);
}

void ConfigParser::read_layer_kinds(Fields& linear) {
  kinds_.resize(static_cast<std::size_t>(config_.num_layers));
  for (const std::int32_t layer : linear.layers("kda_layers", config_.num_layers)) {
    set_kind(layer, LayerKind::kKda);
  }
  for (const std::int32_t layer : linear.layers("full_attn_layers", config_.num_layers)) {
    set_kind(layer, LayerKind::kMla);
  }
  for (std::size_t i = 0; i < kinds_.size(); ++i) {
    if (!kinds_[i]) {
      return contradiction(
          fmt::format("linear_attn_config: layer {} of {} is in neither kda_layers "
                      "nor full_attn_layers; name it in one of them (layers count from 1)",
                      i + 1, config_.num_layers));
    }
    config_.layer_kinds.push_back(*kinds_[i]);
  }
}

void ConfigParser::set_kind(std::int32_t layer, LayerKind kind) {
  std::optional<LayerKind>& place = kinds_[static_cast<std::size_t>(layer - 1)];
  if (place == kind) {
    contradiction(fmt::format("linear_attn_config: layer {} is twice in {}", layer,
                              kind == LayerKind::kKda ? "kda_layers" : "full_attn_layers"));
  } else if (place) {
    contradiction(
        fmt::format("linear_attn_config: layer {} is in kda_layers and in "
                    "full_attn_layers; name it in one of them",
                    layer));
  }
  place = kind;
}

void ConfigParser::read_mla() {
  if (config_.num_mla_layers() + config_.num_mtp_layers == 0) return;
  config_.num_heads = fields_.integer("num_attention_heads");
  if (fields_.integer_or("num_key_value_heads", config_.num_heads) != config_.num_heads) {
    fields_.refuse("num_key_value_heads", *fields_.find("num_key_value_heads"),
                   fmt::format("must equal num_attention_heads, {}", config_.num_heads));
  }
  config_.kv_lora_rank = fields_.integer("kv_lora_rank");
  config_.qk_nope_head_dim = fields_.integer("qk_nope_head_dim");
  config_.qk_rope_head_dim = fields_.integer("qk_rope_head_dim");
  config_.v_head_dim = fields_.integer("v_head_dim");
  if (!fields_.flag_or("mla_use_nope", false)) {
    const json* const value = fields_.find("mla_use_nope");
    fields_.refuse("mla_use_nope", value != nullptr ? *value : json(),
                   "must be true, rotary embedding is not built", ErrorCode::kUnimplemented);
  }
}

void ConfigParser::read_experts() {
  config_.num_experts = fields_.integer_or("num_experts", 0, kCount);
  const std::int32_t chosen = fields_.integer_or("num_experts_per_token", 0, kCount);
  if (chosen > config_.num_experts) {
    fields_.refuse("num_experts_per_token", *fields_.find("num_experts_per_token"),
                   fmt::format("must not exceed num_experts, {}", config_.num_experts));
  }
  if (config_.num_experts == 0) return;

  config_.num_experts_per_token = fields_.integer("num_experts_per_token");
  config_.num_shared_experts = fields_.integer_or("num_shared_experts", 0, kCount);
  config_.moe_intermediate_size = fields_.integer("moe_intermediate_size");
  config_.first_k_dense_replace = fields_.integer_or("first_k_dense_replace", 0, kCount);
  config_.moe_layer_freq = fields_.integer_or("moe_layer_freq", 1);
  config_.renormalize_routing = fields_.flag_or("moe_renormalize", true);
  if (const json* const value = fields_.find("routed_scaling_factor")) {
    config_.routed_scaling_factor = fields_.real("routed_scaling_factor");
    if (!(config_.routed_scaling_factor > 0.0f)) {
      fields_.refuse("routed_scaling_factor", *value, "must be greater than 0 as a float");
    }
  }
  fields_.only("moe_router_activation_func", "sigmoid");
  fields_.only("topk_method", "noaux_tc");
  fields_.only("num_expert_group", 1);
  fields_.only("topk_group", 1);
}

void ConfigParser::read_tokens() {
  config_.bos_id = fields_.token("bos_token_id", config_.vocab_size);
  config_.eos_ids = fields_.tokens("eos_token_id", config_.vocab_size);
  if (fields_.find("pad_token_id") != nullptr) {
    config_.pad_id = fields_.token("pad_token_id", config_.vocab_size);
  }
}

void ConfigParser::check_width(std::string_view what, std::int64_t width) {
  if (width > kMaxModelSize) {
    contradiction(fmt::format("{} is {}; the limit of a width is {}", what, width, kMaxModelSize));
  }
}

void ConfigParser::check_widths() {
  const ModelConfig& c = config_;
  const auto product = [](std::int64_t a, std::int64_t b) { return a * b; };
  check_width("linear_attn_config: num_heads * head_dim", product(c.kda_num_heads, c.kda_head_dim));
  check_width("kv_lora_rank + qk_rope_head_dim", c.mla_row_width());
  check_width("num_attention_heads * (qk_nope_head_dim + qk_rope_head_dim)",
              product(c.num_heads, std::int64_t{c.qk_nope_head_dim} + c.qk_rope_head_dim));
  check_width("num_attention_heads * (qk_nope_head_dim + v_head_dim)",
              product(c.num_heads, std::int64_t{c.qk_nope_head_dim} + c.v_head_dim));
  check_width("num_shared_experts * moe_intermediate_size",
              product(c.num_shared_experts, c.moe_intermediate_size));
}

Result<ModelConfig> parse_root(std::string_view text) {
  ConfigGuard guard;
  SLACKWATER_RETURN_IF_ERROR(read_json(text, guard));
  const json root = json::parse(text, nullptr, /*allow_exceptions=*/false);
  SLACKWATER_CHECK(!root.is_discarded(), "the guard let malformed JSON pass");
  if (!root.is_object()) {
    return make_error(ErrorCode::kInvalidArgument, "expected an object, found {}", describe(root));
  }
  return ConfigParser(root).parse();
}

}  // namespace

bool ModelConfig::is_moe_layer(std::int32_t layer) const {
  return num_experts > 0 && layer >= first_k_dense_replace && layer % moe_layer_freq == 0;
}

std::int32_t ModelConfig::num_kda_layers() const {
  return static_cast<std::int32_t>(
      std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::kKda));
}

std::int32_t ModelConfig::num_mla_layers() const {
  return static_cast<std::int32_t>(
      std::count(layer_kinds.begin(), layer_kinds.end(), LayerKind::kMla));
}

Result<ModelConfig> parse_config(std::string_view text, std::string_view where) {
  // Decimal fractions are rounded twice on the way to a float, in the mode of the numerics.
  const FpModeGuard fp_mode;
  return parse_root(text).map_error([&](const Error& error) { return error.with_context(where); });
}

Result<ModelConfig> load_config(const std::filesystem::path& directory) {
  SLACKWATER_RETURN_IF_ERROR(check_model_directory(directory));
  const std::filesystem::path path = directory / kConfigFile;
  SLACKWATER_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  const auto bytes = file.bytes();
  if (bytes.size() > kMaxConfigBytes) {
    return make_error(ErrorCode::kDataLoss, "'{}' has {} bytes, the limit is {}", path.string(),
                      bytes.size(), kMaxConfigBytes);
  }
  return parse_config({reinterpret_cast<const char*>(bytes.data()), bytes.size()},
                      fmt::format("'{}'", path.string()));
}

}  // namespace slackwater::model
