#include "gtest/gtest.h"
#include "tests/cache/address_index_driver.h"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

// The same on a GPU, where threads race for the ways of a bucket.

namespace hotrow {
namespace {

TEST(AddressIndexCudaTest, HasWhatAMapHasButForWhatWasLeftOut) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(5, 2))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    for (const int64_t buckets : {1, 2, 5, 40}) {
      SCOPED_TRACE(buckets);
      ASSERT_NO_FATAL_FAILURE(
          test::RunAddressIndex(buckets, Device::kCuda, test::ForGpu(200, 30), seed));
    }
  }
}

TEST(AddressIndexCudaTest, EachWayGetsOneKeyAndNoneStaysEmpty) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (int round = 0; round < test::ForGpu(20, 2); ++round) {
    test::RunFullAddressIndex(1, 1000, Device::kCuda);
    test::RunFullAddressIndex(40, test::ForGpu(100'000, 4000), Device::kCuda);
  }
}

TEST(AddressIndexCudaTest, KeysOfOneTagAreToldApart) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::RunOneTag(test::KeysOfOneTag(8), Device::kCuda, test::ForGpu(2000, 200), 1);
  test::RunOneTag(test::KeysOfOneTagInTwoTables(8), Device::kCuda, test::ForGpu(2000, 200), 1);
}

TEST(AddressIndexCudaTest, WhoLosesAWayFindsAnother) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::RunOneBucket(Device::kCuda, test::ForGpu(500, 50));
}

TEST(AddressIndexCudaTest, EveryKeyIsLegalAndLargeAddressesAreLeftOut) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  test::RunAddressIndexOddities(Device::kCuda);
}

}  // namespace
}  // namespace hotrow
