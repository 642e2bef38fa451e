#include "models/saving/export_table.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "models/data/npy.h"
#include "models/saving/checkpoint.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables_reader.h"
#include "tests/models/checkpoint_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Trains and leaves a checkpoint in dir/checkpoints, a model in dir/saved and an export in
// dir/exported.
void MakeModel(const std::string& dir, int ranks,
               WeightsPrecision precision = WeightsPrecision::kFp32) {
  RunOnThreads(ranks, {}, [&](Communicator& communicator) {
    TrainerOptions options = test::SmallRun();
    options.weights_precision = precision;
    options.ttl_steps = 25;
    options.checkpoint_dir = dir + "/checkpoints";
    options.save_dir = dir + "/saved";
    options.communicator = &communicator;
    const absl::StatusOr<TrainReport> report = test::RunSmall(options);
    HOTROW_EXPECT_OK(report);
    return report.status();
  });
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = dir + "/checkpoints", .dir = dir + "/exported"}));
}

// A row as floats: weights and state. And its last step.
struct Row {
  std::vector<float> values;
  uint32_t last_step = 0;
};
using Rows = std::map<uint64_t, Row>;

// What the portable form has of a table of fp32 rows.
Rows Expected(const std::string& dir, const std::string& name) {
  Rows out;
  const absl::StatusOr<PortableModel> portable =
      ReadPortableManifest(PosixEnv(), dir + "/exported", false);
  HOTROW_EXPECT_OK(portable);
  if (!portable.ok()) return out;
  HOTROW_EXPECT_OK(ReadPortableTables(
      {.dir = dir + "/exported"}, portable->tables, [&](const PortableRows& rows) {
        for (size_t i = 0; i < rows.keys.size(); ++i) {
          const PortableTable& table = portable->tables[rows.keys[i].table];
          if (table.name != name) continue;
          const RowLayout layout = table.layout();
          Row& row = out[rows.keys[i].key];
          row.values.resize(static_cast<size_t>(layout.payload_bytes) / sizeof(float));
          std::memcpy(row.values.data(), rows.rows[i], static_cast<size_t>(layout.payload_bytes));
          std::memcpy(&row.last_step, rows.rows[i] + layout.step_offset, sizeof(row.last_step));
        }
        return absl::OkStatus();
      }));
  return out;
}

