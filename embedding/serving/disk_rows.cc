#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/atomic_file.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/entropy.h"
#include "base/math.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"
#include "embedding/serving/disk_rows_impl.h"

namespace hotrow::internal {
namespace {

constexpr char kRowFileEnd[] = ".rows";
constexpr char kTemporaryEnd[] = ".tmp";
constexpr int64_t kIdDigits = 32;
constexpr int64_t kPieceShare = 8;  // of memory, for a piece that is written
// Blocks that a reader reads at once. A queue is as fast with a few hundred in flight as with more;
// where memory is short, buffers take a sixteenth of it and the cache the rest.
constexpr int64_t kReaderBlocksMax = 1024;
constexpr int64_t kReaderBlocksMin = 4;
constexpr int64_t kReadersShare = 16;
constexpr size_t kIndexMin = 256;  // places for the keys of a call

constexpr FormatVersions kHotKeysVersions = {.first = 1, .last = 1};
constexpr char kHotKeysMagic[8] = {'H', 'O', 'T', 'R', 'O', 'W', 'H', 'K'};
constexpr int64_t kHotKeysAtOnce = 4096;
constexpr int64_t kSlotsAtOnce = 1024;           // some microseconds
constexpr uint64_t kDigestKey = 0x7461626c6573;  // "tables"

// Offset 0 of the file of hot keys; the keys follow. docs/formats/serving_rows.md.
struct HotKeysHeader {
  char magic[8];
  uint32_t version;
  uint32_t reserved;   // 0
  uint64_t tables[2];  // digest of their names, high word first
  uint64_t keys;
  uint32_t keys_crc;
  uint32_t crc;  // of the bytes before
};
static_assert(sizeof(HotKeysHeader) == 48 && offsetof(HotKeysHeader, crc) == 44);

struct HotKey {
  uint64_t key;
  uint32_t table;
  uint32_t uses;  // its count in the cache; earlier builds wrote 0, and the most used first
};
static_assert(sizeof(HotKey) == 16);

uint32_t HeaderCrc(const HotKeysHeader& header) {
  return Crc32c(std::as_bytes(std::span(&header, 1)).subspan(0, offsetof(HotKeysHeader, crc)));
}

// Whether it is the name of a file of rows, finished or not.
bool IsRowFile(std::string_view name) {
  if (name.ends_with(kTemporaryEnd)) name.remove_suffix(sizeof(kTemporaryEnd) - 1);
  return name.ends_with(kRowFileEnd) && name.size() > kIdDigits && name[kIdDigits] == '-' &&
         name.substr(0, kIdDigits).find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

absl::Status With(const absl::Status& status, const std::string& remedy) {
  return WithText(status, absl::StrCat(std::string(status.message()), "; ", remedy));
}

}  // namespace

// --- Readers

void DiskRows::Reader::Clear() {
  // As large as the last call needed, so that a large call is not paid for by all small ones.
  index_.assign(std::bit_ceil(2 * wanted_.size() + kIndexMin), 0);
  wanted_.clear();
}

void DiskRows::Reader::GrowIndex() {
  index_.assign(std::max(2 * index_.size(), kIndexMin), 0);
  const uint64_t mask = index_.size() - 1;
  for (size_t number = 0; number < wanted_.size(); ++number) {
    const RowKey& key = wanted_[number].key;
    uint64_t place = HashRowKey(key.key ^ salt_, key.table).lo & mask;
    while (index_[place] != 0) place = (place + 1) & mask;
    index_[place] = static_cast<uint32_t>(number + 1);
  }
}

uint32_t DiskRows::Reader::Want(const RowKey& key) {
  if (2 * (wanted_.size() + 1) > index_.size()) GrowIndex();
  const uint64_t mask = index_.size() - 1;
  uint64_t place = HashRowKey(key.key ^ salt_, key.table).lo & mask;
  for (; index_[place] != 0; place = (place + 1) & mask) {
    const uint32_t number = index_[place] - 1;
    if (wanted_[number].key == key) return number;
  }
  wanted_.push_back({.key = key});
  index_[place] = static_cast<uint32_t>(wanted_.size());
  return static_cast<uint32_t>(wanted_.size() - 1);
}

std::unique_ptr<DiskRows::Reader> DiskRows::TakeReader() {
  const std::lock_guard lock(readers_mutex_);
  if (readers_.empty()) return nullptr;
  std::unique_ptr<Reader> out = std::move(readers_.back());
  readers_.pop_back();
  return out;
}

void DiskRows::GiveBack(std::unique_ptr<Reader> reader) {
  const std::lock_guard lock(readers_mutex_);
  readers_.push_back(std::move(reader));
}

absl::Status DiskRows::MakeReaders() {
  const int64_t each =
      std::clamp(options_.limit_bytes / kReadersShare / options_.readers / block_bytes_,
                 kReaderBlocksMin, kReaderBlocksMax);
  for (int32_t r = 0; r < options_.readers; ++r) {
    auto reader = std::make_unique<Reader>();
    reader->salt_ = EntropyBits();
    reader->stride_ = stride_;
    // From 128 KiB on memory begins with a page; smaller pieces may not, so they are taken larger.
    HOTROW_RETURN_IF_ERROR(options_.share->Take(each * block_bytes_ + kRowFileSectorBytes,
                                                "a buffer for reading rows", &reader->blocks_));
    HOTROW_ASSIGN_OR_RETURN(
        reader->queue_,
        options_.env->NewIoQueue({.threads = static_cast<int>(std::min<int64_t>(each, 16))}));
    readers_.push_back(std::move(reader));
  }
  return absl::OkStatus();
}

// --- Files

DiskRows::DiskRows(const Options& options) : options_(options) {
  for (const int64_t bytes : options_.row_bytes) {
    row_bytes_.push_back(bytes + (options_.keeps_steps ? kRowStepBytes : 0));
    stride_ = std::max(stride_, RoundUp(row_bytes_.back(), 16));
    block_bytes_ = std::max(block_bytes_, RowBlockBytes(row_bytes_.back()));
  }
}

DiskRows::~DiskRows() {
  UnlockChanges();
  for (const std::unique_ptr<Reader>& reader : readers_) options_.share->Return(&reader->blocks_);
}

std::string DiskRows::NameOf(uint32_t table, const Hash128& id) const {
  return absl::StrFormat("%s-%05u%s", id.ToHex(), table, kRowFileEnd);
}

RowFileSpec DiskRows::SpecOf(uint32_t table, const Hash128& id) const {
  return {.path = absl::StrCat(options_.dir, "/", NameOf(table, id)),
          .table_name = options_.tables[table],
          .table = table,
          .id = id,
          .row_bytes = row_bytes_[table]};
}

const std::byte* DiskRows::WithStep(const RowKey& key, const std::byte* row, uint32_t last_step,
                                    std::vector<std::byte>* buffer) const {
  if (!options_.keeps_steps) return row;
  const auto bytes = static_cast<size_t>(options_.row_bytes[key.table]);
  buffer->assign(bytes + kRowStepBytes, std::byte{0});
  if (row != nullptr) std::memcpy(buffer->data(), row, bytes);
  std::memcpy(buffer->data() + bytes, &last_step, sizeof(last_step));
  return buffer->data();
}

absl::StatusOr<std::unique_ptr<DiskRows>> DiskRows::Create(const Options& options) {
  std::unique_ptr<DiskRows> out(new DiskRows(options));
  HOTROW_RETURN_IF_ERROR(CreateDirsDurably(*options.env, options.dir));
  HOTROW_RETURN_IF_ERROR(out->FindFiles());
  if (!out->complete_) HOTROW_RETURN_IF_ERROR(out->StartWriting());
  return out;
}

std::set<std::string> DiskRows::NamesOf(const LevelsManifest& list) const {
  std::set<std::string> out;
  for (uint32_t t = 0; t < list.tables.size(); ++t) {
    for (const Hash128& id : list.tables[t].files) out.insert(NameOf(t, id));
  }
  return out;
}

absl::Status DiskRows::FindFiles() {
  // Whoever changes rows there may replace the list and remove files of it meanwhile.
  constexpr int kTries = 4;
  for (int i = 0; i < kTries && !complete_; ++i) {
    std::optional<LevelsManifest> list;
    if (options_.keeps_steps) {
      HOTROW_ASSIGN_OR_RETURN(list, ReadLevelsManifest(*options_.env, options_.dir));
    }
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> listed,
                            options_.env->ListDir(options_.dir));
    const std::set<std::string> names(listed.begin(), listed.end());
    // Takes the rows that are nearest to what is wanted.
    const auto take = [&](LevelsManifest&& found) {
      const auto at =
          static_cast<size_t>(std::ranges::find(options_.ids, found.id) - options_.ids.begin());
      if (at == options_.ids.size() || (complete_ && at >= found_) ||
          found.tables.size() != options_.tables.size() ||
          !std::ranges::includes(names, NamesOf(found))) {
        return;
      }
      complete_ = true;
      found_ = at;
      list_ = std::move(found);
    };
    for (const Hash128& id : options_.ids) take(WholeFiles(id));
    if (!list.has_value() || std::ranges::find(options_.ids, list->id) == options_.ids.end()) break;
    take(*std::move(list));
  }
  return absl::OkStatus();
}

// A file of each table with all of its rows, and no levels.
LevelsManifest DiskRows::WholeFiles(const Hash128& id) const {
  LevelsManifest out = {.id = id, .tables = {}};
  for (size_t t = 0; t < options_.tables.size(); ++t) {
    out.tables.push_back({.rows = -1, .age_line = 0, .files = {id}});
  }
  return out;
}

absl::Status DiskRows::TakeLock() {
  absl::StatusOr<std::unique_ptr<FileLock>> lock =
      options_.env->LockFile(options_.dir + "/rows.lock", LockMode::kExclusive);
  if (absl::IsFailedPrecondition(lock.status())) {
    return With(lock.status(),
                "it writes or changes rows there: open the model when it is done, or in another "
                "directory");
  }
  HOTROW_RETURN_IF_ERROR(lock.status());
  lock_ = *std::move(lock);
  return absl::OkStatus();
}

absl::Status DiskRows::StartWriting() {
  HOTROW_RETURN_IF_ERROR(TakeLock());
  HOTROW_ASSIGN_OR_RETURN(
      sorter_, RowSorter::Create({.env = options_.env,
                                  .path = absl::StrCat(options_.dir, "/", kSortName),
                                  .tables = options_.tables,
                                  .row_bytes = row_bytes_,
                                  .memory_bytes = std::min(options_.limit_bytes / 2, kSortBytesMax),
                                  .share = options_.share}));
  return absl::OkStatus();
}

// An error of writing, with its remedy where the disk is full.
absl::Status DiskRows::WithRoomNeeded(const absl::Status& status) const {
  if (!IsOutOfRoom(status)) return status;
  return With(status,
              absl::StrCat("rows_dir ", options_.dir,
                           " needs room for all rows, twice while they are sorted or merged"));
}

absl::Status DiskRows::Put(RowSorter::Kind kind, const RowKey& key, uint32_t last_step,
                           const std::byte* row) {
  HOTROW_CHECK(sorter_ != nullptr);
  const absl::Status put = sorter_->Put(kind, key, WithStep(key, row, last_step, &row_));
  return put.ok() ? put : WithRoomNeeded(put);
}

absl::Status DiskRows::WriteFiles() {
  HOTROW_RETURN_IF_ERROR(sorter_->Finish());
  const int64_t piece = std::min(options_.limit_bytes / kPieceShare, kPieceBytesMax);
  for (uint32_t t = 0; t < options_.tables.size(); ++t) {
    const RowFileSpec spec = SpecOf(t, options_.ids[0]);
    HOTROW_RETURN_IF_ERROR(
        WriteFileAtomicallyWith(*options_.env, spec.path, [&](File& file) -> absl::Status {
          HOTROW_ASSIGN_OR_RETURN(
              const std::unique_ptr<RowFileWriter> writer,
              RowFileWriter::Create(spec, sorter_->rows_max(t), piece, &file, options_.share));
          for (; !sorter_->done() && sorter_->key().table == t;) {
            if (options_.stop != nullptr && options_.stop->load(std::memory_order_relaxed)) {
              return absl::CancelledError("writing the rows was stopped");
            }
            HOTROW_RETURN_IF_ERROR(writer->Add(sorter_->key().key, sorter_->row()));
            HOTROW_RETURN_IF_ERROR(sorter_->Next());
          }
          return writer->Finish();
        }));
  }
  HOTROW_CHECK(sorter_->done());
  sorter_.reset();
  list_ = WholeFiles(options_.ids[0]);
  return RemoveOthers(NamesOf(list_));
}

// What earlier models have left, or who was killed. Who reads these files has them open.
absl::Status DiskRows::RemoveOthers(const std::set<std::string>& keep) const {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                          options_.env->ListDir(options_.dir));
  for (const std::string& name : names) {
    const bool is_ours = IsRowFile(name) || name == kSortName || name == kLevelsName ||
                         name == absl::StrCat(kLevelsName, kTemporaryEnd);
    if (!is_ours || keep.contains(name)) continue;
    HOTROW_RETURN_IF_ERROR(options_.env->Remove(absl::StrCat(options_.dir, "/", name)));
  }
  return absl::OkStatus();
}

