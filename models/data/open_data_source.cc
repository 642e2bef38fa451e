#include "models/data/open_data_source.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/read_file.h"
#include "base/status_macros.h"
#include "models/data/criteo_npy.h"
#include "models/data/file_pattern.h"
#include "models/data/packed_source.h"
#include "models/data/synthetic.h"
#include "models/data/table_source.h"

namespace hotrow {
namespace {

// Kinds of data in files: "kind:PLACE".
struct FileKind {
  const char* name;
  const char* place;
  const char* meaning;
  absl::StatusOr<std::unique_ptr<DataSource>> (*open)(const std::string& place,
                                                      const FileSourceOptions& options);
};

std::vector<std::string> SplitAtCommas(std::string_view text) {
  std::vector<std::string> parts;
  while (true) {
    const size_t comma = text.find(',');
    parts.emplace_back(text.substr(0, comma));
    if (comma == std::string_view::npos) return parts;
    text.remove_prefix(comma + 1);
  }
}

// The names of "FILE[,FILE...]"; what: "FILE".
absl::StatusOr<std::vector<std::string>> SplitNames(const std::string& place, const char* what) {
  std::vector<std::string> names = SplitAtCommas(place);
  for (const std::string& name : names) {
    if (!name.empty()) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--data: empty name in \"", place, "\", expected ", what, "[,", what, "...]"));
  }
  return names;
}

template <TableSchema (*kSchema)(const std::vector<std::string>&)>
absl::StatusOr<std::unique_ptr<DataSource>> OpenFiles(const std::string& place,
                                                      const FileSourceOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> paths, SplitNames(place, "FILE"));
  return OpenTableSource(kSchema(paths), options);
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenFrappe(const std::string& place,
                                                       const FileSourceOptions& options) {
  return OpenTableSource(FrappeSchema(place), options);
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenNpy(const std::string& place,
                                                    const FileSourceOptions& options) {
  return OpenCriteoNpy(place, options);
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenPacked(const std::string& place,
                                                       const FileSourceOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(std::vector<std::string> dirs, SplitNames(place, "DIR"));
  HOTROW_ASSIGN_OR_RETURN(dirs, ExpandFilePatterns(PosixEnv(), dirs));
  return OpenPackedSource(dirs, options);
}

absl::StatusOr<std::unique_ptr<DataSource>> OpenTable(const std::string& place,
                                                      const FileSourceOptions& options) {
  HOTROW_ASSIGN_OR_RETURN(const std::string json,
                          ReadWholeFile(PosixEnv(), place, kManifestBytesMax));
  HOTROW_ASSIGN_OR_RETURN(TableSchema schema, ParseTableSchema(json, place));
  schema.text_hash = HashText(json);
  return OpenTableSource(schema, options);
}

constexpr FileKind kFileKinds[] = {
    {"frappe", "DIR", "the app usage log Frappe: train.csv, valid.csv and test.csv", OpenFrappe},
    {"ml1m", "FILE[,FILE...]", "MovieLens 1M as click data, genres as bags",
     OpenFiles<MovieLensSchema>},
    {"census", "FILE[,FILE...]", "the UCI census income data", OpenFiles<CensusSchema>},
    {"ml1m-tasks", "FILE[,FILE...]", "the same with two labels, liked and disliked, for mmoe",
     OpenFiles<MovieLensTasksSchema>},
    {"census-tasks", "FILE[,FILE...]",
     "the census data with two labels, income and never_married, for mmoe",
     OpenFiles<CensusTasksSchema>},
    {"criteo", "FILE[,FILE...]",
     "Criteo's display advertising TSV: label, 13 counts as ln(x + 3), 26 hexadecimal categories",
     OpenFiles<CriteoSchema>},
    {"criteo-npy", "DIR",
     "day_N_{dense,sparse,labels}.npy, and day_N_sparse_multi_hot.npz where it is there; the last "
     "day is validation and test",
     OpenNpy},
    {"packed", "DIR[,DIR...]", "what `hotrow pack` made of any other kind", OpenPacked},
    {"table", "SCHEMA.json",
     "delimited text described by a schema, see docs/formats/table_schema.md", OpenTable},
};

std::string KnownKinds() {
  std::string kinds = "known: synthetic";
  for (const FileKind& kind : kFileKinds) absl::StrAppend(&kinds, ", ", kind.name, ":", kind.place);
  return kinds;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(std::string_view spec, uint64_t seed,
                                                           const OpenDataOptions& options) {
  const size_t colon = spec.find(':');
  const std::string_view kind = spec.substr(0, colon);
  const std::string_view rest =
      colon == std::string_view::npos ? std::string_view() : spec.substr(colon + 1);
  if (kind == "synthetic") {
    // "synthetic:" is not "synthetic": whoever writes the colon forgot something.
    if (colon != std::string_view::npos && rest.empty()) {
      return absl::InvalidArgumentError(
          absl::StrCat("--data=synthetic: nothing follows the colon; expected key=value,...; ",
                       SyntheticHelp()));
    }
    HOTROW_ASSIGN_OR_RETURN(const SyntheticOptions synthetic, ParseSyntheticOptions(rest, seed));
    return OpenSynthetic(synthetic);
  }
  for (const FileKind& file_kind : kFileKinds) {
    if (kind != file_kind.name) continue;
    if (rest.empty()) {
      return absl::InvalidArgumentError(absl::StrCat("--data: found \"", std::string(spec),
                                                     "\", expected ", file_kind.name, ":",
                                                     file_kind.place, "; ", KnownKinds()));
    }
    return file_kind.open(std::string(rest),
                          {.seed = seed,
                           .memory_bytes = options.shuffle_bytes,
                           .in_order = options.in_order || options.shuffle_bytes == 0,
                           .vocabulary_bytes = options.vocabulary_bytes,
                           .saved_vocabulary = options.saved_vocabulary,
                           .threads = options.threads});
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--data: unknown kind of data \"", std::string(kind), "\"; ", KnownKinds(),
      colon == std::string_view::npos ? "; a log of yours is table: and a schema of it" : ""));
}

std::string DataSourceHelp() {
  std::string help = absl::StrCat(
      "synthetic[:key=value,...]: generated clicks from a planted model. ", SyntheticHelp(), ".");
  for (const FileKind& kind : kFileKinds) {
    absl::StrAppend(&help, " ", kind.name, ":", kind.place, ": ", kind.meaning, ".");
  }
  absl::StrAppend(
      &help, " Text may be gzip; a file that is not there is looked for with .gz; names may ",
      "be patterns (*, ?, [a-z]). ml1m,",
      " census and criteo split by sample number modulo 10: 0-7 train, 8 validation,", " 9 test.");
  return help;
}

}  // namespace hotrow
