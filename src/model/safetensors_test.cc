#include "slackwater/model/safetensors.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <random>
#include <set>
#include <utility>

#include "model/file_test_support.h"
#include "testing/seed.h"

namespace slackwater::model {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

Result<SafetensorsFile> parse(std::string_view file) {
  return SafetensorsFile::parse(as_byte_span(file), "some.safetensors");
}

// The bytes must outlive the result where a test looks at it.
Result<SafetensorsFile> parse_header(std::string_view header, std::size_t data_bytes) {
  return parse(safetensors_bytes(header, std::string(data_bytes, 'd')));
}

void expect_damaged(std::string_view header, std::size_t data_bytes,
                    std::initializer_list<std::string_view> parts) {
  SCOPED_TRACE(header);
  const auto file = parse_header(header, data_bytes);
  expect_refused(file, ErrorCode::kDataLoss, parts);
  expect_refused(file, ErrorCode::kDataLoss,
                 {"'some.safetensors': ", "; the file is damaged or incomplete, fetch it again"});
}

// One tensor "t" whose entry has these members; 4 bytes of data.
void expect_entry_damaged(std::string_view members, std::initializer_list<std::string_view> parts) {
  expect_damaged(fmt::format(R"({{"t":{{{}}}}})", members), 4, parts);
}

std::string text_of(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// I1 to I3, from the outside and by other means than the parser's.
void expect_invariants(const SafetensorsFile& file, std::span<const std::byte> whole) {
  const std::byte* end = nullptr;  // of the tensor before
  std::set<std::string> names;
  for (const TensorView& tensor : file.tensors()) {
    EXPECT_FALSE(tensor.name.empty());
    EXPECT_TRUE(names.emplace(tensor.name).second) << tensor.name;
    EXPECT_EQ(file.find(tensor.name), &tensor);
    EXPECT_LE(tensor.shape.size(), kMaxTensorRank);
    double product = dtype_bytes(tensor.dtype);
    for (const std::int64_t dimension : tensor.shape) {
      EXPECT_GE(dimension, 0);
      product *= static_cast<double>(dimension);
    }
    EXPECT_EQ(product, static_cast<double>(tensor.bytes.size()));
    EXPECT_GE(tensor.bytes.data(), whole.data() + 8);
    EXPECT_LE(tensor.bytes.data() + tensor.bytes.size(), whole.data() + whole.size());
    EXPECT_TRUE(end == nullptr || end == tensor.bytes.data()) << tensor.name;
    end = tensor.bytes.data() + tensor.bytes.size();
  }
  EXPECT_TRUE(end == nullptr || end == whole.data() + whole.size());
}

constexpr std::string_view kTwoTensors =
    R"({"b":{"dtype":"F32","shape":[2,1],"data_offsets":[4,12]},)"
    R"("a":{"dtype":"BF16","shape":[2],"data_offsets":[0,4]}})";

TEST(Safetensors, GivesNameDtypeShapeAndBytesOfEveryTensorInTheOrderOfTheBytes) {
  const std::string bytes = safetensors_bytes(kTwoTensors, "AAAABBBBBBBB");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  ASSERT_EQ(file->tensors().size(), 2u);
  const TensorView& a = file->tensors()[0];
  EXPECT_EQ(a.name, "a");
  EXPECT_EQ(a.dtype, DType::kBf16);
  EXPECT_THAT(a.shape, ElementsAre(2));
  EXPECT_EQ(a.num_elements(), 2);
  EXPECT_EQ(text_of(a.bytes), "AAAA");
  const TensorView& b = file->tensors()[1];
  EXPECT_EQ(b.name, "b");
  EXPECT_EQ(b.dtype, DType::kF32);
  EXPECT_THAT(b.shape, ElementsAre(2, 1));
  EXPECT_EQ(text_of(b.bytes), "BBBBBBBB");
  EXPECT_EQ(file->name(), "some.safetensors");
}

TEST(Safetensors, FindsATensorByItsWholeNameOnly) {
  const std::string bytes = safetensors_bytes(kTwoTensors, "AAAABBBBBBBB");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(file->find("a"), &file->tensors()[0]);
  EXPECT_EQ(file->find("b"), &file->tensors()[1]);
  for (const char* const absent : {"", "A", "aa", "c", "ab"})
    EXPECT_EQ(file->find(absent), nullptr);
}

TEST(Safetensors, KeepsViewsValidWhenMoved) {
  const std::string bytes = safetensors_of({{"x", "1"}, {"y", "22"}});
  auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  const TensorView before = *file->find("y");
  const SafetensorsFile moved = *std::move(file);
  file = parse_header("{}", 0);
  EXPECT_EQ(before.name, "y");
  EXPECT_EQ(moved.find("y")->name.data(), before.name.data());
  EXPECT_THAT(before.shape, ElementsAre(2));
  EXPECT_EQ(text_of(before.bytes), "22");
}

TEST(Safetensors, MapsAFileAndKeepsItMapped) {
  const TempDirectory directory;
  const auto path = directory.write("m.safetensors", safetensors_of({{"x", "hello"}}));
  auto opened = SafetensorsFile::open(path);
  ASSERT_TRUE(opened.has_value()) << opened.error().text();
  ASSERT_TRUE(std::filesystem::remove(path));
  const SafetensorsFile file = *std::move(opened);
  EXPECT_EQ(file.name(), path.string());
  EXPECT_EQ(text_of(file.find("x")->bytes), "hello");
}

TEST(Safetensors, AcceptsAFileWithoutTensors) {
  const auto file = parse_header("{}", 0);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_TRUE(file->tensors().empty());
  EXPECT_EQ(file->find("x"), nullptr);
}

TEST(Safetensors, AcceptsScalarsAndEmptyTensors) {
  const std::string bytes = safetensors_bytes(
      R"({"scalar":{"dtype":"I64","shape":[],"data_offsets":[0,8]},)"
      R"("empty":{"dtype":"F32","shape":[3,0],"data_offsets":[8,8]},)"
      R"("empty first":{"dtype":"F32","shape":[0,4611686018427387904,8],"data_offsets":[0,0]}})",
      "01234567");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(file->find("scalar")->num_elements(), 1);
  EXPECT_TRUE(file->find("scalar")->shape.empty());
  EXPECT_EQ(file->find("empty")->num_elements(), 0);
  EXPECT_EQ(file->find("empty first")->num_elements(), 0);
  expect_invariants(*file, as_byte_span(bytes));
}

TEST(Safetensors, CountsNoElementsWhereThePartialProductDoesNotFit) {
  const std::string bytes = safetensors_bytes(
      R"({"t":{"dtype":"U8","shape":[4611686018427387904,2,0],"data_offsets":[0,0]}})", "");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(file->tensors()[0].num_elements(), 0);
}

TEST(Safetensors, AcceptsMetadataAndSpacesAfterTheHeader) {
  const std::string bytes =
      safetensors_bytes(R"({"__metadata__":{"format":"pt","":""},)"
                        R"("t":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}   )",
                        "x");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_EQ(file->tensors().size(), 1u);
  EXPECT_EQ(file->find("__metadata__"), nullptr);
  EXPECT_EQ(file->find("format"), nullptr);
}

TEST(Safetensors, KnowsEverySupportedElementType) {
  for (const DType dtype :
       {DType::kF32, DType::kF16, DType::kBf16, DType::kU8, DType::kI32, DType::kI64}) {
    const std::string bytes = safetensors_bytes(
        fmt::format(R"({{"t":{{"dtype":"{}","shape":[3],"data_offsets":[0,{}]}}}})",
                    to_string(dtype), 3 * dtype_bytes(dtype)),
        std::string(static_cast<std::size_t>(3 * dtype_bytes(dtype)), 'x'));
    const auto file = parse(bytes);
    ASSERT_TRUE(file.has_value()) << file.error().text();
    EXPECT_EQ(file->tensors()[0].dtype, dtype);
    EXPECT_EQ(file->tensors()[0].num_elements(), 3);
  }
}

TEST(Safetensors, HandsOutBytesAtAddressesOfAnyAlignment) {
  for (int padding = 0; padding < 8; ++padding) {
    const std::string header =
        R"({"t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})" + std::string(padding, ' ');
    const float value = 1.5f;
    const std::string bytes =
        safetensors_bytes(header, {reinterpret_cast<const char*>(&value), sizeof value});
    const auto file = parse(bytes);
    ASSERT_TRUE(file.has_value()) << file.error().text();
    float read = 0.0f;
    std::memcpy(&read, file->tensors()[0].bytes.data(), sizeof read);
    EXPECT_EQ(read, value);
  }
}

