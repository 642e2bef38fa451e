#include "models/data/vocabulary.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/crc32c.h"
#include "base/entropy.h"
#include "base/format_version.h"
#include "base/hash.h"
#include "base/status_macros.h"
#include "models/json/quote.h"

namespace hotrow {
namespace {

static_assert(std::endian::native == std::endian::little, "files are little-endian");

constexpr std::string_view kMagic = "HRVOCAB\n";
constexpr FormatVersions kVersions = {.first = 1, .last = 1};
constexpr size_t kHeadBytes = 24;  // magic, version, CRC-32C of these 12 bytes, size of all
constexpr size_t kCrcBytes = 4;
constexpr uint64_t kMaxTables = 1 << 20;
constexpr size_t kFirstSlots = 1024;

uint32_t CrcOf(std::string_view bytes) { return Crc32c(std::as_bytes(std::span(bytes))); }

template <typename T>
void Append(T value, std::string* out) {
  out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

// False where the bytes end first.
template <typename T>
bool Take(std::string_view* bytes, T* value) {
  if (bytes->size() < sizeof(T)) return false;
  std::memcpy(value, bytes->data(), sizeof(T));
  bytes->remove_prefix(sizeof(T));
  return true;
}

absl::Status Damaged(const std::string& where, std::string_view what) {
  return absl::DataLossError(absl::StrCat(where, ": damaged: ", std::string(what),
                                          "; use a copy of the model, or another checkpoint"));
}

}  // namespace

KeptKeys::KeptKeys(std::string table, uint64_t min_count, uint64_t unknown_key,
                   std::vector<uint64_t> keys)
    : table_(std::move(table)),
      min_count_(min_count),
      unknown_key_(unknown_key),
      keys_(std::move(keys)),
      salt_(EntropyBits()) {
  std::sort(keys_.begin(), keys_.end());
  slots_.assign(std::bit_ceil(2 * keys_.size() + 2), unknown_key_);
  mask_ = slots_.size() - 1;
  for (const uint64_t key : keys_) {
    HOTROW_CHECK(key != unknown_key_);
    size_t at = Slot(key);
    while (slots_[at] != unknown_key_) at = (at + 1) & mask_;
    slots_[at] = key;
  }
}

size_t KeptKeys::Slot(uint64_t key) const {
  return static_cast<size_t>(Mix64(key ^ salt_)) & mask_;
}

const KeptKeys* Vocabulary::Find(std::string_view table) const {
  for (const KeptKeys& kept : tables_) {
    if (kept.table() == table) return &kept;
  }
  return nullptr;
}

absl::Status Vocabulary::Join(const Vocabulary& before, std::string_view where) {
  const auto differs = [&](const std::string& table, std::string_view what) {
    return absl::FailedPreconditionError(
        absl::StrCat(std::string(where), ": table ", QuoteForMessage(table), " ", std::string(what),
                     "; use the schema that the model was trained with, or train anew"));
  };
  for (const KeptKeys& kept : before.tables_) {
    if (Find(kept.table()) == nullptr) {
      return differs(kept.table(), "merges rare values there (min_count), and not in this schema");
    }
  }
  std::vector<KeptKeys> joined;
  for (const KeptKeys& kept : tables_) {
    const KeptKeys* const other = before.Find(kept.table());
    if (other == nullptr) {
      return differs(kept.table(), "merges rare values in this schema (min_count), and not there");
    }
    if (other->unknown_key() != kept.unknown_key()) {
      return differs(kept.table(),
                     absl::StrCat("has the key ", other->unknown_key(),
                                  " for rare values there, and ", kept.unknown_key(), " here"));
    }
    std::vector<uint64_t> keys;
    std::set_union(kept.keys().begin(), kept.keys().end(), other->keys().begin(),
                   other->keys().end(), std::back_inserter(keys));
    joined.emplace_back(kept.table(), kept.min_count(), kept.unknown_key(), std::move(keys));
  }
  tables_ = std::move(joined);
  return absl::OkStatus();
}

std::string Vocabulary::Encode() const {
  std::string body;
  Append(static_cast<uint64_t>(tables_.size()), &body);
  for (const KeptKeys& kept : tables_) {
    Append(static_cast<uint64_t>(kept.table().size()), &body);
    body += kept.table();
    Append(kept.min_count(), &body);
    Append(kept.unknown_key(), &body);
    Append(static_cast<uint64_t>(kept.keys().size()), &body);
    body.append(reinterpret_cast<const char*>(kept.keys().data()),
                kept.keys().size() * sizeof(uint64_t));
  }
  std::string out(kMagic);
  Append(kVersions.last, &out);
  Append(CrcOf(out), &out);
  Append(static_cast<uint64_t>(kHeadBytes + body.size() + kCrcBytes), &out);
  out += body;
  Append(CrcOf(out), &out);
  return out;
}

absl::StatusOr<Vocabulary> Vocabulary::Decode(std::string_view bytes, const std::string& where) {
  std::string_view rest = bytes;
  uint32_t version = 0;
  uint32_t crc = 0;
  uint64_t size = 0;
  if (bytes.size() < kHeadBytes + kCrcBytes || bytes.substr(0, kMagic.size()) != kMagic) {
    return Damaged(where, "it is no vocabulary");
  }
  rest.remove_prefix(kMagic.size());
  Take(&rest, &version);
  Take(&rest, &crc);
  if (crc != CrcOf(bytes.substr(0, kMagic.size() + sizeof version))) {
    return Damaged(where, "the checksum of its head differs");
  }
  HOTROW_RETURN_IF_ERROR(CheckFormatVersion(where, "vocabulary of version", version, kVersions));
  Take(&rest, &size);
  if (size != bytes.size()) {
    return Damaged(where, absl::StrCat("it has ", bytes.size(), " bytes, not ", size));
  }
  std::string_view last = bytes.substr(bytes.size() - kCrcBytes);
  Take(&last, &crc);
  if (crc != CrcOf(bytes.substr(0, bytes.size() - kCrcBytes))) {
    return Damaged(where, "its checksum differs");
  }
  rest.remove_suffix(kCrcBytes);
  uint64_t num_tables = 0;
  if (!Take(&rest, &num_tables) || num_tables > kMaxTables) {
    return Damaged(where, "the number of tables is wrong");
  }
  std::vector<KeptKeys> tables;
  std::set<std::string> names;
  for (uint64_t t = 0; t < num_tables; ++t) {
    const auto wrong = [&] { return Damaged(where, absl::StrCat("table ", t, " is wrong")); };
    uint64_t length = 0;
    if (!Take(&rest, &length) || length > rest.size()) return wrong();
    const std::string name(rest.substr(0, length));
    rest.remove_prefix(length);
    uint64_t min_count = 0;
    uint64_t unknown = 0;
    uint64_t count = 0;
    if (!Take(&rest, &min_count) || !Take(&rest, &unknown) || !Take(&rest, &count)) return wrong();
    if (count > rest.size() / sizeof(uint64_t) || !names.insert(name).second) return wrong();
    std::vector<uint64_t> keys(count);
    if (count > 0) std::memcpy(keys.data(), rest.data(), count * sizeof(uint64_t));
    rest.remove_prefix(count * sizeof(uint64_t));
    for (size_t i = 0; i < keys.size(); ++i) {
      if (keys[i] == unknown || (i > 0 && keys[i - 1] >= keys[i])) return wrong();
    }
    tables.emplace_back(name, min_count, unknown, std::move(keys));
  }
  if (!rest.empty()) return Damaged(where, "there are bytes after the last table");
  return Vocabulary(std::move(tables));
}

KeyCounter::KeyCounter() : salt_(EntropyBits()), keys_(kFirstSlots), counts_(kFirstSlots) {}

size_t KeyCounter::Home(uint64_t key) const {
  return static_cast<size_t>(Mix64(key ^ salt_)) & (keys_.size() - 1);
}

int64_t KeyCounter::bytes_to_grow() const { return 2 * bytes(); }

void KeyCounter::Grow() {
  const std::vector<uint64_t> keys = std::exchange(keys_, std::vector<uint64_t>(2 * keys_.size()));
  const std::vector<uint32_t> counts =
      std::exchange(counts_, std::vector<uint32_t>(2 * counts_.size()));
  const size_t mask = keys_.size() - 1;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (counts[i] == 0) continue;
    size_t at = Home(keys[i]);
    while (counts_[at] != 0) at = (at + 1) & mask;
    keys_[at] = keys[i];
    counts_[at] = counts[i];
  }
}

void KeyCounter::Add(uint64_t key) {
  const size_t mask = keys_.size() - 1;
  size_t at = Home(key);
  while (counts_[at] != 0 && keys_[at] != key) at = (at + 1) & mask;
  if (counts_[at] == 0) {
    keys_[at] = key;
    ++used_;
  }
  if (counts_[at] != std::numeric_limits<uint32_t>::max()) ++counts_[at];
}

std::vector<uint64_t> KeyCounter::KeysFrom(uint64_t min_count) const {
  std::vector<uint64_t> out;
  for (size_t i = 0; i < keys_.size(); ++i) {
    if (counts_[i] > 0 && counts_[i] >= min_count) out.push_back(keys_[i]);
  }
  return out;
}

}  // namespace hotrow
