#include "models/delta/delta_chain.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "embedding/embedding_collection.h"
#include "models/delta/apply_chain.h"
#include "models/delta/compact_chain.h"
#include "models/delta/export_delta.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/dense_file.h"
#include "models/saving/export_table.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"
#include "models/saving/portable_tables_reader.h"
#include "models/saving/saved_model.h"
#include "models/saving/training_state.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using test::FaultyEnv;
using test::MemEnv;
using test::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr char kRun[] = "/run/ckpt";
constexpr char kChain[] = "/serve/chain";
constexpr int64_t kBatch = 8;

// A run that trains, erases and takes checkpoints. Two tables of different widths, the first with
// weights of `precision`. scored: both keep scores, and only so many users with the highest stay.
class TrainingRun {
 public:
  explicit TrainingRun(MemEnv* env, StoreKind store = StoreKind::kMemory,
                       WeightsPrecision precision = WeightsPrecision::kFp32, bool scored = false)
      : env_(env), store_(store), random_(7, RandomPurpose::kTest) {
    TableConfig users;
    users.name = "users";
    users.embedding_dim = 5;
    users.feature_names = {"user"};
    users.optimizer.kind = SparseOptimizerKind::kAdam;
    users.weights_precision = precision;
    TableConfig items = users;
    items.name = "items";
    items.embedding_dim = 3;
    items.feature_names = {"item"};
    items.optimizer.kind = SparseOptimizerKind::kRowWiseAdagrad;
    items.weights_precision = WeightsPrecision::kFp32;
    if (scored) {
      users.score = ScoreRule::kLast;
      users.max_rows = 15;
      users.max_rows_by = RowOrder::kScore;
      items.score = ScoreRule::kSum;
      options_.row_limit_steps = 2;
    }
    options_.tables = {users, items};
    options_.feature_order = {"user", "item"};
    options_.max_batch_size = kBatch;
    options_.evaluation_staging_bytes = 1 << 20;
    options_.env = env;
    if (store == StoreKind::kMemory) {
      options_.store =
          MemoryStorage{.memory_bytes = int64_t{32} << 20, .snapshot_dir = TablesDir()};
    } else {
      options_.store = SsdStorage{
          .path = TablesDir(), .memory_bytes = int64_t{32} << 20, .disk_bytes = int64_t{64} << 20};
      options_.cache.bytes = int64_t{8} << 20;
    }
    model_.model = "dlrm";
    model_.shape = {{"over_arch_layer_sizes", "16-1"}};
    model_.seed = 5;
    model_.num_dense = 2;
    model_.features = {{"user", "users"}, {"item", "items"}};
    model_.tables = {
        {.name = "users", .dim = 5, .optimizer = "adam", .weights_precision = precision},
        {.name = "items", .dim = 3, .optimizer = "rowwise_adagrad"}};
    for (size_t t = 0; t < 2; ++t) model_.tables[t].score = options_.tables[t].score;
    model_.dense_optimizer = "adam";
    TrainingState training;
    training.settings = {{"batch_size", "8"}};
    model_.training = std::make_shared<const TrainingState>(training);
    model_.is_checkpoint = true;
  }

  absl::Status Open() {
    HOTROW_RETURN_IF_ERROR(CreateDirsDurably(*env_, TablesDir()));
    HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options_, {}));
    return absl::OkStatus();
  }
  // One step; users in [first, first + count).
  absl::Status Step(uint64_t first, uint64_t count) {
    std::vector<uint64_t> values;
    std::vector<int64_t> offsets = {0};
    std::vector<float> scores;
    for (int64_t bag = 0; bag < 2 * kBatch; ++bag) {
      values.push_back(bag < kBatch ? first + random_.Below(count)
                                    : UINT64_MAX - random_.Below(30));
      offsets.push_back(static_cast<int64_t>(values.size()));
    }
    if (options_.tables[0].score != ScoreRule::kNone) {
      for (size_t i = 0; i < values.size(); ++i) {
        scores.push_back(static_cast<float>(random_.Below(64)) / 8 - 4);
      }
    }
    std::vector<float> pooled(static_cast<size_t>(kBatch * tables_->pooled_dim()));
    const MatrixView<float> view = {pooled.data(), kBatch, tables_->pooled_dim()};
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch(JaggedBatch{
                                                    kBatch, values, offsets, {}, {}, scores}));
    HOTROW_RETURN_IF_ERROR(step.Lookup({.pooled = view}));
    for (float& x : pooled) x = static_cast<float>(random_.Uniform()) - 0.5f;
    return std::move(step).Update({.pooled = {pooled.data(), kBatch, tables_->pooled_dim()}});
  }
  absl::Status Erase(uint64_t first, uint64_t count) {
    std::vector<uint64_t> keys;
    for (uint64_t i = 0; i < count; ++i) keys.push_back(first + i);
    return tables_->Erase("users", keys);
  }
  // Takes a checkpoint and returns its directory.
  absl::StatusOr<std::string> Checkpoint() {
    const auto snapshot = static_cast<SnapshotId>(++checkpoints_);
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Prepare(snapshot));
    HOTROW_ASSIGN_OR_RETURN(const SnapshotInfo info, tables_->snapshots().Describe(snapshot));
    SavedModel model = model_;
    model.step = tables_->steps();
    const std::vector<RowLines> lines = tables_->age_lines();
    for (size_t t = 0; t < lines.size(); ++t) model.tables[t].lines = lines[t];
    TrainingState training = *model_.training;
    training.steps = model.step;
    model.training = std::make_shared<const TrainingState>(training);
    model.parts = {{.store = std::string(StoreKindName(store_)),
                    .tables_dir = TablesDir(),
                    .snapshot = snapshot,
                    .identity = info.identity,
                    .table_rows = info.table_rows}};
    model.blob_bytes = std::make_shared<SavedModel::BlobBytes>(
        SavedModel::BlobBytes{{"reader", absl::StrCat("at step ", model.step)}});
    std::vector<float> dense[3];
    for (std::vector<float>& array : dense) {
      for (int i = 0; i < 21; ++i) array.push_back(static_cast<float>(random_.Uniform()));
    }
    HOTROW_ASSIGN_OR_RETURN(const std::string dir,
                            WriteCheckpoint(*env_, absl::StrCat(kRun, "/", checkpoints_), model,
                                            {dense[0], dense[1], dense[2]}));
    HOTROW_RETURN_IF_ERROR(tables_->snapshots().Commit(snapshot));
    return dir;
  }
  // Lets others read an SSD store.
  absl::Status Close() {
    const absl::Status status = tables_->Close();
    tables_.reset();
    return status;
  }

 private:
  static std::string TablesDir() { return absl::StrCat(kRun, "/tables"); }

  MemEnv* const env_;
  const StoreKind store_;
  RandomStream random_;
  EmbeddingCollectionOptions options_;
  SavedModel model_;
  std::unique_ptr<EmbeddingCollection> tables_;
  int64_t checkpoints_ = 0;
};

