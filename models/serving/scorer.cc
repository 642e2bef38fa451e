#include "models/serving/scorer.h"

#include <algorithm>
#include <cmath>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/machine_limits.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "models/serving/score_session_impl.h"
#include "models/serving/scorer_impl.h"
#include "models/serving/serving_model_impl.h"

namespace hotrow {
namespace {

constexpr int32_t kConcurrencyMax = ReaderSlots::kSlotsMax;
constexpr int64_t kBatchSizeMax = int64_t{1} << 24;

}  // namespace

absl::Status ScorerOptions::Validate() const {
  const auto check = [](const char* field, int64_t value, int64_t min,
                        int64_t max) -> absl::Status {
    if (value >= min && value <= max) return absl::OkStatus();
    return absl::InvalidArgumentError(
        absl::StrCat("ScorerOptions.", field, " must lie in [", min, ", ", max, "], is ", value));
  };
  if (model.empty()) return absl::InvalidArgumentError("ScorerOptions.model is empty");
  HOTROW_RETURN_IF_ERROR(check("memory_bytes", memory_bytes, 0, INT64_MAX));
  if (!rows_dir.empty() && memory_bytes == 0 && budget == nullptr) {
    return absl::InvalidArgumentError(
        "ScorerOptions.memory_bytes must be given with rows_dir: it is the size of the cache");
  }
  HOTROW_RETURN_IF_ERROR(check("store_bytes", store_bytes, 0, INT64_MAX));
  HOTROW_RETURN_IF_ERROR(check("max_concurrency", max_concurrency, 0, kConcurrencyMax));
  HOTROW_RETURN_IF_ERROR(check("max_batch_size", max_batch_size, 1, kBatchSizeMax));
  return precision.has_value() ? CheckDensePrecision(*precision) : absl::OkStatus();
}

float ScoreProbability(float logit) {
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logit))));
}

Scorer::Scorer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scorer::~Scorer() {
  if (impl_->saves_at_close) Caught("", [this] { return SaveHotKeys(); }).IgnoreError();
}

absl::Status Scorer::Impl::CreateSessions(const ScorerOptions& options) {
  // All of them take this much at once.
  const double least = 4.0 * static_cast<double>(options.max_batch_size) *
                       (model->pooled_dim + model->recipe.num_dense) *
                       static_cast<double>(sessions.size());
  absl::Status status;
  if (least > static_cast<double>(UsableMemoryBytes())) status = absl::ResourceExhaustedError("");
  try {
    for (size_t i = 0; i < sessions.size() && status.ok(); ++i) {
      auto session = internal::ScoreSession::Create(options, *model);
      status = session.status();
      if (session.ok()) sessions[i] = *std::move(session);
    }
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError("");
  }
  if (!absl::IsResourceExhausted(status)) return status;
  return absl::ResourceExhaustedError(absl::StrCat(
      "ScorerOptions.max_batch_size: ", sessions.size(), " calls at once, each of ",
      options.max_batch_size,
      " samples, need more memory than there is; lower it, or ScorerOptions.max_concurrency"));
}

absl::StatusOr<std::unique_ptr<Scorer>> Scorer::Open(const ScorerOptions& given) {
  HOTROW_RETURN_IF_ERROR(given.Validate());
  ScorerOptions options = given;
  if (options.max_concurrency == 0) {
    options.max_concurrency = std::clamp<int32_t>(UsableProcessors(), 1, kConcurrencyMax);
  }
  const int32_t concurrency = options.max_concurrency;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<internal::ServingModel> model,
                          internal::ReadServingModel(options));
  auto impl = std::make_unique<Impl>(options, std::move(model), concurrency);
  HOTROW_RETURN_IF_ERROR(impl->CreateSessions(options));
  impl->Begin();
  return std::unique_ptr<Scorer>(new Scorer(std::move(impl)));
}

absl::StatusOr<AppliedDelta> Scorer::ApplyDelta(const std::string& dir) {
  return impl_->ApplyDelta(dir);
}

const std::string& Scorer::model_name() const { return impl_->model->saved.model; }
int64_t Scorer::step() const { return impl_->step.load(std::memory_order_relaxed); }
int64_t Scorer::sequence() const { return impl_->sequence.load(std::memory_order_relaxed); }
const std::vector<std::string>& Scorer::feature_names() const {
  return impl_->model->feature_names;
}
int32_t Scorer::num_dense() const { return impl_->model->recipe.num_dense; }
int32_t Scorer::num_tasks() const { return impl_->model->recipe.num_tasks; }
const std::vector<std::string>& Scorer::labels() const { return impl_->model->labels; }
int64_t Scorer::rows() const { return impl_->rows.load(std::memory_order_relaxed); }
int64_t Scorer::table_bytes() const {
  return impl_->model->tables->bytes() - impl_->model->tables->readers_bytes();
}
int64_t Scorer::max_batch_size() const { return impl_->max_batch_size; }
ServingReadStats Scorer::read_stats() const { return impl_->model->tables->read_stats(); }
absl::Status Scorer::SaveHotKeys() const { return impl_->model->tables->SaveHotKeys(); }
const std::vector<std::string>& Scorer::notes() const { return impl_->model->notes; }

const TableSchema* Scorer::schema() const {
  return impl_->model->schema.has_value() ? &*impl_->model->schema : nullptr;
}
const std::vector<std::string>& Scorer::line_columns() const { return impl_->model->line_columns; }
const Vocabulary* Scorer::vocabulary() const {
  return impl_->model->vocabulary.empty() ? nullptr : &impl_->model->vocabulary;
}

absl::Status Scorer::Score(const ScoreBatch& batch, std::span<float> logits, int64_t* step,
                           ScoreDeadline deadline) const {
  return impl_->With(step,
                     [&](internal::ScoreSession& s) { return s.Score(batch, logits, deadline); });
}

absl::Status Scorer::ScoreCandidates(const CandidateBatch& batch, std::span<float> logits,
                                     int64_t* step, ScoreDeadline deadline) const {
  return impl_->With(
      step, [&](internal::ScoreSession& s) { return s.ScoreCandidates(batch, logits, deadline); });
}

absl::Status Scorer::ScoreLines(std::span<const std::string_view> lines, std::span<float> logits,
                                int64_t* step, ScoreDeadline deadline) const {
  return impl_->With(
      step, [&](internal::ScoreSession& s) { return s.ScoreLines(lines, logits, deadline); });
}

}  // namespace hotrow
