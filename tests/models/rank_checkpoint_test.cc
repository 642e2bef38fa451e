// Checkpoints and saved models that several ranks write together, each with its own store. The
// ranks are threads with one file system, and each has its own faults.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/philox.h"
#include "base/status_macros.h"
#include "comm/thread_communicator.h"
#include "embedding/ranks/shard_map.h"
#include "embedding/storage_fields.h"
#include "models/saving/checkpoint.h"
#include "models/saving/checkpoint_check.h"
#include "models/saving/checkpoint_writer.h"
#include "models/saving/dense_file.h"
#include "models/saving/manifest.h"
#include "models/saving/saved_model.h"
#include "models/saving/saved_model_impl.h"
#include "models/saving/saved_model_writer.h"
#include "models/saving/saved_snapshots_impl.h"
#include "models/saving/store_paths.h"
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
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kRanks = 3;
constexpr char kDir[] = "/run/ckpt";
constexpr char kModel[] = "/run/model";
constexpr char kRows[] = "/run/rows";

EmbeddingCollectionOptions TableOptions(Env* env) {
  EmbeddingCollectionOptions options;
  TableConfig table;
  table.name = "words";
  table.embedding_dim = 3;
  table.feature_names = {"word"};
  table.optimizer.kind = SparseOptimizerKind::kAdam;
  table.initializer = {InitializerKind::kUniform, 0.1f};
  options.tables = {table};
  options.max_batch_size = 16;
  options.store = MemoryStorage{.memory_bytes = int64_t{16} << 20};
  options.evaluation_staging_bytes = 1 << 20;
  options.env = env;
  return options;
}

SavedModel Description(StoreKind store, const std::string& tables_dir) {
  SavedModel model;
  model.model = "dlrm";
  model.features = {{"word", "words"}};
  model.tables = {{.name = "words", .dim = 3, .optimizer = "adam"}};
  model.dense_optimizer = "sgd";
  model.num_parameters = 5;
  model.parts = {{.store = std::string(StoreKindName(store)), .tables_dir = tables_dir}};
  return model;
}

struct Setting {
  StoreKind store = StoreKind::kMemory;
  int64_t keep = 2;
  bool background = false;
};

// One rank of a run: rows of its shards, and what writes them.
class Rank {
 public:
  // Goes on from the newest checkpoint or saved model of as many ranks, if there is one.
  static absl::StatusOr<std::unique_ptr<Rank>> Start(Communicator& comm, Env* env,
                                                     const Setting& setting) {
    std::unique_ptr<Rank> out(new Rank(comm, env, setting));
    CheckpointWriterOptions options = {.dir = kDir,
                                       .keep = setting.keep,
                                       .background = setting.background,
                                       .env = env,
                                       .communicator = &comm};
    HOTROW_ASSIGN_OR_RETURN(out->writer_, CheckpointWriter::Open(options));
    HOTROW_RETURN_IF_ERROR(out->OpenTables(out->writer_->tables_dir(), kDir));
    HOTROW_RETURN_IF_ERROR(
        out->writer_->Attach(out->tables_.get(), setting.store, out->tables_dir_));
    return out;
  }
  // One that saves models.
  static absl::StatusOr<std::unique_ptr<Rank>> StartSaving(Communicator& comm, Env* env,
                                                           const Setting& setting,
                                                           const std::string& snapshot_dir = "") {
    std::unique_ptr<Rank> out(new Rank(comm, env, setting));
    HOTROW_ASSIGN_OR_RETURN(out->saver_, SavedModelWriter::Open(env, kModel, &comm));
    HOTROW_RETURN_IF_ERROR(
        out->OpenTables(snapshot_dir.empty() ? out->saver_->tables_dir() : snapshot_dir, kModel));
    return out;
  }

  EmbeddingCollection& tables() { return *tables_; }
  CheckpointWriter& writer() { return *writer_; }
  int64_t step() const { return tables_->steps(); }

  absl::Status Train(uint64_t seed) {
    RandomStream random(seed, RandomPurpose::kTest, static_cast<uint64_t>(comm_.rank()));
    std::vector<uint64_t> values;
    std::vector<int64_t> offsets = {0};
    while (values.size() < 16) {
      const uint64_t key = random.Below(400);
      if (OwnerRank({.key = key, .table = 0}, comm_.world_size()) != comm_.rank()) continue;
      values.push_back(key);
      offsets.push_back(static_cast<int64_t>(values.size()));
    }
    std::vector<float> pooled(16 * 3);
    HOTROW_ASSIGN_OR_RETURN(EmbeddingStep step, tables_->Prefetch({16, values, offsets, {}}));
    HOTROW_RETURN_IF_ERROR(
        step.Lookup({.pooled = {pooled.data(), step.batch_size(), tables_->pooled_dim()}}));
    for (float& x : pooled) x = static_cast<float>(random.Uniform()) - 0.5f;
    return std::move(step).Update(
        {.pooled = {pooled.data(), step.batch_size(), tables_->pooled_dim()}});
  }

