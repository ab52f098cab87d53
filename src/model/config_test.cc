#include "slackwater/model/config.h"

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include <nlohmann/json.hpp>

#include "model/file_test_support.h"

namespace slackwater::model {
namespace {

using nlohmann::json;
using testing::ElementsAre;

std::filesystem::path demo_directory() {
  return std::filesystem::path(SLACKWATER_SOURCE_DIR) / "models/demo";
}

// The demo model's config.json: 8 layers, MLA at 4 and 8 (from 1), 8 experts, 2064 tokens.
json demo() { return json::parse(read_file(demo_directory() / "config.json")); }

Result<ModelConfig> parse(const json& config) { return parse_config(config.dump(), "here"); }

using Change = std::function<void(json&)>;

Result<ModelConfig> parse_changed(const Change& change) {
  json config = demo();
  change(config);
  return parse(config);
}

// The demo's config with one member of the root, or of linear_attn_config, set to `value`.
Result<ModelConfig> parse_with(const std::string& name, const json& value) {
  return parse_changed([&](json& c) { c[name] = value; });
}
Result<ModelConfig> parse_with_linear(const std::string& name, const json& value) {
  return parse_changed([&](json& c) { c["linear_attn_config"][name] = value; });
}

void expect_invalid(const Result<ModelConfig>& config,
                    std::initializer_list<std::string_view> parts) {
  expect_refused(config, ErrorCode::kInvalidArgument, parts);
  expect_refused(config, ErrorCode::kInvalidArgument, {"here: "});
}

// The config of a draft model: dense, three layers, no prediction block.
constexpr std::string_view kDenseConfig = R"({
  "architectures": ["KimiLinearForCausalLM"], "model_type": "kimi_linear",
  "vocab_size": 2064, "hidden_size": 96, "num_hidden_layers": 3,
  "num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 24,
  "intermediate_size": 256, "hidden_act": "silu", "rms_norm_eps": 1e-05,
  "kv_lora_rank": 32, "q_lora_rank": null, "qk_nope_head_dim": 16, "qk_rope_head_dim": 16,
  "v_head_dim": 16, "mla_use_nope": true, "rope_theta": 10000.0, "rope_scaling": null,
  "first_k_dense_replace": 3, "moe_layer_freq": 1, "num_experts": 0, "num_experts_per_token": 0,
  "num_shared_experts": 0, "moe_intermediate_size": 0, "moe_router_activation_func": "sigmoid",
  "moe_renormalize": true, "routed_scaling_factor": 1.5, "use_grouped_topk": true,
  "num_expert_group": 1, "topk_group": 1,
  "linear_attn_config": {"full_attn_layers": [3], "kda_layers": [1, 2], "head_dim": 32,
                         "num_heads": 4, "short_conv_kernel_size": 4},
  "num_nextn_predict_layers": 0, "tie_word_embeddings": false, "model_max_length": 32768,
  "bos_token_id": 2048, "eos_token_id": 2049, "pad_token_id": 2050, "torch_dtype": "bfloat16"
})";

TEST(Config, ReadsEveryFieldOfTheDemoModel) {
  const auto config = load_config(demo_directory());
  ASSERT_TRUE(config.has_value()) << config.error().text();
  constexpr LayerKind K = LayerKind::kKda;
  constexpr LayerKind M = LayerKind::kMla;
  ModelConfig expected;
  expected.vocab_size = 2064;
  expected.hidden_size = 192;
  expected.num_layers = 8;
  expected.intermediate_size = 512;
  expected.rms_norm_eps = 1e-5f;
  expected.max_length = 32768;
  expected.layer_kinds = {K, K, K, M, K, K, K, M};
  expected.num_heads = 4;
  expected.kv_lora_rank = 64;
  expected.qk_nope_head_dim = 32;
  expected.qk_rope_head_dim = 16;
  expected.v_head_dim = 32;
  expected.kda_num_heads = 4;
  expected.kda_head_dim = 64;
  expected.conv_kernel_size = 4;
  expected.num_experts = 8;
  expected.num_experts_per_token = 2;
  expected.num_shared_experts = 1;
  expected.moe_intermediate_size = 64;
  expected.first_k_dense_replace = 1;
  expected.moe_layer_freq = 1;
  expected.renormalize_routing = true;
  expected.routed_scaling_factor = 1.5f;
  expected.num_mtp_layers = 1;
  expected.bos_id = 2048;
  expected.eos_ids = {2049};
  expected.pad_id = 2050;
  EXPECT_TRUE(*config == expected);
  EXPECT_EQ(config->num_kda_layers(), 6);
  EXPECT_EQ(config->num_mla_layers(), 2);
  EXPECT_EQ(config->mla_row_width(), 80);
  EXPECT_EQ(config->kda_width(), 256);
}

