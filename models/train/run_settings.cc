#include "models/train/run_settings.h"

#include <algorithm>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/crc32c.h"
#include "base/flag_set.h"
#include "base/status_macros.h"
#include "comm/communicator.h"
#include "models/data/vocabulary.h"
#include "models/train/trainer_settings.h"

namespace hotrow {
namespace {

// The name in a message. Flags of models have no row.
std::string Shown(const std::string& name) {
  const TrainerSetting* const row = FindTrainerSetting(name);
  const bool is_flag = row != nullptr ? row->is_flag() : name.find('.') == std::string::npos;
  if (!is_flag) return name;
  return absl::StrCat("--", row != nullptr ? row->flag_name() : name);
}

const std::string* Find(const Settings& in, std::string_view name) {
  for (const auto& [key, value] : in) {
    if (key == name) return &value;
  }
  return nullptr;
}

// Flags of models that came later, with the value of older checkpoints.
constexpr std::pair<std::string_view, std::string_view> kYoungerModelFlags[] = {
    {"interaction", "dot"}, {"batch_norm", "false"}, {"dcn_num_experts", "1"}};

// Adds the settings that are younger than the checkpoint, with the values that it stands for.
Settings WithYoungerSettings(const Settings& saved, const Settings& here) {
  Settings out = saved;
  if (const std::string* const content = Find(here, kDataContent);
      content != nullptr && Find(saved, kDataContent) == nullptr) {
    out.emplace_back(kDataContent, *content);
  }
  for (const auto& [name, value] : kYoungerModelFlags) {
    if (Find(saved, name) == nullptr && Find(here, name) != nullptr) out.emplace_back(name, value);
  }
  for (const TrainerSetting& row : TrainerSettings()) {
    if (!row.older.known() || Find(saved, row.name) != nullptr) continue;
    if (row.older.value != nullptr) {
      out.emplace_back(row.name, row.older.value);
    } else if (const std::string* const value =
                   row.older.as_now ? Find(here, row.name) : Find(saved, row.older.same_as)) {
      out.emplace_back(row.name, *value);
    }
  }
  return out;
}

// The value as BitSettings writes it. Older versions kept --initializer as typed: "normal:0.10".
std::string InOurWords(const std::string& name, const std::string& value) {
  const TrainerSetting* const row = FindTrainerSetting(name);
  if (row == nullptr) return value;
  TrainerOptions options;
  return row->bind(options).set(value).ok() ? row->Text(options) : value;
}

bool IsOfScoring(const TrainerSetting& row) {
  const std::string_view name = row.name;
  return row.role == SettingRole::kBits &&
         (row.part == SettingPart::kTableOptimizer || name == "precision" || name == "serve_rows");
}

// "0" and "not 0", "given" and "not given".
std::string Presence(const TrainerSetting& row, const TrainerOptions& options) {
  const FlagValue value = row.Value(options);
  if (const auto* number = std::get_if<int64_t>(&value)) return *number == 0 ? "0" : "not 0";
  return FlagText(value).empty() ? "not given" : "given";
}

}  // namespace

Settings BitSettings(const TrainerOptions& o) {
  Settings out = o.settings;
  const auto add = [&out](const char* name, std::string value) {
    if (Find(out, name) == nullptr) out.emplace_back(name, std::move(value));
  };
  for (const auto& [flag, value] : o.shape) add(flag.c_str(), value);
  std::vector<const TrainerSetting*> rows;
  for (const TrainerSetting& row : TrainerSettings()) {
    if (row.role == SettingRole::kBits) rows.push_back(&row);
  }
  std::stable_sort(rows.begin(), rows.end(),
                   [](const auto* a, const auto* b) { return a->part < b->part; });
  for (const TrainerSetting* const row : rows) add(row->name, row->Text(o));
  return out;
}

Settings ScoringSettings(const TrainerOptions& options) {
  Settings out;
  for (const TrainerSetting& row : TrainerSettings()) {
    if (IsOfScoring(row)) out.emplace_back(row.name, row.Text(options));
  }
  return out;
}

absl::StatusOr<NamedValues> RankSettings(const TrainerOptions& o, const DataSource& data) {
  NamedValues out;
  const auto add = [&out](std::string name, std::string value) {
    out.emplace_back(std::move(name), std::move(value));
  };
  for (const auto& [name, value] : BitSettings(o)) add(Shown(name), value);
  for (const TrainerSetting& row : TrainerSettings()) {
    if (row.role == SettingRole::kAlike) add(Shown(row.name), row.Text(o));
    if (row.role == SettingRole::kAlikeInPresence) add(Shown(row.name), Presence(row, o));
  }
  if (o.communicator != nullptr) {
    add("CommunicatorOptions.message_bytes_max",
        absl::StrCat(o.communicator->options().message_bytes_max));
  }

  const DataSchema& schema = data.schema();
  HOTROW_ASSIGN_OR_RETURN(const auto identity, data.Identity());
  for (const auto& [what, value] : identity) {
    add(what.empty() ? "--data" : absl::StrCat("--data, ", what), value);
  }
  add("--data, samples", absl::StrCat(schema.train_samples, " train, ", schema.valid_samples,
                                      " validation, ", schema.test_samples, " test"));
  add("--data, dense features", absl::StrCat(schema.num_dense));
  add("--data, features",
      absl::StrJoin(schema.features, " ", [](std::string* text, const DataFeature& feature) {
        absl::StrAppend(text, feature.name, ":", feature.table, ":", feature.num_embeddings, ":",
                        feature.max_hotness);
      }));
  add("--data, labels", absl::StrJoin(schema.labels, " "));
  if (const Vocabulary* const vocabulary = data.vocabulary()) {
    const std::string bytes = vocabulary->Encode();
    add("--data, values with rows of their own",
        absl::StrFormat("%d bytes of checksum %08x", std::ssize(bytes),
                        Crc32c(std::as_bytes(std::span(bytes)))));
  }
  return out;
}

absl::Status CompareWithCheckpoint(const Settings& saved, const Settings& here,
                                   const std::string& flag) {
  std::vector<std::string> differences;
  std::string remedy;
  const auto differ = [&](const std::string& name, const std::string* was, const std::string* is) {
    const auto text = [](const std::string* value) {
      return value == nullptr ? "unknown" : value->empty() ? "\"\"" : *value;
    };
    if (name == kDataContent) {
      differences.push_back(
          absl::StrCat("what --data names held ", text(was), " and holds ", text(is)));
      absl::StrAppend(&remedy, " the data of then");
      return;
    }
    differences.push_back(absl::StrCat(Shown(name), " was ", text(was), " and is ", text(is)));
    if (was != nullptr) absl::StrAppend(&remedy, " ", Shown(name), "=", *was);
  };
  const Settings all = WithYoungerSettings(saved, here);
  for (const auto& [name, value] : all) {
    const std::string* const now = Find(here, name);
    if (now == nullptr || (*now != value && *now != InOurWords(name, value))) {
      differ(name, &value, now);
    }
  }
  for (const auto& [name, value] : here) {
    if (Find(all, name) == nullptr) differ(name, nullptr, &value);
  }
  if (differences.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(flag, ": ", absl::StrJoin(differences, ", "), "; use",
                   remedy.empty() ? " the same flags" : remedy,
                   ", or train anew with another --checkpoint_dir"));
}

}  // namespace hotrow
