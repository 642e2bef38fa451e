#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "store/ssd/ssd_store.h"
#include "tests/store/store_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

using internal::SsdManifest;
using internal::SsdRecordKind;
using internal::SsdScanned;
using internal::SsdSegmentRef;
using test::MemEnv;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::Field;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr char kPath[] = "/store";
constexpr int64_t kChunkBytes = 16 << 10;
constexpr int64_t kSegmentBytes = 2 * kChunkBytes;
constexpr uint32_t kSmall = 3;   // rows of 60 bytes
constexpr uint32_t kLarge = 70;  // rows of 1000 bytes

SsdStoreOptions Options(Env& env) {
  SsdStoreOptions options;
  options.path = kPath;
  options.tables = {{kSmall, 60}, {kLarge, 1000}};
  options.memory_budget_bytes = int64_t{16} << 20;
  options.disk_budget_bytes = 16 * kSegmentBytes;
  options.segment_bytes = kSegmentBytes;
  options.chunk_bytes = kChunkBytes;
  options.background = false;
  options.env = &env;
  return options;
}

absl::Status Put(SsdStore& store, uint32_t table, uint64_t first, uint64_t count,
                 uint64_t version) {
  test::Batch batch;
  for (uint64_t key = first; key < first + count; ++key) {
    batch.Add({key, table}, test::MakeRow({key, table}, version, store.row_bytes(table)));
  }
  return batch.InsertInto(store);
}

// A store of some 45 KiB with all there can be in one: two segments, overwritten and erased rows,
// a snapshot that ends in the middle of a chunk, and, when closed, an image of the index.
// 50 + 20 live rows; 104 records.
void MakeStore(Env& env, bool close = true) {
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SsdStore> store, SsdStore::Open(Options(env)));
  HOTROW_ASSERT_OK(Put(*store, kSmall, 0, 60, 1));
  HOTROW_ASSERT_OK(Put(*store, kLarge, 0, 12, 1));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(5));
  HOTROW_ASSERT_OK(store->CommitSnapshot(5));
  HOTROW_ASSERT_OK(Put(*store, kSmall, 0, 10, 2));
  std::vector<RowKey> erased;
  for (uint64_t key = 40; key < 50; ++key) erased.push_back({key, kSmall});
  HOTROW_ASSERT_OK(store->Erase(erased));
  HOTROW_ASSERT_OK(Put(*store, kLarge, 8, 12, 2));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(9));
  if (close) {
    HOTROW_ASSERT_OK(store->Close());
  } else {
    HOTROW_ASSERT_OK(store->Flush());
  }
}

SsdManifest ManifestOf(Env& env) {
  const auto text = ReadFileToString(env, absl::StrCat(kPath, "/MANIFEST"));
  HOTROW_EXPECT_OK(text);
  const auto decoded = internal::DecodeSsdManifest(*text);
  HOTROW_EXPECT_OK(decoded);
  return decoded->manifest;
}

std::string PathOf(const std::string& name) { return absl::StrCat(kPath, "/", name); }
std::string SegmentPath(uint32_t slot) { return PathOf(internal::SsdSegmentName(slot)); }

testing::Matcher<const SsdDamage&> DamageIs(const std::string& file, int64_t offset,
                                            const testing::Matcher<const std::string&>& what) {
  return AllOf(Field(&SsdDamage::file, file), Field(&SsdDamage::offset, offset),
               Field(&SsdDamage::what, what));
}

std::string Text(const std::vector<SsdDamage>& damage) {
  std::string out;
  for (const SsdDamage& d : damage)
    absl::StrAppend(&out, d.file, ":", d.offset, ": ", d.what, "\n");
  return out;
}