TEST(Config, ReadsADenseModel) {
  const auto config = parse_config(kDenseConfig, "here");
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->num_experts, 0);
  EXPECT_EQ(config->num_mtp_layers, 0);
  EXPECT_EQ(config->kda_width(), 128);
  for (std::int32_t layer = 0; layer < 3; ++layer) EXPECT_FALSE(config->is_moe_layer(layer));
}

TEST(Config, TakesTheDefaultsOfTheFormatForAbsentFields) {
  json bare = json::parse(kDenseConfig);
  for (const char* const name : {"architectures",
                                 "num_key_value_heads",
                                 "head_dim",
                                 "hidden_act",
                                 "q_lora_rank",
                                 "rope_theta",
                                 "rope_scaling",
                                 "first_k_dense_replace",
                                 "moe_layer_freq",
                                 "num_experts",
                                 "num_experts_per_token",
                                 "num_shared_experts",
                                 "moe_intermediate_size",
                                 "moe_router_activation_func",
                                 "moe_renormalize",
                                 "routed_scaling_factor",
                                 "use_grouped_topk",
                                 "num_expert_group",
                                 "topk_group",
                                 "num_nextn_predict_layers",
                                 "tie_word_embeddings",
                                 "pad_token_id",
                                 "torch_dtype"}) {
    ASSERT_EQ(bare.erase(name), 1u) << name;
  }
  const auto config = parse(bare);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  auto full = parse_config(kDenseConfig, "here");
  ASSERT_TRUE(full.has_value());
  full->pad_id.reset();
  EXPECT_TRUE(*config == *full);

  // The same for the fields that only a model with experts reads.
  const auto experts = parse_changed([](json& c) {
    for (const char* const name :
         {"num_shared_experts", "first_k_dense_replace", "moe_layer_freq", "moe_renormalize",
          "routed_scaling_factor", "moe_router_activation_func", "num_expert_group",
          "topk_group"}) {
      ASSERT_EQ(c.erase(name), 1u) << name;
    }
  });
  ASSERT_TRUE(experts.has_value()) << experts.error().text();
  EXPECT_EQ(experts->num_shared_experts, 0);
  EXPECT_EQ(experts->first_k_dense_replace, 0);
  EXPECT_EQ(experts->moe_layer_freq, 1);
  EXPECT_TRUE(experts->renormalize_routing);
  EXPECT_EQ(experts->routed_scaling_factor, 1.0f);
}

TEST(Config, NamesEachRequiredFieldThatIsMissing) {
  for (const char* const name :
       {"model_type", "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "rms_norm_eps", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
        "v_head_dim", "num_experts_per_token", "moe_intermediate_size", "model_max_length",
        "bos_token_id", "eos_token_id"}) {
    SCOPED_TRACE(name);
    const std::string text = fmt::format("field '{}' is missing", name);
    expect_invalid(parse_changed([&](json& c) { c.erase(name); }), {text});
    expect_invalid(parse_with(name, nullptr), {text});
  }
  for (const char* const name : {"num_heads", "head_dim", "short_conv_kernel_size"}) {
    expect_invalid(parse_changed([&](json& c) { c["linear_attn_config"].erase(name); }),
                   {fmt::format("field 'linear_attn_config.{}' is missing", name)});
  }
}