TEST(Safetensors, DecodesEscapesInNames) {
  const std::string bytes = safetensors_bytes(
      R"({"\u0061\n\u00e9\ud83d\ude00":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", "x");
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  EXPECT_NE(file->find("a\n\xC3\xA9\xF0\x9F\x98\x80"), nullptr);
}

TEST(Safetensors, AcceptsAnEntryWithItsFieldsInAnyOrder) {
  const std::string bytes =
      safetensors_bytes(R"({"t":{"data_offsets":[0,2],"shape":[2],"dtype":"U8"}})", "xx");
  ASSERT_TRUE(parse(bytes).has_value());
}

TEST(Safetensors, RefusesAFileTooShortForTheHeaderLength) {
  for (std::size_t bytes = 0; bytes < 8; ++bytes) {
    expect_refused(parse(std::string(bytes, '\0')), ErrorCode::kDataLoss,
                   {fmt::format("{} bytes are too few", bytes), "8"});
  }
}

TEST(Safetensors, RefusesAHeaderLongerThanTheLimitOrTheFile) {
  const auto with_length = [](std::uint64_t length) {
    std::string file = safetensors_bytes("{}", "");
    for (std::size_t i = 0; i < 8; ++i) file[i] = static_cast<char>(length >> (8 * i));
    return parse(file);
  };
  EXPECT_TRUE(with_length(2).has_value());
  expect_refused(with_length(3), ErrorCode::kDataLoss, {"3", "exceeds the 2 bytes that follow"});
  expect_refused(with_length(kMaxHeaderBytes), ErrorCode::kDataLoss, {"exceeds the 2 bytes"});
  expect_refused(with_length(kMaxHeaderBytes + 1), ErrorCode::kDataLoss,
                 {"100000001 exceeds the limit of 100000000"});
  expect_refused(with_length(~std::uint64_t{0}), ErrorCode::kDataLoss, {"exceeds the limit"});
}

