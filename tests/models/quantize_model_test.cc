#include "models/serving/quantize_model.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "base/read_file.h"
#include "embedding/serving/row_coding.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "models/data/metrics.h"
#include "models/data/open_data_source.h"
#include "models/saving/checkpoint.h"
#include "models/saving/export_table.h"
#include "models/saving/model_rows.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/serving/scorer.h"
#include "tests/models/scored_models.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::ExpectSameBits;
using test::kBatchSize;
using test::Kind;
using test::Kinds;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// A model that was trained, its data and what it scores.
struct Trained {
  std::string dir = test::TempDir();
  std::string data;
  std::string model = dir + "/model";
  std::vector<CtrBatch> batches;  // of the test split

  void Train(
      const Kind& kind, const std::function<void(TrainerOptions&)>& change = [](auto&) {}) {
    data = absl::StrCat("table:", test::WriteLog(dir, kind.two_labels()));
    TrainerOptions options = test::OptionsOf(kind);
    options.save_dir = model;
    change(options);
    HOTROW_ASSERT_OK(test::Train(kind, options, data));
    HOTROW_ASSERT_OK_AND_ASSIGN(batches, test::TestBatches(data));
  }

  std::vector<float> Scores(const std::string& path,
                            ServingRows rows = ServingRows::kAsTrained) const {
    auto scorer = Scorer::Open(
        {.model = path, .rows = rows, .max_concurrency = 1, .max_batch_size = kBatchSize});
    HOTROW_EXPECT_OK(scorer);
    if (!scorer.ok()) return {};
    EXPECT_THAT((*scorer)->notes(), IsEmpty());
    auto out = test::ScoreAll(**scorer, batches);
    HOTROW_EXPECT_OK(out);
    return out.ok() ? *out : std::vector<float>();
  }
};

// What is written scores as the model does whose rows are converted as they are read.
TEST(QuantizeModelTest, CodesScoreAsRowsThatAreConvertedAsTheyAreRead) {
  for (const size_t k : {0, 7, 8}) {  // dlrm, din, mmoe
    Trained trained;
    trained.Train(Kinds()[k]);
    for (const ServingRows rows :
         {ServingRows::kFp16, ServingRows::kBf16, ServingRows::kInt8, ServingRows::kInt4}) {
      const std::string word(WordOf(kServingRowsWords, rows));
      SCOPED_TRACE(absl::StrCat(Kinds()[k].name, " ", word));
      const std::string out = trained.dir + "/" + word;
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const QuantizeReport report,
          QuantizeModel({.model = trained.model, .dir = out, .rows = rows}));
      ExpectSameBits(trained.Scores(out), trained.Scores(trained.model, rows));
      // Asked for in the same form they are as they are.
      ExpectSameBits(trained.Scores(out, rows), trained.Scores(out));
      EXPECT_FALSE(report.before.has_value());
      EXPECT_EQ(report.evaluations, 0);
      for (const QuantizeReport::Table& table : report.tables) {
        EXPECT_EQ(table.rows, rows);
        EXPECT_EQ(table.weight_bytes, table.num_rows * 6 * 4);
        const std::map<std::string, int64_t> bytes = {
            {"fp16", 12}, {"bf16", 12}, {"int8", 10}, {"int4", 7}};
        EXPECT_EQ(table.bytes, table.num_rows * bytes.at(word));
      }
    }
  }
}

// With any form of the model, and with first values that have decayed.
TEST(QuantizeModelTest, EveryFormOfAModelIsRead) {
  Trained trained;
  trained.Train(Kinds()[0], [&](TrainerOptions& options) {
    options.weights_precision = WeightsPrecision::kBf16;
    options.table_optimizer.kind = SparseOptimizerKind::kAdam;
    options.table_optimizer.weight_decay = 0.01f;
    options.table_optimizer.weight_decay_mode = WeightDecayMode::kTable;
    options.schedule.lr_warmup_steps = 3;
    options.dense_optimizer.average_decay = 0.9f;
  });
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = trained.model, .dir = trained.dir + "/exported"}));
  HOTROW_ASSERT_OK(ImportPortable({.dir = trained.dir + "/exported",
                                   .checkpoint = trained.dir + "/checkpoints",
                                   .store_bytes = int64_t{64} << 20}));
  const std::vector<float> expected = trained.Scores(trained.model, ServingRows::kInt8);
  for (const std::string form : {"/model", "/exported", "/checkpoints"}) {
    SCOPED_TRACE(form);
    const std::string out = trained.dir + form + "-int8";
    HOTROW_ASSERT_OK(QuantizeModel({.model = trained.dir + form, .dir = out}));
    ExpectSameBits(trained.Scores(out), expected);
  }
}

// A model whose rows matter, so that 4 bits are felt.
Kind Felt() { return Kinds()[3]; }  // deepfm

