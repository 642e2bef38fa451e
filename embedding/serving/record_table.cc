#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/status_macros.h"
#include "embedding/serving/frozen_rows_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kChunkBytes = int64_t{4} << 20;
constexpr int64_t kFirstRecords = 64;  // of a chunk that grows
constexpr int64_t kKeyBytes = sizeof(uint64_t);
// Of 12 places of a bucket: three quarters. A bucket is then full in some 8 % of the cases.
constexpr int64_t kRowsPerBucket = 9;
// Keys whose buckets and records are asked for before the first of them is looked at.
constexpr size_t kKeysAtOnce = 32;

int64_t StrideFor(int64_t row_bytes, int64_t alignment) {
  return RoundUp(row_bytes + kKeyBytes, alignment);
}

}  // namespace

FrozenRows::FrozenRows(const Options& options)
    : options_(options),
      stride_(StrideFor(options.row_bytes, options.alignment)),
      salt_(EntropyBits()) {
  // As many records as fit, a power of two of them.
  const auto fit = static_cast<uint64_t>(std::max<int64_t>(kChunkBytes / stride_, 1));
  chunk_shift_ = std::bit_width(fit) - 1;
}

int64_t FrozenRows::BucketsFor(int64_t rows) {
  return std::max<int64_t>(CeilDiv(rows, kRowsPerBucket), 1);
}

int64_t FrozenRows::BytesFor(int64_t rows, int64_t row_bytes, int64_t alignment) {
  return rows * StrideFor(row_bytes, alignment) +
         BucketsFor(rows) * static_cast<int64_t>(sizeof(Bucket));
}

FrozenRows::Place FrozenRows::PlaceOf(uint64_t key) const {
  const uint64_t hash = Mix64(key ^ salt_);
  const auto tag = static_cast<uint8_t>(hash);
  return {.tag = tag == 0 ? uint8_t{1} : tag,
          .bucket = FastRange32(static_cast<uint32_t>(hash >> 32),
                                static_cast<uint64_t>(buckets_.size()))};
}

bool FrozenRows::IsAt(uint32_t number, uint64_t key) const {
  uint64_t found = 0;
  std::memcpy(&found, Record(number) + options_.row_bytes, sizeof(found));
  return found == key;
}

absl::Status FrozenRows::Take(int64_t bytes, HostBuffer<std::byte>* buffer) {
  const int64_t taken = HostBytesReserved(bytes, HugePages::kTry);
  if (taken > options_.budget_bytes - *options_.used_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory_bytes: after ", rows_, " rows of table \"", options_.table, "\" ",
                     *options_.used_bytes, " bytes are taken and ", taken,
                     " more are needed; the budget is ", options_.budget_bytes));
  }
  HOTROW_ASSIGN_OR_RETURN(*buffer, HostBuffer<std::byte>::Create(bytes, HugePages::kTry));
  *options_.used_bytes += taken;
  return absl::OkStatus();
}

void FrozenRows::Return(HostBuffer<std::byte>* buffer) {
  *options_.used_bytes -= HostBytesReserved(buffer->bytes(), HugePages::kTry);
  *buffer = HostBuffer<std::byte>();
}

// The records of the last chunk stay, as far as they fit.
absl::Status FrozenRows::ResizeLastChunk(int64_t records) {
  HostBuffer<std::byte> resized;
  HOTROW_RETURN_IF_ERROR(Take(records * stride_, &resized));
  std::memcpy(resized.data(), chunks_.back().data(),
              static_cast<size_t>(std::min(records, last_capacity_) * stride_));
  Return(&chunks_.back());
  chunks_.back() = std::move(resized);
  last_capacity_ = records;
  return absl::OkStatus();
}

absl::Status FrozenRows::MakeRoom() {
  const int64_t per_chunk = int64_t{1} << chunk_shift_;
  if (rows_ < std::ssize(chunks_) * per_chunk) {
    const int64_t in_last = rows_ & (per_chunk - 1);
    if (in_last < last_capacity_) return absl::OkStatus();
    return ResizeLastChunk(std::min(per_chunk, 2 * last_capacity_));
  }
  const int64_t expected = options_.expected_rows - rows_;
  const int64_t capacity = std::min(per_chunk, expected > 0 ? expected : kFirstRecords);
  HostBuffer<std::byte> chunk;
  HOTROW_RETURN_IF_ERROR(Take(capacity * stride_, &chunk));
  chunks_.push_back(std::move(chunk));
  last_capacity_ = capacity;
  return absl::OkStatus();
}

