#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>
#include <vector>

#include "base/buffer.h"
#include "base/cuda_handles.h"
#include "ops/update/gradient_segment_sum.h"
#include "tests/ops/gradient_reference.h"
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
using test::DeviceRows;
using test::GradientsOfDevice;
using test::JaggedProblem;
using test::kUntouched;
using test::Order;
using test::OrderOf;

// Everything that the op needs on the device.
struct DeviceSum {
  DeviceSum(const JaggedProblem& p, const Order& order, bool aligned, int64_t lookups_bound)
      : problem(p, aligned),
        row_offsets(order.row_offsets),
        lookup_order(order.lookup_order),
        gradients(Untouched(p), aligned),
        // Poisoned, so that sums that read what nobody has written show.
        workspace(std::vector<std::byte>(static_cast<size_t>(GradientSegmentSumWorkspaceBytes(
                                             lookups_bound, Device::kCuda, DimMax(p))),
                                         std::byte{0xff})),
        args{.features = problem.features,
             .batch_size = p.batch_size,
             .offsets = problem.offsets.data(),
             .weights = problem.weights_or_null,
             .row_offsets = row_offsets.data(),
             .lookup_order = lookup_order.data(),
             .num_rows = p.num_rows(),
             .gradients = gradients.pointers(),
             .num_lookups = lookups_bound,
             .workspace = workspace.data(),
             .workspace_bytes = static_cast<int64_t>(workspace.size())} {}

  static int32_t DimMax(const JaggedProblem& p) {
    int32_t widest = 0;
    for (const JaggedFeature& feature : p.features) widest = std::max(widest, feature.dim);
    return widest;
  }
  static std::vector<std::vector<float>> Untouched(const JaggedProblem& p) {
    std::vector<std::vector<float>> rows;
    for (const int32_t dim : p.row_dims) rows.emplace_back(dim, kUntouched);
    return rows;
  }

  DeviceProblem problem;
  DeviceArray<int64_t> row_offsets;
  DeviceArray<int32_t> lookup_order;
  DeviceRows gradients;
  DeviceArray<std::byte> workspace;
  GradientSegmentSumArgs args;
};

void ExpectSameBits(const std::vector<std::vector<float>>& got,
                    const std::vector<std::vector<float>>& want) {
  ASSERT_EQ(got.size(), want.size());
  for (size_t u = 0; u < want.size(); ++u) {
    for (size_t d = 0; d < want[u].size(); ++d) {
      ASSERT_EQ(std::memcmp(&got[u][d], &want[u][d], sizeof(float)), 0)
          << "row " << u << " of dim " << want[u].size() << ", column " << d << ": got "
          << got[u][d] << ", want " << want[u][d];
    }
  }
}

// Three times: aligned and not, and with more room than lookups; each launched twice.
void ExpectTheReference(JaggedProblem p, uint64_t seed) {
  test::FillDataAtRandom(p, seed);
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  const Order order = OrderOf(p);
  const std::vector<std::vector<float>> want = GradientsOfDevice(p, order);
  for (const int way : {0, 1, 2}) {
    SCOPED_TRACE(way);
    DeviceSum sum(p, order, /*aligned=*/way != 1, p.num_lookups() + (way == 2 ? 5000 : 0));
    for (int launch = 0; launch < (way == 0 ? 2 : test::ForGpu(2, 1)); ++launch) {
      HOTROW_ASSERT_OK(GradientSegmentSum(ctx, sum.args));
      ExpectSameBits(sum.gradients.ToHost(), want);
    }
  }
}

TEST(GradientSegmentSumCudaTest, RandomBags) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(test::ForGpu(30, 12))) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    ExpectTheReference(test::RandomJaggedProblem(seed), seed);
  }
}

// Below 512 lookups a row, the CPU's own bits.
TEST(GradientSegmentSumCudaTest, GivesTheBitsOfTheCpuToRowsThatAreNotHot) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  JaggedProblem p = BuildJaggedProblem(3, /*batch_size=*/200, {{.dim = 17, .stride = 17}}, 1000,
                                       true, [](size_t, int64_t b) { return b % 6; });
  test::FillDataAtRandom(p, 3);
  const Order order = OrderOf(p);
  std::vector<std::vector<float>> want = DeviceSum::Untouched(p);
  std::vector<float*> pointers;
  for (std::vector<float>& row : want) pointers.push_back(row.data());
  HOTROW_ASSERT_OK_AND_ASSIGN(
      auto workspace,
      HostBuffer<std::byte>::Create(GradientSegmentSumWorkspaceBytes(p.num_lookups())));
  HOTROW_ASSERT_OK(GradientSegmentSum({}, {.features = p.features,
                                           .batch_size = p.batch_size,
                                           .offsets = p.offsets.data(),
                                           .weights = p.weights_or_null(),
                                           .row_offsets = order.row_offsets.data(),
                                           .lookup_order = order.lookup_order.data(),
                                           .num_rows = p.num_rows(),
                                           .gradients = pointers.data(),
                                           .workspace = workspace.data(),
                                           .workspace_bytes = workspace.size()}));
  DeviceSum sum(p, order, /*aligned=*/true, p.num_lookups());
  HOTROW_ASSERT_OK(GradientSegmentSum({.device = Device::kCuda, .stream = stream.get()}, sum.args));
  ExpectSameBits(sum.gradients.ToHost(), want);
}

