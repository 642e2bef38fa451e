#ifndef HOTROW_EMBEDDING_STORED_ROW_H_
#define HOTROW_EMBEDDING_STORED_ROW_H_

#include <cstdint>

namespace hotrow {

// What a collection knows of a row beside its weights and the state of its optimizer.
struct StoredRow {
  uint64_t key = 0;
  // The step of its last update, counted as EmbeddingCollection::steps() is behind that update; 0:
  // no step has updated it.
  int64_t last_step = 0;
  float score = 0;  // TableConfig::score; 0 where the table keeps none
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_STORED_ROW_H_
