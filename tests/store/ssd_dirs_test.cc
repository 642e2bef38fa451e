#include "store/ssd/ssd_dirs_impl.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "absl/strings/match.h"
#include "base/status_macros.h"
#include "store/ssd/ssd_store.h"
#include "tests/store/ssd_test_util.h"
#include "tests/support/failing_allocations.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"

// A store in several directories: which are taken, how segments lie in them, how they move.
namespace hotrow {
namespace {

using test::Batch;
using test::Dump;
using test::FailingAllocations;
using test::FaultyEnv;
using test::Holds;
using test::MakeRow;
using test::MemEnv;
using test::RowMap;
using test::SmallSsd;
using test::StatusIs;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::SizeIs;

constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

SsdStoreOptions In(Env* env, const std::vector<std::string>& dirs, int64_t segments = 40) {
  SsdStoreOptions options = SmallSsd(env, segments);
  options.path = dirs.front();
  options.more_paths.assign(dirs.begin() + 1, dirs.end());
  return options;
}

// Rows that fill a segment for each ten.
absl::Status PutRows(SsdStore& store, uint64_t count, uint64_t version = 0) {
  Batch batch;
  for (uint64_t i = 0; i < count; ++i) batch.Add({i, 4}, MakeRow({i, 4}, version, 1500));
  return batch.InsertInto(store);
}

RowMap Rows(uint64_t count, uint64_t version = 0) {
  RowMap rows;
  for (uint64_t i = 0; i < count; ++i) rows[{4, i}] = MakeRow({i, 4}, version, 1500);
  return rows;
}

absl::Status Make(Env* env, const std::vector<std::string>& dirs, uint64_t count) {
  HOTROW_ASSIGN_OR_RETURN(const auto store, SsdStore::Open(In(env, dirs)));
  HOTROW_RETURN_IF_ERROR(PutRows(*store, count));
  HOTROW_RETURN_IF_ERROR(store->PrepareSnapshot(7));
  return store->Close();
}

int64_t SegmentsIn(Env& env, const std::string& dir) {
  const std::vector<std::string> names = *env.ListDir(dir);
  return std::count_if(names.begin(), names.end(),
                       [](const std::string& name) { return absl::StartsWith(name, "segment-"); });
}

// Names and bytes of the files in these directories.
std::map<std::string, std::string> Files(Env& env, const std::vector<std::string>& dirs) {
  std::map<std::string, std::string> files;
  for (const std::string& dir : dirs) {
    const auto names = env.ListDir(dir);
    if (!names.ok()) continue;
    for (const std::string& name : *names) {
      const std::string path = absl::StrCat(dir, "/", name);
      files[path] = *ReadFileToString(env, path);
    }
  }
  return files;
}

TEST(SsdDirsTest, SegmentsAlternateAndReadersFindThemFromTheHome) {
  MemEnv env;
  HOTROW_ASSERT_OK(Make(&env, {"/a", "/b", "/c"}, 60));
  for (const char* const dir : {"/a", "/b", "/c"}) EXPECT_GE(SegmentsIn(env, dir), 2) << dir;
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, "/a"));
  EXPECT_THAT(report.damage, SizeIs(0));
  EXPECT_THAT(report.directories, ElementsAre("/a", "/b", "/c"));
  EXPECT_EQ(report.segment_files,
            SegmentsIn(env, "/a") + SegmentsIn(env, "/b") + SegmentsIn(env, "/c"));
  EXPECT_EQ(report.format_version, 4u);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto reader,
                              OpenSsdSnapshot({.path = "/a", .snapshot = 7, .env = &env}));
  EXPECT_EQ(reader->rows(), 60);
  for (const char* const other : {"/b", "/c"}) {
    EXPECT_THAT(InspectSsdStore(env, other),
                StatusIs(kFailed, AllOf(HasSubstr(other), HasSubstr("comes first"))));
  }
  // Each time from the image and from the footers, with threads and without.
  for (const bool background : {false, true}) {
    SsdStoreOptions options = In(&env, {"/a", "/b", "/c"});
    options.background = background;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    EXPECT_TRUE(Holds(*store, Rows(60)));
    HOTROW_ASSERT_OK(PutRows(*store, 1));
  }
}

