#include <algorithm>
#include <cstddef>

#include "absl/strings/str_cat.h"
#include "base/device_stream.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/rows/row_erasure_impl.h"

namespace hotrow::internal {
namespace {

// So many keys of each rank at a time, which bounds what a call needs beside the keys.
constexpr int64_t kPieceKeys = int64_t{1} << 16;
// So many rows are read at a time.
constexpr size_t kReadRows = 1024;

}  // namespace

absl::Status RowErasure::EraseOwn(int32_t table, std::span<const uint64_t> keys) {
  const auto number = static_cast<uint32_t>(plan_.tables[table].config);
  own_.clear();
  for (const uint64_t key : keys) {
    const RowKey row = {key, number};
    if (shuffle_ == nullptr || OwnerRank(row, shuffle_->world_size()) == shuffle_->rank()) {
      own_.push_back(row);
    }
  }
  std::sort(own_.begin(), own_.end(),
            [](const RowKey& a, const RowKey& b) { return a.key < b.key; });
  own_.erase(std::unique(own_.begin(), own_.end()), own_.end());
  if (own_.empty()) return absl::OkStatus();
  rules_->Forget(own_);
  return rules_->counts(static_cast<size_t>(table)) ? EraseCounted(table)
                                                    : tiers_->Erase(ctx_, table, own_);
}

absl::Status RowErasure::EraseCounted(int32_t table) {
  const auto row_bytes = static_cast<size_t>(plan_.tables[table].layout.row_bytes);
  HOTROW_RETURN_IF_ERROR(tiers_->Flush());
  std::vector<RowMark> marks;
  std::vector<std::byte> bytes(std::min(own_.size(), kReadRows) * row_bytes);
  std::vector<std::byte*> rows;
  for (size_t at = 0; at < bytes.size(); at += row_bytes) rows.push_back(bytes.data() + at);
  std::vector<uint8_t> found(rows.size());
  for (size_t begin = 0; begin < own_.size(); begin += kReadRows) {
    const size_t n = std::min(kReadRows, own_.size() - begin);
    HOTROW_RETURN_IF_ERROR(tiers_->store()->Find(
        std::span(own_).subspan(begin, n), std::span(rows).first(n), std::span(found).first(n)));
    for (size_t i = 0; i < n; ++i) {
      if (found[i] == 0 || rules_->IsAged(static_cast<size_t>(table), rows[i])) continue;
      const RowMark mark = rules_->MarkOf(static_cast<size_t>(table), rows[i]);
      if (mark.last_step > 0) marks.push_back(mark);
    }
  }
  const absl::Status erased = tiers_->Erase(ctx_, table, own_);
  if (erased.ok()) {
    rules_->CountGone(static_cast<size_t>(table), marks);
    return absl::OkStatus();
  }
  // Some may be gone. If they cannot be counted either, the next opening counts them.
  if (tiers_->Flush().ok()) rules_->CountRows(tiers_->store()).IgnoreError();
  return erased;
}

absl::StatusOr<std::vector<uint64_t>> RowErasure::Choose(int32_t table, const Wanted& wanted) {
  const PlannedTable& planned = plan_.tables[table];
  const auto number = static_cast<uint32_t>(planned.config);
  std::vector<uint64_t> keys;
  const auto choose = [&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(UseDevice(ctx_));  // it may be another thread
    return tiers_->ForEachRow([&](const RowKey& key, std::span<const std::byte> row) {
      if (key.table != number || rules_->IsAged(static_cast<size_t>(table), row.data())) {
        return absl::OkStatus();
      }
      const RowMark mark = rules_->MarkOf(static_cast<size_t>(table), row.data());
      if (wanted({key.key, mark.last_step, mark.score})) keys.push_back(key.key);
      return absl::OkStatus();
    });
  };
  HOTROW_RETURN_IF_ERROR(shuffle_ == nullptr ? choose() : shuffle_->RunTogether(choose));
  return keys;
}

absl::Status RowErasure::Run(int32_t table, std::span<const uint64_t> keys) {
  if (shuffle_ != nullptr) return RunTogether(table, keys);
  while (!keys.empty()) {
    const size_t n = std::min(keys.size(), static_cast<size_t>(kPieceKeys));
    HOTROW_RETURN_IF_ERROR(EraseOwn(table, keys.first(n)));
    keys = keys.subspan(n);
  }
  return absl::OkStatus();
}

// Every rank hears of all keys, not of its own alone: it may keep residuals of any of them.
absl::Status RowErasure::RunTogether(int32_t table, std::span<const uint64_t> keys) {
  const auto world_size = static_cast<size_t>(shuffle_->world_size());
  const int64_t mine[] = {table, std::ssize(keys)};
  std::vector<int64_t> all(2 * world_size);
  HOTROW_RETURN_IF_ERROR(shuffle_->AllGather(mine, all));
  const auto name_of = [&](int64_t position) {
    return options_.tables[plan_.tables[position].config].name;
  };
  int64_t most = 0;
  for (size_t p = 0; p < world_size; ++p) {
    if (all[2 * p] != table) {
      return absl::InvalidArgumentError(absl::StrCat(
          "Erase: rank ", p, " names table \"", name_of(all[2 * p]), "\", rank ", shuffle_->rank(),
          " table \"", name_of(table), "\"; all ranks name the same"));
    }
    most = std::max(most, all[2 * p + 1]);
  }
  std::vector<int64_t> part;
  std::vector<int64_t> parts;
  std::vector<uint64_t> piece;  // of all ranks
  for (int64_t begin = 0; begin < most; begin += kPieceKeys) {
    const int64_t room = std::min(kPieceKeys, most - begin);
    const auto size_of = [&](int64_t count) { return std::clamp<int64_t>(count - begin, 0, room); };
    const auto own = keys.subspan(static_cast<size_t>(std::min(begin, mine[1])),
                                  static_cast<size_t>(size_of(mine[1])));
    part.assign(own.begin(), own.end());
    part.resize(static_cast<size_t>(room));
    parts.resize(part.size() * world_size);
    HOTROW_RETURN_IF_ERROR(shuffle_->AllGather(part, parts));
    piece.clear();
    for (size_t p = 0; p < world_size; ++p) {
      const auto first = parts.begin() + static_cast<int64_t>(p) * room;
      piece.insert(piece.end(), first, first + size_of(all[2 * p + 1]));
    }
    if (residuals_ != nullptr) {
      residuals_->Erase(static_cast<uint32_t>(plan_.tables[table].config), piece);
    }
    HOTROW_RETURN_IF_ERROR(EraseOwn(table, piece));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
