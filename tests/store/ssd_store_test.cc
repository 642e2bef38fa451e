#include "store/ssd/ssd_store.h"

#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include "absl/strings/match.h"
#include "base/crc32c.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "tests/store/ssd_test_util.h"
#include "tests/support/faulty_env.h"
#include "tests/support/mem_env.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow {
namespace {

// ctest's label slow runs the same cases with larger numbers.
const bool kSlow = test::RunsSlowTests();

using internal::SsdSegmentRef;
using test::Batch;
using test::Dump;
using test::FaultyEnv;
using test::FindAll;
using test::Found;
using test::Holds;
using test::IsOutOfRoomThat;
using test::kKiB;
using test::kMiB;
using test::MakeRow;
using test::MemEnv;
using test::Row;
using test::RowMap;
using test::Seeds;
using test::SmallSsd;
using test::SsdLogBytes;
using test::SsdOracle;
using test::SsdTables;
using test::StatusIs;
using testing::AllOf;
using testing::HasSubstr;

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;
constexpr auto kExhausted = absl::StatusCode::kResourceExhausted;
constexpr auto kFailed = absl::StatusCode::kFailedPrecondition;

int64_t RowBytes(uint32_t table) {
  for (const StoreTable& t : SsdTables()) {
    if (t.table == table) return t.row_bytes;
  }
  return 0;
}

absl::Status Put(RowStore& store, const RowKey& key, uint64_t version) {
  Batch batch;
  batch.Add(key, MakeRow(key, version, store.row_bytes(key.table)));
  return batch.InsertInto(store);
}

absl::Status EraseOne(RowStore& store, const RowKey& key) {
  const std::vector<RowKey> keys = {key};
  return store.Erase(keys);
}

// --- Options and opening -------------------------------------------------------------------------

TEST(SsdStoreOptionsTest, SaysWhatIsWrong) {
  SsdStoreOptions good;
  good.path = "/s";
  good.tables = {{1, 8}};
  good.memory_budget_bytes = 1;
  good.disk_budget_bytes = 1;
  HOTROW_EXPECT_OK(good.Validate());
  const auto expect = [&](auto change, const char* what) {
    SsdStoreOptions options = good;
    change(options);
    EXPECT_THAT(options.Validate(), StatusIs(kInvalid, HasSubstr(what)));
    EXPECT_THAT(SsdStore::Open(options), StatusIs(kInvalid, HasSubstr(what)));
  };
  expect([](auto& o) { o.path = ""; }, "SsdStoreOptions.path");
  expect([](auto& o) { o.more_paths = {""}; }, "SsdStoreOptions.more_paths");
  expect([](auto& o) { o.more_paths = {"/t\n"}; }, "has a line break");
  expect([](auto& o) { o.more_paths.assign(256, "/t"); }, "more_paths: at most 255, are 256");
  expect([](auto& o) { o.tables.clear(); }, "SsdStoreOptions.tables");
  expect([](auto& o) { o.tables = {{1, 0}}; }, "table 1: row_bytes must lie in [1, 4194304], is 0");
  expect([](auto& o) { o.tables = {{1, SsdStore::kRowBytesMax + 1}}; }, "is 4194305");
  expect([](auto& o) { o.tables = {{1, 8}, {2, 8}, {1, 9}}; }, "table 1 is there twice");
  expect([](auto& o) { o.tables.resize(70'000, {1, 8}); }, "at most 65535, are 70000");
  expect([](auto& o) { o.memory_budget_bytes = 0; }, "memory_budget_bytes");
  expect([](auto& o) { o.disk_budget_bytes = -1; }, "disk_budget_bytes: must be at least 1, is -1");
  expect([](auto& o) { o.chunk_bytes = 8192; }, "chunk_bytes");
  expect([](auto& o) { o.chunk_bytes = 20'000; }, "is 20000");
  expect([](auto& o) { o.chunk_bytes = 128 * kMiB; }, "chunk_bytes");
  expect([](auto& o) { o.segment_bytes = -4; },
         "segment_bytes: must lie in [0, 72057594037927936], is -4");
  expect([](auto& o) { o.io.depth = 0; }, "depth");
  expect([](auto& o) { o.io.threads = 1000; }, "threads");
}

TEST(SsdStoreOpenTest, GeometriesThatCannotWorkAreNamed) {
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env);
  options.segment_bytes = 24 * kKiB;
  EXPECT_THAT(SsdStore::Open(options),
              StatusIs(kInvalid, AllOf(HasSubstr("segment_bytes"), HasSubstr("24576"))));
  options = SmallSsd(&env);
  options.tables = {{1, 5000}};  // four of them must fit into a chunk
  EXPECT_THAT(SsdStore::Open(options),
              StatusIs(kInvalid, AllOf(HasSubstr("chunk_bytes"), HasSubstr("5000"))));
  options = SmallSsd(&env, /*segments=*/7);
  EXPECT_THAT(SsdStore::Open(options),
              IsOutOfRoomThat(AllOf(HasSubstr("/store"), HasSubstr("disk budget of 114688"),
                                    HasSubstr("131072"))));
  options = SmallSsd(&env);
  options.memory_budget_bytes = 100 * kKiB;
  EXPECT_THAT(SsdStore::Open(options),
              AllOf(StatusIs(kExhausted, AllOf(HasSubstr("SSD store"), HasSubstr("102400"))),
                    testing::Not(IsOutOfRoomThat(testing::_))));
  // None of that left anything that is in the way.
  HOTROW_EXPECT_OK(SsdStore::Open(SmallSsd(&env)));
}

TEST(SsdStoreOpenTest, AStoreThatIsThereSaysWhatDoesNotFit) {
  MemEnv env;
  EXPECT_THAT(SsdStore::Open([&] {
                SsdStoreOptions options = SmallSsd(&env);
                options.open_at = 9;
                return options;
              }()),
              StatusIs(kFailed, AllOf(HasSubstr("snapshot 9"), HasSubstr("MANIFEST"))));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
    for (uint64_t i = 0; i < 60; ++i) HOTROW_ASSERT_OK(Put(*store, {i, 4}, 0));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(7));
    HOTROW_ASSERT_OK(store->Close());
  }
  const auto expect = [&](auto change, absl::StatusCode code, const char* what) {
    SsdStoreOptions options = SmallSsd(&env);
    change(options);
    EXPECT_THAT(SsdStore::Open(options),
                StatusIs(code, AllOf(HasSubstr("/store"), HasSubstr(what))));
  };
  expect([](auto& o) { o.open_at = 9; }, kFailed, "no snapshot 9");
  expect([](auto& o) { o.tables.pop_back(); }, kInvalid,
         "has table 4, which the options leave out");
  expect([](auto& o) { o.tables.push_back({5, 8}); }, kInvalid, "no table 5");
  expect([](auto& o) { o.tables[0].row_bytes = 2; }, kInvalid, "table 3 has rows of 1 bytes");
  expect([](auto& o) { o.disk_budget_bytes = 8 * 16 * kKiB; }, kExhausted, "needs");
  // Its own geometry counts, not the one that is asked for; the order of tables does not matter.
  SsdStoreOptions options = SmallSsd(&env);
  options.segment_bytes = 0;
  options.chunk_bytes = 64 * kKiB;
  std::reverse(options.tables.begin(), options.tables.end());
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(rows.size(), 60u);
  EXPECT_EQ(store->tables()[0].table, 4u);
}

TEST(SsdStoreOpenTest, AnotherFormatVersionIsRefusedByName) {
  MemEnv env;
  { HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env))); }
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(env, "/store/MANIFEST"));
  const uint32_t version = 7;
  for (const size_t copy : {size_t{0}, text.size() / 2}) {
    std::memcpy(text.data() + copy + 8, &version, 4);
    const uint32_t crc = Crc32c(std::as_bytes(std::span(text.data() + copy, 12)));
    std::memcpy(text.data() + copy + 12, &crc, 4);
  }
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/store/MANIFEST", text));
  EXPECT_THAT(SsdStore::Open(SmallSsd(&env)),
              StatusIs(kFailed, AllOf(HasSubstr("/store/MANIFEST"), HasSubstr("version 7"))));
}

TEST(SsdStoreOpenTest, AMissingSegmentIsNamed) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
    HOTROW_ASSERT_OK(Put(*store, {1, 4}, 0));
    HOTROW_ASSERT_OK(store->Flush());
  }
  HOTROW_ASSERT_OK(env.Remove("/store/segment-000002"));
  for (int open = 0; open < 2; ++open) {
    EXPECT_THAT(SsdStore::Open(SmallSsd(&env)),
                StatusIs(absl::StatusCode::kDataLoss,
                         AllOf(HasSubstr("/store/segment-000002: the file is missing"),
                               HasSubstr("put it back"))));
    HOTROW_ASSERT_OK_AND_ASSIGN(const bool made, env.Exists("/store/segment-000002"));
    EXPECT_FALSE(made);
  }
}

TEST(SsdStoreOpenTest, ASegmentThatWasCutIsNamed) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
    HOTROW_ASSERT_OK(Put(*store, {1, 4}, 0));
    HOTROW_ASSERT_OK(store->Flush());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto file, env.Open("/store/segment-000002", OpenMode::kReadWrite));
  HOTROW_ASSERT_OK(file->Truncate(512));
  EXPECT_THAT(SsdStore::Open(SmallSsd(&env)),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("/store/segment-000002: ends at offset 512"))));
}

// An image of an older version, whose seed everyone knows, is passed over, and is no damage.
TEST(SsdStoreOpenTest, AnImageOfAnOlderVersionIsPassedOver) {
  MemEnv env;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
    for (uint64_t i = 0; i < 60; ++i) HOTROW_ASSERT_OK(Put(*store, {i, 4}, 0));
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/store"));
  const auto name = std::find_if(names.begin(), names.end(),
                                 [](const std::string& n) { return n.find("index-") == 0; });
  ASSERT_NE(name, names.end());
  const std::string path = "/store/" + *name;
  HOTROW_ASSERT_OK_AND_ASSIGN(std::string text, ReadFileToString(env, path));
  const uint32_t version = 2;
  std::memcpy(text.data() + 8, &version, 4);
  const uint32_t crc = Crc32c(std::as_bytes(std::span(text.data(), 28)));
  std::memcpy(text.data() + 28, &crc, 4);
  HOTROW_ASSERT_OK(WriteFileAtomically(env, path, text));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, VerifySsdStore(env, "/store"));
  EXPECT_TRUE(report.damage.empty());
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
  EXPECT_EQ(store->Stats().rows, 60);
  HOTROW_ASSERT_OK_AND_ASSIGN(const bool left, env.Exists(path));
  EXPECT_FALSE(left);
}

