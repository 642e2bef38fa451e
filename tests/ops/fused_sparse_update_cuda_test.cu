#include <algorithm>
#include <cstring>
#include <iterator>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "base/cuda_handles.h"
#include "base/philox.h"
#include "ops/rows/row_layout.h"
#include "ops/update/fused_sparse_update.h"
#include "ops/update/sparse_optimizer.h"
#include "tests/ops/gradient_reference.h"
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
using test::GradientsOfDevice;
using test::JaggedProblem;
using test::Order;
using test::OrderOf;
using Kind = SparseOptimizerKind;

// Numbers the rows again, those of one dim side by side, as a batch of tables has them.
void SortRowsByDim(JaggedProblem& p) {
  std::vector<int32_t> old_of(p.rows.size());
  std::iota(old_of.begin(), old_of.end(), 0);
  std::stable_sort(old_of.begin(), old_of.end(), [&](int32_t a, int32_t b) {
    return p.row_dims[static_cast<size_t>(a)] < p.row_dims[static_cast<size_t>(b)];
  });
  std::vector<int32_t> new_of(old_of.size());
  JaggedProblem sorted = p;
  for (size_t u = 0; u < old_of.size(); ++u) {
    const auto old = static_cast<size_t>(old_of[u]);
    new_of[old] = static_cast<int32_t>(u);
    sorted.row_dims[u] = p.row_dims[old];
    sorted.rows[u] = p.rows[old];
  }
  for (int32_t& u : sorted.inverse) u = new_of[static_cast<size_t>(u)];
  p = std::move(sorted);
  BindData(p);
}

// One table for each dim of the problem's rows, or several where it is cut, on the host and on the
// device, which both make the same steps: the host with gradients that are summed as the device
// promises and SparseUpdate, the device with FusedSparseUpdate.
class FusedTables {
 public:
  struct Options {
    SparseOptimizerConfig config;
    WeightsPrecision precision = WeightsPrecision::kFp32;
    int64_t table_rows_max = INT64_MAX;  // more rows of a dim are cut into several tables
    int64_t frozen_every = 0;            // each so many-th table is left out
    bool aligned = true;
    int64_t lookups_more = 0;  // of the bounds
    uint64_t seed = 1;
  };

  FusedTables(JaggedProblem problem, const Options& options)
      : p_(std::move(problem)), options_(options) {
    SortRowsByDim(p_);
    order_ = OrderOf(p_);
    RandomStream random(options.seed, RandomPurpose::kTest, /*stream=*/7);
    layouts_.reserve(p_.rows.size());
    int64_t offset = 0;
    for (int64_t u = 0; u < p_.num_rows(); ++u) {
      const int32_t dim = p_.row_dims[static_cast<size_t>(u)];
      const bool same_dim = !tables_.empty() && layouts_.back().dim == dim;
      if (!same_dim || u - tables_.back().row_begin == options.table_rows_max) {
        layouts_.push_back(RowLayout::For(dim, options.config.kind, options.precision));
        tables_.push_back({.config = options.config,
                           .layout = &layouts_.back(),
                           .row_begin = u,
                           .table = static_cast<uint32_t>(3 * tables_.size() + 1)});
      }
      tables_.back().row_end = u + 1;
      offsets_.push_back(offset);
      offset += layouts_.back().row_bytes;
      keys_.push_back(static_cast<uint64_t>(u + 1) * 0x9e3779b97f4a7c15ull);
    }
    for (FusedTable& table : tables_) {
      table.num_lookups = order_.row_offsets[static_cast<size_t>(table.row_end)] -
                          order_.row_offsets[static_cast<size_t>(table.row_begin)] +
                          options.lookups_more;
    }
    host_.resize(static_cast<size_t>(offset) / sizeof(Line));
    for (const FusedTable& table : tables_) {
      for (int64_t u = table.row_begin; u < table.row_end; ++u) {
        FillRow(*table.layout, HostRow(u), random);
      }
    }
    device_ = std::make_unique<DeviceArray<Line>>(host_);
    if (options.frozen_every > 0) {
      std::vector<FusedTable> trained;
      for (size_t t = 0; t < tables_.size(); ++t) {
        if (static_cast<int64_t>(t) % options.frozen_every != 0) trained.push_back(tables_[t]);
      }
      tables_ = std::move(trained);
    }
  }

