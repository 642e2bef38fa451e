#include "store/ssd/ssd_opening_impl.h"

#include <algorithm>
#include <bit>
#include <set>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/entropy.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "base/unique_id.h"
#include "store/ssd/ssd_image_impl.h"
#include "store/ssd/ssd_scan_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

// Sizes that the store chooses. A segment is a 256th of the disk budget, so that the few that must
// stay free cost little; there are at most 512, so that all files can be open at once.
constexpr int64_t kChunkBytesDefault = kMiB;
constexpr int64_t kSegmentsTarget = 256;
constexpr int64_t kSegmentsMax = 512;
constexpr int64_t kSegmentBytesDefaultMax = 256 * kMiB;

// A record's checksum covers the epoch of its segment, so a segment file of another store holds no
// valid record if no two stores use one epoch: each begins at a number drawn below the first of
// these. So that copies of one store differ as well once both are used, each opening skips up to
// so many numbers as the second says: 2^21 openings before half of all numbers are used.
constexpr uint64_t kFirstEpochMax = uint64_t{1} << 61;
constexpr uint64_t kEpochsSkippedMax = uint64_t{1} << 40;

std::string ManifestPath(const SsdStoreOptions& options) {
  return absl::StrCat(options.path, "/", std::string(kSsdManifestName));
}

// --- The state -----------------------------------------------------------------------------------

// A new store has a manifest before it has anything else, so where there are segments one was
// there. Beginning again would give out numbers that are in these files already.
absl::Status CheckNoSegments(Env& env, const SsdStoreOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(options.path));
  for (const std::string& name : names) {
    if (!ParseSsdSegmentName(name).has_value()) continue;
    return absl::FailedPreconditionError(absl::StrCat(
        options.path, ": has segments (", name, ") but no ", std::string(kSsdManifestName),
        ": put that back, or remove the segments to begin an empty store"));
  }
  return absl::OkStatus();
}

absl::StatusOr<SsdManifest> BeginState(const SsdStoreOptions& options) {
  if (options.open_at != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat(options.path, ": there is no snapshot ", options.open_at,
                     ", and no store: the file ", std::string(kSsdManifestName), " is missing"));
  }
  int64_t longest = 0;
  for (const StoreTable& t : options.tables) longest = std::max(longest, t.row_bytes);
  int64_t chunk = options.chunk_bytes;
  if (chunk == 0) {
    const auto wanted = static_cast<int64_t>(std::bit_floor(
        static_cast<uint64_t>(std::max<int64_t>(options.memory_budget_bytes / 64, 1))));
    const auto needed =
        static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(8 * SsdLogBytes(longest))));
    chunk = std::max(std::clamp(wanted, kSsdChunkBytesMin, kChunkBytesDefault), needed);
  }
  int64_t segment = options.segment_bytes;
  if (segment == 0) {
    segment = std::min(options.disk_budget_bytes / kSegmentsTarget, kSegmentBytesDefaultMax);
    segment = std::max(segment, options.disk_budget_bytes / kSegmentsMax);
    segment = std::max(segment / chunk, int64_t{1}) * chunk;
  }
  if (segment % chunk != 0 || segment < 2 * kSsdSegmentHeaderBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("SsdStoreOptions.segment_bytes: must be a multiple "
                     "of chunk_bytes (",
                     chunk, "), is ", segment));
  }
  SsdManifest manifest;
  manifest.next_epoch = 1 + UniqueId::Random().low % kFirstEpochMax;
  manifest.chunk_bytes = chunk;
  manifest.segment_bytes = segment;
  manifest.tables = options.tables;
  return manifest;
}

// Makes the snapshot that was asked for the present state.
absl::Status ChooseSnapshot(const SsdStoreOptions& options, SsdManifest* manifest) {
  if (options.open_at == 0) return absl::OkStatus();
  for (SsdSnapshot& snapshot : manifest->snapshots) {
    if (snapshot.id != options.open_at) continue;
    HOTROW_RETURN_IF_ERROR(CheckSnapshotIdentity(
        absl::StrCat("SSD store ", options.path),
        SsdTables(options.tables, manifest->tables).Describe(snapshot), options.open_at_identity));
    snapshot.committed = true;
    // The image fits when nothing was written after the snapshot.
    const bool same =
        std::equal(manifest->segments.begin(), manifest->segments.end(), snapshot.segments.begin(),
                   snapshot.segments.end(), [](const SsdSegmentRef& a, const SsdSegmentRef& b) {
                     return a.slot == b.slot && a.epoch == b.epoch && a.end_offset == b.end_offset;
                   });
    if (!same) {
      manifest->segments = snapshot.segments;
      manifest->table_rows = snapshot.table_rows;
      manifest->index_image = 0;
      manifest->index_image_id = {};
    }
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(options.path, ": there is no snapshot ", options.open_at));
}

