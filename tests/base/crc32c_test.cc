#include "base/crc32c.h"

#include <numeric>
#include <string_view>
#include <vector>

#include "base/philox.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

std::vector<std::byte> RandomBytes(uint64_t seed, int64_t count) {
  RandomStream random(seed, RandomPurpose::kTest);
  std::vector<std::byte> bytes(static_cast<size_t>(count));
  for (std::byte& b : bytes) b = static_cast<std::byte>(random.Below(256));
  return bytes;
}

// The definition, one bit at a time.
uint32_t SlowCrc32c(std::span<const std::byte> bytes) {
  uint32_t crc = ~0u;
  for (const std::byte b : bytes) {
    crc ^= static_cast<uint32_t>(b);
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82f63b78u : 0u);
  }
  return ~crc;
}

using Crc32cFn = uint32_t (*)(std::span<const std::byte>, uint32_t);
class Crc32cTest : public testing::TestWithParam<Crc32cFn> {};

TEST_P(Crc32cTest, KnownAnswers) {
  const std::string_view digits = "123456789";
  EXPECT_EQ(GetParam()(std::as_bytes(std::span(digits)), 0), 0xe3069283u);
  EXPECT_EQ(GetParam()({}, 0), 0u);
  // RFC 3720, appendix B.4: 32 bytes of zeros, of ones, ascending and descending.
  std::vector<uint8_t> bytes(32, 0);
  const auto crc = [&bytes] { return GetParam()(std::as_bytes(std::span(bytes)), 0); };
  EXPECT_EQ(crc(), 0x8a9136aau);
  bytes.assign(32, 0xff);
  EXPECT_EQ(crc(), 0x62a8ab43u);
  std::iota(bytes.begin(), bytes.end(), uint8_t{0});
  EXPECT_EQ(crc(), 0x46dd794eu);
  std::iota(bytes.rbegin(), bytes.rend(), uint8_t{0});
  EXPECT_EQ(crc(), 0x113fdb5cu);
}

// Lengths around the word (8) and the three lanes (1536), at every alignment.
TEST_P(Crc32cTest, MatchesTheDefinitionAtEveryLengthAndAlignment) {
  const std::vector<std::byte> bytes = RandomBytes(1, 5000);
  for (const size_t length : {0, 1, 7, 8, 9, 63, 512, 1535, 1536, 1537, 1543, 3071, 3072, 4900}) {
    for (size_t begin = 0; begin < 9; ++begin) {
      const auto part = std::span(bytes).subspan(begin, length);
      ASSERT_EQ(GetParam()(part, 0), SlowCrc32c(part)) << length << " bytes from " << begin;
    }
  }
}

TEST_P(Crc32cTest, ExtendingEqualsOneCall) {
  const std::vector<std::byte> bytes = RandomBytes(2, 4000);
  const uint32_t whole = GetParam()(bytes, 0);
  for (size_t cut = 0; cut <= bytes.size(); cut += 37) {
    const uint32_t first = GetParam()(std::span(bytes).first(cut), 0);
    ASSERT_EQ(GetParam()(std::span(bytes).subspan(cut), first), whole) << cut;
  }
}

TEST_P(Crc32cTest, EveryFlippedBitIsSeen) {
  std::vector<std::byte> bytes = RandomBytes(3, 200);
  const uint32_t crc = GetParam()(bytes, 0);
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<std::byte>(1 << (bit % 8));
    bytes[bit / 8] ^= mask;
    ASSERT_NE(GetParam()(bytes, 0), crc) << bit;
    bytes[bit / 8] ^= mask;
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, Crc32cTest, testing::Values(&Crc32c, &internal::Crc32cPortable),
                         [](const auto& info) { return info.index == 0 ? "Chosen" : "Portable"; });

}  // namespace
}  // namespace hotrow
