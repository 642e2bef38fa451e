#ifndef HOTROW_MODELS_DATA_CRITEO_NPY_H_
#define HOTROW_MODELS_DATA_CRITEO_NPY_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/data/data_source.h"
#include "models/data/file_source.h"

namespace hotrow {

// Criteo's logs as TorchRec and MLPerf prepare them, one set of files a day, N rows each:
//   day_0_labels.npy  int32 [N, 1] or [N], each 0 or 1
//   day_0_dense.npy   float32 [N, 13], taken as it is (TorchRec writes ln(x + 3)); finite
//   day_0_sparse.npy  int32 or int64 [N, 26]; int32 stands for its 32 bits, int64 for its 64, so a
//                     key does not depend on the sign its type gives it
// or, where the first day has it, for all days instead of the last
//   day_0_sparse_multi_hot.npz  members 0.npy .. 25.npy, int32 or int64 [N, hotness], stored or
//                     deflated, the hotness of each the same on all days
//
// All days but the last are the training split; the first half of the last day is validation, the
// second half test. There are at least two. env must outlive the source.
absl::StatusOr<std::unique_ptr<DataSource>> OpenCriteoNpy(const std::string& dir,
                                                          const FileSourceOptions& options,
                                                          Env& env = PosixEnv());

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_CRITEO_NPY_H_
