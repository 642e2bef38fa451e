#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/exec_context.h"
#include "base/format_version.h"
#include "base/status_macros.h"
#include "models/delta/delta_damage_impl.h"
#include "models/delta/delta_rows.h"
#include "models/delta/delta_rows_impl.h"
#include "models/saving/portable_tables_impl.h"

namespace hotrow {
namespace {

constexpr FormatVersions kVersions = {.first = internal::kDeltaRowsVersion,
                                      .last = internal::kDeltaRowsVersion};
// The limit of a block. A writer ends one behind 64 KiB, so only a row may be longer.
constexpr int64_t kBodyBytesMax = int64_t{1} << 31;

// The CRC of a struct, which stands in its last four bytes.
template <typename T>
bool HasItsCrc(const T& value) {
  const std::span bytes = std::as_bytes(std::span(&value, 1));
  return Crc32c(bytes.first(offsetof(T, crc))) == value.crc;
}

}  // namespace

struct DeltaRowsReader::Impl {
  struct Table {
    RowLayout layout;
    PortableColumn weights;  // from floats to a row
    int64_t state_bytes = 0;
    int64_t encoded_bytes = 0;  // weights of a row
  };

  Env* env = nullptr;
  std::string path;
  DeltaForm form;
  std::vector<Table> tables;
  DeltaPart expected;

  int64_t offset = 0;  // of what is read next
  uint32_t crc = 0;
  uint32_t blocks_crc = 0;
  uint64_t num_blocks = 0;
  std::vector<int64_t> rows;    // by table
  std::vector<int64_t> erased;  // by table

  // The present block. The row at `at_row` or the tombstone at `at_erased` is the present entry,
  // whichever key is less.
  uint32_t table = 0;
  std::vector<std::byte> body;
  int64_t block_offset = 0;
  int64_t num_rows = 0;
  int64_t num_erased = 0;
  int64_t at_row = 0;
  int64_t at_erased = 0;
  const std::byte* row_keys = nullptr;
  const std::byte* erased_keys = nullptr;
  const std::byte* last_steps = nullptr;
  const std::byte* scores = nullptr;
  const std::byte* weights = nullptr;
  const std::byte* state = nullptr;

  bool done = false;
  RowKey key;
  bool is_erased = false;
  std::optional<RowKey> last;  // the entry before
  std::vector<float> floats;
  std::vector<std::byte> row;

