#include "tools/calibration/click_tables.h"

#include <algorithm>
#include <set>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/hash.h"
#include "base/philox.h"
#include "models/data/zipf.h"
#include "ops/rows/row_layout.h"
#include "tools/plan/tier_bytes.h"

namespace hotrow {
namespace {

constexpr int64_t kBatches = 40;
// A GPU starts kernels in the time of some thousand lookups, so its batches are large, and fewer.
constexpr int64_t kGpuBatch = 16'384;
constexpr int64_t kGpuBatches = 8;
// A cache of a third of the rows both hits and misses.
constexpr int64_t kRowsPerSmallCacheRow = 3;

}  // namespace

int64_t ClickRowBytes(int32_t dim) {
  return RowLayout::For(dim, SparseOptimizerKind::kRowWiseAdagrad).row_bytes;
}

// Scaled twice: an emulated GPU takes half a millisecond for a key.
ClickTables::ClickTables(const CalibrationBench& bench)
    : batch_size_(bench.on_gpu() ? bench.Scaled(bench.Scaled(kGpuBatch)) : kClickBatch) {
  const int64_t count = std::max<int64_t>(4, bench.Scaled(bench.on_gpu() ? kGpuBatches : kBatches));
  const ZipfSampler zipf(kClickTableRows, kClickZipf);
  std::set<uint64_t> distinct;
  for (int64_t b = 0; b < count; ++b) {
    std::vector<uint64_t> keys;
    keys.reserve(static_cast<size_t>(kClickTables * batch_size_));
    for (uint64_t table = 0; table < kClickTables; ++table) {
      for (int64_t i = 0; i < batch_size_; ++i) {
        const auto draw = static_cast<uint32_t>(keys.size());
        const auto block = [&](uint32_t n) {
          return RandomBlock(kCalibrationSeed, RandomPurpose::kTest, static_cast<uint64_t>(b), draw,
                             n);
        };
        keys.push_back(Mix64(zipf.Rank(block(0), block) * kClickTables + table));
      }
    }
    distinct.insert(keys.begin(), keys.end());
    batches_.push_back(std::move(keys));
  }
  distinct_rows_ = std::ssize(distinct);
  for (int64_t i = 0; i <= kClickTables * batch_size_; ++i) offsets_.push_back(i);
}

EmbeddingCollectionOptions ClickTables::Options(const CalibrationBench& bench, ClickTiers tiers,
                                                int32_t dim) const {
  const int64_t row_bytes = ClickRowBytes(dim);
  EmbeddingCollectionOptions options;
  for (int t = 0; t < kClickTables; ++t) {
    TableConfig table;
    table.name = absl::StrCat("t", t);
    table.embedding_dim = dim;
    table.feature_names = {absl::StrCat("f", t)};
    options.tables.push_back(std::move(table));
  }
  options.max_batch_size = batch_size_;
  options.store =
      MemoryStorage{.memory_bytes = distinct_rows_ * (row_bytes + 32) * 5 / 4 + 64 * kMiB};
  if (tiers == ClickTiers::kWholeCache) {
    // Twice the rows: no partition is full, nothing is evicted.
    options.cache.bytes = CacheBudgetForWays(2 * distinct_rows_, row_bytes);
  } else if (tiers != ClickTiers::kStore) {
    // Room for the rows of a step in any case.
    options.cache.bytes = CacheBudgetForWays(
        std::max(distinct_rows_ / kRowsPerSmallCacheRow, kClickTables * batch_size_), row_bytes);
  }
  if (bench.on_gpu()) {
    // Staging of rows comes on top.
    for (TableConfig& table : options.tables) table.max_hotness = 1;
    options.cache.device_bytes = std::exchange(options.cache.bytes, 0);
    const auto least = EmbeddingCollection::MinCacheBytes(options, Device::kCuda);
    options.cache.device_bytes = std::max(options.cache.device_bytes, least.value_or(0));
  }
  if (tiers == ClickTiers::kSmallCacheOverSsd) {
    options.store =
        SsdStorage{.path = absl::StrCat(bench.dir, "/ssd", dim),
                   .memory_bytes = 64 * kMiB + 16 * distinct_rows_,
                   .disk_bytes = 3 * distinct_rows_ * SsdBytesPerRow(row_bytes) + 128 * kMiB};
  }
  return options;
}

}  // namespace hotrow
