#include "comm/nccl_library_impl.cuh"

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

// Needs no GPU. Where the library is not, the error says which one is meant.
TEST(NcclLibraryTest, IsLoadedByNameOnce) {
  const auto library = LoadNccl();
  if (!library.ok()) {
    EXPECT_THAT(library.status(),
                test::StatusIs(absl::StatusCode::kFailedPrecondition,
                               testing::AllOf(testing::HasSubstr("libnccl.so."),
                                              testing::HasSubstr("LD_LIBRARY_PATH"))));
    return;
  }
  EXPECT_EQ(std::string((*library)->ncclGetErrorString(ncclSuccess)), "no error");
#define HOTROW_EXPECT_FOUND(name) EXPECT_NE((*library)->name, nullptr) << #name;
  HOTROW_NCCL_FUNCTIONS(HOTROW_EXPECT_FOUND)
#undef HOTROW_EXPECT_FOUND
  HOTROW_ASSERT_OK_AND_ASSIGN(const NcclLibrary* const again, LoadNccl());
  EXPECT_EQ(again, *library);
}

}  // namespace
}  // namespace hotrow::internal
