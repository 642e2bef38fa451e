#include "store/open.h"

#include <iterator>
#include <optional>
#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/status_macros.h"
#include "store/rocks/rocks_dir_impl.h"
#include "store/ssd/ssd_verify_impl.h"
#include "store/store_facts.h"

namespace hotrow {
namespace {

// --- One kind each -------------------------------------------------------------------------------

absl::StatusOr<std::unique_ptr<RowStore>> Open(const HostStoreOptions& options) {
  return HostStore::Open(options);
}
absl::StatusOr<std::unique_ptr<RowStore>> Open(const SsdStoreOptions& options) {
  return SsdStore::Open(options);
}
absl::StatusOr<std::unique_ptr<RowStore>> Open(const RocksStoreOptions& options) {
  return OpenRocksStore(options);
}

StoreOptions MakeHostOptions(const CommonStoreOptions& common) {
  return HostStoreOptions{.tables = common.tables,
                          .budget_bytes = common.memory_budget_bytes,
                          .snapshot_dir = common.path,
                          .open_at = common.open_at,
                          .open_at_identity = common.open_at_identity,
                          .memory_option = common.memory_option,
                          .env = common.env};
}
StoreOptions MakeSsdOptions(const CommonStoreOptions& common) {
  return SsdStoreOptions{.path = common.path,
                         .more_paths = common.more_paths,
                         .tables = common.tables,
                         .memory_budget_bytes = common.memory_budget_bytes,
                         .disk_budget_bytes = common.disk_budget_bytes,
                         .open_at = common.open_at,
                         .open_at_identity = common.open_at_identity,
                         .memory_option = common.memory_option,
                         .disk_option = common.disk_option,
                         .env = common.env};
}
StoreOptions MakeRocksOptions(const CommonStoreOptions& common) {
  return RocksStoreOptions{.path = common.path,
                           .tables = common.tables,
                           .memory_budget_bytes = common.memory_budget_bytes,
                           .disk_budget_bytes = common.disk_budget_bytes,
                           .open_at = common.open_at,
                           .open_at_identity = common.open_at_identity,
                           .exact_counts = false,
                           .memory_option = common.memory_option,
                           .disk_option = common.disk_option};
}

absl::StatusOr<StoreContents> PeekSsd(Env& env, const std::string& path) {
  StoreContents contents;
  HOTROW_ASSIGN_OR_RETURN(const std::optional<SsdStoreReport> report,
                          internal::InspectLockedSsdStore(env, path));
  if (!report.has_value()) return contents;
  for (const SsdStoreReport::Table& table : report->tables) contents.has_rows |= table.rows != 0;
  for (const SsdStoreReport::Snapshot& snapshot : report->snapshots) {
    contents.snapshots.push_back(snapshot.id);
    contents.has_commits |= snapshot.committed;
  }
  return contents;
}

absl::StatusOr<StoreContents> PeekRocks(Env&, const std::string& path) {
  StoreContents contents;
  Env& env = PosixEnv();
  HOTROW_ASSIGN_OR_RETURN(const bool exists,
                          env.Exists(absl::StrCat(path, "/", internal::kRocksLiveName)));
  if (!exists) return contents;
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<SnapshotReader> reader,
      OpenRocksSnapshot({.path = path, .snapshot = 0, .memory_budget_bytes = kRocksMemoryMin}));
  const absl::Status first = reader->Iterate([&](const RowKey&, std::span<const std::byte>) {
    contents.has_rows = true;
    return absl::CancelledError();
  });
  if (!first.ok() && !absl::IsCancelled(first)) return first;
  HOTROW_ASSIGN_OR_RETURN(internal::RocksDirectory directory, internal::LookAtRocksDirectory(path));
  contents.snapshots = std::move(directory.snapshots);
  for (const SnapshotId id : contents.snapshots) {
    HOTROW_ASSIGN_OR_RETURN(const bool committed,
                            env.Exists(absl::StrCat(internal::RocksSnapshotDir(path, id), "/",
                                                    internal::kRocksCommittedName)));
    contents.has_commits |= committed;
  }
  return contents;
}

// Also without RocksDB: files of hotrow's own say what a snapshot is.
absl::Status CheckRocksSnapshot(const SnapshotReaderOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<StoreTable> tables,
                          internal::ReadRocksTables(options.path));
  HOTROW_ASSIGN_OR_RETURN(const internal::RocksSnapshot snapshot,
                          internal::ReadRocksSnapshot(options.path, options.snapshot, tables));
  return CheckSnapshotIdentity(absl::StrCat("RocksDB store ", options.path), snapshot.info,
                               options.identity);
}

