#ifndef HOTROW_MODELS_SAVING_PACKED_WRITER_H_
#define HOTROW_MODELS_SAVING_PACKED_WRITER_H_

#include <cstdint>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/packed_format.h"

namespace hotrow {

struct PackOptions {
  std::string dir;               // created; if it exists, it must be empty
  int64_t block_samples = 8192;  // samples that are read together; [1, kPackedBlockSamplesMax]
  std::string source;            // its name in the pack, for people
  std::function<void(int64_t samples)> on_progress;  // after each block; may be empty
  Env* env = &PosixEnv();
};

// Writes all samples of a source as packed data (docs/formats/packed_data.md), in the order in
// which it gives those of epoch 0: open it with OpenDataOptions::in_order. The directory appears
// when all of it is durable; a kill leaves none. Takes some MiB of memory. Returns what the pack
// says of itself.
// Errors: those of the source and of the disk; InvalidArgument where a pack cannot hold a sample;
// FailedPrecondition where the source changed meanwhile, or the directory is not empty.
absl::StatusOr<PackedManifest> PackData(DataSource& data, const PackOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PACKED_WRITER_H_
