#include "models/train/non_finite_impl.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/non_finite.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// FirstNonFinite of numbers in host memory.
int64_t FirstNonFinite(std::span<const float> numbers) {
  const auto at =
      std::find_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
  return at == numbers.end() ? -1 : at - numbers.begin();
}

// The ids of one sample's bag, as text: those whose rows are not finite, where they can be read.
std::string IdsOf(const StepParts& parts, const DataFeature& feature,
                  std::span<const uint64_t> bag) {
  const int64_t dim = parts.options.embedding_dim;
  std::vector<float> rows(bag.size() * static_cast<size_t>(dim));
  if (!parts.ranks.many() &&
      parts.tables.ReadRows(feature.table, bag, {rows.data(), std::ssize(bag), dim}).ok()) {
    const int64_t at = FirstNonFinite(rows);
    if (at >= 0) return absl::StrCat("id ", bag[static_cast<size_t>(at / dim)]);
    return absl::StrFormat("the sum of %d finite rows from id %d on", bag.size(), bag[0]);
  }
  return bag.size() == 1 ? absl::StrCat("id ", bag[0])
                         : absl::StrFormat("one of %d ids from %d on", bag.size(), bag[0]);
}

// What is wrong with lookups [begin, end) of `batch`, which are of one sample's bag of the feature
// at `position`.
std::string Describe(const StepParts& parts, const CtrBatch& batch, int32_t position,
                     int64_t sample, int64_t begin, int64_t end) {
  const DataFeature& feature = parts.schema.features[static_cast<size_t>(position)];
  const auto of_bag = [begin, end](const auto& numbers) {
    return std::span(numbers).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
  };
  const std::string place =
      absl::StrFormat("feature \"%s\" of sample %d of the batch (table \"%s\", ", feature.name,
                      sample, feature.table);
  if (!batch.weights.empty() && FirstNonFinite(of_bag(batch.weights)) >= 0) {
    return absl::StrCat(place, "a weight of its ids) is not finite: clean the data");
  }
  return absl::StrCat(
      place, IdsOf(parts, feature, of_bag(batch.values)),
      ") is not finite: updates before this step have made rows overflow; a lower --learning_rate, "
      "a larger --eps or --lr_warmup_steps keep them in range, and a checkpoint of an earlier step "
      "goes on without such rows");
}

// What the pooled embeddings say; empty: all are finite.
absl::StatusOr<std::string> FindPooledRow(const StepParts& parts, const ExecContext& ctx,
                                          const CtrBatch& batch) {
  const int64_t width = parts.tables.pooled_dim();
  HOTROW_ASSIGN_OR_RETURN(const int64_t at, FirstNonFinite(ctx, {parts.buffers.embeddings(),
                                                                 batch.batch_size, width, width}));
  if (at < 0) return std::string();
  const int64_t sample = at / width;
  const std::vector<int32_t> unpooled = parts.model.unpooled_features();
  int64_t columns_before = at % width;
  int32_t position = 0;  // of the feature that has the column; features not pooled have none
  for (;; ++position) {
    if (std::find(unpooled.begin(), unpooled.end(), position) != unpooled.end()) continue;
    columns_before -= parts.options.embedding_dim;
    if (columns_before < 0) break;
  }
  const int64_t bag = position * batch.batch_size + sample;
  return Describe(parts, batch, position, sample, batch.offsets[static_cast<size_t>(bag)],
                  batch.offsets[static_cast<size_t>(bag) + 1]);
}

// What the rows of features that are not pooled say; empty: all are finite.
absl::StatusOr<std::string> FindSequenceRow(const StepParts& parts, const ExecContext& ctx,
                                            const CtrBatch& batch) {
  const std::vector<int32_t> unpooled = parts.model.unpooled_features();
  for (size_t s = 0; s < unpooled.size(); ++s) {
    const CtrModel::Sequence& sequence = parts.buffers.sequences()[s];
    const std::span offsets(sequence.offsets, static_cast<size_t>(batch.batch_size) + 1);
    const int64_t dim = parts.options.embedding_dim;
    HOTROW_ASSIGN_OR_RETURN(
        const int64_t at,
        FirstNonFinite(ctx, {sequence.rows, offsets.back() - offsets.front(), dim, dim}));
    if (at < 0) continue;
    const int64_t lookup = offsets.front() + at / dim;
    const int64_t sample =
        std::upper_bound(offsets.begin(), offsets.end(), lookup) - offsets.begin() - 1;
    return Describe(parts, batch, unpooled[s], sample, lookup, lookup + 1);
  }
  return std::string();
}

