#ifndef HOTROW_TESTS_MODELS_SCORED_MODELS_H_
#define HOTROW_TESTS_MODELS_SCORED_MODELS_H_

#include <bit>
#include <cstdint>
#include <fstream>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"
#include "models/data/ctr_batch.h"
#include "models/data/open_data_source.h"
#include "models/saving/portable_model.h"
#include "models/serving/scorer.h"
#include "models/train/trainer.h"
#include "models/zoo/model_kinds.h"

// Models that are trained in a moment, and the log that they are trained on, for the tests of what
// scores with them.

namespace hotrow::test {

inline constexpr int64_t kBatchSize = 48;
inline constexpr int kLines = 1300;
inline constexpr char kColumnsOfAFile[] = "time,click,like,user,friend,item,tags,price,age";

// A log with a bit of everything that a schema knows. Values are drawn with a long tail, so that
// the test split has keys that training never saw.
struct Log {
  using Line = std::map<std::string, std::string>;  // texts by column
  std::vector<Line> lines;

  Log() {
    RandomStream random(11, RandomPurpose::kTest);
    const auto skewed = [&](int n) {
      const double u = random.Uniform();
      return static_cast<int>(u * u * n);
    };
    for (int i = 0; i < kLines; ++i) {
      Line line;
      const int user = skewed(300);
      const int item = skewed(150);
      line["click"] = random.Uniform() < (user + item) % 7 / 8.0 ? "1" : "0";
      line["like"] = random.Uniform() < 0.3 ? "yes" : "no";
      line["user"] = absl::StrCat(user);
      line["friend"] = random.Uniform() < 0.1 ? "" : absl::StrCat(skewed(300));
      line["item"] = absl::StrCat("\"item, ", item, "\"");
      std::vector<std::string> tags;
      for (int t = skewed(6); t > 0; --t) tags.push_back(absl::StrCat("tag", skewed(40)));
      line["tags"] = absl::StrJoin(tags, "|");
      line["price"] = random.Uniform() < 0.1 ? "?" : absl::StrCat(skewed(1000), ".5");
      line["age"] = absl::StrCat(skewed(80) / 10.0);
      line["time"] = absl::StrCat(1'600'000'000 + i * 977);
      lines.push_back(std::move(line));
    }
  }

  static std::string Text(const Line& line, const std::vector<std::string>& columns) {
    std::vector<std::string> fields;
    for (const std::string& column : columns) fields.push_back(line.at(column));
    return absl::StrJoin(fields, ",");
  }
  // The samples of the test split, as the scorer takes them.
  std::vector<std::string> TestLines(const std::vector<std::string>& columns) const {
    std::vector<std::string> out;
    for (size_t i = 9; i < lines.size(); i += 10) out.push_back(Text(lines[i], columns));
    return out;
  }
};

inline const Log& TheLog() {
  static const Log* const log = new Log();
  return *log;
}

// Writes the log and its schema into dir; returns the path of the schema.
inline std::string WriteLog(const std::string& dir, bool two_labels) {
  const std::vector<std::string> columns = {"time", "click", "like",  "user", "friend",
                                            "item", "tags",  "price", "age"};
  std::ofstream file(dir + "/log.csv");
  file << kColumnsOfAFile << "\n";
  for (const Log::Line& line : TheLog().lines) file << Log::Text(line, columns) << "\n";
  const std::string path = dir + "/schema.json";
  std::ofstream(path)
      << R"json({
  "name": "shop", "quotes": true, "files": ["log.csv"], "missing_values": ["?"],
  "split": {"modulo": 10, "valid": [8], "test": [9]},
  "columns": [
    {"name": "click", "role": "label"},)json"
      << (two_labels
              ? R"json({"name": "like", "role": "label", "values": {"yes": 1, "no": 0}},)json"
              : "")
      << R"json(
    {"name": "log_price", "column": "price", "role": "dense", "transform": "log1p"},
    {"name": "age", "role": "dense"},
    {"name": "user", "role": "categorical", "key": "integer"},
    {"name": "friend", "role": "categorical", "key": "integer", "table": "user"},
    {"name": "item", "role": "categorical", "min_count": 4},
    {"name": "tags", "role": "categorical", "separator": "|", "max_hotness": 6, "missing": 60,
     "modulo": 50},
    {"name": "price_range", "column": "price", "role": "categorical", "key": "bucket",
     "boundaries": [1, 10.5, 100]},
    {"name": "hour", "column": "time", "role": "categorical", "part": "hour",
     "time_format": "unix"}
  ]
})json";
  return path;
}