TEST(Safetensors, RefusesAHeaderThatDoesNotStartWithABrace) {
  for (const char* const header : {"", " {}", "[]", "\xEF\xBB\xBF{}", "1"}) {
    expect_damaged(header, 0, {"does not start with '{'"});
  }
}

TEST(Safetensors, NamesTheByteWhereTheJsonIsMalformed) {
  expect_damaged(R"({"a": x})", 0, {"header: malformed JSON at byte 6: "});
  expect_damaged(R"({"a")", 0, {"malformed JSON at byte 4: "});
  expect_damaged("{} {}", 0, {"malformed JSON at byte 3: "});
  expect_damaged("{\"a\nb\":0}", 0, {"malformed JSON at byte 3: "});
  expect_damaged("{,}", 0, {"malformed JSON at byte 1: "});
}

TEST(Safetensors, RefusesAZeroByteEvenAfterACompleteHeader) {
  expect_damaged({"{}\0", 3}, 0, {"malformed JSON at byte 2: a zero byte"});
  expect_damaged({"{}\0garbage", 10}, 0, {"malformed JSON at byte 2: a zero byte"});
}

TEST(Safetensors, RefusesNamesThatAreNotUtf8) {
  expect_damaged("{\"\xFF\":0}", 0, {"malformed JSON at byte 2: ", "UTF-8"});
  expect_damaged("{\"\xC0\x80\":0}", 0, {"malformed JSON at byte 2: ", "UTF-8"});
  expect_damaged(R"({"\ud800":0})", 0, {"malformed JSON at byte 8: ", "surrogate"});
}

