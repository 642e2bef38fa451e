#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/crc32c.h"
#include "base/exec_context.h"
#include "base/row_line_fields.h"
#include "base/status_macros.h"
#include "models/delta/delta_rows.h"
#include "models/delta/delta_rows_impl.h"
#include "models/saving/portable_tables_impl.h"

namespace hotrow {
namespace {

constexpr int64_t kBlockBytes = int64_t{64} << 10;

}  // namespace

struct DeltaRowsWriter::Impl {
  struct Table {
    RowLayout layout;
    PortableColumn weights;  // from a row to floats
    int64_t state_bytes = 0;
  };

  std::unique_ptr<File> file;
  DeltaForm form;
  std::vector<Table> tables;
  DeltaPart part;
  uint32_t blocks_crc = 0;
  uint64_t num_blocks = 0;
  std::optional<RowKey> last;

  // The block that is being filled. Tables follow one another, so it has one.
  uint32_t table = 0;
  std::vector<uint64_t> keys;
  std::vector<uint64_t> erased;
  std::vector<uint32_t> last_steps;
  std::vector<float> scores;  // where the table keeps them
  std::vector<float> weights;
  std::vector<std::byte> state;
  std::vector<std::byte> body;
  std::vector<const float*> rows;

  absl::Status Write(std::span<const std::byte> bytes) {
    HOTROW_RETURN_IF_ERROR(WriteFull(*file, part.bytes, bytes));
    part.crc = Crc32c(bytes, part.crc);
    part.bytes += std::ssize(bytes);
    return absl::OkStatus();
  }
  absl::Status Begin(const RowKey& key);
  absl::Status EndBlock();
  int64_t staged_bytes() const {
    return 8 * std::ssize(keys) + 8 * std::ssize(erased) + 4 * std::ssize(last_steps) +
           4 * std::ssize(scores) + 4 * std::ssize(weights) + std::ssize(state);
  }
};

// Checks that the key may follow, and makes room in a block of its table.
absl::Status DeltaRowsWriter::Impl::Begin(const RowKey& key) {
  if (key.table >= tables.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file->path(), ": a row of table ", key.table, ", there are ", tables.size()));
  }
  if (last.has_value() && !ComesBefore(*last, key)) {
    return absl::InvalidArgumentError(
        absl::StrCat(file->path(), ": key ", key.key, " of table ", key.table, " comes after key ",
                     last->key, " of table ", last->table, "; entries must ascend"));
  }
  if (key.table != table || staged_bytes() >= kBlockBytes) HOTROW_RETURN_IF_ERROR(EndBlock());
  table = key.table;
  last = key;
  return absl::OkStatus();
}

absl::Status DeltaRowsWriter::Impl::EndBlock() {
  if (keys.empty() && erased.empty()) return absl::OkStatus();
  const Table& t = tables[table];
  const auto num_rows = std::ssize(keys);
  const int64_t encoded = num_rows * ExchangeRowBytes(form.precision, t.layout.dim);
  body.resize(static_cast<size_t>(8 * num_rows + 8 * std::ssize(erased) + 4 * num_rows +
                                  4 * std::ssize(scores) + encoded + std::ssize(state)));
  std::byte* at = body.data();
  const auto put = [&](const void* from, int64_t bytes) {
    if (bytes > 0) std::memcpy(at, from, static_cast<size_t>(bytes));
    at += bytes;
  };
  put(keys.data(), 8 * num_rows);
  put(erased.data(), 8 * std::ssize(erased));
  put(last_steps.data(), 4 * num_rows);
  put(scores.data(), 4 * std::ssize(scores));
  if (num_rows > 0) {
    rows.clear();
    for (int64_t i = 0; i < num_rows; ++i) rows.push_back(weights.data() + i * t.layout.dim);
    const RowRun run = {.end = num_rows, .dim = t.layout.dim};
    HOTROW_RETURN_IF_ERROR(
        EncodeRows(ExecContext(),
                   {.type = form.precision, .runs = {&run, 1}, .rows = rows.data(), .out = at}));
  }
  at += encoded;
  put(state.data(), std::ssize(state));

  internal::DeltaBlock head = {};
  std::memcpy(head.magic, internal::kDeltaBlockMagic, sizeof(head.magic));
  head.table = table;
  head.block_index = num_blocks++;
  head.num_rows = static_cast<uint32_t>(num_rows);
  head.num_erased = static_cast<uint32_t>(erased.size());
  head.body_bytes = body.size();
  head.body_crc = Crc32c(body);
  const std::span head_bytes = std::as_bytes(std::span(&head, 1));
  head.crc = Crc32c(head_bytes.first(offsetof(internal::DeltaBlock, crc)));
  blocks_crc = Crc32c(head_bytes, blocks_crc);
  HOTROW_RETURN_IF_ERROR(Write(head_bytes));
  HOTROW_RETURN_IF_ERROR(Write(body));
  part.rows[table] += num_rows;
  part.erased[table] += std::ssize(erased);
  keys.clear();
  erased.clear();
  last_steps.clear();
  scores.clear();
  weights.clear();
  state.clear();
  return absl::OkStatus();
}