// All bytes of all rows: {table, key} to keys, weights, state and last step.
using Rows = std::map<std::pair<uint32_t, uint64_t>, std::string>;

absl::StatusOr<Rows> ReadRows(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const PortableModel portable, ReadPortableManifest(env, dir, false));
  Rows out;
  HOTROW_RETURN_IF_ERROR(
      ReadPortableTables({.dir = dir, .env = &env}, portable.tables, [&](const PortableRows& rows) {
        for (size_t i = 0; i < rows.keys.size(); ++i) {
          const auto bytes =
              static_cast<size_t>(portable.tables[rows.keys[i].table].layout().row_bytes);
          out[{rows.keys[i].table, rows.keys[i].key}] =
              std::string(reinterpret_cast<const char*>(rows.rows[i]), bytes);
        }
        return absl::OkStatus();
      }).status());
  return out;
}

std::string ReadText(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(env, path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : "";
}

// That two directories of the portable form hold the same model, bit for bit.
void ExpectSameModel(Env& env, const std::string& a, const std::string& b) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows_a, ReadRows(env, a));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows_b, ReadRows(env, b));
  EXPECT_EQ(rows_a.size(), rows_b.size());
  EXPECT_TRUE(rows_a == rows_b);
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel model_a, ReadPortableManifest(env, a, false));
  HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel model_b, ReadPortableManifest(env, b, false));
  EXPECT_EQ(model_a.model.step, model_b.model.step);
  EXPECT_EQ(model_a.model.shape, model_b.model.shape);
  EXPECT_EQ(model_a.model.seed, model_b.model.seed);
  EXPECT_EQ(TrainingStateToJson(*model_a.model.training),
            TrainingStateToJson(*model_b.model.training));
  for (size_t t = 0; t < model_a.tables.size(); ++t) {
    EXPECT_TRUE(*model_a.tables[t].hash == *model_b.tables[t].hash);
  }
  for (const char* name : {"dense.safetensors", "blob-00000"}) {
    EXPECT_EQ(ReadText(env, absl::StrCat(a, "/", name)), ReadText(env, absl::StrCat(b, "/", name)))
        << name;
  }
}

void CopyTree(Env& from, Env& to, const std::string& path) {
  HOTROW_ASSERT_OK(CreateDirsDurably(to, path));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, from.ListDir(path));
  for (const std::string& name : names) {
    const std::string child = absl::StrCat(path, "/", name);
    if (from.ListDir(child).ok()) {
      CopyTree(from, to, child);
    } else {
      HOTROW_ASSERT_OK(WriteFileAtomically(to, child, ReadText(from, child)));
    }
  }
  HOTROW_ASSERT_OK(to.SyncDir(path));
}

// Checkpoints of a run of the test's kind: rows change, join, go, and come back.
absl::StatusOr<std::vector<std::string>> TrainAndErase(TrainingRun* run, int count) {
  std::vector<std::string> out;
  HOTROW_RETURN_IF_ERROR(run->Open());
  for (int i = 0; i < count; ++i) {
    const auto first = static_cast<uint64_t>(5 * i);
    HOTROW_RETURN_IF_ERROR(run->Step(first, 40));
    HOTROW_RETURN_IF_ERROR(run->Step(0, 20));
    if (i % 3 == 1) HOTROW_RETURN_IF_ERROR(run->Erase(first, 9));
    if (i % 3 == 2) HOTROW_RETURN_IF_ERROR(run->Erase(0, 1000));  // all
    if (i % 2 == 1) HOTROW_RETURN_IF_ERROR(run->Step(0, 30));
    HOTROW_ASSIGN_OR_RETURN(std::string dir, run->Checkpoint());
    out.push_back(std::move(dir));
  }
  HOTROW_RETURN_IF_ERROR(run->Close());
  return out;
}

