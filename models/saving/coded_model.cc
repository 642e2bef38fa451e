#include "models/saving/coded_model.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/serving/row_coding.h"
#include "models/saving/blob_files.h"
#include "models/saving/dense_file.h"
#include "models/saving/model_rows.h"
#include "models/saving/partial_dir_impl.h"
#include "models/saving/portable_model_impl.h"
#include "models/saving/portable_tables_writer.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/tables_model.h"
#include "models/saving/vocabulary_file.h"
#include "ops/rows/weights_precision.h"

namespace hotrow {
namespace {

// The larger loss first; equal ones by table and key, so that the order of rows does not matter.
bool LosesMore(const LostRow& a, const LostRow& b) {
  if (a.loss != b.loss) return a.loss > b.loss;
  return a.table != b.table ? a.table < b.table : a.key < b.key;
}

// Keeps the rows that lose most.
class MostLost {
 public:
  explicit MostLost(int64_t size) : size_(static_cast<size_t>(std::max<int64_t>(size, 0))) {}
  void Add(const LostRow& row) {
    if (size_ == 0 || row.loss == 0) return;
    if (rows_.size() == size_) {
      if (!LosesMore(row, rows_.front())) return;
      std::ranges::pop_heap(rows_, LosesMore);
      rows_.pop_back();
    }
    rows_.push_back(row);
    std::ranges::push_heap(rows_, LosesMore);
  }
  std::vector<LostRow> Sorted() && {
    std::ranges::sort(rows_, LosesMore);
    return std::move(rows_);
  }

