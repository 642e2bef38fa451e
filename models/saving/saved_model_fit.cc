#include "models/saving/saved_model_fit.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "models/saving/saved_model_impl.h"

namespace hotrow {

absl::Status CheckSavedModelFits(const SavedModel& saved, const SavedModel& wanted,
                                 const SavedModelUse& use) {
  const auto unfit = [&](std::string_view what, std::string_view remedy) {
    return absl::FailedPreconditionError(
        absl::StrCat(use.flag, ": ", std::string(what), "; ", std::string(remedy)));
  };
  if (saved.model != wanted.model) {
    return unfit(absl::StrCat("it holds a model \"", saved.model, "\", this is ", wanted.model),
                 absl::StrCat("use the program ", saved.model));
  }
  // Features before tables: the message about a feature says more.
  for (const SavedModel::Feature& feature : wanted.features) {
    if (std::find(saved.features.begin(), saved.features.end(), feature) == saved.features.end()) {
      return unfit(absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" is not in the saved model"),
                   absl::StrCat("new features cannot join a trained model; ", use.train_anew));
    }
  }
  for (const SavedModel::Feature& feature : saved.features) {
    if (std::find(wanted.features.begin(), wanted.features.end(), feature) ==
        wanted.features.end()) {
      return unfit(absl::StrCat("feature \"", feature.name, "\" of table \"", feature.table,
                                "\" of the saved model is not in the data"),
                   absl::StrCat("use data with the same features, or ", use.train_anew));
    }
  }
  if (saved.features != wanted.features) {
    const auto differs = std::mismatch(saved.features.begin(), saved.features.end(),
                                       wanted.features.begin(), wanted.features.end());
    return unfit(absl::StrCat("feature \"", differs.second->name,
                              "\" of the data is in the place of the "
                              "saved model's \"",
                              differs.first->name, "\""),
                 "put the features of the data into the order of the saved model");
  }
  if (saved.num_dense != wanted.num_dense) {
    return unfit(absl::StrCat("the saved model has ", saved.num_dense,
                              " dense features, the data have ", wanted.num_dense),
                 absl::StrCat("use data with the same features, or ", use.train_anew));
  }
  for (size_t i = 0; i < std::max(saved.tables.size(), wanted.tables.size()); ++i) {
    if (i >= saved.tables.size() || i >= wanted.tables.size() ||
        saved.tables[i].name != wanted.tables[i].name) {
      const bool in_data = i < wanted.tables.size();
      return unfit(
          absl::StrCat("table \"", in_data ? wanted.tables[i].name : saved.tables[i].name,
                       in_data ? "\" is not at its place in the saved model"
                               : "\" of the saved model is not in the data"),
          absl::StrCat("use data with the same tables in the same order, or ", use.train_anew));
    }
    const SavedModel::Table& table = saved.tables[i];
    if (table.dim != wanted.tables[i].dim) {
      return unfit(absl::StrCat("table \"", table.name, "\" has ", table.dim,
                                " columns in the saved model and ", wanted.tables[i].dim, " here"),
                   "use the --embedding_dim that it was trained with");
    }
    if (table.optimizer != wanted.tables[i].optimizer) {
      return unfit(absl::StrCat("table \"", table.name, "\" was trained with ", table.optimizer,
                                ", this is ", wanted.tables[i].optimizer),
                   absl::StrCat("use --optimizer=", table.optimizer));
    }
    if (table.weights_precision != wanted.tables[i].weights_precision) {
      const std::string was(WeightsPrecisionName(table.weights_precision));
      return unfit(
          absl::StrCat("table \"", table.name, "\" has weights of ", was, ", this is ",
                       std::string(WeightsPrecisionName(wanted.tables[i].weights_precision))),
          absl::StrCat("use --weights_precision=", was));
    }
    if (table.score != wanted.tables[i].score) {
      const std::string was(ScoreRuleName(table.score));
      return unfit(
          absl::StrCat("the rows of table \"", table.name, "\" keep scores by the rule ", was,
                       ", here by ", std::string(ScoreRuleName(wanted.tables[i].score))),
          absl::StrCat("use the score that it was trained with, ", was));
    }
  }
  for (const auto& [flag, value] : wanted.shape) {
    for (const auto& [saved_flag, saved_value] : saved.shape) {
      if (flag == saved_flag && value != saved_value) {
        return unfit(absl::StrCat("--", flag, " is ", value, " here and ", saved_value,
                                  " in the saved model"),
                     absl::StrCat("use --", flag, "=", saved_value));
      }
    }
  }
  if (saved.num_parameters != wanted.num_parameters) {
    return unfit(absl::StrCat("the saved model has ", saved.num_parameters,
                              " dense parameters, this one ", wanted.num_parameters),
                 "use the model flags that it was trained with");
  }
  return absl::OkStatus();
}

absl::Status CheckSavedTables(const SavedModel& saved, const CollectionDigest& digest) {
  for (size_t i = 0; i < saved.tables.size(); ++i) {
    const SavedModel::Table& expected = saved.tables[i];
    const TableDigest& found = digest.tables[i];
    if ((expected.rows >= 0 && found.rows != expected.rows) ||
        (!expected.hash.empty() && found.hash.ToHex() != expected.hash)) {
      return SavedModelDamaged(
          TablesPlace(saved),
          absl::StrCat("table \"", expected.name, "\" has ", found.rows, " rows of hash ",
                       found.hash.ToHex(), ", the manifest says ", expected.rows, " of ",
                       expected.hash));
    }
  }
  return absl::OkStatus();
}

}  // namespace hotrow