absl::StatusOr<DeltaSummary> Append(Env& env, const std::vector<std::string>& checkpoints, size_t i,
                                    std::optional<DeltaForm> form = std::nullopt,
                                    int64_t memory_bytes = 1 << 20) {
  return ExportDelta({.since = checkpoints[i],
                      .checkpoint = checkpoints[i + 1],
                      .chain = kChain,
                      .form = form,
                      .memory_bytes = memory_bytes,
                      .env = &env});
}

void ExpectChainIsTheExports(MemEnv& env, const std::vector<std::string>& checkpoints,
                             int64_t memory_bytes) {
  for (size_t i = 0; i + 1 < checkpoints.size(); ++i) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaSummary summary,
                                Append(env, checkpoints, i, std::nullopt, memory_bytes));
    EXPECT_EQ(summary.made_chain, i == 0);
    EXPECT_EQ(summary.delta.sequence, static_cast<int64_t>(i) + 1);
    EXPECT_GT(summary.rows, 0);
  }
  for (size_t i = 0; i < checkpoints.size(); ++i) {
    SCOPED_TRACE(i);
    const std::string full = absl::StrCat("/full-", i);
    const std::string applied = absl::StrCat("/applied-", i);
    HOTROW_ASSERT_OK(ExportPortable({.checkpoint = checkpoints[i], .dir = full, .env = &env}));
    HOTROW_ASSERT_OK(ApplyChain({.chain = kChain,
                                 .dir = applied,
                                 .until = static_cast<int64_t>(i),
                                 .shard_bytes = 400,
                                 .memory_bytes = memory_bytes,
                                 .env = &env}));
    ExpectSameModel(env, full, applied);
  }
}

TEST(DeltaChainTest, TheAppliedChainIsTheFullExportAtEachLink) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    SCOPED_TRACE(std::string(StoreKindName(store)));
    MemEnv env;
    TrainingRun run(&env, store);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 6));
    ExpectChainIsTheExports(env, checkpoints, 1 << 20);
  }
}

// A row that is written with a low score goes, and the one of its key in an older link must not
// come back, though that had a high one.
TEST(DeltaChainTest, RowsBelowALineOfScoresAreGoneAtEachLink) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    SCOPED_TRACE(std::string(StoreKindName(store)));
    MemEnv env;
    TrainingRun run(&env, store, WeightsPrecision::kFp32, /*scored=*/true);
    HOTROW_ASSERT_OK(run.Open());
    std::vector<std::string> checkpoints;
    for (uint64_t i = 0; i < 8; ++i) {
      for (uint64_t step = 0; step < 2 + i % 3; ++step) HOTROW_ASSERT_OK(run.Step(2 * i, 24));
      HOTROW_ASSERT_OK_AND_ASSIGN(checkpoints.emplace_back(), run.Checkpoint());
    }
    HOTROW_ASSERT_OK(run.Close());
    ExpectChainIsTheExports(env, checkpoints, 1 << 20);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel last, ReadCheckpoint(env, checkpoints.back()));
    EXPECT_FALSE(last.tables[0].lines.scores.empty());
    HOTROW_ASSERT_OK_AND_ASSIGN(const CheckpointReport report,
                                VerifyCheckpoint(env, checkpoints.back(), 0));
    EXPECT_TRUE(report.damage.empty());
    EXPECT_LE(report.tables[0].rows, 15 + 2 * kBatch);
    EXPECT_GE(report.part_rows[0], report.rows);
    // The rows with the highest scores, the highest among them in the order of keys.
    HOTROW_ASSERT_OK_AND_ASSIGN(const ExportTableSummary best,
                                ExportTable({.model = checkpoints.back(),
                                             .table = "users",
                                             .dir = "/best",
                                             .max_rows = 4,
                                             .by = RowOrder::kScore,
                                             .state = true,
                                             .env = &env}));
    EXPECT_EQ(best.rows, 4);
    HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows, ReadRows(env, "/full-7"));
    const RowLayout layout =
        RowLayout::For(5, SparseOptimizerKind::kAdam, WeightsPrecision::kFp32, /*scored=*/true);
    std::vector<float> scores;
    for (const auto& [key, row] : rows) {
      if (key.first != 0) continue;
      scores.push_back(layout.line_fields().Score(reinterpret_cast<const std::byte*>(row.data())));
    }
    std::sort(scores.begin(), scores.end(), std::greater<>());
    const std::string array = ReadText(env, "/best/score.npy");
    std::vector<float> exported(4);
    std::memcpy(exported.data(), array.data() + array.size() - 16, 16);
    std::sort(exported.begin(), exported.end(), std::greater<>());
    scores.resize(4);
    EXPECT_EQ(exported, scores);
  }
}

// Keys in slices, rows in runs.
TEST(DeltaChainTest, LittleMemoryChangesNothing) {
  MemEnv env;
  TrainingRun run(&env, StoreKind::kMemory, WeightsPrecision::kBf16);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 4));
  ExpectChainIsTheExports(env, checkpoints, 1500);
}