// The hashes of the index are seeded at random, and no place of a row depends on them.
TEST(SsdStoreTest, RowsLieWhereTheyDidWhateverTheSeed) {
  struct Layout {
    std::vector<std::pair<RowKey, Row>> rows;  // in the order of the log
    std::vector<SsdSegmentRef> segments;       // without their epochs
  };
  const auto run = []() -> absl::StatusOr<Layout> {
    MemEnv env;
    HOTROW_ASSIGN_OR_RETURN(auto store, SsdStore::Open(SmallSsd(&env, 32)));
    for (uint64_t i = 0; i < 3000; ++i) {
      const RowKey key = {i * i % 97, SsdTables()[i % 5].table};
      HOTROW_RETURN_IF_ERROR(i % 7 == 0 ? EraseOne(*store, key) : Put(*store, key, i));
      if (i % 500 == 0) HOTROW_RETURN_IF_ERROR(store->Flush());
    }
    HOTROW_RETURN_IF_ERROR(store->CleanAll());
    HOTROW_RETURN_IF_ERROR(store->Flush());
    Layout out;
    HOTROW_RETURN_IF_ERROR(store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
      out.rows.emplace_back(key, Row(row.begin(), row.end()));
      return absl::OkStatus();
    }));
    HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadFileToString(env, "/store/MANIFEST"));
    HOTROW_ASSIGN_OR_RETURN(auto manifest, internal::DecodeSsdManifest(text));
    out.segments = std::move(manifest.manifest.segments);
    for (SsdSegmentRef& ref : out.segments) ref.epoch = 0;
    return out;
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(const Layout first, run());
  HOTROW_ASSERT_OK_AND_ASSIGN(const Layout second, run());
  EXPECT_GT(first.rows.size(), 100u);
  EXPECT_TRUE(first.rows == second.rows);
  EXPECT_TRUE(first.segments == second.segments);
}

// Keys that share both buckets of an index whose seed is known, as the seed 0 once was.
TEST(SsdStoreTest, KeysChosenToCollideAreAllKept) {
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 64, 64 * kKiB);
  options.tables = {{0, 64}};
  Batch batch;
  constexpr int kBits = 63;  // of q, in a store as small as this
  const internal::SsdIndexScramble scramble(kBits);
  uint64_t top = 0;
  for (uint64_t i = 0; batch.keys.size() < 600; ++i) {
    const uint64_t q = uint64_t{0x155} << (kBits - 10) | Mix64(i) >> 11;
    const uint64_t second = scramble.Apply(q) >> (kBits - 10);
    if (batch.keys.empty()) top = second;
    if (second != top) continue;
    const RowKey key = {internal::Unmix64(q) ^ internal::SsdIndexTableSeed(0, 0), 0};
    batch.Add(key, MakeRow(key, 0, 64));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  EXPECT_EQ(store->Stats().rows, 600);
  HOTROW_ASSERT_OK(store->Close());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, batch.keys));
  EXPECT_EQ(found.rows, batch.rows);
}

// --- What was found by reading and by the tests below --------------------------------------------

TEST(SsdStoreTest, ARowErasedAndWrittenAgainAtOnceIsTheNewOne) {
  // Three records of the key may lie within one unit of the index.
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env)));
  for (const uint32_t table : {3u, 0u, 70'000u, UINT32_MAX}) {
    const RowKey key = {1, table};
    for (uint64_t version = 0; version < 40; ++version) {
      HOTROW_ASSERT_OK(Put(*store, key, version));
      if (version % 3 != 0) {
        HOTROW_ASSERT_OK(EraseOne(*store, key));
      }
      if (version % 3 != 0) {
        HOTROW_ASSERT_OK(Put(*store, key, version + 1000));
      }
      const Row row = MakeRow(key, version % 3 == 0 ? version : version + 1000, RowBytes(table));
      HOTROW_ASSERT_OK_AND_ASSIGN(Found found, FindAll(*store, {{key}}));
      ASSERT_EQ(found.rows[0], row) << "table " << table << " version " << version;
      if (version % 8 == 0) {
        HOTROW_ASSERT_OK(store->Flush());
      }
    }
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(rows.size(), 4u);
}

TEST(SsdStoreTest, CleaningEndsAlsoWhereRowsFillChunksBadly) {
  for (const int64_t width : {int64_t{1500}, int64_t{3900}, int64_t{4056}, int64_t{2700}}) {
    for (const bool background : {false, true}) {
      MemEnv env;
      SsdStoreOptions options = SmallSsd(&env, 20, 32 * kKiB, background);
      options.tables = {{1, width}};
      HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
      // Full to the last row that is taken, then every row once more, then all of them are there.
      uint64_t n = 0;
      absl::Status status;
      for (; status.ok(); ++n) status = Put(*store, {n, 1}, 0);
      --n;
      EXPECT_THAT(status, IsOutOfRoomThat(AllOf(HasSubstr("/store"), HasSubstr("disk budget"))));
      EXPECT_GT(static_cast<double>(n) * static_cast<double>(width),
                0.4 * static_cast<double>(options.disk_budget_bytes))
          << width;
      RowMap expected;
      for (uint64_t round = 1; round < 4; ++round) {
        for (uint64_t i = 0; i < n; ++i) {
          const uint64_t key = (i * 7 + round) % n;
          HOTROW_ASSERT_OK(Put(*store, {key, 1}, round)) << "round " << round << " row " << i;
          expected[{1, key}] = MakeRow({key, 1}, round, width);
        }
      }
      for (uint64_t i = 0; i < n; ++i) HOTROW_ASSERT_OK(Put(*store, {i, 1}, 9));
      expected.clear();
      for (uint64_t i = 0; i < n; ++i) expected[{1, i}] = MakeRow({i, 1}, 9, width);
      HOTROW_ASSERT_OK(store->CleanAll());
      EXPECT_TRUE(Holds(*store, expected)) << width;
      EXPECT_LE(store->Stats().disk_used_bytes, options.disk_budget_bytes);
    }
  }
}

TEST(SsdStoreTest, AStoreIsNotFilledByTombstones) {
  for (const bool background : {false, true}) {
    MemEnv env;
    SsdStoreOptions options = SmallSsd(&env, 24, 16 * kKiB, background);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    // Rows that stay and hold back the tombstones of those that come and go.
    RowMap expected;
    for (uint64_t i = 0; i < 60; ++i) {
      HOTROW_ASSERT_OK(Put(*store, {i, 4}, 0));
      expected[{4, i}] = MakeRow({i, 4}, 0, 1500);
    }
    for (uint64_t round = 0; round < 120; ++round) {
      Batch batch;
      for (uint64_t i = 0; i < 200; ++i) {
        const RowKey key = {1000 * round + i, 3};
        batch.Add(key, MakeRow(key, 0, 1));
      }
      HOTROW_ASSERT_OK(batch.InsertInto(*store)) << "round " << round;
      HOTROW_ASSERT_OK(store->Erase(batch.keys)) << "round " << round;
    }
    EXPECT_TRUE(Holds(*store, expected));
    HOTROW_ASSERT_OK(store->Flush());
    store.reset();
    HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
    EXPECT_TRUE(Holds(*store, expected));
  }
}

TEST(SsdStoreTest, TombstonesGoWhenNothingOlderIsLeft) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 64)));
  Batch batch;
  for (uint64_t i = 0; i < 2000; ++i) batch.Add({i, 3}, MakeRow({i, 3}, 0, 1));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  HOTROW_ASSERT_OK(store->Erase(batch.keys));
  for (uint64_t i = 0; i < 30; ++i) HOTROW_ASSERT_OK(Put(*store, {i, 4}, 0));
  const int64_t written = store->SsdStats().tombstones_written;
  EXPECT_EQ(written, 2000);
  HOTROW_ASSERT_OK(store->CleanAll());
  // 30 rows of 1500 bytes are five segments; the open ones, and what cleaning keeps, are a few.
  const SsdStoreStats stats = store->SsdStats();
  EXPECT_LE(stats.segments - stats.segments_free, 9);
  EXPECT_LE(stats.tombstones_written, written + 700) << "they were moved again and again";
}

TEST(SsdStoreTest, RowsThatAreGoneStayGoneWhenASegmentBesideThemIsDamaged) {
  // An erased row and its tombstone lie in two segments that are cleaned in one round, and the one
  // with the row turns out to be unreadable: the tombstone is still needed.
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 32)));
  RowMap expected;
  Batch batch;
  for (uint64_t i = 0; i < 150; ++i) batch.Add({i, 70'000}, MakeRow({i, 70'000}, 0, 64));
  HOTROW_ASSERT_OK(batch.InsertInto(*store));
  std::vector<RowKey> erased(batch.keys.begin() + 20, batch.keys.end());
  for (uint64_t i = 0; i < 20; ++i) expected[{70'000, i}] = batch.rows[i];
  // Into other segments.
  for (uint64_t i = 0; i < 20; ++i) {
    HOTROW_ASSERT_OK(Put(*store, {i % 3, 4}, i));
    expected[{4, i % 3}] = MakeRow({i % 3, 4}, i, 1500);
  }
  HOTROW_ASSERT_OK(store->Erase(erased));
  for (uint64_t i = 0; i < 30; ++i) {
    HOTROW_ASSERT_OK(Put(*store, {i % 3, 4}, 100 + i));
    expected[{4, i % 3}] = MakeRow({i % 3, 4}, 100 + i, 1500);
  }
  HOTROW_ASSERT_OK(store->Flush());
  // The first row of the first segment: live, so that cleaning sees the damage.
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/store"));
  const RowKey damaged = {0, 70'000};
  int64_t flipped = 0;
  for (const std::string& name : names) {
    if (name.find("segment") == std::string::npos) continue;
    HOTROW_ASSERT_OK_AND_ASSIGN(const std::string text, ReadFileToString(env, "/store/" + name));
    const Row row = MakeRow(damaged, 0, 64);
    const size_t at = text.find(std::string(reinterpret_cast<const char*>(row.data()), 64));
    if (at == std::string::npos) continue;
    HOTROW_ASSERT_OK(env.FlipBit("/store/" + name, static_cast<int64_t>(at) * 8 + 3));
    ++flipped;
  }
  ASSERT_EQ(flipped, 1);
  HOTROW_ASSERT_OK(store->CleanAll());
  EXPECT_EQ(store->SsdStats().damaged_segments, 1);
  EXPECT_THAT(
      FindAll(*store, {{damaged}}),
      StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("segment-"), HasSubstr("offset"),
                                                  HasSubstr("key 0 of table 70000"))));
  HOTROW_ASSERT_OK(store->Flush());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(SmallSsd(&env, 32)));
  EXPECT_EQ(store->Stats().rows, static_cast<int64_t>(expected.size()));
  HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, erased));
  EXPECT_EQ(std::count(found.found.begin(), found.found.end(), 1), 0);
}

TEST(SsdStoreTest, SegmentsAreAsFullAfterACrashAsTheyWereBefore) {
  // What recovery thinks of a segment decides whether it can be cleaned.
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 24, 64 * kKiB);
  options.chunk_bytes = 64 * kKiB;
  options.tables = {{1, 64}};  // rows that fill a segment to the last percent
  constexpr uint64_t kRows = 7000;
  for (uint64_t round = 0; round < 5; ++round) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    if (round > 0) {
      EXPECT_EQ(store->SsdStats().live_bytes, kRows * SsdLogBytes(64));
    }
    for (uint64_t i = 0; i < kRows; i += 100) {
      Batch batch;
      for (uint64_t key = i; key < i + 100; ++key) {
        batch.Add({key, 1}, MakeRow({key, 1}, round, 64));
      }
      HOTROW_ASSERT_OK(batch.InsertInto(*store)) << "round " << round << " row " << i;
    }
    HOTROW_ASSERT_OK(store->Flush());
    EXPECT_EQ(store->SsdStats().live_bytes, kRows * SsdLogBytes(64));
  }
}

