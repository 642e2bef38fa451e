#ifndef HOTROW_EMBEDDING_SERVING_ROW_OVERLAY_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_ROW_OVERLAY_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/buffer.h"
#include "embedding/serving/budget_share_impl.h"
#include "embedding/serving/record_table_impl.h"

namespace hotrow::internal {

// RowOverlay is what an update changes in one table: new rows, and keys that have none any more. It
// stands before a RecordTable for readers of the new version, while the table takes the changes.
//
// Layout:  records as in a RecordTable, the keys of erased rows, and an open-addressed index of
//          words, at most two thirds full: 32 bits of the key's hash, and which entry it is.
// Threads: filled by one, then Override any number.
// Budget:  all of it, taken in Create and returned by the destructor.
// Errors:  ResourceExhausted, InvalidArgument (a key twice); they name the table.
class RowOverlay {
 public:
  struct Options {
    std::string table;  // for errors
    RecordShape shape;
    BudgetShare* share = nullptr;  // outlives the overlay
  };
  // Room for so many of both.
  static absl::StatusOr<std::unique_ptr<RowOverlay>> Create(const Options& options, int64_t rows,
                                                            int64_t erased);
  ~RowOverlay();

  absl::Status Add(uint64_t key, uint32_t last_step, const std::byte* row);
  absl::Status AddErased(uint64_t key);
  bool Has(uint64_t key) const { return Find(key) != kNone; }

  // Where it has an entry of keys[i], sets rows[i] to its row, or to null where it has none.
  void Override(std::span<const uint64_t> keys, std::span<const std::byte*> rows) const;

  int64_t rows() const { return num_rows_; }
  int64_t erased() const { return num_erased_; }
  // The i-th.
  const std::byte* record(int64_t i) const { return records_.data() + i * stride_; }
  uint64_t erased_key(int64_t i) const { return erased_[i]; }
  const RecordShape& shape() const { return options_.shape; }

 private:
  static constexpr uint32_t kNone = 0;

  explicit RowOverlay(const Options& options);
  // 1 and the number of the entry: rows from 0 on, erased keys from room_ on. kNone: there is none.
  uint32_t Find(uint64_t key) const;
  uint64_t KeyOf(uint32_t entry) const;
  absl::Status Put(uint64_t key, uint32_t entry);

  const Options options_;
  const int64_t stride_;
  const uint64_t salt_;
  int64_t room_ = 0;  // rows
  int64_t num_rows_ = 0;
  int64_t num_erased_ = 0;
  HostBuffer<std::byte> records_;
  HostBuffer<uint64_t> erased_;
  HostBuffer<uint64_t> index_;  // a power of two
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_ROW_OVERLAY_IMPL_H_
