#ifndef HOTROW_MODELS_DELTA_DELTA_MERGE_IMPL_H_
#define HOTROW_MODELS_DELTA_DELTA_MERGE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "models/delta/delta_rows.h"

namespace hotrow {

// The entries of many files of rows in one ascending order, of each key the one of the highest
// sequence. One thread at a time. Errors: those of DeltaRowsReader; DataLoss (two files of one
// sequence have a key; names both).
class DeltaMerge {
 public:
  struct Source {
    std::unique_ptr<DeltaRowsReader> reader;
    int64_t sequence = 0;
  };

  // Stands at the first entry.
  static absl::StatusOr<DeltaMerge> Create(std::vector<Source> sources);

  bool done() const { return heap_.empty(); }
  // What the present entry has; there is one unless done().
  const RowKey& key() const { return sources_[heap_[0]].reader->key(); }
  bool erased() const { return sources_[heap_[0]].reader->erased(); }
  std::span<const std::byte> row() const { return sources_[heap_[0]].reader->row(); }
  absl::Status Next();

 private:
  explicit DeltaMerge(std::vector<Source> sources) : sources_(std::move(sources)) {}
  bool IsBelow(size_t a, size_t b) const;
  void SiftDown(size_t at);
  absl::Status Advance();
  absl::Status CheckFirst() const;

  std::vector<Source> sources_;
  std::vector<size_t> heap_;  // of sources that are not done; the present entry's on top
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DELTA_DELTA_MERGE_IMPL_H_
