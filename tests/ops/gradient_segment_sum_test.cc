#include "ops/update/gradient_segment_sum.h"

#include <cmath>
#include <iterator>
#include <vector>

#include "base/buffer.h"
#include "ops/keys/partition.h"
#include "ops/rows/pooled_lookup.h"
#include "ops/rows/row_tiles_impl.h"
#include "ops/update/gradient_segment_sum_impl.h"
#include "tests/ops/jagged_problem.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::JaggedProblem;
using test::kUntouched;
using test::StatusIs;
using testing::ElementsAre;
using testing::HasSubstr;

// The problem's `data` is the gradient of the output; returns [U][D].
absl::Status RunSum(const JaggedProblem& p, std::vector<std::vector<float>>* gradients,
                    ThreadPool* pool = nullptr) {
  std::vector<int64_t> row_offsets(p.rows.size() + 1);
  std::vector<int32_t> lookup_order(p.inverse.size());
  absl::Status status = Partition({}, {.part = p.inverse.data(),
                                       .num_items = p.num_lookups(),
                                       .num_parts = p.num_rows(),
                                       .offsets = row_offsets.data(),
                                       .order = lookup_order.data()});
  if (!status.ok()) return status;
  gradients->clear();
  std::vector<float*> pointers;
  for (const int32_t dim : p.row_dims) {
    // One float more than needed shows whether the op writes past the row.
    gradients->emplace_back(static_cast<size_t>(dim) + 1, kUntouched);
  }
  for (std::vector<float>& gradient : *gradients) pointers.push_back(gradient.data());
  HostBuffer<std::byte> workspace =
      std::move(HostBuffer<std::byte>::Create(GradientSegmentSumWorkspaceBytes(p.num_lookups())))
          .value();
  status = GradientSegmentSum({.pool = pool}, {.features = p.features,
                                               .batch_size = p.batch_size,
                                               .offsets = p.offsets.data(),
                                               .weights = p.weights_or_null(),
                                               .row_offsets = row_offsets.data(),
                                               .lookup_order = lookup_order.data(),
                                               .num_rows = p.num_rows(),
                                               .gradients = pointers.data(),
                                               .workspace = workspace.data(),
                                               .workspace_bytes = workspace.size()});
  for (size_t u = 0; u < p.rows.size(); ++u) {
    EXPECT_EQ((*gradients)[u].back(), kUntouched);
    (*gradients)[u].pop_back();
  }
  return status;
}

void FillDataAtRandom(JaggedProblem& p, uint64_t seed) {
  RandomStream random(seed, RandomPurpose::kTest, /*stream=*/1);
  for (std::vector<float>& data : p.data) {
    for (float& x : data) x = random.Normal();
  }
}

TEST(GradientSegmentSumTest, HandWorked) {
  // Feature 0 sums bags {0, 1}, {1}; feature 1 has the mean of {0, 1, 0, 0}, {}.
  JaggedProblem p;
  p.batch_size = 2;
  p.features = {{.dim = 1, .pooling = Pooling::kSum, .stride = 1},
                {.dim = 1, .pooling = Pooling::kMean, .stride = 1}};
  p.offsets = {0, 2, 3, 7, 7};
  p.inverse = {0, 1, 1, 0, 1, 0, 0};
  p.row_dims = {1, 1};
  p.rows = {{0}, {0}};
  BindData(p);
  p.data = {{5, 7}, {8, 100}};
  p.features[0].data = p.data[0].data();
  p.features[1].data = p.data[1].data();
  std::vector<std::vector<float>> gradients;
  HOTROW_ASSERT_OK(RunSum(p, &gradients));
  EXPECT_THAT(gradients, ElementsAre(ElementsAre(5 + 3 * 2), ElementsAre(5 + 7 + 2)));
  p.weights = {2, 3, -1, 4, 10, 0.5, 0.5};
  HOTROW_ASSERT_OK(RunSum(p, &gradients));
  EXPECT_THAT(gradients, ElementsAre(ElementsAre(10 + 8 + 1 + 1), ElementsAre(15 - 7 + 20)));
}

