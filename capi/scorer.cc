#include "models/serving/scorer.h"

#include <chrono>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/matrix_view.h"
#include "base/status_macros.h"
#include "capi/call_impl.h"
#include "capi/scorer_options_impl.h"
#include "capi/views_impl.h"
#include "models/data/table_schema.h"

struct hotrow_scorer : hotrow::capi::Handle {
  std::mutex mutex;
  std::shared_ptr<const hotrow::Scorer> scorer;  // null: it was closed
  std::chrono::milliseconds deadline{0};         // of a call that scores; 0: none
};

namespace hotrow::capi {
namespace {

// A call of a scorer, which stays open until it ends.
template <typename Body>
hotrow_status CallScorer(hotrow_scorer* handle, const Body& body) noexcept {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(Usable(handle, "scorer"));
    std::shared_ptr<const Scorer> scorer;
    {
      const std::lock_guard lock(handle->mutex);
      scorer = handle->scorer;
    }
    if (scorer == nullptr) return absl::FailedPreconditionError("the scorer has been closed");
    return body(*scorer);
  });
}

std::string Describe(const Scorer& scorer) {
  using Json = nlohmann::ordered_json;
  Json features = Json::array();
  for (const std::string& name : scorer.feature_names()) features.push_back({{"name", name}});
  Json dense;
  if (const TableSchema* const schema = scorer.schema(); schema != nullptr) {
    dense = Json::array();
    for (const DenseColumn& column : schema->dense) dense.push_back(column.name);
  }
  const Json out = {
      {"model", scorer.model_name()},
      {"step", scorer.step()},
      {"features", std::move(features)},
      {"num_dense", scorer.num_dense()},
      {"dense", std::move(dense)},
      {"num_tasks", scorer.num_tasks()},
      {"labels", scorer.labels()},
      {"rows", scorer.rows()},
      {"table_bytes", scorer.table_bytes()},
      {"max_batch_size", scorer.max_batch_size()},
      {"line_columns", scorer.schema() != nullptr ? Json(scorer.line_columns()) : Json()},
      {"notes", scorer.notes()}};
  return out.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

// A matrix of this shape whose rows follow each other.
absl::StatusOr<std::span<float>> TakeContiguous(const hotrow_matrix* matrix, int64_t rows,
                                                int64_t cols, std::string_view name) {
  const std::string place(name);
  if (matrix == nullptr && cols == 0) return std::span<float>();
  HOTROW_RETURN_IF_ERROR(NotNull(matrix, name));
  HOTROW_ASSIGN_OR_RETURN(const MatrixView<float> view, TakeMatrix(*matrix, name));
  if (view.rows != rows || view.cols != cols) {
    return absl::InvalidArgumentError(absl::StrCat(place, ": is [", view.rows, ", ", view.cols,
                                                   "], expected [", rows, ", ", cols, "]"));
  }
  if (view.stride != cols && rows > 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(place, ": has a stride of ", view.stride, ", must be contiguous: ", cols));
  }
  return std::span(view.data, static_cast<size_t>(rows * cols));  // <= TakeMatrix's size
}

template <typename T>
absl::StatusOr<std::span<const T>> TakeSpan(const T* data, int64_t size, std::string_view name) {
  HOTROW_RETURN_IF_ERROR(CheckCount(size, absl::StrCat("num_", std::string(name))));
  return TakeArray<T>(data, size, name);
}

// When a call is over that begins now.
ScoreDeadline DeadlineOf(const hotrow_scorer& scorer) {
  return scorer.deadline.count() == 0 ? kNoDeadline
                                      : std::chrono::steady_clock::now() + scorer.deadline;
}

absl::Status Score(const Scorer& scorer, ScoreDeadline deadline, const hotrow_batch* batch,
                   const hotrow_matrix* dense, const hotrow_matrix* logits) {
  HOTROW_ASSIGN_OR_RETURN(const BatchView view, TakeBatch(batch, scorer.feature_names()));
  const int64_t samples = view.all.batch_size;
  ScoreBatch out = {.sparse = view.all, .features = view.bags};
  HOTROW_ASSIGN_OR_RETURN(out.dense, TakeContiguous(dense, samples, scorer.num_dense(), "dense"));
  HOTROW_ASSIGN_OR_RETURN(const std::span<float> room,
                          TakeContiguous(logits, samples, scorer.num_tasks(), "logits"));
  return scorer.Score(out, room, nullptr, deadline);
}

