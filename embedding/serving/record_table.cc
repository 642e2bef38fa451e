#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/serving/record_table_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr int64_t kFirstRecords = 64;  // of a chunk that grows
constexpr int64_t kKeyBytes = sizeof(uint64_t);
// Three quarters of the 12 places of a bucket. A bucket is then full in some 8 % of the cases.
constexpr int64_t kRowsPerBucket = 9;
// What a table that changes makes room for beyond what it needs, so that it grows seldom: an
// eighth of its rows.
constexpr int64_t kGrowth = 8;
// Keys whose buckets and records are asked for before the first of them is looked at.
constexpr size_t kKeysAtOnce = 32;

constexpr uint64_t kEachByte = 0x0101010101010101;
constexpr uint64_t kLowBits = 0x7f * kEachByte;

// Words that readers load while they may be stored. A record's number is stored before its tag, and
// a record is written before its number, each with release: a reader that acquires the tag has all.
template <typename T>
T Load(const T& word) {
  return std::atomic_ref<T>(const_cast<T&>(word)).load(std::memory_order_acquire);
}
template <typename T>
void Store(T* word, T value) {
  std::atomic_ref<T>(*word).store(value, std::memory_order_release);
}

}  // namespace

int64_t RecordShape::stride() const {
  return RoundUp(row_bytes + kKeyBytes + (keeps_steps ? 4 : 0), alignment);
}

uint64_t RecordShape::key(const std::byte* record) const {
  uint64_t key;
  std::memcpy(&key, record + row_bytes, sizeof(key));
  return key;
}

uint32_t RecordShape::last_step(const std::byte* record) const {
  uint32_t last_step;
  std::memcpy(&last_step, record + row_bytes + kKeyBytes, sizeof(last_step));
  return last_step;
}

void RecordShape::Write(std::byte* record, uint64_t key, uint32_t last_step,
                        const std::byte* row) const {
  std::memcpy(record, row, static_cast<size_t>(row_bytes));
  std::memcpy(record + row_bytes, &key, sizeof(key));
  if (keeps_steps) std::memcpy(record + row_bytes + kKeyBytes, &last_step, sizeof(last_step));
}

namespace {

// The ways whose tag is `tag`, of a bucket's words as they were loaded; way by way.
class Matches {
 public:
  Matches(uint64_t first, uint64_t second, uint8_t tag)
      : bits_{ZeroBytes(first ^ (tag * kEachByte)),
              ZeroBytes(second ^ (tag * kEachByte)) & 0xffffffff} {}

  // -1: there is no other.
  int Next() {
    for (int word = bits_[0] != 0 ? 0 : 1; word < 2; ++word) {
      if (bits_[word] == 0) continue;
      const int way = std::countr_zero(bits_[word]) / 8;
      bits_[word] &= bits_[word] - 1;
      return 8 * word + way;
    }
    return -1;
  }

 private:
  // The highest bit of each byte that is 0, and no other bit.
  static uint64_t ZeroBytes(uint64_t x) { return ~(((x & kLowBits) + kLowBits) | x | kLowBits); }
  uint64_t bits_[2];
};

}  // namespace

RecordTable::RecordTable(const Options& options)
    : options_(options),
      shape_(options.shape),
      stride_(options.shape.stride()),
      salt_(EntropyBits()) {
  // As many records as fit, a power of two of them.
  const auto fit = static_cast<uint64_t>(std::max<int64_t>(kChunkBytes / stride_, 1));
  chunk_shift_ = std::bit_width(fit) - 1;
}

RecordTable::~RecordTable() = default;

std::string RecordTable::What(const char* what, int64_t rows) const {
  return absl::StrCat(what, " of ", rows, " rows of table \"", options_.table, "\"");
}

int64_t RecordTable::BucketsFor(int64_t rows) {
  return std::max<int64_t>(CeilDiv(rows, kRowsPerBucket), 1);
}

