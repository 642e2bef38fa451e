#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/products/cublaslt_impl.cuh"

namespace hotrow::internal {
namespace {

// Where there is no GPU, too: the library is the toolkit's.
TEST(CublasLtTest, TheLibraryIsFoundOrItsAbsenceIsExplained) {
  const absl::StatusOr<const CublasLt*> library = LoadCublasLt();
  if (library.ok()) {
    EXPECT_NE((*library)->cublasLtMatmul, nullptr);
    EXPECT_STREQ((*library)->cublasLtGetStatusName(CUBLAS_STATUS_SUCCESS), "CUBLAS_STATUS_SUCCESS");
    return;
  }
  EXPECT_THAT(std::string(library.status().message()),
              testing::AllOf(testing::HasSubstr("no usable GPU: libcublasLt.so."),
                             testing::HasSubstr("LD_LIBRARY_PATH")));
}

}  // namespace
}  // namespace hotrow::internal
