#include <algorithm>
#include <cmath>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/rows/row_writes_impl.h"
#include "ops/rows/row_layout.h"
#include "ops/rows/weights_precision.h"

namespace hotrow::internal {
namespace {

// Rows are written in pieces of about so many bytes, of each rank: what a call needs beside them.
constexpr int64_t kPieceBytes = int64_t{4} << 20;

}  // namespace

absl::Status CheckWrittenRows(const TableConfig& config, std::span<const uint64_t> keys,
                              MatrixView<const float> weights) {
  const auto error = [&config](auto&&... what) {
    return absl::InvalidArgumentError(
        absl::StrCat("WriteRows: table \"", config.name, "\": ", what...));
  };
  std::vector<uint64_t> sorted(keys.begin(), keys.end());
  std::sort(sorted.begin(), sorted.end());
  const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
  if (twice != sorted.end()) return error("key ", *twice, " occurs twice");
  if (config.num_embeddings > 0 && !sorted.empty() &&
      sorted.back() >= static_cast<uint64_t>(config.num_embeddings)) {
    return error("key ", sorted.back(), " lies beyond num_embeddings, ", config.num_embeddings);
  }
  for (size_t i = 0; i < keys.size(); ++i) {
    const std::span<const float> row = weights.Row(static_cast<int64_t>(i));
    const auto bad =
        std::find_if(row.begin(), row.end(), [](float x) { return !std::isfinite(x); });
    if (bad == row.end()) continue;
    return error("weight ", bad - row.begin(), " of key ", keys[i], " is ", *bad,
                 "; weights must be finite");
  }
  return absl::OkStatus();
}

RowWrites::RowWrites(const EmbeddingCollectionOptions& options, const Plan& plan,
                     const ExecContext& ctx, Tiers* tiers, RowShuffle* shuffle, RowErasure* erasure,
                     RowRules* rules)
    : plan_(plan),
      ctx_(ctx),
      tiers_(tiers),
      shuffle_(shuffle),
      erasure_(erasure),
      rules_(rules),
      initial_rows_(RowsOf(options, plan)) {}

absl::Status RowWrites::WriteOwn(int32_t table, std::span<const RowKey> keys,
                                 std::span<const float* const> weights, uint32_t last_step) {
  const RowLayout& layout = plan_.tables[table].layout;
  const auto row_bytes = static_cast<size_t>(layout.row_bytes);
  std::vector<std::byte> bytes(keys.size() * row_bytes);
  std::vector<std::byte*> rows(keys.size());
  for (size_t i = 0; i < rows.size(); ++i) rows[i] = bytes.data() + i * row_bytes;
  HOTROW_RETURN_IF_ERROR(initial_rows_.Write(ctx_, keys, rows));
  const RowMark mark = rules_->FirstMark(static_cast<size_t>(table), last_step);
  for (size_t i = 0; i < rows.size(); ++i) {
    NarrowWeights(layout.precision, {weights[i], static_cast<size_t>(layout.dim)}, rows[i]);
    std::memcpy(rows[i] + layout.step_offset, &mark.last_step, sizeof(mark.last_step));
    if (layout.scored()) {
      std::memcpy(rows[i] + layout.score_offset, &mark.score, sizeof(mark.score));
    }
  }
  HOTROW_RETURN_IF_ERROR(
      tiers_->Write(ctx_, table, keys, std::vector<const std::byte*>(rows.begin(), rows.end())));
  rules_->CountWritten(static_cast<size_t>(table), mark, std::ssize(keys));
  return absl::OkStatus();
}

absl::Status RowWrites::Run(int32_t table, std::span<const uint64_t> keys,
                            MatrixView<const float> weights, uint32_t last_step) {
  HOTROW_RETURN_IF_ERROR(erasure_->Run(table, keys));
  if (shuffle_ != nullptr) return RunTogether(table, keys, weights, last_step);
  const auto number = static_cast<uint32_t>(plan_.tables[table].config);
  const int64_t piece = std::max<int64_t>(1, kPieceBytes / plan_.tables[table].layout.row_bytes);
  std::vector<RowKey> own;
  std::vector<const float*> values;
  for (int64_t begin = 0; begin < std::ssize(keys); begin += piece) {
    own.clear();
    values.clear();
    for (int64_t i = begin; i < std::min(begin + piece, std::ssize(keys)); ++i) {
      own.push_back({keys[static_cast<size_t>(i)], number});
      values.push_back(weights.Row(i).data());
    }
    HOTROW_RETURN_IF_ERROR(WriteOwn(table, own, values, last_step));
  }
  return absl::OkStatus();
}

// Every rank hears of all rows and keeps its own: rows are given once, so what travels too far
// hardly counts.
absl::Status RowWrites::RunTogether(int32_t table, std::span<const uint64_t> keys,
                                    MatrixView<const float> weights, uint32_t last_step) {
  const auto number = static_cast<uint32_t>(plan_.tables[table].config);
  const auto world_size = static_cast<size_t>(shuffle_->world_size());
  const auto dim = static_cast<size_t>(plan_.tables[table].layout.dim);
  const size_t words = 1 + CeilDiv(dim * sizeof(float), sizeof(int64_t));  // of a key and its row
  const int64_t mine[] = {std::ssize(keys)};
  std::vector<int64_t> counts(world_size);
  HOTROW_RETURN_IF_ERROR(shuffle_->AllGather(mine, counts));
  const int64_t most = *std::max_element(counts.begin(), counts.end());
  const int64_t piece =
      std::max<int64_t>(1, kPieceBytes / static_cast<int64_t>(words * sizeof(int64_t)));
  std::vector<int64_t> part;
  std::vector<int64_t> parts;
  std::vector<RowKey> own;
  std::vector<const float*> values;
  std::vector<float> floats;
  for (int64_t begin = 0; begin < most; begin += piece) {
    const auto room = static_cast<size_t>(std::min(piece, most - begin));
    const auto size_of = [&](int64_t count) {
      return static_cast<size_t>(std::clamp<int64_t>(count - begin, 0, static_cast<int64_t>(room)));
    };
    part.assign(room * words, 0);
    for (size_t i = 0; i < size_of(mine[0]); ++i) {
      const auto at = static_cast<size_t>(begin) + i;
      std::memcpy(&part[i * words], &keys[at], sizeof(uint64_t));
      std::memcpy(&part[i * words + 1], weights.Row(static_cast<int64_t>(at)).data(),
                  dim * sizeof(float));
    }
    parts.resize(part.size() * world_size);
    HOTROW_RETURN_IF_ERROR(shuffle_->AllGather(part, parts));
    own.clear();
    floats.clear();
    for (size_t p = 0; p < world_size; ++p) {
      for (size_t i = 0; i < size_of(counts[p]); ++i) {
        const int64_t* const at = &parts[(p * room + i) * words];
        RowKey key = {0, number};
        std::memcpy(&key.key, at, sizeof(key.key));
        if (OwnerRank(key, shuffle_->world_size()) != shuffle_->rank()) continue;
        own.push_back(key);
        floats.resize(floats.size() + dim);
        std::memcpy(floats.data() + floats.size() - dim, at + 1, dim * sizeof(float));
      }
    }
    values.clear();
    for (size_t i = 0; i < own.size(); ++i) values.push_back(floats.data() + i * dim);
    HOTROW_RETURN_IF_ERROR(WriteOwn(table, own, values, last_step));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