TEST(DeltaChainTest, ManyDeltasEndAsTheFullExport) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 51));
  for (size_t i = 0; i < 50; ++i) HOTROW_ASSERT_OK(Append(env, checkpoints, i));
  HOTROW_ASSERT_OK(ExportPortable({.checkpoint = checkpoints[50], .dir = "/full", .env = &env}));
  HOTROW_ASSERT_OK_AND_ASSIGN(
      const PortableSummary summary,
      ApplyChain({.chain = kChain, .dir = "/applied", .memory_bytes = 1 << 20, .env = &env}));
  EXPECT_EQ(summary.from, kChain);
  ExpectSameModel(env, "/full", "/applied");
}

// Only what changed is in a delta.
TEST(DeltaChainTest, ADeltaHasWhatChangedAndTombstones) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK(run.Open());
  HOTROW_ASSERT_OK(run.Step(0, 1));
  HOTROW_ASSERT_OK(run.Step(100, 1));
  HOTROW_ASSERT_OK(run.Step(200, 1));
  std::vector<std::string> checkpoints(4);
  HOTROW_ASSERT_OK_AND_ASSIGN(checkpoints[0], run.Checkpoint());
  HOTROW_ASSERT_OK_AND_ASSIGN(checkpoints[1], run.Checkpoint());
  HOTROW_ASSERT_OK(run.Erase(100, 1));
  HOTROW_ASSERT_OK(run.Erase(5000, 3));  // not there
  HOTROW_ASSERT_OK_AND_ASSIGN(checkpoints[2], run.Checkpoint());
  HOTROW_ASSERT_OK(run.Step(100, 1));
  HOTROW_ASSERT_OK(run.Erase(200, 1));
  HOTROW_ASSERT_OK_AND_ASSIGN(checkpoints[3], run.Checkpoint());
  HOTROW_ASSERT_OK(run.Close());
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaSummary none, Append(env, checkpoints, 0));
  EXPECT_EQ(none.rows, 0);
  EXPECT_EQ(none.erased, 0);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaSummary gone, Append(env, checkpoints, 1));
  EXPECT_EQ(gone.rows, 0);
  EXPECT_EQ(gone.erased, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaSummary back, Append(env, checkpoints, 2));
  EXPECT_EQ(back.delta.parts[0].rows[0], 1);  // 100 is a new row
  EXPECT_EQ(back.delta.parts[0].erased, (std::vector<int64_t>{1, 0}));
}

TEST(DeltaChainTest, OtherFormsAreRefusedOrServe) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 3));
  for (const ExchangeType type : {ExchangeType::kFp32, ExchangeType::kFp16, ExchangeType::kInt8}) {
    SCOPED_TRACE(std::string(ExchangeTypeName(type)));
    MemEnv copy;
    CopyTree(env, copy, kRun);
    const DeltaForm form = {.precision = type, .state = false};
    HOTROW_ASSERT_OK(Append(copy, checkpoints, 0, form));
    EXPECT_THAT(Append(copy, checkpoints, 1, DeltaForm{}).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("another form")));
    HOTROW_ASSERT_OK(Append(copy, checkpoints, 1));
    HOTROW_ASSERT_OK(ExportPortable({.checkpoint = checkpoints[2], .dir = "/full", .env = &copy}));
    HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/applied", .env = &copy}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const PortableModel applied,
                                ReadPortableManifest(copy, "/applied", false));
    EXPECT_EQ(applied.model.tables[0].optimizer, "sgd");
    EXPECT_EQ(applied.model.training, nullptr);
    HOTROW_ASSERT_OK_AND_ASSIGN(const Rows full, ReadRows(copy, "/full"));
    HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows, ReadRows(copy, "/applied"));
    ASSERT_EQ(rows.size(), full.size());
    for (const auto& [key, row] : rows) {
      const std::string& exact = full.at(key);
      const int dim = key.first == 0 ? 5 : 3;
      for (int d = 0; d < dim; ++d) {
        float got = 0, want = 0;
        std::memcpy(&got, row.data() + 4 * d, 4);
        std::memcpy(&want, exact.data() + 4 * d, 4);
        const float step = type == ExchangeType::kFp32 ? 0.0f : 0.02f;
        EXPECT_NEAR(got, want, step * (1 + std::abs(want)));
      }
    }
  }
}

TEST(DeltaChainTest, OnlyTheHeadsCheckpointMayBeTheParent) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 4));
  HOTROW_ASSERT_OK(Append(env, checkpoints, 0));
  for (const size_t wrong : {size_t{0}, size_t{2}}) {
    EXPECT_THAT(Append(env, checkpoints, wrong).status(),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(kChain), HasSubstr("newest link"))));
  }
  EXPECT_THAT(
      ExportDelta(
          {.since = checkpoints[2], .checkpoint = checkpoints[1], .chain = "/new", .env = &env})
          .status(),
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("the older of the two")));
  EXPECT_THAT(ApplyChain({.chain = kChain, .dir = "/applied", .until = 2, .env = &env}).status(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no link 2")));
  EXPECT_THAT(ApplyChain({.chain = "/nowhere", .dir = "/applied", .env = &env}).status(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("/nowhere")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool made, env.Exists("/applied"));
  EXPECT_FALSE(made);
}

std::string Place(const std::string& name) { return absl::StrCat(kChain, "/", name); }

void FlipByte(Env& env, const std::string& path, int64_t offset) {
  std::string text = ReadText(env, path);
  if (offset < 0) offset += std::ssize(text);
  text[static_cast<size_t>(offset)] = static_cast<char>(text[static_cast<size_t>(offset)] ^ 4);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
}

void RemoveAll(Env& env, const std::string& path) {
  const absl::StatusOr<std::vector<std::string>> names = env.ListDir(path);
  if (!names.ok()) {
    HOTROW_ASSERT_OK(env.Remove(path));
    return;
  }
  for (const std::string& name : *names) RemoveAll(env, absl::StrCat(path, "/", name));
  HOTROW_ASSERT_OK(env.RemoveDir(path));
}

void CopyDir(Env& env, const std::string& from, const std::string& to) {
  HOTROW_ASSERT_OK(env.CreateDirs(to));
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(from));
  for (const std::string& name : names) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(to, "/", name),
                                         ReadText(env, absl::StrCat(from, "/", name))));
  }
}