  absl::Status Damaged(int64_t at, std::string_view what) const {
    return DeltaDamaged(path, absl::StrCat("offset ", at, ": ", std::string(what)));
  }
  absl::Status ReadHead(const DeltaFileId& id);
  absl::Status Take(File& file, std::span<std::byte> bytes) {
    HOTROW_RETURN_IF_ERROR(ReadFull(file, offset, bytes));
    crc = Crc32c(bytes, crc);
    offset += std::ssize(bytes);
    return absl::OkStatus();
  }
  absl::Status NextBlock();
  absl::Status CheckEnd(const internal::DeltaFooter& footer);
  absl::Status ToEntry();
  absl::Status MakeRow();
  static uint64_t KeyAt(const std::byte* keys, int64_t i) {
    uint64_t out = 0;
    std::memcpy(&out, keys + 8 * i, sizeof(out));
    return out;
  }
};

absl::Status DeltaRowsReader::Impl::ReadHead(const DeltaFileId& id) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env->Exists(path));
  if (!exists) return DeltaDamaged(path, "there is no such file");
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env->Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size != expected.bytes) {
    return DeltaDamaged(path,
                        absl::StrCat("it has ", size, " bytes, its manifest says ", expected.bytes,
                                     size < expected.bytes ? ": it was cut off" : ""));
  }
  const auto min_bytes = static_cast<int64_t>(
      sizeof(internal::DeltaPrefix) + sizeof(internal::DeltaHeader) +
      tables.size() * sizeof(internal::DeltaTableEntry) + sizeof(internal::DeltaFooter));
  if (size < min_bytes) {
    return DeltaDamaged(path, absl::StrCat("it has ", size, " bytes, at least ", min_bytes));
  }
  internal::DeltaPrefix prefix;
  HOTROW_RETURN_IF_ERROR(Take(*file, std::as_writable_bytes(std::span(&prefix, 1))));
  if (std::memcmp(prefix.magic, internal::kDeltaRowsMagic, sizeof(prefix.magic)) != 0) {
    return Damaged(0, "it is no file of a delta's rows");
  }
  if (!HasItsCrc(prefix)) return Damaged(0, "the checksum of its prefix differs");
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(path, "rows of a delta of version", prefix.version, kVersions));
  internal::DeltaHeader header;
  const int64_t header_at = offset;
  HOTROW_RETURN_IF_ERROR(Take(*file, std::as_writable_bytes(std::span(&header, 1))));
  if (!HasItsCrc(header)) return Damaged(header_at, "the checksum of its header differs");
  const UniqueId base = {.high = header.base_high, .low = header.base_low};
  if (!(base == id.base)) {
    return DeltaOfAnotherChain(
        path, absl::StrCat("it is of the chain ", base.ToHex(), ", this one is ", id.base.ToHex()));
  }
  if (header.sequence != static_cast<uint64_t>(id.sequence) ||
      header.part != static_cast<uint32_t>(id.part) ||
      header.num_parts != static_cast<uint32_t>(id.num_parts)) {
    return DeltaDamaged(
        path, absl::StrCat("it is part ", header.part, " of ", header.num_parts, " of delta ",
                           header.sequence, ", expected part ", id.part, " of ", id.num_parts,
                           " of delta ", id.sequence));
  }
  if (header.num_tables != tables.size() || header.form != internal::DeltaFormBits(form)) {
    return DeltaOfAnotherChain(
        path, absl::StrCat("it has ", header.num_tables, " tables in form ", header.form,
                           ", expected ", tables.size(), " in ", internal::DeltaFormBits(form)));
  }
  std::vector<internal::DeltaTableEntry> entries(tables.size());
  const int64_t entries_at = offset;
  HOTROW_RETURN_IF_ERROR(Take(*file, std::as_writable_bytes(std::span(entries))));
  if (Crc32c(std::as_bytes(std::span(entries))) != header.tables_crc) {
    return Damaged(entries_at, "the checksum of its tables differs");
  }
  for (size_t t = 0; t < tables.size(); ++t) {
    const auto dim = static_cast<uint32_t>(tables[t].layout.dim);
    const auto state_floats = static_cast<uint32_t>(tables[t].state_bytes / 4);
    const bool scored = tables[t].layout.scored();
    if (entries[t].scored != (scored ? 1 : 0)) {
      return DeltaOfAnotherChain(
          path, absl::StrCat("rows of table ", t, entries[t].scored != 0 ? " have" : " have no",
                             " scores, expected ", scored ? "some" : "none"));
    }
    if (entries[t].dim == dim && entries[t].state_floats == state_floats) continue;
    return DeltaOfAnotherChain(
        path,
        absl::StrCat("table ", t, " has ", entries[t].dim, " columns and ", entries[t].state_floats,
                     " floats of state, expected ", dim, " and ", state_floats));
  }
  return absl::OkStatus();
}