  void Step(uint32_t step, float factor, CudaStream stream) {
    test::FillDataAtRandom(p_, options_.seed + step);
    const std::vector<std::vector<float>> sums = GradientsOfDevice(p_, order_);
    int64_t new_rows = 7;
    for (const FusedTable& table : tables_) {
      std::vector<std::byte*> rows;
      std::vector<const float*> gradients;
      for (int64_t u = table.row_begin; u < table.row_end; ++u) {
        rows.push_back(HostRow(u));
        gradients.push_back(sums[static_cast<size_t>(u)].data());
      }
      HOTROW_ASSERT_OK(SparseUpdate({}, {.config = table.config,
                                         .layout = table.layout,
                                         .num_rows = std::ssize(rows),
                                         .rows = rows.data(),
                                         .gradients = gradients.data(),
                                         .learning_rate_factor = factor,
                                         .step = step,
                                         .seed = 5,
                                         .table = table.table,
                                         .keys = keys_.data() + table.row_begin,
                                         .new_rows = &new_rows}));
    }
    std::vector<std::byte*> rows;
    for (const int64_t offset : offsets_) {
      rows.push_back(reinterpret_cast<std::byte*>(device_->data()) + offset);
    }
    DeviceProblem problem(p_, options_.aligned);
    DeviceArray<int64_t> row_offsets(order_.row_offsets);
    DeviceArray<int32_t> lookup_order(order_.lookup_order);
    DeviceArray<std::byte*> device_rows(rows);
    DeviceArray<uint64_t> keys(keys_);
    DeviceArray<int64_t> device_new_rows(std::vector<int64_t>{7});
    const int64_t lookups = p_.num_lookups() + options_.lookups_more;
    int32_t dim_max = 0;
    for (const FusedTable& table : tables_) dim_max = std::max(dim_max, table.layout->dim);
    // Poisoned, so that sums that read what nobody has written show.
    DeviceArray<std::byte> workspace(
        std::vector<std::byte>(static_cast<size_t>(FusedSparseUpdateWorkspaceBytes(
                                   std::ssize(p_.features), lookups, dim_max)),
                               std::byte{0xff}));
    // First one that is left out.
    DeviceArray<uint32_t> skips(std::vector<uint32_t>{1, 0});
    for (int64_t skip = 0; skip < static_cast<int64_t>(skips.size()); ++skip) {
      HOTROW_ASSERT_OK(
          FusedSparseUpdate({.device = Device::kCuda, .stream = stream},
                            {.features = problem.features,
                             .batch_size = p_.batch_size,
                             .offsets = problem.offsets.data(),
                             .weights = problem.weights_or_null,
                             .inverse = problem.inverse.data(),
                             .row_offsets = row_offsets.data(),
                             .lookup_order = lookup_order.data(),
                             .num_rows = p_.num_rows(),
                             .num_lookups = lookups,
                             .tables = tables_,
                             .rows = device_rows.data(),
                             .learning_rate_factor = factor,
                             .step = step,
                             .seed = 5,
                             .keys = keys.data(),
                             .new_rows = device_new_rows.data(),
                             .skip = step == 2 && skip == 1 ? nullptr : skips.data() + skip,
                             .workspace = workspace.data(),
                             .workspace_bytes = static_cast<int64_t>(workspace.size())}));
    }
    EXPECT_EQ(device_new_rows.ToHost()[0], new_rows);
    ExpectSameBytes();
  }

 private:
  // Rows are multiples of it.
  struct alignas(16) Line {
    float v[4] = {};
  };

  static void FillRow(const RowLayout& layout, std::byte* row, RandomStream& random) {
    for (int32_t d = 0; d < layout.dim; ++d) {
      test::StoreWeight(layout.precision, /*stochastic=*/false, random.Normal(), 0, row, d);
    }
    auto* const state = reinterpret_cast<float*>(row + layout.state_offset);
    for (int32_t i = 0; i < layout.state_floats; ++i)
      state[i] = 0.1f + UniformFloat(random.Next32());
  }

  std::byte* HostRow(int64_t u) {
    return reinterpret_cast<std::byte*>(host_.data()) + offsets_[static_cast<size_t>(u)];
  }

