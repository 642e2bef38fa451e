#include "models/train/non_finite_impl.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/device.h"

namespace hotrow {
namespace {

// The first number that is not finite; -1: there is none.
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

// What the pooled embeddings say; empty: all are finite.
std::string FindRow(const StepParts& parts, const CtrBatch& batch) {
  const int64_t dim = parts.options.embedding_dim;
  const int64_t at =
      FirstNonFinite({parts.buffers.embeddings(),
                      static_cast<size_t>(batch.batch_size * parts.tables.pooled_dim())});
  if (at < 0) return std::string();
  const int64_t sample = at / parts.tables.pooled_dim();
  const int64_t position = at % parts.tables.pooled_dim() / dim;
  const DataFeature& feature = parts.schema.features[static_cast<size_t>(position)];
  const int64_t bag = position * batch.batch_size + sample;
  const int64_t begin = batch.offsets[static_cast<size_t>(bag)];
  const int64_t end = batch.offsets[static_cast<size_t>(bag) + 1];
  const std::string place =
      absl::StrFormat("feature \"%s\" of sample %d of the batch (table \"%s\", ", feature.name,
                      sample, feature.table);
  const auto weights = std::span(batch.weights);
  if (!weights.empty() && FirstNonFinite(weights.subspan(static_cast<size_t>(begin),
                                                         static_cast<size_t>(end - begin))) >= 0) {
    return absl::StrCat(place, "a weight of its ids) is not finite: clean the data");
  }
  return absl::StrCat(
      place,
      IdsOf(parts, feature,
            std::span(batch.values)
                .subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin))),
      ") is not finite: updates before this step have made rows overflow; a lower --learning_rate, "
      "a larger --eps or --lr_warmup_steps keep them in range, and a checkpoint of an earlier step "
      "goes on without such rows");
}

}  // namespace

std::string FindNonFinite(const StepParts& parts, const CtrBatch& batch) {
  if (const int64_t at = FirstNonFinite(batch.labels); at >= 0) {
    return absl::StrFormat("the label of sample %d of the batch is not finite: clean the data",
                           at / batch.num_labels);
  }
  if (const int64_t at = FirstNonFinite(batch.dense); at >= 0) {
    return absl::StrFormat(
        "dense feature %d of sample %d of the batch is not finite: clean the data",
        at % parts.schema.num_dense, at / parts.schema.num_dense);
  }
  if (parts.model.device() != Device::kCpu) return std::string();
  if (std::string row = FindRow(parts, batch); !row.empty()) return row;
  if (const int64_t at = FirstNonFinite(parts.model.parameters()); at >= 0) {
    return absl::StrFormat(
        "dense parameter %d is not finite: an update before this step overflowed it; "
        "--max_gradient_norm clips such updates",
        at);
  }
  return "rows, dense features and parameters are finite: a layer overflowed; look for dense "
         "features of very different scales";
}

}  // namespace hotrow
