#include "ops/update/fused_sparse_update.h"

#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ops/rows/row_layout.h"
#include "ops/update/fused_sparse_update_impl.h"
#include "tests/support/status_matchers.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::HasSubstr;
using Kind = SparseOptimizerKind;

TEST(FusedSparseUpdateTest, BadArgumentsAreNamed) {
  alignas(64) std::byte workspace[4096];
  std::vector<float> gradient(8);
  const JaggedFeature feature = {.dim = 4, .data = gradient.data(), .stride = 4};
  const std::vector<int64_t> offsets = {0, 1, 2};
  const std::vector<int32_t> lookups = {0, 1};
  const std::vector<std::byte*> rows(2);
  const RowLayout layout = RowLayout::For(4, Kind::kSgd);
  const RowLayout halves = RowLayout::For(4, Kind::kSgd, WeightsPrecision::kBf16);
  struct Problem {
    FusedTable tables[2];
    FusedSparseUpdateArgs args;
  };
  const auto expect = [&](const std::function<void(Problem&)>& change, absl::StatusCode code,
                          const std::string& message) {
    Problem p;
    p.tables[0] = {
        .config = {.kind = Kind::kSgd}, .layout = &layout, .row_end = 1, .num_lookups = 1};
    p.tables[1] = p.tables[0];
    p.tables[1].row_begin = 1;
    p.tables[1].row_end = 2;
    p.args = {.features = {&feature, 1},
              .batch_size = 2,
              .offsets = offsets.data(),
              .inverse = lookups.data(),
              .row_offsets = offsets.data(),
              .lookup_order = lookups.data(),
              .num_rows = 2,
              .num_lookups = 2,
              .tables = p.tables,
              .rows = rows.data(),
              .step = 1,
              .workspace = workspace,
              .workspace_bytes = sizeof(workspace)};
    change(p);
    EXPECT_THAT(FusedSparseUpdate({}, p.args), StatusIs(code, HasSubstr(message)));
  };
  constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
  constexpr auto kUnimplemented = absl::StatusCode::kUnimplemented;
  expect([](Problem&) {}, kUnimplemented, "works on a GPU only");
  expect([](Problem& p) { p.args.step = 0; }, kInvalid, "step must be >= 1, got 0");
  expect([](Problem& p) { p.args.num_rows = -1; }, kInvalid, "num_rows must be >= 0, got -1");
  expect([](Problem& p) { p.args.learning_rate_factor = -1; }, kInvalid, "learning_rate_factor");
  expect([](Problem& p) { p.args.features = {}; }, kInvalid, "num_rows must be 0 without features");
  expect([](Problem& p) { p.args.num_lookups = 1; }, kInvalid,
         "num_lookups must lie in [2, 2147483647], got 1");
  expect([](Problem& p) { p.args.num_lookups = int64_t{1} << 31; }, kInvalid,
         "num_lookups must lie in [2, 2147483647], got 2147483648");
  expect([](Problem& p) { p.args.inverse = nullptr; }, kInvalid, "inverse must not be null");
  expect([](Problem& p) { p.args.row_offsets = nullptr; }, kInvalid, "row_offsets must not be");
  expect([](Problem& p) { p.args.lookup_order = nullptr; }, kInvalid, "lookup_order must not be");
  expect([](Problem& p) { p.args.rows = nullptr; }, kInvalid, "rows must not be null");
  expect([](Problem& p) { p.args.workspace_bytes = 63; }, kInvalid, "workspace_bytes must be");
  expect([](Problem& p) { p.tables[1].row_begin = 0; }, kInvalid,
         "tables[1].row_begin must be at least 1, where the rows of the table before end, got 0");
  expect([](Problem& p) { p.tables[1].row_end = 3; }, kInvalid,
         "tables[1].row_end must lie in [1, 2], got 3");
  expect([](Problem& p) { p.tables[0].num_lookups = 0; }, kInvalid,
         "tables[0].num_lookups must be at least one a row, 1, got 0");
  expect([](Problem& p) { p.tables[0].config.kind = Kind::kAdam; }, kInvalid, "layout");
  expect([&](Problem& p) { p.tables[0].layout = &halves; }, kInvalid, "keys must not be null");
  expect([](Problem& p) { p.tables[0].config.weight_decay_mode = WeightDecayMode::kTable; },
         kUnimplemented, "kTable works on the CPU only");
}

// Which tables go into one launch.
TEST(FusedSparseUpdateTest, NeighboursThatAreEqualAreOneGroup) {
  const RowLayout narrow = RowLayout::For(4, Kind::kSgd);
  const RowLayout wide = RowLayout::For(8, Kind::kSgd);
  const SparseOptimizerConfig config = {.kind = Kind::kSgd};
  const SparseOptimizerConfig faster = {.kind = Kind::kSgd, .learning_rate = 1};
  std::vector<FusedTable> tables;
  const auto add = [&](const SparseOptimizerConfig& of, const RowLayout& layout, int64_t begin,
                       int64_t end) {
    tables.push_back({.config = of,
                      .layout = &layout,
                      .row_begin = begin,
                      .row_end = end,
                      .num_lookups = 10 * (end - begin)});
  };
  add(config, narrow, 0, 3);
  add(config, narrow, 3, 4);
  add(config, narrow, 5, 6);  // behind a row of no table
  add(faster, narrow, 6, 7);
  add(config, wide, 7, 8);
  add(config, wide, 8, 8);  // no rows: a group ends, none begins
  add(config, wide, 8, 9);
  add(config, wide, 9, 10);
  add(config, wide, 10, 11);
  const std::vector<internal::FusedTables> groups = internal::GroupTables(tables, 35, 2);
  std::vector<std::vector<int64_t>> got;
  for (const internal::FusedTables& group : groups) {
    got.push_back({group.row_begin(), group.row_end(), group.num_lookups});
  }
  EXPECT_EQ(got, (std::vector<std::vector<int64_t>>{
                     {0, 4, 35}, {5, 6, 10}, {6, 7, 10}, {7, 8, 10}, {8, 10, 20}, {10, 11, 10}}));
  EXPECT_TRUE(internal::GroupTables({}, 35, 2).empty());
}

}  // namespace
}  // namespace hotrow