TEST(Config, RefusesSizesThatAreNotCountsWithinTheLimit) {
  const json values[] = {0,
                         -3,
                         kMaxModelSize + 1,
                         1.5,
                         "7",
                         true,
                         json::array({1}),
                         json::object(),
                         std::numeric_limits<std::uint64_t>::max(),
                         std::numeric_limits<std::int64_t>::min()};
  for (const char* const name :
       {"vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads",
        "intermediate_size", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim",
        "num_experts_per_token", "moe_intermediate_size", "moe_layer_freq", "model_max_length"}) {
    for (const json& value : values) {
      SCOPED_TRACE(fmt::format("{} = {}", name, value.dump()));
      if (std::string_view(name) == "num_experts_per_token" && value == kMaxModelSize + 1) continue;
      expect_invalid(parse_with(name, value), {fmt::format("field '{}' is ", name),
                                               "; must be a "
                                               "whole number from "});
    }
  }
  for (const char* const name : {"num_heads", "head_dim"}) {
    for (const json& value : values) {
      expect_invalid(parse_with_linear(name, value),
                     {fmt::format("field 'linear_attn_config.{}' is ", name),
                      "; must be a whole number from 1 to 16777216"});
    }
  }
  expect_invalid(parse_with("hidden_size", -3), {"field 'hidden_size' is -3; must be a whole "
                                                 "number from 1 to 16777216"});
  expect_invalid(parse_with("hidden_size", "big"), {"field 'hidden_size' is 'big'; "});
}

TEST(Config, TakesASizeAtTheLimit) {
  const auto config = parse_with("vocab_size", kMaxModelSize);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->vocab_size, kMaxModelSize);
}

TEST(Config, BoundsTheWidthsThatAreProductsOfSizes) {
  const auto with_two = [](const char* a, std::int32_t x, const char* b, std::int32_t y) {
    return parse_changed([&](json& c) {
      json& linear = c["linear_attn_config"];
      (linear.contains(a) ? linear : c)[a] = x;
      (linear.contains(b) ? linear : c)[b] = y;
    });
  };
  EXPECT_TRUE(with_two("num_heads", 1 << 18, "head_dim", 64).has_value());
  expect_invalid(with_two("num_heads", (1 << 18) + 1, "head_dim", 64),
                 {"num_heads * head_dim is 16777280; the limit of a width is 16777216"});
  expect_invalid(with_two("num_heads", 1 << 24, "head_dim", 1024), {"17179869184"});
  expect_invalid(with_two("kv_lora_rank", (1 << 24) - 15, "qk_rope_head_dim", 16),
                 {"kv_lora_rank + qk_rope_head_dim is 16777217"});
  expect_invalid(with_two("num_shared_experts", 1 << 20, "moe_intermediate_size", 17),
                 {"num_shared_experts * moe_intermediate_size is"});
  const auto with_heads = [](const char* name) {
    return parse_changed([&](json& c) {
      c["num_attention_heads"] = c["num_key_value_heads"] = 1 << 12;
      c[name] = 1 << 12;
    });
  };
  expect_invalid(with_heads("qk_rope_head_dim"), {"(qk_nope_head_dim + qk_rope_head_dim) is"});
  expect_invalid(with_heads("v_head_dim"), {"(qk_nope_head_dim + v_head_dim) is"});
}

TEST(Config, RefusesNumbersThatAFloatCannotHold) {
  for (const json& value : {json(0.0), json(-1e-5), json(1e-60)}) {
    expect_invalid(parse_with("rms_norm_eps", value),
                   {"field 'rms_norm_eps' is ", "; must be greater than 0 as a float"});
    expect_invalid(parse_with("routed_scaling_factor", value),
                   {"field 'routed_scaling_factor' is ", "; must be greater than 0 as a float"});
  }
  for (const json& value : {json("1e-5"), json(1e60), json(true), json::array()}) {
    expect_invalid(parse_with("rms_norm_eps", value), {"field 'rms_norm_eps' is "});
    expect_invalid(parse_with("routed_scaling_factor", value),
                   {"field 'routed_scaling_factor' is "});
    expect_invalid(parse_with_linear("gate_lower_bound", value),
                   {"field 'linear_attn_config.gate_lower_bound' is "});
  }
}

TEST(Config, TakesWholeNumbersForReals) {
  const auto config = parse_with("routed_scaling_factor", 2);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->routed_scaling_factor, 2.0f);
}

