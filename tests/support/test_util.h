#ifndef HOTROW_TESTS_SUPPORT_TEST_UTIL_H_
#define HOTROW_TESTS_SUPPORT_TEST_UTIL_H_

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/read_file.h"
#include "gtest/gtest.h"

namespace hotrow {

// A file of any kind.
inline absl::StatusOr<std::string> ReadFileToString(Env& env, const std::string& path) {
  return ReadWholeFile(env, path, int64_t{1} << 30);
}

}  // namespace hotrow

namespace hotrow::test {

// `count` seeds to run a property test with: 1, 2, ... With HOTROW_TEST_SEED set in the
// environment, that seed alone, to replay a failure.
std::vector<uint64_t> Seeds(int count);

// An empty directory, removed when its case has passed, else at exit.
std::string TempDir();
void RemoveTempDirs();

// HOTROW_SLOW_TESTS, in [0, 1]: the share of what slow tests do at most. Where it is above 0 the
// same cases have more seeds, every call and every byte, and the suites named *SlowTest run.
// ctest's label slow sets 0.1, so that all of it ends in minutes; who wants 500 kills sets 1.
double SlowShare();
inline bool RunsSlowTests() { return SlowShare() > 0; }
// A count of seeds, kills, trials or seconds: a share of `all` for slow tests, else `few`.
int SlowRuns(int all, int few);

// How much a walk or a random run does, and how much of it where a sanitizer makes it several times
// slower. The build without one does it in full.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizer = true;
#else
constexpr bool kSanitizer = false;
#endif
template <typename T>
constexpr T ForSanitizer(T full, T sanitized) {
  return kSanitizer ? sanitized : full;
}

// The predicate of HOTROW_ASSERT_OK and HOTROW_EXPECT_OK: a function and no matcher, because two
// thousand expansions of a matcher take the compiler minutes.
testing::AssertionResult OkFormat(const char* expression, const absl::Status& status);
template <typename T>
testing::AssertionResult OkFormat(const char* expression, const absl::StatusOr<T>& status_or) {
  return OkFormat(expression, status_or.status());
}

}  // namespace hotrow::test

#define HOTROW_ASSERT_OK(expression) ASSERT_PRED_FORMAT1(::hotrow::test::OkFormat, expression)
#define HOTROW_EXPECT_OK(expression) EXPECT_PRED_FORMAT1(::hotrow::test::OkFormat, expression)
// HOTROW_ASSERT_OK_AND_ASSIGN(auto store, HostStore::Open(options)); one per line.
#define HOTROW_ASSERT_OK_AND_ASSIGN(declaration, expression) \
  HOTROW_ASSERT_OK_IMPL_(HOTROW_CONCAT_(test_status_or_, __LINE__), declaration, expression)
#define HOTROW_ASSERT_OK_IMPL_(status_or, declaration, expression) \
  auto status_or = (expression);                                   \
  HOTROW_ASSERT_OK(status_or);                                     \
  declaration = *std::move(status_or)

#include "base/status_macros.h"  // HOTROW_CONCAT_

#endif  // HOTROW_TESTS_SUPPORT_TEST_UTIL_H_