TEST(SsdDirsTest, AStoreOfOneDirectoryHasTheFilesThatItAlwaysHad) {
  MemEnv env;
  HOTROW_ASSERT_OK(Make(&env, {"/a"}, 20));
  for (const auto& [path, bytes] : Files(env, {"/a"})) {
    EXPECT_TRUE(absl::StrContains(path, "/segment-") || absl::StrContains(path, "/index-") ||
                path == "/a/MANIFEST" || path == "/a/LOCK")
        << path;
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, InspectSsdStore(env, "/a"));
  EXPECT_EQ(report.format_version, 3u);
}

TEST(SsdDirsTest, OtherDirectoriesThanItsOwnAreRefusedByNameAndNothingChanges) {
  MemEnv env;
  HOTROW_ASSERT_OK(Make(&env, {"/a", "/b", "/c"}, 60));
  HOTROW_ASSERT_OK(Make(&env, {"/x", "/y"}, 20));
  HOTROW_ASSERT_OK(env.CreateDirs("/empty"));
  const std::vector<std::string> all = {"/a", "/b", "/c", "/x", "/y", "/empty", "/none"};
  const auto before = Files(env, all);
  const auto refused = [&](const std::vector<std::string>& dirs, absl::StatusCode code,
                           const std::string& path, const char* what) {
    EXPECT_THAT(SsdStore::Open(In(&env, dirs)),
                StatusIs(code, AllOf(HasSubstr(path + ": "), HasSubstr(what))));
    EXPECT_TRUE(Files(env, all) == before) << path << ": " << what;
  };
  refused({"/a"}, kFailed, "/a",
          "lie in 3 directories, and 1 is given; give all, last seen as "
          "/a,/b,/c. To leave one out");
  refused({"/a", "/b"}, kFailed, "/a", "and 2 are given");
  refused({"/a", "/c", "/b"}, kFailed, "/c", "is directory 3 of the SSD store /a");
  refused({"/a", "/b", "/empty"}, kFailed, "/empty", "is not directory 3");
  refused({"/a", "/none", "/c"}, kFailed, "/none", "mount its drive");
  refused({"/a", "/y", "/c"}, kFailed, "/y", "of another SSD store");
  refused({"/a", "/b", "/b"}, absl::StatusCode::kInvalidArgument, "/b", "given twice");
  refused({"/a", "/b", "/c", "/c/../b"}, absl::StatusCode::kInvalidArgument, "/c/../b", "twice");
  refused({"/a", "/b", "/c", "/x"}, kFailed, "/x", "has a file of an SSD store (MANIFEST)");
  refused({"/a", "/b", "/c", "/y"}, kFailed, "/y", "of another SSD store already");
  refused({"/b", "/a", "/c"}, kFailed, "/b", "further directory of an SSD store");
  refused({"/empty", "/b"}, kFailed, "/b", "of another SSD store already");
  EXPECT_THAT(SsdStore::Open(In(&env, {"/a", ""})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("more_paths")));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(&env, {"/a", "/b", "/c"})));
  EXPECT_TRUE(Holds(*store, Rows(60)));
}

TEST(SsdDirsTest, ADirectoryIsAddedAndWhatIsNewIsStripedOverAll) {
  MemEnv env;
  HOTROW_ASSERT_OK(Make(&env, {"/a"}, 60));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(&env, {"/a", "/b"})));
    EXPECT_TRUE(Holds(*store, Rows(60)));
    HOTROW_ASSERT_OK(store->DropSnapshot(7));
    // All files are made after some rounds, and their number stays within the budget.
    for (uint64_t version = 1; version < 12; ++version) {
      HOTROW_ASSERT_OK(PutRows(*store, 60, version));
      HOTROW_ASSERT_OK(store->Flush());
    }
    EXPECT_TRUE(Holds(*store, Rows(60, 11)));
    EXPECT_GE(SegmentsIn(env, "/b"), 8);
    EXPECT_LE(store->Stats().disk_used_bytes, store->Stats().disk_budget_bytes);
    HOTROW_ASSERT_OK(store->Close());
  }
  EXPECT_THAT(SsdStore::Open(In(&env, {"/a"})), StatusIs(kFailed, HasSubstr("2 directories")));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(&env, {"/a", "/b", "/c"})));
  EXPECT_TRUE(Holds(*store, Rows(60, 11)));
}