TEST(GradientSegmentSumTest, EmptyBatch) {
  HOTROW_EXPECT_OK(GradientSegmentSum({}, {}));
  const JaggedFeature no_data{.dim = 4, .stride = 4};
  HOTROW_EXPECT_OK(GradientSegmentSum({}, {.features = {&no_data, 1}}));
}

TEST(GradientSegmentSumTest, MatchesReferenceOnRandomBags) {
  for (const uint64_t seed : test::Seeds(60)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    JaggedProblem p = test::RandomJaggedProblem(seed);
    FillDataAtRandom(p, seed);
    std::vector<std::vector<double>> want;
    std::vector<std::vector<double>> bound;
    std::vector<int64_t> counts(p.rows.size());
    for (const int32_t dim : p.row_dims) {
      want.emplace_back(dim, 0.0);
      bound.emplace_back(dim, 0.0);
    }
    p.ForEachLookup([&](size_t f, int64_t b, int64_t j) {
      const JaggedFeature& feature = p.features[f];
      const int32_t u = p.inverse[j];
      ++counts[u];
      for (int32_t d = 0; d < feature.dim; ++d) {
        const double term =
            p.scale(f, b, j) * p.data[f][p.output_row(f, b, j) * feature.stride + d];
        want[u][d] += term;
        bound[u][d] += std::abs(term);
      }
    });
    std::vector<std::vector<float>> gradients;
    HOTROW_ASSERT_OK(RunSum(p, &gradients));
    for (size_t u = 0; u < p.rows.size(); ++u) {
      for (int32_t d = 0; d < p.row_dims[u]; ++d) {
        // n sums, one product and one division per term (Higham 2002, sec. 4.2).
        const double tolerance = static_cast<double>(counts[u] + 2) * 0x1p-24 * bound[u][d];
        ASSERT_NEAR(gradients[u][d], want[u][d], tolerance) << u << " " << d;
      }
    }
  }
}

// The gradient of L = sum over outputs of C * Y, where Y is the real PooledLookup, by central
// differences. L is linear in the rows, so a difference is exact up to rounding for any step.
TEST(GradientSegmentSumTest, IsTheGradientOfPooledLookup) {
  for (const uint64_t seed : test::Seeds(15)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    JaggedProblem p = test::RandomJaggedProblem(seed);
    FillDataAtRandom(p, seed);
    std::vector<std::vector<float>> gradients;
    HOTROW_ASSERT_OK(RunSum(p, &gradients));
    const std::vector<std::vector<float>> c = p.data;
    const auto loss = [&] {
      BindData(p);
      std::vector<const std::byte*> rows = p.row_pointers();
      EXPECT_THAT(PooledLookup({}, {.features = p.features,
                                    .batch_size = p.batch_size,
                                    .offsets = p.offsets.data(),
                                    .weights = p.weights_or_null(),
                                    .inverse = p.inverse.data(),
                                    .rows = rows.data()}),
                  test::IsOk());
      double sum = 0;
      for (size_t f = 0; f < p.features.size(); ++f) {
        const JaggedFeature& feature = p.features[f];
        for (int64_t i = 0; i < p.output_rows(f) * feature.stride; ++i) {
          if (i % feature.stride < feature.dim) sum += double{c[f][i]} * p.data[f][i];
        }
      }
      return sum;
    };
    RandomStream random(seed, RandomPurpose::kTest, /*stream=*/2);
    for (int i = 0; i < 10 && !p.rows.empty(); ++i) {
      const uint64_t u = random.Below(p.rows.size());
      const uint64_t d = random.Below(static_cast<uint64_t>(p.row_dims[u]));
      const float saved = p.rows[u][d];
      p.rows[u][d] = saved + 0.5f;
      const double up = loss();
      p.rows[u][d] = saved - 0.5f;
      const double down = loss();
      p.rows[u][d] = saved;
      // Outputs are of size 10 and rounded to 2^-24; up to 3,000 of them hold one row.
      EXPECT_NEAR(gradients[u][d], up - down, 2e-3) << "row " << u << " column " << d;
    }
  }
}

