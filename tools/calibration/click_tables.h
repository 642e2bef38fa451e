#ifndef HOTROW_TOOLS_CALIBRATION_CLICK_TABLES_H_
#define HOTROW_TOOLS_CALIBRATION_CLICK_TABLES_H_

#include <array>
#include <cstdint>
#include <vector>

#include "embedding/embedding_collection.h"
#include "tools/calibration/bench.h"

// Tables of a click model and batches of keys, for measuring the engine's costs.
namespace hotrow {

inline constexpr int kClickTables = 26;
inline constexpr int64_t kClickTableRows = 100'000;
inline constexpr double kClickZipf = 1.05;
inline constexpr int64_t kClickBatch = 2048;  // on a CPU
// Costs are measured at two widths; a line through them gives the others.
inline constexpr std::array<int32_t, 2> kClickDims = {16, 128};

// The place where rows are trained.
enum class ClickTiers { kStore, kWholeCache, kSmallCache, kSmallCacheOverSsd };

class ClickTables {
 public:
  explicit ClickTables(const CalibrationBench& bench);

  int64_t batch_size() const { return batch_size_; }
  // [kClickTables * batch_size] keys each.
  const std::vector<std::vector<uint64_t>>& batches() const { return batches_; }
  int64_t distinct_rows() const { return distinct_rows_; }  // of all batches
  // The offsets of each batch: one key a bag.
  const std::vector<int64_t>& offsets() const { return offsets_; }
  EmbeddingCollectionOptions Options(const CalibrationBench& bench, ClickTiers tiers,
                                     int32_t dim) const;

 private:
  const int64_t batch_size_;
  std::vector<std::vector<uint64_t>> batches_;
  std::vector<int64_t> offsets_;
  int64_t distinct_rows_ = 0;
};

// Bytes of one row of these tables.
int64_t ClickRowBytes(int32_t dim);

}  // namespace hotrow

#endif  // HOTROW_TOOLS_CALIBRATION_CLICK_TABLES_H_
