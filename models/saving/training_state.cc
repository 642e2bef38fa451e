#include "models/saving/training_state.h"

#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "models/json/json_members_impl.h"
#include "models/json/json_text.h"
#include "models/saving/training_state_impl.h"

namespace hotrow {
namespace {

// Members stand in the order of the format page.
using Json = nlohmann::ordered_json;

// Names every member once, for writing and for reading.

class JsonWriter {
 public:
  template <typename T>
  void operator()(const char* name, const T& value) {
    json_[name] = value;
  }
  void operator()(const char* name, const std::vector<std::pair<std::string, std::string>>& texts) {
    json_[name] = StringsToJson(texts);
  }
  void operator()(const char* name, double value) {
    json_[name] = std::isfinite(value) ? Json(value) : Json(nullptr);
  }
  // An empty text is not written.
  void Optional(const char* name, const std::string& text) {
    if (!text.empty()) json_[name] = text;
  }
  // False is not written.
  void Optional(const char* name, bool value) {
    if (value) json_[name] = true;
  }
  // None are not written.
  void Optional(const char* name, const std::vector<LearningRateRun>& runs) {
    if (!runs.empty()) json_[name] = LearningRatesToJson(runs);
  }
  template <typename Visit>
  void Group(const char* name, Visit visit) {
    JsonWriter inner;
    visit(inner);
    json_[name] = std::move(inner.json_);
  }
  // Nothing is not written.
  template <typename T, typename Visit>
  void OptionalGroup(const char* name, const std::optional<T>& value, Visit visit) {
    if (!value.has_value()) return;
    JsonWriter inner;
    visit(*value, inner);
    json_[name] = std::move(inner.json_);
  }
  // An empty list is not written.
  template <typename T, typename Visit>
  void List(const char* name, const std::vector<T>& items, Visit visit) {
    for (const T& item : items) {
      JsonWriter inner;
      visit(item, inner);
      json_[name].push_back(std::move(inner.json_));
    }
  }
  Json Take() { return std::move(json_); }

 private:
  Json json_ = Json::object();
};

class JsonReader {
 public:
  JsonReader(const Json& json, std::string path, std::string* wrong)
      : members_(json, std::move(path), wrong), wrong_(wrong) {}
  void operator()(const char* name, int64_t& value) { value = members_.Number(name); }
  void operator()(const char* name, bool& value) { value = members_.Bool(name); }
  void operator()(const char* name, double& value) { value = members_.RealOrNan(name); }
  void operator()(const char* name, std::vector<std::pair<std::string, std::string>>& texts) {
    texts = members_.Strings(name);
  }
  void Optional(const char* name, std::string& text) {
    if (members_.Has(name)) text = members_.String(name);
  }
  void Optional(const char* name, bool& value) {
    if (members_.Has(name)) value = members_.Bool(name);
  }
  void Optional(const char* name, std::vector<LearningRateRun>& runs) {
    if (members_.Has(name)) runs = ParseLearningRates(members_, name);
  }
  template <typename Visit>
  void Group(const char* name, Visit visit) {
    JsonReader inner(members_.Object(name), members_.PathOf(name), wrong_);
    visit(inner);
  }
  template <typename T, typename Visit>
  void OptionalGroup(const char* name, std::optional<T>& value, Visit visit) {
    if (!members_.Has(name)) return;
    JsonReader inner(members_.Object(name), members_.PathOf(name), wrong_);
    visit(value.emplace(T{}), inner);  // clang 14 takes no emplace() of a nested struct
  }
  template <typename T, typename Visit>
  void List(const char* name, std::vector<T>& items, Visit visit) {
    if (!members_.Has(name)) return;
    for (const Json& item : members_.Array(name)) {
      JsonReader inner(item, absl::StrCat(members_.PathOf(name), "[", items.size(), "]"), wrong_);
      visit(items.emplace_back(), inner);
    }
  }

