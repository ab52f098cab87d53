#include "slackwater/base/digest.h"

#include <algorithm>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "slackwater/base/philox.h"

namespace slackwater {
namespace {

constexpr std::uint64_t kSeed = 0x9E3779B97F4A7C15;

// Bytes without a short period, so that a piece taken from the wrong place shows.
std::vector<std::byte> test_bytes(std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>(i * 167 + (i >> 8) * 59 + 13);
  }
  return bytes;
}

std::span<const std::byte> as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text));
}

struct Xxh3Answer {
  std::size_t size;
  std::uint64_t seed;
  Digest128 digest;
};

// The first `size` of test_bytes(), hashed by the Python package xxhash 4.1.0, which contains
// xxHash 0.8.4. The sizes stand on both sides of every boundary between the algorithm's forms:
// 3, 8, 16, 128 and 240 bytes, stripes of 64 and blocks of 1024.
constexpr Xxh3Answer kXxh3Answers[] = {
    {0, 0, {0x6001C324468D497F, 0x99AA06D3014798D8}},
    {0, kSeed, {0x4CA5176998171787, 0xD142977A2CCA554B}},
    {1, 0, {0x8A21D78B1538B1C0, 0x79D2C79E874F72CD}},
    {1, kSeed, {0x30E3E5AF4B171B5B, 0x96E7BA58E13CB0AD}},
    {3, 0, {0x5F1FA6D2A3AA5A3B, 0x27056158676515D7}},
    {3, kSeed, {0x858A1D6C5361B8DD, 0x7CD4D6FD458E2E0E}},
    {4, 0, {0xCB8C01D87EE4BB85, 0x18BEC2DF875B7D35}},
    {4, kSeed, {0x105DECFEB94DA43C, 0x7B0008683993C9A1}},
    {8, 0, {0x9987B0F6A787FCFF, 0x5EE08611ACAF8270}},
    {8, kSeed, {0xB9226C5D84FF247B, 0x1D5342B7D5BE36C7}},
    {9, 0, {0xD5D74FB50DABF9A3, 0xD7B1B30E3925AEA8}},
    {9, kSeed, {0x98EA629DC52DCF93, 0x4F92A826F6EB69A2}},
    {16, 0, {0xFF22986FB4ABA31B, 0xAEFC4C7B6B2355E8}},
    {16, kSeed, {0x1A437EC8413529D3, 0xCC95EA5FE551A329}},
    {17, 0, {0x0DFDB8ED0DE7262A, 0xF600C8A98B27CDA2}},
    {17, kSeed, {0xB6A7A8AE89826314, 0x5343C210B89E7152}},
    {32, 0, {0x587150F0FA952681, 0x29F5D000B9C3A663}},
    {32, kSeed, {0x2FEACACA51E81F0E, 0xD7B695A15FBB5609}},
    {33, 0, {0x90C6E66DB31D5277, 0x76D2A9372BD473AC}},
    {33, kSeed, {0xFD5C528C1DC38941, 0x3120BFBD6A30071A}},
    {64, 0, {0x7720BC9B713F9574, 0x8DCC0937DB38819C}},
    {64, kSeed, {0x870E2AA680F362C2, 0xE8E75654767360D0}},
    {65, 0, {0x5591647F08EAFA8E, 0x1D2E8D50CCD79C4C}},
    {65, kSeed, {0x3999A09AB0C62FB2, 0x9B3220F6928F52E4}},
    {96, 0, {0x63E41FE35C2097B1, 0xD29F6391C4AB87AD}},
    {96, kSeed, {0x3FB6B5A7B67B40D4, 0xFE437BF92819C2F6}},
    {97, 0, {0x486E1E7040444162, 0xD2B8A6F9A9B2D48D}},
    {97, kSeed, {0x65C19011293C641E, 0xA11B17AE713F9D83}},
    {128, 0, {0x572DD69BD15CDB73, 0x9B0E839B5061F424}},
    {128, kSeed, {0xC8D4D182B6A27FB5, 0x7440D4BB0F2D69E4}},
    {129, 0, {0x5A753049F4B49D33, 0x485B2B823D90AFA9}},
    {129, kSeed, {0x8CF996B75B3DFB25, 0x5510569C9E42D0DB}},
    {240, 0, {0xDFD310866E8AD632, 0x5D572FC255E19C13}},
    {240, kSeed, {0x18EB8996136D7D71, 0x8CB186C063E6FC7E}},
    {241, 0, {0x02F838DD48200EE8, 0x7FB50EBCE4E01178}},
    {241, kSeed, {0xC3F22197318B3CD9, 0xD9FFDBE77120FF20}},
    {403, 0, {0xE9B544C94FAEAC29, 0x0002DFD2E3A30922}},
    {403, kSeed, {0x2D7DE082DC16A362, 0xE3CDE25A3227A507}},
    {512, 0, {0xB3D087DB9639D811, 0xE5552DE663175B78}},
    {512, kSeed, {0xA5E409AD21059E23, 0x41CE5AC6D88F00BE}},
    {1024, 0, {0x1E3FB3C1A12EAA0A, 0xEA7A5C4BE8852E1B}},
    {1024, kSeed, {0xC8C100F146FEAED3, 0xC7D8A4AB7E851BAB}},
    {1025, 0, {0x06FD713F06099436, 0x6F919430D41200E7}},
    {1025, kSeed, {0x3C9284051228DAE7, 0x44DED726D22A5F9D}},
    {2048, 0, {0x731AEEC0C93F119E, 0xAF84CDF8F748EEAA}},
    {2048, kSeed, {0xAB9A71D36986ACCC, 0x03F950E279E5957C}},
    {16384, 0, {0x341F032880CF1B5A, 0x51A566F479DE25AF}},
    {16384, kSeed, {0x28BE36F60B6600E4, 0x17ABF91EE5151911}},
};

