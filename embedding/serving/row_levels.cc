#include <algorithm>
#include <cstring>
#include <numeric>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/crc32c.h"
#include "base/format_version.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "embedding/serving/row_levels_impl.h"

namespace hotrow::internal {
namespace {

// Fewer are not worth a merge: each row is written once more by it.
constexpr size_t kMergedMin = 4;
// With so many levels all of them become one.
constexpr size_t kLevelsMany = 12;
// Levels that have this part of all rows are merged with them: each of their rows then costs the
// writing of five, and their filters have half the bytes of that of all rows.
constexpr int64_t kAllRowsShare = 4;

constexpr FormatVersions kLevelsVersions = {.first = 1, .last = 1};
constexpr char kLevelsMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'L', 'V'};

// Offset 0; for each table LevelsTable and its files' ids follow. docs/formats/serving_rows.md.
struct LevelsHeader {
  char magic[8];
  uint32_t version;
  uint32_t tables;
  uint64_t id[2];  // high word first
  uint64_t bytes;  // of what follows
  uint32_t body_crc;
  uint32_t crc;  // of the bytes before
};
static_assert(sizeof(LevelsHeader) == 48 && offsetof(LevelsHeader, crc) == 44);

struct LevelsTable {
  int64_t rows;
  uint32_t age_line;
  uint32_t files;
};
static_assert(sizeof(LevelsTable) == 16);

uint32_t HeaderCrc(const LevelsHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).subspan(0, offsetof(LevelsHeader, crc)));
}

template <typename T>
void Append(const T& value, std::string* text) {
  text->append(reinterpret_cast<const char*>(&value), sizeof(value));
}

// Takes a value off the front; false: there are not so many bytes.
template <typename T>
bool Take(std::string_view* text, T* value) {
  if (text->size() < sizeof(T)) return false;
  std::memcpy(value, text->data(), sizeof(T));
  text->remove_prefix(sizeof(T));
  return true;
}

bool ParseTables(std::string_view body, size_t tables, LevelsManifest* out) {
  for (size_t t = 0; t < tables; ++t) {
    LevelsTable table;
    if (!Take(&body, &table) || table.rows < 0 || table.files == 0 || table.files > body.size()) {
      return false;
    }
    out->tables.push_back({.rows = table.rows, .age_line = table.age_line, .files = {}});
    for (uint32_t f = 0; f < table.files; ++f) {
      uint64_t id[2];
      if (!Take(&body, &id)) return false;
      out->tables.back().files.push_back({.hi = id[0], .lo = id[1]});
    }
  }
  return body.empty();
}

}  // namespace

size_t LevelsToMerge(std::span<const int64_t> rows) {
  const size_t levels = rows.size() - 1;
  if (levels == 0) return 0;
  const int64_t in_levels = std::accumulate(rows.begin(), rows.end() - 1, int64_t{0});
  if (in_levels * kAllRowsShare >= rows.back()) return rows.size();
  if (levels >= kLevelsMany) return levels;
  int64_t newer = rows[0];
  size_t count = 1;
  while (count < levels && rows[count] <= newer) newer += rows[count++];
  return count >= kMergedMin ? count : 0;
}

absl::Status WriteLevelsManifest(Env& env, const std::string& dir, const LevelsManifest& levels) {
  std::string body;
  for (const LevelsManifest::Table& table : levels.tables) {
    Append(LevelsTable{.rows = table.rows,
                       .age_line = table.age_line,
                       .files = static_cast<uint32_t>(table.files.size())},
           &body);
    for (const Hash128& id : table.files) {
      Append(id.hi, &body);
      Append(id.lo, &body);
    }
  }
  LevelsHeader header = {.version = kLevelsVersions.last,
                         .tables = static_cast<uint32_t>(levels.tables.size()),
                         .id = {levels.id.hi, levels.id.lo},
                         .bytes = body.size(),
                         .body_crc = Crc32c(std::as_bytes(std::span(body)))};
  std::memcpy(header.magic, kLevelsMagic, sizeof(header.magic));
  header.crc = HeaderCrc(header);
  std::string text;
  Append(header, &text);
  return WriteFileAtomically(env, absl::StrCat(dir, "/", kLevelsName), text + body);
}

absl::StatusOr<std::optional<LevelsManifest>> ReadLevelsManifest(Env& env, const std::string& dir) {
  const std::string path = absl::StrCat(dir, "/", kLevelsName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return std::nullopt;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  std::string_view body = text;
  const absl::Status damaged = absl::DataLossError(
      absl::StrCat(path, ": is damaged; remove the file, so that the rows are written again"));
  LevelsHeader header;
  if (!Take(&body, &header) || std::memcmp(header.magic, kLevelsMagic, sizeof(header.magic)) != 0 ||
      header.crc != HeaderCrc(header)) {
    return damaged;
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(path, "list of levels", header.version, kLevelsVersions));
  LevelsManifest out = {.id = {.hi = header.id[0], .lo = header.id[1]}, .tables = {}};
  if (header.bytes != body.size() || header.body_crc != Crc32c(std::as_bytes(std::span(body))) ||
      !ParseTables(body, header.tables, &out)) {
    return damaged;
  }
  return out;
}

// --- Reading in order

RowFileScanner::~RowFileScanner() {
  if (!piece_.empty()) share_->Return(&piece_);
}

absl::StatusOr<std::unique_ptr<RowFileScanner>> RowFileScanner::Create(
    std::shared_ptr<const RowFile> file, int64_t piece_bytes, BudgetShare* share) {
  std::unique_ptr<RowFileScanner> out(new RowFileScanner(std::move(file), share));
  const int64_t block_bytes = out->file_->block_bytes();
  const int64_t bytes = std::max(piece_bytes / block_bytes, int64_t{1}) * block_bytes;
  // Transfers begin at a multiple of the sector.
  HOTROW_RETURN_IF_ERROR(
      share->Take(bytes + kRowFileSectorBytes, "a buffer for merging rows", &out->piece_));
  const auto address = reinterpret_cast<uintptr_t>(out->piece_.data());
  out->begin_ = out->piece_.data() + (-address & (kRowFileSectorBytes - 1));
  HOTROW_RETURN_IF_ERROR(out->NextBlock());
  return out;
}

absl::Status RowFileScanner::Next() {
  return ++row_ < RowFile::RowsOf(block_) ? absl::OkStatus() : NextBlock();
}

absl::Status RowFileScanner::NextBlock() {
  row_ = 0;
  do {
    if (blocks_ > 0) {
      --blocks_;
      block_ += file_->block_bytes();
      continue;
    }
    block_ = nullptr;
    if (next_ == file_->blocks()) return absl::OkStatus();
    const auto room = static_cast<size_t>(piece_.size() - kRowFileSectorBytes);
    HOTROW_ASSIGN_OR_RETURN(blocks_, file_->ReadBlocks(next_, {begin_, room}));
    next_ += blocks_--;
    block_ = begin_;
  } while (RowFile::RowsOf(block_) == 0);
  return absl::OkStatus();
}

}  // namespace hotrow::internal
