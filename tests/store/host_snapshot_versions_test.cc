// Snapshot files of a HostStore in all versions of their format.

#include <fstream>
#include <span>
#include <string>
#include <string_view>

#include "absl/strings/escaping.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/host/host_store.h"
#include "tests/store/store_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// Files as they were written once: every later build opens them. Snapshot 1234 of the tables 1
// (rows of 3 bytes: 5 abc, 6 def) and 9 (rows of 2 bytes: 7 xy).
constexpr std::string_view kVersion1 =
    "484f54524f57485301000000eb0bb734d204000000000000030000000000000002000000950f9a95"
    "00000000135888180100000000000000030000000000000009000000000000000200000000000000"
    "48424c4b01000000000000000000000002000000e62f4b9700000000d837999d0500000000000000"
    "616263060000000000000064656648424c4b090000000100000000000000010000000ce7c1b30000"
    "00001b33b2570700000000000000787948454e44bf5bd03803000000000000000200000000000000"
    "00000000926e1fd5";
constexpr std::string_view kVersion2 =
    "484f54524f57485302000000d2829556d2040000000000000300000000000000efcdab8967452301"
    "1032547698badcfe0200000046a4e0fe000000000131a60a01000000000000000300000000000000"
    "020000000000000009000000000000000200000000000000010000000000000048424c4b01000000"
    "000000000000000002000000e62f4b9700000000d837999d05000000000000006162630600000000"
    "00000064656648424c4b090000000100000000000000010000000ce7c1b3000000001b33b2570700"
    "000000000000787948454e44bf5bd0380300000000000000020000000000000000000000926e1fd5";

TEST(HostSnapshotVersionsTest, AllVersionsOpen) {
  test::RowMap expected;
  const auto row = [](std::string_view text) {
    const auto bytes = std::as_bytes(std::span(text.data(), text.size()));
    return test::Row(bytes.begin(), bytes.end());
  };
  expected[{1, 5}] = row("abc");
  expected[{1, 6}] = row("def");
  expected[{9, 7}] = row("xy");
  for (const std::string_view fixture : {kVersion1, kVersion2}) {
    SCOPED_TRACE(fixture == kVersion1 ? "version 1" : "version 2");
    const std::string dir = test::TempDir();
    std::ofstream(dir + "/00000000000004d2.snapshot", std::ios::binary)
        << absl::HexStringToBytes({fixture.data(), fixture.size()});
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, HostStore::Open({.tables = {{1, 3}, {9, 2}},
                                                                   .budget_bytes = 1 << 20,
                                                                   .snapshot_dir = dir,
                                                                   .open_at = 1234}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const test::RowMap rows, test::Dump(*store));
    EXPECT_EQ(rows, expected);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info, store->DescribeSnapshot(1234));
    if (fixture == kVersion1) {
      EXPECT_FALSE(info.identity.known());
    } else {
      EXPECT_EQ(info.identity.ToHex(), "0123456789abcdeffedcba9876543210");
      EXPECT_THAT(info.table_rows, testing::ElementsAre(2, 1));
    }
  }
}

}  // namespace
}  // namespace hotrow