TEST(Safetensors, RefusesAnEmptyName) {
  expect_damaged(R"({"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", 0,
                 {"tensor number 0 has an empty name"});
}

TEST(Safetensors, RefusesOffsetsThatRunBackwards) {
  expect_entry_damaged(R"("dtype":"U8","shape":[4],"data_offsets":[4,0])",
                       {"tensor 't': data_offsets [4, 0] run backwards"});
}

TEST(Safetensors, RefusesOffsetsBeyondTheFile) {
  expect_entry_damaged(R"("dtype":"U8","shape":[5],"data_offsets":[0,5])",
                       {"tensor 't': data_offsets [0, 5] reach beyond the 4 bytes"});
  expect_entry_damaged(R"("dtype":"U8","shape":[4],"data_offsets":[0,18446744073709551615])",
                       {"[0, 18446744073709551615] reach beyond"});
}

TEST(Safetensors, RefusesOffsetsThatDoNotFitShapeAndDtype) {
  expect_entry_damaged(R"("dtype":"F32","shape":[2],"data_offsets":[0,4])",
                       {"tensor 't'", "hold 4 bytes, but F32 of shape [2] takes 8"});
  expect_entry_damaged(R"("dtype":"U8","shape":[3,1],"data_offsets":[0,4])",
                       {"hold 4 bytes, but U8 of shape [3, 1] takes 3"});
  expect_entry_damaged(R"("dtype":"U8","shape":[0],"data_offsets":[0,4])", {"takes 0"});
}

TEST(Safetensors, RefusesAShapeWhoseSizeOverflows) {
  // 2^62 * 4 bytes and 2^32 * 2^32: both are 0 modulo 2^64.
  expect_entry_damaged(R"("dtype":"F32","shape":[4611686018427387904],"data_offsets":[0,0])",
                       {"shape [4611686018427387904]", "exceeds 64 bits"});
  expect_entry_damaged(R"("dtype":"U8","shape":[4294967296,4294967296],"data_offsets":[0,0])",
                       {"exceeds 64 bits"});
}

std::string two_entries(std::string_view first, std::string_view second) {
  return fmt::format(R"({{"p":{{"dtype":"U8",{}}},"q":{{"dtype":"U8",{}}}}})", first, second);
}

TEST(Safetensors, RefusesOverlaps) {
  expect_damaged(
      two_entries(R"("shape":[3],"data_offsets":[0,3])", R"("shape":[2],"data_offsets":[2,4])"), 4,
      {"tensors 'p' and 'q' overlap at data byte 2"});
  expect_damaged(
      two_entries(R"("shape":[4],"data_offsets":[0,4])", R"("shape":[4],"data_offsets":[0,4])"), 4,
      {"tensors 'p' and 'q' overlap at data byte 0"});
  expect_damaged(
      two_entries(R"("shape":[4],"data_offsets":[0,4])", R"("shape":[0],"data_offsets":[2,2])"), 4,
      {"tensors 'p' and 'q' overlap at data byte 2"});
}

TEST(Safetensors, RefusesHoles) {
  expect_damaged(
      two_entries(R"("shape":[1],"data_offsets":[0,1])", R"("shape":[2],"data_offsets":[2,4])"), 4,
      {"data bytes [1, 2) before tensor 'q' belong to no tensor"});
  expect_entry_damaged(R"("dtype":"U8","shape":[3],"data_offsets":[1,4])",
                       {"data bytes [0, 1) before tensor 't'"});
}

TEST(Safetensors, RefusesTrailingBytes) {
  expect_entry_damaged(R"("dtype":"U8","shape":[3],"data_offsets":[0,3])",
                       {"the last 1 bytes belong to no tensor"});
  expect_damaged("{}", 2, {"the last 2 bytes belong to no tensor"});
}

