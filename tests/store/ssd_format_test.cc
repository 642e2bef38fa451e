#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/philox.h"
#include "gtest/gtest.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "tests/store/store_test_util.h"
#include "tests/support/status_matchers.h"
#include "tests/support/test_util.h"

namespace hotrow::internal {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr SsdPlace kPlace = {.epoch = 7, .offset = 8192};
const std::vector<int64_t> kRowBytes = {100, 1, 4096};

// --- Records -------------------------------------------------------------------------------------

std::vector<std::byte> RowRecord(const SsdPlace& place, uint32_t table, uint64_t key,
                                 uint64_t sequence) {
  std::vector<std::byte> out(static_cast<size_t>(SsdRowRecordBytes(kRowBytes[table])));
  EXPECT_EQ(EncodeSsdRow(place, table, key, sequence,
                         test::MakeRow({key, table}, sequence, kRowBytes[table]), out.data()),
            static_cast<int64_t>(out.size()));
  return out;
}

TEST(SsdRecordTest, RowsOfEveryWidthComeBack) {
  for (uint32_t table = 0; table < kRowBytes.size(); ++table) {
    for (const uint64_t key : {uint64_t{0}, uint64_t{123}, ~uint64_t{0}}) {
      const std::vector<std::byte> bytes = RowRecord(kPlace, table, key, 55);
      EXPECT_EQ(bytes.size() % kSsdRecordAlignment, 0u);
      const auto record = DecodeSsdRecord(bytes, kPlace, kRowBytes);
      ASSERT_TRUE(record.has_value());
      EXPECT_EQ(record->kind, SsdRecordKind::kRow);
      EXPECT_EQ(record->table_index, table);
      EXPECT_EQ(record->key, key);
      EXPECT_EQ(record->sequence, 55u);
      EXPECT_EQ(record->bytes, static_cast<int64_t>(bytes.size()));
      EXPECT_EQ(test::Row(record->row.begin(), record->row.end()),
                test::MakeRow({key, table}, 55, kRowBytes[table]));
    }
  }
}

TEST(SsdRecordTest, TombstonesAndPadsComeBack) {
  std::vector<std::byte> bytes(512, std::byte{0xee});
  EXPECT_EQ(EncodeSsdTombstone(kPlace, 2, 9, 77, bytes.data()), kSsdTombstoneBytes);
  const auto tombstone = DecodeSsdRecord(bytes, kPlace, kRowBytes);
  ASSERT_TRUE(tombstone.has_value());
  EXPECT_EQ(tombstone->kind, SsdRecordKind::kTombstone);
  EXPECT_EQ(tombstone->table_index, 2u);
  EXPECT_EQ(tombstone->key, 9u);
  EXPECT_EQ(tombstone->sequence, 77u);
  EXPECT_EQ(tombstone->bytes, kSsdTombstoneBytes);
  for (const int64_t pad_bytes : {8, 16, 488, 512}) {
    EncodeSsdPad(kPlace, pad_bytes, bytes.data());
    const auto pad = DecodeSsdRecord(bytes, kPlace, kRowBytes);
    ASSERT_TRUE(pad.has_value());
    EXPECT_EQ(pad->kind, SsdRecordKind::kPad);
    EXPECT_EQ(pad->bytes, pad_bytes);
  }
}

TEST(SsdRecordTest, AnyFlippedBitMakesItNoRecord) {
  std::vector<std::vector<std::byte>> records = {RowRecord(kPlace, 0, 5, 6),
                                                 RowRecord(kPlace, 1, 5, 6)};
  EncodeSsdTombstone(kPlace, 0, 5, 6, records.emplace_back(kSsdTombstoneBytes).data());
  EncodeSsdPad(kPlace, 40, records.emplace_back(40).data());
  EncodeSsdPad(kPlace, 8, records.emplace_back(8).data());
  for (std::vector<std::byte>& bytes : records) {
    ASSERT_TRUE(DecodeSsdRecord(bytes, kPlace, kRowBytes).has_value());
    // Others behind it, so that a changed length finds bytes.
    const size_t n = bytes.size();
    bytes.resize(n + 8192, std::byte{0x5a});
    for (size_t bit = 0; bit < 8 * n; ++bit) {
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
      EXPECT_FALSE(DecodeSsdRecord(bytes, kPlace, kRowBytes).has_value()) << bit;
      bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    }
  }
}

TEST(SsdRecordTest, InAnotherPlaceItIsNoRecord) {
  std::vector<std::byte> bytes = RowRecord(kPlace, 0, 5, 6);
  EXPECT_TRUE(DecodeSsdRecord(bytes, kPlace, kRowBytes).has_value());
  EXPECT_FALSE(DecodeSsdRecord(bytes, {kPlace.epoch + 1, kPlace.offset}, kRowBytes).has_value());
  EXPECT_FALSE(DecodeSsdRecord(bytes, {kPlace.epoch, kPlace.offset + 8}, kRowBytes).has_value());
  EncodeSsdPad(kPlace, 8, bytes.data());
  EXPECT_FALSE(DecodeSsdRecord(bytes, {kPlace.epoch + 1, kPlace.offset}, kRowBytes).has_value());
}

TEST(SsdRecordTest, ACutRecordOrAnUnknownTableIsNone) {
  const std::vector<std::byte> bytes = RowRecord(kPlace, 2, 5, 6);
  for (size_t n = 0; n < bytes.size(); n += n < 64 ? 1 : 97) {
    // A copy of this size, so that a sanitizer sees what is read behind it.
    const std::vector<std::byte> cut(bytes.begin(), bytes.begin() + static_cast<int64_t>(n));
    EXPECT_FALSE(DecodeSsdRecord(cut, kPlace, kRowBytes).has_value()) << n;
  }
  EXPECT_FALSE(DecodeSsdRecord(bytes, kPlace, std::span(kRowBytes).first(2)).has_value());
  EXPECT_FALSE(DecodeSsdRecord(bytes, kPlace, {}).has_value());
}

TEST(SsdRecordTest, ARowIsFoundAnywhereInItsUnitAndNowhereElse) {
  const std::vector<std::byte> record = RowRecord({7, 0}, 0, 5, 6);
  for (int64_t at = 0; at <= kSsdUnitBytes; at += kSsdRecordAlignment) {
    const SsdPlace place = {7, 8192 + at};
    std::vector<std::byte> unit(2 * kSsdUnitBytes);
    EncodeSsdRow(place, 0, 5, 6, test::MakeRow({5, 0}, 6, 100), unit.data() + at);
    const auto found = FindSsdRowInUnit(unit, {7, 8192}, 0, 5, 100);
    ASSERT_EQ(found.has_value(), at < kSsdUnitBytes) << at;
    if (!found.has_value()) continue;
    EXPECT_EQ(test::Row(found->row.begin(), found->row.end()), test::MakeRow({5, 0}, 6, 100));
    EXPECT_FALSE(FindSsdRowInUnit(unit, {7, 8192}, 0, 4, 100).has_value());
    EXPECT_FALSE(FindSsdRowInUnit(unit, {7, 8192}, 1, 5, 1).has_value());
    EXPECT_FALSE(FindSsdRowInUnit(unit, {8, 8192}, 0, 5, 100).has_value());
    // A row that looks like another's header is not taken for it.
    unit[static_cast<size_t>(at) + 30] ^= std::byte{1};
    EXPECT_FALSE(FindSsdRowInUnit(unit, {7, 8192}, 0, 5, 100).has_value());
  }
}

// --- Segment header ------------------------------------------------------------------------------

TEST(SsdSegmentHeaderTest, EveryFlippedBitIsNoticed) {
  std::vector<std::byte> bytes(kSsdSegmentHeaderBytes, std::byte{0xee});
  EncodeSsdSegmentHeader(7, 1 << 20, 1 << 16, bytes);
  HOTROW_EXPECT_OK(CheckSsdSegmentHeader(bytes, 7, 1 << 20, 1 << 16));
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += bit < 8 * sizeof(SsdSegmentHeader) ? 1 : 37) {
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THAT(CheckSsdSegmentHeader(bytes, 7, 1 << 20, 1 << 16),
                test::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("offset ")))
        << bit;
    bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(SsdSegmentHeaderTest, AnotherLifeOrShapeIsNamed) {
  std::vector<std::byte> bytes(kSsdSegmentHeaderBytes);
  EncodeSsdSegmentHeader(7, 1 << 20, 1 << 16, bytes);
  EXPECT_THAT(CheckSsdSegmentHeader(bytes, 8, 1 << 20, 1 << 16),
              test::StatusIs(absl::StatusCode::kDataLoss,
                             AllOf(HasSubstr("epoch 7"), HasSubstr("epoch 8"))));
  EXPECT_FALSE(CheckSsdSegmentHeader(bytes, 7, 1 << 21, 1 << 16).ok());
  EXPECT_FALSE(CheckSsdSegmentHeader(bytes, 7, 1 << 20, 1 << 15).ok());
}

// Sets the version of a struct whose CRC follows `crc_at` bytes, and makes the CRC right.
void SetVersion(std::byte* bytes, size_t version_at, uint32_t version, size_t crc_at) {
  std::memcpy(bytes + version_at, &version, sizeof(version));
  const uint32_t crc = Crc32c({bytes, crc_at});
  std::memcpy(bytes + crc_at, &crc, sizeof(crc));
}

TEST(SsdSegmentHeaderTest, AnUnknownVersionIsRefusedByName) {
  std::vector<std::byte> bytes(kSsdSegmentHeaderBytes);
  EncodeSsdSegmentHeader(7, 1 << 20, 1 << 16, bytes);
  SetVersion(bytes.data(), offsetof(SsdSegmentHeader, version), 3, offsetof(SsdSegmentHeader, crc));
  EXPECT_THAT(CheckSsdSegmentHeader(bytes, 7, 1 << 20, 1 << 16),
              test::StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("version 3"), HasSubstr("version 2"))));
}