absl::Status DiskRows::Finish() {
  if (!complete_) {
    if (const absl::Status written = WriteFiles(); !written.ok()) return WithRoomNeeded(written);
    complete_ = true;
  }
  absl::Status opened = OpenFiles();
  // Whoever changes rows there may have merged files meanwhile: the list then has others.
  constexpr int kAgainMax = 3;
  for (int again = kAgainMax; again > 0 && lock_ == nullptr && absl::IsNotFound(opened); --again) {
    const Hash128 id = list_.id;
    complete_ = false;
    HOTROW_RETURN_IF_ERROR(FindFiles());
    if (!complete_ || !(list_.id == id)) break;
    opened = OpenFiles();
  }
  HOTROW_RETURN_IF_ERROR(opened);
  lock_.reset();
  HOTROW_RETURN_IF_ERROR(MakeReaders());
  HOTROW_RETURN_IF_ERROR(MakeCaches());
  absl::Status warm = ReadHotKeys();
  if (warm.ok() || absl::IsNotFound(warm)) return absl::OkStatus();
  // Keys that were not read are a slower start, and nothing more; a row that was not is more.
  if (!absl::StrContains(warm.message(), HotKeysPath())) return warm;
  notes_.push_back(absl::StrCat("begins with an empty cache: ", std::string(warm.message())));
  return absl::OkStatus();
}

