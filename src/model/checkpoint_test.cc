#include "slackwater/model/checkpoint.h"

#include <sys/wait.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>

#include "model/file_test_support.h"
#include "slackwater/model/config.h"

namespace slackwater::model {
namespace {

using testing::ElementsAre;

std::filesystem::path demo_directory() {
  return std::filesystem::path(SLACKWATER_SOURCE_DIR) / "models/demo";
}

std::string text_of(const TensorView& tensor) {
  return {reinterpret_cast<const char*>(tensor.bytes.data()), tensor.bytes.size()};
}

std::vector<std::string> names_of(const Checkpoint& checkpoint) {
  std::vector<std::string> names;
  for (const TensorView& tensor : checkpoint.tensors()) names.emplace_back(tensor.name);
  return names;
}

// An index whose weight_map has these members.
std::string index_of(std::string_view weight_map) {
  return fmt::format(R"({{"metadata":{{"total_size":7,"deep":[{{}}]}},"weight_map":{{{}}}}})",
                     weight_map);
}

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";
constexpr std::string_view kMap = R"("c":"model-00001-of-00002.safetensors",)"
                                  R"("a":"model-00002-of-00002.safetensors",)"
                                  R"("b":"model-00001-of-00002.safetensors")";

// b and c in the first shard, a in the second.
void write_shards(const TempDirectory& directory) {
  directory.write(kFirst, safetensors_of({{"c", "ccc"}, {"b", "bb"}}));
  directory.write(kSecond, safetensors_of({{"a", "a"}}));
  directory.write(kIndex, index_of(kMap));
}

void expect_damaged(const TempDirectory& directory, std::initializer_list<std::string_view> parts) {
  expect_refused(Checkpoint::open(directory.path()), ErrorCode::kDataLoss, parts);
  expect_refused(Checkpoint::open(directory.path()), ErrorCode::kDataLoss,
                 {directory.path().string()});
}

TEST(Checkpoint, OpensASingleFile) {
  const TempDirectory directory;
  directory.write("model.safetensors", safetensors_of({{"z", "zz"}, {"m", "m"}}));
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_THAT(names_of(*checkpoint), ElementsAre("m", "z"));
  EXPECT_EQ(checkpoint->total_bytes(), 3u);
  EXPECT_EQ(checkpoint->num_shards(), 1u);
  EXPECT_EQ(checkpoint->num_ignored(), 0u);
}

TEST(Checkpoint, GathersTheTensorsOfAllShards) {
  const TempDirectory directory;
  write_shards(directory);
  auto opened = Checkpoint::open(directory.path());
  ASSERT_TRUE(opened.has_value()) << opened.error().text();
  const Checkpoint checkpoint = *std::move(opened);
  EXPECT_THAT(names_of(checkpoint), ElementsAre("a", "b", "c"));
  EXPECT_EQ(checkpoint.total_bytes(), 6u);
  EXPECT_EQ(checkpoint.num_shards(), 2u);
  for (const char* const name : {"a", "bb", "ccc"}) {
    const auto tensor = checkpoint.find({name, 1});
    ASSERT_TRUE(tensor.has_value()) << tensor.error().text();
    EXPECT_EQ(text_of(*tensor), name);
  }
}

TEST(Checkpoint, NamesTheTensorAndTheDirectoryOfAMiss) {
  const TempDirectory directory;
  write_shards(directory);
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  for (const char* const name : {"aa", "", "A", "d"}) {
    expect_refused(checkpoint->find(name), ErrorCode::kNotFound,
                   {fmt::format("tensor '{}' is not among the 3 tensors; ", name)});
  }
}

TEST(Checkpoint, TellsWhatADirectoryLacks) {
  const TempDirectory directory;
  expect_refused(Checkpoint::open(directory.path()), ErrorCode::kNotFound,
                 {directory.path().string(), "holds neither model.safetensors nor", kIndex});
  expect_refused(Checkpoint::open(directory.path() / "absent"), ErrorCode::kNotFound,
                 {(directory.path() / "absent").string(), "does not exist"});
  const auto file = directory.write("file", "x");
  expect_refused(Checkpoint::open(file), ErrorCode::kInvalidArgument,
                 {file.string(), "is not a directory"});
}

TEST(Checkpoint, RefusesADirectoryWithBothForms) {
  const TempDirectory directory;
  write_shards(directory);
  directory.write("model.safetensors", safetensors_of({{"a", "a"}}));
  expect_refused(Checkpoint::open(directory.path()), ErrorCode::kInvalidArgument,
                 {directory.path().string(), "holds both model.safetensors and", kIndex});
}

TEST(Checkpoint, NamesAShardThatIsMissing) {
  const TempDirectory directory;
  write_shards(directory);
  ASSERT_TRUE(std::filesystem::remove(directory.path() / kSecond));
  expect_refused(Checkpoint::open(directory.path()), ErrorCode::kNotFound,
                 {(directory.path() / kSecond).string()});
}

TEST(Checkpoint, NamesAShardThatIsDamaged) {
  const TempDirectory directory;
  write_shards(directory);
  directory.write(kSecond, "short");
  expect_damaged(directory, {kSecond, "too few"});
}

TEST(Checkpoint, RefusesAMappedTensorThatItsShardLacks) {
  const TempDirectory directory;
  write_shards(directory);
  directory.write(kIndex, index_of(fmt::format(R"({},"d":"{}")", kMap, kSecond)));
  expect_damaged(directory, {kSecond, "lacks tensor 'd'"});
}

TEST(Checkpoint, RefusesATensorThatTheIndexDoesNotName) {
  const TempDirectory directory;
  write_shards(directory);
  directory.write(kSecond, safetensors_of({{"a", "a"}, {"extra", "e"}}));
  expect_damaged(directory, {kSecond, "holds tensor 'extra', which the index does not name"});
}

TEST(Checkpoint, RefusesATensorThatIsInTwoShards) {
  const TempDirectory directory;
  write_shards(directory);
  directory.write(kSecond, safetensors_of({{"a", "a"}, {"b", "bb"}}));
  expect_damaged(directory, {kSecond, "holds tensor 'b', which the index places in", kFirst});
}

TEST(Checkpoint, RefusesShardNamesThatAreNotPlain) {
  const TempDirectory directory;
  // Each would be a sound shard if the name were followed.
  std::filesystem::create_directory(directory.path() / "sub");
  directory.write("sub/a.safetensors", safetensors_of({{"a", "a"}}));
  directory.write("weights-of-a.bin", safetensors_of({{"a", "a"}}));
  directory.write("a..safetensors", safetensors_of({{"a", "a"}}));
  directory.write("a\\b.safetensors", safetensors_of({{"a", "a"}}));
  directory.write("a\nb.safetensors", safetensors_of({{"a", "a"}}));
  for (const std::string& name :
       {std::string("sub/a.safetensors"), std::string("../a.safetensors"),
        (directory.path() / "sub/a.safetensors").string(), std::string("weights-of-a.bin"),
        std::string("a..safetensors"), std::string(R"(a\\b.safetensors)"),
        std::string(R"(a\nb.safetensors)"), std::string(".safetensors"), std::string(".."),
        std::string(), std::string(300, 'a') + ".safetensors"}) {
    SCOPED_TRACE(name);
    directory.write(kIndex, index_of(fmt::format(R"("a":"{}")", name)));
    expect_damaged(directory, {"weight_map: expected a plain file name ending in .safetensors",
                               "for tensor 'a', found the string '"});
  }
}

TEST(Checkpoint, RefusesADamagedIndex) {
  const TempDirectory directory;
  write_shards(directory);
  const std::pair<std::string, const char*> cases[] = {
      {"", "is empty"},
      {"{", "malformed JSON at byte 1"},
      {std::string("{}\0", 3), "malformed JSON at byte 2: a zero byte"},
      {"[]", "expected an object with 'weight_map', found a list"},
      {"3", "expected an object with 'weight_map', found the number 3"},
      {"{}", "field 'weight_map' is missing"},
      {R"({"weight_map":{}})", "weight_map names no tensor"},
      {R"({"weight_map":3})", "weight_map: expected an object, found the number 3"},
      {R"({"weight_map":[]})", "weight_map: expected an object of file names, found a list"},
      {R"({"weight_map":{"a":3}})", "expected a file name for tensor 'a', found the number 3"},
      {R"({"weight_map":{"a":null}})", "expected a file name for tensor 'a', found null"},
      {R"({"weight_map":{"a":{}}})", "weight_map: expected file names as values, found an object"},
      {R"({"weight_map":{"a":["x"]}})", "expected an object of file names, found a list"},
      {R"({"weight_map":{"a":"x.safetensors"},"weight_map":{}})", "weight_map appears twice"},
      {R"({"weight_map":{"a":"x.safetensors","\u0061":"x.safetensors"}})",
       "weight_map names tensor 'a' twice"},
      {R"({"metadata":)" + std::string(10'000, '[') + "}", "nested deeper than the limit of 16"}};
  for (const auto& [index, text] : cases) {
    SCOPED_TRACE(index.substr(0, 100));
    directory.write(kIndex, index);
    expect_damaged(directory, {text, kIndex});
  }
}

TEST(Checkpoint, DropsThePrefixThatAllTensorsHave) {
  const TempDirectory directory;
  directory.write("model.safetensors", safetensors_of({{"language_model.model.x", "xx"},
                                                       {"vision_tower.y", "yyy"},
                                                       {"language_model.lm_head", "h"},
                                                       {"mm_projector.z", "z"}}));
  const auto checkpoint = Checkpoint::open(directory.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_THAT(names_of(*checkpoint), ElementsAre("lm_head", "model.x"));
  EXPECT_EQ(text_of(*checkpoint->find("model.x")), "xx");
  EXPECT_EQ(checkpoint->total_bytes(), 3u);
  EXPECT_EQ(checkpoint->num_ignored(), 2u);
}

TEST(Checkpoint, RefusesAMixtureOfNamesWithAndWithoutThePrefix) {
  const TempDirectory directory;
  directory.write("model.safetensors",
                  safetensors_of({{"model.x", "x"}, {"language_model.model.x", "y"}}));
  expect_damaged(directory, {"tensor 'language_model.model.x' has the prefix 'language_model.' and "
                             "tensor 'model.x' has not"});
}

TEST(Checkpoint, ReadsTheDemoModel) {
  const auto checkpoint = Checkpoint::open(demo_directory());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();
  EXPECT_EQ(checkpoint->total_bytes(), 11'324'128u);
  const auto head = checkpoint->find("lm_head.weight");
  ASSERT_TRUE(head.has_value()) << head.error().text();
  EXPECT_THAT(head->shape, ElementsAre(2064, 192));
}

// Runs tools/make_checkpoint.py and returns its exit status and output, or nothing where there is
// no python3.
struct ToolRun {
  int status = -1;
  std::string output;
};

std::optional<ToolRun> make_checkpoint(const std::filesystem::path& out, std::string_view options) {
  const std::string command = fmt::format(
      "command -v python3 >/dev/null || exit 127; python3 -B '{}/tools/make_checkpoint.py' "
      "--out '{}' {} 2>&1",
      SLACKWATER_SOURCE_DIR, out.string(), options);
  FILE* const pipe = ::popen(command.c_str(), "r");
  if (pipe == nullptr) return std::nullopt;
  ToolRun run;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) {
    run.output.push_back(static_cast<char>(c));
  }
  run.status = WEXITSTATUS(::pclose(pipe));
  if (run.status == 127) return std::nullopt;
  return run;
}

#define SLACKWATER_MAKE_CHECKPOINT(out, options)                              \
  do {                                                                        \
    const auto run = make_checkpoint(out, options);                           \
    if (!run) GTEST_SKIP() << "no python3: tools/make_checkpoint.py not run"; \
    ASSERT_EQ(run->status, 0) << run->output;                                 \
  } while (false)

std::vector<float> values_of(const Checkpoint& checkpoint, std::string_view name) {
  const auto tensor = checkpoint.find(name);
  EXPECT_TRUE(tensor.has_value()) << tensor.error().text();
  if (!tensor.has_value()) return {};
  std::vector<float> values(static_cast<std::size_t>(tensor->num_elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (tensor->dtype == DType::kF32) {
      std::memcpy(&values[i], &tensor->bytes[4 * i], 4);
    } else {
      Bf16 half;
      std::memcpy(&half, &tensor->bytes[2 * i], 2);
      values[i] = bf16_to_f32(half);
    }
  }
  return values;
}

void expect_same_tensors(const Checkpoint& a, const Checkpoint& b, bool same_bytes) {
  ASSERT_EQ(names_of(a), names_of(b));
  for (std::size_t i = 0; i < a.tensors().size(); ++i) {
    const TensorView& x = a.tensors()[i];
    const TensorView& y = b.tensors()[i];
    EXPECT_EQ(x.dtype, y.dtype) << x.name;
    EXPECT_THAT(x.shape, testing::ElementsAreArray(y.shape)) << x.name;
    if (same_bytes) {
      EXPECT_TRUE(std::ranges::equal(x.bytes, y.bytes)) << x.name;
    }
  }
}

TEST(MakeCheckpoint, WritesExactlyTheTensorsAndTheConfigOfTheDemoModelsShape) {
  const TempDirectory directory;
  const auto out = directory.path() / "out";
  SLACKWATER_MAKE_CHECKPOINT(
      out, fmt::format("--preset tiny --mtp --tokenizer '{}' --hidden 192 --layers 8 --heads 4 "
                       "--head-dim 64 --kv-rank 64 --qk-nope 32 --qk-rope 16 --v-dim 32 "
                       "--intermediate 512 --experts 8 --expert-intermediate 64 --vocab 2064 "
                       "--max-length 32768",
                       demo_directory().string()));
  const auto demo = Checkpoint::open(demo_directory());
  const auto made = Checkpoint::open(out);
  ASSERT_TRUE(demo.has_value() && made.has_value());
  expect_same_tensors(*demo, *made, /*same_bytes=*/false);
  const auto demo_config = load_config(demo_directory());
  const auto made_config = load_config(out);
  ASSERT_TRUE(made_config.has_value()) << made_config.error().text();
  EXPECT_TRUE(*made_config == *demo_config);
  EXPECT_EQ(read_file(out / "tiktoken.model"), read_file(demo_directory() / "tiktoken.model"));
}

TEST(MakeCheckpoint, GivesTheSameTensorsForTheSameSeedHoweverTheyAreSharded) {
  const TempDirectory directory;
  const auto at = [&](const char* name) { return directory.path() / name; };
  SLACKWATER_MAKE_CHECKPOINT(at("one"), "--seed 5");
  SLACKWATER_MAKE_CHECKPOINT(at("three"), "--seed 5 --shards 3");
  SLACKWATER_MAKE_CHECKPOINT(at("other"), "--seed 6");
  const auto one = Checkpoint::open(at("one"));
  const auto three = Checkpoint::open(at("three"));
  const auto other = Checkpoint::open(at("other"));
  ASSERT_TRUE(one.has_value() && three.has_value() && other.has_value());
  EXPECT_EQ(three->num_shards(), 3u);
  expect_same_tensors(*one, *three, /*same_bytes=*/true);
  EXPECT_NE(text_of(*one->find("lm_head.weight")), text_of(*other->find("lm_head.weight")));
}

TEST(MakeCheckpoint, DrawsValuesOfTheSizeOfTrainedOnes) {
  const TempDirectory directory;
  const auto out = directory.path() / "out";
  SLACKWATER_MAKE_CHECKPOINT(out, "--full-rank-gate --gate-lower-bound -5");
  const auto config = load_config(out);
  ASSERT_TRUE(config.has_value()) << config.error().text();
  EXPECT_EQ(config->gate_lower_bound, -5.0f);
  EXPECT_TRUE(config->full_rank_output_gate);
  const auto checkpoint = Checkpoint::open(out);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().text();

  // hidden 64: standard deviation 1.6 / 8.
  double squares = 0.0;
  const std::vector<float> matrix =
      values_of(*checkpoint, "model.layers.0.self_attn.g_proj.weight");
  for (const float x : matrix) squares += double{x} * x;
  EXPECT_NEAR(std::sqrt(squares / static_cast<double>(matrix.size())), 0.2, 0.02);
  for (const float x : values_of(*checkpoint, "model.norm.weight")) EXPECT_NEAR(x, 1.0f, 0.6f);
  for (const float x : values_of(*checkpoint, "model.layers.0.self_attn.A_log")) {
    EXPECT_GE(x, 0.0f);
    EXPECT_LE(x, std::log(16.0f));
  }
  for (const float x : values_of(*checkpoint, "model.layers.0.self_attn.dt_bias")) {
    const double step = std::log1p(std::exp(double{x}));
    EXPECT_GE(step, 0.99e-3);
    EXPECT_LE(step, 0.101);
  }
}

TEST(MakeCheckpoint, RefusesArgumentsThatContradictEachOtherAndDirectoriesInUse) {
  const TempDirectory directory;
  directory.write("precious", "x");
  const std::pair<const char*, const char*> cases[] = {
      {"", "is not empty"},
      {"--head-dim 48", "--head-dim is 48; must be a multiple of 32"},
      {"--experts-per-token 5", "--experts-per-token is 5; there are 4 experts"},
      {"--vocab 256", "--vocab is 256; the tokenizer needs 264"},
      {"--gate-lower-bound 0", "must be less than 0"},
      {"--layers 0", "--layers is 0; must be at least 1"},
      {"--shards 1000", "--shards is 1000; must be from 1 to 115"}};
  for (const auto& [options, text] : cases) {
    const auto run = make_checkpoint(directory.path(), options);
    if (!run) GTEST_SKIP() << "no python3: tools/make_checkpoint.py not run";
    EXPECT_EQ(run->status, 1) << options;
    EXPECT_THAT(run->output, testing::HasSubstr(text));
  }
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory.path()), {}), 1);
}

}  // namespace
}  // namespace slackwater::model
