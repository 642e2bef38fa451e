#include "store/ssd/ssd_room_impl.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/math.h"
#include "base/out_of_room.h"
#include "store/ssd/ssd_image_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kManifestBlockBytes = 4096;  // of the file system, at most
constexpr int64_t kSnapshotsPlanned = 2;
// Open at both ends of the log, reserved for the cleaner, and a little to work with.
constexpr int64_t kSegmentsMin = 8;
// The part that rows may fill of the log that is not reserved; the rest is what cleaning lives on.
constexpr double kFillMax = 0.95;
// See BoundSnapshot.
constexpr double kSnapshotUtilisationWanted = 0.8;
constexpr double kSnapshotUtilisationMin = 0.5;
constexpr int64_t kSnapshotSlack = 4;    // segments: two open ones, and two filled in part
constexpr int64_t kSnapshotMargin = 6;   // segments that others may use up while rows are moved
constexpr int64_t kSnapshotLeaves = 16;  // of all segments a 16th, for rows that change beside it

// What a manifest and the one that takes its place need on disk.
int64_t ManifestPairBytes(const SsdManifest& manifest, int64_t snapshots, int64_t segment_refs) {
  return 2 * RoundUp(SsdManifestBytes(std::ssize(manifest.tables), snapshots, segment_refs,
                                      std::ssize(manifest.directories)),
                     kManifestBlockBytes);
}

int64_t SnapshotRefs(const SsdManifest& manifest) {
  int64_t refs = 0;
  for (const SsdSnapshot& s : manifest.snapshots) refs += std::ssize(s.segments);
  return refs;
}

}  // namespace

int64_t SsdManifestReserve(const SsdManifest& manifest, int64_t segments) {
  return std::max(
      ManifestPairBytes(manifest, kSnapshotsPlanned, (kSnapshotsPlanned + 1) * segments),
      ManifestPairBytes(manifest, std::ssize(manifest.snapshots),
                        segments + SnapshotRefs(manifest)));
}

absl::StatusOr<int64_t> SsdSegmentsMax(const SsdStoreOptions& options,
                                       const SsdManifest& manifest) {
  const int64_t segment_bytes = manifest.segment_bytes;
  int64_t segments = options.disk_budget_bytes / segment_bytes;
  while (segments > 0 && segments * segment_bytes + SsdManifestReserve(manifest, segments) >
                             options.disk_budget_bytes) {
    --segments;
  }
  int64_t needed = kSegmentsMin;
  const auto count = [&](std::span<const SsdSegmentRef> refs) {
    for (const SsdSegmentRef& ref : refs) needed = std::max<int64_t>(needed, ref.slot + 1);
  };
  count(manifest.segments);
  for (const SsdSnapshot& snapshot : manifest.snapshots) count(snapshot.segments);
  if (segments >= needed) return segments;
  return OutOfRoomError(absl::StrCat(
      "SSD store ", options.path, ": the disk budget of ", options.disk_budget_bytes,
      " bytes is too small: this store needs ", needed * segment_bytes, " for its segments and ",
      SsdManifestReserve(manifest, needed), " for its manifest; raise ", options.disk_option));
}

int64_t SsdRoom::RowBytesMax() const {
  int64_t retained = 0;
  for (const SsdLog::SegmentView& segment : log_.Segments()) {
    if (segment.state == SsdSegment::State::kRetained || segment.damaged) ++retained;
  }
  // Two are open, two reserved, and one is worth of rows that are being moved.
  const int64_t usable = log_.options().segments_max - retained - SsdLog::kReservedSegments - 3;
  return static_cast<int64_t>(
      kFillMax * static_cast<double>(std::max<int64_t>(usable, 0) * log_.SegmentCapacity()));
}

int64_t SsdRoom::SegmentsForErasing() const { return 1 + log_.options().segments_max / 32; }

int64_t SsdRoom::LooseBytesMax(int64_t segments) const {
  // Two are open, two reserved.
  const int64_t usable = segments - SsdLog::kReservedSegments - 2 - SegmentsForErasing();
  return static_cast<int64_t>(
      kFillMax * static_cast<double>(std::max<int64_t>(usable, 0) * log_.SegmentCapacity()));
}

absl::Status SsdRoom::CheckChanges(const Changes& changes,
                                   const std::vector<SsdSegmentRef>* snapshot) const {
  std::vector<bool> slots;
  if (snapshot != nullptr) {
    slots.resize(static_cast<size_t>(log_.options().segments_max));
    for (const SsdSegmentRef& ref : *snapshot) slots[ref.slot] = true;
  }
  const SsdLog::HeldView held = log_.Held(snapshot == nullptr ? nullptr : &slots);
  if (held.segments == 0) return absl::OkStatus();
  const int64_t need = std::min(held.loose_bytes + changes.log_bytes,
                                held.tombstone_bytes + live_.log_bytes() + changes.new_log_bytes);
  if (need <= LooseBytesMax(log_.options().segments_max - held.segments)) return absl::OkStatus();
  return OutOfRoomError(absl::StrCat(
      "SSD store ", options_.path, ": the disk budget of ", options_.disk_budget_bytes,
      " bytes is full: rows take ", live_.log_bytes(), " bytes in the log, a snapshot holds ",
      held.segments * log_.options().segment_bytes, ", and beside it there is no room for ",
      changes.log_bytes, " bytes of rows that change; raise ", options_.disk_option,
      ", or erase rows and take a snapshot (a checkpoint) in the place of that one"));
}

