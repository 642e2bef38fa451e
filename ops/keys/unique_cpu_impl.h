#ifndef HOTROW_OPS_KEYS_UNIQUE_CPU_IMPL_H_
#define HOTROW_OPS_KEYS_UNIQUE_CPU_IMPL_H_

#include <algorithm>
#include <cstdint>
#include <utility>

#include "ops/keys/unique.h"

namespace hotrow::internal {

// A distinct key and how often it came. Both share a cache line, so a value costs two misses at
// most: its slot and its entry.
struct UniqueEntry {
  uint64_t key;
  int32_t count;
  int32_t place;  // of SplitTable; 0 from FindDistinct
};

// What is kept of a table while Unique runs.
struct UniqueTable {
  int32_t first_segment;
  int32_t num_unique;
  int32_t first_unique;  // where its keys begin in the output
};

// While Unique runs, table t owns the range [start, start + n) of the values' numbers, where n is
// how many values go to it and start the sum of n over the tables before (kept in table_offsets
// until the end); that cuts the workspace into a part for each table.
//
// Neither the number of segments nor that of tables is bounded by N, but the non-empty ones are: a
// table's notes lie at the start of its range, a segment's successor at its first value.
class UniqueCpuWorkspace {
 public:
  static constexpr int64_t kSlotsPerValue = 4;  // bit_ceil(2 n) < 4 n
  static constexpr int64_t kNotesPerValue = 3;
  static constexpr int64_t kBytesPerValue =
      sizeof(UniqueEntry) + (kSlotsPerValue + kNotesPerValue + 1) * sizeof(int32_t);

  explicit UniqueCpuWorkspace(const UniqueArgs& args)
      : entries_(reinterpret_cast<UniqueEntry*>(args.workspace)),
        slots_(reinterpret_cast<int32_t*>(entries_ + args.num_values)),
        notes_(slots_ + kSlotsPerValue * args.num_values),
        next_segments_(notes_ + kNotesPerValue * args.num_values) {}

  // The parts for the values from number `start` on.
  UniqueEntry* entries(int64_t start) const { return entries_ + start; }
  int32_t* slots(int64_t start) const { return slots_ + kSlotsPerValue * start; }
  int32_t* notes(int64_t start) const { return notes_ + kNotesPerValue * start; }
  UniqueTable& table(int64_t start) const {
    static_assert(sizeof(UniqueTable) == kNotesPerValue * sizeof(int32_t));
    return *reinterpret_cast<UniqueTable*>(notes(start));
  }
  // The next non-empty segment of its table, for the one whose first value is values[position]; or
  // -1.
  int32_t& next_segment(int64_t position) const { return next_segments_[position]; }

 private:
  UniqueEntry* entries_;
  int32_t* slots_;
  int32_t* notes_;
  int32_t* next_segments_;
};

// Consecutive values of one table, over its segments.
class TableValues {
 public:
  // `count` of them, from number `skip` of the segment on.
  TableValues(const UniqueArgs& args, const UniqueCpuWorkspace& workspace, int32_t segment,
              int64_t skip, int64_t count)
      : args_(args), workspace_(workspace), segment_(segment), skip_(skip), count_(count) {}
  // All n values of the table whose range begins at `start`.
  TableValues(const UniqueArgs& args, const UniqueCpuWorkspace& workspace, int64_t start, int64_t n)
      : TableValues(args, workspace, workspace.table(start).first_segment, 0, n) {}

  int64_t count() const { return count_; }
  const uint64_t* keys(int64_t position) const { return args_.values + position; }
  int32_t* inverse(int64_t position) const { return args_.inverse + position; }

  // Those of one segment: `size` values from `position` on; `first` come before them.
  struct Run {
    int32_t segment;
    int64_t position;
    int64_t size;
    int64_t first;
  };

  // Calls body(run) for run after run. Ends when body returns false; whether it never did.
  template <typename Body>
  bool ForEach(const Body& body) const {
    int32_t s = segment_;
    int64_t skip = skip_;
    for (int64_t first = 0; first < count_;) {
      const LookupSegment& segment = args_.segments[s];
      const int64_t begin = segment.begin + skip;
      const int64_t size = std::min(segment.end - begin, count_ - first);
      if (!body(Run{s, begin, size, first})) return false;
      first += size;
      skip = 0;
      s = workspace_.next_segment(segment.begin);
    }
    return true;
  }