std::string TextOf(const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(PosixEnv(), path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// The bytes of an array of either format; their number must be that of the shape.
std::string Array(const std::string& dir, TableFormat format, const std::string& name,
                  const std::string& dtype, const std::vector<int64_t>& shape) {
  int64_t bytes = dtype == "<u8" ? 8 : 4;
  for (const int64_t n : shape) bytes *= n;
  if (format == TableFormat::kNpy) {
    const std::string text = TextOf(absl::StrCat(dir, "/", name, ".npy"));
    const absl::StatusOr<NpyHeader> header = ParseNpyHeader(text);
    HOTROW_EXPECT_OK(header);
    if (!header.ok()) return "";
    EXPECT_EQ(header->dtype, dtype);
    EXPECT_EQ(header->shape, shape);
    EXPECT_EQ(std::ssize(text), header->header_bytes + bytes);
    return text.substr(static_cast<size_t>(header->header_bytes));
  }
  const std::string text = TextOf(dir + "/table.safetensors");
  uint64_t length = 0;
  std::memcpy(&length, text.data(), sizeof(length));
  const std::string header = text.substr(8, length);
  const size_t at = header.find(absl::StrCat("\"", name, "\":"));
  EXPECT_NE(at, std::string::npos) << header;
  const std::string entry = header.substr(at, header.find('}', at) - at);
  const std::string type = dtype == "<u8" ? "U64" : dtype == "<u4" ? "U32" : "F32";
  EXPECT_THAT(entry, HasSubstr(absl::StrCat("\"dtype\":\"", type, "\"")));
  std::string joined;
  for (const int64_t n : shape) absl::StrAppend(&joined, joined.empty() ? "" : ",", n);
  EXPECT_THAT(entry, HasSubstr(absl::StrCat("\"shape\":[", joined, "]")));
  const std::string offsets = entry.substr(entry.find("data_offsets\":[") + 15);
  const int64_t begin = std::atoll(offsets.c_str());
  const int64_t end = std::atoll(offsets.c_str() + offsets.find(',') + 1);
  EXPECT_EQ(end - begin, bytes);
  return text.substr(8 + length + static_cast<size_t>(begin), static_cast<size_t>(bytes));
}

template <typename T>
std::vector<T> Values(const std::string& bytes) {
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

void ExpectRows(const std::string& dir, TableFormat format, const Rows& expected) {
  const std::vector<int64_t> one = {std::ssize(expected)};
  const std::vector<int64_t> wide = {std::ssize(expected), 8};
  const auto keys = Values<uint64_t>(Array(dir, format, "keys", "<u8", one));
  const auto steps = Values<uint32_t>(Array(dir, format, "last_step", "<u4", one));
  const std::vector<std::vector<float>> columns = {
      Values<float>(Array(dir, format, "weights", "<f4", wide)),
      Values<float>(Array(dir, format, "momentum1", "<f4", wide)),
      Values<float>(Array(dir, format, "momentum2", "<f4", wide))};
  ASSERT_EQ(keys.size(), expected.size());
  size_t i = 0;
  for (const auto& [key, row] : expected) {
    ASSERT_EQ(keys[i], key);
    ASSERT_EQ(steps[i], row.last_step);
    for (size_t c = 0; c < columns.size(); ++c) {
      ASSERT_EQ(std::memcmp(&columns[c][8 * i], &row.values[8 * c], 8 * sizeof(float)), 0) << key;
    }
    ++i;
  }
}

TEST(ExportTableTest, RowsComeSortedFromWhateverHoldsThem) {
  for (const int ranks : {1, 2}) {
    const std::string dir = test::TempDir();
    MakeModel(dir, ranks);
    if (HasFailure()) return;
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved,
                                ReadCheckpoint(PosixEnv(), dir + "/checkpoints"));
    const std::string table = saved.tables[1].name;
    const Rows expected = Expected(dir, table);
    ASSERT_GT(expected.size(), 100u);
    int n = 0;
    for (const char* model : {"checkpoints", "saved", "exported"}) {
      for (const TableFormat format : {TableFormat::kNpy, TableFormat::kSafetensors}) {
        for (const int64_t memory_bytes : {1 << 14, 1 << 20}) {
          SCOPED_TRACE(absl::StrCat(model, ", ", memory_bytes));
          const std::string out = absl::StrCat(dir, "/out", n++);
          HOTROW_ASSERT_OK_AND_ASSIGN(const ExportTableSummary summary,
                                      ExportTable({.model = absl::StrCat(dir, "/", model),
                                                   .table = table,
                                                   .dir = out,
                                                   .state = true,
                                                   .format = format,
                                                   .memory_bytes = memory_bytes}));
          EXPECT_EQ(summary.rows, std::ssize(expected));
          ExpectRows(out, format, expected);
          if (HasFailure()) return;
        }
      }
    }
  }
}

TEST(ExportTableTest, TheNewestRowsStay) {
  const std::string dir = test::TempDir();
  MakeModel(dir, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved,
                              ReadCheckpoint(PosixEnv(), dir + "/checkpoints"));
  const std::string table = saved.tables[0].name;
  const Rows all = Expected(dir, table);
  std::vector<std::pair<int64_t, uint64_t>> order;  // the newest first, then by key
  for (const auto& [key, row] : all) order.emplace_back(-int64_t{row.last_step}, key);
  std::sort(order.begin(), order.end());
  Rows newest;
  for (size_t i = 0; i < 50; ++i) newest[order[i].second] = all.at(order[i].second);
  HOTROW_ASSERT_OK(ExportTable({.model = dir + "/checkpoints",
                                .table = table,
                                .dir = dir + "/out",
                                .max_rows = 50,
                                .state = true}));
  ExpectRows(dir + "/out", TableFormat::kNpy, newest);
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool has_state, PosixEnv().Exists(dir + "/out/momentum1.npy"));
  EXPECT_TRUE(has_state);
  // Without it there are keys and weights.
  HOTROW_ASSERT_OK(
      ExportTable({.model = dir + "/checkpoints", .table = table, .dir = dir + "/weights"}));
  HOTROW_ASSERT_OK_AND_ASSIGN(std::vector<std::string> names, PosixEnv().ListDir(dir + "/weights"));
  std::sort(names.begin(), names.end());
  EXPECT_THAT(names, ::testing::ElementsAre("keys.npy", "weights.npy"));
}

TEST(ExportTableTest, NumpyReadsIt) {
  if (std::system("python3 -c 'import numpy' 2>/dev/null") != 0) GTEST_SKIP() << "no numpy";
  const std::string dir = test::TempDir();
  MakeModel(dir, 1, WeightsPrecision::kBf16);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved,
                              ReadCheckpoint(PosixEnv(), dir + "/checkpoints"));
  HOTROW_ASSERT_OK(ExportTable(
      {.model = dir + "/checkpoints", .table = saved.tables[0].name, .dir = dir + "/out"}));
  const std::string script =
      "import numpy as np; k = np.load(\"keys.npy\"); w = np.load(\"weights.npy\"); "
      "assert (k[1:] > k[:-1]).all() and w.shape == (len(k), 8) and w.dtype == np.float32 "
      "and np.isfinite(w).all() and len(k) > 100";
  EXPECT_EQ(std::system(absl::StrCat("cd ", dir, "/out && python3 -c '", script, "'").c_str()), 0);
}

TEST(ExportTableTest, RefusesWhatItCannotDo) {
  const std::string dir = test::TempDir();
  MakeModel(dir, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved,
                              ReadCheckpoint(PosixEnv(), dir + "/checkpoints"));
  const std::string table = saved.tables[0].name;
  EXPECT_THAT(ExportTable({.model = dir + "/checkpoints", .table = "nobody", .dir = dir + "/out"}),
              StatusIs(absl::StatusCode::kNotFound,
                       AllOf(HasSubstr("no table \"nobody\""), HasSubstr(table))));
  EXPECT_THAT(ExportTable({.model = dir + "/checkpoints", .table = table, .dir = dir + "/saved"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr(dir + "/saved")));
  EXPECT_THAT(
      ExportTable(
          {.model = dir + "/checkpoints", .table = table, .dir = dir + "/out", .max_rows = -1}),
      StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("is -1")));
  EXPECT_THAT(ExportTable({.model = dir + "/checkpoints",
                           .table = table,
                           .dir = dir + "/out",
                           .by = RowOrder::kScore}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("keep no scores")));
  EXPECT_THAT(ExportTable({.model = dir + "/nowhere", .table = table, .dir = dir + "/out"}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("nowhere")));
}

}  // namespace
}  // namespace hotrow
