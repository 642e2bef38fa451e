#ifndef HOTROW_MODELS_SAVING_PACKED_WRITER_H_
#define HOTROW_MODELS_SAVING_PACKED_WRITER_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/packed_format.h"

namespace hotrow {

struct PackOptions {
  std::string dir;               // created; if it exists, it must be empty
  int64_t block_samples = 8192;  // samples that are read together; [1, kPackedBlockSamplesMax]
  // kFp16: half the bytes, and a number beyond 65504 is refused.
  PackedPrecision dense_precision = PackedPrecision::kFp32;
  // Of the blocks that are being filled, one of each split, and of the batch that comes; a sample
  // that would make it more is refused before it is copied.
  int64_t memory_bytes = INT64_MAX;
  std::string source;  // its name in the pack and in errors, for people
  std::function<void(int64_t samples)> on_progress;  // after each batch; may be empty
  Env* env = &PosixEnv();
};

// Writes packed data (docs/formats/packed_data.md), batch by batch. The directory appears with
// Finish, when all of it is durable; without it, or after a kill, there is none.
//
// Threads: one at a time. After an error only the destructor may follow.
class PackedWriter {
 public:
  // schema: of the batches; its numbers of samples are not looked at. Errors: InvalidArgument;
  // FailedPrecondition where the directory is not empty; those of the disk.
  static absl::StatusOr<std::unique_ptr<PackedWriter>> Create(const DataSchema& schema,
                                                              const PackOptions& options);
  virtual ~PackedWriter() = default;
  // Samples of a split, which follow those that it has. Errors: InvalidArgument where a pack cannot
  // hold one of them; ResourceExhausted where it takes more than memory_bytes; those of the disk.
  virtual absl::Status Append(Split split, const CtrBatch& batch) = 0;

  // What the samples were made of.
  struct Origin {
    std::vector<std::pair<std::string, std::string>> source;  // DataSource::Identity
    const TableSchema* table_schema = nullptr;                // or null
    const Vocabulary* vocabulary = nullptr;                   // or null
  };
  // Returns what the pack says of itself. Errors: InvalidArgument where no sample is for training.
  virtual absl::StatusOr<PackedManifest> Finish(const Origin& origin) = 0;
};

// Packs all samples of a source, in the order in which it gives those of epoch 0: open it with
// OpenDataOptions::in_order. Errors: those of the source and of PackedWriter; FailedPrecondition
// where the source changed meanwhile.
absl::StatusOr<PackedManifest> PackData(DataSource& data, const PackOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PACKED_WRITER_H_
