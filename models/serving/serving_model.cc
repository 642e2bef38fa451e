#include <algorithm>
#include <limits>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/check.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "embedding/serving/row_coding.h"
#include "models/data/table_schema_text.h"
#include "models/delta/chain_head_impl.h"
#include "models/delta/delta_chain.h"
#include "models/delta/delta_manifest.h"
#include "models/saving/blob_files.h"
#include "models/saving/checkpoint.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/saved_part.h"
#include "models/saving/scoring_options.h"
#include "models/saving/store_paths_impl.h"
#include "models/saving/tables_model.h"
#include "models/saving/training_state.h"
#include "models/saving/vocabulary_file.h"
#include "models/serving/score_session_impl.h"
#include "models/serving/serving_model_impl.h"

namespace hotrow::internal {
namespace {

constexpr char kSaveAnew[] =
    "it was saved by a build that did not record this; train a step from it, with --init_from and "
    "--save_dir";

std::set<std::string> NamesOf(const std::string& text) {
  return absl::StrSplit(text, ',', absl::SkipEmpty());
}

bool SameStart(const std::optional<Initializer>& a, const std::optional<Initializer>& b) {
  if (!a.has_value() || !b.has_value()) return a.has_value() == b.has_value();
  return a->kind == b->kind && a->value == b->value;
}

// Reads one model, step by step: what is refused is refused before its rows are read.
class ModelReader {
 public:
  // chain: that the model is; none: it is no chain.
  ModelReader(const ScorerOptions& options, std::span<const ServingRows> table_rows,
              std::optional<DeltaChain> chain)
      : options_(options),
        table_rows_(table_rows),
        env_(options.env != nullptr ? *options.env : PosixEnv()),
        chain_(std::move(chain)) {}

  absl::StatusOr<std::unique_ptr<ServingModel>> Read(bool with_rows) {
    HOTROW_RETURN_IF_ERROR(ReadManifest());
    HOTROW_RETURN_IF_ERROR(FindSettings());
    HOTROW_RETURN_IF_ERROR(MakeRecipe());
    HOTROW_RETURN_IF_ERROR(ReadSchema());
    HOTROW_RETURN_IF_ERROR(ReadDense());
    HOTROW_RETURN_IF_ERROR(PlaceFeatures());
    if (with_rows) HOTROW_RETURN_IF_ERROR(ReadRows());
    return std::move(model_);
  }

 private:
  SavedModel& saved() { return model_->saved; }
  absl::Status Refused(std::string_view what) {
    return absl::FailedPreconditionError(absl::StrCat(saved().dir, ": ", std::string(what)));
  }

  absl::Status ReadManifest() {
    if (chain_.has_value()) {
      HOTROW_ASSIGN_OR_RETURN(ChainHead head, ReadChainHead(env_, *chain_));
      portable_ = std::move(head.portable);
      dense_ = std::move(head.dense);
      delta_tables_ = std::move(head.tables);
      saved() = portable_->model;
      saved().dir = chain_->dir;
      model_->link = chain_->head();
      return absl::OkStatus();
    }
    HOTROW_ASSIGN_OR_RETURN(const bool is_portable, IsPortableModel(env_, options_.model));
    if (!is_portable) {
      HOTROW_ASSIGN_OR_RETURN(saved(), ReadCheckpoint(env_, options_.model));
      return absl::OkStatus();
    }
    HOTROW_ASSIGN_OR_RETURN(const std::string before, ManifestDigest());
    HOTROW_ASSIGN_OR_RETURN(portable_,
                            ReadPortableManifest(env_, options_.model, /*edited=*/false));
    // Unless another model has just taken its place.
    HOTROW_ASSIGN_OR_RETURN(const std::string after, ManifestDigest());
    if (before == after) source_ = absl::StrCat("portable ", before);
    saved() = portable_->model;
    saved().dir = options_.model;
    return absl::OkStatus();
  }

  absl::StatusOr<std::string> ManifestDigest() {
    HOTROW_ASSIGN_OR_RETURN(
        const std::string text,
        ReadWholeFile(env_, ManifestPath(WithoutEndingSlashes(options_.model)), kManifestBytesMax));
    return LinkDigest(text).ToHex();
  }