// --- The index -----------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<SsdIndex>> CreateIndex(const SsdTables& tables, const SsdLog& log,
                                                      MemoryBudget& budget) {
  const SsdLogOptions& sizes = log.options();
  const int64_t units = sizes.segments_max * (sizes.segment_bytes / kSsdUnitBytes);
  // The most rows that the disk budget has room for.
  const int64_t shortest = *std::min_element(tables.row_bytes().begin(), tables.row_bytes().end());
  const int64_t rows_max = sizes.segments_max * log.SegmentCapacity() / SsdLogBytes(shortest) + 1;
  return SsdIndex::Create(
      {.num_tables = static_cast<int64_t>(tables.size()),
       .location_bits = static_cast<int32_t>(std::bit_width(static_cast<uint64_t>(units))),
       .max_rows_hint = rows_max,
       .seed = EntropyBits()},
      budget);
}

// Null where there is no image that can be used.
absl::StatusOr<std::unique_ptr<SsdIndex>> LoadImage(Env& env, const SsdStoreOptions& options,
                                                    const SsdManifest& manifest,
                                                    const SsdTables& tables, const SsdLog& log,
                                                    MemoryBudget& budget) {
  // A manifest of version 2 knows neither whose image it names nor how many rows each table has.
  if (manifest.index_image == 0 || manifest.table_rows.empty()) return nullptr;
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SsdIndex> index, CreateIndex(tables, log, budget));
  const std::string path = absl::StrCat(options.path, "/", SsdIndexName(manifest.index_image));
  // Without it opening takes longer, that is all. Also when there is too little memory: a damaged
  // image may ask for any amount.
  if (!ReadSsdIndexImage(env, path, manifest.index_image_id, *index).ok()) return nullptr;
  return index;
}

absl::StatusOr<std::unique_ptr<SsdIndex>> RebuildIndex(Env& env, const SsdStoreOptions& options,
                                                       const SsdManifest& manifest,
                                                       const SsdTables& tables, SsdLog& log,
                                                       SsdLive& live, MemoryBudget& budget) {
  HOTROW_ASSIGN_OR_RETURN(std::unique_ptr<SsdIndex> index, CreateIndex(tables, log, budget));
  // What the manifest says is exact beside an image alone.
  for (const SsdSegmentRef& ref : manifest.segments) log.segment(ref.slot).live_bytes = 0;
  const int64_t memory = std::max<int64_t>((budget.budget() - budget.used()) / 2, kMiB / 4);
  HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<IoQueue> queue, env.NewIoQueue(options.io));
  const auto location_of = [&](const SsdNewest& row) {
    const SsdLocation location = log.Location(row.slot, row.offset);
    live.Add(location, row.table_index(), 1);
    return location;
  };
  const SsdGeometry geometry = {manifest.segment_bytes, manifest.chunk_bytes, tables.row_bytes()};
  HOTROW_RETURN_IF_ERROR(ScanNewestSsdRows(
                             geometry, manifest.segments,
                             [&](uint32_t slot) { return log.segment(slot).file.get(); }, *queue,
                             budget, memory, index->seed(),
                             [&](std::span<const SsdNewest> rows) {
                               return AddToSsdIndex(rows, location_of, index.get());
                             })
                             .status());
  return index;
}