 private:
  const UniqueArgs& args_;
  const UniqueCpuWorkspace& workspace_;
  const int32_t segment_;
  const int64_t skip_;
  const int64_t count_;
};

// Finds the distinct keys of the values, in the order of their first appearance, on this thread:
// how many they are. `inverse` gets their numbers. Room: of n values n entries and kSlotsPerValue n
// slots.
int32_t FindDistinct(const TableValues& values, UniqueEntry* entries, int32_t* slots);
// The same by hashing alone; -1, and no result: the keys collide too often. *mask: how the slots
// can be searched afterwards (KeySlots).
int32_t HashDistinct(const TableValues& values, UniqueEntry* entries, int32_t* slots,
                     uint32_t* mask);

// Moves a table's keys to their place among those of all tables. All of its n values were found
// together.
void EmitTable(const UniqueArgs& args, const UniqueCpuWorkspace& workspace, int64_t start,
               int64_t n);

// A table whose keys several threads find. It is cut into pieces, a thread's share each: what is
// done in one of the passes below may be done at once.
//
//   FindKeys(piece)      the distinct keys of each piece, in order
//   FindEarlier(block)   which of them are in an earlier piece, with their counts added there
//   CountUnique()        how many are new before each block
//   Number(block)        numbers them, and writes out the new ones
//   WriteInverse(block)
//
// A block is as many values of a piece, and then as many of its keys. How many pieces there are
// changes nothing that is written.
class SplitTable {
 public:
  static constexpr int64_t kBlockValues = 1 << 13;
  // Values of a table that is worth it: with one more thread as many as kGain, with many more
  // kValuesMin at least.
  static constexpr int64_t kValuesMin = int64_t{1} << 17;
  static constexpr int64_t kGain = int64_t{1} << 19;
  // A key that is new is looked for in all pieces before.
  static constexpr int64_t kPiecesMax = 16;

  // `start`: of the table's range, which has n >= kValuesMin values. num_pieces in [1, kPiecesMax].
  SplitTable(const UniqueArgs& args, const UniqueCpuWorkspace& workspace, int64_t start, int64_t n,
             int64_t num_pieces);

  int64_t num_pieces() const { return num_pieces_; }
  int64_t num_blocks() const { return num_blocks_; }

  void FindKeys(int64_t piece) const;
  void FindEarlier(int64_t block) const;
  void CountUnique() const;  // UniqueTable::num_unique
  void Number(int64_t block) const;
  void WriteInverse(int64_t block) const;

 private:
  struct Block {
    int32_t segment;  // that its first value lies in
    int32_t skip;     // how many values of it lie before
    int32_t num_new;  // keys, or -1: they collide; then: how many are new in the blocks before
  };

  // The values of blocks [begin, end).
  TableValues ValuesOf(int64_t begin, int64_t end) const;
  int64_t PieceOf(int64_t block) const { return block / piece_blocks_; }
  int64_t PieceBegin(int64_t piece) const { return piece * piece_blocks_ * kBlockValues; }
  // Whether the keys of some piece collide too often; one thread then finds those of the table.
  bool collided() const;
  // The keys of the block: their entries are [begin, end) of the table's.
  std::pair<int64_t, int64_t> KeysOf(int64_t block) const;
  uint32_t* FilterOf(int64_t piece) const;
  // The number of entry e of the table in the output.
  int32_t NumberOf(int64_t e) const;

  const UniqueArgs* args_;
  const UniqueCpuWorkspace* workspace_;
  int64_t start_;
  int64_t n_;
  int64_t num_blocks_;
  int64_t piece_blocks_;
  int64_t num_pieces_;
  UniqueEntry* entries_;  // [n]; those of a piece begin where its values do
  // What lies in the notes of the workspace.
  int32_t* num_keys_;  // [num_pieces]; -1: the keys of the piece collide
  uint32_t* masks_;    // [num_pieces], of KeySlots
  Block* blocks_;      // [num_blocks]
};

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_UNIQUE_CPU_IMPL_H_