// Reads the block at `offset`, or the footer.
absl::Status DeltaRowsReader::Impl::NextBlock() {
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, env->Open(path, OpenMode::kRead));
  internal::DeltaBlock head;
  block_offset = offset;
  const std::span head_bytes = std::as_writable_bytes(std::span(&head, 1));
  if (expected.bytes - offset < std::ssize(head_bytes)) {
    return Damaged(offset, "neither a block nor the end of the file's rows");
  }
  HOTROW_RETURN_IF_ERROR(Take(*file, head_bytes));
  if (std::memcmp(head.magic, internal::kDeltaFooterMagic, sizeof(head.magic)) == 0) {
    internal::DeltaFooter footer;
    std::memcpy(&footer, &head, sizeof(footer));
    return CheckEnd(footer);
  }
  if (std::memcmp(head.magic, internal::kDeltaBlockMagic, sizeof(head.magic)) != 0) {
    return Damaged(block_offset, "neither a block nor the end of the file's rows");
  }
  if (!HasItsCrc(head)) return Damaged(block_offset, "the checksum of a block's head differs");
  blocks_crc = Crc32c(head_bytes, blocks_crc);
  if (head.block_index != num_blocks) {
    return Damaged(block_offset,
                   absl::StrCat("block ", head.block_index, ", expected block ", num_blocks));
  }
  ++num_blocks;
  if (head.table >= tables.size()) {
    return Damaged(block_offset,
                   absl::StrCat("a block of table ", head.table, ", there are ", tables.size()));
  }
  table = head.table;
  const Table& t = tables[table];
  num_rows = head.num_rows;
  num_erased = head.num_erased;
  const int64_t score_bytes = t.layout.scored() ? 4 : 0;
  const int64_t body_bytes =
      num_rows * (8 + 4 + score_bytes + t.encoded_bytes + t.state_bytes) + 8 * num_erased;
  const int64_t left =
      expected.bytes - offset - static_cast<int64_t>(sizeof(internal::DeltaFooter));
  if (num_rows + num_erased == 0 || body_bytes > left || body_bytes > kBodyBytesMax ||
      head.body_bytes != static_cast<uint64_t>(body_bytes)) {
    return Damaged(block_offset, absl::StrCat("a block of ", head.body_bytes, " bytes, with ",
                                              num_rows, " rows and ", num_erased,
                                              " tombstones, where ", left, " are left"));
  }
  body.resize(static_cast<size_t>(body_bytes));
  const int64_t body_at = offset;
  HOTROW_RETURN_IF_ERROR(Take(*file, body));
  if (Crc32c(body) != head.body_crc) return Damaged(body_at, "the checksum of a block differs");
  row_keys = body.data();
  erased_keys = row_keys + 8 * num_rows;
  last_steps = erased_keys + 8 * num_erased;
  scores = last_steps + 4 * num_rows;
  weights = scores + score_bytes * num_rows;
  state = weights + num_rows * t.encoded_bytes;
  at_row = at_erased = 0;
  rows[table] += num_rows;
  erased[table] += num_erased;
  row.resize(static_cast<size_t>(t.layout.row_bytes));
  floats.resize(static_cast<size_t>(t.layout.dim));
  return absl::OkStatus();
}

absl::Status DeltaRowsReader::Impl::CheckEnd(const internal::DeltaFooter& footer) {
  if (!HasItsCrc(footer)) return Damaged(block_offset, "the checksum of its footer differs");
  uint64_t sum_rows = 0;
  uint64_t sum_erased = 0;
  for (const int64_t n : rows) sum_rows += static_cast<uint64_t>(n);
  for (const int64_t n : erased) sum_erased += static_cast<uint64_t>(n);
  if (footer.blocks_crc != blocks_crc || footer.num_blocks != num_blocks ||
      footer.num_rows != sum_rows || footer.num_erased != sum_erased) {
    return Damaged(block_offset,
                   absl::StrCat("its footer says ", footer.num_blocks, " blocks, ", footer.num_rows,
                                " rows and ", footer.num_erased, " tombstones, found ", num_blocks,
                                ", ", sum_rows, " and ", sum_erased));
  }
  if (offset != expected.bytes) return Damaged(offset, "bytes follow its end");
  if (crc != expected.crc) {
    return DeltaDamaged(path, "its checksum is not that of its manifest: it is another file");
  }
  if (rows != expected.rows || erased != expected.erased) {
    return DeltaDamaged(path, "it has other numbers of rows or tombstones than its manifest says");
  }
  done = true;
  return absl::OkStatus();
}

