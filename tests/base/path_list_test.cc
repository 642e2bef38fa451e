#include "base/path_list.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

TEST(PathListTest, ACommaSeparatesAndTwoAreOneOfAName) {
  EXPECT_THAT(*SplitPathList(""), IsEmpty());
  EXPECT_THAT(*SplitPathList("/a"), ElementsAre("/a"));
  EXPECT_THAT(*SplitPathList("/a,b/c,/d"), ElementsAre("/a", "b/c", "/d"));
  EXPECT_THAT(*SplitPathList("/a,,b,/c"), ElementsAre("/a,b", "/c"));
  EXPECT_THAT(*SplitPathList("/a,,,/c"), ElementsAre("/a,", "/c"));
  for (const char* const bad : {",", "/a,", ",/a", "/a, ,/b,"}) {
    EXPECT_THAT(SplitPathList(bad),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("empty path")))
        << bad;
  }
}

TEST(PathListTest, ListsComeBack) {
  const std::vector<std::string> paths = {"/a,b", "c", ",d"};
  EXPECT_EQ(JoinPathList(paths), "/a,,b,c,./,,d");
  EXPECT_THAT(*SplitPathList(JoinPathList(paths)), ElementsAre("/a,b", "c", "./,d"));
  EXPECT_EQ(JoinPathList({}), "");
}

}  // namespace
}  // namespace hotrow
