// What changes in rows on a disk: levels that deltas write, and their merging.

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/atomic_file.h"
#include "base/check.h"
#include "base/out_of_room.h"
#include "base/own_status.h"
#include "base/status_macros.h"
#include "base/thread.h"
#include "embedding/serving/disk_rows_impl.h"

namespace hotrow::internal {
namespace {

// A level has a filter of two bytes a row: a key that is looked up passes those of all levels, and
// each that is wrong costs a read. The file of all rows has one byte.
constexpr int64_t kLevelFilterBytes = 2;
constexpr int64_t kAllFilterBytes = 1;
// What is merged between two looks at the clock.
constexpr int64_t kPaceBytes = int64_t{256} << 10;

// Names of files follow from what they are made of, so that a try after an error writes over them,
// and that no other rows ever have the name of files that a list has.
constexpr uint64_t kLevelKey = 0x6c6576656c;     // "level"
constexpr uint64_t kMergedKey = 0x6d6572676564;  // "merged"
Hash128 IdFrom(uint64_t kind, std::span<const Hash128> ids) {
  return HashBytes(kind, ids.size(), std::as_bytes(ids));
}

}  // namespace

// --- An update

DiskUpdate::DiskUpdate(DiskRows* rows, std::unique_ptr<RowSorter> sorter)
    : rows_(rows), sorter_(std::move(sorter)), written_(rows->options_.tables.size()) {}

DiskUpdate::~DiskUpdate() {
  if (!lock_.owns_lock()) lock_ = std::unique_lock(rows_->change_mutex_);
  // An earlier try of the same update may have come as far as the list.
  for (const std::string& name : rows_->writing_) {
    if (!rows_->listed_.contains(name)) rows_->RemoveFile(name);
  }
  rows_->writing_.clear();
  lock_.unlock();
  if (!is_folded_) return;
  const std::lock_guard lock(rows_->merge_mutex_);
  rows_->is_told_ = true;
  rows_->told_.notify_all();
}

absl::Status DiskUpdate::Put(const RowKey& key, uint32_t last_step, const std::byte* row) {
  const absl::Status put =
      sorter_->Put(RowSorter::Kind::kAdd, key, rows_->WithStep(key, row, last_step, &row_));
  return put.ok() ? put : rows_->WithRoomNeeded(put);
}

absl::Status DiskUpdate::PutErased(const RowKey& key) { return Put(key, kRowGone, nullptr); }

absl::Status DiskUpdate::WriteLevels() {
  const DiskRows::Options& options = rows_->options_;
  const Hash128 ids[] = {rows_->id_, id_};
  HOTROW_RETURN_IF_ERROR(sorter_->Finish());
  while (!sorter_->done()) {
    const uint32_t table = sorter_->key().table;
    const RowFileSpec spec = rows_->SpecOf(table, IdFrom(kLevelKey, ids));
    {
      const std::lock_guard lock(rows_->change_mutex_);
      rows_->writing_.insert(rows_->NameOf(table, spec.id));
    }
    HOTROW_RETURN_IF_ERROR(
        WriteFileAtomicallyWith(*options.env, spec.path, [&](File& file) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(
              const std::unique_ptr<RowFileWriter> writer,
              RowFileWriter::Create(spec, sorter_->rows_max(table), rows_->PieceBytes(1), &file,
                                    options.share, kLevelFilterBytes));
          for (; !sorter_->done() && sorter_->key().table == table;) {
            if (options.stop != nullptr && options.stop->load(std::memory_order_relaxed)) {
              return absl::CancelledError("writing the rows was stopped");
            }
            HOTROW_RETURN_IF_ERROR(writer->Add(sorter_->key().key, sorter_->row()));
            HOTROW_RETURN_IF_ERROR(sorter_->Next());
          }
          return writer->Finish();
        }));
    HOTROW_ASSIGN_OR_RETURN(written_[table], RowFile::Open(*options.env, spec, options.share));
    rows_->written_bytes_.Add(written_[table]->bytes());
  }
  sorter_.reset();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const DiskVersion>> DiskUpdate::Stage(const Hash128& id,
                                                                     std::span<const After> after) {
  id_ = id;
  if (const absl::Status written = WriteLevels(); !written.ok()) {
    return rows_->WithRoomNeeded(written);
  }
  lock_ = std::unique_lock(rows_->change_mutex_);
  auto levels = std::make_shared<RowLevels>(*rows_->current_->levels());
  auto staged = std::make_shared<DiskVersion>();
  folded_ = std::make_shared<DiskVersion>();
  for (uint32_t t = 0; t < levels->of.size(); ++t) {
    const bool changes = written_[t] != nullptr;
    if (changes) levels->of[t].insert(levels->of[t].begin(), written_[t]);
    for (DiskVersion* const version : {staged.get(), folded_.get()}) {
      version->rows.push_back(after[t].rows);
      version->age_lines.push_back(std::max(after[t].age_line, rows_->current_->age_lines[t]));
    }
    staged->before_cache.push_back(changes ? 1 : 0);
    folded_->before_cache.push_back(0);
  }
  staged->set_levels(levels);
  folded_->set_levels(levels);
  const absl::Status listed = rows_->WriteList(rows_->ListOf(id, *levels, *folded_));
  if (!listed.ok()) return rows_->WithRoomNeeded(listed);
  return staged;
}

// Readers of the staged version find the changed rows in levels, and ask the cache for others: so
// nobody looks at what changes here.
std::shared_ptr<const DiskVersion> DiskUpdate::Fold() {
  is_folded_ = true;
  for (uint32_t t = 0; t < written_.size(); ++t) {
    if (written_[t] == nullptr) continue;
    if (Caught("", [&] { return FillCache(t); }).ok()) continue;
    // What could not be read, and some more, is read when it is wanted.
    rows_->cache_of_[t]->ForgetIf(
        [&](const RowKey& key) { return key.table == t && written_[t]->BlockOf(key.key) >= 0; });
  }
  rows_->current_ = folded_;
  rows_->id_ = id_;
  rows_->CountLevels(*folded_->levels());
  return folded_;
}

// The rows of a level, in the place of those that the cache has of their keys.
absl::Status DiskUpdate::FillCache(uint32_t table) {
  CopyCache& cache = *rows_->cache_of_[table];
  if (cache.capacity_rows() == 0) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<RowFileScanner> scanner,
      RowFileScanner::Create(written_[table], rows_->PieceBytes(1), rows_->options_.share));
  while (!scanner->done()) {
    cache.Replace({.key = scanner->key(), .table = table}, scanner->row());
    HOTROW_RETURN_IF_ERROR(scanner->Next());
  }
  return absl::OkStatus();
}