std::unique_ptr<DataSource> DataOf(const Trained& trained) {
  auto source = OpenDataSource(trained.data, 5);
  HOTROW_EXPECT_OK(source);
  return source.ok() ? *std::move(source) : nullptr;
}

// The metrics of the test split, as the scorer of a directory gives them.
CtrMetrics MetricsOf(const Trained& trained, const std::string& path) {
  MetricsAccumulator metrics;
  const std::vector<float> logits = trained.Scores(path);
  size_t at = 0;
  for (const CtrBatch& batch : trained.batches) {
    metrics.Add(std::span(logits).subspan(at, batch.labels.size()), batch.labels);
    at += batch.labels.size();
  }
  return metrics.Compute();
}

TEST(QuantizeModelTest, TablesStayWiderWhereTheAucWouldLoseMoreThanTheBound) {
  Trained trained;
  trained.Train(Felt());
  const std::unique_ptr<DataSource> data = DataOf(trained);
  QuantizeOptions options = {.model = trained.model,
                             .rows = ServingRows::kInt4,
                             .data = data.get(),
                             .split = Split::kTest,
                             .batch_size = kBatchSize};
  const CtrMetrics before = MetricsOf(trained, trained.model);
  options.dir = trained.dir + "/free";
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport free, QuantizeModel(options));
  EXPECT_EQ(free.evaluations, 2);
  EXPECT_EQ(free.before->auc, before.auc);
  EXPECT_EQ(free.after->auc, MetricsOf(trained, options.dir).auc);
  EXPECT_EQ(free.after->logloss, MetricsOf(trained, options.dir).logloss);
  ASSERT_LT(free.after->auc, before.auc) << "4 bits are not felt: nothing is tested";
  for (const QuantizeReport::Table& table : free.tables) EXPECT_EQ(table.rows, ServingRows::kInt4);

  // A bound that it keeps changes nothing.
  options.dir = trained.dir + "/kept";
  options.max_auc_loss = before.auc - free.after->auc;
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport kept, QuantizeModel(options));
  EXPECT_EQ(kept.evaluations, 2);
  EXPECT_EQ(kept.after->auc, free.after->auc);

  // One that it does not keep.
  options.dir = trained.dir + "/bound";
  options.max_auc_loss = 0.0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport bound, QuantizeModel(options));
  EXPECT_GT(bound.evaluations, 2);
  EXPECT_GE(bound.after->auc, before.auc);
  EXPECT_EQ(bound.after->auc, MetricsOf(trained, options.dir).auc);
  EXPECT_EQ(bound.after->logloss, MetricsOf(trained, options.dir).logloss);
  int64_t wider = 0;
  int64_t free_bytes = 0, bound_bytes = 0;
  for (size_t t = 0; t < bound.tables.size(); ++t) {
    EXPECT_TRUE(bound.tables[t].auc_loss.has_value());
    wider += bound.tables[t].rows != ServingRows::kInt4;
    free_bytes += free.tables[t].bytes;
    bound_bytes += bound.tables[t].bytes;
  }
  EXPECT_GT(wider, 0);
  EXPECT_GT(bound_bytes, free_bytes);
}