  absl::Status Begin(bool early = false) {
    SavedModel model = Description(setting_.store, tables_dir_);
    model.step = step();
    return writer_->Begin(model, {.parameters = Dense()}, early);
  }
  absl::Status Take() {
    HOTROW_RETURN_IF_ERROR(Begin());
    return writer_->Wait();
  }

  absl::Status Save() {
    SavedModel model = Description(setting_.store, tables_dir_);
    if (counted_at_ != step()) HOTROW_RETURN_IF_ERROR(AllRows().status());
    model.tables[0].rows = rows_;
    model.tables[0].hash = hash_;
    return saver_->Save(model, *tables_, {.parameters = Dense()});
  }

  // Hash of the rows of all ranks. Collective.
  absl::StatusOr<std::string> AllRows() {
    HOTROW_ASSIGN_OR_RETURN(const CollectionDigest digest, tables_->Digest());
    const TableDigest& mine = digest.tables[0];
    Hash128 sum;
    HOTROW_ASSIGN_OR_RETURN(const auto hi,
                            comm_.AllGatherSizes(static_cast<int64_t>(mine.hash.hi)));
    HOTROW_ASSIGN_OR_RETURN(const auto lo,
                            comm_.AllGatherSizes(static_cast<int64_t>(mine.hash.lo)));
    HOTROW_ASSIGN_OR_RETURN(const auto counts, comm_.AllGatherSizes(mine.rows));
    rows_ = 0;
    for (size_t r = 0; r < hi.size(); ++r) {
      sum += Hash128{static_cast<uint64_t>(hi[r]), static_cast<uint64_t>(lo[r])};
      rows_ += counts[r];
    }
    counted_at_ = step();
    hash_ = sum.ToHex();
    return hash_;
  }

  // What the const calls say is the same on all ranks. Collective.
  absl::Status CheckAgreement() {
    for (const int64_t mine :
         {writer_->newest_step(), writer_->num_committed(), writer_->stats().count,
          writer_->stats().early, static_cast<int64_t>(writer_->busy()),
          static_cast<int64_t>(std::hash<std::string>()(writer_->newest_dir()))}) {
      HOTROW_ASSIGN_OR_RETURN(const auto all, comm_.AllGatherSizes(mine));
      for (const int64_t other : all) {
        if (other != mine) return absl::InternalError("the ranks disagree");
      }
    }
    return absl::OkStatus();
  }

 private:
  Rank(Communicator& comm, Env* env, const Setting& setting)
      : comm_(comm), env_(env), setting_(setting) {}

  absl::Status OpenTables(const std::string& snapshot_dir, const std::string& from) {
    EmbeddingCollectionOptions options = TableOptions(env_);
    tables_dir_ = snapshot_dir;
    if (setting_.store != StoreKind::kMemory) {
      tables_dir_ = RankDir(kRows, comm_.rank(), comm_.world_size());
      options.start.start_over = true;
      options.cache.bytes = 1 << 20;
    }
    options.store = MakeStorage({.kind = setting_.store,
                                 .dir = tables_dir_,
                                 .memory_bytes = int64_t{16} << 20,
                                 .disk_bytes = int64_t{16} << 20});
    const absl::StatusOr<SavedModel> saved = ReadCheckpoint(*env_, from);
    if (saved.ok() && std::ssize(saved->parts) == comm_.world_size()) {
      const SavedModel::Part& part = saved->parts[static_cast<size_t>(comm_.rank())];
      HOTROW_ASSIGN_OR_RETURN(const StoreKind kind, ParseStoreKind(part.store));
      options.start.from = {{.snapshot = part.snapshot, .store = kind, .dir = part.tables_dir}};
      options.start.steps = saved->step;
    } else if (!saved.ok() && !absl::IsFailedPrecondition(saved.status())) {
      return saved.status();
    }
    HOTROW_ASSIGN_OR_RETURN(tables_, EmbeddingCollection::Create(options, {}));
    return absl::OkStatus();
  }

  std::vector<float>& Dense() {
    dense_.assign(5, static_cast<float>(step()));
    return dense_;
  }

  Communicator& comm_;
  Env* const env_;
  const Setting setting_;
  std::string tables_dir_;
  std::unique_ptr<EmbeddingCollection> tables_;
  std::unique_ptr<CheckpointWriter> writer_;
  std::unique_ptr<SavedModelWriter> saver_;
  std::vector<float> dense_;
  // What AllRows found last.
  int64_t counted_at_ = -1;
  int64_t rows_ = 0;
  std::string hash_;
};

using RankMain = std::function<absl::Status(Communicator&)>;

std::vector<absl::Status> RunRanks(const RankMain& main, int32_t world_size = kRanks) {
  return RunOnThreads(world_size, {.timeout_seconds = 60}, main);
}

