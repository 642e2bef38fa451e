#ifndef HOTROW_EMBEDDING_TIERS_IN_PLACE_TABLE_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_IN_PLACE_TABLE_IMPL_H_

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/check.h"
#include "embedding/tiers/initial_rows_impl.h"
#include "embedding/tiers/table_misses_impl.h"
#include "embedding/tiers/tiered_table.h"
#include "store/host/host_store.h"

namespace hotrow::internal {

// A TieredTable without a cache: rows are read and updated where a HostStore keeps them. All rows
// are resident at all times, so a step begins with ResolveForRead; what it does not find there gets
// its initial row in the step's staging, and joins the store in ResolveForUpdate. Between these
// nothing else may add rows. There are no snapshots: the store takes its own, while nobody trains.
class InPlaceTable final : public TieredTable {
 public:
  // `store` outlives the table.
  InPlaceTable(const TieredTableOptions& options, HostStore* store)
      : TieredTable(options.tables[0].layout.row_bytes),
        store_(store),
        initial_rows_(options),
        misses_(options.tables) {
    for (const TieredTableSpec& spec : options.tables) {
      stats_.tables.push_back({.table = spec.table});
    }
  }

  absl::StatusOr<Placed> Place(const ExecContext& ctx, std::span<const RowKey> keys,
                               std::span<const int32_t> counts, StepRows* step) override;
  absl::StatusOr<int64_t> NextMisses(StepRows*, std::vector<RowKey>*,
                                     std::vector<std::byte*>*) override {
    return 0;
  }
  absl::Status Fill(const ExecContext&, StepRows*, std::span<const uint8_t> found) override {
    HOTROW_CHECK(found.empty());
    return absl::OkStatus();
  }
  bool fills_in_place() const override { return false; }
  absl::Status FillInPlace(const ExecContext&, StepRows*) override { HOTROW_CHECK(false); }
  void FinishPlacing(const ExecContext&) override {}
  void GiveUp(StepRows* step) override { step->resident = false; }

  absl::Status ResolveForRead(const ExecContext& ctx, StepRows* step,
                              std::span<std::byte*> rows) override;
  absl::Status PrepareForUpdate(const ExecContext&, const StepRows&) override {
    return absl::OkStatus();
  }
  absl::Status ResolveForUpdate(StepRows* step, std::span<std::byte*> rows) override;
  absl::Status Withdraw(const StepRows& step) override;
  void Release(const ExecContext& ctx, StepRows* step, bool updated) override;

  absl::Status Read(const ExecContext& ctx, std::span<const RowKey> keys, std::byte* staging,
                    std::span<std::byte*> rows) override;
  absl::Status Flush() override { return absl::OkStatus(); }
  absl::Status ForEachUnwritten(RowsFn) override { return absl::OkStatus(); }
  absl::Status Erase(const ExecContext&, std::span<const RowKey> keys) override {
    return store_->Erase(keys);
  }
  absl::Status Write(const ExecContext&, std::span<const RowKey> keys,
                     std::span<const std::byte* const> rows) override {
    return store_->InsertOrAssign(keys, rows);
  }

  absl::Status BeginSnapshot() override { HOTROW_CHECK(false); }
  absl::StatusOr<bool> WriteSnapshotPart() override { HOTROW_CHECK(false); }
  void EndSnapshot() override { HOTROW_CHECK(false); }
  absl::Status WriteHeld() override { HOTROW_CHECK(false); }

  void WaitForDevice() const override {}
  bool has_cache() const override { return false; }
  TieredTableStats Stats() const override {
    TieredTableStats stats = stats_;
    for (TieredTableStats::Table& table : stats.tables) table.store = misses_.Of(table.table);
    return stats;
  }

 private:
  HostStore* const store_;
  const InitialRows initial_rows_;
  TieredTableStats stats_;  // of the caller's calls
  TableMisses misses_;      // of these calls, in the store
  // Scratch of the caller's calls.
  std::vector<RowKey> keys_;
  std::vector<std::byte*> rows_;
  std::vector<uint8_t> added_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_IN_PLACE_TABLE_IMPL_H_
