#include "tests/store/ssd_fuzz_targets.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <string_view>

#include "base/check.h"
#include "base/crc32c.h"
#include "base/math.h"
#include "base/read_file.h"
#include "store/ssd/ssd_format_impl.h"
#include "store/ssd/ssd_image_impl.h"
#include "store/ssd/ssd_index_impl.h"
#include "store/ssd/ssd_manifest_impl.h"
#include "store/ssd/ssd_scan_impl.h"
#include "tests/fuzz/fuzz_targets.h"
#include "tests/support/mem_env.h"

namespace hotrow::fuzz {
namespace {

using namespace hotrow::internal;  // NOLINT(google-build-using-namespace): all of it is about these

constexpr int64_t kChunkBytes = 16384;
constexpr int64_t kSegmentBytes = 2 * kChunkBytes;
constexpr uint64_t kEpoch = 5;
constexpr uint64_t kBaseSequence = 1000;
constexpr UniqueId kImageId = {.high = 11, .low = 12};
const std::array<int64_t, 3> kRowBytes = {16, 100, 2048};
const SsdGeometry kGeometry = {kSegmentBytes, kChunkBytes, kRowBytes};

std::span<const std::byte> Bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

template <typename T>
T Load(const std::string& text, size_t at) {
  T out;
  std::memcpy(&out, text.data() + at, sizeof(out));
  return out;
}

// Makes the CRC at `crc_at` that of the bytes [begin, crc_at).
void FixCrc(std::string* text, size_t begin, size_t crc_at) {
  if (crc_at + 4 > text->size()) return;
  const uint32_t crc = Crc32c(Bytes(std::string_view(*text).substr(begin, crc_at - begin)));
  std::memcpy(text->data() + crc_at, &crc, sizeof(crc));
}

void FixFooter(std::string* tail) {
  if (tail->size() < sizeof(SsdFooterTrailer)) return;
  const size_t at = tail->size() - sizeof(SsdFooterTrailer);
  auto trailer = Load<SsdFooterTrailer>(*tail, at);
  if (trailer.num_entries <= at / sizeof(SsdFooterEntry)) {
    const size_t bytes = trailer.num_entries * sizeof(SsdFooterEntry);
    trailer.entries_crc = Crc32c(Bytes(std::string_view(*tail).substr(at - bytes, bytes)));
    std::memcpy(tail->data() + at, &trailer, sizeof(trailer));
  }
  FixCrc(tail, at, at + offsetof(SsdFooterTrailer, crc));
}

void FixRecords(int64_t chunk_offset, std::string* chunk) {
  int64_t at = SsdFirstRecord(chunk_offset) - chunk_offset;
  while (at + kSsdPadHeaderBytes <= static_cast<int64_t>(chunk->size())) {
    SsdFooterEntry entry = {};
    entry.kind_table = Load<uint32_t>(*chunk, static_cast<size_t>(at) + 4);
    const int64_t bytes = SsdEntryRecordBytes(entry, kRowBytes);
    if (bytes < kSsdPadHeaderBytes || at + bytes > static_cast<int64_t>(chunk->size())) return;
    const std::array<uint64_t, 2> place = {kEpoch, static_cast<uint64_t>(chunk_offset + at)};
    const uint32_t crc = Crc32c(Bytes(std::string_view(*chunk).substr(
                                    static_cast<size_t>(at) + 4, static_cast<size_t>(bytes) - 4)),
                                Crc32c(std::as_bytes(std::span(place))));
    std::memcpy(chunk->data() + at, &crc, sizeof(crc));
    at += bytes;
  }
}

void FixManifest(std::string* text) {
  constexpr size_t kPrefix = 16;
  constexpr size_t kHeader = 80;
  const size_t half = text->size() / 2;
  for (const size_t at : {size_t{0}, half}) {
    if (at + kPrefix + kHeader > text->size()) return;
    FixCrc(text, at, at + 12);
    const auto body_bytes = Load<uint64_t>(*text, at + kPrefix + 64);
    const size_t body = at + kPrefix + kHeader;
    if (body_bytes <= text->size() - body) {
      const uint32_t crc = Crc32c(Bytes(std::string_view(*text).substr(body, body_bytes)));
      std::memcpy(text->data() + at + kPrefix + 72, &crc, sizeof(crc));
    }
    FixCrc(text, at + kPrefix, at + kPrefix + 76);
  }
}

void FixImage(std::string* text) {
  FixCrc(text, 0, offsetof(SsdImageHeader, crc));
  size_t at = sizeof(SsdImageHeader);
  while (at + sizeof(SsdIndexImageHeader) <= text->size()) {
    const auto header = Load<SsdIndexImageHeader>(*text, at);
    if (header.num_buckets > text->size() / 128) return;
    const size_t bytes = sizeof(header) + header.num_buckets * 128;
    if (at + bytes + sizeof(SsdImageCrc) > text->size()) return;
    const uint32_t crc = Crc32c(Bytes(std::string_view(*text).substr(at, bytes)));
    std::memcpy(text->data() + at + bytes, &header.partition, sizeof(uint32_t));
    std::memcpy(text->data() + at + bytes + 4, &crc, sizeof(crc));
    at += bytes + sizeof(SsdImageCrc);
  }
}

// The chunk or its footer at the end of the file; where it lies is the second byte's.
int64_t ChunkOffset(uint8_t choice) { return choice % 2 * kChunkBytes; }

std::unique_ptr<SsdIndex> NewIndex(MemoryBudget& budget) {
  auto index = SsdIndex::Create(
      {.num_tables = 3, .location_bits = 20, .max_rows_hint = 1000, .seed = 0}, budget);
  HOTROW_CHECK(index.ok());
  return *std::move(index);
}

std::string MakeChunk(int64_t chunk_offset, int records, bool close) {
  std::string chunk(kChunkBytes, '\0');
  auto* const data = reinterpret_cast<std::byte*>(chunk.data());
  int64_t at = SsdFirstRecord(chunk_offset) - chunk_offset;
  std::vector<SsdFooterEntry> entries;
  for (int i = 0; i < records; ++i) {
    const auto key = static_cast<uint64_t>(i);
    const uint64_t sequence = kBaseSequence + key;
    const auto table = static_cast<uint32_t>(i % 3);
    const SsdPlace place = {kEpoch, chunk_offset + at};
    const std::vector<std::byte> row(static_cast<size_t>(kRowBytes[table]), std::byte{0x21});
    SsdRecordKind kind = SsdRecordKind::kRow;
    if (i % 4 == 3) {
      kind = SsdRecordKind::kTombstone;
      at += EncodeSsdTombstone(place, table, key, sequence, data + at);
    } else {
      at += EncodeSsdRow(place, table, key, sequence, row, data + at);
    }
    entries.push_back({key, static_cast<uint32_t>(i), SsdKindTable(kind, table)});
  }
  if (!close) return chunk;
  const int64_t footer_at = kChunkBytes - SsdFooterBytes(records);
  EncodeSsdPad({kEpoch, chunk_offset + at}, footer_at - at, data + at);
  std::copy_n(std::as_bytes(std::span(entries)).begin(), entries.size() * sizeof(SsdFooterEntry),
              data + footer_at);
  const SsdFooterTrailer trailer =
      MakeSsdFooterTrailer(kEpoch, chunk_offset, kBaseSequence, chunk_offset + at, entries);
  std::memcpy(data + kChunkBytes - sizeof(trailer), &trailer, sizeof(trailer));
  return chunk;
}

}  // namespace

void SsdChunk(const uint8_t* data, size_t size) {
  if (size < 4) return;
  const int64_t chunk_offset = ChunkOffset(data[1]);
  // Where records end: in this chunk, at any byte, or behind it.
  const int64_t end =
      chunk_offset + (data[2] % 4 == 0 ? kChunkBytes + 4096 : int64_t{data[2]} * 64 + data[3]);
  std::string chunk(reinterpret_cast<const char*>(data) + 4, size - 4);
  chunk.resize(kChunkBytes);
  if (data[0] % 2 == 1) {
    FixRecords(chunk_offset, &chunk);
    FixFooter(&chunk);
  }
  const SsdSegmentRef ref = {
      .slot = 0, .epoch = kEpoch, .base_sequence = kBaseSequence, .end_offset = end};
  std::vector<SsdScanned> walked;
  std::vector<SsdScanned> listed;
  std::string damage;
  const absl::Status walk = WalkSsdChunk(kGeometry, ref, chunk_offset, Bytes(chunk), &walked);
  const absl::Status list =
      ListSsdChunk(kGeometry, ref, chunk_offset, Bytes(chunk), &listed, &damage);
  HOTROW_CHECK(!walk.ok() || list.ok());
  for (const auto* records : {&walked, &listed}) {
    int64_t last = SsdFirstRecord(chunk_offset);
    for (const SsdScanned& record : *records) {
      HOTROW_CHECK(record.offset >= last && record.offset < end);
      HOTROW_CHECK(record.bytes >= kSsdTombstoneBytes);
      HOTROW_CHECK(record.table_index() < kRowBytes.size());
      last = record.offset + record.bytes;
      HOTROW_CHECK(last <= chunk_offset + kChunkBytes);
    }
  }
}

void SsdFooter(const uint8_t* data, size_t size) {
  if (size < 2 + sizeof(SsdFooterTrailer)) return;
  std::string tail(reinterpret_cast<const char*>(data) + 2,
                   std::min<size_t>(size - 2, kChunkBytes));
  if (data[0] % 2 == 1) FixFooter(&tail);
  const int64_t chunk_offset = ChunkOffset(data[1]);
  const auto footer = DecodeSsdFooter(Bytes(tail), kEpoch, chunk_offset, kChunkBytes, kRowBytes);
  if (!footer.ok()) {
    HOTROW_CHECK(!footer.status().message().empty());
    return;
  }
  HOTROW_CHECK(SsdFooterBytes(static_cast<int64_t>(footer->entries.size())) <=
               static_cast<int64_t>(tail.size()));
  int64_t offset = SsdFirstRecord(chunk_offset);
  for (const SsdFooterEntry& entry : footer->entries) {
    const int64_t bytes = SsdEntryRecordBytes(entry, kRowBytes);
    HOTROW_CHECK(bytes >= kSsdPadHeaderBytes);
    offset += bytes;
    HOTROW_CHECK(offset <= chunk_offset + kChunkBytes);
  }
}

void SsdManifest(const uint8_t* data, size_t size) {
  if (size < 1) return;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) FixManifest(&text);
  const auto decoded = DecodeSsdManifest(text);
  if (!decoded.ok()) {
    HOTROW_CHECK(!decoded.status().message().empty());
    return;
  }
  const auto again = DecodeSsdManifest(EncodeSsdManifest(decoded->manifest));
  HOTROW_CHECK(again.ok() && again->manifest == decoded->manifest && again->damage.empty());
}