TEST(Safetensors, RefusesDuplicateNamesHoweverTheyAreSpelled) {
  const std::string_view entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  for (const char* const again : {"a", R"(\u0061)"}) {
    expect_damaged(fmt::format(R"({{"a":{},"{}":{}}})", entry, again, entry), 0,
                   {"tensor 'a' appears twice"});
  }
}

TEST(Safetensors, CallsADuplicateADuplicateWhereItsBytesOverlapToo) {
  const std::string_view entry = R"({"dtype":"U8","shape":[1],"data_offsets":[0,1]})";
  expect_damaged(fmt::format(R"({{"a":{},"a":{}}})", entry, entry), 1,
                 {"tensor 'a' appears twice"});
}

TEST(Safetensors, RefusesDuplicateFieldsAndMetadata) {
  expect_entry_damaged(R"("dtype":"U8","dtype":"U8")",
                       {"tensor 't', field 'dtype': appears twice"});
  expect_entry_damaged(R"("shape":[],"shape":[])", {"field 'shape': appears twice"});
  expect_entry_damaged(R"("data_offsets":[0,1],"data_offsets":[0,1])",
                       {"field 'data_offsets': appears twice"});
  expect_damaged(R"({"__metadata__":{},"__metadata__":{}})", 0, {"__metadata__: appears twice"});
  expect_damaged(R"({"__metadata__":{"k":"1","k":"1"}})", 0,
                 {"__metadata__ key 'k' appears twice"});
}

TEST(Safetensors, RefusesMissingAndUnknownFields) {
  expect_entry_damaged(R"("shape":[4],"data_offsets":[0,4])",
                       {"tensor 't': field 'dtype' is missing"});
  expect_entry_damaged(R"("dtype":"U8","data_offsets":[0,4])",
                       {"tensor 't': field 'shape' is missing"});
  expect_entry_damaged(R"("dtype":"U8","shape":[4])",
                       {"tensor 't': field 'data_offsets' is missing"});
  expect_entry_damaged(R"("dtype":"U8","strides":[1])", {"tensor 't': unknown field 'strides'"});
}

TEST(Safetensors, RefusesValuesOfTheWrongType) {
  for (const auto& [value, found] : {std::pair{"3", "the number 3"},
                                     {"null", "null"},
                                     {"\"x\"", "the string 'x'"},
                                     {"[]", "a list"},
                                     {"true", "true"},
                                     {"1.5", "the number 1.5"}}) {
    expect_damaged(fmt::format(R"({{"t":{}}})", value), 0,
                   {"tensor 't': expected an object, found ", found});
    expect_damaged(fmt::format(R"({{"__metadata__":{}}})", value), 0,
                   {"__metadata__: expected an object, found ", found});
  }
  for (const char* const value : {"3", "null", "[]", "{}", "true"}) {
    expect_damaged(fmt::format(R"({{"__metadata__":{{"k":{}}}}})", value), 0,
                   {"__metadata__: expected only strings as values, found "});
    expect_entry_damaged(fmt::format(R"("dtype":{})", value),
                         {"tensor 't', field 'dtype': expected a string, found "});
  }
  for (const char* const value : {"3", "null", "\"x\"", "{}", "true"}) {
    for (const char* const field : {"shape", "data_offsets"}) {
      expect_entry_damaged(fmt::format(R"("{}":{})", field, value),
                           {"tensor 't', field '", field, "': expected a list of numbers, found "});
    }
  }
}

TEST(Safetensors, RefusesNumbersThatAreNotCounts) {
  for (const char* const number :
       {"-1", "-0", "1.0", "0.5", "1e2", "18446744073709551616", "null", "\"4\"", "false"}) {
    expect_entry_damaged(
        fmt::format(R"("shape":[2,{}])", number),
        {"tensor 't', field 'shape': expected whole numbers from 0 to 2^63-1, found "});
    expect_entry_damaged(
        fmt::format(R"("data_offsets":[0,{}])", number),
        {"tensor 't', field 'data_offsets': expected whole numbers from 0 to 2^64-1, found "});
  }
  expect_entry_damaged(R"("shape":[9223372036854775808])",
                       {"found the number 9223372036854775808"});
  expect_entry_damaged(R"("shape":[-7])", {"found the number -7"});
  expect_entry_damaged(R"("shape":[-0])", {"found the number -0"});
  expect_entry_damaged(R"("shape":[1e999])", {"malformed JSON at byte "});
}

