#include <cstring>
#include <vector>

#include "base/cuda_handles.h"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/pooled_lookup_impl.h"
#include "tests/ops/half_reference.h"
#include "tests/ops/jagged_problem.h"
#include "tests/ops/jagged_problem_cuda.h"
#include "tests/support/device_array.cuh"
#include "tests/support/gpu_test.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::BuildJaggedProblem;
using test::DeviceArray;
using test::DeviceProblem;
using test::JaggedProblem;
using test::kUntouched;

absl::Status LookUpOnCpu(const JaggedProblem& p) {
  const std::vector<const std::byte*> rows = p.row_pointers();
  return PooledLookup({}, {.features = p.features,
                           .batch_size = p.batch_size,
                           .offsets = p.offsets.data(),
                           .weights = p.weights_or_null(),
                           .inverse = p.inverse.data(),
                           .rows = rows.data()});
}

// tiles_wanted: 1: each tile takes as many bags as it can, as those of large batches do.
absl::Status LookUpOnGpu(const JaggedProblem& p, DeviceProblem* device, CudaStream stream,
                         int64_t tiles_wanted = internal::kPoolTilesWanted) {
  return internal::PooledLookupCuda({.features = device->features,
                                     .batch_size = p.batch_size,
                                     .offsets = device->offsets.data(),
                                     .weights = device->weights_or_null,
                                     .inverse = device->inverse.data(),
                                     .rows = device->rows.byte_pointers()},
                                    stream, tiles_wanted);
}

// The outputs of all features, and what lies between them, to the bit.
void ExpectTheBitsOfTheCpu(JaggedProblem p) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  for (const int way : {0, 1, 2}) {
    SCOPED_TRACE(way);
    const bool aligned = way != 1;
    BindData(p);
    DeviceProblem device(p, aligned);
    HOTROW_ASSERT_OK(LookUpOnGpu(p, &device, stream.get(),
                                 /*tiles_wanted=*/way == 0 ? internal::kPoolTilesWanted : 1));
    const std::vector<std::vector<float>> got = device.data.ToHost();
    HOTROW_ASSERT_OK(LookUpOnCpu(p));
    for (size_t f = 0; f < p.features.size(); ++f) {
      ASSERT_EQ(got[f].size(), p.data[f].size());
      for (size_t i = 0; i < got[f].size(); ++i) {
        ASSERT_EQ(std::memcmp(&got[f][i], &p.data[f][i], sizeof(float)), 0)
            << "feature " << f << " of dim " << p.features[f].dim << ", float " << i << ": got "
            << got[f][i] << ", want " << p.data[f][i] << (aligned ? "" : ", unaligned");
      }
    }
  }
}

TEST(PooledLookupCudaTest, GivesTheBitsOfTheCpuOnRandomBags) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(30)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    ExpectTheBitsOfTheCpu(test::RandomJaggedProblem(seed));
  }
}

TEST(PooledLookupCudaTest, AllWidthsAndBagLengths) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 8, 0, 9, 40};
  for (const bool weighted : {false, true}) {
    ExpectTheBitsOfTheCpu(BuildJaggedProblem(
        5, /*batch_size=*/test::ForGpu(37, 21), test::FeaturesOfAllWidths(), /*table_rows=*/50,
        weighted, [&](size_t f, int64_t b) { return lengths[(f + static_cast<size_t>(b)) % 10]; }));
  }
}

// Rows of several precisions in one launch; a third of the dims has each. Rows begin on 16 bytes,
// or where their numbers may just lie.
TEST(PooledLookupCudaTest, MixedPrecisions) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const auto precision_of = [](int32_t dim) { return static_cast<WeightsPrecision>(dim % 3); };
  std::vector<JaggedFeature> features;
  for (const int32_t dim : {1, 2, 3, 7, 8, 15, 17, 64, 65, 66, 130, 1000}) {
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
      features.push_back(
          {.dim = dim, .pooling = pooling, .stride = dim + 1, .precision = precision_of(dim)});
    }
  }
  for (const bool weighted : {false, true}) {
    JaggedProblem p =
        BuildJaggedProblem(9, /*batch_size=*/37, features, /*table_rows=*/50, weighted,
                           [](size_t f, int64_t b) { return (static_cast<int64_t>(f) + b) % 11; });
    std::vector<std::vector<std::byte>> rows;
    for (size_t u = 0; u < p.rows.size(); ++u) {
      rows.push_back(test::NarrowedRow(precision_of(p.row_dims[u]), p.rows[u]));
    }
    std::vector<const std::byte*> host_rows;
    for (const std::vector<std::byte>& row : rows) host_rows.push_back(row.data());
    HOTROW_ASSERT_OK(PooledLookup({}, {.features = p.features,
                                       .batch_size = p.batch_size,
                                       .offsets = p.offsets.data(),
                                       .weights = p.weights_or_null(),
                                       .inverse = p.inverse.data(),
                                       .rows = host_rows.data()}));
    for (const bool aligned : {true, false}) {
      std::vector<std::byte> bytes;
      std::vector<size_t> begins;
      for (size_t u = 0; u < rows.size(); ++u) {
        const auto offset = static_cast<size_t>(WeightBytes(precision_of(p.row_dims[u])));
        bytes.resize((bytes.size() + 15) / 16 * 16 + (aligned ? 0 : offset));
        begins.push_back(bytes.size());
        bytes.insert(bytes.end(), rows[u].begin(), rows[u].end());
      }
      DeviceArray<std::byte> device_bytes(bytes);
      std::vector<const std::byte*> pointers;
      for (const size_t begin : begins) pointers.push_back(device_bytes.data() + begin);
      DeviceArray<const std::byte*> device_pointers(pointers);
      DeviceProblem device(p, aligned);
      HOTROW_ASSERT_OK(internal::PooledLookupCuda({.features = device.features,
                                                   .batch_size = p.batch_size,
                                                   .offsets = device.offsets.data(),
                                                   .weights = device.weights_or_null,
                                                   .inverse = device.inverse.data(),
                                                   .rows = device_pointers.data()},
                                                  stream.get(), /*tiles_wanted=*/1));
      const std::vector<std::vector<float>> got = device.data.ToHost();
      for (size_t f = 0; f < p.features.size(); ++f) {
        ASSERT_EQ(std::memcmp(got[f].data(), p.data[f].data(), got[f].size() * sizeof(float)), 0)
            << "feature " << f << " of dim " << p.features[f].dim << ", "
            << WeightsPrecisionName(p.features[f].precision) << (aligned ? "" : ", unaligned");
      }
    }
  }
}

