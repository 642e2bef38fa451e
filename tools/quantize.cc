#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/enum_words.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "models/data/open_data_source.h"
#include "models/data/sample_feed.h"
#include "models/saving/model_rows.h"
#include "models/saving/vocabulary_file.h"
#include "models/serving/quantize_model.h"
#include "models/train/report.h"
#include "ops/products/dense_precision.h"
#include "tools/command.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

constexpr EnumWord<Split> kSplits[] = {{"valid", Split::kValid}, {"test", Split::kTest}};

// Sums over all tables.
struct Sums {
  explicit Sums(const QuantizeReport& report) {
    for (const QuantizeReport::Table& table : report.tables) {
      rows += table.num_rows;
      before += table.weight_bytes;
      after += table.bytes;
    }
  }
  double share() const { return before > 0 ? static_cast<double>(after) / before : 1; }
  int64_t rows = 0;
  int64_t before = 0;
  int64_t after = 0;
};

// dense: the word of --dense.
std::string Text(const QuantizeReport& report, const std::string& dense) {
  const PortableSummary& written = report.written.portable;
  std::string out = absl::StrCat(written.from, " -> ", written.to, "\n\n");
  constexpr std::string_view kLostTitle = "rows that lose most";
  size_t width = kLostTitle.size();
  for (const QuantizeReport::Table& table : report.tables) {
    width = std::max(width, table.name.size());
  }
  const int name = static_cast<int>(width);
  absl::StrAppendFormat(&out, "  %-*s %16s %12s %12s %12s %10s\n", name, "table", "rows", "as",
                        "weights", "now", "AUC loss");
  for (const QuantizeReport::Table& table : report.tables) {
    absl::StrAppendFormat(
        &out, "  %-*s %16s %12s %12s %12s %10s\n", name, table.name, FormatCount(table.num_rows),
        WordOf(kServingRowsWords, table.rows), FormatBytes(table.weight_bytes),
        FormatBytes(table.bytes),
        table.auc_loss.has_value() ? absl::StrFormat("%.6f", *table.auc_loss) : "");
  }
  const Sums sums(report);
  absl::StrAppendFormat(&out, "  %-*s %16s %12s %12s %12s   %.3f of the bytes\n\n", name, "all",
                        FormatCount(sums.rows), "", FormatBytes(sums.before),
                        FormatBytes(sums.after), sums.share());
  if (report.before.has_value()) {
    absl::StrAppendFormat(&out,
                          "  AUC %.6f -> %.6f (%+.6f), logloss %.6f -> %.6f, of %s samples; "
                          "%d evaluations\n\n",
                          report.before->auc, report.after->auc,
                          report.after->auc - report.before->auc, report.before->logloss,
                          report.after->logloss, FormatCount(report.after->samples),
                          report.evaluations);
  }
  if (report.dense.has_value()) {
    absl::StrAppendFormat(&out,
                          "  dense part in %s alone: AUC %.6f (%+.6f), logloss %.6f; logits differ "
                          "by %.6f at most, %.6f in the mean%s\n\n",
                          dense, report.dense->metrics.auc,
                          report.dense->metrics.auc - report.before->auc,
                          report.dense->metrics.logloss, report.dense->largest_difference,
                          report.dense->mean_difference,
                          report.dense->kept ? "" : "; that is too much, it stays as it was");
  }
  if (!report.written.lost.empty()) {
    absl::StrAppendFormat(&out, "  %-*s %20s %12s %12s\n", name, kLostTitle, "key", "loss",
                          "of length");
    for (const LostRow& row : report.written.lost) {
      absl::StrAppendFormat(&out, "  %-*s %20d %12.6g %12.6g\n", name,
                            report.tables[row.table].name, row.key, row.loss, row.norm);
    }
  }
  return out;
}

Json MetricsJson(const std::optional<CtrMetrics>& metrics) {
  if (!metrics.has_value()) return nullptr;
  return {{"samples", metrics->samples}, {"auc", metrics->auc}, {"logloss", metrics->logloss}};
}

Json DenseJson(const std::optional<QuantizeReport::Dense>& dense, const std::string& word) {
  if (!dense.has_value()) return nullptr;
  return {{"precision", word},
          {"kept", dense->kept},
          {"auc", dense->metrics.auc},
          {"logloss", dense->metrics.logloss},
          {"largest_difference", dense->largest_difference},
          {"mean_difference", dense->mean_difference}};
}