// --- Chunks and footers --------------------------------------------------------------------------

constexpr int64_t kChunkBytes = 16384;

// A closed chunk as the log writes it, of rows, tombstones and pads in turn.
struct Chunk {
  std::vector<std::byte> bytes = std::vector<std::byte>(kChunkBytes);
  int64_t offset = 0;
  uint64_t epoch = 3;
  uint64_t base_sequence = 1000;
  std::vector<SsdFooterEntry> entries;
  std::vector<SsdScanned> records;  // without pads
  int64_t end = 0;                  // of the records, in the segment

  explicit Chunk(int64_t offset, int count = 40, bool close = true) : offset(offset) {
    end = SsdFirstRecord(offset);
    if (offset == 0) {
      EncodeSsdSegmentHeader(epoch, 4 * kChunkBytes, kChunkBytes,
                             std::span(bytes).first(kSsdSegmentHeaderBytes));
    }
    for (int i = 0; i < count; ++i) {
      std::byte* const out = bytes.data() + (end - offset);
      const SsdPlace place = {epoch, end};
      const uint64_t key = 100 + static_cast<uint64_t>(i);
      const uint64_t sequence = base_sequence + 2 * static_cast<uint64_t>(i);
      const uint32_t table = static_cast<uint32_t>(i) % 2;
      SsdFooterEntry entry = {key, static_cast<uint32_t>(sequence - base_sequence), 0};
      int64_t n = 0;
      if (i % 5 == 4) {
        n = EncodeSsdTombstone(place, table, key, sequence, out);
        entry.kind_table = SsdKindTable(SsdRecordKind::kTombstone, table);
      } else if (i % 7 == 6) {
        n = 8 * (1 + i);
        EncodeSsdPad(place, n, out);
        entry = {0, 0, SsdKindTable(SsdRecordKind::kPad, static_cast<uint32_t>(n / 8))};
      } else {
        n = EncodeSsdRow(place, table, key, sequence,
                         test::MakeRow({key, table}, sequence, kRowBytes[table]), out);
        entry.kind_table = SsdKindTable(SsdRecordKind::kRow, table);
      }
      entries.push_back(entry);
      if (entry.key != 0) records.push_back({key, sequence, end, n, entry.kind_table});
      end += n;
    }
    if (close) Close();
  }