// Replaces a text in a manifest and makes its checksum right again.
void Edit(Env& env, const std::string& path, const std::string& from, const std::string& to) {
  std::string text = ReadText(env, path);
  ASSERT_TRUE(absl::StrContains(text, from)) << path << " has no " << from;
  text = absl::StrReplaceAll(text, {{from, to}});
  const size_t at = text.rfind("\"manifest_crc32c\": \"") + 20;
  text.replace(at, 8, "00000000");
  text.replace(at, 8, absl::StrFormat("%08x", Crc32c(std::as_bytes(std::span(text)))));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
}

struct Damage {
  const char* what;
  std::function<void(Env&)> make;
  absl::StatusCode code;
  std::string names;  // in the message: file and what is wrong
  std::string says;
};

TEST(DeltaChainTest, EachKindOfDamageIsNamedAndNothingIsMade) {
  MemEnv whole;
  TrainingRun run(&whole);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 5));
  for (size_t i = 0; i < 4; ++i) HOTROW_ASSERT_OK(Append(whole, checkpoints, i));
  // The same checkpoints make another chain: another id.
  HOTROW_ASSERT_OK(ExportDelta({.since = checkpoints[0],
                                .checkpoint = checkpoints[1],
                                .chain = "/serve/other",
                                .env = &whole}));
  constexpr auto kDataLoss = absl::StatusCode::kDataLoss;
  constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;
  const std::string second = Place("delta-00000002");
  const std::string third = Place("delta-00000003");
  const std::string rows = "/rows-00000-of-00001";
  const std::vector<Damage> kinds = {
      {"a delta is missing", [&](Env& env) { RemoveAll(env, second); }, kDataLoss, second,
       "there is no such delta"},
      {"a delta stands twice",
       [&](Env& env) { CopyDir(env, Place("delta-00000004"), Place("delta-00000005")); }, kDataLoss,
       Place("delta-00000005"), "it is delta 4 in the place of delta 5"},
      {"a copy beside", [&](Env& env) { CopyDir(env, second, Place("delta-2")); },
       absl::StatusCode::kInvalidArgument, Place("delta-2"), "no name of a delta"},
      {"two deltas out of order",
       [&](Env& env) {
         HOTROW_ASSERT_OK(env.Rename(second, Place("x")));
         HOTROW_ASSERT_OK(env.Rename(third, second));
         HOTROW_ASSERT_OK(env.Rename(Place("x"), third));
       },
       kDataLoss, second, "it is delta 3 in the place of delta 2"},
      {"rows cut off",
       [&](Env& env) {
         HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                                     env.Open(second + rows, OpenMode::kReadWrite));
         HOTROW_ASSERT_OK_AND_ASSIGN(const int64_t size, file->Size());
         HOTROW_ASSERT_OK(file->Truncate(size - 7));
       },
       kDataLoss, second + rows, "cut off"},
      {"rows damaged", [&](Env& env) { FlipByte(env, second + rows, 250); }, kDataLoss,
       second + rows, "checksum"},
      {"rows missing", [&](Env& env) { RemoveAll(env, second + rows); }, kDataLoss, second + rows,
       "there is no such file"},
      {"rows of another delta",
       [&](Env& env) {
         HOTROW_ASSERT_OK(WriteFileAtomically(env, second + rows, ReadText(env, third + rows)));
       },
       kDataLoss, second + rows, ""},
      {"a delta of another base",
       [&](Env& env) {
         RemoveAll(env, Place("delta-00000001"));
         CopyDir(env, "/serve/other/delta-00000001", Place("delta-00000001"));
       },
       kFailed, Place("delta-00000001"), "it is of the chain"},
      {"a delta behind another parent",
       [&](Env& env) {
         HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(env, kChain));
         Edit(env, second + "/manifest.json", chain.deltas[0].digest.ToHex(),
              "00000000000000000000000000000001");
       },
       kDataLoss, second + "/manifest.json", "it follows a link of digest"},
      {"a step that falls",
       [&](Env& env) {
         Edit(env, Place("delta-00000001/manifest.json"), "\"parent_step\": 2",
              "\"parent_step\": 1");
       },
       kDataLoss, Place("delta-00000001/manifest.json"), "from step 1"},
      {"another precision",
       [&](Env& env) {
         Edit(env, second + "/manifest.json", "\"precision\": \"fp32\"", "\"precision\": \"fp16\"");
       },
       kFailed, second + "/manifest.json", "another precision"},
      {"another table",
       [&](Env& env) { Edit(env, second + "/manifest.json", "\"dim\": 5", "\"dim\": 6"); }, kFailed,
       second + "/manifest.json", "6 columns"},
      {"a newer version",
       [&](Env& env) { Edit(env, second + "/manifest.json", "\"version\": 1", "\"version\": 2"); },
       kFailed, second + "/manifest.json", "has version 2"},
      {"a manifest damaged", [&](Env& env) { FlipByte(env, second + "/manifest.json", 90); },
       kDataLoss, second + "/manifest.json", "checksum"},
      {"a manifest missing", [&](Env& env) { RemoveAll(env, second + "/manifest.json"); },
       kDataLoss, second + "/manifest.json", "there is no such file"},
      {"dense parameters damaged",
       [&](Env& env) { FlipByte(env, Place("delta-00000004/dense.safetensors"), -3); }, kDataLoss,
       Place("delta-00000004/dense.safetensors"), "checksum"},
      {"a blob missing", [&](Env& env) { RemoveAll(env, Place("delta-00000004/blob-00000")); },
       kDataLoss, Place("delta-00000004/blob-00000"), ""},
      {"chain.json damaged", [&](Env& env) { FlipByte(env, Place("chain.json"), 40); }, kDataLoss,
       Place("chain.json"), "checksum"},
      {"chain.json missing", [&](Env& env) { RemoveAll(env, Place("chain.json")); }, kDataLoss,
       Place("chain.json"), "there is no such file"},
      {"the base missing", [&](Env& env) { RemoveAll(env, Place("base-00000000")); }, kDataLoss,
       Place("base-00000000/manifest.json"), "the base is missing"},
      {"the base's manifest changed",
       [&](Env& env) { FlipByte(env, Place("base-00000000/manifest.json"), 90); }, kDataLoss,
       Place("base-00000000/manifest.json"), "its digest is"},
      {"the base's rows damaged",
       [&](Env& env) {
         FlipByte(env, Place("base-00000000/tables/0000-users/weights-00000-of-00001.npy"), 140);
       },
       kDataLoss, Place("base-00000000/tables/0000-users/weights-00000-of-00001.npy"), "checksum"},
      {"rows that are not those of the manifest",
       [&](Env& env) {
         HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(env, kChain));
         Edit(env, Place("delta-00000004/manifest.json"), chain.deltas[3].model.tables[1].hash,
              "00000000000000000000000000000001");
       },
       kDataLoss, Place("delta-00000004"), "table \"items\""},
  };
  for (const Damage& damage : kinds) {
    SCOPED_TRACE(damage.what);
    MemEnv env;
    CopyTree(whole, env, "/serve");
    damage.make(env);
    const absl::Status status =
        ApplyChain({.chain = kChain, .dir = "/out/applied", .env = &env}).status();
    EXPECT_THAT(status,
                StatusIs(damage.code, AllOf(HasSubstr(damage.names), HasSubstr(damage.says))));
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool made, env.Exists("/out/applied"));
    EXPECT_FALSE(made);
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool left, env.Exists("/out/applied.hotrow-partial"));
    EXPECT_FALSE(left);
  }
}