TEST(Config, ReadsBothGateForms) {
  const auto softplus = parse(demo());
  ASSERT_TRUE(softplus.has_value()) << softplus.error().text();
  EXPECT_FALSE(softplus->gate_lower_bound.has_value());
  EXPECT_FALSE(softplus->full_rank_output_gate);

  const auto bounded = parse_changed([](json& c) {
    c["linear_attn_config"]["gate_lower_bound"] = -5;
    c["linear_attn_config"]["use_full_rank_gate"] = true;
  });
  ASSERT_TRUE(bounded.has_value()) << bounded.error().text();
  EXPECT_EQ(bounded->gate_lower_bound, -5.0f);
  EXPECT_TRUE(bounded->full_rank_output_gate);
}

TEST(Config, RefusesAGateBoundThatIsNotNegative) {
  for (const json& value : {json(0.0), json(5), json(-1e-60)}) {
    expect_invalid(parse_with_linear("gate_lower_bound", value),
                   {"field 'linear_attn_config.gate_lower_bound' is ", "; must be less than 0"});
  }
}

Result<ModelConfig> parse_with_layers(const json& kda, const json& full) {
  return parse_changed([&](json& c) {
    c["linear_attn_config"]["kda_layers"] = kda;
    c["linear_attn_config"]["full_attn_layers"] = full;
  });
}

TEST(Config, RefusesLayerListsThatContradictEachOther) {
  expect_invalid(parse_with_layers({1, 2, 3, 4, 5, 6, 7}, {4, 8}),
                 {"layer 4 is in kda_layers and in full_attn_layers"});
  expect_invalid(parse_with_layers({1, 2, 3, 5, 5, 6, 7}, {4, 8}),
                 {"layer 5 is twice in kda_layers"});
  expect_invalid(parse_with_layers({1, 2, 3, 5, 6, 7}, {8, 4, 8}),
                 {"layer 8 is twice in full_attn_layers"});
  expect_invalid(parse_with_layers({1, 2, 3, 5, 7}, {4, 8}),
                 {"layer 6 of 8 is in neither kda_layers nor full_attn_layers"});
  expect_invalid(parse_with_layers(json::array(), json::array()), {"layer 1 of 8 is in neither"});
  // Lists that count from 0 are the classic mistake.
  expect_invalid(
      parse_with_layers({0, 1, 2, 4, 5, 6}, {3, 7}),
      {"field 'linear_attn_config.kda_layers' is 0; must be a whole number from 1 to 8"});
  expect_invalid(parse_with_layers({1, 2, 3, 5, 6, 7}, {4, 9}),
                 {"field 'linear_attn_config.full_attn_layers' is 9; ", "from 1 to 8"});
  expect_invalid(parse_with_layers({1, 2.0}, {4}), {"kda_layers' is 2.0; must be a whole number"});
  expect_invalid(parse_with_layers("1-7", {8}), {"kda_layers' is '1-7'; must be a list"});
  expect_invalid(parse_with("num_hidden_layers", 7),
                 {"field 'linear_attn_config.full_attn_layers' is 8; ", "from 1 to 7"});
  expect_invalid(parse_with("num_hidden_layers", 9), {"layer 9 of 9 is in neither"});
  expect_invalid(parse_with("linear_attn_config", 3),
                 {"field 'linear_attn_config' is 3; must be an object"});
}

TEST(Config, TakesLayerListsInAnyOrder) {
  const auto config = parse_with_layers({7, 6, 5, 3, 2, 1}, {8, 4});
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->layer_kinds[3], LayerKind::kMla);
  EXPECT_EQ(config->num_kda_layers(), 6);
}