// Rows and dense parameters of a checkpoint, read by itself: OK, with nothing damaged.
std::string RowsOf(Env& env, const std::string& path) {
  const absl::StatusOr<CheckpointReport> report = VerifyCheckpoint(env, path, 0);
  HOTROW_EXPECT_OK(report);
  if (!report.ok()) return "";
  EXPECT_THAT(report->damage, IsEmpty());
  EXPECT_EQ(report->tables.size(), 1u);
  const absl::StatusOr<DenseVectors> dense = ReadSavedDense(env, report->model);
  HOTROW_EXPECT_OK(dense);
  if (dense.ok()) {
    EXPECT_THAT(dense->parameters, Each(static_cast<float>(report->model.step)));
  }
  return report->tables.empty() ? "" : report->tables[0].hash.ToHex();
}

// What all ranks together had at each step.
class Record {
 public:
  // Collective.
  absl::Status Note(Rank& rank) {
    HOTROW_ASSIGN_OR_RETURN(const std::string hash, rank.AllRows());
    const std::lock_guard<std::mutex> lock(mutex_);
    hashes_[rank.step()] = hash;
    return absl::OkStatus();
  }
  std::string At(int64_t step) const {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto found = hashes_.find(step);
    return found == hashes_.end() ? "none" : found->second;
  }

 private:
  mutable std::mutex mutex_;
  std::map<int64_t, std::string> hashes_;
};

void ExpectCheckpointsAre(Env& env, const std::vector<int64_t>& steps, const Record& record,
                          size_t ranks = kRanks) {
  std::vector<std::string> expected;
  for (const int64_t step : steps) expected.push_back(CheckpointName(step));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, ListCheckpoints(env, kDir));
  EXPECT_EQ(names, expected);
  for (const int64_t step : steps) {
    const std::string path = absl::StrCat(kDir, "/", CheckpointName(step));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, path));
    EXPECT_EQ(saved.parts.size(), ranks);
    EXPECT_EQ(saved.step, step);
    EXPECT_EQ(RowsOf(env, path), record.At(step)) << step;
  }
}

std::vector<Setting> Settings() {
  std::vector<Setting> out;
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const bool background : {false, true}) out.push_back({store, 2, background});
  }
  return out;
}

std::string Text(const Setting& setting) {
  return absl::StrCat(std::string(StoreKindName(setting.store)),
                      setting.background ? ", in the background" : "");
}

TEST(RankCheckpointTest, RanksTakeThemTogether) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(Text(setting));
    MemEnv env;
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    Record record;
    for (int life = 0; life < 2; ++life) {
      const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
        HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, setting));
        if (life == 1) {
          // It goes on with the rows of the newest.
          EXPECT_EQ(rank->step(), 12);
          HOTROW_ASSIGN_OR_RETURN(const std::string rows, rank->AllRows());
          EXPECT_EQ(rows, record.At(12));
          EXPECT_EQ(rank->writer().newest_step(), 12);
          EXPECT_EQ(rank->writer().num_committed(), 2);
        }
        HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
        for (int i = 0; i < 3; ++i) {
          for (int n = 0; n < 3; ++n) {
            HOTROW_RETURN_IF_ERROR(rank->Train(static_cast<uint64_t>(100 * life + 10 * i + n)));
          }
          HOTROW_RETURN_IF_ERROR(record.Note(*rank));
          HOTROW_RETURN_IF_ERROR(rank->Begin());
          HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
          EXPECT_TRUE(rank->writer().busy());
          // Training goes on meanwhile; all ranks poll at the same steps.
          bool committed = false;
          for (int n = 0; n < 1; ++n) {
            HOTROW_RETURN_IF_ERROR(rank->Train(static_cast<uint64_t>(100 * life + 10 * i + 5 + n)));
            HOTROW_ASSIGN_OR_RETURN(const bool now, rank->writer().Poll());
            committed = committed || now;
            HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
          }
          HOTROW_RETURN_IF_ERROR(rank->writer().Wait());
          HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
          EXPECT_FALSE(rank->writer().busy());
          EXPECT_EQ(rank->writer().newest_step(), rank->step() - 1);
          EXPECT_EQ(rank->writer().stats().count, i + 1);
          // Rank 0 has written the dense file; rows on an SSD were there already.
          if (comm.rank() == 0 || setting.store == StoreKind::kMemory) {
            EXPECT_GT(rank->writer().stats().bytes, 0);
          }
        }
        HOTROW_RETURN_IF_ERROR(record.Note(*rank));
        HOTROW_RETURN_IF_ERROR(rank->Take());
        EXPECT_EQ(rank->writer().num_committed(), 2);
        HOTROW_ASSIGN_OR_RETURN(const auto snapshots, rank->tables().snapshots().List());
        EXPECT_EQ(snapshots.size(), 2u);
        return rank->tables().Close();
      });
      ASSERT_THAT(all, Each(test::IsOk()));
      ExpectCheckpointsAre(env, {12 * life + 11, 12 * life + 12}, record);
    }
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir(kDir));
    EXPECT_THAT(names, ElementsAre(CheckpointName(23), CheckpointName(24), "tables"));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadCheckpoint(env, kDir));
    EXPECT_EQ(saved.parts[2].tables_dir,
              RankDir(setting.store == StoreKind::kMemory ? absl::StrCat(kDir, "/tables") : kRows,
                      2, kRanks));
  }
}

