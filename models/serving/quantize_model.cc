#include "models/serving/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <ranges>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "embedding/serving/row_coding.h"
#include "models/data/ctr_batch.h"
#include "models/saving/model_rows.h"
#include "models/serving/score_session_impl.h"
#include "models/serving/scorer.h"
#include "models/serving/serving_model_impl.h"

namespace hotrow {
namespace {

using Forms = std::vector<ServingRows>;  // by table

// Evaluates the model with its tables in some forms.
class Evaluation {
 public:
  explicit Evaluation(const QuantizeOptions& options) : options_(options) {
    scoring_ = {.model = options.model,
                .store_bytes = options.store_bytes,
                .max_concurrency = 1,
                .max_batch_size = options.batch_size,
                .env = options.env};
  }

  absl::StatusOr<CtrMetrics> Evaluate(const Forms& forms) {
    ++evaluations_;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<const internal::ServingModel> model,
                            internal::ReadServingModel(scoring_, /*with_rows=*/true, forms));
    HOTROW_RETURN_IF_ERROR(CheckData(*model));
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<internal::ScoreSession> session,
                            internal::ScoreSession::Create(scoring_, *model));
    const int32_t num_tasks = model->recipe.num_tasks;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> reader,
                            options_.data->OpenSplit(options_.split, /*epoch=*/0, 0));
    std::vector<MetricsAccumulator> tasks(static_cast<size_t>(num_tasks));
    CtrBatch batch;
    std::vector<float> logits;
    while (true) {
      HOTROW_RETURN_IF_ERROR(reader->Next(options_.batch_size, &batch));
      if (batch.batch_size == 0) break;
      logits.resize(static_cast<size_t>(batch.batch_size * num_tasks));  // <= batch_size
      HOTROW_RETURN_IF_ERROR(
          session->Score({.sparse = batch.sparse(), .dense = batch.dense}, logits));
      for (int32_t task = 0; task < num_tasks; ++task) {
        tasks[static_cast<size_t>(task)].Add(logits, batch.labels, task, num_tasks);
      }
    }
    std::vector<CtrMetrics> metrics;
    for (const MetricsAccumulator& task : tasks) metrics.push_back(task.Compute());
    if (metrics[0].samples == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the data \"", options_.data->schema().name,
                       "\" have no samples in the split that is to be evaluated"));
    }
    return MeanOverTasks(metrics);
  }
  int64_t evaluations() const { return evaluations_; }

 private:
  absl::Status CheckData(const internal::ServingModel& model) const {
    const DataSchema& schema = options_.data->schema();
    std::vector<std::string> names;
    for (const DataFeature& feature : schema.features) names.push_back(feature.name);
    if (names == model.feature_names && schema.num_dense == model.recipe.num_dense &&
        std::ssize(schema.labels) == model.recipe.num_tasks) {
      return absl::OkStatus();
    }
    return absl::InvalidArgumentError(
        absl::StrCat("the data \"", schema.name, "\" have ", names.size(), " features, ",
                     schema.num_dense, " dense ones and ", schema.labels.size(), " labels; ",
                     model.saved.dir, " was trained on others (", model.feature_names.size(), ", ",
                     model.recipe.num_dense, ", ", model.recipe.num_tasks, ", or of other names)"));
  }

  const QuantizeOptions& options_;
  ScorerOptions scoring_;
  int64_t evaluations_ = 0;
};