  void Close() {
    const int64_t footer_at = kChunkBytes - SsdFooterBytes(static_cast<int64_t>(entries.size()));
    if (footer_at > end - offset) {
      EncodeSsdPad({epoch, end}, footer_at - (end - offset), bytes.data() + (end - offset));
    }
    std::copy_n(std::as_bytes(std::span(entries)).begin(), entries.size() * sizeof(SsdFooterEntry),
                bytes.data() + footer_at);
    const SsdFooterTrailer trailer =
        MakeSsdFooterTrailer(epoch, offset, base_sequence, end, entries);
    std::memcpy(bytes.data() + kChunkBytes - sizeof(trailer), &trailer, sizeof(trailer));
  }
  absl::StatusOr<SsdFooter> Footer() const {
    return DecodeSsdFooter(bytes, epoch, offset, kChunkBytes, kRowBytes);
  }
  SsdGeometry geometry() const { return {4 * kChunkBytes, kChunkBytes, kRowBytes}; }
  SsdSegmentRef ref(int64_t end_offset) const {
    return {.slot = 0, .epoch = epoch, .base_sequence = base_sequence, .end_offset = end_offset};
  }
};

void ExpectSame(const std::vector<SsdScanned>& a, const std::vector<SsdScanned>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].key, b[i].key);
    EXPECT_EQ(a[i].sequence, b[i].sequence);
    EXPECT_EQ(a[i].offset, b[i].offset);
    EXPECT_EQ(a[i].bytes, b[i].bytes);
    EXPECT_EQ(a[i].kind_table, b[i].kind_table);
  }
}