// A full store has made all its files: those in the home give way.
TEST(SsdDirsTest, FreeSegmentsMoveToADirectoryThatWasAdded) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(&env, {"/a"}, 20)));
    for (uint64_t version = 0; version < 6; ++version) {
      HOTROW_ASSERT_OK(PutRows(*store, 30, version));
    }
    HOTROW_ASSERT_OK(store->Flush());
    EXPECT_EQ(store->SsdStats().segments, store->SsdStats().segments_max);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(&env, {"/a", "/b"}, 20)));
  for (uint64_t version = 6; version < 20; ++version) {
    HOTROW_ASSERT_OK(PutRows(*store, 30, version));
    ASSERT_LE(store->SsdStats().segments, store->SsdStats().segments_max);
  }
  HOTROW_ASSERT_OK(store->Flush());
  EXPECT_GE(SegmentsIn(env, "/b"), 4);
  EXPECT_TRUE(Holds(*store, Rows(30, 19)));
  store.reset();
  env.DropUnsyncedData();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(In(&env, {"/a", "/b"}, 20)));
  EXPECT_TRUE(Holds(*store, Rows(30, 19)));
}

// A copy of a store has its identity, and so has what is left of one without its manifest.
TEST(SsdDirsTest, RowsOfACopyOrALaterStateAreNotWrittenOver) {
  const std::string dir = test::TempDir();
  const auto path = [&](const char* name) { return absl::StrCat(dir, "/", name); };
  const std::vector<std::string> all = {path("a"), path("b"), path("c")};
  HOTROW_ASSERT_OK(Make(nullptr, {all[0], all[1]}, 40));
  for (const char* const name : {"a", "b"}) {
    std::filesystem::copy(path(name), absl::StrCat(path(name), "2"));
  }
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(nullptr, all)));
    HOTROW_ASSERT_OK(PutRows(*store, 60, 1));
    HOTROW_ASSERT_OK(store->Close());
  }
  const auto before = Files(PosixEnv(), all);
  // While the original is not to be seen.
  std::filesystem::rename(path("a"), path("away"));
  EXPECT_THAT(SsdStore::Open(In(nullptr, {path("a2"), path("b2"), all[2]})),
              StatusIs(kFailed, AllOf(HasSubstr("/c: has a segment"), HasSubstr("of a copy"))));
  // The drive of the home had no room for segments, and its manifest is gone.
  std::filesystem::create_directory(path("alone"));
  std::filesystem::copy(path("away/DIRECTORIES"), path("alone/DIRECTORIES"));
  EXPECT_THAT(SsdStore::Open(In(nullptr, {path("alone"), all[1]})),
              StatusIs(kFailed, HasSubstr("/b: has a segment")));
  std::filesystem::rename(path("away"), path("a"));
  EXPECT_TRUE(Files(PosixEnv(), all) == before);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(nullptr, all)));
  EXPECT_TRUE(Holds(*store, Rows(60, 1)));
}

// Free segments move by their paths: not out of a directory that has taken the home's place.
TEST(SsdDirsTest, NothingIsRemovedFromADirectoryThatWasPutInTheHomesPlace) {
  const std::string dir = test::TempDir();
  const std::string home = absl::StrCat(dir, "/a");
  const std::string other = absl::StrCat(dir, "/b");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(nullptr, {home}, 20)));
    for (uint64_t version = 0; version < 6; ++version) {
      HOTROW_ASSERT_OK(PutRows(*store, 30, version));
    }
    HOTROW_ASSERT_OK(store->CleanAll());
    HOTROW_ASSERT_OK(store->Flush());
    ASSERT_EQ(store->SsdStats().segments, store->SsdStats().segments_max);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(In(nullptr, {home, other}, 20)));
  std::filesystem::rename(home, absl::StrCat(dir, "/away"));
  std::filesystem::copy(absl::StrCat(dir, "/away"), home);
  const auto before = Files(PosixEnv(), {home});
  EXPECT_THAT(PutRows(*store, 30, 6), StatusIs(kFailed, HasSubstr("is elsewhere now")));
  EXPECT_TRUE(Files(PosixEnv(), {home}) == before);
}