// The forms that the rule leads to; fills the losses and metrics of the report.
absl::StatusOr<Forms> Choose(const QuantizeOptions& options,
                             const std::vector<PortableTable>& tables, QuantizeReport* report) {
  std::vector<Forms> tried;
  Forms narrow, forms;
  for (const PortableTable& table : tables) {
    tried.push_back(ServingForms(options.rows, table.layout()));
    narrow.push_back(tried.back().front());
    forms.push_back(ServingRows::kAsTrained);
  }
  if (options.data == nullptr) return narrow;
  Evaluation evaluation(options);
  HOTROW_ASSIGN_OR_RETURN(report->before, evaluation.Evaluate(forms));
  if (options.max_auc_loss.has_value() && std::isnan(report->before->auc)) {
    return absl::InvalidArgumentError(
        "QuantizeOptions.max_auc_loss cannot be measured: all labels of the data are of one class, "
        "and AUC needs both; choose another split or other data");
  }
  HOTROW_ASSIGN_OR_RETURN(report->after, evaluation.Evaluate(narrow));
  const auto keeps_bound = [&](const CtrMetrics& metrics) {
    return !options.max_auc_loss.has_value() ||
           report->before->auc - metrics.auc <= *options.max_auc_loss;
  };
  if (keeps_bound(*report->after)) {
    forms = narrow;
  } else {
    struct Narrowing {
      size_t table;
      double loss_per_byte;
    };
    std::vector<Narrowing> order;
    for (size_t t = 0; t < tables.size(); ++t) {
      if (narrow[t] == ServingRows::kAsTrained) continue;
      Forms one = forms;
      one[t] = narrow[t];
      HOTROW_ASSIGN_OR_RETURN(const CtrMetrics metrics, evaluation.Evaluate(one));
      const double loss = report->before->auc - metrics.auc;
      report->tables[t].auc_loss = loss;
      const RowLayout layout = tables[t].layout();
      const int64_t saved =
          report->tables[t].num_rows *
          (ServingRowBytes(ServingRows::kAsTrained, layout) - ServingRowBytes(narrow[t], layout));
      order.push_back({t, std::max(loss, 0.0) / static_cast<double>(std::max<int64_t>(saved, 1))});
    }
    std::ranges::stable_sort(order, {}, &Narrowing::loss_per_byte);
    report->after = report->before;
    for (const Narrowing& next : order) {
      for (const ServingRows form : tried[next.table]) {
        if (form == ServingRows::kAsTrained) break;
        Forms with = forms;
        with[next.table] = form;
        HOTROW_ASSIGN_OR_RETURN(const CtrMetrics metrics, evaluation.Evaluate(with));
        if (!keeps_bound(metrics)) continue;
        forms = std::move(with);
        report->after = metrics;
        break;
      }
    }
  }
  report->evaluations = evaluation.evaluations();
  return forms;
}

}  // namespace

absl::Status QuantizeOptions::Validate() const {
  if (rows == ServingRows::kAsTrained) {
    return absl::InvalidArgumentError(
        "QuantizeOptions.rows must be narrower than as_trained: fp16, bf16, int8 or int4");
  }
  if (batch_size < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("QuantizeOptions.batch_size must be at least 1, is ", batch_size));
  }
  if (!max_auc_loss.has_value()) return absl::OkStatus();
  if (data == nullptr) {
    return absl::InvalidArgumentError(
        "QuantizeOptions.max_auc_loss needs data that the loss is measured on");
  }
  if (*max_auc_loss >= 0 && *max_auc_loss <= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("QuantizeOptions.max_auc_loss must lie in [0, 1], is ", *max_auc_loss));
}

absl::StatusOr<QuantizeReport> QuantizeModel(const QuantizeOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  Env& env = options.env != nullptr ? *options.env : PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(const ModelRows source, OpenModelRows(env, options.model));
  QuantizeReport report;
  for (const PortableTable& table : source.tables) report.tables.push_back({.name = table.name});
  if (options.data != nullptr && options.max_auc_loss.has_value()) {
    // What narrowing a table saves.
    HOTROW_RETURN_IF_ERROR(VisitRows(
        env, source, {.memory_bytes = options.memory_bytes, .store_bytes = options.store_bytes},
        [&](const RowKey& key, std::span<const std::byte>) {
          ++report.tables[key.table].num_rows;
          return absl::OkStatus();
        }));
  }
  HOTROW_ASSIGN_OR_RETURN(const Forms forms, Choose(options, source.tables, &report));
  HOTROW_ASSIGN_OR_RETURN(report.written, WriteCodedModel({.model = options.model,
                                                           .dir = options.dir,
                                                           .rows = forms,
                                                           .shard_bytes = options.shard_bytes,
                                                           .memory_bytes = options.memory_bytes,
                                                           .store_bytes = options.store_bytes,
                                                           .lost_rows = options.lost_rows,
                                                           .env = options.env}));
  for (size_t t = 0; t < forms.size(); ++t) {
    QuantizeReport::Table& table = report.tables[t];
    table.rows = forms[t];
    table.num_rows = report.written.portable.tables[t].rows;
    table.weight_bytes = table.num_rows * report.written.weight_bytes[t];
    table.bytes = table.num_rows * report.written.row_bytes[t];
  }
  return report;
}

}  // namespace hotrow