TEST(SsdStoreTest, AFullStoreRefusesInTheBackgroundTooAndDoesNotWaitForever) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 16, 16 * kKiB, true)));
  // Snapshots hold every segment, so that overwriting needs room that cleaning cannot make.
  absl::Status status;
  RowMap expected;
  uint64_t version = 0;
  for (; status.ok() && version < 100; ++version) {
    for (uint64_t i = 0; i < 10 && status.ok(); ++i) {
      status = Put(*store, {i, 4}, version);
      if (status.ok()) expected[{4, i}] = MakeRow({i, 4}, version, 1500);
    }
    if (status.ok()) status = store->PrepareSnapshot(version + 1);
  }
  EXPECT_THAT(status, StatusIs(kExhausted, AllOf(HasSubstr("/store"), HasSubstr("snapshots"))));
  EXPECT_TRUE(Holds(*store, expected));
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto ids, store->ListSnapshots());
  for (const SnapshotId id : ids) HOTROW_ASSERT_OK(store->DropSnapshot(id));
  for (uint64_t i = 0; i < 200; ++i) {
    HOTROW_ASSERT_OK(Put(*store, {i % 10, 4}, 1000 + i));
    expected[{4, i % 10}] = MakeRow({i % 10, 4}, 1000 + i, 1500);
  }
  EXPECT_TRUE(Holds(*store, expected));
}

TEST(SsdStoreTest, CloseLeavesAnImageThatOpeningUsesAndADamagedOneDoesNoHarm) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env, 40);
  RowMap expected;
  const auto image = [&]() -> std::string {
    const auto names = env.ListDir("/store");
    for (const std::string& name : names.value()) {
      if (name.find("index-") == 0) return "/store/" + name;
    }
    return "";
  };
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 100; ++i) {
      HOTROW_ASSERT_OK(Put(*store, {i, 70'000}, 0));
      expected[{70'000, i}] = MakeRow({i, 70'000}, 0, 64);
    }
    HOTROW_ASSERT_OK(store->Close());
  }
  ASSERT_NE(image(), "");
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    EXPECT_EQ(store->SsdStats().live_bytes, 100 * SsdLogBytes(64));
    EXPECT_TRUE(Holds(*store, expected));
    EXPECT_NE(image(), "") << "nothing was written, it still fits";
  }
  HOTROW_ASSERT_OK(env.FlipBit(image(), 8 * 300));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    EXPECT_EQ(store->SsdStats().live_bytes, 100 * SsdLogBytes(64));
    EXPECT_TRUE(Holds(*store, expected));
    HOTROW_ASSERT_OK(Put(*store, {5, 70'000}, 1));
    expected[{70'000, 5}] = MakeRow({5, 70'000}, 1, 64);
    HOTROW_ASSERT_OK(store->Flush());
    EXPECT_EQ(image(), "") << "it no longer fits";
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  EXPECT_TRUE(Holds(*store, expected));
}

// --- What belongs together -----------------------------------------------------------------------

std::string ReadAll(Env& env, const std::string& path) {
  const absl::StatusOr<std::string> text = ReadFileToString(env, path);
  HOTROW_EXPECT_OK(text);
  return text.ok() ? *text : std::string();
}

std::string FileLike(Env& env, const std::string& dir, const std::string& prefix) {
  const auto names = env.ListDir(dir);
  for (const std::string& name : names.value()) {
    if (name.starts_with(prefix)) return dir + "/" + name;
  }
  return "";
}

void CopyDir(Env& env, const std::string& from, const std::string& to) {
  HOTROW_ASSERT_OK(env.CreateDirs(to));
  const auto names = env.ListDir(from);
  for (const std::string& name : names.value()) {
    HOTROW_ASSERT_OK(WriteFileAtomically(env, to + "/" + name, ReadAll(env, from + "/" + name)));
  }
}

// Rows of one table, with their counts in a snapshot, in a store at `path`.
absl::StatusOr<SnapshotInfo> MakeStore(Env& env, const std::string& path, uint64_t version) {
  SsdStoreOptions options = SmallSsd(&env, 40);
  options.path = path;
  HOTROW_ASSIGN_OR_RETURN(auto store, SsdStore::Open(options));
  for (uint64_t i = 0; i < 100; ++i) HOTROW_RETURN_IF_ERROR(Put(*store, {i, 70'000}, version));
  HOTROW_RETURN_IF_ERROR(EraseOne(*store, {3, 70'000}));
  HOTROW_RETURN_IF_ERROR(store->PrepareSnapshot(7));
  HOTROW_RETURN_IF_ERROR(Put(*store, {100, 4}, version));
  HOTROW_ASSIGN_OR_RETURN(const SnapshotInfo info, store->DescribeSnapshot(7));
  HOTROW_RETURN_IF_ERROR(store->Close());
  return info;
}

TEST(SsdIdentityTest, ASnapshotOfAnotherStoreIsRefusedAndNothingChanges) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo mine, MakeStore(env, "/store", 0));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SnapshotInfo other, MakeStore(env, "/other", 1));
  EXPECT_EQ(mine.table_rows, (std::vector<int64_t>{0, 0, 99, 0, 0}));
  EXPECT_NE(mine.identity, other.identity);
  SsdStoreOptions options = SmallSsd(&env, 40);
  options.open_at = 7;
  options.open_at_identity = other.identity;
  EXPECT_THAT(SsdStore::Open(options),
              StatusIs(kFailed,
                       AllOf(HasSubstr("/store"), HasSubstr("snapshot 7"),
                             HasSubstr(mine.identity.ToHex()), HasSubstr(other.identity.ToHex()))));
  EXPECT_THAT(OpenSsdSnapshot({.path = "/store",
                               .snapshot = 7,
                               .identity = other.identity,
                               .memory_budget_bytes = kMiB,
                               .env = &env}),
              StatusIs(kFailed, HasSubstr(other.identity.ToHex())));
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 40)));
    EXPECT_EQ(store->Stats().rows, 100) << "what was written after the snapshot is still there";
  }
  options.open_at_identity = mine.identity;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  EXPECT_EQ(store->Stats().rows, 99);
}

TEST(SsdIdentityTest, ASegmentOfAnotherStoreHasNoValidRecord) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeStore(env, "/store", 0));
  HOTROW_ASSERT_OK(MakeStore(env, "/other", 1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, InspectSsdStore(env, "/store"));
  const std::string image = FileLike(env, "/store", "index-");
  ASSERT_NE(image, "");
  HOTROW_ASSERT_OK(
      WriteFileAtomically(env, "/store/segment-000002", ReadAll(env, "/other/segment-000002")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport verified, VerifySsdStore(env, "/store"));
  EXPECT_FALSE(verified.damage.empty());
  {
    // The image says where rows are; none of them is there.
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 40)));
    EXPECT_THAT(FindAll(*store, std::vector<RowKey>{{5, 70'000}}),
                StatusIs(absl::StatusCode::kDataLoss, HasSubstr("segment-000002")));
  }
  HOTROW_ASSERT_OK(env.Remove(image));
  EXPECT_THAT(SsdStore::Open(SmallSsd(&env, 40)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr("segment-000002")));
}

// Two copies of a store that were both used are two stores.
TEST(SsdIdentityTest, FilesOfACopyThatWentOnAreNotTaken) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeStore(env, "/store", 0));
  CopyDir(env, "/store", "/other");
  for (const char* const path : {"/store", "/other"}) {
    SsdStoreOptions options = SmallSsd(&env, 40);
    options.path = path;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    const uint64_t more = path == std::string("/store") ? 0 : 50;
    for (uint64_t i = 0; i < 50; ++i) HOTROW_ASSERT_OK(Put(*store, {1000 + more + i, 70'000}, 2));
    HOTROW_ASSERT_OK(store->Close());
  }
  const std::string image = FileLike(env, "/store", "index-");
  ASSERT_EQ(image.substr(6), FileLike(env, "/other", "index-").substr(6));
  HOTROW_ASSERT_OK(WriteFileAtomically(env, image, ReadAll(env, "/other" + image.substr(6))));
  {
    // An image of the other copy's state is left out, the index made from the footers.
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport verified, VerifySsdStore(env, "/store"));
    ASSERT_EQ(verified.damage.size(), 1u);
    EXPECT_EQ(verified.damage[0].file, image);
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 40)));
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const Found found, FindAll(*store, std::vector<RowKey>{{1000, 70'000}, {1050, 70'000}}));
    EXPECT_EQ(found.found, (std::vector<uint8_t>{1, 0}));
  }
  // The segment that both filled after the copy was made.
  HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<std::string> names, env.ListDir("/other"));
  std::string last;
  for (const std::string& name : names) {
    if (name.starts_with("segment-") &&
        ReadAll(env, "/other/" + name) != ReadAll(env, "/store/" + name)) {
      last = name;
    }
  }
  ASSERT_NE(last, "");
  HOTROW_ASSERT_OK(WriteFileAtomically(env, "/store/" + last, ReadAll(env, "/other/" + last)));
  EXPECT_THAT(SsdStore::Open(SmallSsd(&env, 40)),
              StatusIs(absl::StatusCode::kDataLoss, HasSubstr(last)));
}

// The manifest counts the rows, so segments that hold fewer do not go unnoticed.
TEST(SsdIdentityTest, RowsThatTheManifestCountsAndSegmentsDoNotHaveAreDataLoss) {
  MemEnv env;
  HOTROW_ASSERT_OK(MakeStore(env, "/store", 0));
  HOTROW_ASSERT_OK_AND_ASSIGN(internal::DecodedSsdManifest decoded,
                              internal::DecodeSsdManifest(ReadAll(env, "/store/MANIFEST")));
  EXPECT_EQ(decoded.version, internal::kSsdManifestOfOneDirectory);
  EXPECT_EQ(decoded.manifest.table_rows, (std::vector<int64_t>{0, 0, 99, 0, 1}));
  internal::SsdManifest& manifest = decoded.manifest;
  ++manifest.table_rows[2];
  ++manifest.snapshots[0].table_rows[2];
  manifest.index_image = 0;
  HOTROW_ASSERT_OK(
      WriteFileAtomically(env, "/store/MANIFEST", internal::EncodeSsdManifest(manifest)));
  EXPECT_THAT(SsdStore::Open(SmallSsd(&env, 40)),
              StatusIs(absl::StatusCode::kDataLoss,
                       AllOf(HasSubstr("table 70000 has 100 rows"), HasSubstr("hold 99"))));
  EXPECT_THAT(
      OpenSsdSnapshot({.path = "/store", .snapshot = 7, .memory_budget_bytes = kMiB, .env = &env}),
      StatusIs(absl::StatusCode::kDataLoss, HasSubstr("table 70000 of snapshot 7 has 100 rows")));
  HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport verified, VerifySsdStore(env, "/store"));
  ASSERT_EQ(verified.damage.size(), 1u);
  EXPECT_THAT(verified.damage[0].what, HasSubstr("table 70000 has 100 rows"));
}

