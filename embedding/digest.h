#ifndef HOTROW_EMBEDDING_DIGEST_H_
#define HOTROW_EMBEDDING_DIGEST_H_

#include <cstdint>
#include <string>
#include <vector>

#include "base/hash.h"

// Counts and hashes of all rows, to tell whether two collections are the same.

namespace hotrow {

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

#endif  // HOTROW_EMBEDDING_DIGEST_H_