  // Weights, state, last steps and padding of all rows.
  void ExpectSameBytes() {
    const std::vector<Line> device = device_->ToHost();
    for (int64_t u = 0; u < p_.num_rows(); ++u) {
      const int64_t begin = offsets_[static_cast<size_t>(u)];
      const int64_t end = u + 1 < p_.num_rows() ? offsets_[static_cast<size_t>(u + 1)]
                                                : std::ssize(host_) * int64_t{sizeof(Line)};
      const auto* const got = reinterpret_cast<const std::byte*>(device.data()) + begin;
      for (int64_t i = 0; i < end - begin; ++i) {
        ASSERT_EQ(got[i], HostRow(u)[i])
            << "byte " << i << " of row " << u << " of dim " << p_.row_dims[static_cast<size_t>(u)]
            << ", lookups " << order_.row_offsets[static_cast<size_t>(u)] << " to "
            << order_.row_offsets[static_cast<size_t>(u + 1)];
      }
    }
  }

  JaggedProblem p_;
  const Options options_;
  Order order_;
  std::vector<RowLayout> layouts_;
  std::vector<FusedTable> tables_;
  std::vector<int64_t> offsets_;  // [U] of the rows, in bytes
  std::vector<uint64_t> keys_;
  std::vector<Line> host_;
  std::unique_ptr<DeviceArray<Line>> device_;
};

// Two steps and one without a learning rate.
void ExpectTheBitsOfSumAndUpdate(JaggedProblem problem, const FusedTables::Options& options,
                                 float second_factor = 0.5f) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  FusedTables tables(std::move(problem), options);
  tables.Step(1, 1, stream.get());
  tables.Step(2, second_factor, stream.get());
  tables.Step(3, 0, stream.get());
}

SparseOptimizerConfig ConfigOf(Kind kind, bool decoupled) {
  SparseOptimizerConfig config{.kind = kind, .learning_rate = 0.05f, .initial_accumulator = 0.1f};
  config.weight_decay = decoupled && kind == Kind::kFtrl ? 0 : 0.02f;
  config.weight_decay_mode = decoupled ? WeightDecayMode::kDecoupled : WeightDecayMode::kL2;
  config.l1 = decoupled ? 0.3f : 0;
  config.l2 = decoupled ? 0 : 0.2f;
  return config;
}

std::vector<JaggedFeature> FeaturesOf(const std::vector<int32_t>& dims) {
  std::vector<JaggedFeature> features;
  for (const int32_t dim : dims) {
    for (const Pooling pooling : {Pooling::kSum, Pooling::kMean, Pooling::kNone}) {
      features.push_back({.dim = dim, .pooling = pooling, .stride = dim + (dim % 3 == 0 ? 4 : 0)});
    }
  }
  return features;
}

class FusedSparseUpdateCudaTest : public testing::TestWithParam<Kind> {};

INSTANTIATE_TEST_SUITE_P(Kinds, FusedSparseUpdateCudaTest,
                         testing::Values(Kind::kSgd, Kind::kMomentum, Kind::kAdagrad,
                                         Kind::kRowWiseAdagrad, Kind::kAdam,
                                         Kind::kPartialRowWiseAdam, Kind::kFtrl, Kind::kLamb,
                                         Kind::kPartialRowWiseLamb),
                         [](const testing::TestParamInfo<Kind>& info) {
                           return std::string(SparseOptimizerName(info.param));
                         });

// Rows of one lookup and of hundreds, of every width that kernels treat on its own.
TEST_P(FusedSparseUpdateCudaTest, GivesTheBitsOfSumAndUpdate) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const int64_t lengths[] = {0, 1, 2, 3, 1, 5, 8, 0, 9, 17};
  for (const bool decoupled : {false, true}) {
    for (const bool aligned : {true, false}) {
      const bool even = aligned == decoupled;  // the next kind has the others
      if (test::kEmulatedGpu && even != (static_cast<int>(GetParam()) % 2 == 0)) continue;
      SCOPED_TRACE(testing::Message() << "decoupled " << decoupled << ", aligned " << aligned);
      const std::vector<JaggedFeature> features =
          aligned ? FeaturesOf({4, 32, 64, 100, 128}) : FeaturesOf({1, 3, 7, 17, 33, 128});
      ExpectTheBitsOfSumAndUpdate(
          BuildJaggedProblem(
              5, /*batch_size=*/23, features, /*table_rows=*/60, /*weighted=*/decoupled,
              [&](size_t f, int64_t b) { return lengths[(f + static_cast<size_t>(b)) % 10]; }),
          {.config = ConfigOf(GetParam(), decoupled), .aligned = aligned});
    }
  }
}