int64_t RecordTable::BytesFor(int64_t rows, const RecordShape& shape) {
  return rows * shape.stride() + BucketsFor(rows) * static_cast<int64_t>(sizeof(Bucket));
}

RecordTable::Place RecordTable::PlaceOf(uint64_t key, int64_t num_buckets) const {
  const uint64_t hash = Mix64(key ^ salt_);
  const auto tag = static_cast<uint8_t>(hash);
  return {.tag = tag == 0 ? uint8_t{1} : tag,
          .bucket = static_cast<int64_t>(
              FastRange32(static_cast<uint32_t>(hash >> 32), static_cast<uint64_t>(num_buckets)))};
}

// --- Records

absl::Status RecordTable::AddChunk(int64_t records) {
  // Room in both, so that nothing is thrown once the budget is less.
  const auto make_room = [](auto* list) {
    if (list->size() == list->capacity()) list->reserve(2 * list->size() + 1);  // <= 2 kRowsMax
  };
  make_room(&chunks_);
  make_room(&capacities_);
  HostBuffer<std::byte> chunk;
  HOTROW_RETURN_IF_ERROR(
      options_.share->Take(records * stride_, What("records behind those", rows_), &chunk));
  chunks_.push_back(std::move(chunk));
  capacities_.push_back(records);
  return absl::OkStatus();
}

// The records of the last chunk stay, as far as they fit.
absl::Status RecordTable::ResizeLastChunk(int64_t records) {
  HostBuffer<std::byte> resized;
  HOTROW_RETURN_IF_ERROR(
      options_.share->Take(records * stride_, What("records behind those", rows_), &resized));
  std::memcpy(resized.data(), chunks_.back().data(),
              static_cast<size_t>(std::min(records, capacities_.back()) * stride_));
  options_.share->Return(&chunks_.back());
  chunks_.back() = std::move(resized);
  capacities_.back() = records;
  return absl::OkStatus();
}

int64_t RecordTable::FreeRecords() const {
  int64_t records = num_free_ - used_;
  for (size_t c = static_cast<size_t>(chunk_); c < chunks_.size(); ++c) records += capacities_[c];
  return records;
}

uint32_t RecordTable::TakeRecord() {
  if (first_free_ != 0) {
    const auto number = static_cast<uint32_t>(first_free_ - 1);
    first_free_ = shape_.key(MutableRecord(number));
    --num_free_;
    return number;
  }
  while (used_ == capacities_[static_cast<size_t>(chunk_)]) {
    ++chunk_;
    used_ = 0;
    HOTROW_CHECK(chunk_ < std::ssize(chunks_));
  }
  return static_cast<uint32_t>((chunk_ << chunk_shift_) + used_++);
}

// For one record more, while rows are added.
absl::Status RecordTable::MakeRoom() {
  if (FreeRecords() > 0) return absl::OkStatus();
  const int64_t per_chunk = int64_t{1} << chunk_shift_;
  if (!chunks_.empty() && capacities_.back() < per_chunk) {
    return ResizeLastChunk(std::min(per_chunk, 2 * capacities_.back()));
  }
  const int64_t expected = options_.expected_rows - rows_;
  return AddChunk(std::min(per_chunk, expected > 0 ? expected : kFirstRecords));
}

absl::Status RecordTable::Add(uint64_t key, uint32_t last_step, const std::byte* row) {
  if (rows_ == kRowsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table \"", options_.table, "\" has more than ", kRowsMax, " rows, which a scorer holds"));
  }
  HOTROW_RETURN_IF_ERROR(MakeRoom());
  shape_.Write(MutableRecord(TakeRecord()), key, last_step, row);
  ++rows_;
  return absl::OkStatus();
}

void RecordTable::ListChunks() {
  list_ = std::make_unique<const std::byte*[]>(chunks_.size() + 1);
  for (size_t c = 0; c < chunks_.size(); ++c) list_[c] = chunks_[c].data();
}