TEST(SsdStoreTest, ExpiredRowsGoWhenTheirSegmentIsCleanedAndStayGone) {
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 40);
  std::atomic<bool> expire{false};
  options.expired = [&](const RowKey& key, std::span<const std::byte> row) {
    EXPECT_EQ(static_cast<int64_t>(row.size()), RowBytes(key.table));
    return expire && key.table == 70'000 && key.key % 2 == 0;
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  RowMap expected;
  for (uint64_t i = 0; i < 600; ++i) {
    HOTROW_ASSERT_OK(Put(*store, {i, 70'000}, 0));
    HOTROW_ASSERT_OK(Put(*store, {i % 50, 3}, i));  // garbage in every segment
    expected[{70'000, i}] = MakeRow({i, 70'000}, 0, 64);
    expected[{3, i % 50}] = MakeRow({i % 50, 3}, i, 1);
  }
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK(store->CleanAll());
  EXPECT_TRUE(Holds(*store, expected)) << "the snapshot holds the segments";
  HOTROW_ASSERT_OK(store->DropSnapshot(1));
  expire = true;
  EXPECT_TRUE(Holds(*store, expected)) << "only the cleaner asks";
  HOTROW_ASSERT_OK(store->CleanAll());
  const int64_t dropped = store->SsdStats().rows_expired;
  EXPECT_GT(dropped, 200);
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store));
  EXPECT_EQ(rows.size(), expected.size() - static_cast<size_t>(dropped));
  for (const auto& [key, row] : expected) {
    if (rows.contains(key)) {
      EXPECT_EQ(rows.at(key), row);
    } else {
      EXPECT_TRUE(key.first == 70'000 && key.second % 2 == 0) << key.second;
    }
  }
  expire = false;
  HOTROW_ASSERT_OK(store->Flush());
  for (const bool clean : {false, true}) {
    if (clean) {
      HOTROW_ASSERT_OK(store->CleanAll());
    }
    if (clean) {
      HOTROW_ASSERT_OK(store->Close());
    }
    store.reset();
    HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
    EXPECT_TRUE(Holds(*store, rows));
  }
}

TEST(SsdStoreTest, WritersInsideTheirOwnCallsMayBeManyThreads) {
  MemEnv env;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 64)));
  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < 4; ++t) {
    threads.emplace_back([&, t] {
      for (uint64_t i = 0; i < 150; ++i) {
        const RowKey key = {t * 1000 + i % 25, 4};
        HOTROW_ASSERT_OK(Put(*store, key, i));
        if (i % 50 == 10 * t) {
          HOTROW_ASSERT_OK(store->Flush());
        }
        HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store, {{key}}));
        ASSERT_EQ(found.rows[0], MakeRow(key, i, 1500)) << "key " << key.key << ", write " << i;
      }
    });
  }
  threads.emplace_back([&] {
    for (int i = 0; i < 20; ++i) HOTROW_ASSERT_OK(store->CleanAll());
  });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(store->Stats().rows, 100);
}

// --- Random operations against an oracle ---------------------------------------------------------

// One store and what it must hold, on any Env.
class Model {
 public:
  Model(SsdStoreOptions options, uint64_t seed, double fill)
      : options_(std::move(options)), random_(seed, RandomPurpose::kTest) {
    int64_t of_each = 0;
    for (const StoreTable& t : options_.tables) of_each += SsdLogBytes(t.row_bytes);
    // What the store takes at most: see CheckRoom in ssd_store.cc.
    const int64_t usable = options_.disk_budget_bytes - 5 * options_.segment_bytes;
    keys_ = std::max<uint64_t>(
        static_cast<uint64_t>(fill * static_cast<double>(usable) / static_cast<double>(of_each)),
        2);
  }

  void Run(int operations) {
    ASSERT_NO_FATAL_FAILURE(Open(0));
    for (int i = 0; i < operations; ++i) {
      SCOPED_TRACE(absl::StrCat("operation ", i));
      ASSERT_NO_FATAL_FAILURE(Step());
    }
    ASSERT_TRUE(Holds(*store_, oracle_.now()));
  }

 private:
  void Open(SnapshotId at) {
    options_.open_at = at;
    absl::StatusOr<std::unique_ptr<SsdStore>> opened = SsdStore::Open(options_);
    HOTROW_ASSERT_OK(opened);
    store_ = *std::move(opened);
  }

  RowKey RandomKey() {
    const StoreTable& t = options_.tables[random_.Below(options_.tables.size())];
    // Many writes to few keys, and keys that are far apart.
    const uint64_t n = random_.Below(2) == 0 ? random_.Below(keys_) : random_.Below(keys_ / 4 + 1);
    return {Mix64(n), t.table};
  }

  // When the disk is full, which only snapshots may bring about, one of them goes.
  void MakeRoom(const absl::Status& status) {
    ASSERT_THAT(status, StatusIs(kExhausted, HasSubstr("SSD store")));
    ASSERT_FALSE(snapshots_.empty()) << status;
    const SnapshotId id = snapshots_.begin()->first;
    HOTROW_ASSERT_OK(store_->DropSnapshot(id));
    snapshots_.erase(id);
  }

  void Insert() {
    Batch batch;
    std::set<RowMap::key_type> seen;
    const uint64_t count = 1 + random_.Below(random_.Below(4) == 0 ? 60 : 6);
    for (uint64_t i = 0; i < count; ++i) {
      const RowKey key = RandomKey();
      // A batch that may be refused comes twice: the first so many of its rows, then all of them.
      // If no key repeats, that is the same as once.
      if (!snapshots_.empty() && !seen.emplace(key.table, key.key).second) continue;
      batch.Add(key, MakeRow(key, ++version_, store_->row_bytes(key.table)));
    }
    for (size_t i = 0; i < batch.keys.size(); ++i) oracle_.Write(batch.keys[i], batch.rows[i]);
    for (;;) {
      const absl::Status status = batch.InsertInto(*store_);
      if (status.ok()) return;
      ASSERT_NO_FATAL_FAILURE(MakeRoom(status));
    }
  }

  void Erase() {
    std::vector<RowKey> keys;
    for (uint64_t i = 0; i < 1 + random_.Below(8); ++i) keys.push_back(RandomKey());
    for (const RowKey& key : keys) oracle_.Erase(key);
    for (;;) {
      const absl::Status status = store_->Erase(keys);
      if (status.ok()) return;
      ASSERT_NO_FATAL_FAILURE(MakeRoom(status));
    }
  }

  void Find() {
    std::vector<RowKey> keys;
    for (uint64_t i = 0; i < 1 + random_.Below(40); ++i) keys.push_back(RandomKey());
    HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(*store_, keys));
    for (size_t i = 0; i < keys.size(); ++i) {
      const auto at = oracle_.now().find({keys[i].table, keys[i].key});
      ASSERT_EQ(found.found[i] == 1, at != oracle_.now().end()) << keys[i].key;
      if (found.found[i] == 1) {
        ASSERT_TRUE(found.rows[i] == at->second)
            << "a wrong row of key " << keys[i].key << " of table " << keys[i].table;
      }
    }
  }

  void DropOldest() {
    const SnapshotId oldest = snapshots_.begin()->first;
    HOTROW_ASSERT_OK(store_->DropSnapshot(oldest));
    snapshots_.erase(oldest);
  }

  void Snapshot() {
    const SnapshotId id = ++last_snapshot_;
    if (snapshots_.size() >= 3) {
      ASSERT_NO_FATAL_FAILURE(DropOldest());
    }
    absl::Status prepared = store_->PrepareSnapshot(id);
    // A budget of a few segments may not leave room for a snapshot that cannot be made small,
    // because others hold on to the rest; without others it goes.
    while (!prepared.ok() && !snapshots_.empty() &&
           absl::StrContains(std::string(prepared.message()), "drop older")) {
      ASSERT_THAT(prepared, IsOutOfRoomThat(testing::_));
      ASSERT_NO_FATAL_FAILURE(DropOldest());
      prepared = store_->PrepareSnapshot(id);
    }
    if (snapshots_.size() == 2 && !prepared.ok()) {
      // Nor for a manifest with three snapshots.
      ASSERT_THAT(prepared, IsOutOfRoomThat(HasSubstr("manifest")));
      return;
    }
    HOTROW_ASSERT_OK(prepared);
    oracle_.Commit();
    snapshots_[id] = oracle_.now();
    if (random_.Below(2) == 0) {
      HOTROW_ASSERT_OK(store_->CommitSnapshot(id));
    }
  }

  void Step() {
    const uint64_t what = random_.Below(1000);
    if (what < 600) {
      ASSERT_NO_FATAL_FAILURE(Insert());
    } else if (what < 700) {
      ASSERT_NO_FATAL_FAILURE(Erase());
    } else if (what < 880) {
      ASSERT_NO_FATAL_FAILURE(Find());
    } else if (what < 920) {
      HOTROW_ASSERT_OK(store_->Flush());
      oracle_.Commit();
    } else if (what < 945) {
      ASSERT_NO_FATAL_FAILURE(Snapshot());
    } else if (what < 955 && !snapshots_.empty()) {
      auto at = snapshots_.begin();
      std::advance(at, random_.Below(snapshots_.size()));
      HOTROW_ASSERT_OK(store_->DropSnapshot(at->first));
      snapshots_.erase(at);
    } else if (what < 965) {
      ASSERT_TRUE(Holds(*store_, oracle_.now()));
    } else if (what < 972) {
      HOTROW_ASSERT_OK(store_->CleanAll());
    } else if (what < 982) {
      HOTROW_ASSERT_OK(store_->Close());
      oracle_.Commit();
      store_.reset();
      ASSERT_NO_FATAL_FAILURE(Open(0));
      ASSERT_TRUE(Holds(*store_, oracle_.now()));
    } else if (what < 992) {
      store_.reset();
      ASSERT_NO_FATAL_FAILURE(Open(0));
      HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(*store_));
      ASSERT_TRUE(oracle_.Recover(rows));
      ASSERT_TRUE(Holds(*store_, oracle_.now()));
    } else if (what < 998 && !snapshots_.empty()) {
      auto at = snapshots_.begin();
      std::advance(at, random_.Below(snapshots_.size()));
      store_.reset();
      ASSERT_NO_FATAL_FAILURE(Open(at->first));
      oracle_.Reset(at->second);
      ASSERT_TRUE(Holds(*store_, oracle_.now()));
    }
    if (what >= 900) {
      HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<SnapshotId> ids, store_->ListSnapshots());
      std::vector<SnapshotId> expected;
      for (const auto& [id, rows] : snapshots_) expected.push_back(id);
      ASSERT_EQ(ids, expected);
      const RowStoreStats stats = store_->Stats();
      ASSERT_LE(stats.disk_used_bytes, options_.disk_budget_bytes);
      ASSERT_LE(stats.peak_bytes, options_.memory_budget_bytes);
    }
  }

  SsdStoreOptions options_;
  RandomStream random_;
  uint64_t keys_ = 0;  // of each table
  std::unique_ptr<SsdStore> store_;
  SsdOracle oracle_;
  std::map<SnapshotId, RowMap> snapshots_;
  SnapshotId last_snapshot_ = 0;
  uint64_t version_ = 0;
};