TEST_P(FusedSparseUpdateCudaTest, HalfWeights) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const WeightsPrecision precision : test::kHalfPrecisions) {
    const bool even = precision == WeightsPrecision::kBf16;  // the next kind has the other
    if (test::kEmulatedGpu && even != (static_cast<int>(GetParam()) % 2 == 0)) continue;
    SCOPED_TRACE(WeightsPrecisionName(precision));
    // The second step goes into the range of fp16's subnormals and of its largest numbers.
    ExpectTheBitsOfSumAndUpdate(
        BuildJaggedProblem(6, /*batch_size=*/20, FeaturesOf({1, 7, 8, 36, 128, 130}),
                           /*table_rows=*/40, /*weighted=*/true,
                           [](size_t f, int64_t b) { return (static_cast<int64_t>(f) + b) % 4; }),
        {.config = ConfigOf(GetParam(), false), .precision = precision, .table_rows_max = 11},
        /*second_factor=*/1e6f);
  }
}

// Rows that take several blocks of columns, some of them hot.
TEST_P(FusedSparseUpdateCudaTest, WideRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const Kind kind = GetParam();
  if (test::kEmulatedGpu && (kind == Kind::kMomentum || kind == Kind::kAdagrad ||
                             kind == Kind::kAdam || kind == Kind::kFtrl)) {
    GTEST_SKIP() << "emulated: no number of a row needs another, as those of kSgd";
  }
  ExpectTheBitsOfSumAndUpdate(
      BuildJaggedProblem(7, /*batch_size=*/60, FeaturesOf({129, 256, 600}), /*table_rows=*/30,
                         /*weighted=*/false,
                         [](size_t f, int64_t b) { return f == 3 ? 30 : b % 5; }),
      {.config = ConfigOf(GetParam(), false)});
}

// Hot rows beside others, several steps, so that state counts.
TEST_P(FusedSparseUpdateCudaTest, HotRows) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectTheBitsOfSumAndUpdate(
      BuildJaggedProblem(8, /*batch_size=*/100, FeaturesOf({12, 128}), /*table_rows=*/300,
                         /*weighted=*/true, [](size_t, int64_t b) { return b % 37; }),
      {.config = ConfigOf(GetParam(), true)});
}

// Rows on both sides of each border at which lookups are cut, in drawn orders. Bags of one lookup
// and bags of thousands.
TEST(FusedSparseUpdateBordersCudaTest, RowsAroundTheLengthsOfWindowsAndRuns) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  const int64_t lengths[] = {1,  1,  1,  1,  2,  3,   4,   7,   8,   9,   15,  16,  17,  31,
                             32, 33, 63, 64, 65, 255, 256, 257, 511, 512, 513, 767, 768, 1025};
  for (const uint64_t seed : test::Seeds(6)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest);
    const int32_t dims[] = {5, 24, 44, 128, 132};
    const int32_t dim = dims[random.Below(std::size(dims))];
    std::vector<int64_t> drawn(std::begin(lengths), std::end(lengths));
    JaggedProblem p;
    p.batch_size = 1 + static_cast<int64_t>(random.Below(3));
    p.features = {
        {.dim = dim, .pooling = static_cast<Pooling>(random.Below(3)), .stride = dim + 1}};
    for (size_t i = drawn.size(); i > 0; --i) {
      const auto at = static_cast<size_t>(random.Below(i));
      std::swap(drawn[i - 1], drawn[at]);
      p.inverse.insert(p.inverse.end(), static_cast<size_t>(drawn[i - 1]),
                       static_cast<int32_t>(p.rows.size()));
      p.row_dims.push_back(dim);
      p.rows.emplace_back(dim, 1.0f);
    }
    // Lookups of a row lie in several places of the batch.
    for (size_t i = p.inverse.size(); i > 1; --i) {
      std::swap(p.inverse[i - 1], p.inverse[random.Below(i)]);
    }
    p.offsets = {0};
    for (int64_t b = 1; b < p.batch_size; ++b) {
      p.offsets.push_back(p.offsets.back() + static_cast<int64_t>(random.Below(3)) * 1000);
    }
    p.offsets.push_back(std::ssize(p.inverse));
    BindData(p);
    const Kind kinds[] = {Kind::kSgd, Kind::kRowWiseAdagrad, Kind::kAdam};
    ExpectTheBitsOfSumAndUpdate(std::move(p),
                                {.config = ConfigOf(kinds[random.Below(std::size(kinds))], false),
                                 .table_rows_max = random.Below(2) == 0 ? INT64_MAX : 5,
                                 .lookups_more = static_cast<int64_t>(random.Below(2)) * 3000});
  }
}

