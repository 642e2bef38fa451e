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
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<internal::ServingModel> model, Read(forms));
    std::vector<Scored> scored;
    HOTROW_RETURN_IF_ERROR(AddSession(*model, &scored));
    HOTROW_RETURN_IF_ERROR(ScoreData(model->recipe.num_tasks, scored, nullptr));
    return MeanOf(scored[0]);
  }
  // The same once more with other products, beside those that it has.
  absl::StatusOr<QuantizeReport::Dense> EvaluateDense(const Forms& forms, DensePrecision precision,
                                                      std::optional<CtrMetrics>* before) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<internal::ServingModel> model, Read(forms));
    std::vector<Scored> scored;
    HOTROW_RETURN_IF_ERROR(AddSession(*model, &scored));
    model->recipe.precision = precision;
    HOTROW_RETURN_IF_ERROR(AddSession(*model, &scored));
    QuantizeReport::Dense out;
    HOTROW_RETURN_IF_ERROR(ScoreData(model->recipe.num_tasks, scored, &out));
    *before = MeanOf(scored[0]);
    out.metrics = MeanOf(scored[1]);
    return out;
  }
  // With which products the next evaluations score.
  void SetPrecision(DensePrecision precision) { scoring_.precision = precision; }
  int64_t evaluations() const { return evaluations_; }

 private:
  // What a session gives of the data.
  struct Scored {
    std::unique_ptr<internal::ScoreSession> session;
    std::vector<MetricsAccumulator> tasks;
    std::vector<float> logits;  // of the batch at hand
  };

  absl::StatusOr<std::unique_ptr<internal::ServingModel>> Read(const Forms& forms) {
    ++evaluations_;
    HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<internal::ServingModel> model,
                            internal::ReadServingModel(scoring_, /*with_rows=*/true, forms));
    HOTROW_RETURN_IF_ERROR(CheckData(*model));
    return model;
  }

  absl::Status AddSession(const internal::ServingModel& model, std::vector<Scored>* scored) const {
    Scored out;
    HOTROW_ASSIGN_OR_RETURN(out.session, internal::ScoreSession::Create(scoring_, model));
    out.tasks.resize(static_cast<size_t>(model.recipe.num_tasks));
    scored->push_back(std::move(out));
    return absl::OkStatus();
  }

  // apart: null, or takes how far the logits of two sessions are from each other.
  absl::Status ScoreData(int32_t num_tasks, std::span<Scored> scored,
                         QuantizeReport::Dense* apart) const {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataReader> reader,
                            options_.data->OpenSplit(options_.split, /*epoch=*/0, 0));
    CtrBatch batch;
    int64_t samples = 0;
    double differences = 0;
    while (true) {
      HOTROW_RETURN_IF_ERROR(reader->Next(options_.batch_size, &batch));
      if (batch.batch_size == 0) break;
      samples += batch.batch_size;
      for (Scored& s : scored) {
        s.logits.resize(static_cast<size_t>(batch.batch_size * num_tasks));  // <= batch_size
        HOTROW_RETURN_IF_ERROR(
            s.session->Score({.sparse = batch.sparse(), .dense = batch.dense}, s.logits));
        for (int32_t task = 0; task < num_tasks; ++task) {
          s.tasks[static_cast<size_t>(task)].Add(s.logits, batch.labels, task, num_tasks);
        }
      }
      for (size_t i = 0; apart != nullptr && i < scored[0].logits.size(); ++i) {
        const double difference =
            std::abs(static_cast<double>(scored[1].logits[i]) - scored[0].logits[i]);
        differences += difference;
        // A NaN stays: nothing is above it.
        if (difference > apart->largest_difference || std::isnan(difference)) {
          apart->largest_difference = difference;
        }
      }
    }
    if (samples == 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("the data \"", options_.data->schema().name,
                       "\" have no samples in the split that is to be evaluated"));
    }
    if (apart != nullptr) {
      apart->mean_difference = differences / static_cast<double>(samples * num_tasks);
    }
    return absl::OkStatus();
  }

  static CtrMetrics MeanOf(const Scored& scored) {
    std::vector<CtrMetrics> metrics;
    for (const MetricsAccumulator& task : scored.tasks) metrics.push_back(task.Compute());
    return MeanOverTasks(metrics);
  }

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
  if (options.dense.has_value()) {
    HOTROW_ASSIGN_OR_RETURN(report->dense,
                            evaluation.EvaluateDense(forms, *options.dense, &report->before));
  } else {
    HOTROW_ASSIGN_OR_RETURN(report->before, evaluation.Evaluate(forms));
  }
  if (options.max_auc_loss.has_value() && std::isnan(report->before->auc)) {
    return absl::InvalidArgumentError(
        "QuantizeOptions.max_auc_loss cannot be measured: all labels of the data are of one class, "
        "and AUC needs both; choose another split or other data");
  }
  const auto keeps_bound = [&](const CtrMetrics& metrics) {
    return !options.max_auc_loss.has_value() ||
           report->before->auc - metrics.auc <= *options.max_auc_loss;
  };
  CtrMetrics wide = *report->before;  // with all rows as they were trained
  if (report->dense.has_value()) {
    report->dense->kept = keeps_bound(report->dense->metrics);
    if (report->dense->kept) {
      wide = report->dense->metrics;
      evaluation.SetPrecision(*options.dense);
    }
  }
  HOTROW_ASSIGN_OR_RETURN(report->after, evaluation.Evaluate(narrow));
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
      const double loss = wide.auc - metrics.auc;
      report->tables[t].auc_loss = loss;
      const RowLayout layout = tables[t].layout();
      const int64_t saved =
          report->tables[t].num_rows *
          (ServingRowBytes(ServingRows::kAsTrained, layout) - ServingRowBytes(narrow[t], layout));
      order.push_back({t, std::max(loss, 0.0) / static_cast<double>(std::max<int64_t>(saved, 1))});
    }
    std::ranges::stable_sort(order, {}, &Narrowing::loss_per_byte);
    report->after = wide;
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
  if (rows == ServingRows::kAsTrained && !dense.has_value()) {
    return absl::InvalidArgumentError(
        "QuantizeOptions.rows must be narrower than as_trained, where QuantizeOptions.dense is not "
        "given: fp16, bf16, int8 or int4");
  }
  if (dense.has_value()) {
    HOTROW_RETURN_IF_ERROR(CheckDensePrecision(*dense, Device::kCpu, "QuantizeOptions.dense="));
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
  std::optional<DensePrecision> dense = options.dense;
  if (report.dense.has_value() && !report.dense->kept) dense.reset();
  HOTROW_ASSIGN_OR_RETURN(report.written, WriteCodedModel({.model = options.model,
                                                           .dir = options.dir,
                                                           .rows = forms,
                                                           .precision = dense,
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
