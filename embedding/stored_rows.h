#ifndef HOTROW_EMBEDDING_STORED_ROWS_H_
#define HOTROW_EMBEDDING_STORED_ROWS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash128.h"

// What a collection says of the rows that it has.

namespace hotrow {

// What a collection knows of a row beside its weights and the state of its optimizer.
struct StoredRow {
  uint64_t key = 0;
  // The step of its last update, counted as EmbeddingCollection::steps() is behind that update; 0:
  // no step has updated it.
  int64_t last_step = 0;
  float score = 0;  // TableConfig::score; 0 where the table keeps none
};

// Counts and hashes of all rows, to tell whether two collections are the same:
// EmbeddingCollection::Digest.
struct TableDigest {
  std::string name;
  int64_t rows = 0;
  int32_t dim = 0;
  int64_t row_bytes = 0;
  // Sum over rows of a keyed hash of {table, key, weights and optimizer state}, the weights in
  // their precision.
  Hash128 hash;
};

struct CollectionDigest {
  Hash128 hash;  // sum of the tables' hashes: independent of order, tier, cache and padding
  std::vector<TableDigest> tables;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STORED_ROWS_H_
