#ifndef HOTROW_TESTS_SUPPORT_STATUS_MATCHERS_H_
#define HOTROW_TESTS_SUPPORT_STATUS_MATCHERS_H_

// Matchers of absl::Status and absl::StatusOr. Apart from test_util.h, because GoogleMock takes
// nvcc longer than what it tests.

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gmock/gmock.h"

namespace hotrow::test {

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

#endif  // HOTROW_TESTS_SUPPORT_STATUS_MATCHERS_H_