TEST(Config, ReadsAModelOfKdaLayersOnlyWithoutMlaFields) {
  for (const json& empty : {json(nullptr), json::array()}) {
    const auto config = parse_changed([&](json& c) {
      c["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4, 5, 6, 7, 8};
      c["linear_attn_config"]["full_attn_layers"] = empty;
      c["num_nextn_predict_layers"] = 0;
      for (const char* const name :
           {"num_attention_heads", "num_key_value_heads", "kv_lora_rank", "qk_nope_head_dim",
            "qk_rope_head_dim", "v_head_dim", "mla_use_nope"}) {
        c.erase(name);
      }
    });
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_EQ(config->num_kda_layers(), 8);
    EXPECT_EQ(config->num_mla_layers(), 0);
    EXPECT_EQ(config->mla_row_width(), 0);
  }
}

TEST(Config, AsksForMlaFieldsWhereOnlyThePredictionBlockUsesThem) {
  expect_invalid(parse_changed([](json& c) {
                   c["linear_attn_config"]["kda_layers"] = {1, 2, 3, 4, 5, 6, 7, 8};
                   c["linear_attn_config"].erase("full_attn_layers");
                   c.erase("kv_lora_rank");
                 }),
                 {"field 'kv_lora_rank' is missing"});
}

TEST(Config, ReadsAModelOfMlaLayersOnlyWithoutKdaFields) {
  const Change changes[] = {
      [](json& c) { c.erase("linear_attn_config"); },
      [](json& c) { c["linear_attn_config"] = nullptr; },
      [](json& c) {
        c["linear_attn_config"] = {{"full_attn_layers", {1, 2, 3, 4, 5, 6, 7, 8}}};
      }};
  for (const Change& change : changes) {
    const auto config = parse_changed(change);
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_EQ(config->num_mla_layers(), 8);
    EXPECT_EQ(config->num_kda_layers(), 0);
    EXPECT_EQ(config->kda_width(), 0);
  }
}

TEST(Config, RefusesAnUnequalNumberOfKeyValueHeads) {
  expect_invalid(parse_with("num_key_value_heads", 2),
                 {"field 'num_key_value_heads' is 2; must equal num_attention_heads, 4"});
}

TEST(Config, RefusesMoreChosenExpertsThanThereAre) {
  expect_invalid(parse_with("num_experts_per_token", 9),
                 {"field 'num_experts_per_token' is 9; must not exceed num_experts, 8"});
  expect_invalid(parse_with("num_experts", 0),
                 {"field 'num_experts_per_token' is 2; must not exceed num_experts, 0"});
  EXPECT_TRUE(parse_with("num_experts_per_token", 8).has_value());
}

TEST(Config, TellsDenseLayersFromThoseWithExperts) {
  const auto kinds = [](const Change& change) {
    const auto config = parse_changed(change);
    std::string out;
    for (std::int32_t layer = 0; config.has_value() && layer < config->num_layers; ++layer) {
      out.push_back(config->is_moe_layer(layer) ? 'x' : '.');
    }
    return out;
  };
  EXPECT_EQ(kinds([](json&) {}), ".xxxxxxx");
  EXPECT_EQ(kinds([](json& c) { c["first_k_dense_replace"] = 0; }), "xxxxxxxx");
  EXPECT_EQ(kinds([](json& c) { c["first_k_dense_replace"] = 3; }), "...xxxxx");
  EXPECT_EQ(kinds([](json& c) { c["first_k_dense_replace"] = 8; }), "........");
  EXPECT_EQ(kinds([](json& c) { c["moe_layer_freq"] = 2; }), "..x.x.x.");
  EXPECT_EQ(kinds([](json& c) { c["num_experts"] = c["num_experts_per_token"] = 0; }), "........");
}

TEST(Config, SaysWhatIsNotBuilt) {
  struct Case {
    const char* name;
    json value;
    const char* text;
  };
  const Case cases[] = {
      {"model_type", "kimi_k3", "'kimi_k3'; only 'kimi_linear' is built"},
      {"architectures", {"LlamaForCausalLM"}, "only 'KimiLinearForCausalLM' is built"},
      {"hidden_act", "situ", "'situ'; only 'silu' is built"},
      {"quantization_config", json::object(), "an object; quantised weights are not built"},
      {"attn_res_block_size", 12, "12; attention residuals are not built"},
      {"mla_use_output_gate", true, "true; an output gate of MLA layers is not built"},
      {"routed_expert_hidden_size", 64, "64; experts in a latent space are not built"},
      {"latent_moe_use_norm", true, "true; experts in a latent space are not built"},
      {"q_lora_rank", 48, "48; low-rank queries are not built"},
      {"rope_scaling", {{"type", "yarn"}}, "an object; rotary embedding is not built"},
      {"tie_word_embeddings", true, "an output layer tied to the embedding is not built"},
      {"mla_use_nope", false, "false; must be true, rotary embedding is not built"},
      {"mla_use_nope", nullptr, "null; must be true, rotary embedding is not built"},
      {"moe_router_activation_func", "softmax", "'softmax'; only 'sigmoid' is built"},
      {"topk_method", "greedy", "'greedy'; only 'noaux_tc' is built"},
      {"num_expert_group", 8, "8; only 1 is built"},
      {"topk_group", 4, "4; only 1 is built"},
      {"num_nextn_predict_layers", 2, "2; at most one prediction block is built"},
      {"torch_dtype", "float8_e4m3fn", "'float8_e4m3fn'; weights are"},
      {"dtype", "int8", "'int8'; weights are"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.name);
    expect_refused(parse_with(c.name, c.value), ErrorCode::kUnimplemented,
                   {fmt::format("here: field '{}' is ", c.name), c.text});
  }
  expect_refused(parse_with_linear("head_dim", 48), ErrorCode::kUnimplemented,
                 {"field 'linear_attn_config.head_dim' is 48; only multiples of 32 up to 1024 are "
                  "built"});
  expect_refused(parse_with_linear("head_dim", 1056), ErrorCode::kUnimplemented,
                 {"field 'linear_attn_config.head_dim' is 1056; only multiples of 32 up to 1024"});
  expect_refused(parse_with_linear("short_conv_kernel_size", 3), ErrorCode::kUnimplemented,
                 {"field 'linear_attn_config.short_conv_kernel_size' is 3; only 4 is built"});
}

TEST(Config, TakesExtensionsThatAreSwitchedOff) {
  for (const char* const name :
       {"quantization_config", "attn_res_block_size", "q_lora_rank", "routed_expert_hidden_size",
        "mla_use_output_gate", "rope_scaling", "latent_moe_use_norm", "tie_word_embeddings"}) {
    EXPECT_TRUE(parse_with(name, nullptr).has_value()) << name;
  }
  EXPECT_TRUE(parse_with("mla_use_output_gate", false).has_value());
  EXPECT_TRUE(parse_with("topk_method", "noaux_tc").has_value());
  for (const char* const dtype : {"bfloat16", "float16", "float32"}) {
    EXPECT_TRUE(parse_with("torch_dtype", dtype).has_value()) << dtype;
  }
}

TEST(Config, NamesTheFieldAndItsValueWhereTheTypeIsWrong) {
  expect_invalid(parse_with("hidden_act", 3), {"field 'hidden_act' is 3; must be a string"});
  expect_invalid(parse_with("model_type", json::array()),
                 {"field 'model_type' is a list; must be a "
                  "string"});
  expect_invalid(
      parse_with("architectures", "KimiLinearForCausalLM"),
      {"field 'architectures' is 'KimiLinearForCausalLM'; must be a list of one string"});
  for (const json& value :
       {json::array(), json({"KimiLinearForCausalLM", "LlamaForCausalLM"}), json({3})}) {
    expect_invalid(parse_with("architectures", value), {"must be a list of one string"});
  }
  expect_invalid(parse_with("num_expert_group", 1.0), {"field 'num_expert_group' is 1.0; must be a "
                                                       "whole number"});
  expect_invalid(parse_with("moe_renormalize", "yes"),
                 {"field 'moe_renormalize' is 'yes'; must be true or false"});
  expect_invalid(parse_with("mla_use_nope", 1),
                 {"field 'mla_use_nope' is 1; must be true or false"});
  expect_invalid(parse_with_linear("use_full_rank_gate", 0),
                 {"field 'linear_attn_config.use_full_rank_gate' is 0; must be true or false"});
  expect_invalid(parse_with("torch_dtype", 16), {"field 'torch_dtype' is 16; "});
  expect_invalid(parse_with("num_nextn_predict_layers", -1),
                 {"field 'num_nextn_predict_layers' is -1; "});
}

TEST(Config, ReadsLengthsFromEitherField) {
  const auto config = parse_changed([](json& c) {
    c.erase("model_max_length");
    c["max_position_embeddings"] = 77;
  });
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->max_length, 77);
  EXPECT_TRUE(parse_with("max_position_embeddings", 32768).has_value());
  expect_invalid(parse_with("max_position_embeddings", 77),
                 {"field 'max_position_embeddings' is 77; but model_max_length is 32768"});
}