  // ServingTablesOptions::rows_source: what is said of the rows where they are from.
  std::string RowsSource() {
    if (chain_.has_value()) return RowsSourceOf(model_->link.digest);
    if (portable_.has_value()) return source_;
    // A snapshot's identity stands for its rows; lines say which of them count.
    const std::vector<UniqueId> identities = SourceOf(saved());
    if (identities.empty()) return "";
    std::string out = "snapshots";
    for (const UniqueId& identity : identities) absl::StrAppend(&out, " ", identity.ToHex());
    for (const SavedModel::Table& table : saved().tables) {
      absl::StrAppend(&out, " age ", table.lines.age);
      for (const ScoreLine& line : table.lines.scores) {
        absl::StrAppend(&out, " ", line.step, ":", line.range);
      }
    }
    return out;
  }

  absl::Status FindSettings() {
    const SavedModel& model = saved();
    if (model.scoring.has_value()) {
      return ApplyScoringSettings(model.scoring->settings, model.dir, &settings_);
    }
    if (model.training != nullptr) {
      return ApplyScoringSettings(model.training->settings, model.dir, &settings_);
    }
    model_->notes.emplace_back(
        "saved by a build that did not record how it evaluates: products are made in fp32, and the "
        "first values of keys without a row do not decay");
    return absl::OkStatus();
  }

  absl::Status MakeRecipe() {
    const SavedModel& model = saved();
    ModelRecipe& recipe = model_->recipe;
    recipe.model = model.model;
    recipe.shape = model.shape;
    recipe.num_dense = model.num_dense;
    for (size_t f = 0; f < model.features.size(); ++f) {
      recipe.features.push_back(
          {.name = model.features[f].name,
           .table = model.features[f].table,
           .max_hotness = model.scoring ? model.scoring->features[f].max_hotness : 0});
    }
    if (model.scoring.has_value()) {
      model_->labels = model.scoring->labels;
      recipe.num_tasks = static_cast<int32_t>(std::max<size_t>(model_->labels.size(), 1));
    } else if (options_.create_model == nullptr &&
               (model.model == "mmoe" || model.model == "din")) {
      return Refused(absl::StrCat("how many ", model.model == "mmoe" ? "tasks" : "values", " its ",
                                  model.model == "mmoe" ? "labels" : "histories",
                                  " have is not known: ", kSaveAnew));
    }
    if (model.tables.empty()) return Refused("it has no tables");
    recipe.table_columns = model.tables[0].dim;
    const bool is_of_zoo = options_.create_model == nullptr && !IsOnnx();
    if (is_of_zoo && model.num_parameters == 0) {
      return Refused(
          "it has tables alone, as Python and C save them, and no dense part to score with; "
          "hotrow.torch.export writes both of a model of PyTorch");
    }
    for (const SavedModel::Table& table : model.tables) {
      if (table.dim == recipe.table_columns || !is_of_zoo) continue;
      return Refused(absl::StrCat("tables \"", model.tables[0].name, "\" and \"", table.name,
                                  "\" differ in their columns; no model here has such tables"));
    }
    recipe.seed = model.seed.value_or(0);
    recipe.max_batch_size = options_.max_batch_size;
    model_->trained_precision = settings_.precision;
    model_->trained_rows = settings_.serve_rows;
    // Training on a GPU may have rounded to TF32 or fp16, which no CPU has.
    const bool of_gpus = settings_.precision == DensePrecision::kTf32 ||
                         settings_.precision == DensePrecision::kFp16;
    const DensePrecision trained = of_gpus ? DensePrecision::kFp32 : settings_.precision;
    recipe.precision = options_.precision.value_or(trained);
    if (IsOnnx() && recipe.precision != DensePrecision::kFp32) {
      return Refused(
          "its dense part is ONNX, whose products onnxruntime makes; leave "
          "ScorerOptions.precision out");
    }
    return absl::OkStatus();
  }