int64_t DiskRows::PieceBytes(size_t files) const {
  const int64_t share = options_.limit_bytes / (4 * kChangesShare) / static_cast<int64_t>(files);
  return std::max(std::min(share, kPieceBytesMax), block_bytes_);
}

LevelsManifest DiskRows::ListOf(const Hash128& id, const RowLevels& levels,
                                const DiskVersion& version) const {
  LevelsManifest out = {.id = id, .tables = {}};
  for (size_t t = 0; t < levels.of.size(); ++t) {
    out.tables.push_back({.rows = version.rows[t], .age_line = version.age_lines[t], .files = {}});
    for (const std::shared_ptr<const RowFile>& file : levels.of[t]) {
      out.tables.back().files.push_back(file->spec().id);
    }
  }
  return out;
}

absl::Status DiskRows::WriteList(const LevelsManifest& list) {
  std::set<std::string> names = NamesOf(list);
  // Even where this fails the list in the directory may be the new one.
  listed_.insert(names.begin(), names.end());
  HOTROW_RETURN_IF_ERROR(WriteLevelsManifest(*options_.env, options_.dir, list));
  for (const std::string& name : listed_) {
    if (!names.contains(name) && !writing_.contains(name)) RemoveFile(name);
  }
  listed_ = std::move(names);
  return absl::OkStatus();
}

void DiskRows::RemoveFile(const std::string& name) const {
  Caught("", [&] {
    return options_.env->Remove(absl::StrCat(options_.dir, "/", name));
  }).IgnoreError();
}

void DiskRows::CountLevels(const RowLevels& levels) {
  size_t most = 0;
  for (const RowLevels::Files& files : levels.of) most = std::max(most, files.size() - 1);
  levels_now_.store(static_cast<int64_t>(most), std::memory_order_relaxed);
}

absl::Status DiskRows::LockChanges() {
  HOTROW_CHECK(options_.keeps_steps);
  if (lock_ != nullptr) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(TakeLock());
  const std::shared_ptr<const DiskVersion> version = current();
  std::set<std::string> keep = NamesOf(ListOf(id_, *version->levels(), *version));
  const absl::StatusOr<std::vector<std::string>> names = options_.env->ListDir(options_.dir);
  absl::Status status = names.status();
  if (status.ok() && !std::ranges::all_of(keep, [&](const std::string& name) {
        return std::ranges::binary_search(*names, name);
      })) {
    status = absl::FailedPreconditionError(
        absl::StrCat(options_.dir,
                     ": another process has written other rows there; open the model "
                     "again, or in another directory"));
  }
  if (!status.ok()) {
    lock_.reset();
    return status;
  }
  // What an older list has stays until there is a new one: it may be what the next open finds.
  if (const auto list = ReadLevelsManifest(*options_.env, options_.dir);
      list.ok() && list->has_value()) {
    keep.merge(NamesOf(**list));
  }
  {
    const std::lock_guard lock(change_mutex_);
    listed_ = keep;
  }
  keep.insert(kLevelsName);
  RemoveOthers(keep).IgnoreError();  // they take room, and do no other harm
  return absl::OkStatus();
}