void ExpectTheMadeStore(const SsdStoreReport& report, bool closed) {
  EXPECT_EQ(Text(report.damage), "");
  EXPECT_EQ(report.format_version, internal::kSsdManifestOfOneDirectory);
  EXPECT_EQ(report.segment_bytes, kSegmentBytes);
  EXPECT_EQ(report.chunk_bytes, kChunkBytes);
  ASSERT_EQ(report.tables.size(), 2u);
  EXPECT_EQ(report.tables[0].table, kSmall);
  EXPECT_EQ(report.tables[0].row_bytes, 60);
  EXPECT_EQ(report.tables[0].rows, 50);
  EXPECT_EQ(report.tables[1].table, kLarge);
  EXPECT_EQ(report.tables[1].rows, 20);
  EXPECT_EQ(report.records, 60 + 12 + 10 + 10 + 12);
  EXPECT_EQ(report.live_bytes, 50 * 60 + 20 * 1000);
  EXPECT_EQ(report.segments, 2);
  EXPECT_GE(report.segment_files, 4);  // two are kept free
  EXPECT_GT(report.used_bytes, report.live_bytes);
  EXPECT_GE(report.disk_bytes, report.segment_files * kSegmentBytes);
  EXPECT_EQ(report.snapshot_bytes, 0);
  ASSERT_EQ(report.snapshots.size(), 2u);
  EXPECT_EQ(report.snapshots[0].id, 5u);
  EXPECT_TRUE(report.snapshots[0].committed);
  EXPECT_EQ(report.snapshots[1].id, 9u);
  EXPECT_FALSE(report.snapshots[1].committed);
  EXPECT_LT(report.snapshots[0].bytes, report.snapshots[1].bytes);
  EXPECT_EQ(report.has_index_image, closed);
}

TEST(SsdVerifyTest, AGoodStoreIsCountedAndGood) {
  for (const bool close : {true, false}) {
    MemEnv env;
    MakeStore(env, close);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport inspected, InspectSsdStore(env, kPath));
    ExpectTheMadeStore(inspected, close);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport verified, VerifySsdStore(env, kPath));
    ExpectTheMadeStore(verified, close);
  }
}

TEST(SsdVerifyTest, NothingIsWritten) {
  MemEnv env;
  MakeStore(env);
  const auto all = [&] {
    std::map<std::string, std::string> files;
    const auto names = env.ListDir(kPath);
    HOTROW_EXPECT_OK(names);
    for (const std::string& name : *names) {
      const auto text = ReadFileToString(env, PathOf(name));
      HOTROW_EXPECT_OK(text);
      files[name] = *text;
    }
    return files;
  };
  const auto before = all();
  HOTROW_EXPECT_OK(InspectSsdStore(env, kPath));
  HOTROW_EXPECT_OK(VerifySsdStore(env, kPath));
  EXPECT_EQ(all(), before);
}

TEST(SsdVerifyTest, WhatOnlySnapshotsHoldIsCounted) {
  MemEnv env;
  MakeStore(env);
  // Everything is written again, and cleaned.
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<SsdStore> store, SsdStore::Open(Options(env)));
  for (uint64_t version = 3; version < 9; ++version) {
    HOTROW_ASSERT_OK(Put(*store, kSmall, 0, 60, version));
    HOTROW_ASSERT_OK(Put(*store, kLarge, 0, 20, version));
  }
  HOTROW_ASSERT_OK(store->CleanAll());
  HOTROW_ASSERT_OK(store->Flush());
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
  EXPECT_EQ(Text(report.damage), "");
  EXPECT_EQ(report.tables[0].rows, 60);
  EXPECT_EQ(report.tables[1].rows, 20);
  EXPECT_EQ(report.snapshot_bytes, store->Stats().snapshot_bytes);
}

