#include <bit>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/rows/gradient_clip_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kRowsPerBlock = 128;

double Squares(std::span<const float> x) {
  double sum = 0;
  for (const float f : x) sum += static_cast<double>(f) * static_cast<double>(f);
  return sum;
}

void Scale(float factor, std::span<float> x) {
  for (float& f : x) f *= factor;
}

}  // namespace

absl::Status ClipGradients(const ExecContext& ctx, const EmbeddingCollectionOptions& options,
                           const Plan& plan, const TableKeys& keys,
                           std::span<const uint8_t> trained, float* const* gradients,
                           RowShuffle* shuffle) {
  const auto is_trained = [trained](int64_t i) {
    return trained.empty() || trained[static_cast<size_t>(i)] != 0;
  };
  double all_squares = 0;
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const TableConfig& config = options.tables[static_cast<size_t>(plan.tables[t].config)];
    const auto row_max = static_cast<double>(config.max_row_gradient_norm);
    if (plan.tables[t].frozen || (row_max == 0 && options.max_gradient_norm == 0)) continue;
    const int64_t begin = keys.table_offsets[t];
    const int64_t n = keys.table_offsets[t + 1] - begin;
    const auto dim = static_cast<size_t>(plan.tables[t].layout.dim);
    std::vector<double> block_squares(static_cast<size_t>(CeilDiv(n, kRowsPerBlock)));
    ParallelFor(ctx.pool, n, kRowsPerBlock, [&](int64_t first, int64_t last) {
      double sum = 0;
      for (int64_t u = first; u < last; ++u) {
        if (!is_trained(begin + u)) continue;
        const std::span<float> row(gradients[begin + u], dim);
        double squares = Squares(row);
        if (row_max > 0 && squares > row_max * row_max && std::isfinite(squares)) {
          Scale(static_cast<float>(row_max / std::sqrt(squares)), row);
          squares = Squares(row);
        }
        sum += squares;
      }
      block_squares[static_cast<size_t>(first / kRowsPerBlock)] = sum;
    });
    double squares = 0;
    for (const double block : block_squares) squares += block;
    all_squares += squares;
    if (std::isfinite(squares)) continue;
    for (int64_t u = 0; u < n; ++u) {
      if (!is_trained(begin + u)) continue;
      if (std::isfinite(Squares({gradients[begin + u], dim}))) continue;
      return absl::OutOfRangeError(absl::StrCat(
          "Update: the gradient of key ", keys.keys[static_cast<size_t>(begin + u)].key,
          " of table \"", config.name,
          "\" is not finite, so it cannot be clipped; training has diverged: lower the learning "
          "rate, or look for values in the data that are not finite"));
    }
  }
  if (options.max_gradient_norm == 0) return absl::OkStatus();
  if (shuffle != nullptr) {
    const auto mine = std::bit_cast<int64_t>(all_squares);
    std::vector<int64_t> of_ranks(static_cast<size_t>(shuffle->world_size()));
    HOTROW_RETURN_IF_ERROR(shuffle->AllGather({&mine, 1}, of_ranks));
    all_squares = 0;
    for (const int64_t squares : of_ranks) all_squares += std::bit_cast<double>(squares);
  }
  const double norm = std::sqrt(all_squares);
  if (!(norm > static_cast<double>(options.max_gradient_norm))) return absl::OkStatus();
  const auto factor = static_cast<float>(static_cast<double>(options.max_gradient_norm) / norm);
  for (size_t t = 0; t < plan.tables.size(); ++t) {
    const int64_t begin = keys.table_offsets[t];
    const auto dim = static_cast<size_t>(plan.tables[t].layout.dim);
    ParallelFor(ctx.pool, keys.table_offsets[t + 1] - begin, kRowsPerBlock,
                [&](int64_t first, int64_t last) {
                  for (int64_t u = first; u < last; ++u) Scale(factor, {gradients[begin + u], dim});
                });
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
