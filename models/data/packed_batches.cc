#include <algorithm>
#include <array>
#include <cstring>
#include <numeric>
#include <type_traits>
#include <utility>

#include "base/check.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "models/data/packed_batches_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kTile = 8;  // samples whose ids of one feature fill a cache line of the batch
constexpr int64_t kGrain = 2048;

// Calls use(std::integral_constant<int32_t, width>) of a width that PackedBlock::Open let pass.
template <typename Use>
void WithWidth(int32_t width, const Use& use) {
  switch (width) {
    case 1:
      return use(std::integral_constant<int32_t, 1>());
    case 2:
      return use(std::integral_constant<int32_t, 2>());
    case 3:
      return use(std::integral_constant<int32_t, 3>());
    case 4:
      return use(std::integral_constant<int32_t, 4>());
    case 5:
      return use(std::integral_constant<int32_t, 5>());
    case 6:
      return use(std::integral_constant<int32_t, 6>());
    case 7:
      return use(std::integral_constant<int32_t, 7>());
    default:
      return use(std::integral_constant<int32_t, 8>());
  }
}

void ResizeDense(const PackedManifest& manifest, int64_t n, CtrBatch* batch) {
  const size_t num_labels = manifest.schema.labels.size();
  const auto samples = static_cast<size_t>(n);
  batch->batch_size = n;
  batch->num_labels = static_cast<int32_t>(num_labels);
  batch->labels.resize(samples * num_labels);
  batch->dense.resize(samples * static_cast<size_t>(manifest.schema.num_dense));
  batch->true_probability.resize(manifest.has_probability ? samples : 0);
  batch->times.clear();
  batch->offsets.resize(manifest.schema.features.size() * samples + 1);
}

// One batch made of columns.
class ColumnCopies {
 public:
  ColumnCopies(const PackedManifest& manifest, const PackedSelection& selection, CtrBatch* batch)
      : manifest_(manifest), selection_(selection), batch_(*batch) {}

  bool OneEach(int64_t f) const {
    return std::all_of(selection_.blocks.begin(), selection_.blocks.end(),
                       [f](const PackedBlock* block) { return block->feature(f).begins.empty(); });
  }
  int64_t CountLookups(int64_t f) const {
    if (OneEach(f)) return batch_.batch_size;
    int64_t sum = 0;
    ForEach([&](const PackedBlock& block, int64_t begin, int64_t length) {
      sum += block.feature(f).BeginOf(begin + length) - block.feature(f).BeginOf(begin);
    });
    return sum;
  }

  void CopyDense() {
    const int64_t num_dense = manifest_.schema.num_dense;
    const auto num_labels = static_cast<int64_t>(manifest_.schema.labels.size());
    float* dense = batch_.dense.data();
    float* label = batch_.labels.data();
    float* probability = batch_.true_probability.data();
    ForEach([&](const PackedBlock& block, int64_t begin, int64_t length) {
      dense = std::copy_n(block.dense() + begin * num_dense, length * num_dense, dense);
      label = std::copy_n(block.labels() + begin * num_labels, length * num_labels, label);
      if (manifest_.has_probability) {
        probability = std::copy_n(block.probability() + begin, length, probability);
      }
      if (manifest_.has_time) {
        const int64_t* const times = block.times() + begin;
        batch_.times.insert(batch_.times.end(), times, times + length);
      }
    });
  }

  // The lookups of feature f, which begin at `begin` in the batch.
  void CopyFeature(int64_t f, int64_t begin) {
    uint64_t* value = batch_.values.data() + begin;
    float* weight = batch_.weights.data() + (manifest_.has_weights ? begin : 0);
    int64_t* offset = batch_.offsets.data() + f * batch_.batch_size + 1;  // the end of each bag
    ForEach([&](const PackedBlock& block, int64_t first, int64_t length) {
      const PackedBlock::Feature& feature = block.feature(f);
      const int64_t before = feature.BeginOf(first);
      const int64_t lookups = feature.BeginOf(first + length) - before;
      WithWidth(feature.width, [&](auto width) {
        for (int64_t i = 0; i < lookups; ++i) {
          value[i] = PackedId(feature.values, width(), before + i);
        }
      });
      value += lookups;
      if (manifest_.has_weights) {
        weight = std::copy_n(feature.weights + before, lookups, weight);
      }
      if (feature.begins.empty()) {
        for (int64_t i = 0; i < length; ++i) offset[i] = begin + i + 1;
      } else {
        for (int64_t i = 0; i < length; ++i) {
          offset[i] = begin + feature.BeginOf(first + i + 1) - before;
        }
      }
      offset += length;
      begin += lookups;
    });
  }