// Segments that hold other rows than the manifest counted are not those that it was written with.
absl::Status CheckCounts(const SsdStoreOptions& options, const SsdManifest& manifest,
                         const SsdTables& tables, const SsdLive& live) {
  const std::vector<int64_t> rows = live.table_rows();
  for (size_t t = 0; t < manifest.table_rows.size(); ++t) {
    if (rows[t] == manifest.table_rows[t]) continue;
    return absl::DataLossError(
        absl::StrCat(ManifestPath(options), ": table ", tables.number(static_cast<uint32_t>(t)),
                     " has ", manifest.table_rows[t], " rows, its segments hold ", rows[t],
                     "; `hotrow verify` lists all damage, an older checkpoint may be whole"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SsdManifest> ChooseSsdState(Env& env, const SsdStoreOptions& options) {
  const std::string path = ManifestPath(options);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) {
    HOTROW_RETURN_IF_ERROR(CheckNoSegments(env, options));
    return BeginState(options);
  }
  HOTROW_ASSIGN_OR_RETURN(const std::string bytes, ReadWholeFile(env, path, kSsdManifestBytesMax));
  absl::StatusOr<DecodedSsdManifest> decoded = DecodeSsdManifest(bytes);
  if (!decoded.ok()) {
    return absl::Status(decoded.status().code(),
                        absl::StrCat(path, ": ", std::string(decoded.status().message())));
  }
  SsdManifest manifest = std::move(decoded->manifest);
  HOTROW_RETURN_IF_ERROR(CheckSsdTables(options.path, options.tables, manifest.tables));
  HOTROW_RETURN_IF_ERROR(ChooseSnapshot(options, &manifest));
  return manifest;
}

uint64_t FirstSsdEpoch(const SsdManifest& manifest) {
  // A store that was opened too often for that skips less, rather than to run out of numbers.
  const uint64_t left = kSsdNumberMax - manifest.next_epoch;
  return manifest.next_epoch +
         UniqueId::Random().low % std::min(kEpochsSkippedMax, std::max<uint64_t>(left >> 20, 1));
}

absl::Status AdoptSsdSegments(Env& env, const SsdManifest& manifest, SsdLog& log,
                              std::vector<std::string>* surplus_files) {
  std::set<uint32_t> named;
  // Live ones last, so that their state stands.
  for (const SsdSnapshot& snapshot : manifest.snapshots) {
    for (const SsdSegmentRef& ref : snapshot.segments) {
      HOTROW_RETURN_IF_ERROR(log.Adopt(ref.slot, ref.directory, &ref));
      named.insert(ref.slot);
    }
  }
  std::vector<uint32_t> retained(named.begin(), named.end());
  for (const SsdSegmentRef& ref : manifest.segments) {
    HOTROW_RETURN_IF_ERROR(log.Adopt(ref.slot, ref.directory, &ref));
    named.insert(ref.slot);
    std::erase(retained, ref.slot);
  }
  for (const SsdSnapshot& snapshot : manifest.snapshots) {
    log.AddSnapshotRefs(snapshot.segments, 1);
  }
  log.MarkCleaned(retained);
  log.Release(retained);

  const int64_t segments_max = log.options().segments_max;
  const SsdDirs& dirs = log.options().dirs;
  std::set<std::pair<uint32_t, uint32_t>> places;  // directories and slots of what is named
  const auto add_places = [&](std::span<const SsdSegmentRef> refs) {
    for (const SsdSegmentRef& ref : refs) places.emplace(ref.directory, ref.slot);
  };
  add_places(manifest.segments);
  for (const SsdSnapshot& snapshot : manifest.snapshots) add_places(snapshot.segments);
  for (uint32_t directory = 0; directory < dirs.count(); ++directory) {
    HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names,
                            env.ListDir(dirs.path(directory)));
    for (const std::string& name : names) {
      const std::string path = absl::StrCat(dirs.path(directory), "/", name);
      if (const auto slot = ParseSsdSegmentName(name); slot.has_value()) {
        if (places.contains({directory, *slot})) continue;
        // One of a number is enough; of others, moved away, a loss of power brings the names back.
        if (static_cast<int64_t>(*slot) < segments_max && named.insert(*slot).second) {
          HOTROW_RETURN_IF_ERROR(log.Adopt(*slot, directory, nullptr));
        } else {
          surplus_files->push_back(path);
        }
      } else if (const auto number = ParseSsdIndexName(name); number.has_value()) {
        if (directory == 0 && *number != manifest.index_image) surplus_files->push_back(path);
      }
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<OpenedSsdIndex> OpenSsdIndex(Env& env, const SsdStoreOptions& options,
                                            const SsdManifest& manifest, const SsdTables& tables,
                                            SsdLog& log, SsdLive& live, MemoryBudget& budget) {
  OpenedSsdIndex opened;
  HOTROW_ASSIGN_OR_RETURN(opened.index, LoadImage(env, options, manifest, tables, log, budget));
  opened.from_image = opened.index != nullptr;
  if (opened.from_image) {
    live.Restore(manifest);
  } else {
    HOTROW_ASSIGN_OR_RETURN(opened.index,
                            RebuildIndex(env, options, manifest, tables, log, live, budget));
  }
  HOTROW_RETURN_IF_ERROR(CheckCounts(options, manifest, tables, live));
  return opened;
}

}  // namespace hotrow::internal
