#ifndef HOTROW_MODELS_SERVING_SCORE_FILE_H_
#define HOTROW_MODELS_SERVING_SCORE_FILE_H_

#include <cstdint>
#include <span>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/env.h"
#include "models/serving/scorer.h"

namespace hotrow {

struct ScoreFileOptions {
  int32_t reader_threads = 1;  // that parse text, in [1, kMaxReaderThreads]
  Env* env = nullptr;          // of the file; not owned; null: the real file system
};

// Scores the samples of a text file, plain or gzip, by the schema of the model's data, and calls
// take with the logits [n, T] of samples that follow each other, in file order. They go in batches
// of max_batch_size(), so the file of a split has the bits of an evaluation with that batch size.
// Label columns are not read: every line is a sample.
//
// Errors: FailedPrecondition (the model has no schema), those of the file, the parser, which name
//         file and line, the scorer and take, which end it.
absl::Status ScoreFile(const Scorer& scorer, const std::string& path,
                       const ScoreFileOptions& options,
                       absl::FunctionRef<absl::Status(std::span<const float> logits)> take);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SERVING_SCORE_FILE_H_