TEST(GradientSegmentSumTest, SameBitsOnAnyPool) {
  ThreadPool one(1);
  ThreadPool four(4);
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    JaggedProblem p = test::RandomJaggedProblem(seed);
    FillDataAtRandom(p, seed);
    std::vector<std::vector<float>> want;
    HOTROW_ASSERT_OK(RunSum(p, &want));
    for (ThreadPool* pool : {&one, &four}) {
      std::vector<std::vector<float>> got;
      HOTROW_ASSERT_OK(RunSum(p, &got, pool));
      EXPECT_EQ(got, want);
    }
  }
}

TEST(GradientSegmentSumTest, ValidateNamesTheField) {
  float data[1] = {1};
  const int64_t offsets[2] = {0, 1};
  int64_t row_offsets[2] = {0, 1};
  const int32_t lookup_order[1] = {0};
  float gradient[1];
  float* const gradients[1] = {gradient};
  alignas(64) std::byte workspace[64];
  JaggedFeature feature{.dim = 1, .data = data, .stride = 1};
  const GradientSegmentSumArgs good{.features = {&feature, 1},
                                    .batch_size = 1,
                                    .offsets = offsets,
                                    .row_offsets = row_offsets,
                                    .lookup_order = lookup_order,
                                    .num_rows = 1,
                                    .gradients = gradients,
                                    .workspace = workspace,
                                    .workspace_bytes = 64};
  HOTROW_ASSERT_OK(GradientSegmentSum({}, good));
  EXPECT_EQ(gradient[0], 1);
  using Args = GradientSegmentSumArgs;
  const auto expect = [&](auto change, const char* message) {
    Args args = good;
    change(args);
    EXPECT_THAT(GradientSegmentSum({}, args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  expect([](Args& a) { a.batch_size = -1; }, "batch_size must be >= 0, got -1");
  expect([](Args& a) { a.num_rows = -1; }, "num_rows must be >= 0, got -1");
  expect([](Args& a) { a.offsets = nullptr; }, "offsets must not be null");
  expect([](Args& a) { a.row_offsets = nullptr; }, "row_offsets must not be null");
  expect([](Args& a) { a.lookup_order = nullptr; }, "lookup_order must not be null");
  expect([](Args& a) { a.gradients = nullptr; }, "gradients must not be null");
  expect([](Args& a) { a.workspace = nullptr; }, "workspace must not be null");
  expect([](Args& a) { a.workspace_bytes = 15; }, "workspace_bytes must be at least 16, got 15");
  row_offsets[1] = 2;
  expect([](Args&) {}, "row_offsets[num_rows] must be the number of lookups, 1, got 2");
  row_offsets[1] = 1;
  feature.dim = 0;
  expect([](Args&) {}, "features[0].dim must be > 0, got 0");
  feature = {.dim = 1, .pooling = Pooling::kNone, .stride = 1};
  expect([](Args&) {}, "features[0].data must not be null");
}

// What the kernels find by slot is what each row has: no run is lost, none is there twice, and all
// of a row's lie side by side.
TEST(HotRowRunTest, SlotsHoldTheRunsOfAllHotRows) {
  using internal::HotRowRun;
  constexpr int64_t kRun = HotRowRun::kLength;
  const int64_t edges[] = {1,        kRun - 1,     kRun,         kRun + 1, 2 * kRun - 1,
                           2 * kRun, 2 * kRun + 1, 3 * kRun - 1, 3 * kRun, 300'000};
  for (const uint64_t seed : test::Seeds(40)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<int64_t> row_offsets = {0};
    const uint64_t num_rows = 1 + random.Below(30);
    for (uint64_t u = 0; u < num_rows; ++u) {
      row_offsets.push_back(row_offsets.back() + edges[random.Below(std::size(edges))]);
    }
    const int64_t num_lookups = row_offsets.back();
    struct Found {
      int64_t slots = 0;
      int64_t first_slot = -1;
      int64_t end;  // of the runs so far
    };
    std::vector<Found> rows(num_rows);
    for (uint64_t u = 0; u < num_rows; ++u) rows[u].end = row_offsets[u];
    for (int64_t slot = 0; slot < HotRowRun::Slots(num_lookups); ++slot) {
      const int64_t lookup = HotRowRun::LookupOf(slot);
      ASSERT_LT(lookup, num_lookups);
      const int64_t u =
          internal::LastAtMost(row_offsets.data(), 0, static_cast<int64_t>(num_rows), lookup);
      const HotRowRun run = HotRowRun::Of(slot, row_offsets[u], row_offsets[u + 1]);
      if (run.index < 0) continue;
      Found& row = rows[u];
      if (row.slots == 0) row.first_slot = slot;
      ASSERT_EQ(run.index, row.slots);
      ASSERT_EQ(slot, row.first_slot + run.index);
      ASSERT_EQ(run.begin, row.end);
      ASSERT_GE(run.end - run.begin, kRun);
      ASSERT_LT(run.end - run.begin, 2 * kRun);
      row.end = run.end;
      ++row.slots;
    }
    for (uint64_t u = 0; u < num_rows; ++u) {
      const int64_t lookups = row_offsets[u + 1] - row_offsets[u];
      const bool is_hot = lookups >= 2 * kRun;
      EXPECT_EQ(rows[u].slots, is_hot ? HotRowRun::Count(lookups) : 0) << lookups;
      EXPECT_EQ(HotRowRun::Count(lookups) > 1, is_hot) << lookups;
      EXPECT_EQ(rows[u].end, row_offsets[is_hot ? u + 1 : u]) << lookups;
    }
  }
}

TEST(GradientSegmentSumTest, CudaWorkspace) {
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(0, Device::kCuda, 7), 0);
  // 16 bytes a lookup in whole cache lines; sums of runs where there may be a hot row.
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(511, Device::kCuda, 7), 8192);
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(512, Device::kCuda, 7), 8192 + 2 * 8 * 4);
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(513, Device::kCuda, 8), 8256 + 2 * 8 * 4);
  // The largest batch does not overflow.
  constexpr int64_t kMost = (int64_t{1} << 31) - 1;
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(kMost, Device::kCuda, 1000),
            16 * (kMost + 1) + kMost / 256 * 4000);
  EXPECT_EQ(GradientSegmentSumWorkspaceBytes(512), 512 * 16);
}

