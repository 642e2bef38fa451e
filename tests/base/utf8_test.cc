#include "base/utf8.h"

#include <string>

#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::AllOf;
using testing::HasSubstr;

TEST(Utf8Test, IsTheOneOfTheUnicodeStandard) {
  for (const std::string good : {"", "a", "\xc3\xa9", "\xe2\x82\xac", "\xed\x9f\xbf",
                                 "\xee\x80\x80", "\xf0\x9f\x98\x80", "\xf4\x8f\xbf\xbf"}) {
    EXPECT_TRUE(IsUtf8(good)) << good;
  }
  for (const std::string bad :
       {"\xff", "\x80", "\xc3", "\xc0\xaf", "\xc1\xbf", "\xe0\x80\xaf", "\xed\xa0\x80", "\xe2\x82",
        "\xf0\x80\x80\x80", "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "a\xe2\x82z"}) {
    EXPECT_FALSE(IsUtf8(bad)) << bad;
  }
  EXPECT_THAT(CheckUtf8Path("--store_path", "/data/caf\xe9"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("--store_path=/data/caf\\xe9"), HasSubstr("UTF-8"))));
}

}  // namespace
}  // namespace hotrow