TEST(Safetensors, RefusesMoreOrFewerThanTwoOffsets) {
  expect_entry_damaged(R"("data_offsets":[])", {"expected 2 numbers, found 0"});
  expect_entry_damaged(R"("data_offsets":[0])", {"expected 2 numbers, found 1"});
  expect_entry_damaged(R"("data_offsets":[0,1,1])", {"more than 2 numbers"});
}

TEST(Safetensors, TakesEightDimensionsAndNoMore) {
  const auto of_rank = [](int rank) {
    std::string shape = "1";
    for (int i = 1; i < rank; ++i) shape += ",1";
    return safetensors_bytes(
        fmt::format(R"({{"t":{{"dtype":"U8","shape":[{}],"data_offsets":[0,1]}}}})", shape), "x");
  };
  const std::string eight = of_rank(8);
  ASSERT_TRUE(parse(eight).has_value());
  expect_refused(parse(of_rank(9)), ErrorCode::kUnimplemented,
                 {"tensor 't', field 'shape': more than 8 dimensions"});
}

TEST(Safetensors, TellsUnsupportedElementTypesFromUnknownOnes) {
  for (const char* const dtype : {"F64", "BOOL", "I8", "F8_E4M3", "F4"}) {
    expect_refused(parse_header(fmt::format(R"({{"t":{{"dtype":"{}"}}}})", dtype), 4),
                   ErrorCode::kUnimplemented,
                   {"tensor 't', field 'dtype': ", dtype, "supported: F32 F16 BF16 U8 I32 I64"});
  }
  for (const char* const dtype : {"F99", "f32", "", "BF16 "}) {
    expect_entry_damaged(fmt::format(R"("dtype":"{}")", dtype),
                         {"unknown element type", dtype, "supported: F32"});
  }
  // Fetching a sound file again does not help.
  EXPECT_THAT(parse_header(R"({"t":{"dtype":"F64"}})", 8).error().text(),
              testing::Not(HasSubstr("fetch it again")));
}