// One of the two batches of a call with candidates; null where it has no features.
absl::StatusOr<BatchView> TakePart(const hotrow_batch* batch, const std::vector<std::string>& names,
                                   int64_t samples, std::string_view place) {
  BatchView out;
  out.all.batch_size = samples;
  if (names.empty()) {
    if (batch == nullptr) return out;
    return absl::InvalidArgumentError(
        absl::StrCat(std::string(place), ": has no features; must be null"));
  }
  HOTROW_RETURN_IF_ERROR(NotNull(batch, place));
  absl::StatusOr<BatchView> taken = TakeBatch(batch, names);
  if (!taken.ok()) return At(place, taken.status());
  if (taken->all.batch_size == samples) return taken;
  return absl::InvalidArgumentError(absl::StrCat(std::string(place), ".batch_size: is ",
                                                 taken->all.batch_size, ", expected ", samples));
}

absl::Status ScoreCandidates(const Scorer& scorer, ScoreDeadline deadline,
                             const hotrow_candidates* in, const hotrow_matrix* logits) {
  HOTROW_ASSIGN_OR_RETURN(
      const hotrow_candidates taken,
      TakeStruct(in, hotrow_candidates{.struct_size = sizeof(hotrow_candidates)}, "candidates"));
  CandidateBatch out = {.num_candidates = taken.num_candidates};
  HOTROW_RETURN_IF_ERROR(CheckCount(out.num_candidates, "num_candidates"));
  HOTROW_ASSIGN_OR_RETURN(out.user_features,
                          TakeSpan(taken.user_features, taken.num_user_features, "user_features"));
  HOTROW_ASSIGN_OR_RETURN(
      out.user_dense_columns,
      TakeSpan(taken.user_dense_columns, taken.num_user_dense_columns, "user_dense_columns"));
  HOTROW_ASSIGN_OR_RETURN(out.user_dense,
                          TakeSpan(taken.user_dense, taken.num_user_dense_columns, "user_dense"));
  const auto num_user_columns = std::ssize(out.user_dense_columns);
  if (num_user_columns > scorer.num_dense()) {
    return absl::InvalidArgumentError(absl::StrCat("num_user_dense_columns: is ", num_user_columns,
                                                   ", the model has ", scorer.num_dense()));
  }
  HOTROW_ASSIGN_OR_RETURN(out.candidate_dense,
                          TakeContiguous(taken.candidate_dense, out.num_candidates,
                                         scorer.num_dense() - num_user_columns, "candidate_dense"));
  HOTROW_ASSIGN_OR_RETURN(const std::span<float> room,
                          TakeContiguous(logits, out.num_candidates, scorer.num_tasks(), "logits"));
  // Which features are the user's; that they ascend the scorer checks.
  std::vector<bool> is_users(scorer.feature_names().size());
  for (const int32_t f : out.user_features) {
    if (f < 0 || static_cast<size_t>(f) >= is_users.size() || is_users[static_cast<size_t>(f)]) {
      return absl::InvalidArgumentError(absl::StrCat("user_features: ", f, ": must lie in [0, ",
                                                     is_users.size(), "), each once, ascending"));
    }
    is_users[static_cast<size_t>(f)] = true;
  }
  std::vector<std::string> user_names, candidate_names;
  for (size_t f = 0; f < is_users.size(); ++f) {
    (is_users[f] ? user_names : candidate_names).push_back(scorer.feature_names()[f]);
  }
  HOTROW_ASSIGN_OR_RETURN(const BatchView user, TakePart(taken.user, user_names, 1, "user"));
  HOTROW_ASSIGN_OR_RETURN(const BatchView candidates, TakePart(taken.candidates, candidate_names,
                                                               out.num_candidates, "candidates"));
  out.user = user.all;
  out.user_bags = user.bags;
  out.candidates = candidates.all;
  out.candidate_bags = candidates.bags;
  return scorer.ScoreCandidates(out, room, nullptr, deadline);
}

