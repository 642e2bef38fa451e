// The one table of the settings of a training run.
//
// To add a flag: its field in TrainerOptions (models/train/trainer_options.h), and its row here.
// Parsing, legal values, --help, the flags of a report, the settings that a checkpoint keeps and
// --resume compares, and those that ranks compare follow from the row. A row of role kBits that is
// added after a release says in `older` what runs had before. Defaults that differ in the programs
// stand in models/programs/trainer_flags.cc.
#include "models/train/trainer_settings.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "base/device.h"
#include "base/enum_words.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy.h"
#include "models/data/time_parts.h"
#include "ops/jagged.h"
#include "ops/update/sparse_optimizer.h"

namespace hotrow {
namespace {

using O = TrainerOptions;

constexpr int64_t kMany = int64_t{1} << 40;
constexpr double kSampleRateMin = 1e-9;

constexpr SettingRole kBits = SettingRole::kBits;
constexpr SettingRole kAlike = SettingRole::kAlike;
constexpr SettingRole kAlikeInPresence = SettingRole::kAlikeInPresence;
constexpr SettingPart kTables = SettingPart::kTableOptimizer;
constexpr SettingPart kDense = SettingPart::kDenseOptimizer;
constexpr SettingPart kSchedule = SettingPart::kSchedule;
constexpr SettingPart kExchange = SettingPart::kExchange;

constexpr char kDataGroup[] = "Data";
constexpr char kModelGroup[] = "Model";
constexpr char kTrainingGroup[] = "Training";
constexpr char kScheduleGroup[] = "Schedule";
constexpr char kTiersGroup[] = "Tiers";
constexpr char kRanksGroup[] = "Ranks";
constexpr char kCheckpointsGroup[] = "Checkpoints";
constexpr char kRunningGroup[] = "Running";
constexpr char kWatchingGroup[] = "Watching";
constexpr char kPlanningGroup[] = "Planning";

// "uniform_rows", "zeros", "uniform:0.01", "normal:0.01", "constant:0.5".
absl::Status ParseInitializer(std::string_view text, std::optional<Initializer>* out) {
  const size_t colon = std::min(text.find(':'), text.size());
  const std::string_view word = text.substr(0, colon);
  const bool has_value = colon < text.size();
  if (!has_value && word == "uniform_rows") {
    out->reset();
    return absl::OkStatus();
  }
  Initializer parsed = {InitializerKind::kZeros, 0};
  if (has_value || word != "zeros") {
    const bool known = word == "uniform" || word == "normal" || word == "constant";
    const std::string value(text.substr(std::min(colon + 1, text.size())));
    if (!known || !has_value || !absl::SimpleAtof(value, &parsed.value)) {
      return absl::InvalidArgumentError(
          "takes uniform_rows, zeros, uniform:X, normal:X or constant:X, as in uniform:0.01");
    }
    parsed.kind = word == "uniform"  ? InitializerKind::kUniform
                  : word == "normal" ? InitializerKind::kNormal
                                     : InitializerKind::kConstant;
  }
  if (absl::Status status = parsed.Validate(); !status.ok()) return status;
  *out = parsed;
  return absl::OkStatus();
}

std::string InitializerText(const std::optional<Initializer>& initializer) {
  if (!initializer.has_value()) return "uniform_rows";
  float value = initializer->value;
  const std::string number = FlagText(RealFlag(&value, 0, 0).get());
  switch (initializer->kind) {
    case InitializerKind::kZeros:
      return "zeros";
    case InitializerKind::kConstant:
      return absl::StrCat("constant:", number);
    case InitializerKind::kUniform:
      return absl::StrCat("uniform:", number);
    case InitializerKind::kNormal:
      return absl::StrCat("normal:", number);
  }
  return "unknown";
}

FlagField InitializerFlag(std::optional<Initializer>* field) {
  return {.hint = "WORD",
          .set = [field](std::string_view text) { return ParseInitializer(text, field); },
          .get = [field] { return FlagValue(InitializerText(*field)); }};
}

// "1,0.5".
FlagField WeightsFlag(std::vector<double>* field) {
  return {.hint = "X,X,...",
          .set =
              [field](std::string_view text) {
                std::vector<double> weights;
                for (const absl::string_view item : absl::StrSplit(
                         absl::string_view(text.data(), text.size()), ',', absl::SkipEmpty())) {
                  double& weight = weights.emplace_back();
                  if (absl::SimpleAtod(item, &weight) && weight >= 0 && weight <= 1e6) continue;
                  return absl::InvalidArgumentError(
                      "takes numbers from 0 to 1e+06 joined by commas, as in 1,0.5");
                }
                *field = std::move(weights);
                return absl::OkStatus();
              },
          .get =
              [field] {
                return FlagValue(absl::StrJoin(*field, ",", [](std::string* text, double weight) {
                  absl::StrAppend(text, FlagText(FlagValue(weight)));
                }));
              }};
}

// "1d"; empty: none.
FlagField DurationFlag(int64_t* seconds) {
  return {
      .hint = "TIME",
      .set =
          [seconds](std::string_view text) {
            const std::optional<int64_t> parsed =
                text.empty() ? std::optional<int64_t>(0) : ParseDuration(text);
            if (!parsed.has_value()) {
              return absl::InvalidArgumentError(
                  "takes a length of time such as 90s, 30m, 12h or 1d, at least 1s");
            }
            *seconds = *parsed;
            return absl::OkStatus();
          },
      .get =
          [seconds] { return FlagValue(*seconds == 0 ? std::string() : DurationText(*seconds)); }};
}

// The names of all entries of a table of facts or words.
template <typename Table>
std::vector<std::string_view> WordsOf(const Table& all) {
  std::vector<std::string_view> words;
  for (const auto& entry : all) words.push_back(entry.name);
  return words;
}

// Models take pooled features.
std::vector<EnumWord<Pooling>> PoolingWords() { return WordsBut(kPoolingWords, Pooling::kNone); }

// Fields without a flag take any number.
FlagField AnyReal(float* field) { return RealFlag(field, -3e38, 3e38); }

const TrainerSetting kSettings[] = {
    {.name = "seed",
     .group = kDataGroup,
     .help = "seed of generated data, first parameters and dropout. The same seed gives the same "
             "bits",
     .role = kBits,
     .bind = [](O& o) { return IntFlag(&o.seed, 0, INT64_MAX); }},
    {.name = "shuffle_bytes",
     .group = kDataGroup,
     .help =
         "memory for training data of files, parsed, that are mixed with each other in an order "
         "of each epoch. Data that fit are shuffled as a whole; of larger packed data blocks "
         "come in any order, and as many as a quarter holds are mixed; larger text is mixed "
         "in windows of 65,536 samples. 0: the order of the files",
     .role = kBits,
     .older = {.value = "536870912"},
     .bind = [](O& o) { return BytesFlag(&o.shuffle_bytes, kNoMinWord, kFlagMemoryBytesMax); }},

    {.name = "window",
     .group = kDataGroup,
     .help =
         "train in the order of time: the samples of one day (1d), say, then those of the next, "
         "each judged before it is trained, with its metrics in the report and a checkpoint "
         "behind it. Samples come in the order of the files and must ascend in time",
     .help_default = "none",
     .role = kBits,
     .older = {.value = ""},
     .bind = [](O& o) { return DurationFlag(&o.window_seconds); }},

    {.name = "embedding_dim",
     .group = kModelGroup,
     .help = "columns of each embedding vector",
     .role = kBits,
     .bind = [](O& o) { return IntFlag(&o.embedding_dim, 1, 1 << 16); }},
    {.name = "weights_precision",
     .group = kModelGroup,
     .help = "storage type of the embeddings: fp32, fp16 or bf16. 16-bit types halve the bytes; "
             "updates use unbiased stochastic rounding. Sums, gradients and optimizer state stay "
             "fp32",
     .role = kBits,
     .older = {.value = "fp32"},
     .bind =
         [](O& o) {
           return WordFlag("WORD", &o.weights_precision, ParseWeightsPrecision,
                           WeightsPrecisionName);
         }},
    {.name = "pooling",
     .group = kModelGroup,
     .help = "how the rows of a bag become one vector",
     .words = [] { return WordsOf(PoolingWords()); },
     .role = kBits,
     .bind = [](O& o) { return WordFlag("WORD", &o.pooling, PoolingWords()); }},
    {.name = "initializer",
     .group = kModelGroup,
     .help = "first values of rows: uniform_rows (uniform in +-1/sqrt(rows of the table)), zeros, "
             "uniform:X (in +-X), normal:X (standard deviation X) or constant:X",
     .role = kBits,
     .older = {.value = "uniform_rows"},
     .bind = [](O& o) { return InitializerFlag(&o.initializer); }},

    {.name = "batch_size",
     .group = kTrainingGroup,
     .help = "samples per step",
     .role = kBits,
     .bind = [](O& o) { return IntFlag(&o.batch_size, 1, 1 << 24); }},
    {.name = "epochs",
     .group = kTrainingGroup,
     .help = "passes over the training data",
     .role = kAlike,
     .bind = [](O& o) { return IntFlag(&o.epochs, 1, 1 << 20); }},
    {.name = "limit_train_batches",
     .group = kTrainingGroup,
     .help = "maximum steps of an epoch; 0: all data",
     .role = kBits,
     .bind = [](O& o) { return IntFlag(&o.limit_train_batches, 0, kMany); }},
    {.name = "validation_freq_within_epoch",
     .group = kTrainingGroup,
     .help = "steps between validations; 0: at the end of each epoch",
     .role = kBits,
     .bind = [](O& o) { return IntFlag(&o.validation_freq_within_epoch, 0, kMany); }},
    {.name = "follow",
     .group = kTrainingGroup,
     .help = "with --window: behind the last window wait so long for the next, in files that match "
             "--data and come whole, by name behind the others. The last window that is there is "
             "trained once a later one has begun",
     .help_default = "none",
     .role = kAlike,
     .bind = [](O& o) { return DurationFlag(&o.follow_seconds); }},
    {.name = "optimizer",
     .group = kTrainingGroup,
     .help = "optimizer of the tables",
     .words = [] { return WordsOf(SparseOptimizers()); },
     .role = kBits,
     .part = kTables,
     .bind = [](O& o) { return ScoringField("optimizer", &o); }},
    {.name = "dense_optimizer",
     .group = kTrainingGroup,
     .help = "optimizer of the dense parameters: sgd, adagrad or adam",
     .role = kBits,
     .part = kDense,
     .bind =
         [](O& o) {
           return WordFlag("WORD", &o.dense_optimizer.kind, ParseDenseOptimizer,
                           DenseOptimizerName);
         }},
    {.name = "precision",
     .group = kTrainingGroup,
     .help =
         "type of the factors of dense matrix products: fp32, bf16 (GPUs, and CPUs with AVX-512 "
         "BF16; fast with AMX), tf32 or fp16 (GPUs). Sums, parameters and optimizer state stay "
         "fp32",
     .role = kBits,
     .part = kDense,
     .older = {.value = "fp32"},
     .bind = [](O& o) { return ScoringField("precision", &o); }},
    {.name = "loss_scale",
     .group = kTrainingGroup,
     .help = "with --precision=fp16: what the loss is multiplied by at first, a power of two. It "
             "halves where a gradient is not finite, and that step is left out; it doubles after "
             "2,000 steps without",
     .role = kBits,
     .part = kDense,
     .older = {.value = "65536"},
     .bind = [](O& o) { return RealFlag(&o.loss_scale, kLossScaleMin, kLossScaleMax); }},
    {.name = "learning_rate",
     .group = kTrainingGroup,
     .help = "learning rate of the tables",
     .role = kBits,
     .part = kTables,
     .bind = [](O& o) { return ScoringField("learning_rate", &o); }},
    {.name = "dense_learning_rate",
     .group = kTrainingGroup,
     .help = "learning rate of the dense parameters; 0: that of the tables",
     .role = kBits,
     .part = kDense,
     .bind = [](O& o) { return RealFlag(&o.dense_optimizer.learning_rate, 0, 1e30); }},
    // The programs copy it to the dense optimizer.
    {.name = "eps",
     .group = kTrainingGroup,
     .help = "added to the denominators of Adagrad, Adam and LAMB. Larger values damp the steps of "
             "rare rows",
     .role = kBits,
     .part = kTables,
     .bind = [](O& o) { return ScoringField("eps", &o); }},
    {.name = "weight_decay",
     .group = kTrainingGroup,
     .help = "L2 factor of the dense parameters: the gradient gets this times the weight",
     .role = kBits,
     .part = kDense,
     .bind = [](O& o) { return RealFlag(&o.dense_optimizer.weight_decay, 0, 1e6); }},
    {.name = "ema_decay",
     .group = kTrainingGroup,
     .help =
         "decay of a running average of the dense parameters, as 0.999, with which the model is "
         "evaluated and scored; the first steps count less. 0: none",
     .role = kBits,
     .part = kDense,
     .older = {.value = "0"},
     .bind = [](O& o) { return RealFlag(&o.dense_optimizer.average_decay, 0, 0.9999999); }},
    {.name = "table_weight_decay",
     .group = kTrainingGroup,
     .help = "L2 factor of the tables, see --table_weight_decay_mode",
     .role = kBits,
     .part = kTables,
     .bind = [](O& o) { return ScoringField("table_weight_decay", &o); }},
    {.name = "table_optimizer.weight_decay_mode",
     .flag = "table_weight_decay_mode",
     .group = kTrainingGroup,
     .help = "which rows decay, and how. l2: those of the batch, as a part of their gradient. "
             "decoupled: those of the batch, beside the optimizer's step. table: all rows in each "
             "step, as a part of their gradient, as in frameworks with dense gradients (BARS, "
             "FuxiCTR); rows make up for the steps they missed when they are next used, with the "
             "same bits (--device=cpu)",
     .role = kBits,
     .part = kTables,
     .older = {.value = "l2"},
     .bind = [](O& o) { return ScoringField("table_optimizer.weight_decay_mode", &o); }},
    {.name = "table_optimizer.beta1",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0.9"},
     .bind = [](O& o) { return ScoringField("table_optimizer.beta1", &o); }},
    {.name = "table_optimizer.beta2",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0.999"},
     .bind = [](O& o) { return ScoringField("table_optimizer.beta2", &o); }},
    {.name = "table_optimizer.initial_accumulator",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return ScoringField("table_optimizer.initial_accumulator", &o); }},
    {.name = "table_optimizer.lr_power",
     .role = kBits,
     .part = kTables,
     .older = {.value = "-0.5"},
     .bind = [](O& o) { return ScoringField("table_optimizer.lr_power", &o); }},
    {.name = "table_optimizer.l1",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return ScoringField("table_optimizer.l1", &o); }},
    {.name = "table_optimizer.l2",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return ScoringField("table_optimizer.l2", &o); }},
    {.name = "table_optimizer.ftrl_beta",
     .flag = "ftrl_beta",
     .group = kTrainingGroup,
     .help = "beta of ftrl: the rate of a column is the learning rate / (beta + root of its sum of "
             "squares). Larger values damp the first steps",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return ScoringField("table_optimizer.ftrl_beta", &o); }},
    {.name = "dense_optimizer.eps",
     .role = kBits,
     .part = kDense,
     .older = {.same_as = "eps"},  // one flag has always set both
     .bind = [](O& o) { return AnyReal(&o.dense_optimizer.eps); }},
    {.name = "dense_optimizer.beta1",
     .role = kBits,
     .part = kDense,
     .older = {.value = "0.9"},
     .bind = [](O& o) { return AnyReal(&o.dense_optimizer.beta1); }},
    {.name = "dense_optimizer.beta2",
     .role = kBits,
     .part = kDense,
     .older = {.value = "0.999"},
     .bind = [](O& o) { return AnyReal(&o.dense_optimizer.beta2); }},
    {.name = "frozen_tables",
     .group = kTrainingGroup,
     .help = "tables, joined by commas, whose rows are looked up and not trained; with --init_from "
             "they stay as they are there",
     .role = kBits,
     .part = kTables,
     .older = {.value = ""},
     .bind = [](O& o) { return ScoringField("frozen_tables", &o); }},
    {.name = "read_only_features",
     .group = kTrainingGroup,
     .help = "features, joined by commas, whose lookups train no rows; other features of the same "
             "table do",
     .role = kBits,
     .part = kTables,
     .older = {.value = ""},
     .bind = [](O& o) { return ScoringField("read_only_features", &o); }},
    {.name = "admission",
     .group = kTrainingGroup,
     .help =
         "which keys get rows: always, in the step of the first lookup; lookups:N, of the N-th; "
         "lookups:N:STEPS, and a key that was not looked up for more than so many steps counts "
         "from 0; coin:P, each lookup with probability P. Others read their first values and "
         "are not trained",
     .role = kBits,
     .part = kTables,
     .older = {.value = "always"},
     .bind = [](O& o) { return WordFlag("RULE", &o.admission, ParseAdmission, AdmissionText); }},
    {.name = "ttl_steps",
     .group = kTrainingGroup,
     .help = "rows that no step has updated for more than so many steps are dropped, and read as "
             "new; 0: never",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return IntFlag(&o.ttl_steps, 0, UINT32_MAX); }},
    {.name = "min_rows",
     .group = kTrainingGroup,
     .help = "with --ttl_steps: of each table so many rows stay, those of the latest updates, "
             "however old they are; 0: none",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return IntFlag(&o.min_rows, 0, INT64_MAX); }},
    {.name = "max_rows",
     .group = kTrainingGroup,
     .help = "of each table so many rows stay, those of the latest updates; kept at each multiple "
             "of --row_limit_steps; 0: all",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return IntFlag(&o.max_rows, 0, INT64_MAX); }},
    {.name = "row_limit_steps",
     .group = kTrainingGroup,
     .help = "--min_rows and --max_rows are kept after each so many steps, and rows of so many "
             "steps go together",
     .role = kBits,
     .part = kTables,
     .older = {.value = "64"},
     .bind = [](O& o) { return IntFlag(&o.row_limit_steps, 1, 1 << 20); }},
    {.name = "serve_rows",
     .group = kTrainingGroup,
     .help =
         "how lookups read rows, in training and evaluation: with the weights of a model that "
         "is served with such rows, so that what is trained is what is served; updates keep all "
         "bits",
     .words = [] { return WordsOf(AllWords(kServingRowsWords)); },
     .role = kBits,
     .part = kTables,
     .older = {.value = "as_trained"},
     .bind = [](O& o) { return ScoringField("serve_rows", &o); }},
    {.name = "task_weights",
     .group = kTrainingGroup,
     .help = "data of several labels: the factor of each label's loss, in their order, joined by "
             "commas; none: 1",
     .role = kBits,
     .part = kSchedule,
     .older = {.value = ""},
     .bind = [](O& o) { return WeightsFlag(&o.task_weights); }},
    {.name = "max_gradient_norm",
     .group = kTrainingGroup,
     .help = "clips the gradient of all dense parameters to this Euclidean norm; 0: never",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return RealFlag(&o.max_gradient_norm, 0, 1e30); }},

    {.name = "max_row_gradient_norm",
     .group = kTrainingGroup,
     .help = "clips the gradient of each row of a table to this Euclidean norm; 0: never",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return RealFlag(&o.max_row_gradient_norm, 0, 1e30); }},
    {.name = "max_table_gradient_norm",
     .group = kTrainingGroup,
     .help = "clips the gradient of all rows of a step together to this Euclidean norm; 0: never",
     .role = kBits,
     .part = kTables,
     .older = {.value = "0"},
     .bind = [](O& o) { return RealFlag(&o.max_table_gradient_norm, 0, 1e30); }},

    {.name = "lr_warmup_steps",
     .group = kScheduleGroup,
     .help = "steps over which all learning rates rise linearly",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return IntFlag(&o.schedule.lr_warmup_steps, 0, kMany); }},
    {.name = "lr_decay_start",
     .group = kScheduleGroup,
     .help = "step at which learning rates begin to fall",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return IntFlag(&o.schedule.lr_decay_start, 0, kMany); }},
    {.name = "lr_decay_steps",
     .group = kScheduleGroup,
     .help = "steps of the fall, with the square of the steps left; 0: never",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return IntFlag(&o.schedule.lr_decay_steps, 0, kMany); }},
    {.name = "lr_plateau_factor",
     .group = kScheduleGroup,
     .help = "learning rates are multiplied by this when validation stops improving",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return RealFlag(&o.schedule.lr_plateau_factor, 0, 1); }},
    {.name = "lr_plateau_patience",
     .group = kScheduleGroup,
     .help = "validations without a better AUC before that; 0: never",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return IntFlag(&o.schedule.lr_plateau_patience, 0, kMany); }},
    {.name = "early_stop_patience",
     .group = kScheduleGroup,
     .help = "validations without a better AUC before training ends. Test metrics and the saved "
             "model are then those of the best validation; 0: never",
     .role = kBits,
     .part = kSchedule,
     .bind = [](O& o) { return IntFlag(&o.schedule.early_stop_patience, 0, kMany); }},
    {.name = "keep_best",
     .group = kScheduleGroup,
     .help = "test metrics and the saved model (--save_dir) are those of the best validation, as "
             "with --early_stop_patience, and training goes on to the end",
     .role = kBits,
     .part = kSchedule,
     .older = {.value = "false"},
     .bind = [](O& o) { return SwitchFlag(&o.keep_best); }},
    {.name = "validation_task",
     .group = kScheduleGroup,
     .help = "data of several labels: the label whose AUC decides; none: the mean over all of them",
     .role = kBits,
     .part = kSchedule,
     .older = {.value = ""},
     .bind = [](O& o) { return StringFlag("LABEL", &o.validation_task); }},
    {.name = "schedule.validation_min_delta",
     .role = kBits,
     .part = kSchedule,
     .older = {.value = "1e-06"},
     .bind = [](O& o) { return RealFlag(&o.schedule.validation_min_delta, 0, 1); }},

    {.name = "store",
     .group = kTiersGroup,
     .help = "where rows live below the cache: memory, ssd (a log on a disk, with an index in "
             "memory) or rocksdb. It does not change results",
     .role = kAlike,
     .bind = [](O& o) { return WordFlag("KIND", &o.store, ParseStoreKind, StoreKindName); }},
    {.name = "store_path",
     .group = kTiersGroup,
     .help =
         "directory of an ssd or rocksdb store, made if missing. One run at a time. ssd: a list "
         "A,B stripes the rows over directories on several drives; the first is the home, and "
         "more can be added behind. A comma of a name is written twice",
     .bind = [](O& o) { return StringFlag("DIR", &o.store_path); }},
    {.name = "store_bytes",
     .group = kTiersGroup,
     .help = "memory budget of the store, a hard limit. memory: all rows; 0: 80 % of the memory "
             "this process may use, minus the cache and --exchange_feedback. ssd: index (10 bytes "
             "a row) and buffers; rocksdb: block cache and write buffers; 0: 10 %",
     .bind = [](O& o) { return BytesFlag(&o.store_bytes, kNoMinWord, kFlagMemoryBytesMax); }},
    {.name = "cache_bytes",
     .group = kTiersGroup,
     .help = "budget of the row cache over the store, a hard limit, in bytes or as in 64MiB, 1.5G. "
             "min: the rows of one step. 0: over memory no cache, rows are trained in the store; "
             "over ssd and rocksdb 50 % of the memory, since each miss is a read. It does not "
             "change results",
     .role = kAlikeInPresence,  // statistics are added up tier by tier
     .bind = [](O& o) { return BytesFlag(&o.cache_bytes, kSmallestCache, kFlagMemoryBytesMax); }},
    {.name = "device_cache_bytes",
     .group = kTiersGroup,
     .help = "with --device=cuda: budget of device memory for rows, a hard limit; min: the rows of "
             "one step. --cache_bytes is then host memory between device and disk; 0: none. With "
             "--device=cpu: the tiers of a GPU in host memory, to try them out; 0: off",
     .role = kAlikeInPresence,
     .bind =
         [](O& o) {
           return BytesFlag(&o.device_cache_bytes, kSmallestCache, kFlagMemoryBytesMax);
         }},
    {.name = "device_index_bytes",
     .group = kTiersGroup,
     .help =
         "with --device_cache_bytes over --store=memory: budget of device memory for an index of "
         "the store, with which a GPU finds and reads rows that its cache does not have without "
         "the host. 32 bytes a row find nearly all; the host finds those that have no room. 0: "
         "none. It does not change results",
     .bind =
         [](O& o) { return BytesFlag(&o.device_index_bytes, kNoMinWord, kFlagMemoryBytesMax); }},
    {.name = "disk_bytes",
     .group = kTiersGroup,
     .help = "budget of the files of an ssd or rocksdb store, snapshots included, a hard limit. "
             "Give at least twice the size of the rows; 0: 80 % of the free space",
     .bind = [](O& o) { return BytesFlag(&o.disk_bytes); }},
    {.name = "cache_policy",
     .group = kTiersGroup,
     .help = "which row leaves a full cache",
     .words =
         [] {
           std::vector<std::string_view> words;
           for (const CachePolicyFacts& facts : CachePolicies()) words.push_back(facts.help);
           return words;
         },
     .bind =
         [](O& o) { return WordFlag("WORD", &o.cache_policy, ParseCachePolicy, CachePolicyName); }},
    {.name = "admission_bytes",
     .group = kTiersGroup,
     .help = "memory of each rank for the counters of --admission=lookups, about 24 bytes for each "
             "key that waits for its row; not part of the tiers' budgets. Checkpoints hold them",
     .role = kAlikeInPresence,
     .bind = [](O& o) { return BytesFlag(&o.admission_bytes, kNoMinWord, kFlagMemoryBytesMax); }},
    {.name = "prefetch_depth",
     .group = kTiersGroup,
     .help = "steps whose rows are brought into the cache ahead of time. It does not change "
             "results",
     .bind = [](O& o) { return IntFlag(&o.prefetch_depth, 0, 32); }},

    {.name = "exchange_forward",
     .group = kRanksGroup,
     .help = "type of rows sent between ranks in training: fp32, fp16, bf16 or int8 (one scale a "
             "row)",
     .role = kBits,
     .part = kExchange,
     .bind =
         [](O& o) {
           return WordFlag("WORD", &o.exchange_forward, ParseExchangeType, ExchangeTypeName);
         }},
    {.name = "exchange_backward",
     .group = kRanksGroup,
     .help = "type of gradients sent between ranks: fp32, fp16, bf16 or int8",
     .role = kBits,
     .part = kExchange,
     .bind =
         [](O& o) {
           return WordFlag("WORD", &o.exchange_backward, ParseExchangeType, ExchangeTypeName);
         }},
    {.name = "exchange_rounding",
     .group = kRanksGroup,
     .help = "rounding to these types: nearest, or stochastic (unbiased, and the same in each run)",
     .role = kBits,
     .part = kExchange,
     .bind =
         [](O& o) {
           return WordFlag("WORD", &o.exchange_rounding, ParseExchangeRounding,
                           ExchangeRoundingName);
         }},
    // A run may resume with another budget: residuals then begin at zero.
    {.name = "exchange_feedback",
     .group = kRanksGroup,
     .help = "error feedback: memory of each rank for the rounding errors of sent gradients, which "
             "are added to the next gradient of the same row. For --exchange_backward fp16, bf16 "
             "or int8; not part of the tiers' budgets. Checkpoints hold it; 0: off",
     .role = kAlike,
     .bind =
         [](O& o) {
           return BytesFlag(&o.exchange_feedback_bytes, kNoMinWord, kFlagMemoryBytesMax);
         }},

    {.name = "checkpoint_dir",
     .group = kCheckpointsGroup,
     .help = "directory of checkpoints of the whole run. After a kill or a power loss --resume "
             "goes on from the newest with the same bits. SIGINT, SIGTERM, SIGHUP and SIGPIPE take "
             "one more and end the run. With --store=memory it holds the rows too",
     .role = kAlikeInPresence,
     .bind = [](O& o) { return StringFlag("DIR", &o.checkpoint_dir); }},
    {.name = "checkpoint_every",
     .group = kCheckpointsGroup,
     .help = "steps between checkpoints. Training goes on while one is written; 0: at the end and "
             "on signals only",
     .role = kAlike,
     .bind = [](O& o) { return IntFlag(&o.checkpoint_every, 0, kMany); }},
    {.name = "keep_checkpoints",
     .group = kCheckpointsGroup,
     .help = "how many checkpoints stay; fewer if an ssd store would exceed its disk budget",
     .role = kAlike,
     .bind = [](O& o) { return IntFlag(&o.keep_checkpoints, 1, 1 << 20); }},
    {.name = "resume",
     .group = kCheckpointsGroup,
     .help = "go on from the newest checkpoint of --checkpoint_dir, or start if there is none. A "
             "supervisor can repeat the same command. Threads, tiers and "
             "--checkpoint_every may change, and --epochs may grow",
     .role = kAlike,
     .bind = [](O& o) { return SwitchFlag(&o.resume); }},
    {.name = "delta_dir",
     .group = kCheckpointsGroup,
     .help = "directory of a chain of deltas for those who follow the run (docs/deltas.md): the "
             "model once, then what changed, with --delta_every",
     .role = kAlikeInPresence,
     .bind = [](O& o) { return StringFlag("DIR", &o.delta_dir); }},
    {.name = "delta_every",
     .group = kCheckpointsGroup,
     .help = "steps between deltas, a multiple of --checkpoint_every; one more is written at the "
             "end",
     .role = kAlike,
     .bind = [](O& o) { return IntFlag(&o.delta_every, 0, kMany); }},
    {.name = "delta_rows",
     .group = kCheckpointsGroup,
     .help = "weights in deltas: fp32, fp16, bf16 or int8 (one scale a row)",
     .role = kAlike,
     .bind =
         [](O& o) { return WordFlag("WORD", &o.delta_rows, ParseExchangeType, ExchangeTypeName); }},
    {.name = "delta_weights_only",
     .group = kCheckpointsGroup,
     .help = "deltas without the state of the optimizers",
     .role = kAlike,
     .bind = [](O& o) { return SwitchFlag(&o.delta_weights_only); }},
    {.name = "keep_deltas",
     .group = kCheckpointsGroup,
     .help = "how many deltas stay at least. When so many are behind the base, the newest becomes "
             "the base and older ones go; 0: all stay",
     .role = kAlike,
     .bind = [](O& o) { return IntFlag(&o.keep_deltas, 0, 1 << 20); }},
    {.name = "delta_bytes",
     .group = kCheckpointsGroup,
     .help = "memory of writing a delta, beside all other budgets, of rank 0; of tables on a disk "
             "130 bytes for each row written since the last one",
     .role = kAlike,
     .bind = [](O& o) { return BytesFlag(&o.delta_bytes, kNoMinWord, kFlagMemoryBytesMax); }},
    {.name = "checkpoint_in_background",
     .role = kAlike,
     .bind = [](O& o) { return SwitchFlag(&o.checkpoint_in_background); }},

    {.name = "cuda_graph",
     .group = kRunningGroup,
     .help = "with --device=cuda: forward and backward of whole batches are one launch, of one "
             "rank and models without a history. It changes no bit",
     .bind = [](O& o) { return SwitchFlag(&o.cuda_graph); }},
    {.name = "fuse_lookup",
     .group = kRunningGroup,
     .help = "with --device=cuda: dlrm on one rank, with a --precision other than fp32, reads rows "
             "where they lie in the cache, in batches with one lookup a feature. It changes no bit",
     .bind = [](O& o) { return SwitchFlag(&o.fuse_lookup); }},
    {.name = "device",
     .group = kRunningGroup,
     .help = "where tables and model compute: cpu, or cuda (the first GPU of CUDA_VISIBLE_DEVICES)",
     .role = kBits,
     .part = SettingPart::kDevice,
     .older = {.as_now = true},
     .bind = [](O& o) { return WordFlag("WORD", &o.device, AllWords(kDeviceWords)); }},
    {.name = "save_dir",
     .group = kRunningGroup,
     .help = "save the trained model here: tables, dense parameters, optimizer state. An older "
             "model stays until the new one is whole",
     .role = kAlikeInPresence,
     .bind = [](O& o) { return StringFlag("DIR", &o.save_dir); }},
    {.name = "init_from",
     .group = kRunningGroup,
     .help = "start from the model of a --save_dir, or from a checkpoint. Ids that it lacks get "
             "new rows",
     .role = kBits,
     .part = SettingPart::kStart,
     .bind = [](O& o) { return StringFlag("DIR", &o.init_from); }},
    {.name = "init_rows",
     .group = kRunningGroup,
     .help = "TABLE:PATH, joined by commas: rows that tables of a new run start from, also behind "
             "--init_from. A directory with keys.npy and weights.npy, as `hotrow export --table` "
             "writes it, or a CSV file of a key and weights",
     .role = kBits,
     .part = SettingPart::kStart,
     .older = {.value = ""},
     .bind = [](O& o) { return StringFlag("TABLE:PATH", &o.init_rows); }},
    {.name = "digest",
     .group = kRunningGroup,
     .help = "read every row at the end, for the hashes by which runs are compared; false: the "
             "report has neither hashes nor numbers of rows",
     .role = kAlike,
     .bind = [](O& o) { return SwitchFlag(&o.digest); }},
    {.name = "mllog",
     .group = kRunningGroup,
     .help = "also print MLPerf's :::MLLOG lines",
     .bind = [](O& o) { return SwitchFlag(&o.mllog); }},

    {.name = "metrics_file",
     .group = kWatchingGroup,
     .help = "keep the numbers of the run in this file, in Prometheus' text, replaced whole each "
             "time; `hotrow top` shows them. Several ranks put .rank<n> before its ending",
     .bind = [](O& o) { return StringFlag("FILE", &o.metrics_file); }},
    {.name = "metrics_port",
     .group = kWatchingGroup,
     .help = "serve the same by HTTP, at /metrics; 0: any free port; -1: none. Rank n listens at "
             "this port + n",
     .help_default = "none",
     .bind = [](O& o) { return IntFlag(&o.metrics_port, -1, 65535); }},
    {.name = "metrics_address",
     .group = kWatchingGroup,
     .help = "address to listen at. The default is for this machine alone; 0.0.0.0 is for all who "
             "reach it, without a password",
     .bind = [](O& o) { return StringFlag("ADDRESS", &o.metrics_address); }},
    {.name = "metrics_every",
     .group = kWatchingGroup,
     .help = "seconds between two states of the numbers, which change between steps",
     .bind = [](O& o) { return RealFlag(&o.metrics_every, 0.001, 86400); }},
    {.name = "disk_endurance_bytes",
     .flag = "disk_endurance",
     .group = kWatchingGroup,
     .help = "what may be written to the store's disk over its life (TBW on its data sheet), for "
             "the part of it that the run uses up; 0: not known",
     .bind = [](O& o) { return BytesFlag(&o.disk_endurance_bytes); }},

    {.name = "save_spec",
     .group = kPlanningGroup,
     .help = "write this run as a spec for `hotrow plan`: tables, tiers, ranks, dense model",
     .bind = [](O& o) { return StringFlag("FILE", &o.save_spec); }},
    {.name = "record_trace",
     .group = kPlanningGroup,
     .help = "write which keys the training steps use, for `hotrow trace`. Several ranks write "
             "FILE.rank0 and so on, each its own keys; a resumed run writes FILE.step<n>",
     .role = kAlikeInPresence,
     .bind = [](O& o) { return StringFlag("FILE", &o.record_trace); }},
    {.name = "sample_rate",
     .group = kPlanningGroup,
     .help = "share of the keys in --record_trace; 1: all",
     .help_default = "0.01",
     .bind = [](O& o) { return RealFlag(&o.sample_rate, kSampleRateMin, 1); }},
    {.name = "mrc",
     .group = kPlanningGroup,
     .help = "estimate the hit rates of caches of other sizes while training, for each table, for "
             "the --report",
     .role = kAlike,
     .bind = [](O& o) { return SwitchFlag(&o.mrc); }},
};

