#include "ops/row_layout.h"

#include "gtest/gtest.h"

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
  }
}

}  // namespace
}  // namespace hotrow