void RecordTable::ForEachOlder(uint32_t line, absl::FunctionRef<void(uint64_t key)> call) const {
  HOTROW_CHECK(shape_.keeps_steps);
  for (int64_t c = 0; c <= chunk_ && c < std::ssize(chunks_); ++c) {
    const auto at = static_cast<size_t>(c);
    const int64_t records = c == chunk_ ? used_ : capacities_[at];
    for (int64_t r = 0; r < records; ++r) {
      const std::byte* const record = chunks_[at].data() + r * stride_;
      const uint32_t last_step = shape_.last_step(record);  // 0 where the record is free
      if (last_step != 0 && last_step < line) call(shape_.key(record));
    }
  }
}

// --- Index

void RecordTable::Put(HostBuffer<Bucket>* buckets, uint64_t key, uint32_t number) {
  const Place place = PlaceOf(key, buckets->size());
  for (int64_t b = place.bucket;; b = b + 1 == buckets->size() ? 0 : b + 1) {
    Bucket& bucket = (*buckets)[b];
    // The first free way. The bit of passed keys does not look like one.
    const int way = Matches(bucket.tags[0], bucket.tags[1], 0).Next();
    if (way < 0) {
      if ((bucket.tags[1] & Bucket::kPassed) == 0) {
        ++passed_;
        Store(&bucket.tags[1], bucket.tags[1] | Bucket::kPassed);
      }
      continue;
    }
    Store(&bucket.records[way], number);
    uint64_t& word = bucket.tags[way / Bucket::kTagsPerWord];
    Store(&word, word | uint64_t{place.tag} << (8 * (way % Bucket::kTagsPerWord)));
    return;
  }
}

RecordTable::Found RecordTable::FindFrom(const View& view, const Place& place, uint64_t key) const {
  int64_t b = place.bucket;
  for (int64_t looked = 0; looked < view.num_buckets; ++looked) {
    const Bucket& bucket = view.buckets[b];
    const uint64_t second = Load(bucket.tags[1]);
    Matches matches(Load(bucket.tags[0]), second, place.tag);
    for (int way = matches.Next(); way >= 0; way = matches.Next()) {
      const uint32_t number = Load(bucket.records[way]);
      if (shape_.key(Record(view.chunks, number)) == key) return {b, way, number};
    }
    if ((second & Bucket::kPassed) == 0) return {};
    b = b + 1 == view.num_buckets ? 0 : b + 1;
  }
  return {};
}

absl::Status RecordTable::Freeze() {
  if (options_.expected_rows < rows_ && !chunks_.empty() && used_ < capacities_.back()) {
    HOTROW_RETURN_IF_ERROR(ResizeLastChunk(used_));
  }
  ListChunks();
  HOTROW_RETURN_IF_ERROR(options_.share->Take(BucketsFor(std::max(rows_, options_.expected_rows)),
                                              What("the index", rows_), &buckets_));
  for (int64_t number = 0; number < rows_; ++number) {
    const auto record = static_cast<uint32_t>(number);
    const uint64_t key = shape_.key(MutableRecord(record));
    if (Has(key)) {
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", options_.table, "\" has two rows of key ", key));
    }
    Put(&buckets_, key, record);
  }
  return absl::OkStatus();
}

RecordTable::View RecordTable::view() const {
  return {.buckets = buckets_.data(), .num_buckets = buckets_.size(), .chunks = list_.get()};
}

bool RecordTable::Has(uint64_t key) const { return FindInTarget(key).bucket >= 0; }

RecordTable::View RecordTable::TargetView() const {
  return {.buckets = Target().data(), .num_buckets = Target().size(), .chunks = list_.get()};
}