// Names all fields of these structs: a field that is added to one of them does not compile until it
// is named here, and needs a row above.
[[maybe_unused]] void EveryFieldHasARow(const O& o) {
  [[maybe_unused]] const auto& [kind, learning_rate, eps, beta1, beta2, weight_decay,
                                weight_decay_mode, initial_accumulator, lr_power, l1, l2,
                                ftrl_beta] = o.table_optimizer;
  [[maybe_unused]] const auto& [dense_kind, dense_learning_rate, dense_eps, dense_beta1,
                                dense_beta2, dense_weight_decay, average_decay] = o.dense_optimizer;
  [[maybe_unused]] const auto& [lr_warmup_steps, lr_decay_start, lr_decay_steps, lr_plateau_factor,
                                lr_plateau_patience, early_stop_patience, validation_min_delta] =
      o.schedule;
}

}  // namespace

// `bind` gives a field that can also be written; here it is only read.
FlagValue TrainerSetting::Value(const TrainerOptions& options) const {
  return bind(const_cast<TrainerOptions&>(options)).get();  // NOLINT
}

std::string TrainerSetting::Help() const {
  return words == nullptr ? help : absl::StrCat(help, ": ", OneOf(words()));
}

std::span<const TrainerSetting> TrainerSettings() { return kSettings; }