DeltaRowsWriter::DeltaRowsWriter(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeltaRowsWriter::~DeltaRowsWriter() = default;

absl::StatusOr<std::unique_ptr<DeltaRowsWriter>> DeltaRowsWriter::Create(
    Env& env, const std::string& dir, const std::string& name, const DeltaFileId& id,
    const DeltaForm& form, const std::vector<DeltaTable>& tables) {
  auto impl = std::make_unique<Impl>();
  impl->form = form;
  impl->part.file = name;
  impl->part.rows.resize(tables.size());
  impl->part.erased.resize(tables.size());
  HOTROW_ASSIGN_OR_RETURN(impl->file, env.Open(absl::StrCat(dir, "/", name), OpenMode::kTruncate));
  std::vector<internal::DeltaTableEntry> entries;
  for (const DeltaTable& table : tables) {
    Impl::Table out;
    out.layout = table.layout();
    // Keys come first, then the weights.
    out.weights = PortableColumnsOf(out.layout, table.optimizer)[1];
    out.state_bytes = form.state ? int64_t{4} * out.layout.state_floats : 0;
    entries.push_back({.dim = static_cast<uint32_t>(table.dim),
                       .state_floats = static_cast<uint32_t>(out.state_bytes / 4),
                       .scored = table.scored ? 1u : 0u,
                       .reserved = 0});
    impl->tables.push_back(std::move(out));
  }
  internal::DeltaPrefix prefix = {};
  std::memcpy(prefix.magic, internal::kDeltaRowsMagic, sizeof(prefix.magic));
  prefix.version = internal::kDeltaRowsVersion;
  const std::span prefix_bytes = std::as_bytes(std::span(&prefix, 1));
  prefix.crc = Crc32c(prefix_bytes.first(offsetof(internal::DeltaPrefix, crc)));
  internal::DeltaHeader header = {};
  header.base_high = id.base.high;
  header.base_low = id.base.low;
  header.sequence = static_cast<uint64_t>(id.sequence);
  header.part = static_cast<uint32_t>(id.part);
  header.num_parts = static_cast<uint32_t>(id.num_parts);
  header.num_tables = static_cast<uint32_t>(tables.size());
  header.form = internal::DeltaFormBits(form);
  header.tables_crc = Crc32c(std::as_bytes(std::span(entries)));
  const std::span header_bytes = std::as_bytes(std::span(&header, 1));
  header.crc = Crc32c(header_bytes.first(offsetof(internal::DeltaHeader, crc)));
  HOTROW_RETURN_IF_ERROR(impl->Write(prefix_bytes));
  HOTROW_RETURN_IF_ERROR(impl->Write(header_bytes));
  HOTROW_RETURN_IF_ERROR(impl->Write(std::as_bytes(std::span(entries))));
  return std::unique_ptr<DeltaRowsWriter>(new DeltaRowsWriter(std::move(impl)));
}

absl::Status DeltaRowsWriter::Add(const RowKey& key, std::span<const std::byte> row) {
  HOTROW_RETURN_IF_ERROR(impl_->Begin(key));
  const Impl::Table& table = impl_->tables[key.table];
  const RowLayout& layout = table.layout;
  if (std::ssize(row) != layout.row_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(impl_->file->path(), ": a row of ", row.size(),
                                                   " bytes in table ", key.table,
                                                   ", whose rows have ", layout.row_bytes));
  }
  impl_->keys.push_back(key.key);
  const RowMark mark = layout.line_fields().Mark(row.data());
  impl_->last_steps.push_back(mark.last_step);
  if (layout.scored()) impl_->scores.push_back(mark.score);
  const size_t at = impl_->weights.size();
  impl_->weights.resize(at + static_cast<size_t>(layout.dim));
  HOTROW_RETURN_IF_ERROR(
      ToFile(table.weights, row.data(), reinterpret_cast<std::byte*>(impl_->weights.data() + at)));
  const auto state =
      row.subspan(static_cast<size_t>(layout.state_offset), static_cast<size_t>(table.state_bytes));
  impl_->state.insert(impl_->state.end(), state.begin(), state.end());
  return absl::OkStatus();
}

absl::Status DeltaRowsWriter::AddErased(const RowKey& key) {
  HOTROW_RETURN_IF_ERROR(impl_->Begin(key));
  impl_->erased.push_back(key.key);
  return absl::OkStatus();
}

absl::StatusOr<DeltaPart> DeltaRowsWriter::Finish() {
  HOTROW_RETURN_IF_ERROR(impl_->EndBlock());
  internal::DeltaFooter footer = {};
  std::memcpy(footer.magic, internal::kDeltaFooterMagic, sizeof(footer.magic));
  footer.blocks_crc = impl_->blocks_crc;
  for (const int64_t rows : impl_->part.rows) footer.num_rows += static_cast<uint64_t>(rows);
  for (const int64_t rows : impl_->part.erased) footer.num_erased += static_cast<uint64_t>(rows);
  footer.num_blocks = impl_->num_blocks;
  const std::span bytes = std::as_bytes(std::span(&footer, 1));
  footer.crc = Crc32c(bytes.first(offsetof(internal::DeltaFooter, crc)));
  HOTROW_RETURN_IF_ERROR(impl_->Write(bytes));
  HOTROW_RETURN_IF_ERROR(impl_->file->Sync());
  HOTROW_RETURN_IF_ERROR(impl_->file->Close());
  return std::move(impl_->part);
}

}  // namespace hotrow
