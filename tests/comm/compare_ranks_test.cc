#include "comm/compare_ranks.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "comm/thread_communicator.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

std::vector<absl::Status> Compare(const std::vector<NamedValues>& ranks) {
  return RunOnThreads(static_cast<int>(ranks.size()), {}, [&](Communicator& c) {
    const absl::Status status = CompareRanks(c, ranks[static_cast<size_t>(c.rank())]);
    // What differs does not end the channel.
    HOTROW_EXPECT_OK(c.Barrier());
    return status;
  });
}

TEST(CompareRanksTest, TheSameIsFine) {
  const NamedValues values = {{"--seed", "1"}, {"--data", ""}};
  for (const int ranks : {1, 2, 5}) {
    for (const absl::Status& status : Compare(std::vector<NamedValues>(ranks, values))) {
      HOTROW_EXPECT_OK(status);
    }
    for (const absl::Status& status : Compare(std::vector<NamedValues>(ranks))) {
      HOTROW_EXPECT_OK(status);
    }
  }
}

TEST(CompareRanksTest, AllRanksNameWhatDiffersAndWhere) {
  const NamedValues most = {{"--seed", "1"}, {"--batch_size", "64"}, {"--data", "x"}};
  const NamedValues other = {{"--seed", "1"}, {"--batch_size", "128"}, {"--data", ""}};
  for (const absl::Status& status : Compare({most, most, other, most})) {
    EXPECT_THAT(status,
                StatusIs(absl::StatusCode::kInvalidArgument,
                         AllOf(HasSubstr("the ranks differ: --batch_size is 64 on ranks 0, 1, 3 "
                                         "and 128 on rank 2; --data is x on ranks 0, 1, 3 and \"\" "
                                         "on rank 2"),
                               Not(HasSubstr("seed")))));
  }
}

TEST(CompareRanksTest, AValueOfOneRankAloneIsNamed) {
  for (const absl::Status& status :
       Compare({{{"a", "1"}}, {{"a", "1"}, {"b", "2"}}, {{"a", "3"}}})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("a is 1 on ranks 0, 1 and 3 on rank 2"),
                                       HasSubstr("b is unknown on ranks 0, 2 and 2 on rank 1"))));
  }
}

TEST(CompareRanksTest, LongAndManyValuesAreCut) {
  NamedValues one = {{"long", std::string(100'000, 'x') + "1"}};
  NamedValues two = {{"long", std::string(100'000, 'x') + "2"}};
  for (int i = 0; i < 20; ++i) {
    one.emplace_back(absl::StrCat("n", i), "1");
    two.emplace_back(absl::StrCat("n", i), "2");
  }
  for (const absl::Status& status : Compare({one, two})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument,
                                 AllOf(HasSubstr("xxx1 on rank 0 and ...xxx"),
                                       HasSubstr("xxx2 on rank 1"), HasSubstr("n6 is 1"),
                                       Not(HasSubstr("n7")), HasSubstr("; 13 more;"))));
    EXPECT_LT(status.message().size(), 1500u);
  }
}

TEST(CompareRanksTest, OrderCounts) {
  for (const absl::Status& status : Compare({{{"a", "1"}, {"b", "2"}}, {{"b", "2"}, {"a", "1"}}})) {
    EXPECT_THAT(status, StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("orders")));
  }
}

}  // namespace
}  // namespace hotrow::test