absl::Status DiskRows::OpenFiles() {
  auto levels = std::make_shared<RowLevels>();
  auto version = std::make_shared<DiskVersion>();
  for (uint32_t t = 0; t < list_.tables.size(); ++t) {
    const LevelsManifest::Table& table = list_.tables[t];
    RowLevels::Files& files = levels->of.emplace_back();
    for (const Hash128& id : table.files) {
      HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<RowFile> file,
                              RowFile::Open(*options_.env, SpecOf(t, id), options_.share));
      files.push_back(std::move(file));
    }
    version->rows.push_back(table.rows >= 0 ? table.rows : files.back()->rows());
    version->age_lines.push_back(table.age_line);
    version->before_cache.push_back(0);
  }
  CountLevels(*levels);
  version->set_levels(std::move(levels));
  const std::lock_guard lock(change_mutex_);
  current_ = std::move(version);
  id_ = list_.id;
  return absl::OkStatus();
}

std::shared_ptr<const DiskVersion> DiskRows::current() const {
  const std::lock_guard lock(change_mutex_);
  return current_;
}

absl::Status DiskRows::MakeCaches() {
  // What each width has, in bytes of rows.
  std::map<int64_t, int64_t> rows_of;
  int64_t weight = 0;
  const std::shared_ptr<const RowLevels> levels = current_->levels();
  int64_t index_bytes = 0;
  for (uint32_t t = 0; t < levels->of.size(); ++t) {
    for (const std::shared_ptr<const RowFile>& file : levels->of[t]) {
      rows_of[row_bytes_[t]] += file->rows();
      weight += file->rows() * row_bytes_[t];
      index_bytes += file->index_bytes();
    }
  }
  // Levels have half the index of all rows at most, and while they are merged there is another one.
  const int64_t changes =
      options_.keeps_steps
          ? 2 * index_bytes + std::max(options_.limit_bytes / kChangesShare, kChangesBytesMin)
          : 0;
  std::map<int64_t, CopyCache*> cache_of;
  for (const auto& [row_bytes, rows] : rows_of) {
    const ServingBudget& budget = options_.share->budget();
    const int64_t left =
        std::min(options_.limit_bytes - options_.share->bytes(), budget.bytes() - budget.used()) -
        changes;
    const double share =
        weight == 0 ? 0 : static_cast<double>(rows * row_bytes) / static_cast<double>(weight);
    weight -= rows * row_bytes;
    HOTROW_ASSIGN_OR_RETURN(
        std::unique_ptr<CopyCache> cache,
        CopyCache::Create(row_bytes, static_cast<int64_t>(static_cast<double>(left) * share), rows,
                          options_.share));
    cache_of[row_bytes] = cache.get();
    caches_.push_back(std::move(cache));
  }
  for (const int64_t row_bytes : row_bytes_) cache_of_.push_back(cache_of[row_bytes]);
  return absl::OkStatus();
}