// The heart of it: each byte of each file is either known to be slack, or its change is reported,
// for its file, and where it is a row's, with its table and key.
TEST(SsdVerifyTest, EveryFlippedByteIsNamedOrSlack) {
  MemEnv env;
  MakeStore(env);
  const SsdManifest manifest = ManifestOf(env);
  std::map<std::string, int64_t> ends;  // of records, by file
  const auto add = [&](const SsdSegmentRef& ref) {
    int64_t& end = ends[internal::SsdSegmentName(ref.slot)];
    end = std::max(end, ref.end_offset);
  };
  for (const SsdSegmentRef& ref : manifest.segments) add(ref);
  for (const auto& snapshot : manifest.snapshots) {
    for (const SsdSegmentRef& ref : snapshot.segments) add(ref);
  }
  ASSERT_EQ(ends.size(), 2u);
  const std::vector<int64_t> row_bytes = {60, 1000};
  const internal::SsdGeometry geometry = {kSegmentBytes, kChunkBytes, row_bytes};

  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir(kPath));
  int reported = 0;
  int named = 0;
  int slack = 0;
  for (const std::string& name : names) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string bytes, ReadFileToString(env, PathOf(name)));
    const bool is_segment = absl::StartsWith(name, "segment-");
    const int64_t end = !is_segment           ? static_cast<int64_t>(bytes.size())
                        : ends.contains(name) ? ends[name]
                                              : 0;
    // Rows and tombstones, by where they begin.
    std::map<int64_t, SsdScanned> records;
    for (const SsdSegmentRef& ref : manifest.segments) {
      if (internal::SsdSegmentName(ref.slot) != name) continue;
      for (int64_t at = 0; at < ref.end_offset; at += kChunkBytes) {
        std::vector<SsdScanned> scanned;
        HOTROW_ASSERT_OK(internal::ListSsdChunk(
            geometry, ref, at,
            std::as_bytes(std::span(bytes).subspan(static_cast<size_t>(at), kChunkBytes)),
            &scanned));
        for (const SsdScanned& record : scanned) records[record.offset] = record;
      }
    }
    const auto size = static_cast<int64_t>(bytes.size());
    int64_t step = 1;
    for (int64_t at = 0; at < size; at += step) {
      // Zeros behind a header, the index's free slots, and slack: some of it.
      const bool zeros = is_segment && at >= 64 && at < internal::kSsdSegmentHeaderBytes;
      const bool image = absl::StartsWith(name, "index-") && at >= 128;
      step = image || at >= end ? 61 : test::ForSanitizer(1, 13);
      if (zeros) step = std::min<int64_t>(61, internal::kSsdSegmentHeaderBytes - at);
      HOTROW_ASSERT_OK(env.FlipBit(PathOf(name), 8 * at + at % 8));
      const auto report = VerifySsdStore(env, kPath);
      HOTROW_ASSERT_OK(env.FlipBit(PathOf(name), 8 * at + at % 8));
      SCOPED_TRACE(absl::StrCat(name, " offset ", at));
      HOTROW_ASSERT_OK(report);
      if (at >= end) {
        ASSERT_EQ(Text(report->damage), "");
        ++slack;
        continue;
      }
      ASSERT_EQ(report->damage.size(), 1u) << Text(report->damage);
      const SsdDamage& damage = report->damage[0];
      ASSERT_EQ(damage.file, PathOf(name));
      ++reported;
      if (!is_segment) continue;
      ASSERT_EQ(damage.offset / kChunkBytes, at / kChunkBytes) << Text(report->damage);
      auto record = records.upper_bound(at);
      if (record == records.begin() ||
          at >= std::prev(record)->second.offset + std::prev(record)->second.bytes) {
        continue;
      }
      const SsdScanned& hit = std::prev(record)->second;
      ASSERT_EQ(damage.offset, hit.offset);
      ASSERT_THAT(damage.what,
                  HasSubstr(absl::StrCat(hit.kind() == SsdRecordKind::kRow ? "row" : "tombstone",
                                         " of key ", hit.key, " of table ",
                                         manifest.tables[hit.table_index()].table)));
      ++named;
    }
  }
  // 72 + 22 rows and 10 tombstones, each byte of them.
  constexpr int kRecordBytes = 70 * 88 + 24 * 1024 + 10 * 24;
  if (test::kSanitizer) {
    EXPECT_GE(named, kRecordBytes / 14);
  } else {
    EXPECT_EQ(named, kRecordBytes);
  }
  EXPECT_GT(reported, named + test::ForSanitizer(1000, 50));
  EXPECT_GT(slack, 100);
}

TEST(SsdVerifyTest, AllDamageIsListed) {
  MemEnv env;
  MakeStore(env);
  const SsdManifest manifest = ManifestOf(env);
  ASSERT_GE(manifest.segments[0].end_offset, kChunkBytes);
  const std::string first = SegmentPath(manifest.segments[0].slot);
  // Two rows, the first chunk's footer, a copy of the manifest, the image.
  for (const int64_t at : {int64_t{4096 + 30}, int64_t{4096 + 88 + 30}, kChunkBytes - 10}) {
    HOTROW_ASSERT_OK(env.FlipBit(first, 8 * at));
  }
  HOTROW_ASSERT_OK(env.FlipBit(PathOf("MANIFEST"), 8 * 50));
  const std::string image = PathOf(internal::SsdIndexName(manifest.index_image));
  HOTROW_ASSERT_OK(env.FlipBit(image, 8 * 50));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
  EXPECT_THAT(
      report.damage,
      ElementsAre(DamageIs(PathOf("MANIFEST"), 16, HasSubstr("checksum of the header")),
                  DamageIs(image, 48, HasSubstr("partition 0")),
                  // Without the footer two damaged neighbours are one gap.
                  DamageIs(first, 4096, HasSubstr(absl::StrCat("to offset ", 4096 + 2 * 88))),
                  DamageIs(first, kChunkBytes - 64, HasSubstr("the checksum of the footer"))))
      << Text(report.damage);
  // Rows could not be counted: the records between are unknown.
  EXPECT_EQ(report.records, -1);
  EXPECT_EQ(report.tables[0].rows, -1);

  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport inspected, InspectSsdStore(env, kPath));
  EXPECT_THAT(inspected.damage, ElementsAre(DamageIs(PathOf("MANIFEST"), 16, HasSubstr("checksum")),
                                            DamageIs(first, 4096, HasSubstr("no valid record")),
                                            DamageIs(first, kChunkBytes - 64, HasSubstr("footer"))))
      << Text(inspected.damage);
  EXPECT_EQ(inspected.records, -1);
}