  absl::Status ReadSchema() {
    const SavedModel& model = saved();
    if (!model.scoring.has_value() || model.scoring->table_schema.empty()) return absl::OkStatus();
    const std::string where = absl::StrCat(model.dir, ": the schema of its data");
    absl::StatusOr<TableSchema> schema = ParseTableSchemaText(model.scoring->table_schema, where);
    if (!schema.ok()) {
      return absl::FailedPreconditionError(
          absl::StrCat(std::string(schema.status().message()), "; use a newer hotrow"));
    }
    model_->schema = *std::move(schema);
    TableSchema& own = *model_->schema;
    own.reads_labels = false;
    if (std::ssize(own.dense) != model.num_dense ||
        own.categorical.size() != model.features.size()) {
      return Refused("the schema of its data is of other features than its manifest");
    }
    SavedModel of_vocabulary = model;
    if (chain_.has_value()) {
      of_vocabulary = chain_->base.model;
      of_vocabulary.dir = chain_->base_dir();
    }
    HOTROW_ASSIGN_OR_RETURN(model_->vocabulary, ReadSavedVocabulary(env_, of_vocabulary));
    model_->line_columns = UnlabelledColumns(own);
    HOTROW_ASSIGN_OR_RETURN(
        RowParser parser,
        RowParser::Create(own, model_->line_columns,
                          model_->vocabulary.empty() ? nullptr : &model_->vocabulary));
    model_->parser.emplace(std::move(parser));
    return absl::OkStatus();
  }

  absl::Status ReadDense() {
    if (portable_.has_value()) {
      if (!chain_.has_value()) {
        HOTROW_ASSIGN_OR_RETURN(dense_, ReadPortableDense(env_, options_.model, *portable_));
      }
    } else {
      HOTROW_ASSIGN_OR_RETURN(dense_, ReadSavedDense(env_, saved()));
    }
    model_->parameters = std::move(dense_.average.empty() ? dense_.parameters : dense_.average);
    return IsOnnx() ? ReadOnnx() : absl::OkStatus();
  }

  bool IsOnnx() { return saved().model == kOnnxModel && options_.create_model == nullptr; }

  absl::Status ReadOnnx() {
    const auto blob = std::ranges::find(saved().blobs, kOnnxBlob, &SavedModel::Blob::name);
    if (chain_.has_value() || blob == saved().blobs.end()) {
      return Refused(absl::StrCat("it has no dense part, the blob \"", kOnnxBlob,
                                  "\"; give a directory that hotrow.torch.export has written"));
    }
    HOTROW_ASSIGN_OR_RETURN(const std::string file, ReadSavedBlob(env_, saved(), *blob));
    OnnxDense::Columns columns = {.dense = saved().num_dense};
    for (const SavedModel::Feature& feature : saved().features) {
      columns.embeddings += TableOf(feature)->dim;
    }
    const std::string where = absl::StrCat(saved().dir, "/", blob->file, " (", kOnnxBlob, ")");
    HOTROW_ASSIGN_OR_RETURN(model_->onnx,
                            OnnxDense::Open(options_.onnxruntime, file, where, columns));
    return absl::OkStatus();
  }

  std::vector<SavedModel::Table>::const_iterator TableOf(const SavedModel::Feature& feature) {
    return std::ranges::find(std::as_const(saved().tables), feature.table,
                             &SavedModel::Table::name);
  }

  // The dense part says which features are not pooled.
  absl::Status PlaceFeatures() {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<CtrModel> dense, NewDensePart(options_, *model_));
    if (saved().scoring.has_value() && dense->num_tasks() != model_->recipe.num_tasks) {
      return Refused(absl::StrCat("it has ", model_->recipe.num_tasks, " labels, and a ",
                                  saved().model, " gives ", dense->num_tasks(), " logits"));
    }
    model_->recipe.num_tasks = dense->num_tasks();
    std::set<std::string> means;
    for (const auto& [flag, value] : saved().shape) {
      if (value == "mean") means.insert(flag);
    }
    const std::vector<int32_t> unpooled = dense->unpooled_features();
    for (size_t f = 0; f < saved().features.size(); ++f) {
      ServingFeature feature = {.name = saved().features[f].name};
      if (means.contains("pooling") || means.contains(kOnnxPooling + feature.name)) {
        feature.pooling = Pooling::kMean;
      }
      const auto table = TableOf(saved().features[f]);
      feature.table = static_cast<uint32_t>(table - saved().tables.begin());
      feature.dim = table->dim;
      const auto at = std::find(unpooled.begin(), unpooled.end(), static_cast<int32_t>(f));
      if (at != unpooled.end()) {
        feature.pooling = Pooling::kNone;
        feature.unpooled_index = static_cast<int32_t>(at - unpooled.begin());
        feature.max_hotness = model_->recipe.features[f].max_hotness;
      } else {
        feature.pooled_offset = model_->pooled_dim;
        model_->pooled_dim += feature.dim;
      }
      // Bounds of all features of a table: it takes the widest, and none where one has none.
      if (saved().scoring.has_value()) feature.num_embeddings = BoundOf(saved().features[f].table);
      feature.kept = model_->vocabulary.Find(saved().features[f].table);
      model_->feature_names.push_back(feature.name);
      model_->features.push_back(std::move(feature));
    }
    model_->num_unpooled = static_cast<int32_t>(unpooled.size());
    return absl::OkStatus();
  }