absl::Status FrozenRows::Add(uint64_t key, const std::byte* row) {
  if (rows_ == kRowsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "table \"", options_.table, "\" has more than ", kRowsMax, " rows, which a scorer holds"));
  }
  HOTROW_RETURN_IF_ERROR(MakeRoom());
  const int64_t in_last = rows_ & ((int64_t{1} << chunk_shift_) - 1);
  std::byte* const record = chunks_.back().data() + in_last * stride_;
  std::memcpy(record, row, static_cast<size_t>(options_.row_bytes));
  std::memcpy(record + options_.row_bytes, &key, sizeof(key));
  ++rows_;
  return absl::OkStatus();
}

absl::Status FrozenRows::Freeze() {
  const int64_t in_last = rows_ & ((int64_t{1} << chunk_shift_) - 1);
  if (in_last > 0 && in_last < last_capacity_) HOTROW_RETURN_IF_ERROR(ResizeLastChunk(in_last));
  const int64_t buckets = BucketsFor(rows_);
  const int64_t bytes =
      HostBytesReserved(buckets * static_cast<int64_t>(sizeof(Bucket)), HugePages::kTry);
  if (bytes > options_.budget_bytes - *options_.used_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("memory_bytes: the index of ", rows_, " rows of table \"", options_.table,
                     "\" needs ", bytes, " bytes more, ", *options_.used_bytes,
                     " are taken; the budget is ", options_.budget_bytes));
  }
  HOTROW_ASSIGN_OR_RETURN(buckets_, HostBuffer<Bucket>::Create(buckets, HugePages::kTry));
  *options_.used_bytes += bytes;
  for (int64_t number = 0; number < rows_; ++number) {
    uint64_t key = 0;
    std::memcpy(&key, Record(static_cast<uint32_t>(number)) + options_.row_bytes, sizeof(key));
    const Place place = PlaceOf(key);
    if (FindFrom(place, key) != nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat("table \"", options_.table, "\" has two rows of key ", key));
    }
    for (uint64_t b = place.bucket;; b = b + 1 == static_cast<uint64_t>(buckets) ? 0 : b + 1) {
      Bucket& bucket = buckets_[static_cast<int64_t>(b)];
      const auto* const free = std::find(bucket.tags, bucket.tags + kWays, 0);
      if (free == bucket.tags + kWays) {
        bucket.passed = 1;
        continue;
      }
      bucket.records[free - bucket.tags] = static_cast<uint32_t>(number);
      bucket.tags[free - bucket.tags] = place.tag;
      break;
    }
  }
  return absl::OkStatus();
}

bool FrozenRows::NextMatch(const Bucket& bucket, uint8_t tag, int* way) {
  for (; *way < kWays; ++*way) {
    if (bucket.tags[*way] == tag) return true;
  }
  return false;
}

const std::byte* FrozenRows::FindFrom(const Place& place, uint64_t key) const {
  // Some bucket has a free place, since a quarter of all are free: there it ends.
  const auto buckets = static_cast<uint64_t>(buckets_.size());
  for (uint64_t b = place.bucket;; b = b + 1 == buckets ? 0 : b + 1) {
    const Bucket& bucket = buckets_[static_cast<int64_t>(b)];
    for (int way = 0; NextMatch(bucket, place.tag, &way); ++way) {
      if (IsAt(bucket.records[way], key)) return Record(bucket.records[way]);
    }
    if (bucket.passed == 0) return nullptr;
  }
}

void FrozenRows::Find(std::span<const uint64_t> keys, std::span<const std::byte*> rows) const {
  std::array<Place, kKeysAtOnce> places;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const size_t n = std::min(keys.size() - begin, kKeysAtOnce);
    for (size_t i = 0; i < n; ++i) {
      places[i] = PlaceOf(keys[begin + i]);
      __builtin_prefetch(&buckets_[static_cast<int64_t>(places[i].bucket)]);
    }
    for (size_t i = 0; i < n; ++i) {
      const Bucket& bucket = buckets_[static_cast<int64_t>(places[i].bucket)];
      int way = 0;
      if (!NextMatch(bucket, places[i].tag, &way)) continue;
      const std::byte* const record = Record(bucket.records[way]);
      __builtin_prefetch(record);
      __builtin_prefetch(record + options_.row_bytes);
    }
    for (size_t i = 0; i < n; ++i) rows[begin + i] = FindFrom(places[i], keys[begin + i]);
  }
}

std::vector<uint64_t> FrozenRows::Keys() const {
  std::vector<uint64_t> keys(static_cast<size_t>(rows_));
  for (size_t i = 0; i < keys.size(); ++i) {
    std::memcpy(&keys[i], Record(static_cast<uint32_t>(i)) + options_.row_bytes, sizeof(keys[i]));
  }
  return keys;
}

}  // namespace hotrow::internal
