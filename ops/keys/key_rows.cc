#include "ops/keys/key_rows.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/status_macros.h"
#include "ops/keys/key_rows_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status MakeRowKeysArgs::Validate() const {
  constexpr char kOp[] = "MakeRowKeys";
  if (max_keys < 0) return internal::InvalidField(kOp, "max_keys", "must be >= 0", max_keys);
  if (max_keys == 0) return absl::OkStatus();
  if (values == nullptr) return internal::NullField(kOp, "values");
  if (table_offsets == nullptr) return internal::NullField(kOp, "table_offsets");
  if (keys == nullptr) return internal::NullField(kOp, "keys");
  return absl::OkStatus();
}

absl::Status MakeRowKeys(const ExecContext& ctx, const MakeRowKeysArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::MakeRowKeysCpu(ctx, args); },
      [&](auto stream) { return internal::MakeRowKeysCuda(args, stream); });
}

absl::Status AddressRunsArgs::Validate() const {
  constexpr char kOp[] = "AddressRuns";
  int64_t covered = 0;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].begin != covered) {
      return internal::InvalidField(
          kOp, absl::StrCat("runs[", i, "].begin"),
          absl::StrCat("must be ", covered, ", where the one before ends"), runs[i].begin);
    }
    if (runs[i].end < runs[i].begin) {
      return internal::InvalidField(kOp, absl::StrCat("runs[", i, "].end"),
                                    absl::StrCat("must be >= ", runs[i].begin), runs[i].end);
    }
    covered = runs[i].end;
  }
  if (covered > 0 && rows == nullptr) return internal::NullField(kOp, "rows");
  return absl::OkStatus();
}

absl::Status AddressRuns(const ExecContext& ctx, const AddressRunsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::AddressRunsCpu(ctx, args); },
      [&](auto stream) { return internal::AddressRunsCuda(args, stream); });
}

absl::Status AddressByteRowsArgs::Validate() const {
  constexpr char kOp[] = "AddressByteRows";
  int64_t last = 0;
  bool any = false;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].begin < last) {
      return internal::InvalidField(
          kOp, absl::StrCat("runs[", i, "].begin"),
          absl::StrCat("must be >= ", last, ", where the one before ends"), runs[i].begin);
    }
    if (runs[i].end < runs[i].begin) {
      return internal::InvalidField(kOp, absl::StrCat("runs[", i, "].end"),
                                    absl::StrCat("must be >= ", runs[i].begin), runs[i].end);
    }
    any = any || runs[i].end > runs[i].begin;
    last = runs[i].end;
  }
  return any && rows == nullptr ? internal::NullField(kOp, "rows") : absl::OkStatus();
}

absl::Status AddressByteRows(const ExecContext& ctx, const AddressByteRowsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::AddressByteRowsCpu(ctx, args); },
      [&](auto stream) { return internal::AddressByteRowsCuda(args, stream); });
}

absl::Status AddressSlotsArgs::Validate() const {
  constexpr char kOp[] = "AddressSlots";
  if (num_rows < 0 || num_rows > std::numeric_limits<int32_t>::max()) {
    return internal::InvalidField(kOp, "num_rows", "must lie in [0, 2^31 - 1]", num_rows);
  }
  if (num_late < 0 || num_late > num_rows) {
    return internal::InvalidField(
        kOp, "num_late", absl::StrCat("must lie in [0, num_rows = ", num_rows, "]"), num_late);
  }
  if (num_rows == 0) return absl::OkStatus();
  if (row_bytes <= 0) return internal::InvalidField(kOp, "row_bytes", "must be > 0", row_bytes);
  if (first == nullptr) return internal::NullField(kOp, "first");
  if (slots == nullptr) return internal::NullField(kOp, "slots");
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (num_late == 0) return absl::OkStatus();
  if (late_positions == nullptr) return internal::NullField(kOp, "late_positions");
  if (late_slots == nullptr) return internal::NullField(kOp, "late_slots");
  return absl::OkStatus();
}

absl::Status AddressSlots(const ExecContext& ctx, const AddressSlotsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  return internal::Dispatch(
      ctx, [&] { return internal::AddressSlotsCpu(ctx, args); },
      [&](auto stream) { return internal::AddressSlotsCuda(args, stream); });
}

absl::Status AddressLookupsArgs::Validate() const {
  constexpr char kOp[] = "AddressLookups";
  if (num_features < 0) {
    return internal::InvalidField(kOp, "num_features", "must be >= 0", num_features);
  }
  if (batch_size < 0) return internal::InvalidField(kOp, "batch_size", "must be >= 0", batch_size);
  if (num_features == 0 || batch_size == 0) return absl::OkStatus();
  if (rows == nullptr) return internal::NullField(kOp, "rows");
  if (inverse == nullptr) return internal::NullField(kOp, "inverse");
  if (lookups == nullptr) return internal::NullField(kOp, "lookups");
  return absl::OkStatus();
}

absl::Status AddressLookups(const ExecContext& ctx, const AddressLookupsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_features == 0 || args.batch_size == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::AddressLookupsCpu(ctx, args); },
      [&](auto stream) { return internal::AddressLookupsCuda(args, stream); });
}

}  // namespace hotrow