void SsdIndexImage(const uint8_t* data, size_t size) {
  if (size < 1) return;
  std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] % 2 == 1) FixImage(&text);
  test::MemEnv env;
  HOTROW_CHECK(WriteFileAtomically(env, "/index-1", text).ok());
  const auto rows = CheckSsdIndexImage(env, "/index-1", kImageId);
  MemoryBudget budget(int64_t{1} << 20);
  const std::unique_ptr<SsdIndex> index = NewIndex(budget);
  const absl::Status read = ReadSsdIndexImage(env, "/index-1", kImageId, *index);
  if (!read.ok()) return;
  HOTROW_CHECK(rows.ok() && *rows == index->rows());
  int64_t seen = 0;
  for (int64_t p = 0; p < index->num_partitions(); ++p) {
    std::vector<RowKey> keys;
    std::vector<SsdLocation> expected;
    index->ForEach(p, [&](const RowKey& key, SsdLocation location) {
      keys.push_back(key);
      expected.push_back(location);
    });
    std::vector<SsdLocation> found(keys.size());
    index->Find(keys, found);
    HOTROW_CHECK(found == expected);
    seen += static_cast<int64_t>(keys.size());
  }
  HOTROW_CHECK(seen == *rows);
}

std::vector<std::string> SsdChunkCorpus() {
  std::vector<std::string> out = {"", std::string(4, '\0')};
  for (const char fix : {'\0', '\1'}) {
    for (const char where : {'\0', '\1'}) {
      for (const char end : {'\0', '\1', '\x7f', '\xff'}) {
        for (const bool close : {false, true}) {
          out.push_back(std::string({fix, where, end, 8}) +
                        MakeChunk(ChunkOffset(static_cast<uint8_t>(where)), 14, close));
        }
      }
    }
  }
  out.push_back(std::string({1, 1, 0, 0}) + MakeChunk(kChunkBytes, 0, true));
  return out;
}