TEST(SsdVerifyTest, WithoutItsFooterADamagedRowIsGuessed) {
  MemEnv env;
  MakeStore(env);
  const std::string first = SegmentPath(ManifestOf(env).segments[0].slot);
  HOTROW_ASSERT_OK(env.FlipBit(first, 8 * (4096 + 2 * 88 + 50)));  // the row of key 2
  HOTROW_ASSERT_OK(env.FlipBit(first, 8 * (kChunkBytes - 1)));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
  EXPECT_THAT(report.damage,
              ElementsAre(DamageIs(first, 4096 + 2 * 88,
                                   AllOf(HasSubstr("no valid record"),
                                         HasSubstr("looks like the row of key 2 of table 3"))),
                          DamageIs(first, kChunkBytes - 64, HasSubstr("footer"))))
      << Text(report.damage);
}

TEST(SsdVerifyTest, MissingAndCutFilesAreDamage) {
  {
    MemEnv env;
    MakeStore(env);
    const SsdManifest manifest = ManifestOf(env);
    const std::string image = PathOf(internal::SsdIndexName(manifest.index_image));
    const std::string segment = SegmentPath(manifest.segments[0].slot);
    HOTROW_ASSERT_OK(env.Remove(image));
    HOTROW_ASSERT_OK(env.Remove(segment));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
    EXPECT_THAT(report.damage, ElementsAre(DamageIs(image, 0, HasSubstr("missing")),
                                           DamageIs(segment, 0, HasSubstr("missing"))))
        << Text(report.damage);
    EXPECT_EQ(report.records, -1);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport inspected, InspectSsdStore(env, kPath));
    EXPECT_THAT(inspected.damage, ElementsAre(DamageIs(segment, 0, HasSubstr("missing"))));
  }
  // Cut anywhere, at multiples of the block and not.
  for (const int64_t size : {0, 512, 4096, 4600, 16384, 20000, 24576}) {
    MemEnv env;
    MakeStore(env);
    const SsdSegmentRef ref = ManifestOf(env).segments[0];
    ASSERT_GT(ref.end_offset, 24576);
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::unique_ptr<File> file,
                                env.Open(SegmentPath(ref.slot), OpenMode::kReadWrite));
    HOTROW_ASSERT_OK(file->Truncate(size));
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
    EXPECT_THAT(report.damage, testing::Contains(DamageIs(SegmentPath(ref.slot), size,
                                                          HasSubstr("the file ends here"))))
        << size << "\n"
        << Text(report.damage);
    HOTROW_EXPECT_OK(InspectSsdStore(env, kPath));
  }
}

TEST(SsdVerifyTest, WhatCannotBeOpenedIsAnError) {
  MemEnv env;
  EXPECT_THAT(VerifySsdStore(env, kPath),
              test::StatusIs(absl::StatusCode::kNotFound, HasSubstr("/store: there is no SSD")));
  HOTROW_ASSERT_OK(env.CreateDirs(kPath));
  EXPECT_THAT(InspectSsdStore(env, kPath),
              test::StatusIs(absl::StatusCode::kNotFound, HasSubstr("MANIFEST")));
  MakeStore(env);
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(env, PathOf("MANIFEST")));
  text[20] = static_cast<char>(text[20] ^ 1);
  text[text.size() / 2 + 20] = static_cast<char>(text[text.size() / 2 + 20] ^ 1);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, PathOf("MANIFEST"), text));
  EXPECT_THAT(VerifySsdStore(env, kPath),
              test::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/store/MANIFEST: offset 16")));
}