// --- Reading

// Whether a row that is found counts.
bool DiskRows::IsAlive(uint32_t table, uint32_t age_line, const std::byte* row) const {
  if (!options_.keeps_steps) return true;
  uint32_t last_step;
  std::memcpy(&last_step, row + options_.row_bytes[table], sizeof(last_step));
  return last_step != kRowGone && (last_step == 0 || last_step >= age_line);
}

// Goes on to the next file that may have the key, from want->file on; false: none has to be read.
bool DiskRows::Seek(const RowLevels& levels, const DiskVersion& version, Reader::Wanted* want,
                    std::byte* row) const {
  const RowLevels::Files& files = levels.of[want->key.table];
  for (;; ++want->file) {
    if (!want->asked_cache && want->file == version.before_cache[want->key.table]) {
      want->asked_cache = true;
      if (cache_of_[want->key.table]->Find(want->key, row)) {
        want->found = IsAlive(want->key.table, version.age_lines[want->key.table], row);
        want->done = true;
      }
    }
    if (want->file == files.size()) want->done = true;
    if (want->done) return false;
    want->block = files[want->file]->BlockOf(want->key.key);
    if (want->block >= 0) return true;
  }
}

absl::Status DiskRows::Fetch(const DiskVersion& version, Reader* reader) const {
  const std::shared_ptr<const RowLevels> levels = version.levels();
  std::vector<Reader::Wanted>& wanted = reader->wanted_;
  std::vector<uint32_t>& reads = reader->reads_;
  HOTROW_RETURN_IF_ERROR(reader->rows_.Reserve(std::ssize(wanted) * stride_));  // <= keys_max
  const auto row_of = [&](uint32_t number) { return reader->rows_.data() + number * stride_; };
  reads.clear();
  int64_t absent = 0;
  for (uint32_t number = 0; number < wanted.size(); ++number) {
    Reader::Wanted& want = wanted[number];
    want = {.key = want.key};
    if (Seek(*levels, version, &want, row_of(number))) {
      reads.push_back(number);
    } else {
      absent += want.file == levels->of[want.key.table].size() ? 1 : 0;
    }
  }
  const auto misses = std::ssize(reads);
  hits_.Add(std::ssize(wanted) - misses - absent);
  misses_.Add(misses);
  absent_.Add(absent);
  while (!reads.empty()) {
    HOTROW_RETURN_IF_ERROR(ReadBlocks(*levels, version, reader));
    // Where a filter was wrong, an older file may have the key.
    std::erase_if(reads, [&](uint32_t number) {
      Reader::Wanted& want = wanted[number];
      if (want.done) return true;
      ++want.file;
      return !Seek(*levels, version, &want, row_of(number));
    });
  }
  return absl::OkStatus();
}

