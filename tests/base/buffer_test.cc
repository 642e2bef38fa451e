#include "base/buffer.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/host_pages.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::testing::HasSubstr;

class HostBufferTest : public testing::TestWithParam<HugePages> {};

TEST_P(HostBufferTest, IsZeroedAlignedAndWritableToTheLastByte) {
  const int64_t mib = int64_t{1} << 20;
  for (const int64_t size : {int64_t{1}, int64_t{63}, int64_t{4097}, mib / 8 - 1, mib / 8, mib + 1,
                             2 * mib, 5 * mib + 17}) {
    SCOPED_TRACE(size);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto buffer, HostBuffer<uint8_t>::Create(size, GetParam()));
    ASSERT_EQ(buffer.size(), size);
    EXPECT_EQ(buffer.bytes(), size);
    const auto address = reinterpret_cast<uintptr_t>(buffer.data());
    EXPECT_EQ(address % kBufferAlignment, 0u);
    if (GetParam() == HugePages::kTry && size >= 2 * mib) {
      EXPECT_EQ(address % (uintptr_t{2} << 20), 0u);
    }
    EXPECT_TRUE(std::all_of(buffer.begin(), buffer.end(), [](uint8_t b) { return b == 0; }));
    std::fill(buffer.begin(), buffer.end(), uint8_t{0xab});
    EXPECT_EQ(buffer[size - 1], 0xab);
  }
}

TEST_P(HostBufferTest, ReusedMemoryIsZeroedAgain) {
  for (int round = 0; round < 3; ++round) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto buffer, HostBuffer<uint64_t>::Create(500, GetParam()));
    for (uint64_t& word : buffer) {
      ASSERT_EQ(word, 0u);
      word = ~uint64_t{0};
    }
  }
}

TEST_P(HostBufferTest, EmptyOneHasNoMemory) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto buffer, HostBuffer<float>::Create(0, GetParam()));
  EXPECT_EQ(buffer.data(), nullptr);
  EXPECT_TRUE(buffer.empty());
  EXPECT_TRUE(buffer.span().empty());
}

TEST_P(HostBufferTest, MovingHandsTheMemoryOver) {
  HOTROW_ASSERT_OK_AND_ASSIGN(auto first, HostBuffer<int32_t>::Create(10, GetParam()));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto second, HostBuffer<int32_t>::Create(20, GetParam()));
  first[9] = 7;
  int32_t* const data = first.data();
  second = std::move(first);
  EXPECT_EQ(second.data(), data);
  EXPECT_EQ(second.size(), 10);
  EXPECT_EQ(second[9], 7);
  EXPECT_TRUE(first.empty());  // NOLINT(bugprone-use-after-move): the header promises it
  EXPECT_EQ(first.data(), nullptr);
}

TEST_P(HostBufferTest, ImpossibleSizesAreErrors) {
  EXPECT_THAT(HostBuffer<float>::Create(-1, GetParam()),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("number of elements")));
  EXPECT_THAT(HostBuffer<float>::Create(INT64_MAX / 4 + 1, GetParam()),
              test::StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("number of elements")));
  const int64_t too_much = int64_t{1} << 55;  // more than an x86 process can address
  EXPECT_THAT(HostBuffer<std::byte>::Create(too_much, GetParam()),
              test::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("36028797018963968")));
  EXPECT_THAT(
      HostBuffer<std::byte>::Create(INT64_MAX, GetParam()),
      test::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("9223372036854775807")));
}

INSTANTIATE_TEST_SUITE_P(Both, HostBufferTest, testing::Values(HugePages::kNever, HugePages::kTry),
                         [](const auto& info) {
                           return info.param == HugePages::kTry ? "HugePages" : "SmallPages";
                         });

TEST_P(HostBufferTest, PagesAreMadePresentAndKeepTheirBytes) {
  constexpr int64_t kPageBytes = 4096;
  constexpr int64_t kPages = 1024;
  HOTROW_ASSERT_OK_AND_ASSIGN(HostBuffer<char> buffer,
                              HostBuffer<char>::Create(kPages * kPageBytes, GetParam()));
  buffer[700 * kPageBytes + 3] = 'x';
  auto* const data = reinterpret_cast<std::byte*>(buffer.data());
  HOTROW_ASSERT_OK(PopulatePages(data, 512 * kPageBytes));
  HOTROW_ASSERT_OK(PopulatePages(data + 512 * kPageBytes, 512 * kPageBytes));
  HOTROW_ASSERT_OK(PopulatePages(data, 0));
  std::vector<unsigned char> present(kPages);
  ASSERT_EQ(::mincore(data, kPages * kPageBytes, present.data()), 0);
  EXPECT_EQ(std::count(present.begin(), present.end(), 0), 0);
  EXPECT_EQ(std::count(buffer.begin(), buffer.end(), '\0'), kPages * kPageBytes - 1);
  EXPECT_EQ(buffer[700 * kPageBytes + 3], 'x');
}

TEST(PopulatePagesTest, MemoryThatIsNotThereIsAnError) {
  constexpr size_t kBytes = 1 << 20;
  void* const mapped =
      ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(mapped, MAP_FAILED);
  if (::madvise(mapped, kBytes, /*MADV_POPULATE_WRITE*/ 23) != 0) {
    ::munmap(mapped, kBytes);
    GTEST_SKIP() << "Linux before 5.14 makes pages present by writing to them";
  }
  auto* const data = static_cast<std::byte*>(mapped);
  ::munmap(data + kBytes / 2, kBytes / 2);
  EXPECT_THAT(PopulatePages(data, kBytes),
              test::StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("1048576 bytes")));
  ::munmap(data, kBytes / 2);
}

TEST(HostBytesReservedTest, RoundsUpToPagesAndNeverFalls) {
  EXPECT_EQ(HostBytesReserved(0, HugePages::kTry), 0);
  EXPECT_EQ(HostBytesReserved(1, HugePages::kNever), 4096);
  EXPECT_EQ(HostBytesReserved(4096, HugePages::kNever), 4096);
  EXPECT_EQ(HostBytesReserved((int64_t{3} << 20) + 1, HugePages::kTry), (int64_t{3} << 20) + 4096);
  for (const HugePages huge : {HugePages::kNever, HugePages::kTry}) {
    int64_t last = 0;
    for (int64_t bytes = (int64_t{1} << 20) - 9000; bytes < (int64_t{1} << 20) + 9000; bytes += 7) {
      const int64_t reserved = HostBytesReserved(bytes, huge);
      ASSERT_GE(reserved, bytes);
      ASSERT_GE(reserved, last);
      last = reserved;
    }
  }
}

}  // namespace
}  // namespace hotrow