// With right checksums: their sum, in bytes, is beyond 63 bits.
TEST(DeltaChainTest, NumbersOfRowsMayBeAnything) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 5));
  for (size_t i = 0; i < 4; ++i) HOTROW_ASSERT_OK(Append(env, checkpoints, i));
  Hash128 parent;
  for (int64_t sequence = 1; sequence <= 4; ++sequence) {
    const std::string dir = Place(DeltaDirName(sequence));
    HOTROW_ASSERT_OK_AND_ASSIGN(DeltaManifest delta, ReadDeltaManifest(env, dir));
    if (sequence > 1) delta.parent = parent;
    for (DeltaPart& part : delta.parts) {
      for (auto* const counts : {&part.rows, &part.erased}) {
        counts->assign(counts->size(), int64_t{1} << 56);
      }
    }
    for (SavedModel::Table& table : delta.model.tables) {
      table.rows = -1;
      table.hash.clear();
    }
    HOTROW_ASSERT_OK(WriteFileAtomically(env, dir + "/manifest.json", SealDeltaManifest(&delta)));
    parent = delta.digest;
  }
  EXPECT_THAT(ApplyChain({.chain = kChain, .dir = "/out/applied", .env = &env}).status(),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("other numbers of rows")));
  EXPECT_FALSE(VerifyChain(env, kChain, 1 << 20).ok());
}

// A link before the last that was written again, with right checksums: the next names another.
TEST(DeltaChainTest, ALinkThatWasWrittenAnewIsNamed) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 4));
  for (size_t i = 0; i < 3; ++i) HOTROW_ASSERT_OK(Append(env, checkpoints, i));
  Edit(env, Place("delta-00000002/manifest.json"), "\"dlrm\"", "\"dlrm\" ");
  EXPECT_THAT(
      ReadChain(env, kChain).status(),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr(Place("delta-00000003/manifest.json")),
                                                  HasSubstr("it follows a link of digest"))));
}

