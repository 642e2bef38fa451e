#include "base/format_version.h"

#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::StatusIs;

constexpr auto kRefused = absl::StatusCode::kFailedPrecondition;

TEST(FormatVersionTest, AllVersionsOfTheRangeAreRead) {
  for (const uint64_t version : {2, 3, 4}) {
    HOTROW_EXPECT_OK(CheckFormatVersion("file", "version", version, {2, 4}));
  }
}

TEST(FormatVersionTest, OthersAreRefusedWithTheRangeAndTheRemedy) {
  EXPECT_THAT(CheckFormatVersion("a/b", "image of version", 5, {2, 4}),
              StatusIs(kRefused,
                       "a/b: image of version 5; this build reads versions 2 to 4; open it with a "
                       "newer hotrow"));
  EXPECT_THAT(CheckFormatVersion("a/b", "image of version", 1, {2, 2}),
              StatusIs(kRefused,
                       "a/b: image of version 1; this build reads version 2; open it with the "
                       "hotrow that wrote it"));
}

}  // namespace
}  // namespace hotrow