std::vector<std::string> SsdFooterCorpus() {
  std::vector<std::string> out = {"", std::string(66, '\0')};
  for (const char fix : {'\0', '\1'}) {
    for (const char where : {'\0', '\1'}) {
      for (const int records : {0, 1, 14}) {
        const std::string chunk =
            MakeChunk(ChunkOffset(static_cast<uint8_t>(where)), records, true);
        const auto footer = static_cast<size_t>(SsdFooterBytes(records));
        out.push_back(std::string({fix, where}) + chunk.substr(chunk.size() - footer));
        out.push_back(std::string({fix, where}) + chunk.substr(chunk.size() - footer - 100));
      }
    }
  }
  return out;
}

std::vector<std::string> SsdManifestCorpus() {
  internal::SsdManifest manifest;
  manifest.segment_bytes = kSegmentBytes;
  manifest.chunk_bytes = kChunkBytes;
  manifest.tables = {{0, 16}};
  std::vector<std::string> texts = {EncodeSsdManifest(manifest)};
  manifest.generation = 5;
  manifest.next_epoch = 3;
  manifest.sequence_limit = 100;
  manifest.index_image = 5;
  manifest.payload_bytes_written = 1000;
  manifest.device_bytes_written = 3000;
  manifest.tables = {{0, 16}, {9, 2048}};
  manifest.segments = {{0, 1, 1, 4096, 0}, {3, 2, 50, kSegmentBytes, 77}};
  manifest.snapshots = {{.id = 4, .committed = true, .sequence = 9, .segments = manifest.segments},
                        {.id = 5, .committed = false, .sequence = 9, .segments = {}}};
  texts.push_back(EncodeSsdManifest(manifest));
  std::vector<std::string> out = {""};
  for (const std::string& text : texts) {
    for (const char fix : {'\0', '\1'}) out.push_back(std::string(1, fix) + text);
  }
  return out;
}

std::vector<std::string> SsdIndexImageCorpus() {
  std::vector<std::string> out = {""};
  for (const int rows : {0, 1, 300}) {
    MemoryBudget budget(int64_t{1} << 20);
    const std::unique_ptr<SsdIndex> index = NewIndex(budget);
    std::vector<RowKey> keys;
    for (int i = 0; i < rows; ++i) {
      keys.push_back({static_cast<uint64_t>(i), static_cast<uint32_t>(i % 3)});
    }
    const auto result =
        index->Upsert(keys, [](size_t i, SsdLocation) { return static_cast<SsdLocation>(i * 7); });
    HOTROW_CHECK(result.status.ok());
    test::MemEnv env;
    HOTROW_CHECK(WriteSsdIndexImage(env, "/index-1", kImageId, *index).ok());
    const auto text = ReadWholeFile(env, "/index-1", 1 << 30);
    HOTROW_CHECK(text.ok());
    for (const char fix : {'\0', '\1'}) out.push_back(std::string(1, fix) + *text);
  }
  return out;
}

}  // namespace hotrow::fuzz
