#ifndef HOTROW_MODELS_DATA_PACKED_BATCHES_IMPL_H_
#define HOTROW_MODELS_DATA_PACKED_BATCHES_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/thread_pool.h"
#include "models/data/ctr_batch.h"
#include "models/data/packed_format.h"
#include "models/data/permutation.h"

// Batches made of packed blocks, in two ways. Data in order are copied column by column, since
// neighbours in a block are neighbours in the batch. Shuffled samples with one lookup a feature are
// laid out as rows first, so that one costs two or three cache lines and not one for each column;
// others, which are rare, are taken out of the columns.
namespace hotrow {

// Blocks that are in memory together; their samples are numbered through.
using PackedBlocks = std::vector<std::shared_ptr<const PackedBlock>>;

// The samples of a batch in its order: runs of neighbours, or single ones.
struct PackedSelection {
  struct Run {
    uint32_t block;  // in `blocks`
    uint32_t begin;
    uint32_t length;
  };
  std::vector<const PackedBlock*> blocks;
  std::vector<Run> runs;

  void Clear() {
    blocks.clear();
    runs.clear();
  }
};

// Makes *batch of the n samples that are selected. The pool's threads share the columns.
void MakeBatchOfColumns(const PackedManifest& manifest, const PackedSelection& selection,
                        ThreadPool* pool, int64_t n, CtrBatch* batch);

// The sizes of a batch of n samples with one lookup a feature, and its offsets.
void MakeRoomForRows(const PackedManifest& manifest, int64_t n, ThreadPool* pool, CtrBatch* batch);

// Samples with one lookup a feature and without weights, as rows. A row has what the largest ids of
// the data need, so that blocks become rows while others are still being read.
//
// Threads: const methods may run concurrently, and so may Add of blocks that do not overlap.
class PackedRows {
 public:
  // The manifest outlives this and does not change.
  explicit PackedRows(const PackedManifest& manifest);
  // Makes room for so many samples, in the place of those that were there.
  absl::Status Reset(int64_t samples);
  // The samples of a block become those from number `first` on.
  void Add(const PackedBlock& block, int64_t first);

  // Samples order(begin), ..., order(begin + count - 1) become those of the batch from `at` on. The
  // batch has had room made for it; the pool's threads share the samples.
  void Gather(const Permutation& order, int64_t begin, int64_t count, ThreadPool* pool, int64_t at,
              CtrBatch* batch) const;

 private:
  struct Column {
    int64_t offset;  // of the id in a row
    uint64_t mask;   // of its bytes
  };

  void GatherTile(std::span<const std::byte* const> rows, int64_t at, CtrBatch* batch) const;

  const PackedManifest& manifest_;
  int64_t stride_ = 0;
  int64_t dense_offset_ = 0;  // then come labels
  int64_t probability_offset_ = 0;
  std::vector<Column> columns_;
  HostBuffer<std::byte> bytes_;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_PACKED_BATCHES_IMPL_H_