void RecordTable::Find(const View& view, std::span<const uint64_t> keys,
                       std::span<const std::byte*> rows) const {
  std::array<Place, kKeysAtOnce> places;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const size_t n = std::min(keys.size() - begin, kKeysAtOnce);
    for (size_t i = 0; i < n; ++i) {
      places[i] = PlaceOf(keys[begin + i], view.num_buckets);
      __builtin_prefetch(&view.buckets[places[i].bucket]);
    }
    for (size_t i = 0; i < n; ++i) {
      const Bucket& bucket = view.buckets[places[i].bucket];
      const int way = Matches(Load(bucket.tags[0]), Load(bucket.tags[1]), places[i].tag).Next();
      if (way < 0) continue;
      const std::byte* const record = Record(view.chunks, Load(bucket.records[way]));
      __builtin_prefetch(record);
      __builtin_prefetch(record + shape_.row_bytes);
    }
    for (size_t i = 0; i < n; ++i) {
      const Found found = FindFrom(view, places[i], keys[begin + i]);
      rows[begin + i] = found.bucket < 0 ? nullptr : Record(view.chunks, found.record);
    }
  }
}

std::vector<uint64_t> RecordTable::Keys() const {
  std::vector<uint64_t> keys;
  keys.reserve(static_cast<size_t>(rows_));
  ForEachRecord([&](uint32_t number) { keys.push_back(shape_.key(Record(list_.get(), number))); });
  return keys;
}

void RecordTable::ForEachRecord(absl::FunctionRef<void(uint32_t number)> call) const {
  for (int64_t b = 0; b < buckets_.size(); ++b) {
    const Bucket& bucket = buckets_[b];
    for (int way = 0; way < kWays; ++way) {
      const uint64_t word = bucket.tags[way / Bucket::kTagsPerWord];
      const uint64_t tag = word >> (8 * (way % Bucket::kTagsPerWord)) & 0xff;
      if (tag != 0) call(bucket.records[way]);
    }
  }
}

// --- Changes

// A larger index where this one is too full for so many rows, or where too many keys have gone on
// to the next bucket, also long ago.
absl::Status RecordTable::ReserveIndex(int64_t rows) {
  if (rows <= Places() * 7 / 8 && passed_ <= buckets_.size() / 2) return absl::OkStatus();
  const absl::Status taken =
      options_.share->Take(BucketsFor(rows + rows / kGrowth), What("a larger index", rows), &next_);
  if (!taken.ok()) {
    // A full index is slow, and still right.
    return rows <= Places() ? absl::OkStatus() : taken;
  }
  passed_ = 0;
  ForEachRecord([&](uint32_t number) { Put(&next_, shape_.key(MutableRecord(number)), number); });
  return absl::OkStatus();
}

absl::Status RecordTable::Reserve(int64_t new_rows, int64_t erased) {
  HOTROW_CHECK(chunks_before_ < 0);
  chunks_before_ = std::ssize(chunks_);
  passed_before_ = passed_;
  const auto reserve = [&]() -> absl::Status {
    const int64_t per_chunk = int64_t{1} << chunk_shift_;
    const int64_t chunks_max = (kRowsMax >> chunk_shift_) + 1;
    for (int64_t missing; (missing = new_rows - FreeRecords()) > 0;) {
      if (std::ssize(chunks_) == chunks_max) {
        return absl::ResourceExhaustedError(
            absl::StrCat("table \"", options_.table, "\": records for ", new_rows,
                         " rows more; a scorer has numbers for ", kRowsMax));
      }
      const int64_t wanted = std::max({missing, rows_ / kGrowth, kFirstRecords});
      if (!AddChunk(std::min(per_chunk, wanted)).ok()) {
        HOTROW_RETURN_IF_ERROR(AddChunk(std::min(per_chunk, missing)));
      }
    }
    if (erased > 0) {
      HOTROW_RETURN_IF_ERROR(
          options_.share->Take(erased, What("a list of erased records", rows_), &erased_));
    }
    if (new_rows > 0) HOTROW_RETURN_IF_ERROR(ReserveIndex(rows_ + new_rows));
    if (std::ssize(chunks_) != chunks_before_) {
      old_list_ = std::move(list_);
      ListChunks();
    }
    return absl::OkStatus();
  };
  absl::Status status;
  try {
    status = reserve();
  } catch (const std::bad_alloc&) {
    status = absl::ResourceExhaustedError(
        absl::StrCat("table \"", options_.table, "\": no memory for ", new_rows, " rows more"));
  }
  if (!status.ok()) Cancel();
  return status;
}