void RunModel(bool background) {
  for (const uint64_t seed : Seeds(test::SlowRuns(400, 12))) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    RandomStream random(seed, RandomPurpose::kTest, 1);
    test::FaultyEnv env;
    if (random.Below(2) == 0) env.ShuffleIo(seed);
    env.SetDirectBlockBytes(std::vector<int64_t>{1, 512, 512, 4096}[random.Below(4)]);
    const int64_t segment_bytes = static_cast<int64_t>(1 + random.Below(4)) * 16 * kKiB;
    const auto segments = static_cast<int64_t>(14 + random.Below(27));
    const SsdStoreOptions options = SmallSsd(&env, segments, segment_bytes, background);
    Model model(seed % 2 == 0 ? options : test::Striped(options), seed,
                0.2 + 0.3 * random.Uniform());
    ASSERT_NO_FATAL_FAILURE(model.Run(kSlow ? 1500 : 600));
  }
}

TEST(SsdModelTest, HoldsWhatItShouldInTheCallersThread) { RunModel(false); }
TEST(SsdModelTest, HoldsWhatItShouldInTheBackground) { RunModel(true); }

// --- Real files ----------------------------------------------------------------------------------

void RunOnRealFiles(const std::string& dir, IoQueueKind kind, const char* name) {
  SsdStoreOptions options = SmallSsd(nullptr, 32, 64 * kKiB, true);
  options.path = dir + "/store";
  if (kind == IoQueueKind::kUring) options = test::Striped(options);
  options.io.kind = kind;
  absl::StatusOr<std::unique_ptr<SsdStore>> store = SsdStore::Open(options);
  if (kind == IoQueueKind::kUring && absl::IsFailedPrecondition(store.status())) {
    GTEST_SKIP() << store.status();
  }
  HOTROW_ASSERT_OK(store);
  EXPECT_THAT((*store)->SsdStats().io, HasSubstr(name));
  testing::Test::RecordProperty("io", (*store)->SsdStats().io);
  store->reset();
  for (const uint64_t seed : Seeds(1)) {
    Model model(options, seed, 0.4);
    ASSERT_NO_FATAL_FAILURE(model.Run(300));
  }
}

TEST(SsdRealFilesTest, AStoreThatIsOpenIsNotOpenedTwice) {
  const std::string dir = test::TempDir();
  const SsdStoreOptions options = {.path = dir + "/store",
                                   .tables = {{1, 64}},
                                   .memory_budget_bytes = int64_t{4} << 20,
                                   .disk_budget_bytes = int64_t{8} << 20};
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  EXPECT_THAT(SsdStore::Open(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                HasSubstr(options.path + ": is open already")));
  store.reset();
  HOTROW_EXPECT_OK(SsdStore::Open(options).status());
}

TEST(SsdRealFilesTest, ThreadsReadOnTheTemporaryDirectory) {
  RunOnRealFiles(test::TempDir(), IoQueueKind::kThreads, "threads");
}
TEST(SsdRealFilesTest, UringReadsOnTheTemporaryDirectory) {
  RunOnRealFiles(test::TempDir(), IoQueueKind::kUring, "io_uring");
}

class SsdSharedMemoryTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = "/dev/shm/hotrow_test_XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) GTEST_SKIP() << "no /dev/shm to write to";
    dir_ = pattern;
  }
  void TearDown() override {
    std::error_code ignored;
    if (!dir_.empty()) std::filesystem::remove_all(dir_, ignored);
  }
  std::string dir_;
};

TEST_F(SsdSharedMemoryTest, ThreadsReadWhereThereIsNoDirectIo) {
  RunOnRealFiles(dir_, IoQueueKind::kThreads, "threads");
}
TEST_F(SsdSharedMemoryTest, UringReadsWhereThereIsNoDirectIo) {
  RunOnRealFiles(dir_, IoQueueKind::kUring, "io_uring");
}

// --- A full disk ---------------------------------------------------------------------------------

class SsdFullDiskTest : public testing::TestWithParam<bool> {};

TEST_P(SsdFullDiskTest, IsRefusedIntactAndGoesOnAfterRoomIsMade) {
  // The disk ends before the budget, after each number of pages in turn.
  int64_t refused_appends = 0;
  int64_t refused_commits = 0;
  int64_t refused_opens = 0;
  for (int64_t pages = 0; pages < 140; pages += test::ForSanitizer(3, 8)) {
    SCOPED_TRACE(absl::StrCat("room for ", pages, " pages"));
    MemEnv env;
    const SsdStoreOptions options = SmallSsd(&env, 30, 32 * kKiB, GetParam());
    SsdOracle oracle;
    std::map<SnapshotId, RowMap> snapshots;
    env.SetCapacity(pages * MemEnv::kPageBytes);
    absl::StatusOr<std::unique_ptr<SsdStore>> store = SsdStore::Open(options);
    if (!store.ok()) {
      EXPECT_THAT(store, StatusIs(kExhausted, HasSubstr("/store")));
      ++refused_opens;
      env.SetCapacity(MemEnv::kPageBytes * 300);
      store = SsdStore::Open(options);
      HOTROW_ASSERT_OK(store);
      env.SetCapacity(pages * MemEnv::kPageBytes);
    }
    const auto refused = [&](const absl::Status& status, int64_t* count) {
      if (status.ok()) return false;
      EXPECT_THAT(status, StatusIs(kExhausted, HasSubstr("/store")));
      ++*count;
      return true;
    };
    uint64_t version = 0;
    for (uint64_t i = 0; i < 400; ++i) {
      const RowKey key = {i % 45, i % 5 == 0 ? UINT32_MAX : 4u};
      const absl::Status status = Put(**store, key, ++version);
      if (!refused(status, &refused_appends)) {
        oracle.Write(key, MakeRow(key, version, RowBytes(key.table)));
      } else {
        ASSERT_TRUE(Holds(**store, oracle.now()));
        if (i > 200) break;
      }
      if (i % 29 == 3 && !refused((*store)->Flush(), &refused_commits)) oracle.Commit();
      if (i == 111 && !refused((*store)->CleanAll(), &refused_commits)) {
        ASSERT_TRUE(Holds(**store, oracle.now()));
      }
      if (i == 77 && !refused((*store)->PrepareSnapshot(1), &refused_commits)) {
        oracle.Commit();
        snapshots[1] = oracle.now();
      }
    }
    ASSERT_TRUE(Holds(**store, oracle.now()));
    // A disk with room for what is open, and nothing more, can be closed and read.
    const absl::Status closed = (*store)->Close();
    if (closed.ok()) {
      oracle.Commit();
    } else {
      EXPECT_THAT(closed, StatusIs(kExhausted, HasSubstr("/store")));
      ++refused_commits;
    }
    store->reset();
    env.SetCapacity(INT64_MAX);
    store = SsdStore::Open(options);
    HOTROW_ASSERT_OK(store);
    HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap rows, Dump(**store));
    ASSERT_TRUE(oracle.Recover(rows));
    for (uint64_t i = 0; i < 100; ++i) {
      const RowKey key = {i % 45, 4};
      HOTROW_ASSERT_OK(Put(**store, key, ++version));
      oracle.Write(key, MakeRow(key, version, 1500));
    }
    ASSERT_TRUE(Holds(**store, oracle.now()));
    for (const auto& [id, expected] : snapshots) {
      HOTROW_ASSERT_OK((*store)->Flush());
      store->reset();
      SsdStoreOptions at = options;
      at.open_at = id;
      store = SsdStore::Open(at);
      HOTROW_ASSERT_OK(store);
      ASSERT_TRUE(Holds(**store, expected));
    }
  }
  EXPECT_GT(refused_opens, 0);
  EXPECT_GT(refused_appends, 0);
  RecordProperty("refused_appends", std::to_string(refused_appends));
  RecordProperty("refused_commits", std::to_string(refused_commits));
}

TEST_P(SsdFullDiskTest, GoesOnInTheSameRunOnceAnotherFileIsGone) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env, 30, 32 * kKiB, GetParam());
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  SsdOracle oracle;
  uint64_t version = 0;
  for (uint64_t round = 0; round < 12; ++round) {
    int64_t refused = 0;
    env.SetCapacity(0);
    for (uint64_t i = 0; i < 60; ++i) {
      const RowKey key = {(round * 60 + i) % 110, 4};
      const absl::Status status = Put(*store, key, ++version);
      if (status.ok()) {
        oracle.Write(key, MakeRow(key, version, 1500));
      } else {
        ASSERT_THAT(status, StatusIs(kExhausted, HasSubstr("/store")));
        ++refused;
        break;
      }
    }
    EXPECT_THAT(store->Flush(), StatusIs(kExhausted, HasSubstr("/store/MANIFEST")));
    EXPECT_THAT(store->PrepareSnapshot(round + 1), StatusIs(kExhausted, HasSubstr("/store")));
    ASSERT_TRUE(Holds(*store, oracle.now()));
    env.SetCapacity(INT64_MAX);
    for (uint64_t i = 0; i < 20; ++i) {
      const RowKey key = {(round * 60 + i) % 110, 4};
      HOTROW_ASSERT_OK(Put(*store, key, ++version));
      oracle.Write(key, MakeRow(key, version, 1500));
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(round + 1));
    HOTROW_ASSERT_OK(store->DropSnapshot(round + 1));
    oracle.Commit();
    ASSERT_TRUE(Holds(*store, oracle.now()));
  }
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
  EXPECT_TRUE(Holds(*store, oracle.now()));
}

INSTANTIATE_TEST_SUITE_P(Ssd, SsdFullDiskTest, testing::Bool(), [](const auto& info) {
  return info.param ? "InTheBackground" : "InTheCallersThread";
});

// A separate file system, filled by another file.
TEST(SsdFullFileSystemTest, IsRefusedIntactAndGoesOnAfterRoomIsMade) {
  const std::string dir = test::TempDir();
  if (::mount("tmpfs", dir.c_str(), "tmpfs", 0, "size=4m") != 0) {
    GTEST_SKIP() << "mounting a small tmpfs is not permitted: " << std::strerror(errno);
  }
  struct Unmount {
    std::string dir;
    ~Unmount() { ::umount2(dir.c_str(), MNT_DETACH); }
  } unmount{dir};
  SsdStoreOptions options = SmallSsd(nullptr, 60, 64 * kKiB, true);  // 3.75 MiB
  options.path = dir + "/store";
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  SsdOracle oracle;
  uint64_t version = 0;
  const auto put = [&](uint64_t n) {
    const RowKey key = {n, 4};
    const absl::Status status = Put(*store, key, ++version);
    if (status.ok()) oracle.Write(key, MakeRow(key, version, 1500));
    return status;
  };
  for (uint64_t i = 0; i < 300; ++i) HOTROW_ASSERT_OK(put(i));
  const std::string other = dir + "/other";
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto file, PosixEnv().Open(other, OpenMode::kCreate));
    const std::vector<std::byte> page(4096);
    absl::Status status;
    for (int64_t at = 0; status.ok(); at += 4096) status = WriteFull(*file, at, page);
    ASSERT_THAT(status, StatusIs(kExhausted, HasSubstr("other")));
  }
  absl::Status status;
  for (uint64_t i = 0; i < 3000 && status.ok(); ++i) status = put(300 + i);
  EXPECT_THAT(status, StatusIs(kExhausted, HasSubstr(dir)));
  EXPECT_THAT(store->PrepareSnapshot(1), StatusIs(kExhausted, HasSubstr(dir)));
  EXPECT_THAT(store->Close(), StatusIs(kExhausted, HasSubstr(dir)));
  ASSERT_TRUE(Holds(*store, oracle.now()));
  HOTROW_ASSERT_OK(PosixEnv().Remove(other));
  for (uint64_t i = 0; i < 300; ++i) HOTROW_ASSERT_OK(put(i));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK(store->Close());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
  EXPECT_TRUE(Holds(*store, oracle.now()));
}