  int64_t BoundOf(const std::string& table) {
    int64_t bound = -1;
    for (size_t f = 0; f < saved().features.size(); ++f) {
      if (saved().features[f].table != table) continue;
      const int64_t own = saved().scoring->features[f].num_embeddings;
      bound = own == 0 || bound == 0 ? 0 : std::max(bound, own);
    }
    return std::max<int64_t>(bound, 0);
  }

  // Tables whose features are all read only do not decay.
  bool IsFrozen(const std::string& table) const {
    const std::set<std::string> tables = NamesOf(settings_.frozen_tables);
    const std::set<std::string> features = NamesOf(settings_.read_only_features);
    if (tables.contains(table)) return true;
    const auto& all = model_->saved.features;
    return std::all_of(all.begin(), all.end(), [&](const SavedModel::Feature& feature) {
      return feature.table != table || features.contains(feature.name);
    });
  }

  // How a table is kept: codes stay what they are.
  absl::StatusOr<ServingRows> RowsOf(size_t t, const PortableTable& table) {
    ServingRows asked = table_rows_.empty() ? options_.rows : table_rows_[t];
    // As they were trained is as the run read them, which rounded them for this.
    const bool as_read = table_rows_.empty() && !table.codes.has_value();
    if (as_read && asked == ServingRows::kAsTrained) asked = settings_.serve_rows;
    const ServingRows form = ServingForm(asked, table.layout());
    if (!table.codes.has_value()) return form;
    if (asked == ServingRows::kAsTrained || asked == *table.codes || form == *table.codes) {
      return *table.codes;
    }
    return Refused(absl::StrCat("table \"", table.name, "\" has its rows in ",
                                std::string(WordOf(kServingRowsWords, *table.codes)),
                                ", and they were asked for in ",
                                std::string(WordOf(kServingRowsWords, asked)),
                                "; leave ScorerOptions.rows out, or give the model that this one "
                                "was made of"));
  }

  absl::StatusOr<ServingTablesOptions> TablesOptions(std::span<const PortableTable> tables) {
    const SavedModel& model = saved();
    ServingTablesOptions out;
    out.seed = model.seed.value_or(0);
    out.budget = options_.budget;
    out.rows_dir = options_.rows_dir;
    out.rows_source = RowsSource();
    out.readers = std::max(options_.max_concurrency, 1);
    out.stop = options_.stop;
    out.env = &env_;
    out.keeps_steps = chain_.has_value();
    out.memory_bytes =
        options_.memory_bytes > 0 ? options_.memory_bytes : std::numeric_limits<int64_t>::max();
    if (model.training != nullptr) {
      out.first_step = model.training->first_step;
      out.learning_rates = model.training->learning_rates;
      out.rows_missed_steps = model.training->rows_missed_steps();
    } else if (model.scoring.has_value()) {
      out.first_step = model.scoring->first_step;
      out.learning_rates = model.scoring->learning_rates;
    }
    bool first_values_known = model.seed.has_value();
    for (size_t t = 0; t < tables.size(); ++t) {
      HOTROW_ASSIGN_OR_RETURN(const ServingRows kept, RowsOf(t, tables[t]));
      ServingTable table = {.name = tables[t].name,
                            .rows = kept,
                            .layout = tables[t].layout(),
                            .optimizer = settings_.table_optimizer,
                            .initializer = {InitializerKind::kZeros, 0}};
      table.optimizer.kind = tables[t].optimizer;
      if (IsFrozen(table.name)) table.optimizer.weight_decay_mode = WeightDecayMode::kL2;
      if (model.tables[t].initializer.has_value()) {
        table.initializer = *model.tables[t].initializer;
      } else {
        first_values_known = false;
      }
      out.tables.push_back(std::move(table));
    }
    out.reader_bytes = ScoreSession::BytesOf(options_, *model_) + ServingTables::ScratchBytes(out);
    if (!first_values_known) {
      model_->notes.emplace_back(
          "the manifest does not say what rows begin with: keys without a row read zeros");
      for (ServingTable& table : out.tables) table.initializer = {InitializerKind::kZeros, 0};
    }
    return out;
  }