// More features than one launch takes; a feature in the middle has no lookup.
TEST(PooledLookupCudaTest, ManyFeatures) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<JaggedFeature> features;
  for (int32_t f = 0; f < 150; ++f) {
    const int32_t dim = 1 + f % 20;
    features.push_back({.dim = dim, .pooling = static_cast<Pooling>(f % 3), .stride = dim});
  }
  ExpectTheBitsOfTheCpu(
      BuildJaggedProblem(6, /*batch_size=*/11, features, /*table_rows=*/9, true,
                         [](size_t f, int64_t b) { return f == 70 ? 0 : 1 + b % 3; }));
}

// The sum of 300,000 rows in one bag, in lookup order; and as many outputs without pooling.
TEST(PooledLookupCudaTest, LongBags) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<JaggedFeature> features;
  for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
    features.push_back({.dim = 6, .pooling = pooling, .stride = 6});
  }
  ExpectTheBitsOfTheCpu(BuildJaggedProblem(
      7, /*batch_size=*/3, features, /*table_rows=*/1000, false,
      [](size_t, int64_t b) { return b == 1 ? test::ForGpu(300'000, 20'000) : 2; }));
}

TEST(PooledLookupCudaTest, EmptyBatchAndNoLookups) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  HOTROW_EXPECT_OK(PooledLookup(ctx, {}));
  const JaggedFeature no_data{.dim = 4, .stride = 4};
  HOTROW_EXPECT_OK(PooledLookup(ctx, {.features = {&no_data, 1}}));
  // Without lookups no rows are needed to give zeros, nor an output without pooling.
  DeviceArray<float> output(std::vector<float>(10, kUntouched));
  DeviceArray<int64_t> offsets(std::vector<int64_t>(5, 0));
  const JaggedFeature features[] = {{.dim = 3, .data = output.data(), .stride = 5},
                                    {.dim = 4, .pooling = Pooling::kNone, .stride = 4}};
  HOTROW_EXPECT_OK(
      PooledLookup(ctx, {.features = features, .batch_size = 2, .offsets = offsets.data()}));
  EXPECT_EQ(output.ToHost(),
            (std::vector<float>{0, 0, 0, kUntouched, kUntouched, 0, 0, 0, kUntouched, kUntouched}));
}

// Bags that one tile takes together: of one lookup, of none, runs of either, and a long one.
TEST(PooledLookupCudaTest, ManyShortBags) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<JaggedFeature> features;
  for (const int32_t dim : {5, 8, 48, 128, 132}) {
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
      features.push_back({.dim = dim, .pooling = pooling, .stride = dim});
    }
  }
  ExpectTheBitsOfTheCpu(BuildJaggedProblem(
      12, /*batch_size=*/77, features, /*table_rows=*/30, true, [](size_t f, int64_t b) -> int64_t {
        if (f % 2 == 0) return 1;
        return b % 40 < 6 ? 0 : b == 50 ? 45 : b % 3 == 0 ? 2 : b % 2;
      }));
}

// What a trainer does: the outputs of pooled features share one wide row per sample.
TEST(PooledLookupCudaTest, FeaturesShareWideRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  constexpr int64_t kBatch = 29;
  constexpr int64_t kWidth = 16 + 3 + 64;
  std::vector<JaggedFeature> features;
  for (const int32_t dim : {16, 3, 64}) features.push_back({.dim = dim, .stride = kWidth});
  JaggedProblem p =
      BuildJaggedProblem(8, kBatch, features, 30, true, [](size_t, int64_t b) { return b % 4; });
  std::vector<float> want(kBatch * kWidth);
  DeviceProblem device(p, /*aligned=*/true);
  DeviceArray<float> got(std::vector<float>(kBatch * kWidth, kUntouched));
  int64_t offset = 0;
  for (size_t f = 0; f < features.size(); ++f) {
    p.features[f].data = want.data() + offset;
    device.features[f].data = got.data() + offset;
    offset += features[f].dim;
  }
  HOTROW_ASSERT_OK(LookUpOnCpu(p));
  HOTROW_ASSERT_OK(LookUpOnGpu(p, &device, stream.get()));
  EXPECT_EQ(got.ToHost(), want);
}

}  // namespace
}  // namespace hotrow