// --- The budget of the disk ----------------------------------------------------------------------

// Manifests, too: on a disk that is no larger than the budget, the disk is never found full.
TEST(SsdDiskBudgetTest, CountsManifestsAndSnapshotsThatItHasNoRoomForAreRefused) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env, 40);
  env.SetCapacity(options.disk_budget_bytes);
  SsdOracle oracle;
  RandomStream random(77, RandomPurpose::kTest);
  SnapshotId snapshots = 0;
  int refused = 0;
  for (int run = 0; run < 3; ++run) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 3000; ++i) {
      const RowKey key = {random.Below(60), 4};
      const absl::Status put = Put(*store, key, i);
      if (put.ok()) {
        oracle.Write(key, MakeRow(key, i, 1500));
      } else {
        ASSERT_THAT(put, IsOutOfRoomThat(HasSubstr("disk budget")));
        // Snapshots hold all there is.
        HOTROW_ASSERT_OK_AND_ASSIGN(const std::vector<SnapshotId> ids, store->ListSnapshots());
        ASSERT_FALSE(ids.empty());
        for (const SnapshotId id : ids) HOTROW_ASSERT_OK(store->DropSnapshot(id));
        ++refused;
      }
      if (i % 5 == 0) {
        const absl::Status prepared = store->PrepareSnapshot(++snapshots, [] {});
        if (!prepared.ok()) {
          ASSERT_THAT(prepared, IsOutOfRoomThat(HasSubstr("disk budget")));
          ++refused;
        }
      }
      ASSERT_LE(store->Stats().disk_used_bytes, options.disk_budget_bytes);
    }
    ASSERT_TRUE(Holds(*store, oracle.now()));
    HOTROW_ASSERT_OK(store->Close());
  }
  EXPECT_GT(refused, 0);
}

// Rows fill a quarter of the disk, so one snapshot of them fits beside them, however they were
// written.
TEST(SsdDiskBudgetTest, BesideTheNewestSnapshotAloneThereIsAlwaysRoomToGoOn) {
  for (const uint64_t seed : Seeds(4)) {
    SCOPED_TRACE(absl::StrCat("HOTROW_TEST_SEED=", seed));
    MemEnv env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(SmallSsd(&env, 32)));
    SsdOracle oracle;
    RandomStream random(seed, RandomPurpose::kTest);
    std::vector<SnapshotId> kept;
    const auto drop = [&](size_t keep) {
      while (kept.size() > keep) {
        HOTROW_EXPECT_OK(store->DropSnapshot(kept.front()));
        kept.erase(kept.begin());
      }
    };
    SnapshotId id = 0;
    int refused = 0;
    const auto with_room = [&](auto call) {
      absl::Status status = call();
      if (!absl::IsResourceExhausted(status)) return status;
      ++refused;
      drop(1);
      return call();
    };
    for (uint64_t round = 0; round < 300; ++round) {
      const uint64_t writes = 1 + random.Below(40);
      for (uint64_t i = 0; i < writes; ++i) {
        const RowKey key = {random.Below(60), 4};
        HOTROW_ASSERT_OK(with_room([&] { return Put(*store, key, round); }));
        oracle.Write(key, MakeRow(key, round, 1500));
      }
      ++id;
      HOTROW_ASSERT_OK(with_room([&] { return store->PrepareSnapshot(id, [] {}); }));
      kept.push_back(id);
      drop(3);
    }
    EXPECT_GT(refused, 0) << "the disk was never short";
    EXPECT_TRUE(Holds(*store, oracle.now()));
  }
}

TEST(SsdDiskBudgetTest, TooManySnapshotsForTheManifestAreRefusedByName) {
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 40);
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  HOTROW_ASSERT_OK(Put(*store, {1, 4}, 1));
  absl::Status status;
  SnapshotId id = 0;
  while (status.ok() && id < 10'000) status = store->PrepareSnapshot(++id);
  EXPECT_THAT(status, StatusIs(kExhausted, AllOf(HasSubstr("/store"), HasSubstr("manifest"),
                                                 HasSubstr("drop snapshots"))));
  EXPECT_GT(id, 2u);
  HOTROW_ASSERT_OK(store->DropSnapshot(1));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(id));
  RowMap expected;
  expected[{4, 1}] = MakeRow({1, 4}, 1, 1500);
  EXPECT_TRUE(Holds(*store, expected));
}

// --- A directory that is not what it was ---------------------------------------------------------

TEST(SsdStoreTest, SegmentsWithoutAManifestAreNoEmptyStore) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env);
  RowMap expected;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    HOTROW_ASSERT_OK(Put(*store, {1, 4}, 1));
    expected[{4, 1}] = MakeRow({1, 4}, 1, 1500);
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK(env.Rename("/store/MANIFEST", "/manifest"));
  EXPECT_THAT(SsdStore::Open(options), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                AllOf(HasSubstr("/store"), HasSubstr("MANIFEST"),
                                                      HasSubstr("segment-"), HasSubstr("remove"))));
  HOTROW_ASSERT_OK(env.Rename("/manifest", "/store/MANIFEST"));
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  EXPECT_TRUE(Holds(*store, expected));
}

// The directories above the store's are made durable, too.
TEST(SsdStoreTest, AStoreInNewDirectoriesSurvivesPowerLoss) {
  for (const bool exists : {false, true}) {
    FaultyEnv env;
    SsdStoreOptions options = SmallSsd(&env);
    options.path = "/a/b/c/store";
    // Made by someone who was interrupted before it was durable.
    if (exists) {
      HOTROW_ASSERT_OK(env.CreateDirs("/a"));
    }
    RowMap expected;
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
      HOTROW_ASSERT_OK(Put(*store, {1, 4}, 1));
      expected[{4, 1}] = MakeRow({1, 4}, 1, 1500);
      HOTROW_ASSERT_OK(store->PrepareSnapshot(3));
      HOTROW_ASSERT_OK(store->CommitSnapshot(3));
    }
    if (exists) {
      HOTROW_ASSERT_OK(env.SyncDir("/"));
    }
    env.DropUnsyncedData();
    options.open_at = 3;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    EXPECT_TRUE(Holds(*store, expected));
  }
}

// One call finds no memory: of the caller's, of the writer's or of the cleaner's. Nobody waits for
// ever, and what was committed before is there when the store is opened again.
TEST(SsdStoreTest, WithoutMemoryItSaysSoAndKeepsWhatWasCommitted) {
  constexpr uint64_t kKeys = 40;
  constexpr uint64_t kVersions = 12;
  bool faulty = true;
  for (int64_t k = 0; faulty; k += 1 + k / 8) {
    SCOPED_TRACE(absl::StrCat("call ", k));
    FaultyEnv env;
    SsdStoreOptions options = SmallSsd(&env, 24, 16 * kKiB, /*background=*/true);
    const auto put_all = [&](RowStore& store, uint64_t version) {
      Batch batch;
      for (uint64_t key = 0; key < kKeys; ++key) {
        batch.Add({key, 4}, MakeRow({key, 4}, version, 1500));
      }
      return batch.InsertInto(store);
    };
    RowMap expected;
    for (uint64_t key = 0; key < kKeys; ++key) expected[{4, key}] = MakeRow({key, 4}, 1, 1500);
    {
      HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
      HOTROW_ASSERT_OK(put_all(*store, 1));
      HOTROW_ASSERT_OK(store->PrepareSnapshot(3));
      HOTROW_ASSERT_OK(store->CommitSnapshot(3));
      env.ThrowCall(env.calls() + k);
      absl::Status status;
      for (uint64_t version = 2; version < kVersions && status.ok(); ++version) {
        status = put_all(*store, version);
        if (status.ok()) status = store->Flush();
      }
      if (!status.ok()) {
        EXPECT_THAT(status, StatusIs(kExhausted, HasSubstr("out of memory")));
      }
    }
    faulty = env.faults() > 0;
    env.ThrowCall(-1);
    options.open_at = 3;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    EXPECT_TRUE(Holds(*store, expected));
  }
}

TEST(SsdStoreTest, CountsWhatItWroteOverItsLife) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env);
  int64_t payload = 0;
  int64_t device = 0;
  for (int run = 0; run < 3; ++run) {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 400; ++i) HOTROW_ASSERT_OK(Put(*store, {i % 40, 4}, i));
    HOTROW_ASSERT_OK(store->Flush());
    payload += 400 * 1500;
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport report, InspectSsdStore(env, "/store"));
    EXPECT_EQ(report.payload_bytes_written, payload);
    EXPECT_GT(report.device_bytes_written, device + 400 * 1500);
    // All but the manifests that were written last.
    const int64_t here = store->Stats().bytes_written;
    EXPECT_LE(report.device_bytes_written, device + here);
    EXPECT_GE(report.device_bytes_written, device + here - 16 * kKiB);
    HOTROW_ASSERT_OK(store->Close());
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdStoreReport closed, InspectSsdStore(env, "/store"));
    device = closed.device_bytes_written;
  }
}

// --- A snapshot while others write ---------------------------------------------------------------

// Syncs wait for the test.
class HeldSyncEnv : public Env {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    HOTROW_ASSIGN_OR_RETURN(auto file, base_.Open(path, mode));
    return std::unique_ptr<File>(std::make_unique<HeldFile>(std::move(file), *this));
  }
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    HOTROW_ASSIGN_OR_RETURN(auto file, base_.OpenDirect(path, mode));
    return std::unique_ptr<File>(std::make_unique<HeldFile>(std::move(file), *this));
  }
  absl::Status CreateDirs(const std::string& path) override { return base_.CreateDirs(path); }
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    return base_.ListDir(path);
  }
  absl::StatusOr<bool> Exists(const std::string& path) override { return base_.Exists(path); }
  absl::Status Rename(const std::string& from, const std::string& to) override {
    return base_.Rename(from, to);
  }
  absl::Status Remove(const std::string& path) override { return base_.Remove(path); }
  absl::Status RemoveDir(const std::string& path) override { return base_.RemoveDir(path); }
  absl::Status SyncDir(const std::string& path) override {
    Wait();
    return base_.SyncDir(path);
  }
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    return base_.FreeBytes(path);
  }

  void Hold(bool hold) {
    const std::lock_guard lock(mutex_);
    hold_ = hold;
    changed_.notify_all();
  }
  // Lets those go that wait now.
  void LetOneGo() {
    const std::lock_guard lock(mutex_);
    ++generation_;
    changed_.notify_all();
  }
  // False when `done` comes true first.
  bool AwaitHeld(const std::atomic<bool>& done) {
    std::unique_lock lock(mutex_);
    while (waiting_ == 0 && !done) changed_.wait_for(lock, std::chrono::milliseconds(1));
    return waiting_ > 0;
  }

 private:
  class HeldFile : public File {
   public:
    HeldFile(std::unique_ptr<File> base, HeldSyncEnv& env) : base_(std::move(base)), env_(env) {}
    absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
      return base_->ReadAt(offset, bytes);
    }
    absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
      return base_->WriteAt(offset, bytes);
    }
    absl::Status Sync() override {
      env_.Wait();
      return base_->Sync();
    }
    absl::StatusOr<int64_t> Size() override { return base_->Size(); }
    absl::Status Truncate(int64_t size) override { return base_->Truncate(size); }
    absl::Status Allocate(int64_t bytes) override { return base_->Allocate(bytes); }
    absl::Status Close() override { return base_->Close(); }
    const std::string& path() const override { return base_->path(); }
    int64_t block_bytes() const override { return base_->block_bytes(); }

   private:
    const std::unique_ptr<File> base_;
    HeldSyncEnv& env_;
  };

  void Wait() {
    std::unique_lock lock(mutex_);
    if (!hold_) return;
    ++waiting_;
    changed_.notify_all();
    const int64_t generation = generation_;
    changed_.wait(lock, [&] { return !hold_ || generation != generation_; });
    --waiting_;
  }

  MemEnv base_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool hold_ = false;
  int64_t generation_ = 0;
  int waiting_ = 0;
};