// What the parameters say; empty: all are finite.
absl::StatusOr<std::string> FindParameter(CtrModel& model, const ExecContext& ctx) {
  const std::span<const float> all = model.parameters();
  const auto size = std::ssize(all);
  HOTROW_ASSIGN_OR_RETURN(const int64_t at, FirstNonFinite(ctx, {all.data(), 1, size, size}));
  if (at < 0) return std::string();
  const std::string layer = model.NonFiniteAt(ctx, all);
  return absl::StrCat(
      layer.empty() ? absl::StrFormat("dense parameter %d", at)
                    : absl::StrFormat("a parameter of layer \"%s\"", layer),
      " is not finite: an update before this step overflowed it; --max_gradient_norm clips such "
      "updates");
}

absl::StatusOr<std::string> FindInStep(const StepParts& parts, const ExecContext& ctx,
                                       const CtrBatch& batch) {
  // Parameters first: what overflowed theirs went on to the rows.
  HOTROW_ASSIGN_OR_RETURN(std::string found, FindParameter(parts.model, ctx));
  if (!found.empty()) return found;
  HOTROW_ASSIGN_OR_RETURN(found, FindPooledRow(parts, ctx, batch));
  if (!found.empty()) return found;
  HOTROW_ASSIGN_OR_RETURN(found, FindSequenceRow(parts, ctx, batch));
  if (!found.empty()) return found;
  const std::string layer = parts.model.NonFiniteAt(ctx, {});
  return absl::StrCat(
      "rows, dense features and parameters are finite: ",
      layer.empty() ? "a layer"
                    : absl::StrFormat("layer \"%s\" is the first whose output is not, it", layer),
      " overflowed; look for dense features of very different scales, and keep weights in range "
      "with --max_gradient_norm");
}

}  // namespace

std::string FindNonFiniteData(int64_t num_dense, int64_t num_labels, std::span<const float> dense,
                              std::span<const float> labels) {
  const auto bad = std::ranges::find_if(labels, [](float y) { return !(y >= 0 && y <= 1); });
  if (bad != labels.end()) {
    return absl::StrFormat(
        "the label of sample %d of the batch is not a number from 0 to 1: clean the data",
        (bad - labels.begin()) / num_labels);
  }
  if (const int64_t at = FirstNonFinite(dense); at >= 0) {
    return absl::StrFormat(
        "dense feature %d of sample %d of the batch is not finite: clean the data", at % num_dense,
        at / num_dense);
  }
  return std::string();
}

std::string FindNonFinite(const StepParts& parts, const ExecContext& ctx, const CtrBatch& batch) {
  std::string data =
      FindNonFiniteData(parts.schema.num_dense, batch.num_labels, batch.dense, batch.labels);
  return data.empty() ? FindInStep(parts, ctx, batch).value_or("") : data;
}

std::string FindGradient(const ExecContext& ctx, CtrModel* model,
                         std::span<const float> gradients) {
  std::string layer = model->NonFiniteAt(ctx, model->parameters());
  if (layer.empty()) layer = model->NonFiniteAt(ctx, gradients);
  if (layer.empty()) return layer;
  return absl::StrFormat(
      "on the way back layer \"%s\" is the first whose gradient is not finite: weights are too "
      "large; --max_gradient_norm and --weight_decay keep them in range, from an earlier "
      "checkpoint on",
      layer);
}

bool AllFinite(std::span<const float> numbers) {
  // A block at a time without a branch inside, which compilers turn into vectors.
  constexpr size_t kBlock = 64;
  constexpr uint32_t kAllButSign = 0x7fffffff;
  constexpr uint32_t kInfinity = 0x7f800000;
  while (numbers.size() >= kBlock) {
    uint32_t largest = 0;
    for (size_t i = 0; i < kBlock; ++i) {
      largest = std::max(largest, std::bit_cast<uint32_t>(numbers[i]) & kAllButSign);
    }
    if (largest >= kInfinity) return false;
    numbers = numbers.subspan(kBlock);
  }
  return FirstNonFinite(numbers) < 0;
}

bool AllFinite(const MatrixView<const float>& view) {
  if (view.stride == view.cols) {
    return AllFinite(std::span(view.data, static_cast<size_t>(view.rows * view.cols)));
  }
  for (int64_t row = 0; row < view.rows; ++row) {
    if (!AllFinite(view.Row(row))) return false;
  }
  return true;
}

}  // namespace hotrow
