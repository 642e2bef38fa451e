#include "cache/lru_stack.h"

#include <algorithm>
#include <bit>
#include <cstddef>
#include <utility>

#include "base/check.h"
#include "base/math.h"

namespace hotrow {
namespace {

constexpr size_t kTableEntriesMin = 64;

}  // namespace

LruStack::LruStack() : table_(kTableEntriesMin, Entry{0, -1}) { CompactSlots(); }

int64_t LruStack::MemoryBytes() const {
  return static_cast<int64_t>(table_.capacity() * sizeof(Entry) +
                              words_.capacity() * sizeof(uint64_t) +
                              tree_.capacity() * sizeof(int64_t));
}

LruStack::Entry& LruStack::FindEntry(uint64_t hash) {
  const size_t mask = table_.size() - 1;
  size_t at = static_cast<size_t>(hash) & mask;
  while (table_[at].slot >= 0 && table_[at].hash != hash) at = (at + 1) & mask;
  return table_[at];
}

void LruStack::GrowTable() {
  std::vector<Entry> old(table_.size() * 2, Entry{0, -1});
  old.swap(table_);
  for (const Entry& entry : old) {
    if (entry.slot >= 0) FindEntry(entry.hash) = entry;
  }
}

void LruStack::AddToTree(int64_t block, int64_t delta) {
  for (int64_t i = block + 1; i < std::ssize(tree_); i += i & -i) {
    tree_[static_cast<size_t>(i)] += delta;
  }
}

int64_t LruStack::Rank(int64_t slot) const {
  const int64_t word = slot / 64;
  const int64_t block = slot / kBlockBits;
  int64_t rank = 0;
  for (int64_t i = block; i > 0; i -= i & -i) rank += tree_[static_cast<size_t>(i)];
  for (int64_t w = block * kBlockWords; w < word; ++w) {
    rank += std::popcount(words_[static_cast<size_t>(w)]);
  }
  // Bits 0 .. slot % 64.
  const uint64_t upto = ~uint64_t{0} >> (63 - slot % 64);
  return rank + std::popcount(words_[static_cast<size_t>(word)] & upto);
}

void LruStack::CompactSlots() {
  // The new slot of a key is its rank less one; ranks are read off prefix sums of all words.
  std::vector<int64_t> before(words_.size());
  int64_t sum = 0;
  for (size_t w = 0; w < words_.size(); ++w) {
    before[w] = sum;
    sum += std::popcount(words_[w]);
  }
  HOTROW_CHECK(sum == size_);
  for (Entry& entry : table_) {
    if (entry.slot < 0) continue;
    const auto w = static_cast<size_t>(entry.slot / 64);
    const uint64_t below = (uint64_t{1} << (entry.slot % 64)) - 1;
    entry.slot = before[w] + std::popcount(words_[w] & below);
  }
  // As many free slots as keys, so a touch pays for its share of a constant number of moves.
  const int64_t blocks = CeilDiv(std::max<int64_t>(2 * size_, 1), kBlockBits);
  words_.assign(static_cast<size_t>(blocks * kBlockWords), 0);
  words_.shrink_to_fit();
  for (int64_t w = 0; w < size_ / 64; ++w) words_[static_cast<size_t>(w)] = ~uint64_t{0};
  if (size_ % 64 != 0) {
    words_[static_cast<size_t>(size_ / 64)] = (uint64_t{1} << (size_ % 64)) - 1;
  }
  tree_.assign(static_cast<size_t>(blocks) + 1, 0);
  tree_.shrink_to_fit();
  for (int64_t block = 0; block < blocks; ++block) {
    const int64_t live = std::clamp<int64_t>(size_ - block * kBlockBits, 0, kBlockBits);
    const int64_t i = block + 1;
    tree_[static_cast<size_t>(i)] += live;
    const int64_t parent = i + (i & -i);
    if (parent <= blocks) tree_[static_cast<size_t>(parent)] += tree_[static_cast<size_t>(i)];
  }
  next_slot_ = size_;
}

int64_t LruStack::Touch(uint64_t hash) {
  if (next_slot_ == std::ssize(words_) * 64) CompactSlots();
  Entry* entry = &FindEntry(hash);
  int64_t distance = -1;
  if (entry->slot >= 0) {
    distance = size_ - Rank(entry->slot);
    words_[static_cast<size_t>(entry->slot / 64)] &= ~(uint64_t{1} << (entry->slot % 64));
    AddToTree(entry->slot / kBlockBits, -1);
  } else {
    ++size_;
    if (size_ > std::ssize(table_) / 4 * 3) {
      GrowTable();
      entry = &FindEntry(hash);
    }
    entry->hash = hash;
  }
  entry->slot = next_slot_++;
  words_[static_cast<size_t>(entry->slot / 64)] |= uint64_t{1} << (entry->slot % 64);
  AddToTree(entry->slot / kBlockBits, 1);
  return distance;
}

void LruStack::RemoveAbove(uint64_t limit) {
  std::vector<Entry> old(table_.size(), Entry{0, -1});
  old.swap(table_);
  size_ = 0;
  for (const Entry& entry : old) {
    if (entry.slot < 0) continue;
    if (entry.hash <= limit) {
      FindEntry(entry.hash) = entry;
      ++size_;
      continue;
    }
    words_[static_cast<size_t>(entry.slot / 64)] &= ~(uint64_t{1} << (entry.slot % 64));
    AddToTree(entry.slot / kBlockBits, -1);
  }
}

uint64_t LruStack::NthHash(int64_t rank) const {
  HOTROW_CHECK(rank >= 0 && rank < size_);
  std::vector<uint64_t> hashes;
  hashes.reserve(static_cast<size_t>(size_));
  for (const Entry& entry : table_) {
    if (entry.slot >= 0) hashes.push_back(entry.hash);
  }
  std::nth_element(hashes.begin(), hashes.begin() + rank, hashes.end());
  return hashes[static_cast<size_t>(rank)];
}

}  // namespace hotrow