// Tables of one launch whose first lookup lies anywhere among the runs, and whose hot row takes the
// last of these.
TEST(FusedSparseUpdateBordersCudaTest, HotRowsBehindOtherTables) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int64_t before : {1, 254, 255, 256}) {
    for (const int64_t hot : {511, 512, 767, 768}) {
      SCOPED_TRACE(testing::Message() << before << " lookups of others before " << hot);
      JaggedProblem p;
      p.batch_size = 1;
      p.features = {{.dim = 4, .stride = 4}, {.dim = 8, .pooling = Pooling::kNone, .stride = 8}};
      p.row_dims = {4, 8, 8};
      const int64_t lookups[] = {before, 1, hot};
      for (int32_t u = 0; u < 3; ++u) {
        p.rows.emplace_back(static_cast<size_t>(p.row_dims[static_cast<size_t>(u)]), 1.0f);
        p.inverse.insert(p.inverse.end(), static_cast<size_t>(lookups[u]), u);
      }
      p.offsets = {0, before, before + 1 + hot};
      BindData(p);
      ExpectTheBitsOfSumAndUpdate(std::move(p), {.config = ConfigOf(Kind::kSgd, false)});
    }
  }
}

// Features of all poolings, bags of all lengths, empty ones and empty features.
TEST(FusedSparseUpdateBordersCudaTest, RandomBags) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const uint64_t seed : test::Seeds(20)) {
    SCOPED_TRACE(testing::Message() << "HOTROW_TEST_SEED=" << seed);
    RandomStream random(seed, RandomPurpose::kTest, /*stream=*/9);
    ExpectTheBitsOfSumAndUpdate(
        test::RandomJaggedProblem(seed),
        {.config = ConfigOf(static_cast<Kind>(random.Below(9)), random.Below(2) == 0),
         .precision = static_cast<WeightsPrecision>(random.Below(3)),
         .table_rows_max = static_cast<int64_t>(1 + random.Below(100)),
         .frozen_every = static_cast<int64_t>(random.Below(4)),
         .aligned = random.Below(2) == 0,
         .seed = seed});
  }
}

TEST(FusedSparseUpdateBordersCudaTest, OneRowHasAllLookups) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  for (const int32_t dim : {1, 64, 130}) {
    ExpectTheBitsOfSumAndUpdate(BuildJaggedProblem(10, /*batch_size=*/test::ForGpu(30'000, 300),
                                                   {{.dim = dim, .stride = dim}}, /*table_rows=*/1,
                                                   false, [](size_t, int64_t b) { return b % 20; }),
                                {.config = ConfigOf(Kind::kRowWiseAdagrad, false)});
  }
}

TEST(FusedSparseUpdateBordersCudaTest, OneSample) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  ExpectTheBitsOfSumAndUpdate(
      BuildJaggedProblem(11, /*batch_size=*/1, FeaturesOf({16, 20}), /*table_rows=*/9, true,
                         [](size_t f, int64_t) { return f == 1 ? 1500 : 1; }),
      {.config = ConfigOf(Kind::kAdagrad, false)});
}