void RecordTable::Cancel() {
  HOTROW_CHECK(chunks_before_ >= 0);
  if (old_list_ != nullptr) list_ = std::move(old_list_);
  while (std::ssize(chunks_) > chunks_before_) {
    options_.share->Return(&chunks_.back());
    chunks_.pop_back();
    capacities_.pop_back();
  }
  if (!next_.empty()) options_.share->Return(&next_);
  if (!erased_.empty()) options_.share->Return(&erased_);
  passed_ = passed_before_;
  chunks_before_ = -1;
}

void RecordTable::Set(uint64_t key, uint32_t last_step, const std::byte* row) {
  const Found found = FindInTarget(key);
  if (found.bucket >= 0) {
    // All but the key, which readers compare.
    std::byte* const record = MutableRecord(found.record);
    std::memcpy(record, row, static_cast<size_t>(shape_.row_bytes));
    if (shape_.keeps_steps) {
      std::memcpy(record + shape_.row_bytes + kKeyBytes, &last_step, sizeof(last_step));
    }
    return;
  }
  const uint32_t number = TakeRecord();
  shape_.Write(MutableRecord(number), key, last_step, row);
  Put(&Target(), key, number);
  ++rows_;
}

void RecordTable::Erase(uint64_t key) {
  const Found found = FindInTarget(key);
  HOTROW_CHECK(found.bucket >= 0 && num_erased_ < erased_.size());
  uint64_t& word = Target()[found.bucket].tags[found.way / Bucket::kTagsPerWord];
  Store(&word, word & ~(uint64_t{0xff} << (8 * (found.way % Bucket::kTagsPerWord))));
  erased_[num_erased_++] = found.record;
  --rows_;
}

void RecordTable::SwitchIndex() {
  if (next_.empty()) return;
  old_buckets_ = std::move(buckets_);
  buckets_ = std::move(next_);
}

void RecordTable::Release() {
  HOTROW_CHECK(chunks_before_ >= 0 && next_.empty());
  for (int64_t i = 0; i < num_erased_; ++i) {
    const uint32_t number = erased_[i];
    std::byte* const record = MutableRecord(number);
    std::memcpy(record + shape_.row_bytes, &first_free_, sizeof(first_free_));
    if (shape_.keeps_steps) std::memset(record + shape_.row_bytes + kKeyBytes, 0, sizeof(uint32_t));
    first_free_ = uint64_t{number} + 1;
    ++num_free_;
  }
  num_erased_ = 0;
  if (!erased_.empty()) options_.share->Return(&erased_);
  if (!old_buckets_.empty()) options_.share->Return(&old_buckets_);
  old_list_.reset();
  chunks_before_ = -1;
}

absl::Status RecordTable::SetNow(uint64_t key, uint32_t last_step, const std::byte* row) {
  const bool is_new = !Has(key);
  HOTROW_RETURN_IF_ERROR(Reserve(is_new ? 1 : 0, 0));
  Set(key, last_step, row);
  SwitchIndex();
  Release();
  return absl::OkStatus();
}

absl::Status RecordTable::EraseNow(uint64_t key) {
  if (!Has(key)) return absl::OkStatus();
  HOTROW_RETURN_IF_ERROR(Reserve(0, 1));
  Erase(key);
  SwitchIndex();
  Release();
  return absl::OkStatus();
}

}  // namespace hotrow::internal