// One block for each of reader->reads_.
absl::Status DiskRows::ReadBlocks(const RowLevels& levels, const DiskVersion& version,
                                  Reader* reader) const {
  std::vector<Reader::Wanted>& wanted = reader->wanted_;
  std::vector<uint32_t>& reads = reader->reads_;
  // Rows of one block are read together, and blocks of a file in their order.
  const auto place_of = [&](uint32_t number) {
    const Reader::Wanted& want = wanted[number];
    return std::tuple(want.key.table, want.file, want.block);
  };
  std::sort(reads.begin(), reads.end(),
            [&](uint32_t a, uint32_t b) { return place_of(a) < place_of(b); });
  const auto address = reinterpret_cast<uintptr_t>(reader->blocks_.data());
  const auto skipped = static_cast<int64_t>(-address & (kRowFileSectorBytes - 1));
  const int64_t room = (reader->blocks_.size() - skipped) / block_bytes_;
  const auto same_block = [&](size_t a, size_t b) {
    return place_of(reads[a]) == place_of(reads[b]);
  };
  const auto file_of = [&](const Reader::Wanted& want) -> const RowFile& {
    return *levels.of[want.key.table][want.file];
  };
  for (size_t next = 0; next < reads.size();) {
    reader->requests_.clear();
    int64_t bytes = 0;
    while (next < reads.size() && std::ssize(reader->requests_) < room) {
      const Reader::Wanted& first = wanted[reads[next]];
      IoRequest request =
          file_of(first).Request(first.block, reader->blocks_.data() + skipped +
                                                  std::ssize(reader->requests_) * block_bytes_);
      request.user_data = next;
      bytes += request.bytes;
      reader->requests_.push_back(std::move(request));
      const size_t begin = next;
      while (next < reads.size() && same_block(begin, next)) ++next;
    }
    reads_.Add(std::ssize(reader->requests_));
    read_bytes_.Add(bytes);
    absl::Status status;
    reader->queue_->Run(reader->requests_, [&](IoRequest& request) {
      const auto begin = static_cast<size_t>(request.user_data);
      const Reader::Wanted& first = wanted[reads[begin]];
      const RowFile& file = file_of(first);
      const absl::Status read = file.Check(first.block, request);
      status.Update(read);
      if (!read.ok()) return;
      for (size_t r = begin; r < reads.size() && same_block(begin, r); ++r) {
        Reader::Wanted& want = wanted[reads[r]];
        const uint32_t table = want.key.table;
        const std::byte* const row = file.Find(request.data, want.key.key);
        if (row == nullptr) continue;  // the filter was wrong
        want.done = true;
        want.found = IsAlive(table, version.age_lines[table], row);
        std::memcpy(reader->rows_.data() + int64_t{reads[r]} * stride_, row,
                    static_cast<size_t>(row_bytes_[table]));
        if (want.asked_cache) cache_of_[table]->Insert(want.key, row);
      }
    });
    HOTROW_RETURN_IF_ERROR(status);
  }
  return absl::OkStatus();
}

