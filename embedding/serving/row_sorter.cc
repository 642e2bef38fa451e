#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "embedding/serving/row_sorter_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kWordBytes = 8;
// A run is read in pieces of this size: the kernel reads ahead, so larger ones would only take
// memory of other runs.
constexpr int64_t kPieceBytes = int64_t{16} << 10;
// Places are 32-bit numbers of words.
constexpr int64_t kArenaBytesMax = int64_t{32} << 30;
constexpr uint32_t kKindBits = 2;

}  // namespace

RowSorter::RowSorter(const Options& options)
    : options_(options), rows_max_(options.row_bytes.size()) {
  for (const int64_t bytes : options_.row_bytes) {
    longest_ =
        std::max(longest_, RoundUp(static_cast<int64_t>(sizeof(RecordHeader)) + bytes, kWordBytes));
  }
  piece_bytes_ = std::max(
      kPieceBytes, RoundUp(static_cast<int64_t>(sizeof(PieceHeader)) + longest_, kWordBytes));
}

RowSorter::~RowSorter() {
  if (!arena_.empty()) options_.share->Return(&arena_);
  if (!row_.empty()) options_.share->Return(&row_);
  if (file_ == nullptr) return;
  file_.reset();
  // The next sorter overwrites it.
  Caught("", [this] { return options_.env->Remove(options_.path); }).IgnoreError();
}

absl::StatusOr<std::unique_ptr<RowSorter>> RowSorter::Create(const Options& options) {
  std::unique_ptr<RowSorter> out(new RowSorter(options));
  // A few records at least, and pieces of two runs.
  const int64_t least =
      std::max(4 * (out->longest_ + static_cast<int64_t>(sizeof(Entry))), 2 * out->piece_bytes_);
  const int64_t bytes =
      RoundUp(std::clamp(options.memory_bytes, least, kArenaBytesMax), kWordBytes);
  HOTROW_RETURN_IF_ERROR(options.share->Take(bytes, "sorting rows for a disk", &out->arena_));
  HOTROW_RETURN_IF_ERROR(options.share->Take(out->longest_, "a row", &out->row_));
  return out;
}

int64_t RowSorter::RecordBytes(uint32_t table_kind) const {
  const int64_t row = static_cast<Kind>(table_kind & 3) == Kind::kErase
                          ? 0
                          : options_.row_bytes[table_kind >> kKindBits];
  return RoundUp(static_cast<int64_t>(sizeof(RecordHeader)) + row, kWordBytes);
}

absl::Status RowSorter::Put(Kind kind, const RowKey& key, const std::byte* row) {
  const uint32_t table_kind = key.table << kKindBits | static_cast<uint32_t>(kind);
  const int64_t bytes = RecordBytes(table_kind);
  const int64_t entries_bytes = (num_entries_ + 1) * static_cast<int64_t>(sizeof(Entry));
  if (used_ + bytes + entries_bytes > arena_.size()) HOTROW_RETURN_IF_ERROR(Spill());
  std::byte* const at = arena_.data() + used_;
  const RecordHeader header = {.key = key.key, .table_kind = table_kind, .reserved = 0};
  std::memcpy(at, &header, sizeof(header));
  if (kind != Kind::kErase) {
    std::memcpy(at + sizeof(header), row, static_cast<size_t>(options_.row_bytes[key.table]));
    ++rows_max_[key.table];
  }
  ++num_entries_;
  *entries() = {.hash = Mix64(key.key),
                .table_kind = table_kind,
                .place = static_cast<uint32_t>(used_ / kWordBytes)};
  used_ += bytes;
  return absl::OkStatus();
}

void RowSorter::Sort() {
  std::sort(entries(), entries() + num_entries_, [](const Entry& a, const Entry& b) {
    const uint32_t table_a = a.table_kind >> kKindBits;
    const uint32_t table_b = b.table_kind >> kKindBits;
    if (table_a != table_b) return table_a < table_b;
    return a.hash != b.hash ? a.hash < b.hash : a.place < b.place;
  });
}

absl::Status RowSorter::Spill() {
  if (std::ssize(runs_) + 1 > arena_.size() / piece_bytes_) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "memory_bytes: ", arena_.size(), " bytes for sorting rows can merge ", runs_.size(),
        " parts, and there are more rows than these have; give more memory"));
  }
  if (file_ == nullptr) {
    HOTROW_ASSIGN_OR_RETURN(file_, options_.env->Open(options_.path, OpenMode::kTruncate));
  }
  Sort();
  Run run = {.begin = file_bytes_};
  HostBuffer<std::byte> piece;
  HOTROW_RETURN_IF_ERROR(options_.share->Take(piece_bytes_, "sorting rows for a disk", &piece));
  absl::Status status;
  auto filled = static_cast<int64_t>(sizeof(PieceHeader));
  const auto write = [&] {
    PieceHeader header = {.crc = 0, .bytes = static_cast<uint32_t>(filled)};
    std::memcpy(piece.data(), &header, sizeof(header));
    header.crc = Crc32c(
        {piece.data() + sizeof(header.crc), static_cast<size_t>(filled) - sizeof(header.crc)});
    std::memcpy(piece.data(), &header, sizeof(header));
    // Each piece has its full length in the file, so that places are known.
    status.Update(WriteFull(*file_, file_bytes_, piece.span()));
    file_bytes_ += piece_bytes_;
    filled = sizeof(PieceHeader);
  };
  for (const Entry* entry = entries(); entry < entries() + num_entries_ && status.ok(); ++entry) {
    const int64_t bytes = RecordBytes(entry->table_kind);
    if (filled + bytes > piece_bytes_) write();
    std::memcpy(piece.data() + filled, arena_.data() + int64_t{entry->place} * kWordBytes,
                static_cast<size_t>(bytes));
    filled += bytes;
  }
  if (status.ok()) write();
  options_.share->Return(&piece);
  HOTROW_RETURN_IF_ERROR(status);
  run.end = file_bytes_;
  runs_.push_back(run);
  used_ = 0;
  num_entries_ = 0;
  return absl::OkStatus();
}

