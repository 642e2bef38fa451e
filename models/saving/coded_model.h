#ifndef HOTROW_MODELS_SAVING_CODED_MODEL_H_
#define HOTROW_MODELS_SAVING_CODED_MODEL_H_

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/serving/serving_rows.h"
#include "models/saving/portable_model.h"
#include "ops/products/dense_precision.h"

namespace hotrow {

struct CodedModelOptions {
  std::string model;              // a saved model, a checkpoint or an export
  std::string dir;                // made; must not be there, or be empty
  std::vector<ServingRows> rows;  // by table, as the manifest has them; one: of all
  // Of the products that it is to be scored with; none: as it was trained.
  std::optional<DensePrecision> precision;
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  int64_t store_bytes = 0;                    // of the index of an ssd store; 0: no limit
  int64_t lost_rows = 0;                      // that are reported
  Env* env = nullptr;                         // not owned; null: the real file system
};

// A row that is no longer what it was.
struct LostRow {
  uint32_t table = 0;
  uint64_t key = 0;
  double loss = 0;  // length of the difference of its weights
  double norm = 0;  // of its weights as they were trained
};

struct CodedModelSummary {
  PortableSummary portable;
  std::vector<LostRow> lost;          // those that lose most, these first; at most lost_rows
  std::vector<int64_t> row_bytes;     // by table: of what is kept of a row
  std::vector<int64_t> weight_bytes;  // by table: of its weights as they were trained
};

// Writes a model that can be scored with and not trained: the portable form, whose tables have of
// each row what serving keeps, without the state of any optimizer. docs/formats/portable.md. As
// ExportPortable: DIR is whole or not there, and tables may be larger than memory.
//
// Errors: those of ExportPortable and OpenModelRows, InvalidArgument (a row that has no code; names
//         table and key), FailedPrecondition (`precision` of a model that does not say how it
//         evaluates).
absl::StatusOr<CodedModelSummary> WriteCodedModel(const CodedModelOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_CODED_MODEL_H_
