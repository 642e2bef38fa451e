#include <algorithm>
#include <atomic>

#include "base/math.h"
#include "ops/keys/distinct_keys_impl.h"
#include "ops/keys/unique_cpu_impl.h"

namespace hotrow::internal {

SplitTable::SplitTable(const UniqueArgs& args, const UniqueCpuWorkspace& workspace, int64_t start,
                       int64_t n, int64_t num_pieces)
    : args_(&args),
      workspace_(&workspace),
      start_(start),
      n_(n),
      num_blocks_(CeilDiv(n, kBlockValues)),
      piece_blocks_(CeilDiv(num_blocks_, num_pieces)),
      num_pieces_(CeilDiv(num_blocks_, piece_blocks_)),
      entries_(workspace.entries(start)) {
  // A block needs as much room as one value's notes, so all of this fits.
  static_assert(sizeof(Block) == UniqueCpuWorkspace::kNotesPerValue * sizeof(int32_t));
  static_assert(kPiecesMax <= kBlockValues);
  blocks_ = reinterpret_cast<Block*>(workspace.notes(start + 1));
  num_keys_ = workspace.notes(start + 1 + num_blocks_);
  masks_ = reinterpret_cast<uint32_t*>(num_keys_ + num_pieces_);
  int64_t block = 0;
  TableValues(args, workspace, start, n).ForEach([&](const TableValues::Run& run) {
    for (; block * kBlockValues < run.first + run.size; ++block) {
      blocks_[block].segment = run.segment;
      blocks_[block].skip = static_cast<int32_t>(block * kBlockValues - run.first);
    }
    return true;
  });
}

TableValues SplitTable::ValuesOf(int64_t begin, int64_t end) const {
  const int64_t first = begin * kBlockValues;
  return {*args_, *workspace_, blocks_[begin].segment, blocks_[begin].skip,
          std::min(end * kBlockValues, n_) - first};
}

bool SplitTable::collided() const {
  return std::any_of(num_keys_, num_keys_ + num_pieces_, [](int32_t n) { return n < 0; });
}

std::pair<int64_t, int64_t> SplitTable::KeysOf(int64_t block) const {
  const int64_t piece = PieceOf(block);
  const int64_t begin = block * kBlockValues;
  const int64_t end = std::min(begin + kBlockValues, PieceBegin(piece) + num_keys_[piece]);
  return {begin, std::max(begin, end)};
}

int32_t SplitTable::NumberOf(int64_t e) const {
  if (e < PieceBegin(1)) return workspace_->table(start_).first_unique + static_cast<int32_t>(e);
  return workspace_->table(start_).first_unique + blocks_[e / kBlockValues].num_new +
         entries_[e].place;
}

uint32_t* SplitTable::FilterOf(int64_t piece) const {
  return masks_ + num_pieces_ + PieceBegin(piece) * UniqueCpuWorkspace::kNotesPerValue;
}

void SplitTable::FindKeys(int64_t piece) const {
  const int64_t first_block = piece * piece_blocks_;
  const int64_t begin = PieceBegin(piece);
  UniqueEntry* const entries = entries_ + begin;
  const int32_t num_keys =
      HashDistinct(ValuesOf(first_block, std::min(first_block + piece_blocks_, num_blocks_)),
                   entries, workspace_->slots(start_ + begin), &masks_[piece]);
  num_keys_[piece] = num_keys;
  if (piece + 1 == num_pieces_) return;
  KeyFilter filter(FilterOf(piece), num_keys);
  filter.Clear();
  for (int32_t e = 0; e < num_keys; ++e) filter.Add(KeySlots::Hash(entries[e].key));
}

// UniqueEntry::place becomes ~ the number of the first entry of the key, or how many new keys come
// before it in the block.
void SplitTable::FindEarlier(int64_t block) const {
  if (collided()) return;
  const auto [begin, end] = KeysOf(block);
  constexpr int64_t kGroup = KeySlots::kGroup;
  int32_t num_new = 0;
  int64_t probes_left = PieceOf(block) * KeySlots::ProbesMax(end - begin);
  for (int64_t group = begin; group < end; group += kGroup) {
    UniqueEntry* const entries = entries_ + group;
    const int64_t group_size = std::min(kGroup, end - group);
    // The keys that are in no piece so far.
    uint64_t keys[kGroup];
    uint64_t hashes[kGroup];
    uint8_t left[kGroup];
    int64_t num_left = group_size;
    for (int64_t i = 0; i < group_size; ++i) {
      keys[i] = entries[i].key;
      hashes[i] = KeySlots::Hash(keys[i]);
      left[i] = static_cast<uint8_t>(i);
    }
    for (int64_t piece = 0; piece < PieceOf(block) && num_left > 0; ++piece) {
      const KeyFilter filter(FilterOf(piece), num_keys_[piece]);
      for (int64_t i = 0; i < num_left; ++i) filter.Prefetch(hashes[i]);
      uint64_t sought[kGroup];
      uint64_t sought_hashes[kGroup];
      uint8_t sought_at[kGroup];
      int64_t num_sought = 0;
      for (int64_t i = 0; i < num_left; ++i) {
        sought[num_sought] = keys[i];
        sought_hashes[num_sought] = hashes[i];
        sought_at[num_sought] = static_cast<uint8_t>(i);
        num_sought += filter.MayHave(hashes[i]) ? 1 : 0;
      }
      const int64_t first = PieceBegin(piece);
      int32_t found[kGroup];
      const KeySlots slots(entries_ + first, workspace_->slots(start_ + first), masks_[piece]);
      if (!slots.Find(sought, sought_hashes, num_sought, found, &probes_left)) {
        blocks_[block].num_new = -1;
        return;
      }
      uint64_t gone = 0;
      for (int64_t i = 0; i < num_sought; ++i) {
        if (found[i] < 0) continue;
        UniqueEntry& entry = entries[left[sought_at[i]]];
        const int64_t place = first + found[i];
        // Each of several later pieces may have the key.
        std::atomic_ref<int32_t> count(entries_[place].count);
        if (num_pieces_ == 2) {
          count.store(count.load(std::memory_order_relaxed) + entry.count,
                      std::memory_order_relaxed);
        } else {
          count.fetch_add(entry.count, std::memory_order_relaxed);
        }
        entry.place = static_cast<int32_t>(~place);
        gone |= uint64_t{1} << sought_at[i];
      }
      if (piece + 1 == PieceOf(block)) break;
      int64_t still = 0;
      for (int64_t i = 0; i < num_left; ++i) {
        keys[still] = keys[i];
        hashes[still] = hashes[i];
        left[still] = left[i];
        still += (gone >> i & 1) != 0 ? 0 : 1;
      }
      num_left = still;
    }
    for (int64_t i = 0; i < group_size; ++i) {
      if (entries[i].place >= 0) entries[i].place = num_new++;
    }
  }
  blocks_[block].num_new = num_new;
}

void SplitTable::CountUnique() const {
  UniqueTable& table = workspace_->table(start_);
  const bool too_many_probes =
      !collided() && std::any_of(blocks_, blocks_ + num_blocks_,
                                 [](const Block& block) { return block.num_new < 0; });
  if (too_many_probes) num_keys_[0] = -1;
  if (collided()) {
    table.num_unique = FindDistinct(ValuesOf(0, num_blocks_), entries_, workspace_->slots(start_));
    return;
  }
  table.num_unique = 0;
  for (int64_t block = 0; block < num_blocks_; ++block) {
    table.num_unique += std::exchange(blocks_[block].num_new, table.num_unique);
  }
}

void SplitTable::Number(int64_t block) const {
  if (collided()) {
    if (block == 0) EmitTable(*args_, *workspace_, start_, n_);
    return;
  }
  constexpr int64_t kAhead = 16;
  const auto [begin, end] = KeysOf(block);
  // The slots are not needed any more.
  const int64_t piece_begin = PieceBegin(PieceOf(block));
  int32_t* const numbers = workspace_->slots(start_ + piece_begin) + (begin - piece_begin);
  for (int64_t e = begin; e < end; ++e) {
    const int32_t ahead = entries_[std::min(e + kAhead, end - 1)].place;
    if (ahead < 0) __builtin_prefetch(entries_ + ~ahead);
    const UniqueEntry& entry = entries_[e];
    const int32_t number = NumberOf(entry.place >= 0 ? e : ~entry.place);
    numbers[e - begin] = number;
    if (entry.place < 0) continue;
    args_->unique[number] = entry.key;
    args_->counts[number] = entry.count;
  }
}

void SplitTable::WriteInverse(int64_t block) const {
  if (collided()) return;
  const int64_t piece = PieceOf(block);
  const int32_t first_unique = workspace_->table(start_).first_unique;
  if (piece == 0 && first_unique == 0) return;
  const int32_t* const numbers = workspace_->slots(start_ + PieceBegin(piece));
  const TableValues values = ValuesOf(block, block + 1);
  values.ForEach([&](const TableValues::Run& run) {
    int32_t* const inverse = values.inverse(run.position);
    for (int64_t i = 0; i < run.size; ++i) {
      inverse[i] = piece == 0 ? first_unique + inverse[i] : numbers[inverse[i]];
    }
    return true;
  });
}

}  // namespace hotrow::internal