std::string JsonText(const QuantizeReport& report, const std::string& dense) {
  const Sums sums(report);
  Json tables = Json::array();
  for (const QuantizeReport::Table& table : report.tables) {
    tables.push_back({{"name", table.name},
                      {"codes", WordOf(kServingRowsWords, table.rows)},
                      {"rows", table.num_rows},
                      {"weight_bytes", table.weight_bytes},
                      {"bytes", table.bytes},
                      {"auc_loss", table.auc_loss.has_value() ? Json(*table.auc_loss) : Json()}});
  }
  Json lost = Json::array();
  for (const LostRow& row : report.written.lost) {
    lost.push_back({{"table", report.tables[row.table].name},
                    {"key", row.key},
                    {"loss", row.loss},
                    {"norm", row.norm}});
  }
  const Json json = {{"from", report.written.portable.from},
                     {"to", report.written.portable.to},
                     {"rows", sums.rows},
                     {"weight_bytes", sums.before},
                     {"bytes", sums.after},
                     {"before", MetricsJson(report.before)},
                     {"after", MetricsJson(report.after)},
                     {"dense", DenseJson(report.dense, dense)},
                     {"evaluations", report.evaluations},
                     {"tables", std::move(tables)},
                     {"lost", std::move(lost)}};
  return json.dump(2, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace) + "\n";
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  QuantizeOptions options;
  std::string data, dense;
  double max_auc_loss = 0.0003;
  uint64_t seed = 0;
  int32_t reader_threads = 1;
  bool json = false;
  FlagSet flags("hotrow quantize");
  flags.Add("rows", WordFlag<ServingRows>("WORD", &options.rows, AllWords(kServingRowsWords)),
            "how narrow rows become: fp16, bf16, or 8 or 4 bits a column with a scale and an "
            "offset for each row; as_trained with --dense alone");
  flags.AddString("dense", "WORD", &dense,
                  "type of the factors of dense matrix products when it is scored: fp32, bf16 or "
                  "int8");
  flags.DescribeDefault("as the model was trained");
  flags.AddString("data", "KIND:KEY=VALUE,...", &data,
                  "data as a trainer's --data that say what the codes cost: AUC before and after; "
                  "none: all tables become as narrow as --rows");
  flags.Add("split", WordFlag<Split>("WORD", &options.split, AllWords(kSplits)),
            "with --data: the samples that count");
  flags.AddReal("max_auc_loss", 0, 1, &max_auc_loss,
                "with --data: tables are kept wider where the AUC would lose more");
  flags.AddInt("batch_size", 1, 1 << 24, &options.batch_size,
               "with --data: samples that are scored together");
  flags.Add("seed", IntFlag(&seed, 0, INT64_MAX), "with --data: of generated data");
  flags.Add("reader_threads", IntFlag(&reader_threads, 1, kMaxReaderThreads),
            "with --data: threads that parse text; no result depends on them");
  flags.AddInt("show_rows", 0, 1'000'000, &options.lost_rows,
               "how many of the rows that lose most");
  flags.AddBytes("shard_bytes", &options.shard_bytes,
                 "most bytes of an array in one file; longer arrays are split");
  flags.AddBytes("memory_bytes", &options.memory_bytes,
                 "memory of buffers while rows are written, for tables of any size");
  flags.AddBytes("store_bytes", &options.store_bytes,
                 "memory for the index of an SSD store, about 10 bytes a row; 0: no limit");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.model = operands[0];
  options.dir = operands[1];
  if (!dense.empty()) {
    const absl::StatusOr<DensePrecision> precision = ParseDensePrecision(dense);
    if (!precision.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--dense=", dense, ": ", precision.status().message()));
    }
    options.dense = *precision;
  }
  std::unique_ptr<DataSource> source;
  if (!data.empty()) {
    options.max_auc_loss = max_auc_loss;
    // The data mean what they meant in training.
    HOTROW_ASSIGN_OR_RETURN(const ModelRows model, OpenModelRows(PosixEnv(), options.model));
    SavedVocabulary vocabulary = {.vocabulary = {}, .where = model.dir, .final = true};
    HOTROW_ASSIGN_OR_RETURN(vocabulary.vocabulary, ReadSavedVocabulary(PosixEnv(), model.model));
    HOTROW_ASSIGN_OR_RETURN(
        source,
        OpenDataSource(data, seed,
                       {.saved_vocabulary = vocabulary.vocabulary.empty() ? nullptr : &vocabulary,
                        .threads = {.opening = reader_threads, .reading = reader_threads}}));
    options.data = source.get();
  }
  const absl::StatusOr<QuantizeReport> report = QuantizeModel(options);
  if (!report.ok()) {
    // The fields are flags here.
    const std::string text =
        absl::StrReplaceAll(report.status().message(), {{"QuantizeOptions.", "--"}});
    return WithText(report.status(), text);
  }
  std::fputs((json ? JsonText(*report, dense) : Text(*report, dense)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kQuantizeCommand = {
    .name = "quantize",
    .operands = "MODEL DIR",
    .summary = "writes a model to score with, whose rows take fewer bytes",
    .details =
        "MODEL is a model of --save_dir, a checkpoint, a directory of checkpoints (the newest\n"
        "counts), or a directory that hotrow export wrote. DIR gets the portable form with codes\n"
        "in place of weights and without the state of optimizers: hotrow score and programs that\n"
        "score read it, and nothing trains from it.\n"
        "\n"
        "With --data the AUC is measured as it was trained, with --dense alone, and as it is\n"
        "written. --dense goes where it loses more than --max_auc_loss. Where the rest loses\n"
        "more than --max_auc_loss, each table is measured alone, and tables are narrowed in the\n"
        "order of loss per byte saved; those that cost too much become int8 of int4, fp16, or\n"
        "stay as they were trained. The model is read once for each evaluation. Prints bytes, AUC\n"
        "and the rows that lose most: the length of the difference, and of the row.\n"
        "docs/serving.md has the rest.\n",
    .run = Run};

}  // namespace hotrow
