#ifndef HOTROW_MODELS_SERVING_EXPORT_ONNX_H_
#define HOTROW_MODELS_SERVING_EXPORT_ONNX_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/enum_words.h"
#include "base/env.h"
#include "models/zoo/ctr_model.h"
#include "models/zoo/model_kinds.h"

namespace hotrow {

// What a file with rows gives keys that have none.
enum class OnnxUnseenKeys {
  kExact,  // what evaluation gives them; refused where that cannot be written
  kZeros,
};
inline constexpr EnumWord<OnnxUnseenKeys> kOnnxUnseenKeysWords[] = {
    {"exact", OnnxUnseenKeys::kExact}, {"zeros", OnnxUnseenKeys::kZeros}};

struct ExportOnnxOptions {
  std::string model;  // as ScorerOptions::model
  std::string path;   // of the file; nothing may be there
  // The tables as well, so that the model's inputs are keys; otherwise they are embeddings.
  bool with_rows = false;
  OnnxUnseenKeys unseen_keys = OnnxUnseenKeys::kExact;  // with_rows
  int64_t store_bytes = 0;                              // as ScorerOptions::store_bytes
  // As ScorerOptions::create_model. What it makes must be a GraphModel.
  std::function<absl::StatusOr<std::unique_ptr<CtrModel>>(const ModelRecipe& recipe)> create_model;
  Env* env = nullptr;  // not owned; null: the real file system
};

struct ExportOnnxSummary {
  std::string from;
  std::string to;
  std::string model_name;
  int64_t step = 0;
  bool with_rows = false;
  std::vector<std::string> inputs;
  std::vector<std::string> outputs;
  int64_t parameters = 0;          // dense
  int64_t rows = 0;                // in the file
  int64_t bytes = 0;               // of the file
  std::vector<std::string> notes;  // what a user should know
};

// Writes a trained model as one ONNX file, whole or not at all: docs/onnx.md says what its inputs,
// outputs, constants and metadata are. Scores are those of Scorer with fp32 products, but for the
// rounding of sums.
//
// Memory: the dense part; with rows up to three times the file, which has at most 2 GB.
// Errors: those of Scorer::Open, FailedPrecondition (path is there; keys without a row have random
//         values; names the remedy), Unimplemented (a model or a part of one that has no such
//         form), ResourceExhausted (the file would be larger than an ONNX file can be).
absl::StatusOr<ExportOnnxSummary> ExportOnnx(const ExportOnnxOptions& options);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_EXPORT_ONNX_H_