bool SsdRoom::LacksRoomAfterSnapshot(const Changes& changes) const {
  return std::min(changes.log_bytes, live_.log_bytes() + changes.new_log_bytes) >
         LooseBytesMax(log_.options().segments_max - BoundSnapshot().wanted);
}

absl::Status SsdRoom::CheckNew(int64_t need) const {
  return live_.log_bytes() + need <= RowBytesMax() ? absl::OkStatus() : Full(need);
}

absl::Status SsdRoom::CheckRows(const SsdIndex& index, std::span<const RowKey> index_keys) const {
  int64_t need = 0;
  for (const RowKey& key : index_keys) need += tables_.log_bytes(key.table);
  const int64_t limit = RowBytesMax();
  if (live_.log_bytes() + need <= limit) return absl::OkStatus();
  std::vector<SsdLocation> locations(index_keys.size());
  index.Find(index_keys, locations);
  need = 0;
  for (size_t i = 0; i < index_keys.size(); ++i) {
    if (locations[i] == kNoLocation) need += tables_.log_bytes(index_keys[i].table);
  }
  if (need == 0 || live_.log_bytes() + need <= limit) return absl::OkStatus();
  return Full(need);
}

absl::Status SsdRoom::Full(int64_t need) const {
  // Also garbage beside rows that are in use.
  int64_t held = 0;
  for (const SsdLog::SegmentView& s : log_.Segments()) {
    if (s.state == SsdSegment::State::kRetained) held += log_.options().segment_bytes;
    if (s.state == SsdSegment::State::kSealed && s.snapshots > 0) {
      held += std::max<int64_t>(log_.SegmentCapacity() - s.live_bytes, 0);
    }
  }
  return OutOfRoomError(absl::StrCat(
      "SSD store ", options_.path, ": the disk budget of ", options_.disk_budget_bytes,
      " bytes is full: rows take ", live_.log_bytes(), " bytes in the log, ", held,
      " more are held by snapshots, and ", need, " are needed; raise ", options_.disk_option, ", ",
      held > 0 ? "or take a snapshot (a checkpoint) in the place of those, or " : "or ",
      "erase rows"));
}

SsdRoom::SnapshotBounds SsdRoom::BoundSnapshot() const {
  int64_t damaged = 0;
  for (const SsdLog::SegmentView& s : log_.Segments()) damaged += s.damaged;
  const int64_t needed =
      CeilDiv(live_.log_bytes() + TombstoneBytes(), log_.SegmentCapacity()) + damaged;
  const int64_t most = log_.options().segments_max - needed - kSsdHighWater - 2;
  const auto filled = [&](double utilisation) {
    const double segments = std::ceil(static_cast<double>(needed) / utilisation);
    return static_cast<int64_t>(segments) + kSnapshotSlack;
  };
  // Beside it there is to be room to erase rows, and to change some.
  const int64_t segments_max = log_.options().segments_max;
  const int64_t leaves_room = segments_max - SsdLog::kReservedSegments - 2 - SegmentsForErasing() -
                              CeilDiv(segments_max, kSnapshotLeaves);
  return {.wanted = std::min(std::max(filled(kSnapshotUtilisationWanted), most - kSnapshotMargin),
                             leaves_room),
          .most = std::max(filled(kSnapshotUtilisationMin), most)};
}

absl::Status SsdRoom::CheckSnapshot(int64_t segments) const {
  const int64_t most = BoundSnapshot().most;
  if (segments <= most) return absl::OkStatus();
  const int64_t segment_bytes = log_.options().segment_bytes;
  return OutOfRoomError(absl::StrCat(
      "SSD store ", options_.path, ": a snapshot would hold ", segments * segment_bytes,
      " bytes for ", live_.log_bytes(), " bytes of rows, may hold ", most * segment_bytes,
      ", and there is no room to move them together; drop older snapshots or raise the disk "
      "budget, ",
      options_.disk_option, ", of ", options_.disk_budget_bytes));
}

absl::Status SsdRoom::CheckManifest(const SsdManifest& next) const {
  const int64_t segments_max = log_.options().segments_max;
  const int64_t need =
      ManifestPairBytes(next, std::ssize(next.snapshots), segments_max + SnapshotRefs(next));
  const int64_t room = options_.disk_budget_bytes - segments_max * log_.options().segment_bytes;
  if (need <= room) return absl::OkStatus();
  return OutOfRoomError(absl::StrCat(
      "SSD store ", options_.path, ": the manifest with ", next.snapshots.size(),
      " snapshots may take ", need, " bytes, the disk budget of ", options_.disk_budget_bytes,
      " leaves ", room, " for it; drop snapshots or raise ", options_.disk_option));
}

bool SsdRoom::HasRoomForImage(const SsdIndex& index, const SsdManifest& manifest) const {
  return (log_.files() + SsdLog::kReservedSegments) * log_.options().segment_bytes +
             SsdIndexImageBytes(index) +
             SsdManifestReserve(manifest, log_.options().segments_max) <=
         options_.disk_budget_bytes;
}

int64_t SsdRoom::TombstoneBytes() const {
  int64_t bytes = 0;
  for (const SsdLog::SegmentView& s : log_.Segments()) {
    if (s.state == SsdSegment::State::kSealed || s.state == SsdSegment::State::kOpen) {
      bytes += s.tombstone_bytes;
    }
  }
  return bytes;
}

int64_t SsdRoom::SnapshotOnlyBytes() const {
  int64_t bytes = 0;
  for (const SsdLog::SegmentView& s : log_.Segments()) {
    if (s.state == SsdSegment::State::kRetained) bytes += log_.options().segment_bytes;
  }
  return bytes;
}

}  // namespace hotrow::internal