// A run that ends while it adds a directory has either added it or not.
TEST(SsdDirsTest, AddingOneMayFailAtEveryCall) {
  for (int64_t k = 0;; ++k) {
    SCOPED_TRACE(absl::StrCat("call ", k));
    FaultyEnv env;
    HOTROW_ASSERT_OK(Make(&env, {"/a"}, 20));
    env.FailFrom(env.calls() + k, absl::DataLossError("injected"));
    const absl::Status added = SsdStore::Open(In(&env, {"/a", "/b"})).status();
    const bool done = env.faults() == 0;
    if (done) {
      HOTROW_ASSERT_OK(added);
    }
    env.FailFrom(INT64_MAX, absl::OkStatus());
    if (k % 2 == 0) {
      env.DropUnsyncedData();
    } else {
      env.LosePower(static_cast<uint64_t>(k));
    }
    // Nothing lies there yet, so it can be left out again, and be added.
    for (const bool both : {k % 3 == 0, true}) {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                                  SsdStore::Open(both ? In(&env, {"/a", "/b"}) : In(&env, {"/a"})));
      ASSERT_TRUE(Holds(*store, Rows(20)));
    }
    if (done) break;
  }
}

TEST(SsdDirsTest, DirectoriesMayMoveToOtherPaths) {
  const std::string dir = test::TempDir();
  const auto path = [&](const char* name) { return absl::StrCat(dir, "/", name); };
  HOTROW_ASSERT_OK(Make(nullptr, {path("t/a"), path("t/b")}, 40));
  // Both together: whoever reads finds the one from the other.
  std::filesystem::rename(path("t"), path("moved"));
  HOTROW_ASSERT_OK_AND_ASSIGN(SsdStoreReport report, VerifySsdStore(PosixEnv(), path("moved/a")));
  EXPECT_THAT(report.damage, SizeIs(0));
  // Each to another place: who opens the store says where.
  std::filesystem::rename(path("moved/b"), path("b2"));
  EXPECT_THAT(InspectSsdStore(PosixEnv(), path("moved/a")),
              StatusIs(kFailed, AllOf(HasSubstr("moved/b"), HasSubstr("directory 2"),
                                      HasSubstr("moved/a/DIRECTORIES"))));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                                SsdStore::Open(In(nullptr, {path("moved/a"), path("b2")})));
    EXPECT_TRUE(Holds(*store, Rows(40)));
    // Two openings share no directory, by whatever path and home.
    std::filesystem::copy(path("moved/a"), path("copy"));
    std::filesystem::remove(path("copy/DIRECTORIES"));
    EXPECT_THAT(SsdStore::Open(In(nullptr, {path("copy"), path("b2")})),
                StatusIs(kFailed, HasSubstr("b2: is open already")));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(report, VerifySsdStore(PosixEnv(), path("moved/a")));
  EXPECT_THAT(report.directories, SizeIs(2));
  EXPECT_THAT(report.damage, SizeIs(0));
}