TEST(RankCheckpointTest, EarlyOnesAndKeepNewestOnlyLeaveOne) {
  for (const Setting& base : Settings()) {
    SCOPED_TRACE(Text(base));
    Setting setting = base;
    setting.keep = 4;
    MemEnv env;
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    Record record;
    const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, setting));
      const auto take = [&](int count) -> absl::Status {
        for (int i = 0; i < count; ++i) {
          HOTROW_RETURN_IF_ERROR(rank->Train(static_cast<uint64_t>(rank->step())));
          HOTROW_RETURN_IF_ERROR(record.Note(*rank));
          HOTROW_RETURN_IF_ERROR(rank->Take());
        }
        return absl::OkStatus();
      };
      HOTROW_RETURN_IF_ERROR(take(3));
      EXPECT_EQ(rank->writer().num_committed(), 3);
      HOTROW_ASSIGN_OR_RETURN(const bool removed, rank->writer().KeepNewestOnly());
      EXPECT_TRUE(removed);
      HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
      EXPECT_EQ(rank->writer().num_committed(), 1);
      HOTROW_ASSIGN_OR_RETURN(const bool again, rank->writer().KeepNewestOnly());
      EXPECT_FALSE(again);
      HOTROW_RETURN_IF_ERROR(take(2));
      EXPECT_EQ(rank->writer().num_committed(), 3);
      // One of that step is there, and another comes beside it.
      HOTROW_RETURN_IF_ERROR(rank->Take());
      EXPECT_EQ(rank->writer().num_committed(), 4);
      EXPECT_EQ(rank->writer().newest_dir(), "/run/ckpt/step-000000000005-1");
      HOTROW_RETURN_IF_ERROR(rank->Train(77));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      HOTROW_RETURN_IF_ERROR(rank->Begin(/*early=*/true));
      HOTROW_RETURN_IF_ERROR(rank->writer().Wait());
      HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
      EXPECT_EQ(rank->writer().num_committed(), 1);
      EXPECT_EQ(rank->writer().stats().early, 1);
      HOTROW_ASSIGN_OR_RETURN(const auto snapshots, rank->tables().snapshots().List());
      EXPECT_EQ(snapshots.size(), 1u);
      return rank->tables().Close();
    });
    ASSERT_THAT(all, Each(test::IsOk()));
    ExpectCheckpointsAre(env, {6}, record);
  }
}

// Rank 0 commits, and nobody else gets as far as to tell its store before power is lost.
TEST(RankCheckpointTest, PowerLossBetweenTheNameAndTheCommitsLosesNothing) {
  for (const Setting& setting : Settings()) {
    SCOPED_TRACE(Text(setting));
    MemEnv env;
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    Record record;
    const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
      FaultyEnv faulty(&env);
      HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &faulty, setting));
      HOTROW_RETURN_IF_ERROR(rank->Train(1));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      HOTROW_RETURN_IF_ERROR(rank->Take());
      HOTROW_RETURN_IF_ERROR(rank->Train(2));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      HOTROW_RETURN_IF_ERROR(rank->Begin());
      HOTROW_RETURN_IF_ERROR(rank->tables().snapshots().Wait());
      if (comm.rank() > 0) faulty.FailFrom(faulty.calls(), absl::DataLossError("gone"));
      const absl::Status status = rank->writer().Wait();
      // A memory store has nothing to write down for a commit.
      if (setting.store == StoreKind::kSsd) {
        EXPECT_THAT(status, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("rank 1: ")));
      }
      EXPECT_EQ(rank->writer().newest_step(), 2);
      return rank->CheckAgreement();
    });
    ASSERT_THAT(all, Each(test::IsOk()));
    env.DropUnsyncedData();
    const std::vector<absl::Status> next = RunRanks([&](Communicator& comm) -> absl::Status {
      HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, setting));
      EXPECT_EQ(rank->step(), 2);
      HOTROW_ASSIGN_OR_RETURN(const std::string rows, rank->AllRows());
      EXPECT_EQ(rows, record.At(2));
      EXPECT_EQ(rank->writer().num_committed(), 2);
      HOTROW_RETURN_IF_ERROR(rank->Train(3));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      HOTROW_RETURN_IF_ERROR(rank->Take());
      HOTROW_ASSIGN_OR_RETURN(const auto snapshots, rank->tables().snapshots().List());
      EXPECT_EQ(snapshots.size(), 2u);
      return rank->tables().Close();
    });
    ASSERT_THAT(next, Each(test::IsOk()));
    ExpectCheckpointsAre(env, {2, 3}, record);
  }
}