absl::StatusOr<SnapshotVerdict> VerifySsd(const SnapshotReaderOptions& options) {
  Env& env = options.env == nullptr ? PosixEnv() : *options.env;
  HOTROW_ASSIGN_OR_RETURN(const bool is_open, internal::IsSsdStoreOpen(env, options.path));
  HOTROW_ASSIGN_OR_RETURN(
      const SsdStoreReport report,
      is_open ? internal::VerifySsdSnapshot(env, options.path, options.snapshot, options.identity)
              : VerifySsdStore(env, options.path));
  SnapshotVerdict verdict = {.damage = {}, .of_whole_store = !is_open};
  std::vector<std::string>& lines = verdict.damage;
  for (const SsdDamage& damage : report.damage) {
    lines.push_back(absl::StrCat(damage.file, ": offset ", damage.offset, ": ", damage.what));
  }
  if (report.damage_left_out > 0) {
    lines.push_back(absl::StrCat(options.path, ": and ", report.damage_left_out, " more"));
  }
  return verdict;
}

absl::StatusOr<SnapshotVerdict> VerifyRocks(const SnapshotReaderOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const RocksStoreReport report,
                          VerifyRocksSnapshot(options.path, options.snapshot));
  SnapshotVerdict verdict;
  for (const RocksDamage& damage : report.damage) {
    verdict.damage.push_back(absl::StrCat(damage.file, ": ", damage.what));
  }
  return verdict;
}

// --- All kinds -----------------------------------------------------------------------------------

struct KindEntry {
  StoreFacts facts;
  StoreOptions (*make_options)(const CommonStoreOptions& common);
  absl::StatusOr<std::unique_ptr<SnapshotReader>> (*open_snapshot)(const SnapshotReaderOptions&);
  // What is null there is nothing to do for.
  absl::StatusOr<std::unique_ptr<SnapshotChanges>> (*open_changes)(
      const SnapshotReaderOptions&, const ParentSnapshot& parent) = nullptr;
  absl::StatusOr<StoreContents> (*peek)(Env& env, const std::string& path) = nullptr;
  absl::Status (*check)(const SnapshotReaderOptions& options) = nullptr;
  absl::StatusOr<SnapshotVerdict> (*verify)(const SnapshotReaderOptions&) = nullptr;
};

// In the order of StoreKind, like StoreOptions.
constexpr KindEntry kKinds[] = {
    {.facts = {.word = "memory", .in_place = true, .planned = true},
     .make_options = MakeHostOptions,
     .open_snapshot = OpenHostSnapshot,
     .check = [](const SnapshotReaderOptions& o) { return OpenHostSnapshot(o).status(); }},
    {.facts = {.word = "ssd", .on_disk = true, .striped = true, .planned = true},
     .make_options = MakeSsdOptions,
     .open_snapshot = OpenSsdSnapshot,
     .open_changes = OpenSsdChanges,
     .peek = PeekSsd,
     .check = [](const SnapshotReaderOptions& o) { return DescribeSsdSnapshot(o).status(); },
     .verify = VerifySsd},
    // RocksDB takes what it is given for a cache.
    {.facts = {.word = "rocksdb", .on_disk = true, .filling_bytes = int64_t{256} << 20},
     .make_options = MakeRocksOptions,
     .open_snapshot = OpenRocksSnapshot,
     .peek = PeekRocks,
     .check = CheckRocksSnapshot,
     .verify = VerifyRocks},
};
static_assert(std::size(kKinds) == std::variant_size_v<StoreOptions>);

