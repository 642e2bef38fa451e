#ifndef HOTROW_TESTS_SUPPORT_TEST_UTIL_H_
#define HOTROW_TESTS_SUPPORT_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace hotrow::test {

// `count` seeds to run a property test with: 1, 2, ... With HOTROW_TEST_SEED set in the
// environment, that one alone, to replay a failure.
std::vector<uint64_t> Seeds(int count);

// A directory for this test, empty, removed at exit.
std::string TempDir();

inline const absl::Status& GetStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& GetStatus(const absl::StatusOr<T>& status_or) {
  return status_or.status();
}

MATCHER(IsOk, "is OK") {
  if (GetStatus(arg).ok()) return true;
  *result_listener << "which is " << GetStatus(arg).ToString();
  return false;
}

// StatusIs(absl::StatusCode::kDataLoss, HasSubstr("seg-3")).
MATCHER_P2(StatusIs, code, message_matcher, "") {
  const absl::Status& status = GetStatus(arg);
  *result_listener << "which is " << status.ToString();
  return status.code() == code &&
         ::testing::ExplainMatchResult(message_matcher, std::string(status.message()),
                                       result_listener);
}

}  // namespace hotrow::test

#define HOTROW_ASSERT_OK(expression) ASSERT_THAT(expression, ::hotrow::test::IsOk())
#define HOTROW_EXPECT_OK(expression) EXPECT_THAT(expression, ::hotrow::test::IsOk())
// HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(options)); one per line.
#define HOTROW_ASSERT_OK_AND_ASSIGN(declaration, expression) \
  HOTROW_ASSERT_OK_IMPL_(HOTROW_CONCAT_(test_status_or_, __LINE__), declaration, expression)
#define HOTROW_ASSERT_OK_IMPL_(status_or, declaration, expression) \
  auto status_or = (expression);                                   \
  ASSERT_THAT(status_or, ::hotrow::test::IsOk());                  \
  declaration = *std::move(status_or)

#include "base/status_macros.h"  // HOTROW_CONCAT_

#endif  // HOTROW_TESTS_SUPPORT_TEST_UTIL_H_