TEST(SsdVerifyTest, AFileThatCannotBeReadIsDamageOrAnError) {
  test::FaultyEnv env;
  MakeStore(env);
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport good, VerifySsdStore(env, kPath));
  const int64_t before = env.calls();
  HOTROW_ASSERT_OK(VerifySsdStore(env, kPath));
  const int64_t calls = env.calls() - before;
  ASSERT_GT(calls, 20);
  int damaged = 0;
  for (int64_t k = 0; k < calls; ++k) {
    env.FailCall(env.calls() + k, absl::DataLossError("injected"));
    const auto report = VerifySsdStore(env, kPath);
    if (!report.ok()) continue;
    if (!report->damage.empty()) {
      ++damaged;
      continue;
    }
    // Whether a name is a folder is asked of files too, and answered by an error.
    EXPECT_EQ(report->records, good.records) << k;
    EXPECT_EQ(report->disk_bytes, good.disk_bytes) << k;
    EXPECT_EQ(report->tables[0].rows, good.tables[0].rows) << k;
  }
  EXPECT_GE(damaged, 4);  // each chunk
  for (int64_t k = 0; k < calls; ++k) {
    env.ShortenCall(env.calls() + k);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, kPath));
    EXPECT_EQ(Text(report.damage), "") << k;
  }
}

// --- A store by hand: what no checksum tells -----------------------------------------------------

// One segment of one table of 60-byte rows, with an open chunk.
class HandMadeStore {
 public:
  HandMadeStore() : bytes_(kSegmentBytes) {
    internal::EncodeSsdSegmentHeader(kEpoch, kSegmentBytes, kChunkBytes,
                                     std::span(bytes_).first(internal::kSsdSegmentHeaderBytes));
    manifest.segment_bytes = kSegmentBytes;
    manifest.chunk_bytes = kChunkBytes;
    manifest.next_epoch = kEpoch + 2;
    manifest.sequence_limit = 100;
    manifest.tables = {{0, 60}};
    manifest.segments = {{.slot = 0, .epoch = kEpoch, .base_sequence = 10, .end_offset = end}};
  }
  void AddRow(uint64_t key, uint64_t sequence) {
    entries_.push_back({key, static_cast<uint32_t>(sequence - 10),
                        internal::SsdKindTable(SsdRecordKind::kRow, 0)});
    end += internal::EncodeSsdRow({kEpoch, end}, 0, key, sequence,
                                  test::MakeRow({key, 0}, sequence, 60), bytes_.data() + end);
    manifest.segments[0].end_offset = end;
  }
  void AddPad(int64_t bytes) {
    entries_.push_back(
        {0, 0, internal::SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(bytes / 8))});
    internal::EncodeSsdPad({kEpoch, end}, bytes, bytes_.data() + end);
    end += bytes;
    manifest.segments[0].end_offset = end;
  }
  std::vector<internal::SsdFooterEntry>& entries() { return entries_; }
  void Close() {
    const int64_t at =
        kChunkBytes - internal::SsdFooterBytes(static_cast<int64_t>(entries_.size()));
    internal::EncodeSsdPad({kEpoch, end}, at - end, bytes_.data() + end);
    std::memcpy(bytes_.data() + at, entries_.data(), entries_.size() * sizeof(entries_[0]));
    const auto trailer = internal::MakeSsdFooterTrailer(kEpoch, 0, 10, end, entries_);
    std::memcpy(bytes_.data() + kChunkBytes - sizeof(trailer), &trailer, sizeof(trailer));
  }
  std::vector<SsdDamage> Verify() {
    MemEnv env;
    HOTROW_EXPECT_OK(env.CreateDirs(kPath));
    EXPECT_THAT(WriteFileAtomically(env, PathOf("MANIFEST"), internal::EncodeSsdManifest(manifest)),
                test::IsOk());
    EXPECT_THAT(WriteFileAtomically(
                    env, SegmentPath(0),
                    std::string_view(reinterpret_cast<const char*>(bytes_.data()), bytes_.size())),
                test::IsOk());
    const auto report = VerifySsdStore(env, kPath);
    HOTROW_EXPECT_OK(report);
    return report.ok() ? report->damage : std::vector<SsdDamage>();
  }

  static constexpr uint64_t kEpoch = 7;
  SsdManifest manifest;
  int64_t end = internal::kSsdSegmentHeaderBytes;

 private:
  std::vector<std::byte> bytes_;
  std::vector<internal::SsdFooterEntry> entries_;
};

TEST(SsdVerifyTest, AHandMadeStoreIsGood) {
  for (const bool close : {false, true}) {
    HandMadeStore store;
    for (uint64_t key = 0; key < 20; ++key) store.AddRow(key, 10 + key);
    if (close) store.Close();
    EXPECT_THAT(store.Verify(), IsEmpty());
  }
}