// Products of the dense part: measured beside those of training, written down and used again.
TEST(QuantizeModelTest, ProductsOfTheDensePartAreMeasuredAndRemembered) {
  if (!CheckDensePrecision(DensePrecision::kInt8).ok()) GTEST_SKIP() << "no VNNI";
  Trained trained;
  trained.Train(test::WideKinds()[0]);
  const std::unique_ptr<DataSource> data = DataOf(trained);
  const auto scores = [&](const std::string& model, std::optional<DensePrecision> precision) {
    const auto scorer = Scorer::Open({.model = model,
                                      .max_concurrency = 1,
                                      .max_batch_size = kBatchSize,
                                      .precision = precision});
    HOTROW_EXPECT_OK(scorer);
    const auto out = test::ScoreAll(**scorer, trained.batches);
    HOTROW_EXPECT_OK(out);
    return *out;
  };
  const std::vector<float> fp32 = scores(trained.model, std::nullopt);
  const std::vector<float> int8 = scores(trained.model, DensePrecision::kInt8);
  double largest = 0, sum = 0;
  for (size_t i = 0; i < fp32.size(); ++i) {
    const double difference = std::abs(static_cast<double>(int8[i]) - fp32[i]);
    largest = std::max(largest, difference);
    sum += difference;
  }
  ASSERT_GT(largest, 0);
  QuantizeOptions options = {.model = trained.model,
                             .dir = trained.dir + "/int8",
                             .rows = ServingRows::kAsTrained,
                             .dense = DensePrecision::kInt8,
                             .data = data.get(),
                             .split = Split::kTest,
                             .batch_size = kBatchSize};
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport report, QuantizeModel(options));
  ASSERT_TRUE(report.dense.has_value());
  EXPECT_TRUE(report.dense->kept);
  EXPECT_EQ(report.dense->largest_difference, largest);
  EXPECT_DOUBLE_EQ(report.dense->mean_difference, sum / static_cast<double>(fp32.size()));
  EXPECT_EQ(report.evaluations, 2);
  EXPECT_EQ(report.before->auc, MetricsOf(trained, trained.model).auc);
  EXPECT_EQ(report.after->auc, MetricsOf(trained, options.dir).auc);
  EXPECT_EQ(report.after->logloss, report.dense->metrics.logloss);
  ExpectSameBits(scores(options.dir, std::nullopt), int8);
  ExpectSameBits(scores(options.dir, DensePrecision::kFp32), fp32);

  // Beyond the bound they stay as they were.
  options.dir = trained.dir + "/bound";
  options.max_auc_loss = 0.0;
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport bound, QuantizeModel(options));
  EXPECT_EQ(bound.dense->kept, bound.dense->metrics.auc >= bound.before->auc);
  ExpectSameBits(scores(options.dir, std::nullopt), bound.dense->kept ? int8 : fp32);

  // Nothing is measured without data.
  options.dir = trained.dir + "/unmeasured";
  options.data = nullptr;
  options.max_auc_loss.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport unmeasured, QuantizeModel(options));
  EXPECT_FALSE(unmeasured.dense.has_value());
  ExpectSameBits(scores(options.dir, std::nullopt), int8);

  options.dir = trained.dir + "/tf32";
  options.dense = DensePrecision::kTf32;
  EXPECT_THAT(QuantizeModel(options), StatusIs(absl::StatusCode::kInvalidArgument,
                                               HasSubstr("QuantizeOptions.dense=tf32")));
}

// Nothing loses more than what is reported, and it is in order.
TEST(QuantizeModelTest, RowsThatLoseMostAreReported) {
  Trained trained;
  trained.Train(Kinds()[0]);
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport report,
                              QuantizeModel({.model = trained.model,
                                             .dir = trained.dir + "/out",
                                             .rows = ServingRows::kInt4,
                                             .lost_rows = 7}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const ModelRows rows, OpenModelRows(PosixEnv(), trained.model));
  std::vector<double> losses;
  HOTROW_ASSERT_OK(VisitRows(
      PosixEnv(), rows, {}, [&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
        const RowLayout layout = rows.tables[key.table].layout();
        std::vector<std::byte> kept(64);
        std::vector<float> weights(6), read(6);
        HOTROW_RETURN_IF_ERROR(
            EncodeServingRow(ServingRows::kInt4, layout, row.data(), weights, kept.data()));
        HOTROW_RETURN_IF_ERROR(DecodeServingRow(ServingRows::kInt4, layout, kept.data(), read));
        double sum = 0;
        for (size_t i = 0; i < 6; ++i) {
          const double lost = static_cast<double>(weights[i]) - read[i];
          sum += lost * lost;
        }
        losses.push_back(std::sqrt(sum));
        return absl::OkStatus();
      }));
  std::ranges::sort(losses, std::greater());
  ASSERT_EQ(report.written.lost.size(), 7u);
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_EQ(report.written.lost[i].loss, losses[i]);
    EXPECT_GT(report.written.lost[i].norm, report.written.lost[i].loss);
  }
}

TEST(QuantizeModelTest, CodesAreNotTrainedFrom) {
  Trained trained;
  trained.Train(Kinds()[0], [](auto& options) { options.limit_train_batches = 3; });
  const std::string out = trained.dir + "/out";
  HOTROW_ASSERT_OK(QuantizeModel({.model = trained.model, .dir = out}));
  const auto refused = [](const char* what) {
    return StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(what));
  };
  constexpr char kRemedy[] = "give the model that it was made of";
  EXPECT_THAT(
      ImportPortable({.dir = out, .checkpoint = trained.dir + "/back", .store_bytes = 1 << 20}),
      refused(kRemedy));
  EXPECT_THAT(ExportTable({.model = out, .table = "user", .dir = trained.dir + "/table"}),
              refused(kRemedy));
  EXPECT_THAT(QuantizeModel({.model = out, .dir = trained.dir + "/again"}), refused(kRemedy));
  EXPECT_THAT(QuantizeModel({.model = trained.model, .dir = out}), refused("out"));
  EXPECT_THAT(ReadCheckpoint(PosixEnv(), out), refused(kRemedy));  // as --init_from does
  EXPECT_THAT(Scorer::Open({.model = out, .rows = ServingRows::kFp16}),
              refused("has its rows in int8, and they were asked for in fp16"));
  // It is whole.
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableSummary good, VerifyPortable(PosixEnv(), out, 1 << 20));
  EXPECT_EQ(good.codes[0], ServingRows::kInt8);
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel manifest,
                              ReadPortableManifest(PosixEnv(), out, false));
  EXPECT_EQ(manifest.tables[0].arrays.size(), 2u);
  EXPECT_EQ(manifest.tables[0].arrays[1].name, "codes");
  const std::string text = PortableManifest(manifest);
  EXPECT_THAT(text, HasSubstr("\"codes\": \"int8\""));

  // A form that this build does not know, and codes that were damaged.
  std::ofstream(out + "/manifest.json")
      << absl::StrReplaceAll(text, {{"\"codes\": \"int8\"", "\"codes\": \"int2\""}});
  EXPECT_THAT(Scorer::Open({.model = out}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("int2")));
  std::ofstream(out + "/manifest.json") << text;
  const std::string codes = absl::StrCat(out, "/", manifest.tables[0].arrays[1].files[0].name);
  std::fstream file(codes, std::ios::in | std::ios::out);
  file.seekp(150);
  file.put('\x55');
  file.close();
  EXPECT_THAT(VerifyPortable(PosixEnv(), out, 1 << 20),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(codes)));
  EXPECT_THAT(Scorer::Open({.model = out}),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(codes)));
}