// The third checkpoint, of two that are kept, while call k of one rank fails, or all from k on.
// All ranks hear of it with its number; what was committed is there. Then, as the trainer does
// where there was no room, all but the newest go and it is taken again; or power is lost. False
// when that rank makes fewer calls.
bool TakeWithFault(const Setting& setting, int32_t faulty_rank, int64_t k, bool all_from_k,
                   const absl::Status& error, bool power_loss) {
  SCOPED_TRACE(testing::Message() << Text(setting) << ", rank " << faulty_rank << ", call " << k
                                  << (all_from_k ? " and all after it: " : ": ") << error
                                  << (power_loss ? ", then power loss" : ""));
  MemEnv env;
  HOTROW_EXPECT_OK(CreateDirsDurably(env, "/run"));
  Record record;
  bool hit = false;
  int64_t committed = 0;  // the newest that the ranks know of
  std::vector<absl::Status> said(kRanks);
  const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
    FaultyEnv faulty(&env);
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &faulty, setting));
    for (int i = 0; i < 3; ++i) {
      HOTROW_RETURN_IF_ERROR(rank->Train(static_cast<uint64_t>(i)));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      if (i < 2) HOTROW_RETURN_IF_ERROR(rank->Take());
    }
    const int64_t call = faulty.calls() + k;
    const bool mine = comm.rank() == faulty_rank;
    if (mine && all_from_k) faulty.FailFrom(call, error);
    if (mine && !all_from_k) faulty.FailCall(call, error);
    const absl::Status status = rank->Take();
    said[static_cast<size_t>(comm.rank())] = status;
    HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
    EXPECT_FALSE(rank->writer().busy());
    if (mine) {
      hit = faulty.faults() > 0;
      committed = rank->writer().newest_step();
    }
    if (power_loss) return absl::OkStatus();
    faulty.FailFrom(INT64_MAX, absl::OkStatus());
    faulty.FailCall(call, absl::OkStatus());
    HOTROW_RETURN_IF_ERROR(rank->writer().KeepNewestOnly().status());
    HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
    EXPECT_EQ(rank->writer().num_committed(), 1);
    // Once more, of the same step if it failed.
    if (rank->writer().newest_step() == rank->step()) {
      HOTROW_RETURN_IF_ERROR(rank->Train(8));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
    }
    HOTROW_RETURN_IF_ERROR(rank->Take());
    HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
    if (mine) committed = rank->writer().newest_step();
    return absl::OkStatus();
  });
  EXPECT_THAT(all, Each(test::IsOk()));
  for (const absl::Status& status : said) EXPECT_EQ(status, said[0]);
  if (!said[0].ok()) {
    EXPECT_TRUE(hit);
    EXPECT_EQ(said[0].code(), error.code()) << said[0];
    EXPECT_THAT(std::string(said[0].message()),
                AllOf(HasSubstr(absl::StrCat("rank ", faulty_rank, ": ")), HasSubstr("injected")));
  }
  if (testing::Test::HasFailure()) return false;
  env.DropUnsyncedData();
  // Whoever comes next finds the newest that was committed, or, where only the last sync failed,
  // perhaps the one after it.
  int64_t newest_step = 0;
  const std::vector<absl::Status> next = RunRanks([&](Communicator& comm) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, setting));
    EXPECT_GE(rank->step(), committed);
    HOTROW_ASSIGN_OR_RETURN(const std::string rows, rank->AllRows());
    EXPECT_EQ(rows, record.At(rank->step()));
    HOTROW_RETURN_IF_ERROR(rank->Train(9));
    HOTROW_RETURN_IF_ERROR(record.Note(*rank));
    HOTROW_RETURN_IF_ERROR(rank->Take());
    HOTROW_ASSIGN_OR_RETURN(const auto snapshots, rank->tables().snapshots().List());
    EXPECT_EQ(snapshots.size(), 2u);
    if (comm.rank() == 0) newest_step = rank->writer().newest_step();
    return rank->tables().Close();
  });
  EXPECT_THAT(next, Each(test::IsOk()));
  if (testing::Test::HasFailure()) return false;
  const auto names = ListCheckpoints(env, kDir);
  EXPECT_TRUE(names.ok() && names->size() == 2u);
  const std::string newest = absl::StrCat(kDir, "/", names->back());
  EXPECT_EQ(names->back(), CheckpointName(newest_step));
  EXPECT_EQ(RowsOf(env, newest), record.At(newest_step));
  return hit;
}

