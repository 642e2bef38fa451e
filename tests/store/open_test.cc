// What can be asked of a store of any kind by its kind.

#include "store/open.h"

#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "store/store_facts.h"
#include "tests/store/store_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using ::hotrow::test::StatusIs;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

constexpr int64_t kMiB = int64_t{1} << 20;

std::vector<StoreKind> Kinds() {
  return {
      StoreKind::kMemory,
      StoreKind::kSsd,
#ifdef HOTROW_HAVE_ROCKSDB
      StoreKind::kRocksDb,
#endif
  };
}

CommonStoreOptions In(const std::string& dir, SnapshotId open_at = 0) {
  return {.path = dir,
          .tables = {{3, 64}, {9, 17}},
          .memory_budget_bytes = 8 * kMiB,
          .disk_budget_bytes = 64 * kMiB,
          .open_at = open_at};
}

class StoreOfKindTest : public testing::TestWithParam<StoreKind> {
 protected:
  const StoreKind kind_ = GetParam();
  const std::string dir_ = test::TempDir() + "/store";
};

INSTANTIATE_TEST_SUITE_P(Kinds, StoreOfKindTest, testing::ValuesIn(Kinds()),
                         [](const auto& info) { return std::string(StoreKindName(info.param)); });

TEST_P(StoreOfKindTest, ItsNameAndItsOptionsTellTheKind) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const StoreKind parsed, ParseStoreKind(StoreKindName(kind_)));
  EXPECT_EQ(parsed, kind_);
  EXPECT_EQ(KindOf(MakeStoreOptions(kind_, {})), kind_);
  EXPECT_EQ(FindStoreFacts(StoreKindName(kind_)), &FactsOf(kind_));
  EXPECT_EQ(FindStoreFacts("tape"), nullptr);
}

TEST_P(StoreOfKindTest, OptionsAreThoseOfTheStore) {
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_))));
    ASSERT_EQ(store->tables().size(), 2);
    EXPECT_EQ(store->row_bytes(9), 17);
    EXPECT_EQ(store->Stats().budget_bytes, 8 * kMiB);
    EXPECT_EQ(store->Stats().disk_budget_bytes, FactsOf(kind_).on_disk ? 64 * kMiB : 0);
    HOTROW_EXPECT_OK(store->Close());
  }
  EXPECT_THAT(OpenStore(MakeStoreOptions(kind_, In(dir_, 5))),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("snapshot 5")));
  EXPECT_THAT(OpenStore(MakeStoreOptions(kind_, {.path = dir_})),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tables")));
}

TEST_P(StoreOfKindTest, ErrorsNameTheBudgetsAsTheCallerDoes) {
  CommonStoreOptions options = In(dir_);
  options.memory_option = "MEMORY";
  options.disk_option = "DISK";
  options.disk_budget_bytes = -1;
  const absl::Status disk = OpenStore(MakeStoreOptions(kind_, options)).status();
  EXPECT_EQ(disk.ok(), !FactsOf(kind_).on_disk);
  if (!disk.ok()) {
    EXPECT_THAT(disk, StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("DISK")));
  }
  options.memory_budget_bytes = 0;
  EXPECT_THAT(OpenStore(MakeStoreOptions(kind_, options)),
              StatusIs(absl::StatusCode::kInvalidArgument, StartsWith("MEMORY")));
}

TEST(StoreFactsTest, MessagesListTheKindsThatHaveAFact) {
  EXPECT_EQ(StoreWords(nullptr, "or"), "memory, ssd or rocksdb");
  EXPECT_EQ(StoreWords(&StoreFacts::on_disk, "and"), "ssd and rocksdb");
  EXPECT_EQ(StoreWords(&StoreFacts::in_place, "and"), "memory");
}

TEST_P(StoreOfKindTest, PeekingTellsWhatANewStoreWouldMeet) {
  HOTROW_ASSERT_OK_AND_ASSIGN(StoreContents contents, PeekStore(kind_, dir_));
  EXPECT_FALSE(contents.has_rows);
  EXPECT_THAT(contents.snapshots, IsEmpty());
  if (kind_ == StoreKind::kMemory) return;
  test::Batch batch;
  batch.Add({7, 3}, test::MakeRow({7, 3}, 1, 64));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_))));
    EXPECT_THAT(PeekStore(kind_, dir_),
                StatusIs(absl::StatusCode::kFailedPrecondition,
                         AllOf(HasSubstr(dir_), HasSubstr("is open already"))));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(contents, PeekStore(kind_, dir_));
  EXPECT_FALSE(contents.has_rows);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_))));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(contents, PeekStore(kind_, dir_));
  EXPECT_TRUE(contents.has_rows);
  EXPECT_THAT(contents.snapshots, ElementsAre(5));
  EXPECT_FALSE(contents.has_commits);
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_, 5))));
    HOTROW_ASSERT_OK(store->Erase(batch.keys));
    HOTROW_ASSERT_OK(store->Flush());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(contents, PeekStore(kind_, dir_));
  EXPECT_FALSE(contents.has_rows);
  EXPECT_TRUE(contents.has_commits);
}

TEST_P(StoreOfKindTest, ASnapshotIsCheckedVerifiedAndRead) {
  const UniqueId other = UniqueId::Random();
  test::Batch batch;
  batch.Add({7, 3}, test::MakeRow({7, 3}, 1, 64));
  SnapshotReaderOptions where = {.path = dir_, .snapshot = 5};
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_))));
    HOTROW_ASSERT_OK(batch.InsertInto(*store));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo info, store->DescribeSnapshot(5));
    where.identity = info.identity;
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_EXPECT_OK(CheckSnapshot(kind_, where));
  HOTROW_ASSERT_OK_AND_ASSIGN(SnapshotVerdict verdict, VerifySnapshot(kind_, where));
  EXPECT_THAT(verdict.damage, IsEmpty());
  EXPECT_EQ(verdict.of_whole_store, kind_ == StoreKind::kSsd);
  if (kind_ != StoreKind::kMemory) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto store, OpenStore(MakeStoreOptions(kind_, In(dir_))));
    HOTROW_ASSERT_OK_AND_ASSIGN(verdict, VerifySnapshot(kind_, where));
    EXPECT_THAT(verdict.damage, IsEmpty());
    EXPECT_FALSE(verdict.of_whole_store);
  }
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader, OpenSnapshot(kind_, where));
    int64_t rows = 0;
    HOTROW_ASSERT_OK(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
      EXPECT_EQ(key, batch.keys[0]);
      EXPECT_TRUE(std::equal(row.begin(), row.end(), batch.rows[0].begin(), batch.rows[0].end()));
      ++rows;
      return absl::OkStatus();
    }));
    EXPECT_EQ(rows, 1);
  }
  where.identity = other;
  const auto is_another =
      StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("is another one"));
  EXPECT_THAT(OpenSnapshot(kind_, where), is_another);
  { EXPECT_THAT(CheckSnapshot(kind_, where), is_another); }
}

TEST(StoreKindTest, AnUnknownNameListsTheKindsOfTheBuild) {
  EXPECT_THAT(ParseStoreKind("tape"),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("\"tape\""), HasSubstr("memory, ssd"))));
}

}  // namespace
}  // namespace hotrow
