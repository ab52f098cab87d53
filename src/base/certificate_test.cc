#include "slackwater/base/certificate.h"

#include <set>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace slackwater {
namespace {

using ::testing::HasSubstr;

Certificate of_request(std::uint64_t request) {
  return {RequestOwner{process_epoch(), RequestId(request), 2}, 64, LayerGroupId(1), 3};
}

TEST(Certificate, EveryFieldCounts) {
  std::vector<Certificate> all(12, of_request(7));
  std::size_t i = 1;
  std::get<RequestOwner>(all[i++].owner).process_epoch ^= 1;
  std::get<RequestOwner>(all[i++].owner).request = RequestId(8);
  std::get<RequestOwner>(all[i++].owner).round = 3;
  all[i++].position = 63;
  all[i++].layer_group = LayerGroupId(2);
  all[i++].generation = 4;
  all[i++].position = -64;
  all[i++].owner = PrefixOwner{{1, 2}};
  all[i++].owner = PrefixOwner{{2, 1}};
  all[i++].owner = PrefixOwner{{0, 2}};
  // A prefix whose words are those of a request is not that request.
  const RequestOwner request = std::get<RequestOwner>(all[0].owner);
  all[i++].owner = PrefixOwner{{request.process_epoch, request.request.value()}};
  ASSERT_EQ(i, all.size());
  std::set<Digest128> digests;
  for (const Certificate& certificate : all) digests.insert(certificate.digest());
  EXPECT_EQ(digests.size(), all.size());
}

TEST(Certificate, IsTheSameOnEveryMachine) {
  const Certificate certificate{PrefixOwner{{0x0123456789ABCDEF, 0xFEDCBA9876543210}}, 96,
                                LayerGroupId(2), 1};
  EXPECT_EQ(to_hex(certificate.digest()), "3ab59e6444b3ccd6ae1ab24e6fd6367a");
}

TEST(Certificate, AMismatchIsDataLossAndSaysWhatWasExpected) {
  const Certificate mine = of_request(7);
  EXPECT_TRUE(mine.check(mine.digest()).has_value());
  const auto refused = mine.check(of_request(8).digest());
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code(), ErrorCode::kDataLoss);
  EXPECT_THAT(refused.error().text(),
              HasSubstr("this is not request 7 of this process, round 2, position 64, layer group "
                        "1, generation 3"));
}

TEST(Certificate, DescribesAForeignProcessAndAPrefix) {
  Certificate certificate = of_request(7);
  std::get<RequestOwner>(certificate.owner).process_epoch ^= 1;
  EXPECT_THAT(certificate.describe(), HasSubstr("request 7 of another process"));
  certificate.owner = PrefixOwner{{1, 0}};
  EXPECT_THAT(certificate.describe(), HasSubstr("prefix 00000000000000000000000000000001"));
}

TEST(Certificate, TheEpochOfAProcessStaysAndDiffersFromOthers) {
  EXPECT_EQ(process_epoch(), process_epoch());
  EXPECT_NE(process_epoch(), 0u);
}

TEST(LayoutDigest, NamesValuesAndTheirOrderCount) {
  std::set<Digest128> digests;
  digests.insert(LayoutDigest().add("a", 1).add("b", 2).digest());
  digests.insert(LayoutDigest().add("b", 2).add("a", 1).digest());
  digests.insert(LayoutDigest().add("a", 2).add("b", 1).digest());
  digests.insert(LayoutDigest().add("a", 1).digest());
  digests.insert(LayoutDigest().add("a", "1").digest());
  digests.insert(LayoutDigest().add("a", Digest128{1, 0}).digest());
  digests.insert(LayoutDigest().digest());
  EXPECT_EQ(digests.size(), 7u);
  EXPECT_EQ(LayoutDigest().add("a", 1).add("b", 2).digest(),
            LayoutDigest().add("a", 1).add("b", 2).digest());
}

TEST(LayoutDigest, ANameCannotRunIntoAValue) {
  EXPECT_NE(LayoutDigest().add("ab", "c").digest(), LayoutDigest().add("a", "bc").digest());
}

}  // namespace
}  // namespace slackwater
