#ifndef HOTROW_MODELS_SAVING_TABLES_MODEL_H_
#define HOTROW_MODELS_SAVING_TABLES_MODEL_H_

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"
#include "models/saving/saved_model.h"

namespace hotrow {

// A model whose dense part is a file of ONNX: SavedModel::model, the blob that has the file, and
// what begins a flag of its shape, "pooling.FEATURE", whose value is "mean" (others: the sum).
inline constexpr char kOnnxModel[] = "onnx";
inline constexpr char kOnnxBlob[] = "dense.onnx";
inline constexpr char kOnnxPooling[] = "pooling.";

struct TablesModelOptions {
  std::string dir;  // made; must not be there, or be empty
  // What the manifest says but for rows and files, with blob_bytes. It has no dense parameters.
  SavedModel model;
  int64_t shard_bytes = int64_t{1} << 30;     // of an array in one file, at most
  int64_t memory_bytes = int64_t{256} << 20;  // of buffers
  Env* env = nullptr;                         // not owned; null: the real file system
};

// Writes the rows of tables that are open, as they are after the last step, as a model in the
// portable form: to score with, so without the state of their optimizers (as sgd has none). Of one
// rank; DIR is whole or not there. Errors: those of ForEachRow, FailedPrecondition (DIR is there),
// those of models/saving/portable_tables_writer.h.
absl::Status WriteTablesModel(EmbeddingCollection& tables, const TablesModelOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_TABLES_MODEL_H_