TEST(SsdStoreTest, BatchesGoOnWhileASnapshotIsBeingSynced) {
  HeldSyncEnv env;
  const SsdStoreOptions options = SmallSsd(&env, 60, 64 * kKiB, /*background=*/true);
  RowMap in_snapshot;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 100; ++i) {
      HOTROW_ASSERT_OK(Put(*store, {i, 4}, 1));
      in_snapshot[{4, i}] = MakeRow({i, 4}, 1, 1500);
    }
    env.Hold(true);
    std::atomic<bool> captured = false;
    std::atomic<bool> done = false;
    absl::Status prepared;
    std::thread preparing([&] {
      prepared = store->PrepareSnapshot(1, [&] { captured = true; });
      done = true;
    });
    int held = 0;
    uint64_t version = 1;
    // The segments' syncs, the manifest's, the directory's. Were a lock held that a batch needs,
    // this would not come to an end.
    while (env.AwaitHeld(done)) {
      EXPECT_TRUE(captured) << "it is over before the first sync";
      ++held;
      // What a training loop asks between two steps.
      HOTROW_EXPECT_OK(store->ListSnapshots());
      EXPECT_THAT(store->DescribeSnapshot(2), StatusIs(kFailed, HasSubstr("2")));
      ++version;
      HOTROW_EXPECT_OK(Put(*store, {5, 4}, version));
      HOTROW_EXPECT_OK(Put(*store, {1000 + version, 4}, version));
      HOTROW_EXPECT_OK(EraseOne(*store, {50 + version, 4}));
      const std::vector<RowKey> keys = {{5, 4}, {7, 4}, {50 + version, 4}};
      const absl::StatusOr<Found> found = FindAll(*store, keys);
      HOTROW_EXPECT_OK(found.status());
      if (found.ok()) {
        EXPECT_EQ(found->rows[0], MakeRow({5, 4}, version, 1500));
        EXPECT_EQ(found->rows[1], MakeRow({7, 4}, 1, 1500));
        EXPECT_EQ(found->found[2], 0);
      }
      env.LetOneGo();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    env.Hold(false);
    preparing.join();
    HOTROW_ASSERT_OK(prepared);
    EXPECT_GE(held, 3);
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto reader,
                              OpenSsdSnapshot({.path = "/store", .snapshot = 1, .env = &env}));
  RowMap rows;
  HOTROW_ASSERT_OK(reader->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
    rows[{key.table, key.key}] = Row(row.begin(), row.end());
    return absl::OkStatus();
  }));
  EXPECT_TRUE(rows == in_snapshot);
}

// --- Reading a snapshot --------------------------------------------------------------------------

TEST(SsdSnapshotReaderTest, RefusesAStoreThatIsOpenAndIsInItsWayMeanwhile) {
  SsdStoreOptions options = SmallSsd(nullptr);
  options.path = test::TempDir() + "/store";
  const auto precondition = [&](const char* text) {
    return StatusIs(absl::StatusCode::kFailedPrecondition,
                    AllOf(HasSubstr(options.path), HasSubstr(text)));
  };
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    HOTROW_ASSERT_OK(Put(*store, {1, 4}, 1));
    HOTROW_ASSERT_OK(store->Flush());
    EXPECT_THAT(OpenSsdSnapshot({.path = options.path}), precondition("is open"));
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(auto reader, OpenSsdSnapshot({.path = options.path}));
  EXPECT_EQ(reader->rows(), 1);
  EXPECT_THAT(SsdStore::Open(options), precondition("is open"));
  reader.reset();
  HOTROW_EXPECT_OK(SsdStore::Open(options).status());
}

// The store writes over the reader's segments last of all; then the reader says that it has lost
// them, and gives no other rows.
TEST(SsdSnapshotReaderTest, KeepsWhatItReadsWhenItsSnapshotIsDropped) {
  SsdStoreOptions options = SmallSsd(nullptr, 40);
  options.path = test::TempDir() + "/store";
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  const auto write = [&](uint64_t version) -> absl::Status {
    for (uint64_t key = 0; key < 60; ++key) {
      HOTROW_RETURN_IF_ERROR(Put(*store, {key, UINT32_MAX}, version));
    }
    return store->Flush();
  };
  HOTROW_ASSERT_OK(write(1));
  HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap expected, Dump(*store));
  const auto read = [](SnapshotReader& reader) -> absl::StatusOr<RowMap> {
    RowMap rows;
    HOTROW_RETURN_IF_ERROR(
        reader.Iterate([&](const RowKey& key, std::span<const std::byte> row) -> absl::Status {
          rows[{key.table, key.key}] = Row(row.begin(), row.end());
          return absl::OkStatus();
        }));
    return rows;
  };
  HOTROW_ASSERT_OK_AND_ASSIGN(auto reader, OpenSsdSnapshot({.path = options.path, .snapshot = 1}));
  HOTROW_ASSERT_OK(store->DropSnapshot(1));
  // More than the disk holds.
  for (uint64_t version = 2; version < 30; ++version) HOTROW_ASSERT_OK(write(version));
  HOTROW_ASSERT_OK_AND_ASSIGN(const RowMap kept, read(*reader));
  EXPECT_TRUE(kept == expected);

  // Readers of more segments than there are.
  std::vector<std::unique_ptr<SnapshotReader>> readers;
  for (SnapshotId id = 2; id < 22; ++id) {
    HOTROW_ASSERT_OK(write(100 + id));
    HOTROW_ASSERT_OK(store->PrepareSnapshot(id));
    HOTROW_ASSERT_OK_AND_ASSIGN(readers.emplace_back(),
                                OpenSsdSnapshot({.path = options.path, .snapshot = id}));
    HOTROW_ASSERT_OK(store->DropSnapshot(id));
  }
  int lost = 0;
  for (const auto& one : readers) {
    const absl::StatusOr<RowMap> rows = read(*one);
    if (rows.ok()) continue;
    ++lost;
    EXPECT_THAT(rows, StatusIs(absl::StatusCode::kFailedPrecondition,
                               HasSubstr("was dropped while it was read")));
  }
  EXPECT_GT(lost, 0);
}

// Each byte of the segments flipped in turn: the row that has it is named, or all rows are right.
TEST(SsdSnapshotReaderTest, ARowThatIsDamagedIsNamedAndNoWrongOneIsGivenOut) {
  MemEnv env;
  const SsdStoreOptions options = SmallSsd(&env, 16);
  RowMap expected;
  {
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
    for (uint64_t i = 0; i < 12; ++i) {
      const RowKey key = {i, SsdTables()[i % 5].table};
      HOTROW_ASSERT_OK(Put(*store, key, i));
      expected[{key.table, key.key}] = MakeRow(key, i, RowBytes(key.table));
    }
    HOTROW_ASSERT_OK(store->Close());
  }
  HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/store"));
  int found = 0;
  for (const std::string& name : names) {
    if (name.find("segment-") != 0) continue;
    const std::string path = "/store/" + name;
    for (int64_t at = 0; at < options.segment_bytes; at += 3) {
      HOTROW_ASSERT_OK(env.FlipBit(path, 8 * at + at % 8));
      RowMap rows;
      absl::Status status;
      const auto reader = OpenSsdSnapshot({.path = "/store", .env = &env});
      status = reader.status();
      if (reader.ok()) {
        status = (*reader)->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
          rows[{key.table, key.key}] = Row(row.begin(), row.end());
          return absl::OkStatus();
        });
      }
      if (status.ok()) {
        ASSERT_TRUE(rows == expected) << path << ", byte " << at;
      } else {
        ++found;
        ASSERT_THAT(status, StatusIs(absl::StatusCode::kDataLoss,
                                     AllOf(HasSubstr(path), HasSubstr("offset "))));
        for (const auto& [key, row] : rows) ASSERT_EQ(row, expected.at(key));
      }
      HOTROW_ASSERT_OK(env.FlipBit(path, 8 * at + at % 8));
    }
  }
  EXPECT_GT(found, 500);
}

// --- Bit rot -------------------------------------------------------------------------------------

class SsdBitRotTest : public testing::Test {
 protected:
  using Files = std::map<std::string, std::string>;