  absl::Status ReadRows() {
    std::vector<PortableTable> tables;
    PortableTablesOptions arrays = {.dir = options_.model, .env = &env_};
    if (portable_.has_value()) {
      tables = portable_->tables;
    } else {
      HOTROW_ASSIGN_OR_RETURN(tables, TablesOf(saved()));
    }
    HOTROW_ASSIGN_OR_RETURN(ServingTablesOptions rows, TablesOptions(tables));
    HOTROW_ASSIGN_OR_RETURN(const AgedRows aged, AgedRows::Of(saved()));
    if (chain_.has_value()) {
      HOTROW_RETURN_IF_ERROR(ReadChainRows(std::move(rows), aged));
      chain_->deltas.clear();
      model_->chain = std::move(chain_);
      return absl::OkStatus();
    }
    if (portable_.has_value()) {
      HOTROW_ASSIGN_OR_RETURN(rows.expected_rows, CheckPortableTables(arrays, tables));
    } else if (std::ranges::all_of(saved().tables, [](const auto& t) { return t.rows >= 0; })) {
      for (const SavedModel::Table& table : saved().tables) {
        rows.expected_rows.push_back(table.rows);
      }
    }
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ServingTables::Builder> builder,
                            ServingTables::Builder::Create(rows));
    if (builder->has_rows()) return Finish(*builder);
    if (portable_.has_value()) {
      HOTROW_RETURN_IF_ERROR(
          ReadPortableTables(arrays, tables, [&](const PortableRows& part) -> absl::Status {
            for (size_t i = 0; i < part.keys.size(); ++i) {
              const PortableTable& table = tables[part.keys[i].table];
              const std::span row(part.rows[i], static_cast<size_t>(table.row_bytes()));
              HOTROW_RETURN_IF_ERROR(table.codes.has_value() ? builder->AddKept(part.keys[i], row)
                                                             : builder->Add(part.keys[i], row));
            }
            return absl::OkStatus();
          }).status());
      return Finish(*builder);
    }
    for (int32_t rank = 0; rank < std::ssize(saved().parts); ++rank) {
      HOTROW_ASSIGN_OR_RETURN(
          const std::unique_ptr<SnapshotReader> reader,
          OpenSavedPart(env_, saved(), rank, options_.store_bytes, "ScorerOptions.store_bytes"));
      HOTROW_RETURN_IF_ERROR(
          reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
            HOTROW_RETURN_IF_ERROR(CheckRankOfRow(saved(), rank, key));
            return aged.Has(key, row) ? absl::OkStatus() : builder->Add(key, row);
          }));
    }
    return Finish(*builder);
  }

  absl::Status Finish(ServingTables::Builder& builder, bool checks = true) {
    HOTROW_ASSIGN_OR_RETURN(model_->tables, builder.Finish());
    for (std::string& note : model_->tables->notes()) model_->notes.push_back(std::move(note));
    // A portable model's were counted and compared as they were read.
    if (!checks || (portable_.has_value() && !chain_.has_value())) return absl::OkStatus();
    return CheckRows();
  }

  // The sources of links whose rows the deltas behind them make those of the head, the newest
  // first.
  std::vector<std::string> OlderSources(const ServingTablesOptions& rows) const {
    std::vector<std::string> out;
    const auto changes_all = [](const ServingTable& table) {
      return table.optimizer.weight_decay_mode == WeightDecayMode::kTable;
    };
    if (std::ranges::any_of(rows.tables, changes_all)) return out;
    for (size_t d = chain_->deltas.size(); d-- > 0;) {
      // As WhyOpenedAnew: their rows go otherwise, too.
      for (const SavedModel::Table& table : chain_->deltas[d].model.tables) {
        if (!table.lines.scores.empty()) return out;
      }
      out.push_back(
          RowsSourceOf(d == 0 ? chain_->manifest.base_link : chain_->deltas[d - 1].digest));
    }
    return out;
  }

  // Makes of rows of a link so many deltas before the head those of the head.
  absl::Status CatchUp(size_t behind) {
    const auto deltas = std::span<const DeltaManifest>(chain_->deltas).last(behind);
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ServingTables::Update> update,
                            ServingTables::Update::Begin(model_->tables.get(), SizesOf(deltas),
                                                         RowsSourceOf(model_->link.digest)));
    HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge, MergeDeltas(env_, *chain_, deltas, delta_tables_));
    while (!merge.done()) {
      HOTROW_RETURN_IF_ERROR(merge.erased() ? update->Erase(merge.key())
                                            : update->Set(merge.key(), merge.row()));
      HOTROW_RETURN_IF_ERROR(merge.Next());
    }
    HOTROW_RETURN_IF_ERROR(update->Stage().status());
    update->Fold();
    return absl::OkStatus();
  }

  // The base's rows, then in their places what all deltas together have changed.
  absl::Status ReadChainRows(ServingTablesOptions rows, const AgedRows& aged) {
    const PortableTablesOptions arrays = {.dir = chain_->base_dir(), .env = &env_};
    HOTROW_ASSIGN_OR_RETURN(rows.expected_rows, CheckPortableTables(arrays, chain_->base.tables));
    for (size_t t = 0; t < rows.expected_rows.size(); ++t) {
      rows.expected_rows[t] = std::max(rows.expected_rows[t], saved().tables[t].rows);
    }
    if (!rows.rows_dir.empty()) rows.older_sources = OlderSources(rows);
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<ServingTables::Builder> builder,
                            ServingTables::Builder::Create(rows));
    if (builder->has_rows()) {
      const size_t behind = builder->rows_found();
      HOTROW_RETURN_IF_ERROR(Finish(*builder, /*checks=*/behind == 0));
      return behind == 0 ? absl::OkStatus() : CatchUp(behind);
    }
    BaseRows base(*chain_, delta_tables_);
    HOTROW_RETURN_IF_ERROR(
        ReadPortableTables(arrays, chain_->base.tables,
                           [&](const PortableRows& part) -> absl::Status {
                             for (size_t i = 0; i < part.keys.size(); ++i) {
                               const auto row = base.Of(part.keys[i].table, part.rows[i]);
                               if (aged.Has(part.keys[i], row)) continue;
                               HOTROW_RETURN_IF_ERROR(builder->Add(part.keys[i], row));
                             }
                             return absl::OkStatus();
                           })
            .status());
    HOTROW_ASSIGN_OR_RETURN(DeltaMerge merge,
                            MergeDeltas(env_, *chain_, chain_->deltas, delta_tables_));
    while (!merge.done()) {
      const bool gone = merge.erased() || aged.Has(merge.key(), merge.row());
      HOTROW_RETURN_IF_ERROR(gone ? builder->Erase(merge.key())
                                  : builder->Set(merge.key(), merge.row()));
      HOTROW_RETURN_IF_ERROR(merge.Next());
    }
    return Finish(*builder);
  }

  absl::Status CheckRows() {
    for (size_t t = 0; t < saved().tables.size(); ++t) {
      const int64_t found = model_->tables->rows(static_cast<uint32_t>(t));
      const int64_t expected = saved().tables[t].rows;
      if (expected < 0 || expected == found) continue;
      return absl::DataLossError(absl::StrCat(saved().dir, ": table \"", saved().tables[t].name,
                                              "\" has ", found, " rows, the manifest says ",
                                              expected, "; use a copy of the model"));
    }
    return absl::OkStatus();
  }

  const ScorerOptions& options_;
  const std::span<const ServingRows> table_rows_;
  Env& env_;
  std::optional<DeltaChain> chain_;
  std::unique_ptr<ServingModel> model_ = std::make_unique<ServingModel>();
  std::optional<PortableModel> portable_;
  DenseVectors dense_;                    // of a portable model or a chain
  std::vector<DeltaTable> delta_tables_;  // of a chain
  ScoringOptions settings_;
  std::string source_;  // of a portable model
};

}  // namespace