TEST(RankCheckpointTest, AFaultAtAnyCallOfARankIsHeardByAll) {
  const std::vector<absl::Status> errors = {absl::ResourceExhaustedError("injected: full"),
                                            absl::DataLossError("injected: bad sector")};
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t rank : {0, 2}) {
      int64_t turn = 0;
      for (const bool all_from_k : {false, true}) {
        for (const bool power_loss : {false, true}) {
          // Each error with each of the two, not with each pair.
          const absl::Status& error = errors[static_cast<size_t>(all_from_k ^ power_loss)];
          // On an SSD the store makes most of the calls, which its own tests walk over.
          const int64_t stride =
              store == StoreKind::kSsd ? test::ForSanitizer(11, 23) : test::ForSanitizer(4, 9);
          int64_t k = turn++ % stride;
          while (TakeWithFault({.store = store}, rank, k, all_from_k, error, power_loss) &&
                 !testing::Test::HasFailure()) {
            k += stride;
          }
          EXPECT_GT(k, rank == 0 ? 15 : 5);
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

// A rank that cannot even begin says so when the others ask.
TEST(RankCheckpointTest, ARankThatCannotBeginIsNamed) {
  MemEnv env;
  HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
  const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, {.background = true}));
    HOTROW_RETURN_IF_ERROR(rank->Train(1));
    // Its directory is gone.
    const std::string dir = rank->writer().tables_dir();
    if (comm.rank() == 1) HOTROW_RETURN_IF_ERROR(env.RemoveDir(dir));
    HOTROW_RETURN_IF_ERROR(rank->Begin());
    EXPECT_THAT(rank->writer().Wait().ToString(),
                AllOf(HasSubstr("rank 1: "), HasSubstr(dir.substr(0, 16))));
    HOTROW_RETURN_IF_ERROR(rank->CheckAgreement());
    EXPECT_EQ(rank->writer().num_committed(), 0);
    if (comm.rank() == 1) HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
    HOTROW_RETURN_IF_ERROR(rank->Train(2));
    return rank->Take();
  });
  EXPECT_THAT(all, Each(test::IsOk()));
}

// Checkpoints of another number of ranks go like any other, with the files of their rows.
TEST(RankCheckpointTest, TheNumberOfRanksMayChange) {
  MemEnv env;
  HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
  const std::string tables = absl::StrCat(kDir, "/tables");
  int64_t step = 0;
  const auto run = [&](int32_t world_size, const Setting& setting, int checkpoints) {
    Record record;
    const std::vector<absl::Status> all = RunRanks(
        [&](Communicator& comm) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &env, setting));
          // Rows start again here; steps go on.
          while (rank->step() < step) HOTROW_RETURN_IF_ERROR(rank->Train(1));
          for (int i = 0; i < checkpoints; ++i) {
            HOTROW_RETURN_IF_ERROR(rank->Train(2));
            HOTROW_RETURN_IF_ERROR(record.Note(*rank));
            HOTROW_RETURN_IF_ERROR(rank->Take());
          }
          return rank->tables().Close();
        },
        world_size);
    EXPECT_THAT(all, Each(test::IsOk()));
    step += checkpoints;
    EXPECT_EQ(RowsOf(env, kDir), record.At(step));
  };
  run(3, {}, 2);
  run(2, {}, 1);
  {
    // One of the two that are kept has three parts, and one two.
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto dirs, env.ListDir(tables));
    EXPECT_EQ(dirs.size(), 5u) << testing::PrintToString(dirs);
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env.ListDir(RankDir(tables, 2, 3)));
    EXPECT_EQ(files.size(), 1u);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel older,
                                ReadCheckpoint(env, absl::StrCat(kDir, "/", CheckpointName(2))));
    EXPECT_EQ(older.parts.size(), 3u);
    RowsOf(env, older.dir);
  }
  run(1, {}, 2);
  run(1, {}, 1);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env.ListDir(tables));
    EXPECT_EQ(files.size(), 2u) << testing::PrintToString(files);
    EXPECT_THAT(files, Each(testing::EndsWith(".snapshot")));
  }
  // Onto disks and back.
  run(2, {.store = StoreKind::kSsd}, 3);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env.ListDir(tables));
    for (const std::string& name : files) EXPECT_FALSE(absl::EndsWith(name, ".snapshot")) << name;
  }
  run(3, {}, 2);
  // What a run left that was killed before its first checkpoint.
  HOTROW_ASSERT_OK(env.CreateDirs(RankDir(tables, 1, 7)));
  HOTROW_ASSERT_OK(WriteFileAtomically(
      env, absl::StrCat(RankDir(tables, 1, 7), "/", SnapshotFileName(5)), "half"));
  HOTROW_ASSERT_OK(env.CreateDirs(tables + "/rank-of-mine"));
  run(1, {}, 1);
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto files, env.ListDir(tables));
  EXPECT_THAT(files, testing::Not(testing::Contains(HasSubstr("00007"))));
  EXPECT_THAT(files, testing::Contains("rank-of-mine"));
}