// More features, and more tables, than a launch takes as parameters.
TEST(FusedSparseUpdateBordersCudaTest, ManyFeaturesAndTables) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  std::vector<JaggedFeature> features;
  for (int32_t f = 0; f < 150; ++f) {
    const int32_t dim = 8 + f % 2;
    features.push_back({.dim = dim, .pooling = static_cast<Pooling>(f % 3), .stride = dim});
  }
  for (const WeightsPrecision precision : {WeightsPrecision::kFp32, WeightsPrecision::kBf16}) {
    ExpectTheBitsOfSumAndUpdate(
        BuildJaggedProblem(12, /*batch_size=*/4, features, /*table_rows=*/400, true,
                           [](size_t f, int64_t b) { return f == 70 ? 0 : 1 + b % 2; }),
        {.config = ConfigOf(Kind::kSgd, false),
         .precision = precision,
         .table_rows_max = 2,
         .frozen_every = 90});
  }
}

TEST(FusedSparseUpdateBordersCudaTest, NoRowsAndNoTables) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const ExecContext ctx = {.device = Device::kCuda, .stream = stream.get()};
  HOTROW_EXPECT_OK(FusedSparseUpdate(ctx, {.step = 1}));
  const RowLayout layout = RowLayout::For(4, Kind::kSgd);
  const FusedTable table = {.config = {.kind = Kind::kSgd}, .layout = &layout};
  HOTROW_EXPECT_OK(FusedSparseUpdate(ctx, {.tables = {&table, 1}, .step = 1}));
  // Rows of which no table is trained.
  ExpectTheBitsOfSumAndUpdate(
      BuildJaggedProblem(13, /*batch_size=*/3, {{.dim = 4, .stride = 4}}, /*table_rows=*/5, false,
                         [](size_t, int64_t) { return 2; }),
      {.config = {.kind = Kind::kSgd}, .frozen_every = 1});
}

TEST(FusedSparseUpdateBordersCudaTest, CanBeCapturedInAGraph) {
  HOTROW_REQUIRE_GPU_OR_SKIP();
  HOTROW_ASSERT_OK_AND_ASSIGN(const StreamHandle stream, CreateStream());
  const RowLayout layout = RowLayout::For(4, Kind::kSgd);
  ASSERT_EQ(layout.row_bytes, 32);
  DeviceArray<float4> row(std::vector<float4>(2, make_float4(0, 0, 0, 0)));
  DeviceArray<float> gradient(std::vector<float>{1, 2, 3, 4});
  DeviceArray<std::byte*> rows({reinterpret_cast<std::byte*>(row.data())});
  DeviceArray<int64_t> offsets(std::vector<int64_t>{0, 1});
  DeviceArray<int32_t> order(std::vector<int32_t>{0});
  DeviceArray<int64_t> new_rows(std::vector<int64_t>{0});
  DeviceArray<std::byte> workspace(static_cast<size_t>(FusedSparseUpdateWorkspaceBytes(1, 1, 4)));
  const JaggedFeature feature = {.dim = 4, .data = gradient.data(), .stride = 4};
  const FusedTable table = {.config = {.kind = Kind::kSgd, .learning_rate = 0.5f},
                            .layout = &layout,
                            .row_end = 1,
                            .num_lookups = 1};
  ASSERT_EQ(cudaStreamBeginCapture(stream.get(), cudaStreamCaptureModeGlobal), cudaSuccess);
  const absl::Status status =
      FusedSparseUpdate({.device = Device::kCuda, .stream = stream.get()},
                        {.features = {&feature, 1},
                         .batch_size = 1,
                         .offsets = offsets.data(),
                         .inverse = order.data(),
                         .row_offsets = offsets.data(),
                         .lookup_order = order.data(),
                         .num_rows = 1,
                         .num_lookups = 1,
                         .tables = {&table, 1},
                         .rows = rows.data(),
                         .step = 9,
                         .new_rows = new_rows.data(),
                         .workspace = workspace.data(),
                         .workspace_bytes = static_cast<int64_t>(workspace.size())});
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream.get(), &graph), cudaSuccess);
  HOTROW_ASSERT_OK(status);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  for (int launch = 0; launch < 2; ++launch) {
    EXPECT_EQ(cudaGraphLaunch(executable, stream.get()), cudaSuccess);
  }
  const float4 weights = row.ToHost()[0];
  EXPECT_EQ(weights.x, -1);
  EXPECT_EQ(weights.w, -4);
  EXPECT_EQ(new_rows.ToHost()[0], 1);  // new at the first launch only
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
}

}  // namespace
}  // namespace hotrow
