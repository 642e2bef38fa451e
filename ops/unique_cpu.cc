#include <algorithm>
#include <bit>
#include <cstring>

#include "base/hash.h"
#include "ops/prefetch.h"
#include "ops/unique.h"
#include "ops/unique_impl.h"

namespace hotrow {
namespace internal {
namespace {

// A distinct key and how often it came. Key and count share a cache line, so a value costs two
// misses at most: its slot and its entry.
struct Entry {
  uint64_t key;
  int32_t count;
  int32_t unused;
};

// What is kept per segment and per table. Neither number is bounded by N, but the non-empty ones
// are, and each owns a distinct value: note(first value of the segment) and note(start of the
// table's range, see below). So N notes are enough, and only S + T of them are ever touched.
struct Note {
  int32_t next_segment;   // of a segment: the next non-empty one of its table, or -1
  int32_t first_segment;  // of a table
  int32_t num_unique;     // of a table
  int32_t first_unique;   // of a table: where its keys begin in the output
};

constexpr int64_t kSlotsPerValue = 4;  // bit_ceil(2 n) < 4 n
constexpr int64_t kBytesPerValue = kSlotsPerValue * sizeof(int32_t) + sizeof(Entry) + sizeof(Note);

// While Unique runs, table t owns the range [start, start + n) of the values' numbers, where n is
// how many values go to it and start the sum of n over the tables before (kept in table_offsets
// until the end); that cuts the workspace into a part for each table.
class Workspace {
 public:
  explicit Workspace(const UniqueArgs& args)
      : entries_(reinterpret_cast<Entry*>(args.workspace)),
        notes_(reinterpret_cast<Note*>(entries_ + args.num_values)),
        slots_(reinterpret_cast<int32_t*>(notes_ + args.num_values)) {}

  Entry* entries(int64_t start) const { return entries_ + start; }
  Note& note(int64_t number) const { return notes_[number]; }
  int32_t* slots(int64_t start) const { return slots_ + kSlotsPerValue * start; }

 private:
  Entry* entries_;
  Note* notes_;
  int32_t* slots_;
};

// Open addressing with linear probing, at most half full. A slot holds 1 + the number of an entry,
// 0 is empty: every 64-bit key is legal, so no key can mark one.
//
// Keys may have been chosen to collide, so there is a limit to the slots that are looked at beyond
// the first one of each value; who passes it sorts instead (SortTable). At half full a value looks
// at 1.5 of them on average when all are distinct (Knuth, vol. 3, 6.4), and at fewer otherwise.
class DistinctKeys {
 public:
  DistinctKeys(int32_t* slots, int64_t num_values, Entry* entries)
      : slots_(slots), entries_(entries) {
    const uint64_t num_slots = std::bit_ceil(static_cast<uint64_t>(2 * num_values));
    mask_ = static_cast<uint32_t>(num_slots - 1);  // num_values < 2^31, so num_slots <= 2^32
    probes_left_ = kProbesPerValue * num_values + kProbesMin;
    std::memset(slots, 0, num_slots * sizeof(int32_t));
  }