// Where the home alone was copied, the others' paths from there often lead to the original's: what
// reads the copy would find it whole, and what opens it would write over the original's rows.
TEST(SsdDirsTest, ACopyOfTheHomeAloneIsNotWhole) {
  const std::string dir = test::TempDir();
  const auto path = [&](const char* name) { return absl::StrCat(dir, "/", name); };
  HOTROW_ASSERT_OK(Make(nullptr, {path("t/a"), path("t/b")}, 40));
  std::filesystem::copy(path("t/a"), path("t/copy"));
  const auto refused = StatusIs(kFailed, AllOf(HasSubstr("/t/b: is a directory of the SSD store"),
                                               HasSubstr("/t/copy is a copy of its home alone")));
  EXPECT_THAT(VerifySsdStore(PosixEnv(), path("t/copy")), refused);
  EXPECT_THAT(OpenSsdSnapshot({.path = path("t/copy"), .snapshot = 7}), refused);
  EXPECT_THAT(SsdStore::Open(In(nullptr, {path("t/copy"), path("t/b")})), refused);
  // One of all is a store, and so is a home that has taken the original's place.
  std::filesystem::copy(path("t"), path("u"), std::filesystem::copy_options::recursive);
  for (const char* const home : {"t/a", "u/a"}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report,
                                VerifySsdStore(PosixEnv(), path(home)));
    EXPECT_THAT(report.damage, SizeIs(0));
  }
  std::filesystem::remove_all(path("t/a"));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store,
                              SsdStore::Open(In(nullptr, {path("t/copy"), path("t/b")})));
  EXPECT_TRUE(Holds(*store, Rows(40)));
}

// Reads in /b fail at once, those in /c take a while.
class UnevenEnv : public MemEnv {
 public:
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    HOTROW_ASSIGN_OR_RETURN(auto file, MemEnv::OpenDirect(path, mode));
    return std::unique_ptr<File>(std::make_unique<UnevenFile>(std::move(file), *this));
  }

  std::atomic<int> moment = 0;     // odd: in a find
  std::atomic<bool> late = false;  // a read was not of the find that ran when it ended

 private:
  class UnevenFile : public File {
   public:
    UnevenFile(std::unique_ptr<File> base, UnevenEnv& env) : base_(std::move(base)), env_(env) {}
    absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
      const int begun = env_.moment;
      if (begun == 0) return base_->ReadAt(offset, bytes);
      if (path().starts_with("/b/")) return absl::DataLossError("injected");
      if (path().starts_with("/c/")) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      if (begun % 2 == 0 || env_.moment != begun) env_.late = true;
      return base_->ReadAt(offset, bytes);
    }
    absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
      return base_->WriteAt(offset, bytes);
    }
    absl::Status Sync() override { return base_->Sync(); }
    absl::StatusOr<int64_t> Size() override { return base_->Size(); }
    absl::Status Truncate(int64_t size) override { return base_->Truncate(size); }
    absl::Status Allocate(int64_t bytes) override { return base_->Allocate(bytes); }
    absl::Status Close() override { return base_->Close(); }
    const std::string& path() const override { return base_->path(); }
    int64_t block_bytes() const override { return base_->block_bytes(); }

   private:
    const std::unique_ptr<File> base_;
    UnevenEnv& env_;
  };
};

TEST(SsdDirsTest, AFindWithoutMemoryEndsBehindAllItsReads) {
  UnevenEnv env;
  SsdStoreOptions options = In(&env, {"/a", "/b", "/c"});
  options.background = true;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(PutRows(*store, 60));
  HOTROW_ASSERT_OK(store->Flush());
  const RowMap expected = Rows(60);
  std::vector<RowKey> keys;
  for (const auto& [key, row] : expected) keys.push_back({key.second, key.first});
  std::vector<test::Row> rows(keys.size(), test::Row(1500));
  std::vector<std::byte*> to;
  for (test::Row& row : rows) to.push_back(row.data());
  std::vector<uint8_t> found(keys.size());
  HOTROW_ASSERT_OK(store->Find(keys, to, found));
  bool fails = true;
  for (int64_t good = 0; fails; ++good) {
    ++env.moment;
    absl::Status status;
    {
      const FailingAllocations no_memory(good);
      status = store->Find(keys, to, found);
      ++env.moment;
      fails = no_memory.failed() > 0;
    }
    EXPECT_FALSE(status.ok()) << "allocation " << good;
  }
  store.reset();
  EXPECT_FALSE(env.late);
}

}  // namespace
}  // namespace hotrow
