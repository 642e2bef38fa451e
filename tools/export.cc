#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/enum_words.h"
#include "base/status_macros.h"
#include "models/delta/export_delta.h"
#include "models/saving/export_table.h"
#include "models/saving/portable_model.h"
#include "models/serving/export_onnx.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

absl::StatusOr<int> RunTable(const ExportTableOptions& options, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const ExportTableSummary summary, ExportTable(options));
  std::fputs((json ? TableSummaryJson(summary) : TableSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

absl::StatusOr<int> RunOnnx(const ExportOnnxOptions& options, bool json) {
  HOTROW_ASSIGN_OR_RETURN(const ExportOnnxSummary summary, ExportOnnx(options));
  std::fputs((json ? OnnxSummaryJson(summary) : OnnxSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  ExportOptions options;
  std::string since;
  std::string precision;
  bool weights_only = false;
  bool json = false;
  FlagSet flags("hotrow export");
  flags.AddString("since", "CHECKPOINT", &since,
                  "write what changed since this checkpoint, as the next delta of the chain DIR");
  flags.AddString("precision", "WORD", &precision,
                  "with --since, of a new chain: weights in fp32, fp16, bf16 or int8");
  flags.DescribeDefault("fp32");
  flags.AddSwitch("weights_only", &weights_only,
                  "with --since, of a new chain: without the state of optimizers");
  ExportTableOptions table;
  std::string by;
  std::string format;
  flags.AddString("table", "NAME", &table.table,
                  "write the rows of this table alone, sorted by key");
  flags.AddInt("max_rows", 0, INT64_MAX, &table.max_rows,
               "with --table: at most so many rows; 0: all");
  flags.AddString("by", "WORD", &by,
                  "with --max_rows: which rows stay; age: those that were trained last; score: "
                  "those with the highest scores");
  flags.DescribeDefault("age");
  flags.AddSwitch("state", &table.state,
                  "with --table: also the optimizer's state, the last step and the score");
  flags.AddString("format", "WORD", &format,
                  "with --table: npy or safetensors; without: onnx, one file for onnxruntime");
  flags.DescribeDefault("npy");
  ExportOnnxOptions onnx;
  flags.AddSwitch("with_rows", &onnx.with_rows,
                  "with --format=onnx: the tables as well, so that inputs are keys");
  flags.Add("unseen_keys",
            WordFlag<OnnxUnseenKeys>("WORD", &onnx.unseen_keys, AllWords(kOnnxUnseenKeysWords)),
            "with --with_rows: what keys without a row read: exact, what evaluation gives them, or "
            "zeros");
  flags.AddBytes("shard_bytes", &options.shard_bytes,
                 "most bytes of an array in one file; longer arrays are split");
  flags.AddBytes("memory_bytes", &options.memory_bytes,
                 "memory of buffers, for tables of any size");
  flags.AddBytes("store_bytes", &options.store_bytes,
                 "memory for the index of an SSD store, about 10 bytes a row; 0: no limit");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.checkpoint = operands[0];
  options.dir = operands[1];
  if (format == "onnx") {
    if (!table.table.empty() || !since.empty() || !precision.empty() || weights_only ||
        table.max_rows != 0 || !by.empty() || table.state) {
      return absl::InvalidArgumentError(
          "--format=onnx is of a whole model; leave out the flags of tables and deltas");
    }
    onnx.model = options.checkpoint;
    onnx.path = options.dir;
    onnx.store_bytes = options.store_bytes;
    return RunOnnx(onnx, json);
  }
  if (onnx.with_rows || onnx.unseen_keys != OnnxUnseenKeys::kExact) {
    return absl::InvalidArgumentError(
        "--with_rows and --unseen_keys are of ONNX; give --format=onnx, too");
  }
  if (!table.table.empty()) {
    if (!since.empty() || !precision.empty() || weights_only) {
      return absl::InvalidArgumentError(
          "--table is not for deltas; leave out --since, --precision and --weights_only");
    }
    if (!by.empty()) {
      const absl::StatusOr<RowOrder> order = ParseRowOrder(by);
      if (!order.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--by=", by, ": ", order.status().message()));
      }
      table.by = *order;
    }
    if (!format.empty()) {
      const absl::StatusOr<TableFormat> parsed = ParseTableFormat(format);
      if (!parsed.ok()) {
        return absl::InvalidArgumentError(
            absl::StrCat("--format=", format, ": ", parsed.status().message()));
      }
      table.format = *parsed;
    }
    table.model = options.checkpoint;
    table.dir = options.dir;
    table.memory_bytes = options.memory_bytes;
    table.store_bytes = options.store_bytes;
    return RunTable(table, json);
  }
  if (table.max_rows != 0 || !by.empty() || table.state || !format.empty()) {
    return absl::InvalidArgumentError(
        "--max_rows, --by, --state and --format are of one table; give --table, too");
  }
  if (!since.empty()) {
    ExportDeltaOptions delta = {.since = since,
                                .checkpoint = options.checkpoint,
                                .chain = options.dir,
                                .shard_bytes = options.shard_bytes,
                                .memory_bytes = options.memory_bytes,
                                .store_bytes = options.store_bytes};
    if (!precision.empty() || weights_only) {
      delta.form = DeltaForm{.state = !weights_only};
      if (!precision.empty()) {
        const absl::StatusOr<ExchangeType> type = ParseExchangeType(precision);
        if (!type.ok()) {
          return absl::InvalidArgumentError(
              absl::StrCat("--precision=", precision, ": ", std::string(type.status().message())));
        }
        delta.form->precision = *type;
      }
    }
    HOTROW_ASSIGN_OR_RETURN(const DeltaSummary summary, ExportDelta(delta));
    std::fputs((json ? DeltaSummaryJson(summary) : DeltaSummaryText(summary)).c_str(), stdout);
    return kExitGood;
  }
  if (!precision.empty() || weights_only) {
    return absl::InvalidArgumentError(
        "--precision and --weights_only are of deltas; give --since, too");
  }
  HOTROW_ASSIGN_OR_RETURN(const PortableSummary summary, ExportPortable(options));
  std::fputs((json ? PortableSummaryJson(summary) : PortableSummaryText(summary)).c_str(), stdout);
  return kExitGood;
}

}  // namespace

const Command kExportCommand = {
    .name = "export",
    .operands = "CHECKPOINT DIR",
    .summary = "converts a checkpoint to .npy arrays for numpy, with a manifest in JSON",
    .details =
        "CHECKPOINT is a directory of checkpoints (the newest is exported), one of them, or a\n"
        "model of --save_dir. A run may go on meanwhile. DIR is created; if it exists, it\n"
        "must be empty. Every row is checked against its checksum. Rows stream through buffers,\n"
        "so tables may be larger than memory. A kill leaves no DIR or a whole one.\n"
        "docs/formats/portable.md describes the files. `hotrow import` reverses it.\n"
        "\n"
        "With --since, DIR is a chain of deltas (docs/deltas.md): made, with that checkpoint as\n"
        "its base, if it is not there; otherwise its newest link must be of that checkpoint.\n"
        "\n"
        "With --table, CHECKPOINT may be an export, too, and DIR gets keys.npy and weights.npy of\n"
        "that table alone, or one table.safetensors.\n"
        "\n"
        "With --format=onnx, CHECKPOINT may be an export, too, and DIR is a file to be made, such\n"
        "as model.onnx: docs/onnx.md.\n",
    .run = Run};

}  // namespace hotrow