void DiskRows::UnlockChanges() {
  {
    const std::lock_guard lock(merge_mutex_);
    merging_ends_ = true;
    told_.notify_all();
  }
  if (merging_.joinable()) merging_.join();
  {
    const std::lock_guard lock(merge_mutex_);
    merging_ends_ = false;
    is_told_ = false;
    merged_ = absl::OkStatus();
  }
  lock_.reset();
}

absl::StatusOr<std::unique_ptr<DiskUpdate>> DiskRows::BeginUpdate() {
  HOTROW_RETURN_IF_ERROR(LockChanges());
  const auto too_many = [&] {
    return levels_now_.load(std::memory_order_relaxed) >= static_cast<int64_t>(kLevelsMax);
  };
  // So many were there when these rows were opened. An update that opening them waits for must not
  // fail until a thread has merged them, which ends with the rows.
  while (options_.merge_bytes_per_second > 0 && !merging_.joinable() && too_many()) {
    HOTROW_ASSIGN_OR_RETURN(const bool merged, MergeOnce());
    if (!merged) break;
  }
  HOTROW_RETURN_IF_ERROR(StartMerging());
  if (too_many()) {
    const int64_t levels = levels_now_.load(std::memory_order_relaxed);
    const std::lock_guard lock(merge_mutex_);
    is_told_ = true;
    told_.notify_all();
    const std::string what = absl::StrCat(
        options_.dir, ": ", levels, " levels of rows are to be merged before a delta can come");
    if (merged_.ok()) return absl::UnavailableError(what);
    return WithText(merged_, absl::StrCat(what, ": ", std::string(merged_.message())));
  }
  HOTROW_ASSIGN_OR_RETURN(
      std::unique_ptr<RowSorter> sorter,
      RowSorter::Create({.env = options_.env,
                         .path = absl::StrCat(options_.dir, "/", kSortName),
                         .tables = options_.tables,
                         .row_bytes = row_bytes_,
                         .memory_bytes = std::clamp(options_.limit_bytes / (2 * kChangesShare),
                                                    kChangesBytesMin / 4, kSortBytesMax),
                         .share = options_.share}));
  return std::unique_ptr<DiskUpdate>(new DiskUpdate(this, std::move(sorter)));
}

// --- Merging

absl::Status DiskRows::StartMerging() {
  if (options_.merge_bytes_per_second == 0 || merging_.joinable()) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(
      merging_, StartThread("the merging of rows on a disk", [this] { MergeWhenTold(); }));
  return absl::OkStatus();
}

void DiskRows::MergeWhenTold() {
  std::unique_lock lock(merge_mutex_);
  while (true) {
    told_.wait(lock, [&] { return is_told_ || merging_ends_; });
    if (merging_ends_) return;
    is_told_ = false;
    lock.unlock();
    const absl::Status merged = Caught(options_.dir, [&] { return Merge(); });
    lock.lock();
    merged_ = OwnStatus(merged);
  }
}

absl::Status DiskRows::Merge() {
  while (true) {
    const absl::StatusOr<bool> merged = MergeOnce();
    if (!merged.ok() && !absl::IsCancelled(merged.status())) merges_failed_.Add(1);
    HOTROW_RETURN_IF_ERROR(merged.status());
    if (!*merged) return absl::OkStatus();
  }
}