ServingReadStats DiskRows::stats() const {
  ServingReadStats out = {.hits = hits_.value(),
                          .misses = misses_.value(),
                          .absent = absent_.value(),
                          .reads = reads_.value(),
                          .read_bytes = read_bytes_.value(),
                          .levels = levels_now_.load(std::memory_order_relaxed),
                          .written_bytes = written_bytes_.value(),
                          .merges_failed = merges_failed_.value()};
  for (const std::unique_ptr<CopyCache>& cache : caches_) out.cache_rows += cache->capacity_rows();
  return out;
}

// --- Warm start

Hash128 DiskRows::TablesDigest() const {
  std::string names;
  for (const std::string& name : options_.tables) absl::StrAppend(&names, name.size(), " ", name);
  return HashBytes(kDigestKey, options_.tables.size(), std::as_bytes(std::span(names)));
}

absl::Status DiskRows::SaveHotKeys() const {
  const std::lock_guard lock(save_mutex_);
  return WriteFileAtomicallyWith(*options_.env, HotKeysPath(), [&](File& file) -> absl::Status {
    int64_t offset = sizeof(HotKeysHeader);
    uint32_t crc = 0;
    std::vector<HotKey> keys;
    keys.reserve(kHotKeysAtOnce);
    const auto write = [&]() -> absl::Status {
      const std::span<const std::byte> bytes = std::as_bytes(std::span(keys));
      crc = Crc32c(bytes, crc);
      HOTROW_RETURN_IF_ERROR(WriteFull(file, offset, bytes));
      offset += std::ssize(bytes);
      keys.clear();
      return absl::OkStatus();
    };
    // Each slot is looked at once, some at a time: readers of the shard wait meanwhile.
    for (const std::unique_ptr<CopyCache>& cache : caches_) {
      for (int64_t shard = 0; shard < cache->num_shards(); ++shard) {
        for (int64_t slot = 0; slot < cache->slots(); slot += kSlotsAtOnce) {
          cache->ForEach(shard, slot, slot + kSlotsAtOnce, [&](const RowKey& key, uint32_t uses) {
            keys.push_back({.key = key.key, .table = key.table, .uses = uses});
          });
          if (std::ssize(keys) > kHotKeysAtOnce - kSlotsAtOnce) HOTROW_RETURN_IF_ERROR(write());
        }
      }
    }
    HOTROW_RETURN_IF_ERROR(write());
    const Hash128 tables = TablesDigest();
    HotKeysHeader header = {
        .version = kHotKeysVersions.last,
        .reserved = 0,
        .tables = {tables.hi, tables.lo},
        .keys = static_cast<uint64_t>(offset - static_cast<int64_t>(sizeof(HotKeysHeader))) /
                sizeof(HotKey),
        .keys_crc = crc};
    std::memcpy(header.magic, kHotKeysMagic, sizeof(header.magic));
    header.crc = HeaderCrc(header);
    return WriteFull(file, 0, std::as_bytes(std::span(&header, 1)));
  });
}