// Makes the next entry the present one, from the next block where this one has ended.
absl::Status DeltaRowsReader::Impl::ToEntry() {
  if (at_row == num_rows && at_erased == num_erased) {
    HOTROW_RETURN_IF_ERROR(NextBlock());
    if (done) return absl::OkStatus();
  }
  const bool has_row = at_row < num_rows;
  const bool has_erased = at_erased < num_erased;
  const uint64_t row_key = has_row ? KeyAt(row_keys, at_row) : 0;
  const uint64_t erased_key = has_erased ? KeyAt(erased_keys, at_erased) : 0;
  is_erased = !has_row || (has_erased && erased_key < row_key);
  key = {.key = is_erased ? erased_key : row_key, .table = table};
  if (last.has_value() && !ComesBefore(*last, key)) {
    return Damaged(block_offset,
                   absl::StrCat("key ", key.key, " of table ", key.table, " comes after key ",
                                last->key, " of table ", last->table, ", entries must ascend"));
  }
  last = key;
  return is_erased ? absl::OkStatus() : MakeRow();
}

absl::Status DeltaRowsReader::Impl::MakeRow() {
  const Table& t = tables[table];
  std::fill(row.begin(), row.end(), std::byte{0});  // padding
  const RowRun run = {.end = 1, .dim = t.layout.dim};
  float* const to = floats.data();
  HOTROW_RETURN_IF_ERROR(DecodeRows(ExecContext(), {.type = form.precision,
                                                    .runs = {&run, 1},
                                                    .in = weights + at_row * t.encoded_bytes,
                                                    .rows = &to}));
  HOTROW_RETURN_IF_ERROR(
      ToRow(t.weights, reinterpret_cast<const std::byte*>(floats.data()), row.data()));
  if (t.state_bytes > 0) {
    std::memcpy(row.data() + t.layout.state_offset, state + at_row * t.state_bytes,
                static_cast<size_t>(t.state_bytes));
  }
  std::memcpy(row.data() + t.layout.step_offset, last_steps + 4 * at_row, sizeof(uint32_t));
  if (t.layout.scored()) {
    std::memcpy(row.data() + t.layout.score_offset, scores + 4 * at_row, sizeof(float));
  }
  return absl::OkStatus();
}

DeltaRowsReader::DeltaRowsReader(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeltaRowsReader::~DeltaRowsReader() = default;

absl::StatusOr<std::unique_ptr<DeltaRowsReader>> DeltaRowsReader::Open(
    Env& env, const std::string& dir, const DeltaPart& part, const DeltaFileId& id,
    const DeltaForm& form, const std::vector<DeltaTable>& tables) {
  auto impl = std::make_unique<Impl>();
  impl->env = &env;
  impl->path = absl::StrCat(dir, "/", part.file);
  impl->form = form;
  impl->expected = part;
  impl->rows.resize(tables.size());
  impl->erased.resize(tables.size());
  for (const DeltaTable& table : tables) {
    Impl::Table out;
    out.layout = table.layout_read(form);
    out.weights =
        PortableColumnsOf(out.layout, form.state ? table.optimizer : SparseOptimizerKind::kSgd)[1];
    out.state_bytes = int64_t{4} * out.layout.state_floats;
    out.encoded_bytes = ExchangeRowBytes(form.precision, table.dim);
    impl->tables.push_back(std::move(out));
  }
  HOTROW_RETURN_IF_ERROR(impl->ReadHead(id));
  HOTROW_RETURN_IF_ERROR(impl->ToEntry());
  return std::unique_ptr<DeltaRowsReader>(new DeltaRowsReader(std::move(impl)));
}

bool DeltaRowsReader::done() const { return impl_->done; }
const RowKey& DeltaRowsReader::key() const { return impl_->key; }
bool DeltaRowsReader::erased() const { return impl_->is_erased; }
std::span<const std::byte> DeltaRowsReader::row() const { return impl_->row; }
const std::string& DeltaRowsReader::path() const { return impl_->path; }

absl::Status DeltaRowsReader::Next() {
  ++(impl_->is_erased ? impl_->at_erased : impl_->at_row);
  return impl_->ToEntry();
}

}  // namespace hotrow