 private:
  template <typename Take>
  void ForEach(const Take& take) const {
    for (const PackedSelection::Run& run : selection_.runs) {
      take(*selection_.blocks[run.block], int64_t{run.begin}, int64_t{run.length});
    }
  }

  const PackedManifest& manifest_;
  const PackedSelection& selection_;
  CtrBatch& batch_;
};

}  // namespace

void MakeBatchOfColumns(const PackedManifest& manifest, const PackedSelection& selection,
                        ThreadPool* pool, int64_t n, CtrBatch* batch) {
  const auto num_features = static_cast<int64_t>(manifest.schema.features.size());
  ResizeDense(manifest, n, batch);
  batch->offsets[0] = 0;
  ColumnCopies copies(manifest, selection, batch);
  // Where each column begins, once the lookups of those before it are counted.
  std::vector<int64_t> begins(static_cast<size_t>(num_features) + 1, 0);
  ParallelFor(pool, num_features, 1, [&](int64_t f, int64_t) {
    begins[static_cast<size_t>(f) + 1] = copies.CountLookups(f);
  });
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  batch->values.resize(static_cast<size_t>(begins.back()));
  batch->weights.resize(static_cast<size_t>(manifest.has_weights ? begins.back() : 0));
  // Labels and dense features lie together in each sample: they are one column more.
  ParallelFor(pool, num_features + 1, 1, [&](int64_t column, int64_t) {
    if (column == 0) return copies.CopyDense();
    copies.CopyFeature(column - 1, begins[static_cast<size_t>(column) - 1]);
  });
}

void MakeRoomForRows(const PackedManifest& manifest, int64_t n, ThreadPool* pool, CtrBatch* batch) {
  ResizeDense(manifest, n, batch);
  batch->values.resize(batch->offsets.size() - 1);
  batch->weights.clear();
  ParallelFor(pool, static_cast<int64_t>(batch->offsets.size()), 16 * kGrain,
              [&](int64_t begin, int64_t end) {
                int64_t* const offsets = batch->offsets.data();
                for (int64_t i = begin; i < end; ++i) offsets[i] = i;
              });
}

PackedRows::PackedRows(const PackedManifest& manifest) : manifest_(manifest) {
  for (const int32_t width : manifest.id_bytes) {
    columns_.push_back({stride_, ~uint64_t{0} >> (64 - 8 * width)});
    stride_ += width;
  }
  constexpr auto kFloatBytes = static_cast<int64_t>(sizeof(float));
  dense_offset_ = stride_;
  stride_ += manifest.schema.num_dense * kFloatBytes;
  probability_offset_ = stride_;
  if (manifest.has_probability) stride_ += kFloatBytes;
  stride_ += static_cast<int64_t>(manifest.schema.labels.size());
  // Ids are read and written eight bytes at a time, within their row.
  constexpr auto kIdBytes = static_cast<int64_t>(sizeof(uint64_t));
  if (!columns_.empty()) stride_ = std::max(stride_, columns_.back().offset + kIdBytes);
}

absl::Status PackedRows::Reset(int64_t samples) {
  return bytes_.Reserve(samples * stride_, HugePages::kTry);
}

