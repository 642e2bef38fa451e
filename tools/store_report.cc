#include "tools/store_report.h"

#include <nlohmann/json.hpp>
#include <numeric>
#include <string_view>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/path_list.h"
#include "models/train/report.h"

namespace hotrow {
namespace {

using Json = nlohmann::ordered_json;

std::string CountText(int64_t n) { return n < 0 ? "unknown" : FormatCount(n); }
std::string BytesText(int64_t bytes) { return bytes < 0 ? "unknown" : FormatBytes(bytes); }

// Disk over rows, without what snapshots hold; negative when unknown.
double SpaceAmplification(const SsdStoreReport& report) {
  if (report.live_bytes <= 0) return -1;
  return static_cast<double>(report.disk_bytes - report.snapshot_bytes) /
         static_cast<double>(report.live_bytes);
}

// What went to the device over what was asked to be written; negative before the first row.
double WriteAmplification(const SsdStoreReport& report) {
  if (report.payload_bytes_written <= 0) return -1;
  return static_cast<double>(report.device_bytes_written) /
         static_cast<double>(report.payload_bytes_written);
}

int64_t RowsOf(const SsdStoreReport& report) {
  int64_t rows = 0;
  for (const SsdStoreReport::Table& table : report.tables) {
    if (table.rows < 0) return -1;
    rows += table.rows;
  }
  return rows;
}

// -1: not known.
int64_t RowsOf(const SsdStoreReport::Snapshot& snapshot) {
  if (snapshot.table_rows.empty()) return -1;
  return std::accumulate(snapshot.table_rows.begin(), snapshot.table_rows.end(), int64_t{0});
}

void AppendLine(std::string* out, std::string_view key, const std::string& value) {
  absl::StrAppendFormat(out, "  %-14s %s\n", std::string(key), value);
}

Json Known(int64_t n) { return n < 0 ? Json(nullptr) : Json(n); }

}  // namespace

std::string StoreReportText(const std::string& path, const SsdStoreReport& report) {
  std::string out =
      absl::StrFormat("%s: an SSD store, format version %d\n\n", path, report.format_version);
  AppendLine(&out, "rows",
             absl::StrCat(CountText(RowsOf(report)), ", ", BytesText(report.live_bytes)));
  AppendLine(&out, "log",
             absl::StrCat(FormatBytes(report.used_bytes), " in ", FormatCount(report.segments),
                          " segments of ", FormatBytes(report.segment_bytes), ", chunks of ",
                          FormatBytes(report.chunk_bytes), "; ", CountText(report.records),
                          " records, old versions and tombstones included"));
  const double space = SpaceAmplification(report);
  AppendLine(&out, "disk",
             absl::StrCat(FormatBytes(report.disk_bytes), " in ", FormatCount(report.segment_files),
                          " segment files and the rest, ", FormatBytes(report.snapshot_bytes),
                          " held by snapshots alone",
                          space < 0 ? std::string() : absl::StrFormat("; %.2f x the rows", space)));
  if (report.directories.size() > 1) {
    AppendLine(&out, "directories", JoinPathList(report.directories));
  }
  const double writes = WriteAmplification(report);
  AppendLine(&out, "written",
             absl::StrCat(FormatBytes(report.payload_bytes_written), " of rows over its life, ",
                          FormatBytes(report.device_bytes_written), " to the device",
                          writes < 0 ? std::string() : absl::StrFormat("; %.2f x", writes)));
  AppendLine(&out, "index image",
             report.has_index_image ? "there: opens fast"
                                    : "none: opening reads the footers of all segments");
  AppendLine(&out, "commits", FormatCount(static_cast<int64_t>(report.generation)));

  absl::StrAppendFormat(&out, "\n  %10s %12s %16s %12s\n", "table", "row bytes", "rows", "bytes");
  for (const SsdStoreReport::Table& t : report.tables) {
    absl::StrAppendFormat(&out, "  %10d %12s %16s %12s\n", t.table, FormatCount(t.row_bytes),
                          CountText(t.rows), BytesText(t.rows < 0 ? -1 : t.rows * t.row_bytes));
  }
  if (report.snapshots.empty()) {
    absl::StrAppend(&out, "\n  no snapshots\n");
  } else {
    absl::StrAppendFormat(&out, "\n  %20s %10s %10s %12s %16s  %s\n", "snapshot", "state",
                          "segments", "log bytes", "rows", "identity");
    for (const SsdStoreReport::Snapshot& s : report.snapshots) {
      absl::StrAppendFormat(&out, "  %20d %10s %10s %12s %16s  %s\n", s.id,
                            s.committed ? "committed" : "prepared", FormatCount(s.segments),
                            FormatBytes(s.bytes), CountText(RowsOf(s)),
                            s.identity.known() ? s.identity.ToHex() : "none");
    }
  }
  if (DamageCount(report) > 0) absl::StrAppend(&out, "\nDamage\n", DamageText(report));
  return out;
}

std::string StoreReportJson(const std::string& path, const SsdStoreReport& report) {
  Json tables = Json::array();
  for (const SsdStoreReport::Table& t : report.tables) {
    tables.push_back({{"table", t.table},
                      {"row_bytes", t.row_bytes},
                      {"rows", Known(t.rows)},
                      {"bytes", Known(t.rows < 0 ? -1 : t.rows * t.row_bytes)}});
  }
  Json snapshots = Json::array();
  for (const SsdStoreReport::Snapshot& s : report.snapshots) {
    snapshots.push_back({{"id", s.id},
                         {"committed", s.committed},
                         {"segments", s.segments},
                         {"bytes", s.bytes},
                         {"rows", Known(RowsOf(s))},
                         {"identity", s.identity.known() ? Json(s.identity.ToHex()) : Json()}});
  }
  Json damage = Json::array();
  for (const SsdDamage& d : report.damage) {
    damage.push_back({{"file", d.file}, {"offset", d.offset}, {"what", d.what}});
  }
  const double space = SpaceAmplification(report);
  const double writes = WriteAmplification(report);
  const Json all = {{"kind", "ssd_store"},
                    {"path", path},
                    {"format_version", report.format_version},
                    {"generation", report.generation},
                    {"rows", Known(RowsOf(report))},
                    {"live_bytes", Known(report.live_bytes)},
                    {"records", Known(report.records)},
                    {"used_bytes", report.used_bytes},
                    {"disk_bytes", report.disk_bytes},
                    {"directories", report.directories},
                    {"snapshot_bytes", report.snapshot_bytes},
                    {"space_amplification", space < 0 ? Json(nullptr) : Json(space)},
                    {"payload_bytes_written", report.payload_bytes_written},
                    {"device_bytes_written", report.device_bytes_written},
                    {"write_amplification", writes < 0 ? Json(nullptr) : Json(writes)},
                    {"segment_bytes", report.segment_bytes},
                    {"chunk_bytes", report.chunk_bytes},
                    {"segments", report.segments},
                    {"segment_files", report.segment_files},
                    {"has_index_image", report.has_index_image},
                    {"tables", tables},
                    {"snapshots", snapshots},
                    {"damage_count", DamageCount(report)},
                    {"damage", damage}};
  // File names may be any bytes; JSON may not.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string DamageText(const SsdStoreReport& report) {
  std::string out;
  for (const SsdDamage& d : report.damage) {
    absl::StrAppend(&out, d.file, ": offset ", d.offset, ": ", d.what, "\n");
  }
  if (report.damage_left_out > 0) {
    absl::StrAppend(&out, "and ", FormatCount(report.damage_left_out), " more\n");
  }
  return out;
}

int64_t DamageCount(const SsdStoreReport& report) {
  return static_cast<int64_t>(report.damage.size()) + report.damage_left_out;
}

// --- RocksDB -------------------------------------------------------------------------------------

std::string StoreReportText(const std::string& path, const RocksStoreReport& report) {
  std::string out = absl::StrFormat("%s: a RocksDB store\n\n", path);
  AppendLine(&out, "rows", CountText(report.rows));
  AppendLine(&out, "live",
             report.live.empty()
                 ? "none: damaged"
                 : absl::StrCat(report.live, ", ", FormatBytes(report.live_bytes), ", ",
                                FormatCount(report.table_files), " table files"));
  AppendLine(&out, "disk",
             absl::StrCat(FormatBytes(report.disk_bytes), ", ", FormatBytes(report.snapshot_bytes),
                          " held by snapshots alone"));
  absl::StrAppendFormat(&out, "\n  %10s %12s %16s %12s\n", "table", "row bytes", "rows", "bytes");
  for (const RocksStoreReport::Table& t : report.tables) {
    absl::StrAppendFormat(&out, "  %10d %12s %16s %12s\n", t.table, FormatCount(t.row_bytes),
                          CountText(t.rows), BytesText(t.rows < 0 ? -1 : t.rows * t.row_bytes));
  }
  if (report.snapshots.empty()) {
    absl::StrAppend(&out, "\n  no snapshots\n");
  } else {
    absl::StrAppendFormat(&out, "\n  %20s %10s %32s %12s %6s %10s\n", "snapshot", "state",
                          "identity", "rows", "files", "bytes");
    for (const RocksStoreReport::Snapshot& s : report.snapshots) {
      absl::StrAppendFormat(&out, "  %20d %10s %32s %12s %6d %10s\n", s.info.id,
                            s.info.committed ? "committed" : "prepared",
                            s.info.identity.known() ? s.info.identity.ToHex() : "none",
                            CountText(s.rows), s.files, FormatBytes(s.bytes));
    }
  }
  if (DamageCount(report) > 0) absl::StrAppend(&out, "\nDamage\n", DamageText(report));
  return out;
}

std::string StoreReportJson(const std::string& path, const RocksStoreReport& report) {
  Json tables = Json::array();
  for (const RocksStoreReport::Table& t : report.tables) {
    tables.push_back({{"table", t.table},
                      {"row_bytes", t.row_bytes},
                      {"rows", Known(t.rows)},
                      {"bytes", Known(t.rows < 0 ? -1 : t.rows * t.row_bytes)}});
  }
  Json snapshots = Json::array();
  for (const RocksStoreReport::Snapshot& s : report.snapshots) {
    snapshots.push_back(
        {{"id", s.info.id},
         {"committed", s.info.committed},
         {"identity", s.info.identity.known() ? Json(s.info.identity.ToHex()) : Json(nullptr)},
         {"rows", Known(s.rows)},
         {"files", s.files},
         {"bytes", s.bytes}});
  }
  Json damage = Json::array();
  for (const RocksDamage& d : report.damage) {
    damage.push_back({{"file", d.file}, {"what", d.what}});
  }
  const Json all = {{"kind", "rocksdb_store"},
                    {"path", path},
                    {"rows", Known(report.rows)},
                    {"live", report.live.empty() ? Json(nullptr) : Json(report.live)},
                    {"table_files", report.table_files},
                    {"live_bytes", report.live_bytes},
                    {"disk_bytes", report.disk_bytes},
                    {"snapshot_bytes", report.snapshot_bytes},
                    {"tables", tables},
                    {"snapshots", snapshots},
                    {"damage_count", DamageCount(report)},
                    {"damage", damage}};
  // File names may be any bytes; JSON may not.
  return all.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string DamageText(const RocksStoreReport& report) {
  std::string out;
  for (const RocksDamage& d : report.damage) absl::StrAppend(&out, d.file, ": ", d.what, "\n");
  if (report.damage_left_out > 0) {
    absl::StrAppend(&out, "and ", FormatCount(report.damage_left_out), " more\n");
  }
  return out;
}

}  // namespace hotrow