TEST(SsdFooterTest, ComesBackWhole) {
  for (const int64_t offset : {int64_t{0}, kChunkBytes}) {
    const Chunk chunk(offset);
    HOTROW_ASSERT_OK_AND_ASSIGN(const SsdFooter footer, chunk.Footer());
    EXPECT_EQ(footer.trailer.base_sequence, chunk.base_sequence);
    EXPECT_EQ(footer.trailer.end_offset, static_cast<uint64_t>(chunk.end));
    ASSERT_EQ(footer.entries.size(), chunk.entries.size());
    EXPECT_EQ(std::memcmp(footer.entries.data(), chunk.entries.data(),
                          chunk.entries.size() * sizeof(SsdFooterEntry)),
              0);
  }
}

TEST(SsdFooterTest, EveryFlippedBitIsNoticed) {
  Chunk chunk(kChunkBytes);
  const auto footer_bytes =
      static_cast<size_t>(SsdFooterBytes(static_cast<int64_t>(chunk.entries.size())));
  for (size_t bit = 8 * (kChunkBytes - footer_bytes); bit < 8 * kChunkBytes; ++bit) {
    chunk.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
    EXPECT_THAT(chunk.Footer(), test::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("offset ")))
        << bit;
    chunk.bytes[bit / 8] ^= std::byte{1} << (bit % 8);
  }
}

TEST(SsdFooterTest, OfAnotherLifeOrChunkIsRefused) {
  const Chunk chunk(kChunkBytes);
  EXPECT_FALSE(
      DecodeSsdFooter(chunk.bytes, chunk.epoch + 1, kChunkBytes, kChunkBytes, kRowBytes).ok());
  EXPECT_FALSE(
      DecodeSsdFooter(chunk.bytes, chunk.epoch, 2 * kChunkBytes, kChunkBytes, kRowBytes).ok());
  // Tables of other widths: the records would end elsewhere.
  const std::vector<int64_t> other = {112, 1, 4096};
  EXPECT_FALSE(DecodeSsdFooter(chunk.bytes, chunk.epoch, kChunkBytes, kChunkBytes, other).ok());
  EXPECT_FALSE(DecodeSsdFooter(chunk.bytes, chunk.epoch, kChunkBytes, kChunkBytes, {}).ok());
}