TEST(RankCheckpointTest, WhatRanksDoNotShareIsRefused) {
  MemEnv shared;
  MemEnv alone;
  for (MemEnv* const env : {&shared, &alone}) HOTROW_ASSERT_OK(CreateDirsDurably(*env, "/run"));
  const std::vector<absl::Status> apart = RunRanks([&](Communicator& comm) {
    return Rank::Start(comm, comm.rank() == 2 ? &alone : &shared, {}).status();
  });
  EXPECT_THAT(apart, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                   AllOf(HasSubstr("rank 2: --checkpoint_dir=/run/ckpt"),
                                         HasSubstr("does not see"), HasSubstr("share")))));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, shared.ListDir(kDir));
  EXPECT_THAT(names, ElementsAre("tables"));

  const std::vector<absl::Status> same = RunRanks([&](Communicator& comm) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::Start(comm, &shared, {}));
    return rank->writer().Attach(&rank->tables(), StoreKind::kMemory,
                                 comm.rank() == 0 ? "/a" : "/b");
  });
  EXPECT_THAT(same, Each(StatusIs(absl::StatusCode::kFailedPrecondition,
                                  AllOf(HasSubstr("ranks 1 and 2"), HasSubstr("/b")))));
}

// --- Saved models --------------------------------------------------------------------------------

// Saves a second model while call k of one rank fails: what is there is the first or the second.
bool SaveWithFault(const Setting& setting, int32_t faulty_rank, int64_t k, bool all_from_k) {
  SCOPED_TRACE(testing::Message() << Text(setting) << ", rank " << faulty_rank << ", call " << k
                                  << (all_from_k ? " and all after it" : ""));
  MemEnv env;
  HOTROW_EXPECT_OK(CreateDirsDurably(env, "/run"));
  Record record;
  bool hit = false;
  std::vector<absl::Status> said(kRanks);
  const std::vector<absl::Status> all = RunRanks([&](Communicator& comm) -> absl::Status {
    FaultyEnv faulty(&env);
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::StartSaving(comm, &faulty, setting));
    for (int i = 0; i < 2; ++i) {
      HOTROW_RETURN_IF_ERROR(rank->Train(static_cast<uint64_t>(i)));
      HOTROW_RETURN_IF_ERROR(record.Note(*rank));
      if (i == 0) HOTROW_RETURN_IF_ERROR(rank->Save());
    }
    const absl::Status error = absl::DataLossError("injected");
    if (comm.rank() == faulty_rank) {
      if (all_from_k) {
        faulty.FailFrom(faulty.calls() + k, error);
      } else {
        faulty.FailCall(faulty.calls() + k, error);
      }
    }
    said[static_cast<size_t>(comm.rank())] = rank->Save();
    if (comm.rank() == faulty_rank) hit = faulty.faults() > 0;
    // Nobody leaves while another one still cleans up.
    return comm.Barrier();
  });
  EXPECT_THAT(all, Each(test::IsOk()));
  for (const absl::Status& status : said) EXPECT_EQ(status, said[0]);
  if (!said[0].ok()) {
    EXPECT_THAT(said[0], StatusIs(absl::StatusCode::kDataLoss,
                                  HasSubstr(absl::StrCat("rank ", faulty_rank, ": "))));
  }
  env.DropUnsyncedData();
  const std::vector<absl::Status> next = RunRanks([&](Communicator& comm) -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const auto rank, Rank::StartSaving(comm, &env, setting));
    EXPECT_TRUE(rank->step() == 2 || (rank->step() == 1 && !said[0].ok()));
    HOTROW_ASSIGN_OR_RETURN(const std::string rows, rank->AllRows());
    EXPECT_EQ(rows, record.At(rank->step()));
    HOTROW_RETURN_IF_ERROR(rank->Train(5));
    HOTROW_RETURN_IF_ERROR(record.Note(*rank));
    HOTROW_RETURN_IF_ERROR(rank->Save());
    HOTROW_ASSIGN_OR_RETURN(const auto snapshots, rank->tables().snapshots().List());
    EXPECT_EQ(snapshots.size(), 1u);
    const int64_t step = rank->step();
    HOTROW_RETURN_IF_ERROR(rank->tables().Close());
    HOTROW_RETURN_IF_ERROR(comm.Barrier());
    if (comm.rank() == 0) {
      EXPECT_EQ(RowsOf(env, kModel), record.At(step));
    }
    return comm.Barrier();
  });
  EXPECT_THAT(next, Each(test::IsOk()));
  const auto names = env.ListDir(kModel);
  EXPECT_TRUE(names.ok() && names->size() == 3u);  // dense, manifest, tables
  return hit && !testing::Test::HasFailure();
}

