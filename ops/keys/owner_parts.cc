#include "ops/keys/owner_parts.h"

#include <cstdint>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/dispatch.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "ops/keys/owner_parts_impl.h"
#include "ops/validate.h"

namespace hotrow {

absl::Status OwnerPartsArgs::Validate() const {
  constexpr char kOp[] = "OwnerParts";
  if (world_size < 1 || world_size > RowHash::kNumShards) {
    return internal::InvalidField(
        kOp, "world_size", absl::StrCat("must lie in [1, ", RowHash::kNumShards, "]"), world_size);
  }
  const int64_t parts_max = std::numeric_limits<int32_t>::max();
  if (static_cast<int64_t>(tables.size()) > parts_max / world_size) {
    return internal::InvalidField(kOp, "tables.size()",
                                  absl::StrCat("must be <= ", parts_max / world_size),
                                  static_cast<int64_t>(tables.size()));
  }
  if (num_keys < 0) return internal::InvalidField(kOp, "num_keys", "must be >= 0", num_keys);
  if (num_keys == 0) return absl::OkStatus();
  if (tables.empty()) return internal::InvalidField(kOp, "tables.size()", "must be > 0", 0);
  if (values == nullptr) return internal::NullField(kOp, "values");
  if (table_offsets == nullptr) return internal::NullField(kOp, "table_offsets");
  if (parts == nullptr) return internal::NullField(kOp, "parts");
  return absl::OkStatus();
}

absl::Status OwnerParts(const ExecContext& ctx, const OwnerPartsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_keys == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::OwnerPartsCpu(ctx, args); },
      [&](auto stream) { return internal::OwnerPartsCuda(args, stream); });
}

absl::Status PickWordsArgs::Validate() const {
  constexpr char kOp[] = "PickWords";
  if (num_words < 0) return internal::InvalidField(kOp, "num_words", "must be >= 0", num_words);
  if (num_words == 0) return absl::OkStatus();
  if (from == nullptr) return internal::NullField(kOp, "from");
  if (positions == nullptr) return internal::NullField(kOp, "positions");
  if (to == nullptr) return internal::NullField(kOp, "to");
  return absl::OkStatus();
}

absl::Status PickWords(const ExecContext& ctx, const PickWordsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_words == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::PickWordsCpu(ctx, args); },
      [&](auto stream) { return internal::PickWordsCuda(args, stream); });
}

absl::Status PutWordsArgs::Validate() const {
  constexpr char kOp[] = "PutWords";
  if (num_words < 0) return internal::InvalidField(kOp, "num_words", "must be >= 0", num_words);
  if (num_words == 0) return absl::OkStatus();
  if (from == nullptr) return internal::NullField(kOp, "from");
  if (positions == nullptr) return internal::NullField(kOp, "positions");
  if (to == nullptr) return internal::NullField(kOp, "to");
  return absl::OkStatus();
}

absl::Status PutWords(const ExecContext& ctx, const PutWordsArgs& args) {
  HOTROW_RETURN_IF_ERROR(args.Validate());
  if (args.num_words == 0) return absl::OkStatus();
  return internal::Dispatch(
      ctx, [&] { return internal::PutWordsCpu(ctx, args); },
      [&](auto stream) { return internal::PutWordsCuda(args, stream); });
}

}  // namespace hotrow