 private:
  JsonMembers members_;
  std::string* const wrong_;
};

template <typename Metrics, typename Visitor>
void VisitMetrics(Metrics& metrics, Visitor& visit) {
  visit("samples", metrics.samples);
  visit("auc", metrics.auc);
  visit("logloss", metrics.logloss);
  visit("ne", metrics.ne);
  visit("calibration", metrics.calibration);
}

template <typename State, typename Visitor>
void VisitTraining(State& state, Visitor& visit) {
  visit("settings", state.settings);
  visit.Optional("processor", state.processor);
  visit.Group("position", [&](auto& v) {
    v("epoch", state.epoch);
    v("sample", state.samples_in_epoch);
    v("batch", state.batches_in_epoch);
    v("validation_due", state.validation_due);
    v("validated_step", state.validated_step);
  });
  visit.Group("run", [&](auto& v) {
    v("first_step", state.first_step);
    v("steps", state.steps);
    v("samples", state.samples);
    v("epochs", state.epochs_done);
    v("last_epoch", state.last_epoch);
    v("last_epoch_steps", state.steps_in_last_epoch);
    v("last_epoch_samples", state.samples_in_last_epoch);
    v("last_epoch_loss_sum", state.loss_sum_in_last_epoch);
    v("recent_loss", state.recent_loss);
    v("stopped_early", state.stopped_early);
    v("best_epoch", state.best_epoch);
    v("best_step", state.best_step);
    v("best_auc", state.best_auc);
  });
  visit.OptionalGroup("loss_scale", state.loss_scale, [](auto& scale, auto& v) {
    v("scale", scale.scale);
    v("good_steps", scale.good_steps);
    v("skipped_steps", scale.skipped_steps);
  });
  visit.Optional("learning_rates", state.learning_rates);
  visit.Optional("settled", state.settled);
  visit.Group("policy", [&](auto& v) {
    v("factor", state.policy.factor);
    v("observed", state.policy.observed);
    v("best_auc", state.policy.best_auc);
    v("plateau_validations", state.policy.plateau_validations);
    v("worse_validations", state.policy.worse_validations);
  });
  visit.Group("valid", [&](auto& v) { VisitMetrics(state.valid, v); });
  visit.Group("test", [&](auto& v) { VisitMetrics(state.test, v); });
  const auto metrics = [](auto& task, auto& v) { VisitMetrics(task, v); };
  visit.List("valid_tasks", state.valid_tasks, metrics);
  visit.List("test_tasks", state.test_tasks, metrics);
  visit.List("windows", state.windows, [&](auto& window, auto& v) {
    v("number", window.number);
    v("samples", window.samples);
    v("train_logloss", window.train_logloss);
    v("best_auc", window.best_auc);
    v.Group("valid", [&](auto& valid) { VisitMetrics(window.valid, valid); });
    v.List("valid_tasks", window.valid_tasks, metrics);
  });
}

}  // namespace

Json LearningRatesToJson(const std::vector<LearningRateRun>& runs) {
  Json json = Json::array();
  for (const LearningRateRun& run : runs) {
    json.push_back({run.last_step, static_cast<double>(run.factor)});
  }
  return json;
}

std::vector<LearningRateRun> ParseLearningRates(JsonMembers& members, const char* name) {
  std::vector<LearningRateRun> runs;
  uint32_t before = 0;
  for (const Json& entry : members.Array(name)) {
    const bool pair = entry.is_array() && entry.size() == 2 && entry[0].is_number_unsigned() &&
                      entry[1].is_number();
    const uint64_t step = pair ? entry[0].get<uint64_t>() : 0;
    if (step <= before || step > UINT32_MAX) {
      members.Wrong(name, runs.size(), "pairs of a step, each above the one before, and a factor");
      break;
    }
    before = static_cast<uint32_t>(step);
    runs.push_back({before, static_cast<float>(entry[1].get<double>())});
  }
  return runs;
}

Json TrainingToJson(const TrainingState& state) {
  JsonWriter writer;
  VisitTraining(state, writer);
  return writer.Take();
}

TrainingState ParseTraining(const Json& json, const std::string& path, std::string* wrong) {
  TrainingState state;
  JsonReader reader(json, path, wrong);
  VisitTraining(state, reader);
  const std::pair<const char*, int64_t> counts[] = {
      {"position.epoch", state.epoch},
      {"position.sample", state.samples_in_epoch},
      {"position.batch", state.batches_in_epoch},
      {"position.validated_step", state.validated_step + 1},  // -1: there was none
      {"run.first_step", state.first_step},
      {"run.steps", state.steps},
      {"run.samples", state.samples},
      {"run.epochs", state.epochs_done},
      {"run.last_epoch", state.last_epoch + 1},  // -1: none
      {"run.last_epoch_steps", state.steps_in_last_epoch},
      {"run.last_epoch_samples", state.samples_in_last_epoch},
      {"run.best_epoch", state.best_epoch},
      {"run.best_step", state.best_step},
      {"valid.samples", state.valid.samples},
      {"test.samples", state.test.samples}};
  for (const auto& [name, count] : counts) {
    if (count >= 0 || !wrong->empty()) continue;
    JsonMembers(json, path, wrong).Wrong(name, count, "no negative number");
  }
  return state;
}

std::string TrainingStateToJson(const TrainingState& state) {
  return TrainingToJson(state).dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

absl::StatusOr<TrainingState> TrainingStateFromJson(std::string_view json) {
  HOTROW_ASSIGN_OR_RETURN(const Json parsed, ParseJson<Json>(json));
  std::string wrong;
  TrainingState state = ParseTraining(parsed, "", &wrong);
  if (wrong.empty()) return state;
  return absl::InvalidArgumentError(absl::StrCat("state of training: ", wrong));
}

}  // namespace hotrow