int64_t ServingModel::rows() const {
  int64_t sum = 0;
  for (size_t t = 0; t < saved.tables.size(); ++t) sum += tables->rows(static_cast<uint32_t>(t));
  return sum;
}

std::vector<ServingTables::Update::Size> SizesOf(std::span<const DeltaManifest> deltas) {
  const SavedModel& last = deltas.back().model;
  std::vector<ServingTables::Update::Size> out;
  for (size_t t = 0; t < last.tables.size(); ++t) {
    ServingTables::Update::Size size = {.age_line = last.tables[t].lines.age,
                                        .rows_after = last.tables[t].rows};
    for (const DeltaManifest& delta : deltas) {
      for (const DeltaPart& part : delta.parts) {
        size.rows += part.rows[t];
        size.erased += part.erased[t];
      }
    }
    out.push_back(size);
  }
  return out;
}

std::string RowsSourceOf(const Hash128& link) { return absl::StrCat("chain ", link.ToHex()); }

std::string WhyOpenedAnew(const ServingModel& model, const DeltaManifest& delta) {
  for (const ServingTable& table : model.tables->tables()) {
    if (table.optimizer.weight_decay_mode != WeightDecayMode::kTable) continue;
    return absl::StrCat("table \"", table.name,
                        "\" decays as a whole, so each step changes all rows");
  }
  const SavedModel& then = model.saved;
  const SavedModel& now = delta.model;
  if (then.seed != now.seed) return "its seed is another one";
  if (then.num_dense != now.num_dense) return "it has another number of dense features";
  for (size_t t = 0; t < then.tables.size(); ++t) {
    // Rows for serving keep their last steps, and no scores.
    if (!now.tables[t].lines.scores.empty()) {
      return absl::StrCat("rows of table \"", now.tables[t].name, "\" go by their scores");
    }
    if (SameStart(then.tables[t].initializer, now.tables[t].initializer)) continue;
    return absl::StrCat("rows of table \"", then.tables[t].name, "\" begin otherwise");
  }
  // Where a delta does not say it, the base counts.
  if (!now.scoring.has_value()) return "";
  if (!then.scoring.has_value()) return "it says how it evaluates, which the model did not";
  if (then.scoring->labels != now.scoring->labels ||
      then.scoring->features != now.scoring->features ||
      then.scoring->table_schema != now.scoring->table_schema) {
    return "its data mean something else";
  }
  ScoringOptions settings;
  const absl::Status known = ApplyScoringSettings(now.scoring->settings, now.dir, &settings);
  if (!known.ok()) return std::string(known.message());
  if (settings.precision != model.trained_precision) return "its products have another precision";
  if (settings.serve_rows != model.trained_rows) return "its rows are read in another form";
  if (settings.table_optimizer.weight_decay_mode == WeightDecayMode::kTable) {
    return "its tables decay as a whole";
  }
  return "";
}

