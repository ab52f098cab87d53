// The digest of a model tells it from every other one.

#include <gtest/gtest.h>

#include "model/file_test_support.h"
#include "model/forward_test_support.h"

namespace slackwater::model {
namespace {

Digest128 digest_of(const std::filesystem::path& directory, int threads = 1) {
  ThreadPool pool(threads);
  kernels::ExecutionContext context(pool);
  return load_model(directory, context).digest();
}

// A copy of the demo model, with one file changed.
class DigestedCopy {
 public:
  DigestedCopy() {
    directory_.write("config.json", config_);
    directory_.write("model.safetensors", weights_);
  }

  Digest128 with_weights(const std::string& weights) const {
    directory_.write("model.safetensors", weights);
    const Digest128 digest = digest_of(directory_.path());
    directory_.write("model.safetensors", weights_);
    return digest;
  }
  Digest128 with_config(const std::string& config) const {
    directory_.write("config.json", config);
    const Digest128 digest = digest_of(directory_.path());
    directory_.write("config.json", config_);
    return digest;
  }
  const std::string& weights() const { return weights_; }
  const std::string& config() const { return config_; }
  // The first byte after the header.
  std::size_t first_value() const {
    std::uint64_t header = 0;
    std::memcpy(&header, weights_.data(), sizeof header);
    return sizeof header + header;
  }

 private:
  TempDirectory directory_;
  std::string config_ = read_file(source_path("models/demo/config.json"));
  std::string weights_ = read_file(source_path("models/demo/model.safetensors"));
};

TEST(ModelDigest, EveryLoadGivesTheSame) {
  const DigestedCopy copy;
  const Digest128 digest = digest_of(source_path("models/demo"));
  EXPECT_NE(digest, Digest128());
  EXPECT_EQ(digest_of(source_path("models/demo")), digest);
  EXPECT_EQ(digest_of(source_path("models/demo"), 3), digest);
  EXPECT_EQ(copy.with_weights(copy.weights()), digest);
  EXPECT_NE(digest_of(source_path("models/demo-draft")), digest);
}

// The lowest bit of the values there, whatever their type.
TEST(ModelDigest, OneFlippedBitAnywhereInATensorGivesAnother) {
  const DigestedCopy copy;
  const Digest128 digest = digest_of(source_path("models/demo"));
  const std::size_t first = copy.first_value();
  const std::size_t values = copy.weights().size() - first;
  std::vector<Digest128> seen = {digest};
  for (std::size_t n = 0; n <= 12; ++n) {
    std::string weights = copy.weights();
    const std::size_t at = first + (values - 4) * n / 12 / 4 * 4;
    weights[at] = static_cast<char>(weights[at] ^ 1);
    seen.push_back(copy.with_weights(weights));
  }
  std::ranges::sort(seen);
  EXPECT_EQ(std::ranges::adjacent_find(seen), seen.end());
}

TEST(ModelDigest, AnotherConfigurationGivesAnother) {
  const DigestedCopy copy;
  std::string config = copy.config();
  const std::size_t at = config.find("1e-05");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 5, "2e-05");
  EXPECT_NE(copy.with_config(config), digest_of(source_path("models/demo")));
}

}  // namespace
}  // namespace slackwater::model
