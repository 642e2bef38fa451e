#include "ops/rows/row_layout.h"

#include "gtest/gtest.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {
namespace {

struct Case {
  int32_t dim;
  SparseOptimizerKind kind;
  int32_t state_floats;
  int64_t row_bytes;
};

// row_bytes = round up (4 (dim + state) + 4 for the last step) to 16.
TEST(RowLayoutTest, HandWorked) {
  using Kind = SparseOptimizerKind;
  for (const Case& c : {
           Case{1, Kind::kSgd, 0, 16},
           Case{3, Kind::kSgd, 0, 16},
           Case{4, Kind::kSgd, 0, 32},
           Case{64, Kind::kMomentum, 64, 528},
           Case{17, Kind::kAdagrad, 17, 144},
           Case{128, Kind::kRowWiseAdagrad, 1, 528},
           Case{1, Kind::kAdam, 2, 16},
           Case{16, Kind::kAdam, 32, 208},
           Case{64, Kind::kPartialRowWiseAdam, 65, 528},
           Case{5, Kind::kFtrl, 10, 64},
       }) {
    SCOPED_TRACE(testing::Message() << c.dim << " " << SparseOptimizerName(c.kind));
    const RowLayout layout = RowLayout::For(c.dim, c.kind);
    EXPECT_EQ(layout.dim, c.dim);
    EXPECT_EQ(layout.state_floats, c.state_floats);
    EXPECT_EQ(layout.state_floats, SparseStateFloats(c.kind, c.dim));
    EXPECT_EQ(layout.payload_bytes, 4 * (c.dim + c.state_floats));
    EXPECT_EQ(layout.step_offset, layout.payload_bytes);
    EXPECT_EQ(layout.row_bytes, c.row_bytes);
    EXPECT_EQ(layout.precision, WeightsPrecision::kFp32);
    EXPECT_EQ(layout.state_offset, 4 * c.dim);
  }
}

// state_offset = round up 2 dim to 4.
TEST(RowLayoutTest, HandWorkedOf16Bits) {
  using Kind = SparseOptimizerKind;
  struct HalfCase {
    int32_t dim;
    Kind kind;
    int64_t state_offset;
    int64_t payload_bytes;
    int64_t row_bytes;
  };
  for (const WeightsPrecision precision : {WeightsPrecision::kFp16, WeightsPrecision::kBf16}) {
    for (const HalfCase& c : {
             HalfCase{1, Kind::kSgd, 4, 4, 16},
             HalfCase{6, Kind::kSgd, 12, 12, 16},
             HalfCase{7, Kind::kSgd, 16, 16, 32},
             HalfCase{128, Kind::kRowWiseAdagrad, 256, 260, 272},
             HalfCase{17, Kind::kAdagrad, 36, 104, 112},
             HalfCase{64, Kind::kAdam, 128, 640, 656},
         }) {
      SCOPED_TRACE(testing::Message() << c.dim << " " << SparseOptimizerName(c.kind));
      const RowLayout layout = RowLayout::For(c.dim, c.kind, precision);
      EXPECT_EQ(layout.precision, precision);
      EXPECT_EQ(layout.state_floats, SparseStateFloats(c.kind, c.dim));
      EXPECT_EQ(layout.state_offset, c.state_offset);
      EXPECT_EQ(layout.payload_bytes, c.payload_bytes);
      EXPECT_EQ(layout.step_offset, c.payload_bytes);
      EXPECT_EQ(layout.row_bytes, c.row_bytes);
    }
  }
}

}  // namespace
}  // namespace hotrow