template <StoreKind kKind>
using OptionsOf = std::variant_alternative_t<static_cast<size_t>(kKind), StoreOptions>;
static_assert(std::is_same_v<OptionsOf<StoreKind::kMemory>, HostStoreOptions> &&
              std::is_same_v<OptionsOf<StoreKind::kSsd>, SsdStoreOptions> &&
              std::is_same_v<OptionsOf<StoreKind::kRocksDb>, RocksStoreOptions>);

const KindEntry& EntryOf(StoreKind kind) { return kKinds[static_cast<size_t>(kind)]; }

// Only a build without RocksDB answers Unimplemented.
bool BuildHas(StoreKind kind) {
  return kind != StoreKind::kRocksDb || !absl::IsUnimplemented(RocksStoreOptions().Validate());
}

}  // namespace

absl::StatusOr<StoreKind> ParseStoreKind(std::string_view name) {
  std::string has;
  for (size_t i = 0; i < std::size(kKinds); ++i) {
    const auto kind = static_cast<StoreKind>(i);
    if (!BuildHas(kind)) continue;
    if (kKinds[i].facts.word == name) return kind;
    absl::StrAppend(&has, has.empty() ? "" : ", ", std::string(kKinds[i].facts.word));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown store \"", std::string(name), "\"; this build has: ", has));
}

std::string_view StoreKindName(StoreKind kind) { return FactsOf(kind).word; }

const StoreFacts& FactsOf(StoreKind kind) { return EntryOf(kind).facts; }

const StoreFacts* FindStoreFacts(std::string_view word) {
  for (const KindEntry& entry : kKinds) {
    if (entry.facts.word == word) return &entry.facts;
  }
  return nullptr;
}

std::vector<StoreKind> StoreKinds() {
  std::vector<StoreKind> kinds;
  for (size_t i = 0; i < std::size(kKinds); ++i) kinds.push_back(static_cast<StoreKind>(i));
  return kinds;
}

std::string StoreWords(bool StoreFacts::*fact, std::string_view conjunction) {
  std::vector<std::string> words;
  for (const KindEntry& entry : kKinds) {
    if (fact == nullptr || entry.facts.*fact) words.emplace_back(entry.facts.word);
  }
  std::string out = words.front();
  for (size_t i = 1; i < words.size(); ++i) {
    absl::StrAppend(&out,
                    i + 1 < words.size() ? ", " : absl::StrCat(" ", std::string(conjunction), " "),
                    words[i]);
  }
  return out;
}

StoreOptions MakeStoreOptions(StoreKind kind, const CommonStoreOptions& common) {
  return EntryOf(kind).make_options(common);
}

absl::StatusOr<std::unique_ptr<RowStore>> OpenStore(const StoreOptions& options) {
  return std::visit([](const auto& of_kind) { return Open(of_kind); }, options);
}

absl::StatusOr<StoreContents> PeekStore(StoreKind kind, const std::string& path, Env* env) {
  const auto peek = EntryOf(kind).peek;
  return peek == nullptr ? StoreContents() : peek(env == nullptr ? PosixEnv() : *env, path);
}

absl::StatusOr<std::unique_ptr<SnapshotReader>> OpenSnapshot(StoreKind kind,
                                                             const SnapshotReaderOptions& options) {
  return EntryOf(kind).open_snapshot(options);
}

absl::StatusOr<std::unique_ptr<SnapshotChanges>> OpenSnapshotChanges(
    StoreKind kind, const SnapshotReaderOptions& options, const ParentSnapshot& parent) {
  const auto open = EntryOf(kind).open_changes;
  if (open == nullptr) return std::unique_ptr<SnapshotChanges>();
  return open(options, parent);
}

absl::Status CheckSnapshot(StoreKind kind, const SnapshotReaderOptions& options) {
  const auto check = EntryOf(kind).check;
  return check == nullptr ? absl::OkStatus() : check(options);
}

absl::StatusOr<SnapshotVerdict> VerifySnapshot(StoreKind kind,
                                               const SnapshotReaderOptions& options) {
  const auto verify = EntryOf(kind).verify;
  return verify == nullptr ? SnapshotVerdict() : verify(options);
}

}  // namespace hotrow
