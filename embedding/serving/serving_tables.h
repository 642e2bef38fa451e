#ifndef HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "base/matrix_view.h"
#include "base/row_key.h"
#include "embedding/serving/serving_rows.h"
#include "ops/jagged.h"
#include "ops/row_init.h"
#include "ops/row_layout.h"
#include "ops/sparse_optimizer.h"
#include "ops/step_history.h"

namespace hotrow {

// A table as it was trained.
struct ServingTable {
  std::string name;
  ServingRows rows = ServingRows::kAsTrained;
  RowLayout layout;                 // of its rows in training
  SparseOptimizerConfig optimizer;  // of that layout; its other fields count where it is kTable
  Initializer initializer;          // of rows that no step has updated
};

struct ServingTablesOptions {
  std::vector<ServingTable> tables;  // required; in the order of their numbers
  uint64_t seed = 0;                 // of first values
  // Rows and index of all tables; a hard limit. Required.
  int64_t memory_bytes = 0;
  // Rows of each table, where they are known: a budget that they do not fit is refused before the
  // first of them comes. Empty: not known.
  std::vector<int64_t> expected_rows;
  // Where a table decays as a whole (WeightDecayMode::kTable): the steps behind first_step, which
  // keys without a row make up for, and with rows_missed_steps rows, too.
  int64_t first_step = 0;
  std::vector<LearningRateRun> learning_rates;
  bool rows_missed_steps = false;

  absl::Status Validate() const;  // names the field
};

// The lookups of one feature.
struct ServingLookup {
  uint32_t table = 0;
  Pooling pooling = Pooling::kSum;
  int64_t batch_size = 0;            // B
  std::span<const uint64_t> keys;    // [N]
  std::span<const int64_t> offsets;  // [B + 1]: keys of bag b are [offsets[b] - offsets[0], ...)
  std::span<const float> weights;    // [N], or empty: every weight is 1
  // [B, D], or with Pooling::kNone [N, D].
  MatrixView<float> output;
};

// ServingTables is the rows of a trained model, all in memory, to be read: weights alone, without
// the state of an optimizer. What Pool gives has the bits of EmbeddingCollection::Evaluate on the
// collection that the rows are from.
//
// A key without a row reads its first value, as there: a function of {seed, table, key}. Where
// tables are not kept as they were trained, what is read of a row is what its code stands for.
//
// Threads: Pool any number at once, without a lock, each with a Scratch of its own.
// Memory:  of a row its weights or codes and 8 bytes of key, both together a multiple of 16 bytes,
//          of codes of 4, and 7 bytes of index.
// Errors:  ResourceExhausted (the budget or memory), InvalidArgument (a row of a width or a table
//          that is not there, a key twice, a weight that has no code as it is not finite).
class ServingTables {
 public:
  // Takes rows in any order, each once. One thread.
  class Builder {
   public:
    static absl::StatusOr<std::unique_ptr<Builder>> Create(const ServingTablesOptions& options);
    ~Builder();
    // A row as the table's layout has it.
    absl::Status Add(const RowKey& key, std::span<const std::byte> row);
    // What was kept of a row: ServingRowBytes of the table's `rows`.
    absl::Status AddKept(const RowKey& key, std::span<const std::byte> kept);
    // The Builder is of no use afterwards.
    absl::StatusOr<std::unique_ptr<const ServingTables>> Finish();

   private:
    Builder() = default;
    std::unique_ptr<ServingTables> tables_;
    HostBuffer<std::byte> row_;  // a copy that makes up for steps
    HostBuffer<float> weights_;
    HostBuffer<std::byte> code_;
  };

  // What a call of Pool needs; reused, so that its memory is.
  class Scratch {
   private:
    friend class ServingTables;
    std::vector<const std::byte*> rows;  // [N]
    std::vector<int32_t> inverse;        // 0, 1, ...
    std::vector<int64_t> offsets;        // from 0
    std::vector<uint64_t> missing;
    std::vector<std::byte*> missing_rows;
    HostBuffer<std::byte> first_values;
    HostBuffer<float> decoded;       // [N, D], of codes
    HostBuffer<std::byte> narrowed;  // first values in another precision
    HostBuffer<float> floats;        // [D]
  };

  ~ServingTables();

  const std::vector<ServingTable>& tables() const { return options_.tables; }
  int64_t rows(uint32_t table) const;
  // Of the rows that there are, ascending. A copy.
  std::vector<uint64_t> KeysOf(uint32_t table) const;
  int64_t bytes() const { return used_bytes_; }  // taken of the budget

  // Looks the keys up and pools them as ops/pooled_lookup.h does. Offsets ascend and end at N.
  absl::Status Pool(const ServingLookup& lookup, Scratch* scratch) const;

 private:
  struct Table;

  explicit ServingTables(const ServingTablesOptions& options);
  absl::Status Init();
  absl::Status FirstValues(uint32_t table, std::span<const uint64_t> keys,
                           std::span<std::byte* const> rows) const;
  absl::Status ReadFirstValues(uint32_t table, Scratch* scratch) const;
  absl::Status CatchUpRows(uint32_t table, std::span<const uint64_t> keys,
                           std::span<std::byte* const> rows) const;

  const ServingTablesOptions options_;
  int64_t used_bytes_ = 0;
  std::vector<std::unique_ptr<Table>> rows_;  // by table
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_TABLES_H_