 private:
  const size_t size_;
  std::vector<LostRow> rows_;  // a heap, the one that loses least in front
};

LostRow LossOf(const RowKey& key, std::span<const float> weights, std::span<const float> kept) {
  double loss = 0;
  double norm = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    const double weight = weights[i];
    loss += (weight - kept[i]) * (weight - kept[i]);
    norm += weight * weight;
  }
  return {.table = key.table, .key = key.key, .loss = std::sqrt(loss), .norm = std::sqrt(norm)};
}

absl::StatusOr<DenseVectors> DenseOf(Env& env, const ModelRows& rows) {
  if (rows.portable.has_value()) return ReadPortableDense(env, rows.dir, *rows.portable);
  return ReadSavedDense(env, rows.model);
}

absl::Status SetPrecision(DensePrecision precision, const std::string& dir, SavedModel* model) {
  if (model->model == kOnnxModel) {
    return absl::FailedPreconditionError(
        absl::StrCat(dir, ": its dense part is ONNX, whose products onnxruntime makes"));
  }
  if (!model->scoring.has_value()) {
    return absl::FailedPreconditionError(absl::StrCat(
        dir,
        ": it was saved by a build that did not record how it evaluates; save it again, by a "
        "run with --init_from and --save_dir"));
  }
  constexpr char kName[] = "precision";
  auto& settings = model->scoring->settings;
  std::erase_if(settings, [&](const auto& setting) { return setting.first == kName; });
  settings.emplace_back(kName, std::string(DensePrecisionName(precision)));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CodedModelSummary> WriteCodedModel(const CodedModelOptions& options) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  const std::string dir = WithoutEndingSlashes(options.dir);
  HOTROW_ASSIGN_OR_RETURN(const ModelRows source,
                          OpenModelRows(env, WithoutEndingSlashes(options.model)));
  PortableModel portable;
  portable.model = source.model;
  portable.tables = source.tables;
  const size_t num_tables = source.tables.size();
  if (options.rows.size() != 1 && options.rows.size() != num_tables) {
    return absl::InvalidArgumentError(absl::StrCat("rows: ", options.rows.size(), " words for the ",
                                                   num_tables, " tables of ", source.dir));
  }
  if (options.precision.has_value()) {
    HOTROW_RETURN_IF_ERROR(SetPrecision(*options.precision, source.dir, &portable.model));
  }
  CodedModelSummary out;
  int64_t columns = 0;
  int64_t longest = 0;
  for (size_t t = 0; t < num_tables; ++t) {
    PortableTable& table = portable.tables[t];
    table.codes = options.rows[options.rows.size() == 1 ? 0 : t];
    columns = std::max<int64_t>(columns, table.dim);
    longest = std::max(longest, table.row_bytes());
    out.row_bytes.push_back(table.row_bytes());
    out.weight_bytes.push_back(table.dim * WeightBytes(table.weights_precision));
  }
  HOTROW_RETURN_IF_ERROR(CheckIsFree(env, dir));
  HOTROW_ASSIGN_OR_RETURN(DenseVectors dense, DenseOf(env, source));
  // What scoring computes with.
  if (!dense.average.empty()) dense.parameters = std::move(dense.average);
  dense.average.clear();
  dense.momentum1.clear();
  dense.momentum2.clear();

  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<PartialDir> partial, PartialDir::Create(env, dir));
  // A half each for the arrays that are written and those that are read.
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<PortableTablesWriter> writer,
      PortableTablesWriter::Create(
          {.dir = partial->path(), .memory_bytes = options.memory_bytes / 2, .env = &env},
          options.shard_bytes, portable.tables));
  std::vector<float> trained(static_cast<size_t>(columns));
  std::vector<float> read(trained.size());
  std::vector<std::byte> kept(static_cast<size_t>(longest));
  MostLost most(options.lost_rows);
  HOTROW_RETURN_IF_ERROR(VisitRows(
      env, source, {.memory_bytes = options.memory_bytes / 2, .store_bytes = options.store_bytes},
      [&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        const PortableTable& table = portable.tables[key.table];
        const RowLayout layout = table.layout();
        const std::span<float> weights(trained.data(), static_cast<size_t>(table.dim));
        const absl::Status encoded =
            EncodeServingRow(*table.codes, layout, row.data(), weights, kept.data());
        if (!encoded.ok()) {
          return {encoded.code(), absl::StrCat("table \"", table.name, "\": the row of key ",
                                               key.key, " ", encoded.message())};
        }
        if (options.lost_rows > 0 && *table.codes != ServingRows::kAsTrained) {
          const std::span<float> decoded(read.data(), weights.size());
          HOTROW_RETURN_IF_ERROR(DecodeServingRow(*table.codes, layout, kept.data(), decoded));
          most.Add(LossOf(key, weights, decoded));
        }
        return writer->Add(key,
                           std::span(kept).first(static_cast<size_t>(out.row_bytes[key.table])));
      }));
  HOTROW_ASSIGN_OR_RETURN(portable.tables, writer->Finish());
  std::vector<PortableDigest> digests;
  for (size_t t = 0; t < num_tables; ++t) {
    const PortableTable& table = portable.tables[t];
    digests.push_back({*table.rows, *table.hash});
    // Hashes are of the rows that were trained; those of an export were compared as they were read.
    const int64_t expected = source.model.tables[t].rows;
    if (expected >= 0 && expected != *table.rows) {
      return absl::DataLossError(absl::StrCat(source.dir, ": table \"", table.name, "\" has ",
                                              *table.rows, " rows, the manifest says ", expected,
                                              "; use a copy of the model"));
    }
  }
  if (source.model.vocabulary.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(std::string bytes, ReadSavedVocabularyBytes(env, source.model));
    portable.model.vocabulary_bytes = std::make_shared<std::string>(std::move(bytes));
  }
  HOTROW_ASSIGN_OR_RETURN(portable.model.blob_bytes, ReadSavedBlobs(env, source.model));
  HOTROW_RETURN_IF_ERROR(WritePortableRest(env, partial->path(), dense, &portable));
  HOTROW_RETURN_IF_ERROR(partial->Commit());

  out.lost = std::move(most).Sorted();
  out.portable.from = source.dir;
  out.portable.to = dir;
  out.portable.model = source.model;
  SummarisePortable(portable.tables, digests, &out.portable);
  return out;
}

}  // namespace hotrow