TEST(SsdFooterTest, AnUnknownVersionIsRefusedByName) {
  Chunk chunk(kChunkBytes);
  SetVersion(chunk.bytes.data() + kChunkBytes - sizeof(SsdFooterTrailer),
             offsetof(SsdFooterTrailer, version), 3, offsetof(SsdFooterTrailer, crc));
  EXPECT_THAT(chunk.Footer(),
              test::StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("version 3"), HasSubstr("version 2"))));
}

TEST(SsdChunkTest, FooterAndWalkTellTheSame) {
  for (const int64_t offset : {int64_t{0}, 2 * kChunkBytes}) {
    for (const int count : {0, 1, 40}) {
      const Chunk chunk(offset, count);
      // All of it; as far as each of its records.
      std::vector<int64_t> ends = {offset + kChunkBytes + kChunkBytes / 2, chunk.end};
      for (const SsdScanned& record : chunk.records) ends.push_back(record.offset);
      for (const int64_t end : ends) {
        std::vector<SsdScanned> expected = chunk.records;
        std::erase_if(expected, [&](const SsdScanned& r) { return r.offset >= end; });
        std::vector<SsdScanned> walked;
        HOTROW_EXPECT_OK(
            WalkSsdChunk(chunk.geometry(), chunk.ref(end), offset, chunk.bytes, &walked));
        ExpectSame(walked, expected);
        std::vector<SsdScanned> listed;
        std::string damage;
        HOTROW_EXPECT_OK(
            ListSsdChunk(chunk.geometry(), chunk.ref(end), offset, chunk.bytes, &listed, &damage));
        ExpectSame(listed, expected);
        EXPECT_EQ(damage, "");
      }
    }
  }
}

TEST(SsdChunkTest, WithoutItsFooterTheRecordsAreRead) {
  Chunk chunk(kChunkBytes);
  chunk.bytes[kChunkBytes - 1] ^= std::byte{1};
  std::vector<SsdScanned> listed;
  std::string damage;
  HOTROW_EXPECT_OK(ListSsdChunk(chunk.geometry(), chunk.ref(3 * kChunkBytes), kChunkBytes,
                                chunk.bytes, &listed, &damage));
  ExpectSame(listed, chunk.records);
  EXPECT_THAT(damage, HasSubstr("checksum"));
  // The last chunk of a segment may be open.
  damage.clear();
  listed.clear();
  HOTROW_EXPECT_OK(ListSsdChunk(chunk.geometry(), chunk.ref(chunk.end), kChunkBytes, chunk.bytes,
                                &listed, &damage));
  ExpectSame(listed, chunk.records);
  EXPECT_EQ(damage, "");
}

TEST(SsdChunkTest, AWalkNamesWhereItStops) {
  Chunk chunk(kChunkBytes);
  const SsdScanned& record = chunk.records[10];
  chunk.bytes[static_cast<size_t>(record.offset - kChunkBytes) + 20] ^= std::byte{1};
  std::vector<SsdScanned> walked;
  EXPECT_THAT(
      WalkSsdChunk(chunk.geometry(), chunk.ref(3 * kChunkBytes), kChunkBytes, chunk.bytes, &walked),
      test::StatusIs(absl::StatusCode::kDataLoss,
                     HasSubstr(absl::StrCat("offset ", record.offset))));
  EXPECT_EQ(walked.size(), 10u);
}

// --- Manifest ------------------------------------------------------------------------------------