TEST(Config, ReadsOneOrSeveralEndTokens) {
  const auto several = parse_with("eos_token_id", {2049, 0, 2063});
  ASSERT_TRUE(several.has_value()) << several.error().text();
  EXPECT_THAT(several->eos_ids, ElementsAre(2049, 0, 2063));
  expect_invalid(parse_with("eos_token_id", json::array()), {"must name at least one token"});
  expect_invalid(parse_with("eos_token_id", {2049, 2064}),
                 {"field 'eos_token_id' is 2064; ", "from 0 to 2063"});
}

TEST(Config, RefusesTokensOutsideTheVocabulary) {
  for (const char* const name : {"bos_token_id", "eos_token_id", "pad_token_id"}) {
    for (const json& value : {json(2064), json(-1), json("[EOS]"), json(1.0)}) {
      expect_invalid(parse_with(name, value), {fmt::format("field '{}' is ", name),
                                               "; must be a whole number from 0 to 2063"});
    }
    EXPECT_TRUE(parse_with(name, 2063).has_value());
  }
}

TEST(Config, NeedsNoPaddingToken) {
  for (const Change& change : {Change([](json& c) { c.erase("pad_token_id"); }),
                               Change([](json& c) { c["pad_token_id"] = nullptr; })}) {
    const auto config = parse_changed(change);
    ASSERT_TRUE(config.has_value()) << config.error().text();
    EXPECT_FALSE(config->pad_id.has_value());
  }
}