absl::Status ScoreLines(const Scorer& scorer, ScoreDeadline deadline, const char* const* lines,
                        const int64_t* lengths, int64_t num_lines, const hotrow_matrix* logits) {
  HOTROW_ASSIGN_OR_RETURN(const std::span<const char* const> texts,
                          TakeSpan(lines, num_lines, "lines"));
  HOTROW_ASSIGN_OR_RETURN(const std::span<float> room,
                          TakeContiguous(logits, num_lines, scorer.num_tasks(), "logits"));
  HOTROW_RETURN_IF_ERROR(
      TakeArray<int64_t>(lengths, lengths == nullptr ? 0 : num_lines, "lengths").status());
  std::vector<std::string_view> views;
  views.reserve(texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string place = absl::StrCat("lines[", i, "]");
    if (lengths == nullptr) {
      HOTROW_RETURN_IF_ERROR(NotNull(texts[i], place));
      views.emplace_back(texts[i]);
      continue;
    }
    HOTROW_RETURN_IF_ERROR(CheckCount(lengths[i], absl::StrCat("lengths[", i, "]")));
    HOTROW_RETURN_IF_ERROR(CheckArray(texts[i], lengths[i], 1, 1, place));
    views.emplace_back(texts[i], static_cast<size_t>(lengths[i]));
  }
  return scorer.ScoreLines(views, room, nullptr, deadline);
}

}  // namespace
}  // namespace hotrow::capi

using namespace hotrow;        // NOLINT: what follows is the C interface
using namespace hotrow::capi;  // NOLINT

extern "C" {

hotrow_status hotrow_scorer_open(const hotrow_scorer_options* options, hotrow_scorer** scorer) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(scorer, "scorer"));
    HOTROW_ASSIGN_OR_RETURN(const ScorerOptions taken, TakeScorerOptions(options));
    auto made = std::make_unique<hotrow_scorer>();
    HOTROW_ASSIGN_OR_RETURN(made->deadline, TakeScoreDeadline(options));
    HOTROW_ASSIGN_OR_RETURN(made->scorer, Scorer::Open(taken));
    *scorer = made.release();
    return absl::OkStatus();
  });
}

hotrow_status hotrow_scorer_close(hotrow_scorer* scorer) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(NotNull(scorer, "scorer"));
    if (scorer->forked()) return absl::OkStatus();
    std::shared_ptr<const Scorer> last;  // goes when the lock is free
    const std::lock_guard lock(scorer->mutex);
    last.swap(scorer->scorer);
    return absl::OkStatus();
  });
}

void hotrow_scorer_destroy(hotrow_scorer* scorer) {
  CallVoid([&] { Destroy(scorer); });
}

hotrow_status hotrow_scorer_describe(hotrow_scorer* scorer, char* text, uint64_t size,
                                     uint64_t* needed) {
  return CallScorer(
      scorer, [&](const Scorer& open) { return GiveText(Describe(open), text, size, needed); });
}

hotrow_status hotrow_scorer_score(hotrow_scorer* scorer, const hotrow_batch* batch,
                                  const hotrow_matrix* dense, const hotrow_matrix* logits) {
  return CallScorer(scorer, [&](const Scorer& open) {
    return Score(open, DeadlineOf(*scorer), batch, dense, logits);
  });
}

hotrow_status hotrow_scorer_score_candidates(hotrow_scorer* scorer,
                                             const hotrow_candidates* candidates,
                                             const hotrow_matrix* logits) {
  return CallScorer(scorer, [&](const Scorer& open) {
    return ScoreCandidates(open, DeadlineOf(*scorer), candidates, logits);
  });
}

hotrow_status hotrow_scorer_score_lines(hotrow_scorer* scorer, const char* const* lines,
                                        const int64_t* lengths, int64_t num_lines,
                                        const hotrow_matrix* logits) {
  return CallScorer(scorer, [&](const Scorer& open) {
    return ScoreLines(open, DeadlineOf(*scorer), lines, lengths, num_lines, logits);
  });
}

hotrow_status hotrow_probabilities(const float* logits, int64_t count, float* probabilities) {
  return Call([&]() -> absl::Status {
    HOTROW_RETURN_IF_ERROR(CheckCount(count, "count"));
    HOTROW_RETURN_IF_ERROR(TakeArray<float>(logits, count, "logits").status());
    HOTROW_RETURN_IF_ERROR(TakeArray<float>(probabilities, count, "probabilities").status());
    for (int64_t i = 0; i < count; ++i) probabilities[i] = ScoreProbability(logits[i]);
    return absl::OkStatus();
  });
}

}  // extern "C"
