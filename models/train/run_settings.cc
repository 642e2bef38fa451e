#include "models/train/run_settings.h"

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/device.h"
#include "base/status_macros.h"
#include "comm/communicator.h"

namespace hotrow {
namespace {

constexpr char kWeightsPrecision[] = "weights_precision";
constexpr char kInitializer[] = "initializer";
constexpr char kEps[] = "eps";
constexpr char kDevice[] = "device";
constexpr char kTableBeta1[] = "table_optimizer.beta1";
constexpr char kTableBeta2[] = "table_optimizer.beta2";
constexpr char kWeightDecayMode[] = "table_optimizer.weight_decay_mode";
constexpr char kInitialAccumulator[] = "table_optimizer.initial_accumulator";
constexpr char kLrPower[] = "table_optimizer.lr_power";
constexpr char kL1[] = "table_optimizer.l1";
constexpr char kL2[] = "table_optimizer.l2";
constexpr char kDenseEps[] = "dense_optimizer.eps";
constexpr char kDenseBeta1[] = "dense_optimizer.beta1";
constexpr char kDenseBeta2[] = "dense_optimizer.beta2";
constexpr char kMinDelta[] = "schedule.validation_min_delta";

// The shortest text that reads back as this number.
template <typename T>
std::string NumberText(T value) {
  char text[64];
  return std::string(text, std::to_chars(text, text + sizeof(text), value).ptr);
}

std::string YesOrNo(bool value) { return value ? "true" : "false"; }

// As the flag --initializer takes it.
std::string InitializerText(const std::optional<Initializer>& initializer) {
  if (!initializer.has_value()) return "uniform_rows";
  switch (initializer->kind) {
    case InitializerKind::kZeros:
      return "zeros";
    case InitializerKind::kConstant:
      return absl::StrCat("constant:", NumberText(initializer->value));
    case InitializerKind::kUniform:
      return absl::StrCat("uniform:", NumberText(initializer->value));
    case InitializerKind::kNormal:
      return absl::StrCat("normal:", NumberText(initializer->value));
  }
  return "unknown";
}

std::string WeightDecayModeText(WeightDecayMode mode) {
  return mode == WeightDecayMode::kL2 ? "l2" : "decoupled";
}

// As a message names it.
std::string Shown(const std::string& name) {
  return name.find('.') == std::string::npos ? absl::StrCat("--", name) : name;
}

const std::string* Find(const Settings& in, std::string_view name) {
  for (const auto& [key, value] : in) {
    if (key == name) return &value;
  }
  return nullptr;
}

// What a checkpoint does not say that is older than the setting. These are the values that runs had
// at that time; they stay when a default changes.
Settings WithYoungerSettings(const Settings& saved, const Settings& here) {
  Settings out = saved;
  const auto add = [&](const char* name, const std::string& value) {
    if (Find(saved, name) == nullptr) out.emplace_back(name, value);
  };
  const auto add_from = [&](const char* name, const Settings& from, const char* from_name) {
    if (const std::string* const value = Find(from, from_name)) add(name, *value);
  };
  add(kWeightsPrecision, "fp32");
  add(kInitializer, "uniform_rows");
  add(kTableBeta1, NumberText(0.9f));
  add(kTableBeta2, NumberText(0.999f));
  add(kWeightDecayMode, "l2");
  add(kInitialAccumulator, "0");
  add(kLrPower, NumberText(-0.5f));
  add(kL1, "0");
  add(kL2, "0");
  add(kDenseBeta1, NumberText(0.9f));
  add(kDenseBeta2, NumberText(0.999f));
  add(kMinDelta, NumberText(1e-6));
  // One flag has always set both.
  add_from(kDenseEps, saved, kEps);
  // A flag chose the device, and no checkpoint said which.
  add_from(kDevice, here, kDevice);
  return out;
}

}  // namespace

Settings BitSettings(const TrainerOptions& o) {
  Settings out = o.settings;
  const auto add = [&out](const char* name, std::string value) {
    if (Find(out, name) == nullptr) out.emplace_back(name, std::move(value));
  };
  for (const auto& [flag, value] : o.shape) add(flag.c_str(), value);
  // All fields by name: one that is added to these structs does not compile before it is here.
  const auto& [kind, learning_rate, eps, beta1, beta2, table_weight_decay, weight_decay_mode,
               initial_accumulator, lr_power, l1, l2] = o.table_optimizer;
  const auto& [dense_kind, dense_learning_rate, dense_eps, dense_beta1, dense_beta2, weight_decay] =
      o.dense_optimizer;
  const auto& [lr_warmup_steps, lr_decay_start, lr_decay_steps, lr_plateau_factor,
               lr_plateau_patience, early_stop_patience, validation_min_delta] = o.schedule;
  add("seed", NumberText(o.seed));
  add("embedding_dim", NumberText(o.embedding_dim));
  add(kWeightsPrecision, std::string(WeightsPrecisionName(o.weights_precision)));
  add("pooling", o.pooling == Pooling::kMean ? "mean" : "sum");
  add(kInitializer, InitializerText(o.initializer));
  add("batch_size", NumberText(o.batch_size));
  add("limit_train_batches", NumberText(o.limit_train_batches));
  add("validation_freq_within_epoch", NumberText(o.validation_freq_within_epoch));
  add("optimizer", std::string(SparseOptimizerName(kind)));
  add("learning_rate", NumberText(learning_rate));
  add(kEps, NumberText(eps));
  add("table_weight_decay", NumberText(table_weight_decay));
  add(kWeightDecayMode, WeightDecayModeText(weight_decay_mode));
  add(kTableBeta1, NumberText(beta1));
  add(kTableBeta2, NumberText(beta2));
  add(kInitialAccumulator, NumberText(initial_accumulator));
  add(kLrPower, NumberText(lr_power));
  add(kL1, NumberText(l1));
  add(kL2, NumberText(l2));
  add("dense_optimizer", std::string(DenseOptimizerName(dense_kind)));
  add("dense_learning_rate", NumberText(dense_learning_rate));
  add("weight_decay", NumberText(weight_decay));
  add(kDenseEps, NumberText(dense_eps));
  add(kDenseBeta1, NumberText(dense_beta1));
  add(kDenseBeta2, NumberText(dense_beta2));
  add("max_gradient_norm", NumberText(o.max_gradient_norm));
  add("lr_warmup_steps", NumberText(lr_warmup_steps));
  add("lr_decay_start", NumberText(lr_decay_start));
  add("lr_decay_steps", NumberText(lr_decay_steps));
  add("lr_plateau_factor", NumberText(lr_plateau_factor));
  add("lr_plateau_patience", NumberText(lr_plateau_patience));
  add("early_stop_patience", NumberText(early_stop_patience));
  add(kMinDelta, NumberText(validation_min_delta));
  add("init_from", o.init_from);
  add("exchange_forward", std::string(ExchangeTypeName(o.exchange_forward)));
  add("exchange_backward", std::string(ExchangeTypeName(o.exchange_backward)));
  add("exchange_rounding", std::string(ExchangeRoundingName(o.exchange_rounding)));
  add(kDevice, std::string(DeviceName(o.device)));
  return out;
}

absl::StatusOr<NamedValues> RankSettings(const TrainerOptions& o, const DataSource& data) {
  NamedValues out;
  const auto add = [&out](std::string name, std::string value) {
    out.emplace_back(std::move(name), std::move(value));
  };
  for (const auto& [name, value] : BitSettings(o)) add(Shown(name), value);
  add("--epochs", NumberText(o.epochs));
  add("--exchange_feedback", NumberText(o.exchange_feedback_bytes));
  add("--store", std::string(StoreKindName(o.store)));
  // Which tiers there are, not how large: statistics are added up tier by tier.
  add("--cache_bytes", o.cache_bytes == 0 ? "0" : "not 0");
  add("--device_cache_bytes", o.device_cache_bytes == 0 ? "0" : "not 0");
  add("--checkpoint_every", NumberText(o.checkpoint_every));
  add("--keep_checkpoints", NumberText(o.keep_checkpoints));
  add("--resume", YesOrNo(o.resume));
  add("--mrc", YesOrNo(o.mrc));
  for (const auto& [flag, path] :
       {std::pair<const char*, const std::string&>{"--checkpoint_dir", o.checkpoint_dir},
        {"--save_dir", o.save_dir},
        {"--record_trace", o.record_trace}}) {
    add(flag, path.empty() ? "not given" : "given");
  }
  add("checkpoint_in_background", YesOrNo(o.checkpoint_in_background));
  if (o.communicator != nullptr) {
    add("CommunicatorOptions.message_bytes_max",
        NumberText(o.communicator->options().message_bytes_max));
  }

  const DataSchema& schema = data.schema();
  HOTROW_ASSIGN_OR_RETURN(const auto identity, data.Identity());
  for (const auto& [what, value] : identity) {
    add(what.empty() ? "--data" : absl::StrCat("--data, ", what), value);
  }
  add("--data, samples", absl::StrCat(schema.train_samples, " train, ", schema.valid_samples,
                                      " validation, ", schema.test_samples, " test"));
  add("--data, dense features", NumberText(schema.num_dense));
  add("--data, features",
      absl::StrJoin(schema.features, " ", [](std::string* text, const DataFeature& feature) {
        absl::StrAppend(text, feature.name, ":", feature.table, ":", feature.num_embeddings, ":",
                        feature.max_hotness);
      }));
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
    differences.push_back(absl::StrCat(Shown(name), " was ", text(was), " and is ", text(is)));
    if (was != nullptr) absl::StrAppend(&remedy, " ", Shown(name), "=", *was);
  };
  const Settings all = WithYoungerSettings(saved, here);
  for (const auto& [name, value] : all) {
    const std::string* const now = Find(here, name);
    if (now == nullptr || *now != value) differ(name, &value, now);
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
