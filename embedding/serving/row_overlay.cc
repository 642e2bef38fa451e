#include "embedding/serving/row_overlay_impl.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/entropy.h"
#include "base/hash.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

constexpr size_t kKeysAtOnce = 32;  // whose words are asked for before the first is looked at

}  // namespace

RowOverlay::RowOverlay(const Options& options)
    : options_(options), stride_(options.shape.stride()), salt_(EntropyBits()) {}

RowOverlay::~RowOverlay() {
  if (!records_.empty()) options_.share->Return(&records_);
  if (!erased_.empty()) options_.share->Return(&erased_);
  if (!index_.empty()) options_.share->Return(&index_);
}

absl::StatusOr<std::unique_ptr<RowOverlay>> RowOverlay::Create(const Options& options, int64_t rows,
                                                               int64_t erased) {
  if (rows + erased >= std::numeric_limits<uint32_t>::max()) {
    return absl::ResourceExhaustedError(absl::StrCat("table \"", options.table, "\": ", rows,
                                                     " rows and ", erased,
                                                     " erased keys are too many for one update"));
  }
  std::unique_ptr<RowOverlay> out(new RowOverlay(options));
  const std::string what = absl::StrCat("an update of ", rows, " rows and ", erased,
                                        " erased keys of table \"", options.table, "\"");
  const auto entries = static_cast<uint64_t>(rows + erased);
  const auto words = static_cast<int64_t>(std::bit_ceil(entries + entries / 2 + 1));
  out->room_ = rows;
  HOTROW_RETURN_IF_ERROR(options.share->Take(words, what, &out->index_));
  if (rows > 0) {
    HOTROW_RETURN_IF_ERROR(options.share->Take(rows * out->stride_, what, &out->records_));
  }
  if (erased > 0) HOTROW_RETURN_IF_ERROR(options.share->Take(erased, what, &out->erased_));
  return out;
}

uint64_t RowOverlay::KeyOf(uint32_t entry) const {
  const int64_t number = int64_t{entry} - 1;
  return number < room_ ? options_.shape.key(record(number)) : erased_[number - room_];
}

uint32_t RowOverlay::Find(uint64_t key) const {
  const uint64_t hash = Mix64(key ^ salt_);
  const auto mask = static_cast<uint64_t>(index_.size()) - 1;
  for (uint64_t at = hash & mask;; at = (at + 1) & mask) {
    const uint64_t word = index_[static_cast<int64_t>(at)];
    if (word == 0) return kNone;
    const auto entry = static_cast<uint32_t>(word);
    if (word >> 32 == hash >> 32 && KeyOf(entry) == key) return entry;
  }
}

absl::Status RowOverlay::Put(uint64_t key, uint32_t entry) {
  if (Has(key)) {
    return absl::InvalidArgumentError(
        absl::StrCat("table \"", options_.table, "\" has key ", key, " twice in one update"));
  }
  const uint64_t hash = Mix64(key ^ salt_);
  const auto mask = static_cast<uint64_t>(index_.size()) - 1;
  uint64_t at = hash & mask;
  while (index_[static_cast<int64_t>(at)] != 0) at = (at + 1) & mask;
  index_[static_cast<int64_t>(at)] = (hash >> 32 << 32) | entry;
  return absl::OkStatus();
}

absl::Status RowOverlay::Add(uint64_t key, uint32_t last_step, const std::byte* row) {
  HOTROW_CHECK(num_rows_ < room_);
  options_.shape.Write(records_.data() + num_rows_ * stride_, key, last_step, row);
  HOTROW_RETURN_IF_ERROR(Put(key, static_cast<uint32_t>(num_rows_ + 1)));
  ++num_rows_;
  return absl::OkStatus();
}

absl::Status RowOverlay::AddErased(uint64_t key) {
  HOTROW_CHECK(num_erased_ < erased_.size());
  erased_[num_erased_] = key;
  HOTROW_RETURN_IF_ERROR(Put(key, static_cast<uint32_t>(room_ + num_erased_ + 1)));
  ++num_erased_;
  return absl::OkStatus();
}

void RowOverlay::Override(std::span<const uint64_t> keys, std::span<const std::byte*> rows) const {
  const auto mask = static_cast<uint64_t>(index_.size()) - 1;
  for (size_t begin = 0; begin < keys.size(); begin += kKeysAtOnce) {
    const size_t end = std::min(keys.size(), begin + kKeysAtOnce);
    for (size_t i = begin; i < end; ++i) {
      __builtin_prefetch(&index_[static_cast<int64_t>(Mix64(keys[i] ^ salt_) & mask)]);
    }
    for (size_t i = begin; i < end; ++i) {
      const uint32_t entry = Find(keys[i]);
      if (entry == kNone) continue;
      const int64_t number = int64_t{entry} - 1;
      rows[i] = number < room_ ? record(number) : nullptr;
    }
  }
}

}  // namespace hotrow::internal
