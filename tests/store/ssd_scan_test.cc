#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_store.h"
#include "tests/store/store_test_util.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

constexpr char kPath[] = "/store";
constexpr int64_t kRowBytes = 1000;

// 3,000 keys that were written and erased, of which every third was written again: twice as many
// records as their bytes let expect, since tombstones are short.
void MakeStore(Env& env) {
  SsdStoreOptions options;
  options.path = kPath;
  options.tables = {{6, kRowBytes}};
  options.memory_budget_bytes = int64_t{32} << 20;
  options.disk_budget_bytes = int64_t{32} << 20;
  options.background = false;
  options.env = &env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SsdStore> store, SsdStore::Open(options));
  test::Batch all;
  test::Batch again;
  for (uint64_t key = 0; key < 3000; ++key) {
    all.Add({key, 6}, test::MakeRow({key, 6}, 1, kRowBytes));
    if (key % 3 == 0) again.Add({key, 6}, test::MakeRow({key, 6}, 2, kRowBytes));
  }
  HOTROW_ASSERT_OK(all.InsertInto(*store));
  HOTROW_ASSERT_OK(store->Erase(all.keys));
  HOTROW_ASSERT_OK(again.InsertInto(*store));
  HOTROW_ASSERT_OK(store->Flush());
}

TEST(SsdScanTest, NewestRowsAreTheSameHoweverLittleMemoryThereIs) {
  test::MemEnv env;
  MakeStore(env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(env, absl::StrCat(kPath, "/MANIFEST")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DecodedSsdManifest decoded, DecodeSsdManifest(text));
  const SsdManifest& manifest = decoded.manifest;
  const std::vector<int64_t> row_bytes = {kRowBytes};
  const SsdGeometry geometry = {manifest.segment_bytes, manifest.chunk_bytes, row_bytes};
  std::map<uint32_t, std::unique_ptr<File>> files;
  for (const SsdSegmentRef& ref : manifest.segments) {
    const std::string path = absl::StrCat(kPath, "/", SsdSegmentName(ref.slot));
    HOTROW_ASSERT_OK_AND_ASSIGN(files[ref.slot], env.OpenDirect(path, OpenMode::kRead));
  }
  const auto file_of = [&](uint32_t slot) { return files.at(slot).get(); };
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IoQueue> queue, env.NewIoQueue({}));
  MemoryBudget budget(int64_t{32} << 20);

  int64_t scans = 0;
  for (const int64_t memory_bytes : {int64_t{0}, int64_t{32} << 20}) {
    std::map<uint64_t, SsdNewest> rows;
    const int64_t calls = queue->calls();
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const std::unique_ptr<SsdIndex> index,
        SsdIndex::Create({.location_bits = 40, .max_rows_hint = 1 << 20, .seed = 7}, budget));
    int64_t last_partition = 0;
    const auto location_of = [](const SsdNewest& row) {
      return uint64_t{row.slot} << 24 | static_cast<uint64_t>(row.offset);
    };
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const int64_t records,
        ScanNewestSsdRows(geometry, manifest.segments, file_of, *queue, budget, memory_bytes,
                          /*hash_seed=*/7, [&](std::span<const SsdNewest> some) {
                            HOTROW_EXPECT_OK(AddToSsdIndex(some, location_of, index.get()));
                            for (const SsdNewest& row : some) {
                              const int64_t partition = index->partition_of({row.key, 0});
                              EXPECT_GE(partition, last_partition);
                              last_partition = partition;
                              EXPECT_EQ(row.table_index(), 0u);
                              EXPECT_TRUE(rows.emplace(row.key, row).second) << row.key;
                            }
                            return absl::OkStatus();
                          }));
    EXPECT_EQ(records, 3000 + 3000 + 1000);
    EXPECT_EQ(rows.size(), 1000u);
    EXPECT_EQ(index->rows(), 1000);
    for (const auto& [key, row] : rows) {
      EXPECT_EQ(key % 3, 0u);
      const std::vector<RowKey> asked = {{key, 0}};
      std::vector<SsdLocation> location(1);
      index->Find(asked, location);
      EXPECT_EQ(location[0], location_of(row));
      std::vector<std::byte> bytes(static_cast<size_t>(SsdRowRecordBytes(kRowBytes)));
      HOTROW_ASSERT_OK_AND_ASSIGN(
          const std::unique_ptr<File> file,
          env.Open(absl::StrCat(kPath, "/", SsdSegmentName(row.slot)), OpenMode::kRead));
      HOTROW_ASSERT_OK(ReadFull(*file, row.offset, bytes));
      // The row's second version, at the place that was told.
      EXPECT_EQ(test::Row(bytes.begin() + sizeof(SsdRecordHeader),
                          bytes.begin() + sizeof(SsdRecordHeader) + kRowBytes),
                test::MakeRow({key, 6}, 2, kRowBytes));
    }
    // With little memory: all at once did not fit, then slices of the keys.
    if (memory_bytes == 0) {
      scans = queue->calls() - calls;
      EXPECT_GT(scans, 0);
    } else {
      EXPECT_GE(scans, 3 * (queue->calls() - calls));
    }
  }
}

TEST(SsdScanTest, AnErrorOfTheVisitorEndsIt) {
  test::MemEnv env;
  MakeStore(env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text,
                              ReadFileToString(env, absl::StrCat(kPath, "/MANIFEST")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const DecodedSsdManifest decoded, DecodeSsdManifest(text));
  const std::vector<int64_t> row_bytes = {kRowBytes};
  const SsdGeometry geometry = {decoded.manifest.segment_bytes, decoded.manifest.chunk_bytes,
                                row_bytes};
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<IoQueue> queue, env.NewIoQueue({}));
  std::map<uint32_t, std::unique_ptr<File>> files;
  for (const SsdSegmentRef& ref : decoded.manifest.segments) {
    const std::string path = absl::StrCat(kPath, "/", SsdSegmentName(ref.slot));
    HOTROW_ASSERT_OK_AND_ASSIGN(files[ref.slot], env.OpenDirect(path, OpenMode::kRead));
  }
  MemoryBudget budget(int64_t{32} << 20);
  EXPECT_THAT(
      ScanNewestSsdRows(
          geometry, decoded.manifest.segments, [&](uint32_t slot) { return files.at(slot).get(); },
          *queue, budget, 0, /*hash_seed=*/7,
          [](std::span<const SsdNewest>) { return absl::ResourceExhaustedError("enough"); }),
      test::StatusIs(absl::StatusCode::kResourceExhausted, "enough"));
}

}  // namespace
}  // namespace hotrow::internal