TEST(GradientSegmentSumTest, ValidateForCudaNamesTheField) {
  alignas(64) std::byte workspace[1024];
  JaggedFeature features[2] = {{.dim = 3, .stride = 3}, {.dim = 9, .stride = 9}};
  const GradientSegmentSumArgs good{.features = features,
                                    .batch_size = 1,
                                    .num_rows = 5,
                                    .num_lookups = 60,
                                    .workspace = workspace,
                                    .workspace_bytes = 1024};
  HOTROW_EXPECT_OK(internal::ValidateForCuda(good));
  const auto expect = [&](auto change, const char* message) {
    GradientSegmentSumArgs args = good;
    change(args);
    EXPECT_THAT(internal::ValidateForCuda(args),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(message)));
  };
  using Args = GradientSegmentSumArgs;
  expect([](Args& a) { a.num_lookups = 0; },
         "num_lookups must be given on a CUDA device, at least num_rows = 5, got 0");
  expect([](Args& a) { a.num_lookups = 65; }, "workspace_bytes must be at least 1088, got 1024");
  expect([](Args& a) { a.workspace += 16; }, "workspace must be aligned");
  expect([](Args& a) { a.batch_size = 0; }, "num_rows must be 0 without features or samples");
  expect([](Args& a) { a.features = {}; }, "num_rows must be 0 without features or samples");
  EXPECT_EQ(internal::WidestDim(features), 9);
}

}  // namespace
}  // namespace hotrow