absl::StatusOr<bool> DiskRows::MergeOnce() {
  std::shared_ptr<const RowLevels> levels;
  std::vector<uint32_t> age_lines;
  {
    const std::lock_guard lock(change_mutex_);
    levels = current_->levels();
    age_lines = current_->age_lines;
  }
  for (uint32_t t = 0; t < levels->of.size(); ++t) {
    const RowLevels::Files& files = levels->of[t];
    std::vector<int64_t> rows;
    for (const std::shared_ptr<const RowFile>& file : files) rows.push_back(file->rows());
    const size_t count = LevelsToMerge(rows);
    if (count == 0) continue;
    const std::span<const std::shared_ptr<const RowFile>> old(files.data(), count);
    absl::StatusOr<std::shared_ptr<const RowFile>> merged =
        MergeFiles(t, old, age_lines[t], /*all=*/count == files.size());
    if (!merged.ok()) return WithRoomNeeded(merged.status());
    {
      const std::lock_guard lock(change_mutex_);
      // Levels may have come before them meanwhile.
      auto next = std::make_shared<RowLevels>(*current_->levels());
      RowLevels::Files& now = next->of[t];
      auto at = std::ranges::find(now, old[0]);
      HOTROW_CHECK(at != now.end());
      at = now.erase(at, at + static_cast<std::ptrdiff_t>(count));
      now.insert(at, *merged);
      const absl::Status listed = WriteList(ListOf(id_, *next, *current_));
      if (!listed.ok()) return WithRoomNeeded(listed);
      CountLevels(*next);
      current_->set_levels(std::move(next));
    }
    return true;
  }
  return false;
}

absl::StatusOr<std::shared_ptr<const RowFile>> DiskRows::MergeFiles(
    uint32_t table, std::span<const std::shared_ptr<const RowFile>> files, uint32_t age_line,
    bool all) {
  std::vector<Hash128> ids;
  int64_t rows = 0;
  for (const std::shared_ptr<const RowFile>& file : files) {
    ids.push_back(file->spec().id);
    rows += file->rows();
  }
  const RowFileSpec spec = SpecOf(table, IdFrom(kMergedKey, ids));
  const int64_t piece = PieceBytes(files.size() + 1);
  const auto write = [&](File& out) -> absl::Status {
    std::vector<std::unique_ptr<RowFileScanner>> scanners;
    for (const std::shared_ptr<const RowFile>& file : files) {
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<RowFileScanner> scanner,
                              RowFileScanner::Create(file, piece, options_.share));
      scanners.push_back(std::move(scanner));
    }
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<RowFileWriter> writer,
                            RowFileWriter::Create(spec, rows, piece, &out, options_.share,
                                                  all ? kAllFilterBytes : kLevelFilterBytes));
    int64_t bytes = 0;
    while (true) {
      const RowFileScanner* first = nullptr;
      for (const std::unique_ptr<RowFileScanner>& scanner : scanners) {
        if (scanner->done()) continue;
        if (first == nullptr || Mix64(scanner->key()) < Mix64(first->key())) first = scanner.get();
      }
      if (first == nullptr) return writer->Finish();
      const uint64_t key = first->key();
      // In the newest file that has the key. Where older ones remain it must hide theirs.
      if (!all || IsAlive(table, age_line, first->row())) {
        HOTROW_RETURN_IF_ERROR(writer->Add(key, first->row()));
        bytes += row_bytes_[table];
      }
      for (const std::unique_ptr<RowFileScanner>& scanner : scanners) {
        if (scanner->done() || scanner->key() != key) continue;
        HOTROW_RETURN_IF_ERROR(scanner->Next());
        bytes += row_bytes_[table];
      }
      if (bytes < kPaceBytes) continue;
      HOTROW_RETURN_IF_ERROR(Pace(bytes));
      bytes = 0;
    }
  };
  HOTROW_RETURN_IF_ERROR(WriteFileAtomicallyWith(*options_.env, spec.path, write));
  HOTROW_ASSIGN_OR_RETURN(std::shared_ptr<const RowFile> merged,
                          RowFile::Open(*options_.env, spec, options_.share));
  written_bytes_.Add(merged->bytes());
  return merged;
}

absl::Status DiskRows::Pace(int64_t bytes) {
  const bool stopped = options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed);
  std::unique_lock lock(merge_mutex_);
  if (options_.merge_bytes_per_second > 0) {
    const std::chrono::duration<double> takes(static_cast<double>(bytes) /
                                              static_cast<double>(options_.merge_bytes_per_second));
    paced_until_ = std::max(paced_until_, std::chrono::steady_clock::now()) +
                   std::chrono::duration_cast<std::chrono::steady_clock::duration>(takes);
    // Where levels are so many that deltas might have to wait it goes as fast as it can.
    const bool is_urgent = told_.wait_until(lock, paced_until_, [&] {
      return merging_ends_ ||
             2 * levels_now_.load(std::memory_order_relaxed) >= static_cast<int64_t>(kLevelsMax);
    });
    // What it was too fast by does not keep later merges waiting.
    if (is_urgent) paced_until_ = std::chrono::steady_clock::now();
  }
  if (!stopped && !merging_ends_) return absl::OkStatus();
  return absl::CancelledError("merging rows was stopped");
}

}  // namespace hotrow::internal