using Shape = std::vector<std::pair<std::string, std::string>>;

// A model to train, as the flags of its program would say it.
struct Kind {
  std::string name;
  Shape shape;
  int32_t columns = 6;

  bool two_labels() const { return name == "mmoe"; }
};

inline std::vector<Kind> Kinds() {
  const Shape common = {{"over_arch_layer_sizes", "12-1"}, {"batch_norm", "false"}};
  const auto with = [&common](Shape own, const char* pooling = "sum") {
    own.insert(own.end(), common.begin(), common.end());
    own.emplace_back("pooling", pooling);
    return own;
  };
  Shape normed = with({}, "mean");
  for (auto& [flag, value] : normed) {
    if (flag == "batch_norm") value = "true";
  }
  return {
      {"dlrm", with({{"interaction", "dot"}, {"dense_arch_layer_sizes", "9-6"}})},
      {"dlrm", with({{"interaction", "cat"}, {"dense_arch_layer_sizes", "5"}}, "mean")},
      {"dcn", with({{"dcn_version", "2"},
                    {"dcn_num_layers", "2"},
                    {"dcn_low_rank_dim", "5"},
                    {"dcn_num_experts", "2"},
                    {"dcn_structure", "parallel"},
                    {"dense_arch_layer_sizes", ""}})},
      {"deepfm", normed, 7},
      {"wide_deep", with({}), 7},
      {"xdeepfm", with({{"cin_layer_sizes", "4-3"}}), 7},
      {"pnn", with({{"pnn_products", "both"}})},
      {"din", with({{"history", "tags:item"}, {"attention_layer_sizes", "7"}})},
      {"mmoe", with({{"num_experts", "3"}, {"expert_layer_sizes", "8"}})},
      {"bst", with({{"history", "tags:item"}, {"num_heads", "2"}, {"num_blocks", "2"}})},
      {"hstu", with({{"history", "tags:item"}, {"num_heads", "3"}, {"num_blocks", "2"}})},
  };
}

// A DLRM and a DCN that are wide enough for products of int8: the small ones above stay fp32.
inline std::vector<Kind> WideKinds() {
  const Shape dlrm = {{"interaction", "dot"},
                      {"dense_arch_layer_sizes", "80-16"},
                      {"over_arch_layer_sizes", "96-64-1"},
                      {"batch_norm", "false"},
                      {"pooling", "sum"}};
  const Shape dcn = {{"dcn_version", "2"},
                     {"dcn_num_layers", "2"},
                     {"dcn_low_rank_dim", "0"},
                     {"dcn_num_experts", "1"},
                     {"dcn_structure", "stacked"},
                     {"dense_arch_layer_sizes", ""},
                     {"over_arch_layer_sizes", "96-64-1"},
                     {"batch_norm", "false"},
                     {"pooling", "sum"}};
  return {{"dlrm", dlrm, 16}, {"dcn", dcn, 16}};
}

inline TrainerOptions OptionsOf(const Kind& kind) {
  TrainerOptions options;
  options.batch_size = kBatchSize;
  options.embedding_dim = kind.columns;
  options.table_optimizer.learning_rate = 0.05f;
  options.dense_optimizer.kind = DenseOptimizerKind::kAdagrad;
  options.dense_optimizer.learning_rate = 0.05f;
  options.seed = 3;
  options.store_bytes = int64_t{64} << 20;
  options.shape = kind.shape;
  options.initializer = Initializer{InitializerKind::kNormal, 0.3f};
  for (const auto& [flag, value] : kind.shape) {
    if (flag == "pooling" && value == "mean") options.pooling = Pooling::kMean;
  }
  if (kind.name == "deepfm") options.dense_optimizer.average_decay = 0.9f;
  return options;
}

