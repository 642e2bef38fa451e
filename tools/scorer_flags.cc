#include "tools/scorer_flags.h"

#include <cstdlib>

#include "base/enum_words.h"
#include "base/status_macros.h"

namespace hotrow {

ScorerFlags::ScorerFlags(ScorerOptions* options, FlagSet* flags) : options_(*options) {
  flags->Add("rows", WordFlag<ServingRows>("WORD", &options->rows, AllWords(kServingRowsWords)),
             "how rows are kept in memory: as_trained, fp16, bf16, or 8 or 4 bits a column with a "
             "scale and an offset for each row");
  flags->AddBytes("memory_bytes", &options->memory_bytes,
                  "memory for the rows of all tables and their index, or with --rows_dir for their "
                  "index and a cache; 0: no limit");
  flags->AddString(
      "rows_dir", "DIR", &options->rows_dir,
      "directory on an SSD for the rows of models that are larger than memory, one for "
      "each model");
  flags->DescribeDefault("memory has all rows");
  flags->AddBytes("store_bytes", &options->store_bytes,
                  "memory for the index of an SSD store, about 10 bytes a row; 0: no limit");
  flags->AddString(
      "precision", "WORD", &precision_,
      "type of the factors of dense matrix products: fp32, bf16 (AVX-512 BF16, AMX) or "
      "int8 (AVX-512 VNNI, AMX)");
  flags->DescribeDefault("as the model was trained");
  flags->AddString("onnxruntime", "FILE", &options->onnxruntime,
                   "library of onnxruntime, for a model whose dense part is ONNX");
  flags->DescribeDefault("HOTROW_ONNXRUNTIME, or libonnxruntime.so");
}

absl::Status ScorerFlags::Finish() {
  const char* const library = std::getenv("HOTROW_ONNXRUNTIME");
  if (options_.onnxruntime.empty() && library != nullptr) options_.onnxruntime = library;
  if (!options_.rows_dir.empty() && options_.memory_bytes == 0) {
    return absl::InvalidArgumentError(
        "--rows_dir needs --memory_bytes=BYTES, for the index and a cache of its rows");
  }
  if (precision_.empty()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(options_.precision, ParseDensePrecision(precision_));
  return absl::OkStatus();
}

}  // namespace hotrow