  void Build() {
    MemEnv env;
    HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(Options(&env)));
    for (uint64_t i = 0; i < 24; ++i) {
      for (const uint64_t version : {0, 1}) {
        const RowKey key = {i, SsdTables()[i % 5].table};
        HOTROW_ASSERT_OK(Put(*store, key, version));
        expected_[{key.table, key.key}] = MakeRow(key, version, RowBytes(key.table));
      }
      if (i == 10) {  // a pad in the middle
        HOTROW_ASSERT_OK(store->Flush());
      }
    }
    for (uint64_t i = 0; i < 3; ++i) {
      HOTROW_ASSERT_OK(EraseOne(*store, {i, SsdTables()[i % 5].table}));
      expected_.erase({SsdTables()[i % 5].table, i});
    }
    HOTROW_ASSERT_OK(store->PrepareSnapshot(1));
    HOTROW_ASSERT_OK(store->Close());
    store.reset();
    HOTROW_ASSERT_OK_AND_ASSIGN(const auto names, env.ListDir("/store"));
    for (const std::string& name : names) {
      HOTROW_ASSERT_OK_AND_ASSIGN(files_[name], ReadFileToString(env, "/store/" + name));
    }
  }

  SsdStoreOptions Options(Env* env) {
    SsdStoreOptions options = SmallSsd(env, 16);
    options.memory_budget_bytes = 600 * kKiB;
    return options;
  }

  // Opens a copy of the store in which one bit is flipped, and reads every row. Counts what was
  // noticed.
  void Check(const std::string& name, size_t byte, int bit, bool with_image) {
    SCOPED_TRACE(absl::StrCat(name, " byte ", byte, " bit ", bit, with_image ? "" : ", no image"));
    MemEnv env;
    HOTROW_ASSERT_OK(env.CreateDirs("/store"));
    for (const auto& [file_name, text] : files_) {
      if (!with_image && file_name.find("index-") == 0) continue;
      HOTROW_ASSERT_OK_AND_ASSIGN(auto file, env.Open("/store/" + file_name, OpenMode::kCreate));
      HOTROW_ASSERT_OK(WriteFull(*file, 0, std::as_bytes(std::span(text))));
    }
    HOTROW_ASSERT_OK(env.FlipBit("/store/" + name, static_cast<int64_t>(byte) * 8 + bit));
    const auto store = SsdStore::Open(Options(&env));
    if (!store.ok()) {
      ++refused_;
      ASSERT_THAT(store, StatusIs(absl::StatusCode::kDataLoss,
                                  AllOf(HasSubstr("/store/" + name), HasSubstr("offset"))));
      return;
    }
    int64_t unreadable = 0;
    for (const auto& [key, row] : expected_) {
      const RowKey row_key = {key.second, key.first};
      const absl::StatusOr<Found> found = FindAll(**store, {{row_key}});
      if (!found.ok()) {
        ASSERT_THAT(
            found,
            StatusIs(absl::StatusCode::kDataLoss,
                     AllOf(HasSubstr("/store/" + name), HasSubstr("offset"),
                           HasSubstr(absl::StrCat("key ", key.second, " of table ", key.first)))));
        ++unreadable;
        continue;
      }
      ASSERT_EQ(found->found[0], 1) << "key " << key.second;
      ASSERT_TRUE(found->rows[0] == row) << "a wrong row of key " << key.second;
    }
    ASSERT_LE(unreadable, 1) << "one bit is part of one record";
    for (uint64_t i = 0; i < 3; ++i) {
      const RowKey erased = {i, SsdTables()[i % 5].table};
      HOTROW_ASSERT_OK_AND_ASSIGN(const Found found, FindAll(**store, {{erased}}));
      ASSERT_EQ(found.found[0], 0) << "an erased row is back";
    }
    const absl::StatusOr<RowMap> all = Dump(**store);
    if (unreadable > 0) {
      ASSERT_THAT(all, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/store/" + name)));
    } else if (all.ok()) {
      ASSERT_TRUE(*all == expected_);
    } else {
      ASSERT_THAT(all, StatusIs(absl::StatusCode::kDataLoss, HasSubstr("/store/" + name)));
    }
    unreadable_ += unreadable;
  }

  Files files_;
  RowMap expected_;
  int64_t refused_ = 0;
  int64_t unreadable_ = 0;
};

TEST_F(SsdBitRotTest, EveryFlippedByteIsNamedOrMakesNoDifference) {
  ASSERT_NO_FATAL_FAILURE(Build());
  for (const uint64_t seed : Seeds(1)) {
    RandomStream random(seed, RandomPurpose::kTest);
    for (const auto& [name, text] : files_) {
      const bool is_segment = name.find("segment") == 0;
      for (size_t byte = 0; byte < text.size();) {
        const int bit = static_cast<int>(random.Below(8));
        ASSERT_NO_FATAL_FAILURE(Check(name, byte, bit, true));
        // Without the image recovery reads footers and records.
        if (is_segment) {
          ASSERT_NO_FATAL_FAILURE(Check(name, byte, bit, false));
        }
        // Zeros are pads, or free space.
        const bool is_zero = text[byte] == 0;
        byte += kSlow ? 1 : 1 + random.Below(is_zero ? 700 : is_segment ? 30 : 14);
      }
    }
  }
  EXPECT_GT(unreadable_, 0);
  RecordProperty("refused", std::to_string(refused_));
  RecordProperty("unreadable", std::to_string(unreadable_));
}

// --- Many threads --------------------------------------------------------------------------------

TEST(SsdSoakTest, EightThreadsSeeOnlyRowsThatWereWritten) {
  // HOTROW_SOAK_SECONDS overrides how long.
  const char* const wanted = std::getenv("HOTROW_SOAK_SECONDS");
  const double seconds = wanted != nullptr ? std::atof(wanted) : test::SlowRuns(600, 3);
  MemEnv env;
  SsdStoreOptions options = SmallSsd(&env, 160, 32 * kKiB, true);
  options.memory_budget_bytes = 8 * kMiB;
  HOTROW_ASSERT_OK_AND_ASSIGN(auto store, SsdStore::Open(options));
  constexpr uint64_t kWriters = 4;
  constexpr uint64_t kKeys = 60;  // of each writer and table
  // The versions that a key may have: of the last write that ended, and of the one that runs.
  // 0: none. A row is MakeRow of its key and version, and some versions are erasures.
  struct State {
    std::atomic<uint64_t> done{0};
    std::atomic<uint64_t> begun{0};
  };
  const std::vector<StoreTable> tables = SsdTables();
  std::vector<State> states(kWriters * kKeys * tables.size());
  const auto state_of = [&](const RowKey& key) -> State& {
    size_t t = 0;
    while (tables[t].table != key.table) ++t;
    return states[key.key * tables.size() + t];
  };
  std::atomic<bool> stop{false};
  std::atomic<int64_t> refusals{0};
  std::mutex failure_mutex;
  std::string failure;
  const auto fail = [&](const std::string& what) {
    const std::lock_guard lock(failure_mutex);
    if (failure.empty()) failure = what;
    stop = true;
  };
  const auto is_erasure = [](const RowKey& key, uint64_t version) {
    return version == 0 || Mix64(key.key + 1000 * key.table + 7 * version) % 8 == 0;
  };
  const auto check = [&](const RowKey& key, bool found, std::span<const std::byte> row,
                         uint64_t before, const char* who) {
    const uint64_t after = state_of(key).begun.load();
    for (uint64_t version = before; version <= after; ++version) {
      const bool erased = is_erasure(key, version);
      if (erased && !found) return;
      if (erased || !found) continue;
      const Row expected = MakeRow(key, version, static_cast<int64_t>(row.size()));
      if (std::equal(row.begin(), row.end(), expected.begin())) return;
    }
    fail(absl::StrCat(who, ": key ", key.key, " of table ", key.table,
                      found ? " has a row" : " is missing", ", versions ", before, " to ", after));
  };

  std::vector<std::thread> threads;
  for (uint64_t t = 0; t < kWriters; ++t) {
    threads.emplace_back([&, t] {
      RandomStream random(t, RandomPurpose::kTest);
      while (!stop) {
        Batch batch;
        std::vector<RowKey> erased;
        std::set<RowMap::key_type> seen;
        for (uint64_t i = 0; i < 1 + random.Below(24); ++i) {
          const RowKey key = {t * kKeys + random.Below(kKeys), tables[random.Below(5)].table};
          if (!seen.emplace(key.table, key.key).second) continue;
          const uint64_t version = ++state_of(key).begun;
          if (is_erasure(key, version)) {
            erased.push_back(key);
          } else {
            batch.Add(key, MakeRow(key, version, RowBytes(key.table)));
          }
        }
        // A snapshot may hold so much that there is no room until it is dropped.
        const auto until_room = [&](const std::function<absl::Status()>& call) {
          absl::Status status = call();
          for (int i = 0; i < 5000 && absl::IsResourceExhausted(status); ++i) {
            ++refusals;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            status = call();
          }
          return status;
        };
        absl::Status status = until_room([&] { return batch.InsertInto(*store); });
        if (status.ok()) status = until_room([&] { return store->Erase(erased); });
        if (!status.ok()) return fail(absl::StrCat("writer: ", status.ToString()));
        for (const RowKey& key : batch.keys) state_of(key).done = state_of(key).begun.load();
        for (const RowKey& key : erased) state_of(key).done = state_of(key).begun.load();
      }
    });
  }
  for (uint64_t t = 0; t < 2; ++t) {
    threads.emplace_back([&, t] {
      RandomStream random(100 + t, RandomPurpose::kTest);
      while (!stop) {
        std::vector<RowKey> keys;
        std::vector<uint64_t> before;
        for (uint64_t i = 0; i < 64; ++i) {
          keys.push_back({random.Below(kWriters * kKeys), tables[random.Below(5)].table});
          before.push_back(state_of(keys.back()).done);
        }
        const absl::StatusOr<Found> found = FindAll(*store, keys);
        if (!found.ok()) return fail(absl::StrCat("finder: ", found.status().ToString()));
        for (size_t i = 0; i < keys.size(); ++i) {
          check(keys[i], found->found[i] == 1, found->rows[i], before[i], "finder");
        }
      }
    });
  }
  threads.emplace_back([&] {
    SnapshotId id = 0;
    while (!stop) {
      absl::Status status = store->PrepareSnapshot(++id);
      if (status.ok()) status = store->CommitSnapshot(id);
      if (status.ok()) status = store->Flush();
      if (status.ok()) status = store->DropSnapshot(id);
      if (!status.ok()) fail(absl::StrCat("snapshots: ", status.ToString()));
      std::this_thread::sleep_for(std::chrono::milliseconds(3));
    }
  });
  threads.emplace_back([&] {
    while (!stop) {
      std::vector<uint64_t> before(states.size());
      for (size_t i = 0; i < states.size(); ++i) before[i] = states[i].done;
      std::set<std::pair<uint32_t, uint64_t>> seen;
      const absl::Status status =
          store->Iterate([&](const RowKey& key, std::span<const std::byte> row) {
            if (!seen.emplace(key.table, key.key).second) fail("Iterate gave a key twice");
            check(key, true, row, before[static_cast<size_t>(&state_of(key) - states.data())],
                  "iterator");
            return absl::OkStatus();
          });
      if (!status.ok()) fail(absl::StrCat("iterator: ", status.ToString()));
      // A round or so at a time: the writers make garbage as fast as it can be cleaned.
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  // At least that long, and on a busy machine until so much has been cleaned.
  const auto begin = std::chrono::steady_clock::now();
  const auto passed = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  while (!stop && (passed() < seconds ||
                   (passed() < seconds + 60 && store->SsdStats().segments_cleaned <= 10))) {
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  stop = true;
  for (std::thread& thread : threads) thread.join();
  ASSERT_EQ(failure, "");
  EXPECT_GT(store->SsdStats().segments_cleaned, 10);
  RecordProperty("refusals", std::to_string(refusals.load()));
  RecordProperty("segments_cleaned", std::to_string(store->SsdStats().segments_cleaned));

  // And after it: what each key was last, by Find, Iterate and a reopened store.
  RowMap expected;
  for (uint64_t key = 0; key < kWriters * kKeys; ++key) {
    for (const StoreTable& table : tables) {
      const RowKey row_key = {key, table.table};
      const uint64_t version = state_of(row_key).done;
      if (is_erasure(row_key, version)) continue;
      expected[{table.table, key}] = MakeRow(row_key, version, table.row_bytes);
    }
  }
  ASSERT_TRUE(Holds(*store, expected));
  HOTROW_ASSERT_OK(store->CleanAll());
  ASSERT_TRUE(Holds(*store, expected));
  HOTROW_ASSERT_OK(store->Close());
  store.reset();
  HOTROW_ASSERT_OK_AND_ASSIGN(store, SsdStore::Open(options));
  ASSERT_TRUE(Holds(*store, expected));
}

}  // namespace
}  // namespace hotrow
