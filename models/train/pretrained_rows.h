#ifndef HOTROW_MODELS_TRAIN_PRETRAINED_ROWS_H_
#define HOTROW_MODELS_TRAIN_PRETRAINED_ROWS_H_

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "base/env.h"
#include "embedding/embedding_collection.h"

namespace hotrow {

// Rows that a table starts from, made elsewhere.
struct PretrainedRows {
  std::string table;
  std::string path;
};

// "items:rows/items,users:users.csv". InvalidArgument names the part that is no TABLE:PATH, or the
// table that comes twice.
absl::StatusOr<std::vector<PretrainedRows>> ParsePretrainedRows(std::string_view text);

// Reads `path` and gives its rows to the table, some MiB at a time; returns how many. A directory
// has keys.npy (uint64 or int64, [K]) and weights.npy (float32, [K, D]), as `hotrow export --table`
// writes them. A file is CSV, plain or gzip: a line for each row, the key and D numbers; a first
// line that begins with "key" is a header. With several ranks all read the same files, and each
// gives every world_size-th row. Errors: InvalidArgument (names file, place and what was expected),
// those of the files and of EmbeddingCollection::WriteRows.
absl::StatusOr<int64_t> WritePretrainedRows(Env& env, const PretrainedRows& from, int64_t dim,
                                            int32_t rank, int32_t world_size,
                                            EmbeddingCollection* tables);

}  // namespace hotrow

#endif  // HOTROW_MODELS_TRAIN_PRETRAINED_ROWS_H_