TEST(Safetensors, BoundsTheDepthOfTheHeader) {
  expect_entry_damaged(R"("shape":[[1]])", {"nested deeper than the limit of 3"});
  expect_entry_damaged(R"("shape":[{}])", {"nested deeper than the limit of 3"});
  expect_damaged("{\"t\":" + std::string(100'000, '['), 0, {"tensor 't': expected an object"});
}

TEST(Safetensors, KeepsErrorsOnOneShortLineWhateverTheNames) {
  const std::string evil = R"(a\nb\u0000)" + std::string(10'000, 'z');
  const auto file = parse_header(fmt::format(R"({{"{}":{{"{}":0}}}})", evil, evil), 0);
  expect_refused(file, ErrorCode::kDataLoss, {R"(tensor 'a\x0ab\x00zzz)", "zzz...'"});
  EXPECT_LT(file.error().text().size(), 500u);
  const auto value = parse_header(fmt::format(R"({{"t":"{}"}})", evil), 0);
  expect_refused(value, ErrorCode::kDataLoss, {"the string 'a"});
  EXPECT_LT(value.error().text().size(), 500u);
  const auto token = parse_header("{" + std::string(10'000, 'z'), 0);
  expect_refused(token, ErrorCode::kDataLoss, {"malformed JSON at byte 1"});
  EXPECT_LT(token.error().text().size(), 500u);
}

TEST(Safetensors, ReadsTheDemoModel) {
  const std::filesystem::path path =
      std::filesystem::path(SLACKWATER_SOURCE_DIR) / "models/demo/model.safetensors";
  const auto file = SafetensorsFile::open(path);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  const TensorView* const embedding = file->find("model.embed_tokens.weight");
  ASSERT_NE(embedding, nullptr);
  EXPECT_EQ(embedding->dtype, DType::kBf16);
  EXPECT_THAT(embedding->shape, ElementsAre(2064, 192));
  const TensorView* const decay = file->find("model.layers.0.self_attn.A_log");
  ASSERT_NE(decay, nullptr);
  EXPECT_EQ(decay->dtype, DType::kF32);
  EXPECT_THAT(decay->shape, ElementsAre(1, 1, 4, 1));

  const std::string whole = read_file(path);
  const auto parsed = parse(whole);
  ASSERT_TRUE(parsed.has_value()) << parsed.error().text();
  expect_invariants(*parsed, as_byte_span(whole));
  EXPECT_EQ(parsed->tensors().size(), file->tensors().size());
}

// A header of the size of one shard of a large model.
TEST(Safetensors, FindsEachOfManyTensors) {
  std::vector<NamedBytes> tensors;
  for (int i = 0; i < 5'000; ++i) {
    tensors.push_back({fmt::format("model.layers.{}.experts.{}.w1", i % 93, i), std::to_string(i)});
  }
  const std::string bytes = safetensors_of(tensors);
  const auto file = parse(bytes);
  ASSERT_TRUE(file.has_value()) << file.error().text();
  expect_invariants(*file, as_byte_span(bytes));
  for (const NamedBytes& tensor : tensors) {
    const TensorView* const found = file->find(tensor.name);
    ASSERT_NE(found, nullptr) << tensor.name;
    EXPECT_EQ(text_of(found->bytes), tensor.bytes);
  }
}

// One random wound. Most bytes of the file are header, so most wounds change its meaning.
void damage(std::string& file, std::mt19937_64& random) {
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  static constexpr std::string_view kAlphabet = "{}[]\",:0123456789-.eE \\uabtx\0\xFF";
  const char symbol = kAlphabet[below(kAlphabet.size())];
  switch (below(6)) {
    case 0: file[below(file.size())] ^= static_cast<char>(1u << below(8)); break;
    case 1: file[below(file.size())] = symbol; break;
    case 2: file.resize(below(file.size())); break;
    case 3: file.insert(below(file.size()), 1, symbol); break;
    case 4: file.erase(below(file.size()), 1 + below(8)); break;
    case 5: {  // a piece of the file over another place, as torn writes do
      const std::size_t length = 1 + below(std::min<std::size_t>(file.size(), 24));
      const std::string piece = file.substr(below(file.size() - length + 1), length);
      file.replace(below(file.size() - length + 1), length, piece);
      break;
    }
  }
}

TEST(SafetensorsDamage, IsRefusedOrLeavesEveryViewInsideTheFile) {
  std::mt19937_64 random(test_seed());
  const std::string sound =
      safetensors_bytes(R"({"__metadata__":{"format":"pt"},)"
                        R"("a.w":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
                        R"("b":{"dtype":"BF16","shape":[1,1,5],"data_offsets":[24,34]},)"
                        R"("c":{"dtype":"U8","shape":[],"data_offsets":[34,35]}}  )",
                        std::string(35, 'd'));
  int num_accepted = 0;
  constexpr int kNumFiles = 100'000;
  for (int i = 0; i < kNumFiles; ++i) {
    std::string file = sound;
    for (std::size_t wounds = 1 + random() % 3; wounds > 0 && !file.empty(); --wounds) {
      damage(file, random);
    }
    const auto parsed = parse(file);
    if (parsed.has_value()) {
      ++num_accepted;
      expect_invariants(*parsed, as_byte_span(file));
    } else {
      EXPECT_EQ(parsed.error().text().find('\n'), std::string::npos);
    }
    ASSERT_FALSE(testing::Test::HasFailure())
        << "file " << i << ": " << testing::PrintToString(file);
  }
  // Wounds in names, metadata and data leave a sound file; the rest must not.
  EXPECT_GT(num_accepted, kNumFiles / 100);
  EXPECT_LT(num_accepted, kNumFiles / 2);
}

}  // namespace
}  // namespace slackwater::model