// Each call of an export fails once: the chain is what it was, or has the delta, whole.
TEST(DeltaChainTest, AWriterThatFailsAnywhereLeavesAWholeChain) {
  MemEnv whole;
  TrainingRun run(&whole);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 3));
  HOTROW_ASSERT_OK(Append(whole, checkpoints, 0));
  const int64_t stride = test::RunsSlowTests() ? 1 : 7;
  for (const bool power : {false, true}) {
    for (int64_t k = power ? 3 : 0;; k += stride) {
      SCOPED_TRACE(absl::StrCat(power ? "power lost at call " : "failed call ", k));
      FaultyEnv env;
      CopyTree(whole, env, "/run");
      CopyTree(whole, env, "/serve");
      const int64_t begin = env.calls();
      if (power) {
        env.FailFrom(begin + k, absl::DataLossError("injected"));
      } else {
        env.FailCall(begin + k, absl::DataLossError("injected"));
      }
      const absl::Status status = Append(env, checkpoints, 1).status();
      if (env.faults() == 0) {  // fewer than k calls
        HOTROW_EXPECT_OK(status);
        break;
      }
      if (power) {
        env.FailFrom(INT64_MAX, absl::OkStatus());
        env.DropUnsyncedData();
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(env, kChain));
      if (status.ok()) {
        ASSERT_EQ(chain.deltas.size(), 2u);
      } else if (chain.deltas.size() == 1) {
        HOTROW_ASSERT_OK(Append(env, checkpoints, 1));  // what was left behind is in nobody's way
      }
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/applied", .env = &env}));
    }
  }
}

// Parts of several ranks, written as ranks write them.
TEST(DeltaChainTest, PartsOfSeveralRanksAreOneDelta) {
  for (const bool twice : {false, true}) {
    MemEnv env;
    TrainingRun run(&env);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 2));
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const DeltaChain chain,
        CreateChain({.checkpoint = checkpoints[0], .dir = kChain, .env = &env}));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, checkpoints[1]));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<DeltaWriter> writer,
                                DeltaWriter::Create(env, chain, saved));
    std::vector<DeltaPart> parts;
    for (int32_t rank = 0; rank < 3; ++rank) {
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<DeltaRowsWriter> rows,
          DeltaRowsWriter::Create(env, writer->path(), DeltaPartName(rank, 3),
                                  writer->file_id(rank, 3), writer->form(), writer->tables()));
      const uint64_t key = 1'000'000 + static_cast<uint64_t>(twice ? rank / 2 : rank);
      HOTROW_ASSERT_OK(rows->AddErased({.key = key, .table = 0}));
      HOTROW_ASSERT_OK_AND_ASSIGN(DeltaPart part, rows->Finish());
      parts.push_back(std::move(part));
    }
    HOTROW_ASSERT_OK(writer->Commit(saved, parts, dense.arrays()));
    const absl::Status status =
        ApplyChain({.chain = kChain, .dir = "/applied", .env = &env}).status();
    if (twice) {
      EXPECT_THAT(status,
                  StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("rows-00000-of-00003"),
                                                              HasSubstr("rows-00001-of-00003"))));
    } else {
      HOTROW_EXPECT_OK(status);
    }
  }
}

// A compacted chain leads where it led, and goes on.
TEST(DeltaChainTest, ACompactedChainGoesOn) {
  for (const bool state : {true, false}) {
    SCOPED_TRACE(state);
    MemEnv env;
    TrainingRun run(&env);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 7));
    for (size_t i = 0; i < 6; ++i) {
      HOTROW_ASSERT_OK(Append(env, checkpoints, i, DeltaForm{.state = state}));
      if (i % 2 == 0) continue;
      const std::string before = absl::StrCat("/before-", i);
      const std::string after = absl::StrCat("/after-", i);
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = before, .env = &env}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain old, ReadChain(env, kChain));
      HOTROW_ASSERT_OK_AND_ASSIGN(const CompactSummary summary,
                                  CompactChain({.chain = kChain, .keep = 1, .env = &env}));
      EXPECT_TRUE(summary.made_base);
      EXPECT_EQ(summary.sequence, static_cast<int64_t>(i) + 1);
      EXPECT_EQ(summary.bases_removed, 1);
      EXPECT_EQ(summary.deltas_removed, i == 1 ? 1 : 2);
      HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(env, kChain));
      EXPECT_TRUE(chain.deltas.empty());
      EXPECT_TRUE(chain.head().digest == old.head().digest);
      EXPECT_EQ(chain.head().sequence, old.head().sequence);
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = after, .env = &env}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows_before, ReadRows(env, before));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Rows rows_after, ReadRows(env, after));
      EXPECT_TRUE(rows_before == rows_after);
      // A link that is kept is there for followers.
      HOTROW_ASSERT_OK_AND_ASSIGN(const bool kept,
                                  env.Exists(chain.delta_dir(chain.head().sequence)));
      EXPECT_TRUE(kept);
    }
    for (const char* const name : {"/base-copy", "/notes.old"}) {  // somebody else's
      HOTROW_ASSERT_OK(WriteFileAtomically(env, absl::StrCat(kChain, name), "mine"));
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const CompactSummary again,
                                CompactChain({.chain = kChain, .env = &env}));
    EXPECT_FALSE(again.made_base);
    EXPECT_EQ(again.deltas_removed, 1);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(kChain));
    std::vector<std::string> links;
    for (const std::string& name : names) {
      if (!absl::EndsWith(name, ".lock")) links.push_back(name);
    }
    EXPECT_THAT(links,
                testing::ElementsAre("base-00000006", "base-copy", "chain.json", "notes.old"));
    if (state) {
      HOTROW_ASSERT_OK(ExportPortable({.checkpoint = checkpoints[6], .dir = "/full", .env = &env}));
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/applied", .env = &env}));
      ExpectSameModel(env, "/full", "/applied");
    }
  }
}

