#ifndef HOTROW_EMBEDDING_SERVING_SERVING_TABLES_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_TABLES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/row_key.h"
#include "embedding/serving/record_table_impl.h"
#include "embedding/serving/row_overlay_impl.h"
#include "embedding/serving/serving_tables.h"
#include "ops/rows/affine_rows.h"
#include "ops/rows/weights_precision.h"
#include "ops/update/step_history.h"

namespace hotrow {

struct ServingTables::Table {
  internal::RecordTable rows;
  std::shared_ptr<const StepHistory> history;  // null: it does not decay as a whole
  uint32_t age_line = 0;                       // no older rows have been left by updates
};

class ServingTables::View {
 public:
  struct Table {
    internal::RecordTable::View rows;
    const internal::RowOverlay* changes = nullptr;  // stand before the rows; null: none
  };
  std::vector<Table> tables;
  std::shared_ptr<const internal::DiskVersion> disk;  // null: rows are in memory
};

namespace internal {

inline bool IsAffine(ServingRows rows) {
  return rows == ServingRows::kInt8 || rows == ServingRows::kInt4;
}
inline AffineCode CodeOf(ServingRows rows) {
  return rows == ServingRows::kInt8 ? AffineCode::kInt8 : AffineCode::kInt4;
}
// What a lookup reads: the weights that are kept, or the floats that codes stand for.
WeightsPrecision ReadPrecision(const ServingTable& table);
RecordShape ShapeOf(const ServingTable& table, bool keeps_steps);

// The floats of weights, which widening does not change.
absl::Status Widen(const RowLayout& layout, const std::byte* row, float* weights);
absl::Status Narrow(int32_t dim, WeightsPrecision precision, const float* weights, std::byte* out);

// Makes of a row as it was trained what is kept of it. One thread.
class RowKeeper {
 public:
  struct Kept {
    const std::byte* row = nullptr;  // until the next call
    uint32_t last_step = 0;
  };
  // tables outlives it.
  static absl::StatusOr<std::unique_ptr<RowKeeper>> Create(const ServingTables& tables);
  // InvalidArgument: a table that is not there, another width, weights without a code.
  absl::StatusOr<Kept> Keep(const RowKey& key, std::span<const std::byte> row);

 private:
  explicit RowKeeper(const ServingTables& tables) : tables_(tables) {}
  const ServingTables& tables_;
  HostBuffer<std::byte> row_;  // a copy that makes up for steps
  HostBuffer<float> weights_;
  HostBuffer<std::byte> code_;
};

}  // namespace internal
}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_TABLES_IMPL_H_