  // Adds the values and writes the number of each one's key. Works block by block in three passes,
  // so that the misses of a block overlap: find the slots, find the entries, compare. False: the
  // keys collide too often; what was added so far is of no use.
  bool Add(const uint64_t* values, int64_t n, int32_t* inverse) {
    constexpr int64_t kBlock = 64;
    uint32_t positions[kBlock];
    for (int64_t begin = 0; begin < n; begin += kBlock) {
      const int64_t size = std::min(kBlock, n - begin);
      for (int64_t i = 0; i < size; ++i) {
        positions[i] = static_cast<uint32_t>(Mix64(values[begin + i])) & mask_;
        __builtin_prefetch(slots_ + positions[i], 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        const int32_t slot = slots_[positions[i]];
        __builtin_prefetch(entries_ + (slot - (slot != 0)), 1);
      }
      for (int64_t i = 0; i < size; ++i) {
        inverse[begin + i] = FindOrAdd(values[begin + i], positions[i]);
      }
      if (probes_left_ < 0) return false;
    }
    return true;
  }

  int32_t size() const { return size_; }

 private:
  static constexpr int64_t kProbesPerValue = 8;
  static constexpr int64_t kProbesMin = 1024;

  // Any number where the limit is passed.
  int32_t FindOrAdd(uint64_t key, uint32_t position) {
    for (;; position = (position + 1) & mask_) {
      const int32_t slot = slots_[position];
      if (slot == 0) {
        entries_[size_] = {key, 1, 0};
        slots_[position] = size_ + 1;
        return size_++;
      }
      if (entries_[slot - 1].key == key) {
        ++entries_[slot - 1].count;
        return slot - 1;
      }
      if (--probes_left_ < 0) return 0;
    }
  }

  int32_t* const slots_;
  Entry* const entries_;
  uint32_t mask_;
  int64_t probes_left_;
  int32_t size_ = 0;
};

// Writes where each table's range starts into table_offsets.
void StartRanges(const UniqueArgs& args) {
  std::fill_n(args.table_offsets, args.num_tables + 1, 0);
  for (const LookupSegment& segment : args.segments) {
    args.table_offsets[segment.table + 1] += segment.end - segment.begin;
  }
  for (int32_t t = 0; t < args.num_tables; ++t) args.table_offsets[t + 1] += args.table_offsets[t];
}

// Chains the non-empty segments of each table in order.
void ChainSegments(const UniqueArgs& args, const Workspace& workspace) {
  for (int32_t t = 0; t < args.num_tables; ++t) {
    if (args.table_offsets[t] < args.table_offsets[t + 1]) {
      workspace.note(args.table_offsets[t]).first_segment = -1;
    }
  }
  for (auto s = static_cast<int32_t>(args.segments.size()) - 1; s >= 0; --s) {
    const LookupSegment& segment = args.segments[s];
    if (segment.begin == segment.end) continue;
    Note& table = workspace.note(args.table_offsets[segment.table]);
    workspace.note(segment.begin).next_segment = table.first_segment;
    table.first_segment = s;
  }
}

// Calls body(position, count, first) for each segment of the table: its values are count ones from
// `position` on, and `first` of the table's values come before them. Ends when body returns false;
// whether it never did.
template <typename Body>
bool ForEachSegment(const UniqueArgs& args, const Workspace& workspace, int64_t start,
                    const Body& body) {
  int64_t first = 0;
  for (int32_t s = workspace.note(start).first_segment; s >= 0;
       s = workspace.note(args.segments[s].begin).next_segment) {
    const LookupSegment& segment = args.segments[s];
    const int64_t count = segment.end - segment.begin;
    if (!body(segment.begin, count, first)) return false;
    first += count;
  }
  return true;
}

// The same as DistinctKeys for n values by sorting them: slower, whatever the keys are.
int32_t SortTable(const UniqueArgs& args, const Workspace& workspace, int64_t start, int64_t n) {
  struct Value {
    uint64_t key;
    int32_t number;  // among the table's values
  };
  static_assert(sizeof(Value) <= kSlotsPerValue * sizeof(int32_t));
  static_assert(2 <= kSlotsPerValue && sizeof(Entry) >= sizeof(int32_t));
  Entry* const entries = workspace.entries(start);
  auto* const values = reinterpret_cast<Value*>(workspace.slots(start));
  ForEachSegment(args, workspace, start, [&](int64_t position, int64_t count, int64_t first) {
    for (int64_t i = 0; i < count; ++i) {
      values[first + i] = {args.values[position + i], static_cast<int32_t>(first + i)};
    }
    return true;
  });
  std::sort(values, values + n, [](const Value& a, const Value& b) {
    return a.key != b.key ? a.key < b.key : a.number < b.number;
  });
  // Of each value the number of the first one with its key. Where the entries come to stand first,
  // then where the sorted values stood, when those are not needed any more.
  auto* firsts = reinterpret_cast<int32_t*>(entries);
  for (int64_t i = 0; i < n; ++i) {
    const bool same = i > 0 && values[i].key == values[i - 1].key;
    firsts[values[i].number] = same ? firsts[values[i - 1].number] : values[i].number;
  }
  std::memcpy(workspace.slots(start), firsts, static_cast<size_t>(n) * sizeof(int32_t));
  firsts = workspace.slots(start);
  int32_t* const entry_of = firsts + n;  // by the number of the first value
  int32_t size = 0;
  ForEachSegment(args, workspace, start, [&](int64_t position, int64_t count, int64_t first) {
    for (int64_t i = 0; i < count; ++i) {
      const int32_t number = firsts[first + i];
      if (number == first + i) {
        entries[size] = {args.values[position + i], 0, 0};
        entry_of[number] = size++;
      }
      ++entries[entry_of[number]].count;
      args.inverse[position + i] = entry_of[number];
    }
    return true;
  });
  return size;
}

// Finds the keys of the table whose range is [start, end); inverse gets numbers within the table.
void DedupTable(const UniqueArgs& args, const Workspace& workspace, int64_t start, int64_t end) {
  DistinctKeys keys(workspace.slots(start), end - start, workspace.entries(start));
  const bool found = ForEachSegment(
      args, workspace, start, [&](int64_t position, int64_t count, int64_t /*first*/) {
        return keys.Add(args.values + position, count, args.inverse + position);
      });
  workspace.note(start).num_unique =
      found ? keys.size() : SortTable(args, workspace, start, end - start);
}

// Moves the table's keys to their place among those of all tables.
void EmitTable(const UniqueArgs& args, const Workspace& workspace, int64_t start) {
  const Note& table = workspace.note(start);
  const Entry* const entries = workspace.entries(start);
  for (int32_t u = 0; u < table.num_unique; ++u) {
    args.unique[table.first_unique + u] = entries[u].key;
    args.counts[table.first_unique + u] = entries[u].count;
  }
  if (table.first_unique == 0) return;
  for (int32_t s = table.first_segment; s >= 0;
       s = workspace.note(args.segments[s].begin).next_segment) {
    for (int64_t i = args.segments[s].begin; i < args.segments[s].end; ++i) {
      args.inverse[i] += table.first_unique;
    }
  }
}

// Calls body(start, end) for the range of each table that has one.
template <typename Body>
void ForEachTable(const ExecContext& ctx, const UniqueArgs& args, Body&& body) {
  ParallelFor(ctx.pool, args.num_tables, 1, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      if (args.table_offsets[t] < args.table_offsets[t + 1]) {
        body(args.table_offsets[t], args.table_offsets[t + 1]);
      }
    }
  });
}

}  // namespace

absl::Status UniqueCpu(const ExecContext& ctx, const UniqueArgs& args) {
  StartRanges(args);
  if (args.num_values == 0) return absl::OkStatus();
  const Workspace workspace(args);
  ChainSegments(args, workspace);
  ForEachTable(ctx, args,
               [&](int64_t start, int64_t end) { DedupTable(args, workspace, start, end); });
  int32_t num_unique = 0;
  for (int32_t t = 0; t < args.num_tables; ++t) {
    if (args.table_offsets[t] == args.table_offsets[t + 1]) continue;
    Note& table = workspace.note(args.table_offsets[t]);
    table.first_unique = num_unique;
    num_unique += table.num_unique;
  }
  ForEachTable(ctx, args, [&](int64_t start, int64_t) { EmitTable(args, workspace, start); });
  // The ranges have served; now table_offsets gets what the caller asked for.
  num_unique = 0;
  for (int32_t t = 0; t < args.num_tables; ++t) {
    const int64_t start = args.table_offsets[t];
    const int32_t size = start < args.table_offsets[t + 1] ? workspace.note(start).num_unique : 0;
    args.table_offsets[t] = num_unique;
    num_unique += size;
  }
  args.table_offsets[args.num_tables] = num_unique;
  return absl::OkStatus();
}

int64_t UniqueCpuWorkspaceBytes(int64_t num_values) { return num_values * kBytesPerValue; }

}  // namespace internal
}  // namespace hotrow