const TrainerSetting* FindTrainerSetting(std::string_view name) {
  const auto* const at =
      std::find_if(std::begin(kSettings), std::end(kSettings),
                   [name](const TrainerSetting& row) { return row.name == name; });
  return at == std::end(kSettings) ? nullptr : at;
}

std::string FlagOfOption(std::string_view path) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"max_batch_size", "batch_size"},
      {"max_gradient_norm", "max_table_gradient_norm"},
      {"store.path", "store_path"},
      {"store.memory_bytes", "store_bytes"},
      {"store.disk_bytes", "disk_bytes"},
      {"cache.bytes", "cache_bytes"},
      {"cache.device_bytes", "device_cache_bytes"},
      {"cache.device_index_bytes", "device_index_bytes"},
      {"ranks.backward", "exchange_backward"},
      {"ranks.feedback_bytes", "exchange_feedback"},
      {"optimizer.weight_decay_mode", "table_optimizer.weight_decay_mode"}};
  std::string_view name = path;
  for (const auto& [option, setting] : kNames) {
    if (option == path) name = setting;
  }
  const TrainerSetting* const row = FindTrainerSetting(name);
  return row == nullptr ? std::string(path) : absl::StrCat("--", row->flag_name());
}

absl::Status CheckLowerBounds(const TrainerOptions& options) {
  for (const TrainerSetting& row : kSettings) {
    const FlagField field = row.bind(const_cast<TrainerOptions&>(options));  // NOLINT
    const FlagValue value = field.get();
    const auto* const number = std::get_if<int64_t>(&value);
    if (number == nullptr || *number >= field.min || *number == field.word_value) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--", row.flag_name(), " must be at least ", field.min, ", is ", *number));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
