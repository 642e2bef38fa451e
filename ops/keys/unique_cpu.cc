#include <algorithm>

#include "absl/container/inlined_vector.h"
#include "ops/keys/unique.h"
#include "ops/keys/unique_cpu_impl.h"
#include "ops/keys/unique_impl.h"

namespace hotrow::internal {
namespace {

using Workspace = UniqueCpuWorkspace;

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
      workspace.table(args.table_offsets[t]).first_segment = -1;
    }
  }
  for (auto s = static_cast<int32_t>(args.segments.size()) - 1; s >= 0; --s) {
    const LookupSegment& segment = args.segments[s];
    if (segment.begin == segment.end) continue;
    UniqueTable& table = workspace.table(args.table_offsets[segment.table]);
    workspace.next_segment(segment.begin) = table.first_segment;
    table.first_segment = s;
  }
}

// The tables that several threads work on, and loops over them and the others.
class SplitTables {
 public:
  // Those that would keep one thread busy for more than half of what all have to do for all tables.
  SplitTables(const ExecContext& ctx, const UniqueArgs& args, const Workspace& workspace)
      : ctx_(ctx), args_(args) {
    const int64_t num_threads = ctx.pool == nullptr ? 1 : ctx.pool->num_threads();
    if (num_threads == 1) return;
    values_min_ = std::max({SplitTable::kValuesMin, SplitTable::kGain / (num_threads - 1),
                            args.num_values / std::min(2 * num_threads, kTablesMax)});
    for (int32_t t = 0; t < args.num_tables; ++t) {
      const int64_t start = args.table_offsets[t];
      const int64_t n = args.table_offsets[t + 1] - start;
      if (n < values_min_) continue;
      tables_.emplace_back(args, workspace, start, n,
                           std::min(num_threads, SplitTable::kPiecesMax));
    }
  }

  const auto& tables() const { return tables_; }

  // Calls whole(start, n) for the range of each table that has one and is not split, and
  // part(table, number) for what each split table has: as many as `count` says.
  template <typename Whole, typename Part>
  void ForEachTable(const Whole& whole, int64_t (SplitTable::*count)() const,
                    const Part& part) const {
    ParallelFor(ctx_.pool, args_.num_tables + Total(count), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        if (i >= args_.num_tables) {
          CallPart(i - args_.num_tables, count, part);
          continue;
        }
        const int64_t start = args_.table_offsets[i];
        const int64_t n = args_.table_offsets[i + 1] - start;
        if (0 < n && n < values_min_) whole(start, n);
      }
    });
  }
  // Calls body(table, block) for the blocks of the split tables.
  template <typename Body>
  void ForEachBlock(const Body& body) const {
    ParallelFor(ctx_.pool, Total(&SplitTable::num_blocks), 1, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) CallPart(i, &SplitTable::num_blocks, body);
    });
  }

 private:
  static constexpr int64_t kTablesMax = 32;

  int64_t Total(int64_t (SplitTable::*count)() const) const {
    int64_t total = 0;
    for (const SplitTable& table : tables_) total += (table.*count)();
    return total;
  }
  template <typename Part>
  void CallPart(int64_t i, int64_t (SplitTable::*count)() const, const Part& part) const {
    const SplitTable* table = tables_.data();
    for (; i >= (table->*count)(); ++table) i -= (table->*count)();
    part(*table, i);
  }

  const ExecContext& ctx_;
  const UniqueArgs& args_;
  int64_t values_min_ = INT64_MAX;
  absl::InlinedVector<SplitTable, kTablesMax> tables_;  // never more
};

}  // namespace

void EmitTable(const UniqueArgs& args, const Workspace& workspace, int64_t start, int64_t n) {
  const UniqueTable& table = workspace.table(start);
  const UniqueEntry* const entries = workspace.entries(start);
  for (int32_t u = 0; u < table.num_unique; ++u) {
    args.unique[table.first_unique + u] = entries[u].key;
    args.counts[table.first_unique + u] = entries[u].count;
  }
  if (table.first_unique == 0) return;
  TableValues(args, workspace, start, n).ForEach([&](const TableValues::Run& run) {
    int32_t* const inverse = args.inverse + run.position;
    for (int64_t i = 0; i < run.size; ++i) inverse[i] += table.first_unique;
    return true;
  });
}

absl::Status UniqueCpu(const ExecContext& ctx, const UniqueArgs& args) {
  StartRanges(args);
  if (args.num_values == 0) return absl::OkStatus();
  const Workspace workspace(args);
  ChainSegments(args, workspace);
  const SplitTables split(ctx, args, workspace);
  split.ForEachTable(
      [&](int64_t start, int64_t n) {
        workspace.table(start).num_unique =
            FindDistinct(TableValues(args, workspace, start, n), workspace.entries(start),
                         workspace.slots(start));
      },
      &SplitTable::num_pieces,
      [](const SplitTable& table, int64_t piece) { table.FindKeys(piece); });
  split.ForEachBlock([](const SplitTable& table, int64_t block) { table.FindEarlier(block); });
  for (const SplitTable& table : split.tables()) table.CountUnique();
  int32_t num_unique = 0;
  for (int32_t t = 0; t < args.num_tables; ++t) {
    if (args.table_offsets[t] == args.table_offsets[t + 1]) continue;
    UniqueTable& table = workspace.table(args.table_offsets[t]);
    table.first_unique = num_unique;
    num_unique += table.num_unique;
  }
  split.ForEachTable([&](int64_t start, int64_t n) { EmitTable(args, workspace, start, n); },
                     &SplitTable::num_blocks,
                     [](const SplitTable& table, int64_t block) { table.Number(block); });
  split.ForEachBlock([](const SplitTable& table, int64_t block) { table.WriteInverse(block); });
  // The ranges have served; now table_offsets gets what the caller asked for.
  num_unique = 0;
  for (int32_t t = 0; t < args.num_tables; ++t) {
    const int64_t start = args.table_offsets[t];
    const int32_t size = start < args.table_offsets[t + 1] ? workspace.table(start).num_unique : 0;
    args.table_offsets[t] = num_unique;
    num_unique += size;
  }
  args.table_offsets[args.num_tables] = num_unique;
  return absl::OkStatus();
}

int64_t UniqueCpuWorkspaceBytes(int64_t num_values) {
  return num_values * Workspace::kBytesPerValue;
}

}  // namespace hotrow::internal