TEST(SsdVerifyTest, ASegmentWithoutRecordsNeedNoHeader) {
  HandMadeStore store;
  store.AddRow(1, 11);
  store.manifest.segments[0].epoch = 8;
  EXPECT_THAT(store.Verify(),
              testing::Contains(DamageIs(SegmentPath(0), 16, HasSubstr("epoch 7"))));
  store.manifest.segments[0].end_offset = internal::kSsdSegmentHeaderBytes;
  EXPECT_THAT(store.Verify(), IsEmpty());
}

TEST(SsdVerifyTest, AFooterThatListsOtherRecordsIsDamage) {
  for (const bool key : {true, false}) {
    HandMadeStore store;
    for (uint64_t i = 0; i < 20; ++i) store.AddRow(i, 10 + i);
    if (key) {
      store.entries()[3].key = 77;
    } else {
      store.entries()[3].sequence_delta = 50;
    }
    store.Close();
    EXPECT_THAT(store.Verify(), ElementsAre(DamageIs(SegmentPath(0), 4096 + 3 * 88,
                                                     HasSubstr("the record is another"))));
  }
}

TEST(SsdVerifyTest, TwoRowsOfAKeyInOneUnitAreDamage) {
  HandMadeStore store;
  store.AddRow(5, 11);
  store.AddRow(6, 12);
  store.AddRow(5, 13);
  EXPECT_THAT(store.Verify(), ElementsAre(DamageIs(SegmentPath(0), 4096 + 2 * 88,
                                                   HasSubstr("a second row of key 5 of table 0"))));
  HandMadeStore padded;
  padded.AddRow(5, 11);
  padded.AddPad(512 - 88);
  padded.AddRow(5, 13);
  EXPECT_THAT(padded.Verify(), IsEmpty());
}

TEST(SsdVerifyTest, NumbersOutsideOfTheStateAreDamage) {
  for (const uint64_t sequence : {9, 100}) {
    HandMadeStore store;
    store.AddRow(5, sequence);
    EXPECT_THAT(store.Verify(),
                ElementsAre(DamageIs(SegmentPath(0), 4096,
                                     AllOf(HasSubstr("key 5 of table 0"),
                                           HasSubstr(absl::StrCat("number ", sequence))))));
  }
}

TEST(SsdVerifyTest, AStateThatEndsWithinARecordIsDamage) {
  HandMadeStore store;
  store.AddRow(5, 11);
  store.AddRow(6, 12);
  store.manifest.snapshots = {{.id = 1,
                               .committed = true,
                               .sequence = 13,
                               .segments = {{.slot = 0,
                                             .epoch = HandMadeStore::kEpoch,
                                             .base_sequence = 10,
                                             .end_offset = 4096 + 40}}}};
  EXPECT_THAT(store.Verify(),
              ElementsAre(DamageIs(SegmentPath(0), 4096 + 40, HasSubstr("records end here"))));
  store.manifest.snapshots[0].segments[0].end_offset = 4096 + 88;
  EXPECT_THAT(store.Verify(), IsEmpty());
  // And the manifest's own state behind the last record.
  store.manifest.segments[0].end_offset += 8;
  EXPECT_THAT(store.Verify(),
              ElementsAre(DamageIs(SegmentPath(0), 4096 + 176, HasSubstr("no valid record"))));
}

TEST(SsdVerifyTest, AManifestThatNoStoreWritesIsRefused) {
  MemEnv env;
  HOTROW_ASSERT_OK(env.CreateDirs(kPath));
  const auto expect = [&](const SsdManifest& manifest, const char* text) {
    HOTROW_ASSERT_OK(
        WriteFileAtomically(env, PathOf("MANIFEST"), internal::EncodeSsdManifest(manifest)));
    EXPECT_THAT(VerifySsdStore(env, kPath),
                test::StatusIs(absl::StatusCode::kDataLoss, HasSubstr(text)));
  };
  SsdManifest good = HandMadeStore().manifest;
  good.tables = {};
  expect(good, "num_tables is 0");
  good.tables = {{1, 60}, {1, 60}};
  expect(good, "table 1 is there twice");
  good.tables = {{1, INT64_MAX}};
  expect(good, "table 1: row_bytes is");
  good.tables = {{1, 60}};
  good.chunk_bytes = good.segment_bytes = 10'000;
  expect(good, "chunk_bytes is 10000");
}

}  // namespace
}  // namespace hotrow
