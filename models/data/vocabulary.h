#ifndef HOTROW_MODELS_DATA_VOCABULARY_H_
#define HOTROW_MODELS_DATA_VOCABULARY_H_

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// The keys of one table that have their own rows; all others count as the unknown key.
//
// Threads: const methods may run concurrently.
class KeptKeys {
 public:
  // keys: any order, each once, without unknown_key.
  KeptKeys(std::string table, uint64_t min_count, uint64_t unknown_key, std::vector<uint64_t> keys);

  bool Contains(uint64_t key) const {
    for (size_t at = Slot(key);; at = (at + 1) & mask_) {
      if (slots_[at] == key) return true;
      if (slots_[at] == unknown_key_) return false;
    }
  }
  const std::string& table() const { return table_; }
  uint64_t min_count() const { return min_count_; }
  uint64_t unknown_key() const { return unknown_key_; }
  const std::vector<uint64_t>& keys() const { return keys_; }  // ascending

 private:
  size_t Slot(uint64_t key) const;

  std::string table_;
  uint64_t min_count_;
  uint64_t unknown_key_;
  std::vector<uint64_t> keys_;
  // Open addressing, at most half full; the unknown key marks an empty slot. The salt keeps data
  // with chosen keys from filling neighbouring slots; nothing that can be seen depends on it.
  uint64_t salt_;
  std::vector<uint64_t> slots_;
  size_t mask_;
};

// Which keys have their own rows, of each table that merges rare ones. It is part of a trained
// model: the same text must mean the same row wherever the model is used.
// docs/formats/vocabulary.md has its bytes.
class Vocabulary {
 public:
  Vocabulary() = default;
  explicit Vocabulary(std::vector<KeptKeys> tables) : tables_(std::move(tables)) {}

  const std::vector<KeptKeys>& tables() const { return tables_; }
  bool empty() const { return tables_.empty(); }
  const KeptKeys* Find(std::string_view table) const;  // null: it keeps all keys

  // The keys of both; tables as here. `before` has the same tables, or FailedPrecondition names
  // what differs and `where` it comes from.
  absl::Status Join(const Vocabulary& before, std::string_view where);

  std::string Encode() const;
  // `where` names the file in errors: DataLoss (damaged), FailedPrecondition (another version).
  static absl::StatusOr<Vocabulary> Decode(std::string_view bytes, const std::string& where);

 private:
  std::vector<KeptKeys> tables_;
};

// Counts keys of one table within a number of bytes.
//
// Threads: one at a time.
class KeyCounter {
 public:
  KeyCounter();

  // What Grow takes beside bytes(), until it has freed the smaller table.
  int64_t bytes_to_grow() const;
  bool full() const { return 10 * (used_ + 1) > 7 * static_cast<int64_t>(keys_.size()); }
  void Grow();
  // Adds a key; not when full().
  void Add(uint64_t key);
  int64_t bytes() const { return static_cast<int64_t>(keys_.size()) * kSlotBytes; }
  int64_t distinct() const { return used_; }
  // The keys that were counted min_count times or more, in any order.
  std::vector<uint64_t> KeysFrom(uint64_t min_count) const;

 private:
  static constexpr int64_t kSlotBytes = sizeof(uint64_t) + sizeof(uint32_t);

  // Where a key is looked for first; the table goes on at the next slots.
  size_t Home(uint64_t key) const;

  uint64_t salt_;  // as of KeptKeys
  std::vector<uint64_t> keys_;
  std::vector<uint32_t> counts_;  // 0: the slot is empty; stays at its largest value
  int64_t used_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_VOCABULARY_H_
