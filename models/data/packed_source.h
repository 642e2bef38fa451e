#ifndef HOTROW_MODELS_DATA_PACKED_SOURCE_H_
#define HOTROW_MODELS_DATA_PACKED_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/file_source.h"
#include "models/data/packed_format.h"

namespace hotrow {

// Packed data (models/data/packed_format.h), made by `hotrow pack`. Several packs of one schema are
// read one after the other, as if they were one; they may lie on several drives. It takes these
// options:
//
//   memory_bytes     blocks in memory at a time, of each reader. Training data that fit stay there
//                    and are shuffled as a whole, in the order that OpenFileSource gives them.
//                    Larger ones: their blocks come in an order drawn from (seed, epoch); as many
//                    as a third of it holds, or a fourth where each sample has one lookup a
//                    feature, are mixed, while the next ones are read. A batch may take more,
//                    since what it is made of is there at once.
//   in_order         training data in the order of the files, too
//   threads.reading  copy the columns of a batch, side by side. Bits do not depend on them.
//   saved_vocabulary must be that of the data, whose ids are what it made of them
//
// and the seed. Any sample can be the first one: nothing before it is read. `env` must outlive the
// source. Errors: those of ReadPackedManifest; FailedPrecondition, naming both and what differs,
// where a pack does not fit the first one.
absl::StatusOr<std::unique_ptr<DataSource>> OpenPackedSource(const std::vector<std::string>& dirs,
                                                             const FileSourceOptions& options,
                                                             Env& env = PosixEnv());

struct PackedReport {
  PackedManifest manifest;
  std::vector<std::string> damage;  // a line each, with file and block
};
// Reads all blocks of packed data. Errors: those of ReadPackedManifest and of the disk.
absl::StatusOr<PackedReport> VerifyPackedData(Env& env, const std::string& dir);

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_PACKED_SOURCE_H_