TEST(Config, NamesTheByteWhereTheJsonIsMalformed) {
  const auto damaged = [](std::string_view text, std::string_view part) {
    expect_refused(parse_config(text, "here"), ErrorCode::kDataLoss, {"here: ", part});
  };
  damaged("", "malformed JSON at byte 0: ");
  damaged(R"({"vocab_size": })", "malformed JSON at byte 15: ");
  damaged(R"({"a": NaN})", "malformed JSON at byte 6: ");
  damaged({"{}\0", 3}, "malformed JSON at byte 2: a zero byte");
  const std::string truncated(kDenseConfig.substr(0, kDenseConfig.size() / 2));
  damaged(truncated, fmt::format("malformed JSON at byte {}: ", truncated.size()));
}

TEST(Config, RefusesARootThatIsNotAnObject) {
  expect_invalid(parse_config("[]", "here"), {"expected an object, found a list"});
  expect_invalid(parse_config("3", "here"), {"expected an object, found 3"});
}

TEST(Config, RefusesAMemberThatAppearsTwice) {
  expect_refused(parse_config(R"({"a": {"b": 1}, "c": {"b": 1, "\u0062": 2}})", "here"),
                 ErrorCode::kDataLoss, {"here: member 'b' appears twice"});
}

TEST(Config, BoundsTheDepth) {
  const auto nested = [](std::size_t depth) {
    const std::string text(kDenseConfig.substr(0, kDenseConfig.rfind('}')));
    return parse_config(
        text + ", \"deep\": " + std::string(depth, '[') + std::string(depth, ']') + "}", "here");
  };
  EXPECT_TRUE(nested(15).has_value());
  expect_refused(nested(16), ErrorCode::kDataLoss, {"nested deeper than the limit of 16"});
  expect_refused(nested(1'000'000), ErrorCode::kDataLoss, {"nested deeper than the limit of 16"});
}

TEST(Config, NamesTheFileItWasLoadedFrom) {
  const TempDirectory directory;
  expect_refused(load_config(directory.path()), ErrorCode::kNotFound,
                 {(directory.path() / "config.json").string()});
  directory.write("config.json", R"({"model_type": "llama"})");
  expect_refused(load_config(directory.path()), ErrorCode::kUnimplemented,
                 {fmt::format("'{}': field 'model_type' is 'llama'",
                              (directory.path() / "config.json").string())});
  directory.write("config.json", kDenseConfig);
  EXPECT_TRUE(load_config(directory.path()).has_value());
}

}  // namespace
}  // namespace slackwater::model