absl::Status RowSorter::ReadPiece(Run* run) {
  const int64_t offset = run->begin;
  HOTROW_RETURN_IF_ERROR(ReadFull(*file_, offset, {run->piece, static_cast<size_t>(piece_bytes_)}));
  run->begin += piece_bytes_;
  PieceHeader header;
  std::memcpy(&header, run->piece, sizeof(header));
  if (header.bytes < sizeof(header) || header.bytes > piece_bytes_ ||
      header.crc != Crc32c({run->piece + sizeof(header.crc), header.bytes - sizeof(header.crc)})) {
    return absl::DataLossError(absl::StrCat(options_.path, ": what was written at offset ", offset,
                                            " is read back otherwise; use another disk"));
  }
  run->at = sizeof(header);
  run->bytes = header.bytes;
  return absl::OkStatus();
}

// Puts the record at hand of a run, if there is one, among the heads.
absl::Status RowSorter::PushHead(uint32_t number) {
  Run& run = runs_[number];
  if (run.at == run.bytes) {
    if (run.begin == run.end) return absl::OkStatus();
    HOTROW_RETURN_IF_ERROR(ReadPiece(&run));
  }
  RecordHeader header;
  std::memcpy(&header, run.piece + run.at, sizeof(header));
  heads_.push_back(
      {.hash = Mix64(header.key), .table = header.table_kind >> kKindBits, .run = number});
  std::push_heap(heads_.begin(), heads_.end(), [](const Head& a, const Head& b) {
    if (a.table != b.table) return a.table > b.table;
    return a.hash != b.hash ? a.hash > b.hash : a.run > b.run;
  });
  return absl::OkStatus();
}

absl::StatusOr<const RowSorter::RecordHeader*> RowSorter::Take() {
  if (runs_.empty()) {
    if (next_entry_ == num_entries_) return nullptr;
    const Entry& entry = entries()[next_entry_++];
    return reinterpret_cast<const RecordHeader*>(arena_.data() + int64_t{entry.place} * kWordBytes);
  }
  // The run that the last record came from goes on, now that nobody looks at it any more.
  if (ahead_ != nullptr) {
    const uint32_t last = heads_.back().run;
    heads_.pop_back();
    runs_[last].at += RecordBytes(ahead_->table_kind);
    HOTROW_RETURN_IF_ERROR(PushHead(last));
  }
  if (heads_.empty()) return nullptr;
  std::pop_heap(heads_.begin(), heads_.end(), [](const Head& a, const Head& b) {
    if (a.table != b.table) return a.table > b.table;
    return a.hash != b.hash ? a.hash > b.hash : a.run > b.run;
  });
  const Run& run = runs_[heads_.back().run];
  return reinterpret_cast<const RecordHeader*>(run.piece + run.at);
}

absl::Status RowSorter::Finish() {
  if (runs_.empty()) {
    Sort();
  } else {
    if (num_entries_ > 0) HOTROW_RETURN_IF_ERROR(Spill());
    // Other parts of opening need the memory that runs do not.
    options_.share->Return(&arena_);
    HOTROW_RETURN_IF_ERROR(
        options_.share->Take(std::ssize(runs_) * piece_bytes_, "merging rows for a disk", &arena_));
    heads_.reserve(runs_.size());
    for (size_t r = 0; r < runs_.size(); ++r) {
      runs_[r].piece = arena_.data() + static_cast<int64_t>(r) * piece_bytes_;
      HOTROW_RETURN_IF_ERROR(PushHead(static_cast<uint32_t>(r)));
    }
  }
  HOTROW_ASSIGN_OR_RETURN(ahead_, Take());
  return Next();
}

absl::Status RowSorter::Next() {
  while (ahead_ != nullptr) {
    const uint32_t table = ahead_->table_kind >> kKindBits;
    key_ = {.key = ahead_->key, .table = table};
    auto kind = static_cast<Kind>(ahead_->table_kind & 3);
    while (true) {
      if (kind != Kind::kErase) {
        std::memcpy(row_.data(), reinterpret_cast<const std::byte*>(ahead_ + 1),
                    static_cast<size_t>(options_.row_bytes[table]));
      }
      HOTROW_ASSIGN_OR_RETURN(ahead_, Take());
      if (ahead_ == nullptr || ahead_->key != key_.key ||
          ahead_->table_kind >> kKindBits != table) {
        break;
      }
      const auto next = static_cast<Kind>(ahead_->table_kind & 3);
      if (next == Kind::kAdd && kind != Kind::kErase) {
        return absl::InvalidArgumentError(
            absl::StrCat("table \"", options_.tables[table], "\" has two rows of key ", key_.key));
      }
      kind = next;
    }
    if (kind != Kind::kErase) return absl::OkStatus();
  }
  done_ = true;
  return absl::OkStatus();
}

}  // namespace hotrow::internal
