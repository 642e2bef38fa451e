#include "models/serving/scorer.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <semaphore>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/serving/score_session_impl.h"
#include "models/serving/serving_model_impl.h"

namespace hotrow {
namespace {

constexpr int32_t kConcurrencyMax = 4096;
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
  HOTROW_RETURN_IF_ERROR(check("store_bytes", store_bytes, 0, INT64_MAX));
  HOTROW_RETURN_IF_ERROR(check("max_concurrency", max_concurrency, 0, kConcurrencyMax));
  HOTROW_RETURN_IF_ERROR(check("max_batch_size", max_batch_size, 1, kBatchSizeMax));
  return precision.has_value() ? CheckDensePrecision(*precision) : absl::OkStatus();
}

float ScoreProbability(float logit) {
  return static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(logit))));
}

struct Scorer::Impl {
  // A session, and whether a call has it.
  struct Slot {
    std::unique_ptr<internal::ScoreSession> session;
    std::atomic<bool> taken = false;
  };

  explicit Impl(std::unique_ptr<const internal::ServingModel> read, int64_t batch_size,
                int32_t concurrency)
      : model(std::move(read)),
        max_batch_size(batch_size),
        free(concurrency),
        slots(static_cast<size_t>(concurrency)) {}

  // Runs `call` with a session of its own.
  template <typename Call>
  absl::Status With(const Call& call) {
    free.acquire();
    // One is free now, though others may look for it, too. A thread begins where it ended last, so
    // its buffers are likely in its core's caches.
    thread_local size_t last = 0;
    size_t at = last % slots.size();
    while (slots[at].taken.exchange(true, std::memory_order_acquire)) {
      at = at + 1 == slots.size() ? 0 : at + 1;
    }
    last = at;
    const Return give_back{this, &slots[at]};
    return call(*slots[at].session);
  }

  // Where a session is given back, whatever ends the call.
  struct Return {
    ~Return() {
      slot->taken.store(false, std::memory_order_release);
      impl->free.release();
    }
    Impl* impl;
    Slot* slot;
  };

  const std::unique_ptr<const internal::ServingModel> model;
  const int64_t max_batch_size;
  std::counting_semaphore<kConcurrencyMax> free;
  std::vector<Slot> slots;
};

Scorer::Scorer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Scorer::~Scorer() = default;

absl::StatusOr<std::unique_ptr<Scorer>> Scorer::Open(const ScorerOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<const internal::ServingModel> model,
                          internal::ReadServingModel(options));
  int32_t concurrency = options.max_concurrency;
  if (concurrency == 0) {
    concurrency = std::clamp<int32_t>(static_cast<int32_t>(std::thread::hardware_concurrency()), 1,
                                      kConcurrencyMax);
  }
  auto impl = std::make_unique<Impl>(std::move(model), options.max_batch_size, concurrency);
  for (Impl::Slot& slot : impl->slots) {
    HOTROW_ASSIGN_OR_RETURN(slot.session, internal::ScoreSession::Create(options, *impl->model));
  }
  return std::unique_ptr<Scorer>(new Scorer(std::move(impl)));
}

const std::string& Scorer::model_name() const { return impl_->model->saved.model; }
int64_t Scorer::step() const { return impl_->model->saved.step; }
const std::vector<std::string>& Scorer::feature_names() const {
  return impl_->model->feature_names;
}
int32_t Scorer::num_dense() const { return impl_->model->recipe.num_dense; }
int32_t Scorer::num_tasks() const { return impl_->model->recipe.num_tasks; }
const std::vector<std::string>& Scorer::labels() const { return impl_->model->labels; }
int64_t Scorer::rows() const { return impl_->model->rows(); }
int64_t Scorer::table_bytes() const { return impl_->model->tables->bytes(); }
int64_t Scorer::max_batch_size() const { return impl_->max_batch_size; }
const std::vector<std::string>& Scorer::notes() const { return impl_->model->notes; }

const TableSchema* Scorer::schema() const {
  return impl_->model->schema.has_value() ? &*impl_->model->schema : nullptr;
}
const std::vector<std::string>& Scorer::line_columns() const { return impl_->model->line_columns; }
const Vocabulary* Scorer::vocabulary() const {
  return impl_->model->vocabulary.empty() ? nullptr : &impl_->model->vocabulary;
}

absl::Status Scorer::Score(const ScoreBatch& batch, std::span<float> logits) const {
  return impl_->With([&](internal::ScoreSession& s) { return s.Score(batch, logits); });
}

absl::Status Scorer::ScoreCandidates(const CandidateBatch& batch, std::span<float> logits) const {
  return impl_->With([&](internal::ScoreSession& s) { return s.ScoreCandidates(batch, logits); });
}

absl::Status Scorer::ScoreLines(std::span<const std::string_view> lines,
                                std::span<float> logits) const {
  return impl_->With([&](internal::ScoreSession& s) { return s.ScoreLines(lines, logits); });
}

}  // namespace hotrow
