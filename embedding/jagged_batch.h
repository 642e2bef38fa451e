#ifndef HOTROW_EMBEDDING_JAGGED_BATCH_H_
#define HOTROW_EMBEDDING_JAGGED_BATCH_H_

#include <cstdint>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"

// The categorical part of a batch, as views of the caller's arrays. Dimensions: F features, B
// samples, N lookups. A bag is one sample's lookups of one feature.

namespace hotrow {

// Ids of a width that the caller has. The key of an int64_t is its 64 bits: of -1 it is 2^64 - 1; a
// table with num_embeddings refuses it. A negative int32_t is refused everywhere: whether its 32
// bits or those of its value as 64 bits were meant, as files have both, it does not say.
using IdSpan =
    std::variant<std::span<const uint64_t>, std::span<const int64_t>, std::span<const int32_t>>;
// Offsets or lengths of bags.
using BagSpan = std::variant<std::span<const int64_t>, std::span<const int32_t>>;

// All features in one pair of arrays, feature-major: all of feature 0, then all of feature 1, ...,
// in the order of EmbeddingCollection::feature_names().
struct JaggedBatch {
  int64_t batch_size = 0;  // B
  IdSpan values;           // [N]
  BagSpan offsets;         // [F*B + 1]: bag (f, b) is values[offsets[f*B + b], [f*B + b + 1])
  std::span<const float> weights;  // [N], or empty: every weight is 1
  BagSpan lengths;                 // [F*B] instead of offsets, which then are empty
  // [N], or empty: no lookup has one. What training makes of them says TableConfig::score; those of
  // other tables are not looked at. Only where some table keeps scores; finite.
  std::span<const float> scores;

  // Whether the arrays fit each other. Errors: InvalidArgument, which names the feature, the sample
  // and the value. What depends on the tables (num_embeddings) Prefetch checks.
  absl::Status Validate(std::span<const std::string> feature_names) const;
};

// One feature of a batch.
struct FeatureBags {
  IdSpan values;                   // [its lookups]
  BagSpan offsets;                 // [B + 1]
  std::span<const float> weights;  // [its lookups], or empty: every weight is 1
  BagSpan lengths;                 // [B] instead of offsets
  std::span<const float> scores;   // [its lookups], or empty; only where its table keeps scores
};

// An order of all features of a collection: EmbeddingCollection::OrderOf makes it from names, once.
class FeatureOrder {
 public:
  FeatureOrder() = default;

 private:
  friend class EmbeddingCollection;
  std::vector<int32_t> position_of_;  // of each feature of the collection
};

// A batch whose features lie apart, as columns of a file do.
struct FeatureBatch {
  int64_t batch_size = 0;  // B
  std::span<const FeatureBags> features;
  const FeatureOrder* order = nullptr;  // of `features`; null: that of feature_names()

  // As that of JaggedBatch, of features in the order of these names, with any `order`.
  absl::Status Validate(std::span<const std::string> feature_names) const;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_JAGGED_BATCH_H_