absl::Status DiskRows::ReadHotKeys() {
  int64_t room = 0;
  for (const std::unique_ptr<CopyCache>& cache : caches_) room += cache->capacity_rows();
  const std::string path = HotKeysPath();
  HOTROW_ASSIGN_OR_RETURN(const bool exists, options_.env->Exists(path));
  if (!exists) return absl::NotFoundError(path);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                          options_.env->Open(path, OpenMode::kRead));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  const auto damaged = [&] {
    return absl::DataLossError(absl::StrCat(path, ": is damaged; the next one takes its place"));
  };
  HotKeysHeader header;
  if (size < static_cast<int64_t>(sizeof(header))) return damaged();
  HOTROW_RETURN_IF_ERROR(ReadFull(*file, 0, std::as_writable_bytes(std::span(&header, 1))));
  if (std::memcmp(header.magic, kHotKeysMagic, sizeof(header.magic)) != 0 ||
      header.crc != HeaderCrc(header)) {
    return damaged();
  }
  HOTROW_RETURN_IF_ERROR(
      CheckFormatVersion(path, "file of hot keys", header.version, kHotKeysVersions));
  const Hash128 tables = {header.tables[0], header.tables[1]};
  if (!(tables == TablesDigest())) {
    return absl::FailedPreconditionError(
        absl::StrCat(path, ": is of a model with other tables; the next one takes its place"));
  }
  const auto bytes = size - static_cast<int64_t>(sizeof(header));
  if (bytes % static_cast<int64_t>(sizeof(HotKey)) != 0 ||
      header.keys != static_cast<uint64_t>(bytes) / sizeof(HotKey)) {
    return damaged();
  }
  const auto keys = static_cast<int64_t>(header.keys);
  std::vector<HotKey> some(static_cast<size_t>(std::min(keys, kHotKeysAtOnce)));
  const auto for_each_part =
      [&](absl::FunctionRef<absl::Status(std::span<const HotKey> part)> call) -> absl::Status {
    for (int64_t begin = 0; begin < keys; begin += kHotKeysAtOnce) {
      const std::span<HotKey> part =
          std::span(some).first(static_cast<size_t>(std::min(keys - begin, kHotKeysAtOnce)));
      const int64_t at =
          static_cast<int64_t>(sizeof(header)) + begin * static_cast<int64_t>(sizeof(HotKey));
      HOTROW_RETURN_IF_ERROR(ReadFull(*file, at, std::as_writable_bytes(part)));
      HOTROW_RETURN_IF_ERROR(call(part));
    }
    return absl::OkStatus();
  };
  // First whether the file is good.
  uint32_t crc = 0;
  HOTROW_RETURN_IF_ERROR(for_each_part([&](std::span<const HotKey> part) -> absl::Status {
    crc = Crc32c(std::as_bytes(part), crc);
    for (const HotKey& key : part) {
      if (key.table >= options_.tables.size() || key.uses > CopyCache::kUsesMax) return damaged();
    }
    return absl::OkStatus();
  }));
  if (crc != header.keys_crc) return damaged();
  // Then its keys, as many as the cache has room for: where not for all, the most used.
  Reader* const reader = readers_.front().get();
  const auto warm = [&](uint32_t uses_min, uint32_t uses_max) {
    return for_each_part([&](std::span<const HotKey> part) -> absl::Status {
      for (auto next = part.begin(); next != part.end() && room > 0;) {
        reader->Clear();
        int64_t wanted = 0;
        for (; next != part.end() && wanted < std::min(room, options_.keys_max); ++next) {
          if (next->uses < uses_min || next->uses > uses_max) continue;
          reader->Want({.key = next->key, .table = next->table});
          ++wanted;
        }
        room -= wanted;
        HOTROW_RETURN_IF_ERROR(Fetch(*current_, reader));
      }
      return absl::OkStatus();
    });
  };
  if (keys <= room) return warm(0, CopyCache::kUsesMax);
  for (uint32_t uses = CopyCache::kUsesMax + 1; uses-- > 0 && room > 0;) {
    HOTROW_RETURN_IF_ERROR(warm(uses, uses));
  }
  return absl::OkStatus();
}

}  // namespace hotrow::internal
