#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/shared_allocator.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/views_impl.h"
#include "models/data/ctr_batch.h"
#include "models/data/data_source.h"
#include "models/data/sample_block.h"
#include "models/saving/packed_writer.h"

struct hotrow_packer : hotrow::capi::Handle {
  std::unique_ptr<hotrow::PackedWriter> writer;  // null: it has finished, or failed
  std::vector<std::string> features;
  int64_t num_dense = 0;
  int64_t num_labels = 0;
  hotrow::CtrBatch batch;
};

namespace hotrow::capi {
namespace {

hotrow_packer_options DefaultPackerOptions() {
  hotrow_packer_options out = {};
  out.struct_size = sizeof(out);
  out.block_samples = PackOptions().block_samples;
  return out;
}

absl::StatusOr<DataSchema> SchemaOf(const hotrow_packer_options& options) {
  DataSchema schema;
  schema.name = "packed";
  std::vector<std::string> features;
  std::vector<std::string> tables;
  HOTROW_RETURN_IF_ERROR(TakeTexts(options.features, options.num_features, "features", &features));
  if (options.tables != nullptr) {
    HOTROW_RETURN_IF_ERROR(TakeTexts(options.tables, options.num_features, "tables", &tables));
  }
  if (options.labels != nullptr) {
    schema.labels.clear();
    HOTROW_RETURN_IF_ERROR(TakeTexts(options.labels, options.num_labels, "labels", &schema.labels));
  }
  if (features.empty() || schema.labels.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(features.empty() ? "features" : "labels", ": is empty, must have a name"));
  }
  HOTROW_RETURN_IF_ERROR(CheckCount(options.num_dense, "num_dense", kListMax));
  schema.num_dense = static_cast<int32_t>(options.num_dense);
  if (options.dense != nullptr) {
    HOTROW_RETURN_IF_ERROR(TakeTexts(options.dense, options.num_dense, "dense", &schema.dense));
  }
  for (size_t f = 0; f < features.size(); ++f) {
    const int64_t most = options.max_hotness == nullptr ? 0 : options.max_hotness[f];
    if (most < 0 || most > Sample::kMaxHotness) {
      return absl::InvalidArgumentError(absl::StrCat(
          "max_hotness[", f, "]: is ", most, ", must be in [0, ", Sample::kMaxHotness, "]"));
    }
    if (std::count(features.begin(), features.end(), features[f]) > 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("features[", f, "]: there are two of the name \"", features[f], "\""));
    }
    schema.features.push_back({.name = features[f],
                               .table = tables.empty() ? features[f] : tables[f],
                               .max_hotness = most});
  }
  return schema;
}

// The [B, cols] numbers of a matrix, row by row.
absl::Status TakeNumbers(const hotrow_matrix* matrix, int64_t rows, int64_t cols,
                         std::string_view name, SharedVector<float>* out) {
  out->clear();
  if (cols == 0) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(NotNull(matrix, name));
  HOTROW_ASSIGN_OR_RETURN(const MatrixView<float> view, TakeMatrix(*matrix, name));
  if (view.rows != rows || view.cols != cols) {
    return absl::InvalidArgumentError(absl::StrCat(std::string(name), ": is [", view.rows, ", ",
                                                   view.cols, "], must be [", rows, ", ", cols,
                                                   "]"));
  }
  for (int64_t r = 0; r < rows; ++r) {
    const float* const row = view.data + r * view.stride;  // <= TakeMatrix's size
    out->insert(out->end(), row, row + cols);
  }
  return absl::OkStatus();
}

// Adds `bags` bags that were found to be good.
void AddBags(const IdSpan& values, const BagSpan& offsets, const BagSpan& lengths,
             std::span<const float> weights, bool with_weights, CtrBatch* out) {
  const auto first = static_cast<int64_t>(out->values.size());
  std::visit(
      [&](const auto& ids) { out->values.insert(out->values.end(), ids.begin(), ids.end()); },
      values);
  std::visit(
      [&](const auto& ends) {
        for (size_t i = 1; i < ends.size(); ++i) out->offsets.push_back(first + ends[i]);
      },
      offsets);
  std::visit(
      [&](const auto& each) {
        for (const int64_t length : each) out->offsets.push_back(out->offsets.back() + length);
      },
      lengths);
  if (!with_weights) return;
  out->weights.insert(out->weights.end(), weights.begin(), weights.end());
  out->weights.resize(out->values.size(), 1.0f);
}

