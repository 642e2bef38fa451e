#ifndef HOTROW_MODELS_SAVING_MODEL_ROWS_H_
#define HOTROW_MODELS_SAVING_MODEL_ROWS_H_

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "base/row_key.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_tables.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// A model whose rows are read, in any form: a saved model, a checkpoint, the newest of
// a directory of them, or an export.
struct ModelRows {
  std::string dir;
  SavedModel model;                       // of an export without parts
  std::optional<PortableModel> portable;  // an export
  std::vector<PortableTable> tables;      // in the order of their numbers
};

// Errors: those of ReadCheckpoint; FailedPrecondition also where rows have yet to make up for steps
// that they missed, or are codes (CheckHasWeights).
absl::StatusOr<ModelRows> OpenModelRows(Env& env, const std::string& path);

struct VisitRowsOptions {
  int64_t memory_bytes = int64_t{64} << 20;  // of buffers
  int64_t store_bytes = 0;                   // of the index of an ssd store; 0: no limit
};
// Calls visit with each row that has not aged, as its table's layout has it, in any order; may be
// called again. Errors: those of the files and of visit, which ends it.
absl::Status VisitRows(
    Env& env, const ModelRows& rows, const VisitRowsOptions& options,
    absl::FunctionRef<absl::Status(const RowKey& key, std::span<const std::byte> row)> visit);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_MODEL_ROWS_H_