SsdManifest SomeManifest() {
  SsdManifest m;
  m.generation = 9;
  m.segment_bytes = 1 << 20;
  m.chunk_bytes = 1 << 16;
  m.next_epoch = uint64_t{1} << 33;
  m.sequence_limit = uint64_t{1} << 41;
  m.index_image = 8;
  m.index_image_id = {.high = 1, .low = 2};
  m.table_rows = {0, 7, 123456789};
  m.payload_bytes_written = 123456;
  m.device_bytes_written = 654321;
  m.tables = {{3, 16}, {0, 1024}, {4294967295u, 1}};
  m.segments = {{0, 11, 5, 4096, 0}, {7, 12, 6, 1 << 20, 12345}};
  m.snapshots = {{.id = 1,
                  .committed = true,
                  .sequence = 3,
                  .segments = {{0, 11, 5, 4096, 0}},
                  .identity = {.high = 3, .low = 4},
                  .table_rows = {1, 2, 3}},
                 {.id = ~uint64_t{0},
                  .committed = false,
                  .sequence = 4,
                  .segments = {},
                  .identity = {},
                  .table_rows = {}}};
  return m;
}

// The same of a store in several directories.
SsdManifest StripedManifest() {
  SsdManifest m = SomeManifest();
  m.directories = {{.high = 5, .low = 6}, {.high = 7, .low = 8}, {.high = 7, .low = 9}};
  m.segments[0].directory = m.snapshots[0].segments[0].directory = 2;
  return m;
}

TEST(SsdManifestTest, ComesBackWhole) {
  SsdManifest empty;
  empty.segment_bytes = empty.chunk_bytes = 16384;
  empty.tables = {{0, 4}};
  for (const SsdManifest& manifest : {SomeManifest(), StripedManifest(), empty}) {
    HOTROW_ASSERT_OK_AND_ASSIGN(const DecodedSsdManifest decoded,
                                DecodeSsdManifest(EncodeSsdManifest(manifest)));
    EXPECT_TRUE(decoded.manifest == manifest);
    // Builds that know of one directory alone read the others, and refuse these.
    EXPECT_EQ(decoded.version, manifest.directories.empty() ? 3u : 4u);
    EXPECT_EQ(decoded.damage, "");
  }
}

TEST(SsdManifestTest, AnyFlippedBitIsToldAndCostsNothing) {
  const std::string good = EncodeSsdManifest(StripedManifest());
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    std::string bad = good;
    bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << (bit % 8)));
    HOTROW_ASSERT_OK_AND_ASSIGN(const DecodedSsdManifest decoded, DecodeSsdManifest(bad));
    EXPECT_TRUE(decoded.manifest == StripedManifest()) << bit;
    EXPECT_THAT(decoded.damage, HasSubstr("offset ")) << bit;
  }
}

TEST(SsdManifestTest, DamageInBothCopiesIsDataLoss) {
  const std::string good = EncodeSsdManifest(SomeManifest());
  const size_t half = good.size() / 2;
  for (size_t at = 0; at < half; ++at) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 0x10);
    bad[half + (at * 7) % half] = static_cast<char>(bad[half + (at * 7) % half] ^ 1);
    EXPECT_THAT(DecodeSsdManifest(bad),
                test::StatusIs(absl::StatusCode::kDataLoss, HasSubstr("offset ")))
        << at;
  }
}