absl::Status TakeSamples(const hotrow_batch* in, const hotrow_matrix* dense,
                         const hotrow_matrix* labels, hotrow_packer* packer) {
  HOTROW_ASSIGN_OR_RETURN(const BatchView view, TakeBatch(in, packer->features));
  HOTROW_RETURN_IF_ERROR(view.jagged ? view.all.Validate(packer->features)
                                     : view.features().Validate(packer->features));
  CtrBatch& batch = packer->batch;
  batch.batch_size = view.all.batch_size;
  batch.num_labels = static_cast<int32_t>(packer->num_labels);
  batch.values.clear();
  batch.weights.clear();
  batch.offsets.assign(1, 0);
  const bool has_scores = !view.all.scores.empty() ||
                          std::any_of(view.bags.begin(), view.bags.end(),
                                      [](const auto& bags) { return !bags.scores.empty(); });
  if (has_scores) {
    return absl::InvalidArgumentError("batch.scores: packed data hold none; leave them null");
  }
  if (view.jagged) {
    AddBags(view.all.values, view.all.offsets, view.all.lengths, view.all.weights,
            !view.all.weights.empty(), &batch);
  } else {
    const bool with_weights =
        std::any_of(view.bags.begin(), view.bags.end(),
                    [](const FeatureBags& bags) { return !bags.weights.empty(); });
    for (const FeatureBags& bags : view.bags) {
      AddBags(bags.values, bags.offsets, bags.lengths, bags.weights, with_weights, &batch);
    }
  }
  HOTROW_RETURN_IF_ERROR(
      TakeNumbers(dense, batch.batch_size, packer->num_dense, "dense", &batch.dense));
  return TakeNumbers(labels, batch.batch_size, packer->num_labels, "labels", &batch.labels);
}

absl::Status CheckWrites(const hotrow_packer* packer) {
  HOTROW_RETURN_IF_ERROR(Usable(packer, "packer"));
  if (packer->writer != nullptr) return absl::OkStatus();
  return absl::FailedPreconditionError(
      "packer: has finished, or failed before; begin again with a new one");
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

void hotrow_packer_options_default(hotrow_packer_options* options, uint64_t struct_size) {
  WriteDefault(DefaultPackerOptions(), options, struct_size);
}

hotrow_status hotrow_packer_create(const hotrow_packer_options* options, hotrow_packer** packer) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(packer, "packer"));
    HOTROW_ASSIGN_OR_RETURN(const hotrow_packer_options taken,
                            TakeStruct(options, DefaultPackerOptions(), "options"));
    HOTROW_RETURN_IF_ERROR(NotNull(taken.dir, "options.dir"));
    HOTROW_ASSIGN_OR_RETURN(const DataSchema schema, SchemaOf(taken));
    auto made = std::make_unique<hotrow_packer>();
    for (const DataFeature& feature : schema.features) made->features.push_back(feature.name);
    made->num_dense = schema.num_dense;
    made->num_labels = static_cast<int64_t>(schema.labels.size());
    PackOptions out = {.dir = taken.dir,
                       .block_samples = taken.block_samples,
                       .source = std::string(TextOf(taken.source))};
    HOTROW_RETURN_IF_ERROR(TakeWord(kPackedPrecisionWords, taken.dense_precision,
                                    "options.dense_precision", &out.dense_precision));
    HOTROW_ASSIGN_OR_RETURN(made->writer, PackedWriter::Create(schema, out));
    *packer = made.release();
    return absl::OkStatus();
  });
}

hotrow_status hotrow_packer_append(hotrow_packer* packer, const char* split,
                                   const hotrow_batch* batch, const hotrow_matrix* dense,
                                   const hotrow_matrix* labels) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(CheckWrites(packer));
    HOTROW_RETURN_IF_ERROR(NotNull(split, "split"));
    Split parsed = Split::kTrain;
    HOTROW_RETURN_IF_ERROR(TakeWord(kSplitWords, split, "split", &parsed));
    HOTROW_RETURN_IF_ERROR(TakeSamples(batch, dense, labels, packer));
    // What fails, or throws, may have added a part of the samples: it ends with that.
    std::unique_ptr<PackedWriter> writer = std::move(packer->writer);
    HOTROW_RETURN_IF_ERROR(writer->Append(parsed, packer->batch));
    packer->writer = std::move(writer);
    return absl::OkStatus();
  });
}

hotrow_status hotrow_packer_finish(hotrow_packer* packer) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(CheckWrites(packer));
    const std::unique_ptr<PackedWriter> writer = std::move(packer->writer);
    return writer->Finish({}).status();
  });
}

void hotrow_packer_destroy(hotrow_packer* packer) {
  CallVoid([&] { Destroy(packer); });
}

}  // extern "C"