inline ModelRecipe RecipeOf(const Kind& kind, const TrainerOptions& options,
                            const DataSchema& schema) {
  ModelRecipe recipe = {.model = kind.name,
                        .shape = kind.shape,
                        .num_dense = schema.num_dense,
                        .num_tasks = static_cast<int32_t>(schema.labels.size()),
                        .table_columns = kind.columns,
                        .seed = options.seed,
                        .max_batch_size = options.batch_size};
  for (const DataFeature& feature : schema.features) {
    recipe.features.push_back({feature.name, feature.table, feature.max_hotness});
  }
  return recipe;
}

inline absl::StatusOr<TrainReport> Train(const Kind& kind, const TrainerOptions& options,
                                         const std::string& data) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> source, OpenDataSource(data, 5));
  return RunTraining(options, *source,
                     [&](const DataSchema& schema) -> absl::StatusOr<std::unique_ptr<CtrModel>> {
                       return CreateModelOfKind(RecipeOf(kind, options, schema));
                     },
                     {});
}

// A model in all its forms: place/checkpoints, whose rows have missed steps, place/saved and
// place/exported. The report is of the run that saved it.
inline absl::StatusOr<TrainReport> TrainInAllForms(const Kind& kind, TrainerOptions options,
                                                   const std::string& data,
                                                   const std::string& place) {
  options.table_optimizer.kind = SparseOptimizerKind::kAdam;
  options.table_optimizer.weight_decay = 0.01f;
  options.table_optimizer.weight_decay_mode = WeightDecayMode::kTable;
  // The run that saves writes no checkpoint, whose end would settle its rows.
  TrainerOptions checkpointed = options;
  options.save_dir = place + "/saved";
  checkpointed.checkpoint_dir = place + "/checkpoints";
  HOTROW_RETURN_IF_ERROR(Train(kind, checkpointed, data).status());
  HOTROW_ASSIGN_OR_RETURN(TrainReport report, Train(kind, options, data));
  HOTROW_RETURN_IF_ERROR(
      ExportPortable({.checkpoint = options.save_dir, .dir = place + "/exported"}).status());
  return report;
}

// The batches of the test split, as evaluation sees them.
inline absl::StatusOr<std::vector<CtrBatch>> TestBatches(const std::string& data) {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<DataSource> source, OpenDataSource(data, 5));
  HOTROW_ASSIGN_OR_RETURN(const auto reader, source->OpenSplit(Split::kTest, 0, 0));
  std::vector<CtrBatch> out;
  while (true) {
    CtrBatch batch;
    HOTROW_RETURN_IF_ERROR(reader->Next(kBatchSize, &batch));
    if (batch.batch_size == 0) return out;
    out.push_back(std::move(batch));
  }
}

inline absl::StatusOr<std::vector<float>> ScoreAll(const Scorer& scorer,
                                                   const std::vector<CtrBatch>& batches) {
  std::vector<float> out;
  for (const CtrBatch& batch : batches) {
    std::vector<float> logits(static_cast<size_t>(batch.batch_size * scorer.num_tasks()));
    HOTROW_RETURN_IF_ERROR(scorer.Score({.sparse = batch.sparse(), .dense = batch.dense}, logits));
    out.insert(out.end(), logits.begin(), logits.end());
  }
  return out;
}

inline void ExpectSameBits(const std::vector<float>& found, const std::vector<float>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    ASSERT_EQ(std::bit_cast<uint32_t>(found[i]), std::bit_cast<uint32_t>(expected[i]))
        << i << ": " << found[i] << " and " << expected[i];
  }
}

inline std::vector<std::string_view> Views(const std::vector<std::string>& lines) {
  return {lines.begin(), lines.end()};
}

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_MODELS_SCORED_MODELS_H_