absl::StatusOr<std::unique_ptr<ServingModel>> ReadServingModel(
    const ScorerOptions& options, bool with_rows, std::span<const ServingRows> table_rows) {
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(const bool is_chain, IsChain(env, options.model));
  if (!is_chain) return ModelReader(options, table_rows, std::nullopt).Read(with_rows);
  std::unique_ptr<ServingModel> out;
  HOTROW_RETURN_IF_ERROR(UseChain(env, options.model, [&](DeltaChain chain) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(out,
                            ModelReader(options, table_rows, std::move(chain)).Read(with_rows));
    return absl::OkStatus();
  }));
  return out;
}

absl::StatusOr<std::unique_ptr<CtrModel>> NewDensePart(const ScorerOptions& options,
                                                       const ServingModel& model) {
  std::unique_ptr<CtrModel> dense;
  if (options.create_model != nullptr) {
    HOTROW_ASSIGN_OR_RETURN(dense, options.create_model(model.recipe));
  } else if (model.onnx != nullptr) {
    dense = NewOnnxModel(model.onnx);
  } else {
    HOTROW_ASSIGN_OR_RETURN(dense, CreateModelOfKind(model.recipe));
  }
  const std::span<float> parameters = dense->parameters();
  if (parameters.size() != model.parameters.size()) {
    return absl::FailedPreconditionError(absl::StrCat(
        model.saved.dir, ": it has ", model.parameters.size(), " dense parameters, and a ",
        model.recipe.model, " of its shape ", parameters.size(), "; use the hotrow that wrote it"));
  }
  std::copy(model.parameters.begin(), model.parameters.end(), parameters.begin());
  return dense;
}

}  // namespace hotrow::internal