// Checksums that fit, and contents that no store writes: an error, never more.
TEST(SsdManifestTest, WhatDoesNotMakeSenseIsDataLossNamingTheField) {
  const auto expect = [](const std::function<void(SsdManifest&)>& change, const char* text) {
    SsdManifest manifest = SomeManifest();
    change(manifest);
    const std::string bytes = EncodeSsdManifest(manifest);
    EXPECT_THAT(
        DecodeSsdManifest(bytes),
        test::StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("offset "), HasSubstr(text))))
        << text;
    // One copy that makes sense is enough.
    const std::string good = EncodeSsdManifest(SomeManifest());
    if (good.size() != bytes.size()) return;
    HOTROW_ASSERT_OK_AND_ASSIGN(
        const DecodedSsdManifest decoded,
        DecodeSsdManifest(bytes.substr(0, bytes.size() / 2) + good.substr(good.size() / 2)));
    EXPECT_TRUE(decoded.manifest == SomeManifest()) << text;
    EXPECT_THAT(decoded.damage, HasSubstr(text));
  };
  constexpr uint64_t kHuge = uint64_t{1} << 63;
  using M = SsdManifest;
  expect([](M& m) { m.tables.clear(); }, "num_tables is 0");
  expect([](M& m) { m.tables[1] = m.tables[0]; }, "table 3 is there twice");
  expect([](M& m) { m.tables[0].row_bytes = 0; }, "table 3: row_bytes is 0");
  expect([](M& m) { m.tables[0].row_bytes = -1; }, "table 3: row_bytes is 18446744073709551615");
  expect([](M& m) { m.tables[0].row_bytes = kSsdRowBytesMax + 1; }, "table 3: row_bytes");
  expect([](M& m) { m.tables[0].row_bytes = 1 << 15; }, "too much for chunks of 65536");
  expect([](M& m) { m.chunk_bytes = 0; }, "chunk_bytes is 0");
  expect([](M& m) { m.chunk_bytes = 8192; }, "chunk_bytes is 8192");
  expect([](M& m) { m.chunk_bytes = 20'000; }, "chunk_bytes is 20000");
  expect([](M& m) { m.chunk_bytes = int64_t{1} << 40; }, "chunk_bytes is");
  expect([](M& m) { m.segment_bytes = 0; }, "segment_bytes is 0");
  expect([](M& m) { m.segment_bytes += 8; }, "segment_bytes is");
  expect([](M& m) { m.segment_bytes = INT64_MIN; }, "segment_bytes is 9223372036854775808");
  expect([](M& m) { m.generation = kHuge; }, "generation is");
  expect([](M& m) { m.next_epoch = 0; }, "next_epoch is 0");
  expect([](M& m) { m.next_epoch = kHuge; }, "next_epoch is");
  expect([](M& m) { m.sequence_limit = ~uint64_t{0}; }, "sequence_limit is");
  expect([](M& m) { m.payload_bytes_written = kHuge; }, "payload_bytes_written is");
  expect([](M& m) { m.device_bytes_written = kHuge; }, "device_bytes_written is");
  expect([](M& m) { m.index_image = 10; }, "index_image is 10");
  expect([](M& m) { m.segments[1].slot = 0; }, "segment 0: is there twice");
  expect(
      [](M& m) {
        m.segments[1].slot = ~uint32_t{0};
        m.segment_bytes = int64_t{1} << 40;
      },
      "segment 4294967295: slot");
  expect([](M& m) { m.segments[1].epoch = 0; }, "segment 7: epoch is 0");
  expect([](M& m) { m.segments[1].epoch = m.next_epoch; }, "segment 7: epoch is");
  expect([](M& m) { m.segments[1].base_sequence = m.sequence_limit + 1; },
         "segment 7: base_sequence is");
  expect([](M& m) { m.segments[1].end_offset = 4088; }, "segment 7: end_offset is 4088");
  expect([](M& m) { m.segments[1].end_offset = 4097; }, "segment 7: end_offset is 4097");
  expect([](M& m) { m.segments[1].end_offset = m.segment_bytes + 8; }, "segment 7: end_offset is");
  expect([](M& m) { m.segments[1].live_bytes = -1; }, "segment 7: live_bytes is");
  expect([](M& m) { m.snapshots[0].segments[0].epoch = 9; }, "segment 0: epoch is 9");
  expect([](M& m) { m.snapshots[0].segments[0].base_sequence = 4; }, "base_sequence 4");
  expect([](M& m) { m.segments[1].directory = 1; }, "segment 7: directory is 1 of 1");
  expect(
      [](M& m) {
        m = StripedManifest();
        m.segments[0].directory = 1;
      },
      "segment 0: directory is 2, in another state 1");
  expect(
      [](M& m) {
        m = StripedManifest();
        m.segments[1].directory = 3;
      },
      "segment 7: directory is 3 of 3");
  expect(
      [](M& m) {
        m = StripedManifest();
        m.directories[2] = m.directories[1];
      },
      "directory 2: its identity");
  expect([](M& m) { m.directories = {{.high = 0, .low = 1}}; },
         "num_directories is 1 in version 4");
  expect([](M& m) { m.snapshots[0].segments.push_back(m.snapshots[0].segments[0]); },
         "segment 0: is there twice");
  expect([](M& m) { m.snapshots[0].id = 0; }, "snapshot 0: id");
  expect([](M& m) { m.snapshots[0].id = m.snapshots[1].id; }, "is there twice");
  expect([](M& m) { m.snapshots[0].sequence = kHuge; }, "snapshot 1: sequence is");
  expect([](M& m) { m.table_rows[1] = kSsdLogBytesMax + 1; }, "the present state: table 0 has");
  expect([](M& m) { m.table_rows[0] = -1; }, "the present state: table 0 has 7 rows");
  expect([](M& m) { m.snapshots[0].table_rows[2] = -1; }, "snapshot 1: table 4294967295 has");
}

TEST(SsdManifestTest, ItsLengthIsKnownBefore) {
  SsdManifest empty;
  EXPECT_EQ(static_cast<int64_t>(EncodeSsdManifest(empty).size()), SsdManifestBytes(0, 0, 0));
  EXPECT_EQ(static_cast<int64_t>(EncodeSsdManifest(SomeManifest()).size()),
            SsdManifestBytes(3, 2, 3));
  EXPECT_EQ(static_cast<int64_t>(EncodeSsdManifest(StripedManifest()).size()),
            SsdManifestBytes(3, 2, 3, 3));
}

TEST(SsdManifestTest, ACutOrLengthenedFileIsNoticed) {
  const std::string good = EncodeSsdManifest(SomeManifest());
  for (size_t n = 0; n < good.size(); ++n) {
    const std::string cut = good.substr(0, n);
    const auto decoded = DecodeSsdManifest(std::string_view(cut));
    // With the second half gone both halves are too short; a little less, and the copies are not
    // where they should be.
    if (decoded.ok()) {
      EXPECT_NE(decoded->damage, "") << n;
    } else {
      EXPECT_TRUE(absl::IsDataLoss(decoded.status())) << n;
    }
  }
  for (const size_t more : {1, 2, 100}) {
    const auto decoded = DecodeSsdManifest(good + std::string(more, '\0'));
    EXPECT_TRUE(!decoded.ok() || !decoded->damage.empty()) << more;
  }
}

TEST(SsdManifestTest, AnUnknownVersionIsRefusedByName) {
  std::string text = EncodeSsdManifest(SomeManifest());
  for (const size_t at : {size_t{0}, text.size() / 2}) {
    SetVersion(reinterpret_cast<std::byte*>(text.data() + at), 8, 5, 12);
  }
  EXPECT_THAT(DecodeSsdManifest(text),
              test::StatusIs(absl::StatusCode::kFailedPrecondition,
                             AllOf(HasSubstr("version 5"), HasSubstr("versions 2 to 4"))));
}

TEST(SsdNamesTest, ComeBack) {
  EXPECT_EQ(SsdSegmentName(12), "segment-000012");
  EXPECT_EQ(ParseSsdSegmentName(SsdSegmentName(12)), 12u);
  EXPECT_EQ(ParseSsdSegmentName(SsdSegmentName(4294967295u)), 4294967295u);
  EXPECT_EQ(ParseSsdIndexName(SsdIndexName(3)), 3u);
  for (const char* const name :
       {"segment-", "segment-x", "segment-1x", "index-3", "segment--1", "segment-0000011",
        "segment-11", "segment-99999999999", "MANIFEST", ""}) {
    EXPECT_EQ(ParseSsdSegmentName(name), std::nullopt) << name;
  }
}

}  // namespace
}  // namespace hotrow::internal