TEST(RankSavedModelTest, AFaultAtAnyCallOfARankLeavesTheOldModelOrTheNew) {
  for (const StoreKind store : {StoreKind::kMemory, StoreKind::kSsd}) {
    for (const int32_t rank : {0, 2}) {
      for (const bool all_from_k : {false, true}) {
        const int64_t stride = store == StoreKind::kSsd ? 11 : 3;
        int64_t k = all_from_k ? 1 : 0;
        while (SaveWithFault({.store = store}, rank, k, all_from_k)) k += stride;
        EXPECT_GT(k, rank == 0 ? 15 : 5);
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

// Each number and kind of stores after each other one leaves one model, and nothing of the others.
TEST(RankSavedModelTest, StoresOfAnyKindAndNumberReplaceEachOther) {
  struct Kind {
    int32_t world_size;
    StoreKind store;
    std::string snapshot_dir;  // of a memory store, from which the snapshot is copied
  };
  const std::vector<Kind> kinds = {{1, StoreKind::kMemory, ""},   {3, StoreKind::kMemory, ""},
                                   {2, StoreKind::kMemory, "/c"}, {1, StoreKind::kSsd, ""},
                                   {3, StoreKind::kSsd, ""},      {1, StoreKind::kMemory, "/c"}};
  for (const Kind& first : kinds) {
    for (const Kind& second : kinds) {
      SCOPED_TRACE(absl::StrCat(first.world_size, " ", std::string(StoreKindName(first.store)),
                                first.snapshot_dir, ", then ", second.world_size, " ",
                                std::string(StoreKindName(second.store)), second.snapshot_dir));
      MemEnv env;
      HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
      Record record;
      int life = 0;
      for (const Kind& kind : {first, second}) {
        ++life;
        const std::vector<absl::Status> all = RunRanks(
            [&](Communicator& comm) -> absl::Status {
              std::string dir;
              if (!kind.snapshot_dir.empty()) {
                dir = RankDir(kind.snapshot_dir, comm.rank(), comm.world_size());
                HOTROW_RETURN_IF_ERROR(env.CreateDirs(dir));
              }
              HOTROW_ASSIGN_OR_RETURN(const auto rank,
                                      Rank::StartSaving(comm, &env, {.store = kind.store}, dir));
              while (rank->step() < life) HOTROW_RETURN_IF_ERROR(rank->Train(3));
              HOTROW_RETURN_IF_ERROR(record.Note(*rank));
              HOTROW_RETURN_IF_ERROR(rank->Save());
              HOTROW_RETURN_IF_ERROR(rank->tables().Close());
              return comm.Barrier();
            },
            kind.world_size);
        ASSERT_THAT(all, Each(test::IsOk()));
        EXPECT_EQ(RowsOf(env, kModel), record.At(life));
      }
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir(kModel));
      EXPECT_EQ(names.size(), 3u) << testing::PrintToString(names);
      HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kModel));
      EXPECT_EQ(std::ssize(saved.parts), second.world_size);
      // Snapshots that are there, and those that the model has.
      int64_t files = 0;
      HOTROW_ASSERT_OK_AND_ASSIGN(const auto tables, env.ListDir(SavedTablesDir(kModel)));
      for (const std::string& name : tables) {
        files += absl::EndsWith(name, ".snapshot");
        if (!absl::StartsWith(name, "rank-")) continue;
        HOTROW_ASSERT_OK_AND_ASSIGN(const auto below,
                                    env.ListDir(absl::StrCat(SavedTablesDir(kModel), "/", name)));
        files += std::ssize(below);
      }
      EXPECT_EQ(files, second.store == StoreKind::kMemory ? second.world_size : 0);
    }
  }
}

// The dense file is named after a snapshot. A store that has none yet must not give the new file
// the name of the old one.
TEST(RankSavedModelTest, AnotherKindOfStoreDoesNotOverwriteTheOldModelBeforeItIsReplaced) {
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(k);
    MemEnv env;
    HOTROW_ASSERT_OK(CreateDirsDurably(env, "/run"));
    bool hit = false;
    const std::vector<absl::Status> all = RunRanks(
        [&](Communicator& comm) -> absl::Status {
          {
            HOTROW_ASSIGN_OR_RETURN(const auto first,
                                    Rank::StartSaving(comm, &env, {.store = StoreKind::kSsd}));
            HOTROW_RETURN_IF_ERROR(first->Train(1));
            HOTROW_RETURN_IF_ERROR(first->Save());
            HOTROW_RETURN_IF_ERROR(first->tables().Close());
          }
          FaultyEnv faulty(&env);
          HOTROW_ASSIGN_OR_RETURN(const auto second, Rank::StartSaving(comm, &faulty, {}));
          HOTROW_RETURN_IF_ERROR(second->Train(2));
          faulty.FailFrom(faulty.calls() + k, absl::DataLossError("injected"));
          second->Save().IgnoreError();
          hit = faulty.faults() > 0;
          return absl::OkStatus();
        },
        1);
    ASSERT_THAT(all, Each(test::IsOk()));
    env.DropUnsyncedData();
    HOTROW_ASSERT_OK_AND_ASSIGN(const SavedModel saved, ReadSavedModel(env, kModel));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DenseVectors dense, ReadSavedDense(env, saved));
    EXPECT_THAT(dense.parameters, Each(static_cast<float>(saved.step)));
    if (!hit || HasFailure()) break;
  }
}

}  // namespace
}  // namespace hotrow