// Both features of a width look rows up in one table, a third of the lookups in its first row.
TEST(GradientSegmentSumCudaTest, AllWidths) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const int64_t lengths[] = {0, 1, 2, 3, 4, 5, 8, 0, 9, 40};
  for (const bool weighted : {false, true}) {
    ExpectTheReference(BuildJaggedProblem(5, /*batch_size=*/test::ForGpu(37, 19),
                                          test::FeaturesOfAllWidths(), /*table_rows=*/50, weighted,
                                          [&](size_t f, int64_t b) {
                                            return lengths[(f + static_cast<size_t>(b)) % 10];
                                          }),
                       5);
  }
}

TEST(GradientSegmentSumCudaTest, ManyFeatures) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<JaggedFeature> features;
  for (int32_t f = 0; f < 150; ++f) {
    const int32_t dim = 1 + f % 20;
    features.push_back({.dim = dim, .pooling = static_cast<Pooling>(f % 3), .stride = dim});
  }
  ExpectTheReference(
      BuildJaggedProblem(6, /*batch_size=*/11, features, /*table_rows=*/9, true,
                         [](size_t f, int64_t b) { return f == 70 ? 0 : 1 + b % 3; }),
      6);
}

// Rows on both sides of each border at which lookups are cut, in every order of two neighbours.
TEST(GradientSegmentSumCudaTest, RowsAroundTheLengthsOfLongRowsAndRuns) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const int64_t lengths[] = {1, 31, 32, 256, 511, 512, 513, 767, 768, 1025};
  JaggedProblem p;
  p.batch_size = 1;
  p.features = {{.dim = 5, .pooling = Pooling::kNone, .stride = 6}};
  for (const int64_t a : lengths) {
    for (const int64_t b : lengths) {
      for (const int64_t n : {a, b}) {
        p.inverse.insert(p.inverse.end(), static_cast<size_t>(n),
                         static_cast<int32_t>(p.rows.size()));
        p.row_dims.push_back(5);
        p.rows.emplace_back(5, 1.0f);
      }
    }
  }
  p.offsets = {0, std::ssize(p.inverse)};
  BindData(p);
  ExpectTheReference(std::move(p), 9);
}

TEST(GradientSegmentSumCudaTest, OneHugeRow) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t dim : {1, 16, 130}) {
    // Each bag of the first feature has many lookups of row 0 alone; the second one has others too.
    constexpr int64_t kLookups = test::ForGpu(300, 10);
    JaggedProblem p = BuildJaggedProblem(
        10, /*batch_size=*/1000, {{.dim = dim, .stride = dim}, {.dim = dim, .stride = dim}},
        /*table_rows=*/500, false, [](size_t f, int64_t) { return f == 0 ? kLookups : 2; });
    std::fill(p.inverse.begin(), p.inverse.begin() + 1000 * kLookups, p.inverse[0]);
    // Rows that only the first feature looked up are gone: number the others again.
    std::vector<int32_t> number(p.rows.size(), -1);
    JaggedProblem dense = p;
    dense.rows.clear();
    dense.row_dims.clear();
    for (size_t j = 0; j < p.inverse.size(); ++j) {
      int32_t& u = number[p.inverse[j]];
      if (u < 0) {
        u = static_cast<int32_t>(dense.rows.size());
        dense.rows.push_back(p.rows[p.inverse[j]]);
        dense.row_dims.push_back(dim);
      }
      dense.inverse[j] = u;
    }
    BindData(dense);
    ExpectTheReference(std::move(dense), 10);
  }
}

TEST(GradientSegmentSumCudaTest, EmptyBatch) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  HOTROW_EXPECT_OK(GradientSegmentSum(ctx, {}));
  const JaggedFeature no_data{.dim = 4, .stride = 4};
  HOTROW_EXPECT_OK(GradientSegmentSum(ctx, {.features = {&no_data, 1}}));
}

TEST(GradientSegmentSumCudaTest, CanBeCapturedInAGraph) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  JaggedProblem p = BuildJaggedProblem(11, /*batch_size=*/600, {{.dim = 12, .stride = 12}},
                                       /*table_rows=*/40, false, [](size_t, int64_t) { return 4; });
  test::FillDataAtRandom(p, 11);
  const Order order = OrderOf(p);
  DeviceSum sum(p, order, /*aligned=*/true, p.num_lookups());
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const absl::Status status =
      GradientSegmentSum({.device = Device::kCuda, .stream = stream.get()}, sum.args);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  HOTROW_ASSERT_OK(status);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
  ExpectSameBits(sum.gradients.ToHost(), GradientsOfDevice(p, order));
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace hotrow