TEST(Xxh3, GivesTheAnswersOfAnotherImplementation) {
  const std::vector<std::byte> bytes = test_bytes(16384);
  for (const Xxh3Answer& answer : kXxh3Answers) {
    const Digest128 digest = xxh3_128(std::span(bytes).first(answer.size), answer.seed);
    EXPECT_EQ(to_hex(digest), to_hex(answer.digest)) << answer.size << " bytes";
  }
}

TEST(Xxh3, DoesNotDependOnTheAlignmentOfItsInput) {
  for (const std::size_t size : {5, 100, 300, 3000}) {
    const std::vector<std::byte> bytes = test_bytes(size);
    const Digest128 expected = xxh3_128(bytes);
    for (std::size_t offset = 0; offset < 64; ++offset) {
      std::vector<std::byte> shifted(size + offset);
      std::copy(bytes.begin(), bytes.end(), shifted.begin() + static_cast<std::ptrdiff_t>(offset));
      ASSERT_EQ(xxh3_128(std::span(shifted).subspan(offset)), expected) << size << " " << offset;
    }
  }
}

TEST(Xxh3, WritesTheHighWordFirst) {
  EXPECT_EQ(to_hex(Digest128{.low = 0x89ABCDEF, .high = 0x0123}),
            "00000000000001230000000089abcdef");
  // What `xxhsum -H2` prints for an empty file.
  EXPECT_EQ(to_hex(xxh3_128({})), "99aa06d3014798d86001c324468d497f");
}

TEST(StreamingXxh3, EqualsTheOneShotFormForEveryCutInTwo) {
  for (const std::uint64_t seed : {std::uint64_t{0}, kSeed}) {
    for (const std::size_t size : {0, 1, 16, 129, 240, 241, 256, 257, 511, 512, 1024, 1300}) {
      const std::vector<std::byte> bytes = test_bytes(size);
      const Digest128 expected = xxh3_128(bytes, seed);
      for (std::size_t cut = 0; cut <= size; ++cut) {
        StreamingXxh3 stream(seed);
        stream.update(std::span(bytes).first(cut));
        stream.update(std::span(bytes).subspan(cut));
        ASSERT_EQ(stream.digest(), expected) << size << " bytes cut at " << cut;
      }
    }
  }
}

TEST(StreamingXxh3, EqualsTheOneShotFormForManyPieces) {
  const std::vector<std::byte> bytes = test_bytes(5000);
  for (std::uint32_t trial = 0; trial < 300; ++trial) {
    StreamingXxh3 stream(trial);
    std::size_t done = 0;
    for (std::uint32_t piece = 0; done < bytes.size(); ++piece) {
      // Many short pieces in some trials, a few long ones in others; empty ones too.
      const PhiloxCounter random = philox_4x32_10({piece, 0, 0, 0}, {trial, 0});
      const std::size_t size = random[0] % (trial % 2 == 0 ? 40 : 1500);
      const std::size_t taken = std::min(size, bytes.size() - done);
      stream.update(std::span(bytes).subspan(done, taken));
      done += taken;
    }
    ASSERT_EQ(stream.digest(), xxh3_128(bytes, trial)) << "trial " << trial;
  }
}

TEST(StreamingXxh3, DigestLeavesTheStreamOpen) {
  const std::vector<std::byte> bytes = test_bytes(700);
  StreamingXxh3 stream;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    ASSERT_EQ(stream.digest(), xxh3_128(std::span(bytes).first(size))) << size;
    stream.update(std::span(bytes).subspan(size, 1));
  }
}

TEST(StreamingXxh3, TakesItsStateAlongWhenMoved) {
  const std::vector<std::byte> bytes = test_bytes(900);
  StreamingXxh3 source(kSeed);
  source.update(std::span(bytes).first(333));
  StreamingXxh3 target(std::move(source));
  target.update(std::span(bytes).subspan(333));
  StreamingXxh3 assigned;
  assigned = std::move(target);
  EXPECT_EQ(assigned.digest(), xxh3_128(bytes, kSeed));
}

// The examples of FIPS 180-2 appendix B, and the empty message of NIST's test vectors.
TEST(Sha256, GivesThePublishedAnswers) {
  EXPECT_EQ(to_hex(sha256({})), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(to_hex(sha256(as_bytes("abc"))),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(to_hex(sha256(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"))),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(to_hex(sha256(as_bytes(std::string(1'000'000, 'a')))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// The hashing context is kept from call to call; nothing of one message may reach the next.
TEST(Sha256, ForgetsTheMessageBefore) {
  const Sha256Digest alone = sha256(as_bytes("abc"));
  for (const std::size_t size : {0, 1, 55, 56, 63, 64, 65, 1000}) {
    sha256(test_bytes(size));
    EXPECT_EQ(sha256(as_bytes("abc")), alone) << size;
  }
}

}  // namespace
}  // namespace slackwater