// 4 columns: fp16 takes 8 bytes, as int8 does, and int4 takes 6.
// Also by what scores with the model itself, so that both have the same bits.
TEST(QuantizeModelTest, AFormThatTakesNoLessThanAWiderOneIsPassedOver) {
  Kind narrow = Kinds()[0];
  narrow.columns = 4;
  for (auto& [flag, value] : narrow.shape) {
    if (flag == "dense_arch_layer_sizes") value = "9-4";
  }
  Trained trained;
  trained.Train(narrow, [](auto& options) { options.limit_train_batches = 3; });
  for (const auto& [rows, expected] : {std::pair(ServingRows::kInt8, ServingRows::kFp16),
                                       {ServingRows::kInt4, ServingRows::kInt4}}) {
    const std::string out = absl::StrCat(trained.dir, "/", static_cast<int>(rows));
    HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport report,
                                QuantizeModel({.model = trained.model, .dir = out, .rows = rows}));
    for (const QuantizeReport::Table& table : report.tables) EXPECT_EQ(table.rows, expected);
    ExpectSameBits(trained.Scores(out), trained.Scores(trained.model, rows));
    ExpectSameBits(trained.Scores(out, rows), trained.Scores(out));
  }
}

TEST(QuantizeModelTest, WrongOptionsAndDataAreNamed) {
  Trained trained;
  trained.Train(Kinds()[0], [](auto& options) { options.limit_train_batches = 3; });
  const auto invalid = [](const char* what) {
    return StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(what));
  };
  QuantizeOptions options = {.model = trained.model, .dir = trained.dir + "/out"};
  options.rows = ServingRows::kAsTrained;
  EXPECT_THAT(QuantizeModel(options), invalid("QuantizeOptions.rows"));
  options.rows = ServingRows::kInt8;
  options.max_auc_loss = 0.1;
  EXPECT_THAT(QuantizeModel(options), invalid("needs data"));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto other,
                              OpenDataSource("synthetic:tables=3,rows=50,dense=2,samples=9", 1));
  options.data = other.get();
  EXPECT_THAT(QuantizeModel(options), invalid("was trained on others"));
  options.max_auc_loss = 2;
  EXPECT_THAT(QuantizeModel(options), invalid("max_auc_loss must lie in [0, 1]"));
  EXPECT_FALSE(PosixEnv().Exists(options.dir).value());
}

TEST(QuantizeModelTest, NoLossOfAucIsMeasuredWhereNobodyClicks) {
  Trained trained;
  trained.Train(Kinds()[0], [](auto& options) { options.limit_train_batches = 3; });
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string log,
                              ReadFileToString(PosixEnv(), trained.dir + "/log.csv"));
  log = std::regex_replace(log, std::regex("\n(\\d+),1,"), "\n$1,0,");
  HOTROW_ASSERT_OK(WriteFileAtomically(PosixEnv(), trained.dir + "/log.csv", log));
  const std::unique_ptr<DataSource> data = DataOf(trained);
  QuantizeOptions options = {.model = trained.model,
                             .dir = trained.dir + "/out",
                             .rows = ServingRows::kInt8,
                             .data = data.get(),
                             .batch_size = kBatchSize,
                             .max_auc_loss = 1};
  EXPECT_THAT(QuantizeModel(options),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("max_auc_loss"), HasSubstr("one class"))));
  EXPECT_FALSE(PosixEnv().Exists(options.dir).value());
  options.max_auc_loss.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(const QuantizeReport report, QuantizeModel(options));
  EXPECT_TRUE(std::isnan(report.after->auc));
  EXPECT_TRUE(std::isfinite(report.after->logloss));
}

}  // namespace
}  // namespace hotrow