TEST(DeltaChainTest, CompactingThatFailsAnywhereLeavesAWholeChain) {
  MemEnv whole;
  TrainingRun run(&whole);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 4));
  for (size_t i = 0; i < 3; ++i) HOTROW_ASSERT_OK(Append(whole, checkpoints, i));
  HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/before", .env = &whole}));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Rows expected, ReadRows(whole, "/before"));
  const int64_t stride = test::RunsSlowTests() ? 1 : 11;
  for (const bool power : {false, true}) {
    for (int64_t k = power ? 3 : 0;; k += stride) {
      SCOPED_TRACE(absl::StrCat(power ? "power lost at call " : "failed call ", k));
      FaultyEnv env;
      CopyTree(whole, env, "/serve");
      const int64_t begin = env.calls();
      if (power) {
        env.FailFrom(begin + k, absl::DataLossError("injected"));
      } else {
        env.FailCall(begin + k, absl::DataLossError("injected"));
      }
      const absl::Status status = CompactChain({.chain = kChain, .env = &env}).status();
      if (env.faults() == 0) {  // fewer than k calls
        HOTROW_EXPECT_OK(status);
        break;
      }
      if (power) {
        env.FailFrom(INT64_MAX, absl::OkStatus());
        env.DropUnsyncedData();
      }
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/now", .env = &env}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Rows now, ReadRows(env, "/now"));
      EXPECT_TRUE(now == expected);
      HOTROW_ASSERT_OK(CompactChain({.chain = kChain, .env = &env}));
      HOTROW_ASSERT_OK(ApplyChain({.chain = kChain, .dir = "/then", .env = &env}));
      HOTROW_ASSERT_OK_AND_ASSIGN(const Rows then, ReadRows(env, "/then"));
      EXPECT_TRUE(then == expected);
    }
  }
}

// Compacts a chain when the base is read for the first time.
class CompactingEnv : public FaultyEnv {
 public:
  explicit CompactingEnv(MemEnv* base) : FaultyEnv(base), base_(*base) {}
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    if (!done_ && absl::StrContains(path, at_)) {
      done_ = true;
      HOTROW_RETURN_IF_ERROR(CompactChain({.chain = kChain, .env = &base_}).status());
    }
    return FaultyEnv::Open(path, mode);
  }
  void CompactAt(const std::string& part) {
    at_ = part;
    done_ = false;
  }

 private:
  MemEnv& base_;
  std::string at_;
  bool done_ = true;
};

// Whoever reads a chain that is compacted meanwhile reads all of it.
TEST(DeltaChainTest, AReaderBesideTheCompactorIsNotTold) {
  MemEnv mem;
  CompactingEnv env(&mem);
  TrainingRun run(&mem);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 9));
  size_t next = 0;
  for (const char* const at : {"/manifest.json", "/keys-0", "/rows-0", "/dense"}) {
    SCOPED_TRACE(at);
    HOTROW_ASSERT_OK(Append(mem, checkpoints, next++));
    env.CompactAt(at);
    HOTROW_EXPECT_OK(ApplyChain({.chain = kChain, .dir = absl::StrCat("/a", next), .env = &env}));
    HOTROW_ASSERT_OK(Append(mem, checkpoints, next++));
    env.CompactAt(at);
    HOTROW_EXPECT_OK(VerifyChain(env, kChain, 1 << 20));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DeltaChain chain, ReadChain(mem, kChain));
    EXPECT_EQ(chain.manifest.base_sequence, static_cast<int64_t>(next)) << "it was not compacted";
  }
}

// A directory that is there, as a mounted volume is, stays the same one; what a kill has left in it
// goes. Little memory is told of.
TEST(DeltaChainTest, AChainBeginsInADirectoryThatIsThere) {
  MemEnv env;
  TrainingRun run(&env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> checkpoints, TrainAndErase(&run, 2));
  for (const char* const name : {"lost+found", "base-00000000", "base-00000000.hotrow-partial"}) {
    HOTROW_ASSERT_OK(CreateDirsDurably(env, absl::StrCat(kChain, "/", name)));
  }
  HOTROW_ASSERT_OK(Append(env, checkpoints, 0));
  EXPECT_TRUE(*env.Exists(absl::StrCat(kChain, "/lost+found")));
  std::string told;
  HOTROW_ASSERT_OK(ApplyChain({.chain = kChain,
                               .dir = "/applied",
                               .memory_bytes = 1500,
                               .env = &env,
                               .tell = [&](const std::string& note) { told += note; }}));
  EXPECT_THAT(told, AllOf(HasSubstr("times, since memory_bytes=1500 has"), HasSubstr("for once")));
  HOTROW_ASSERT_OK(CreateDirsDurably(env, "/other"));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/other/file", "x"));
  EXPECT_THAT(CreateChain({.checkpoint = checkpoints[0], .dir = "/other", .env = &env}),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("not empty")));
}

}  // namespace
}  // namespace hotrow