void PackedRows::Add(const PackedBlock& block, int64_t first) {
  const auto dense_bytes = static_cast<size_t>(manifest_.schema.num_dense) * sizeof(float);
  const size_t num_labels = manifest_.schema.labels.size();
  for (int64_t begin = 0; begin < block.samples(); begin += kTile) {
    const int64_t end = std::min(begin + kTile, block.samples());
    std::byte* const rows = bytes_.data() + (first + begin) * stride_;
    // An id overwrites up to seven bytes behind it, which are of columns that come later.
    for (size_t f = 0; f < columns_.size(); ++f) {
      const PackedBlock::Feature& feature = block.feature(static_cast<int64_t>(f));
      HOTROW_DCHECK(feature.begins.empty());
      std::byte* to = rows + columns_[f].offset;
      for (int64_t i = begin; i < end; ++i, to += stride_) {
        const uint64_t id = PackedId(feature.values, feature.width, i);
        std::memcpy(to, &id, sizeof id);
      }
    }
    std::byte* row = rows;
    for (int64_t i = begin; i < end; ++i, row += stride_) {
      if (dense_bytes > 0) {
        std::memcpy(row + dense_offset_, block.dense() + i * manifest_.schema.num_dense,
                    dense_bytes);
      }
      std::byte* labels = row + probability_offset_;
      if (manifest_.has_probability) {
        std::memcpy(labels, block.probability() + i, sizeof(float));
        labels += sizeof(float);
      }
      std::memcpy(labels, block.labels() + i * static_cast<int64_t>(num_labels), num_labels);
    }
  }
}

void PackedRows::Gather(const Permutation& order, int64_t begin, int64_t count, ThreadPool* pool,
                        int64_t at, CtrBatch* batch) const {
  ParallelFor(pool, count, kGrain, [&](int64_t from, int64_t to) {
    // Rows are asked for two tiles ahead.
    constexpr int64_t kTiles = 3;
    std::array<std::array<const std::byte*, kTile>, kTiles> rows = {};
    const auto find = [&](int64_t tile) {
      const int64_t first = from + tile * kTile;
      for (int64_t k = 0; k < kTile && first + k < to; ++k) {
        const std::byte* const row =
            bytes_.data() +
            static_cast<int64_t>(order(static_cast<uint64_t>(begin + first + k))) * stride_;
        rows[static_cast<size_t>(tile % kTiles)][static_cast<size_t>(k)] = row;
        for (int64_t b = 0; b < stride_; b += 64) __builtin_prefetch(row + b);
      }
    };
    for (int64_t tile = 0; tile < kTiles - 1; ++tile) find(tile);
    for (int64_t tile = 0; from + tile * kTile < to; ++tile) {
      find(tile + kTiles - 1);
      const int64_t first = from + tile * kTile;
      GatherTile(std::span(rows[static_cast<size_t>(tile % kTiles)])
                     .first(static_cast<size_t>(std::min(kTile, to - first))),
                 at + first, batch);
    }
  });
}

void PackedRows::GatherTile(std::span<const std::byte* const> rows, int64_t at,
                            CtrBatch* batch) const {
  uint64_t* values = batch->values.data() + at;
  for (const Column& column : columns_) {
    for (size_t k = 0; k < rows.size(); ++k) {
      uint64_t id;
      std::memcpy(&id, rows[k] + column.offset, sizeof id);
      values[k] = id & column.mask;
    }
    values += batch->batch_size;
  }
  const auto num_dense = static_cast<size_t>(manifest_.schema.num_dense);
  const size_t num_labels = manifest_.schema.labels.size();
  for (size_t k = 0; k < rows.size(); ++k) {
    const size_t i = static_cast<size_t>(at) + k;
    if (num_dense > 0) {
      std::memcpy(batch->dense.data() + i * num_dense, rows[k] + dense_offset_,
                  num_dense * sizeof(float));
    }
    const std::byte* labels = rows[k] + probability_offset_;
    if (manifest_.has_probability) {
      std::memcpy(batch->true_probability.data() + i, labels, sizeof(float));
      labels += sizeof(float);
    }
    for (size_t t = 0; t < num_labels; ++t) {
      batch->labels[i * num_labels + t] = static_cast<float>(labels[t]);
    }
  }
}

}  // namespace hotrow
