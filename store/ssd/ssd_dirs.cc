#include "store/ssd/ssd_dirs_impl.h"

#include <sys/stat.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <sstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "base/path_list.h"
#include "base/read_file.h"
#include "base/status_macros.h"

namespace hotrow::internal {
namespace {

std::string PathIn(const std::string& dir, std::string_view name) {
  return absl::StrCat(dir, "/", std::string(name));
}

template <typename... Parts>
absl::Status Refused(const std::string& path, const Parts&... what) {
  return absl::FailedPreconditionError(absl::StrCat(path, ": ", what...));
}

// As far as that can be told of a path where nothing is.
std::filesystem::path Canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  std::filesystem::path full = std::filesystem::weakly_canonical(absolute, error);
  if (error) full = absolute.lexically_normal();
  return full.has_filename() ? full : full.parent_path();
}

// --- The files -----------------------------------------------------------------------------------

// What a further directory says of itself.
struct Identity {
  UniqueId store;
  UniqueId directory;

  std::string Text() const {
    return absl::StrCat("store ", store.ToHex(), "\ndirectory ", directory.ToHex(), "\n");
  }
};

absl::StatusOr<std::optional<Identity>> ReadIdentity(Env& env, const std::string& dir) {
  std::optional<Identity> out;
  const std::string path = PathIn(dir, kSsdDirName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return out;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kSmallFileBytesMax));
  std::istringstream words(text);
  std::string store_word, store, directory_word, directory;
  words >> store_word >> store >> directory_word >> directory;
  const std::optional<UniqueId> store_id = UniqueId::FromHex(store);
  const std::optional<UniqueId> directory_id = UniqueId::FromHex(directory);
  if (store_id.has_value() && directory_id.has_value()) out = Identity{*store_id, *directory_id};
  if (!out.has_value() || out->Text() != text) {
    return absl::DataLossError(absl::StrCat(path, ": does not say whose directory this is"));
  }
  return out;
}

// What the home says of the others.
struct Places {
  UniqueId store;
  std::string home;                 // where it was then; empty: it does not say
  std::vector<std::string> others;  // seen from the home
};
constexpr std::string_view kAt = " at ";  // between the two on the first line

// None: there is no such file, or none that says something.
absl::StatusOr<std::optional<Places>> ReadPlaces(Env& env, const std::string& home) {
  std::optional<Places> out;
  const std::string path = PathIn(home, kSsdDirsName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return out;
  HOTROW_ASSIGN_OR_RETURN(const std::string text, ReadWholeFile(env, path, kManifestBytesMax));
  std::istringstream lines(text);
  std::string word, store, line;
  lines >> word >> store;
  std::getline(lines, line);
  const std::optional<UniqueId> id = UniqueId::FromHex(store);
  if (word != "store" || !id.has_value()) return out;
  out.emplace().store = *id;
  if (line.starts_with(kAt)) out->home = line.substr(kAt.size());
  while (std::getline(lines, line)) out->others.push_back(line);
  return out;
}

std::string PlaceOf(const std::string& home, const std::string& from_home) {
  return (Canonical(home) / from_home).lexically_normal().string();
}

// By their numbers also where one is mounted twice: rather a copy is taken for the same directory
// than the other way round.
bool SameDirectory(const std::string& a, const std::string& b) {
  struct stat x;
  struct stat y;
  return Canonical(a) == Canonical(b) ||
         (::stat(a.c_str(), &x) == 0 && ::stat(b.c_str(), &y) == 0 && x.st_ino == y.st_ino);
}

// The home that this one is a copy of, where that is there still, and its further directories: they
// are not this one's. None: it is no copy, or the original is not to be seen.
std::optional<Places> FindOriginal(Env& env, const std::string& home,
                                   const std::optional<Places>& places) {
  if (!places.has_value() || places->home.empty() || SameDirectory(places->home, home) ||
      !env.Exists(PathIn(places->home, kSsdManifestName)).value_or(false)) {
    return std::nullopt;
  }
  const absl::StatusOr<std::optional<Places>> original = ReadPlaces(env, places->home);
  if (!original.ok() || !original->has_value() || (*original)->store != places->store) {
    return std::nullopt;
  }
  Places out = {.store = places->store, .home = places->home, .others = {}};
  for (const std::string& other : (*original)->others) {
    out.others.push_back(PlaceOf(places->home, other));
  }
  return out;
}

absl::Status CheckNotOfOriginal(const std::optional<Places>& original, const std::string& home,
                                const std::string& path) {
  if (!original.has_value() ||
      std::count(original->others.begin(), original->others.end(), Canonical(path).string()) == 0) {
    return absl::OkStatus();
  }
  return Refused(path, "is a directory of the SSD store ", original->home, ", and ", home,
                 " is a copy of its home alone; copy this one, too, to where it lay from the "
                 "home, or write its place into ",
                 PathIn(home, kSsdDirsName),
                 "; or remove the other home, if the copy is to take its place");
}

// --- What is right -------------------------------------------------------------------------------

absl::Status CheckDistinct(const SsdDirs& dirs) {
  std::set<std::filesystem::path> seen;
  for (uint32_t i = 0; i < dirs.count(); ++i) {
    if (seen.insert(Canonical(dirs.path(i))).second) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        dirs.path(i), ": is given twice; each directory of a store has a path of its own"));
  }
  return absl::OkStatus();
}

// Whether nothing lies in the directories of the manifest that were not given.
absl::Status CheckLeftOut(Env& env, const SsdDirs& dirs, const SsdManifest& manifest) {
  const auto lies_there = [&](const SsdSegmentRef& ref) { return ref.directory >= dirs.count(); };
  bool any = std::any_of(manifest.segments.begin(), manifest.segments.end(), lies_there);
  for (const SsdSnapshot& s : manifest.snapshots) {
    any = any || std::any_of(s.segments.begin(), s.segments.end(), lies_there);
  }
  if (!any) return absl::OkStatus();
  const std::string& home = dirs.path(0);
  std::string all;
  if (const auto places = ReadPlaces(env, home); places.ok() && places->has_value()) {
    std::vector<std::string> paths = {home};
    for (const std::string& other : (*places)->others) paths.push_back(PlaceOf(home, other));
    all = absl::StrCat(", last seen as ", JoinPathList(paths));
  }
  return Refused(home, "the rows of this SSD store lie in ", manifest.directories.size(),
                 " directories, and ", dirs.count(), dirs.count() == 1 ? " is" : " are",
                 " given; give all", all,
                 ". To leave one out, start a store elsewhere from a checkpoint: rows are copied");
}

// Whether the directory is the one at that place of the manifest's list.
absl::Status CheckKnown(const std::string& path, uint32_t at, const std::string& home,
                        const SsdManifest& manifest, const std::optional<Identity>& identity) {
  const std::vector<UniqueId>& known = manifest.directories;
  const std::string what = absl::StrCat("directory ", at + 1, " of the SSD store ", home);
  if (!identity.has_value()) {
    return Refused(path, "is not ", what, ": it has no file ", std::string(kSsdDirName),
                   "; mount its drive, or give the path that it has now");
  }
  if (identity->store != known[0]) {
    return Refused(path, "is a directory of another SSD store, not ", what);
  }
  if (identity->directory == known[at]) return absl::OkStatus();
  const auto found = std::find(known.begin(), known.end(), identity->directory);
  if (found == known.end()) return Refused(path, "is no longer ", what);
  return Refused(path, "is directory ", found - known.begin() + 1, " of the SSD store ", home,
                 ", and was given as directory ", at + 1,
                 "; give all, in the order that the store has them");
}

// The name of a segment in the directory that has been written to; empty: none has.
absl::StatusOr<std::string> FindWritten(Env& env, const std::string& dir) {
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(dir));
  for (const std::string& name : names) {
    if (!ParseSsdSegmentName(name).has_value()) continue;
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            env.Open(PathIn(dir, name), OpenMode::kRead));
    std::byte magic[8] = {};  // of its header
    HOTROW_RETURN_IF_ERROR(file->ReadAt(0, magic).status());
    const auto is_set = [](std::byte b) { return b != std::byte{0}; };
    if (std::any_of(std::begin(magic), std::end(magic), is_set)) return name;
  }
  return std::string();
}

// Whether a directory may become part of a store.
absl::Status CheckNew(Env& env, const std::string& path, const std::string& home,
                      const std::vector<UniqueId>& ids, const std::optional<Identity>& identity) {
  if (identity.has_value()) {
    const bool is_ours = identity->store == ids[0];
    if (!is_ours || std::count(ids.begin(), ids.end(), identity->directory) > 0) {
      return Refused(path, "is a directory of ", is_ours ? "this" : "another",
                     " SSD store already, and cannot be added to ", home);
    }
    // That of a run that ended before its manifest was written, or one that was left out since. A
    // copy of the store, and a later state of it, have its identity, too.
    HOTROW_ASSIGN_OR_RETURN(const std::string written, FindWritten(env, path));
    if (written.empty()) return absl::OkStatus();
    return Refused(path, "has a segment (", written, ") that the ", std::string(kSsdManifestName),
                   " of ", home, " does not know: it is of a copy of this store, or of a newer ",
                   std::string(kSsdManifestName),
                   "; give the home that belongs to it, or an empty directory");
  }
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(path));
  if (!exists) return absl::OkStatus();
  HOTROW_ASSIGN_OR_RETURN(const std::vector<std::string> names, env.ListDir(path));
  for (const std::string& name : names) {
    if (name != kSsdManifestName && !ParseSsdSegmentName(name).has_value()) continue;
    return Refused(path, "has a file of an SSD store (", name,
                   "), and cannot be added to another; give an empty directory");
  }
  return absl::OkStatus();
}

}  // namespace

std::string SsdDirs::SegmentPath(uint32_t directory, uint32_t slot) const {
  return PathIn(paths_[directory], SsdSegmentName(slot));
}

absl::Status CheckSsdHome(Env& env, const std::string& home) {
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(PathIn(home, kSsdDirName)));
  if (!exists) return absl::OkStatus();
  return Refused(home, "is a further directory of an SSD store (it has a file ",
                 std::string(kSsdDirName), "); the one with the ", std::string(kSsdManifestName),
                 " comes first");
}

absl::StatusOr<std::vector<UniqueId>> CheckSsdDirs(Env& env, const SsdDirs& dirs,
                                                   const SsdManifest& manifest) {
  const std::string& home = dirs.path(0);
  const size_t known = manifest.directories.size();
  if (dirs.count() < known) HOTROW_RETURN_IF_ERROR(CheckLeftOut(env, dirs, manifest));
  std::vector<UniqueId> ids;
  if (dirs.count() == 1) return ids;
  HOTROW_RETURN_IF_ERROR(CheckDistinct(dirs));
  HOTROW_ASSIGN_OR_RETURN(const std::optional<Places> places, ReadPlaces(env, home));
  if (known > 0) {
    ids.push_back(manifest.directories[0]);
  } else {
    // A run that ended before its manifest was written has drawn one.
    ids.push_back(places.has_value() ? places->store : UniqueId::Random());
  }
  const std::optional<Places> original = FindOriginal(env, home, places);
  for (uint32_t i = 1; i < dirs.count(); ++i) {
    const std::string& path = dirs.path(i);
    HOTROW_RETURN_IF_ERROR(CheckNotOfOriginal(original, home, path));
    HOTROW_ASSIGN_OR_RETURN(const std::optional<Identity> identity, ReadIdentity(env, path));
    if (i < known) {
      HOTROW_RETURN_IF_ERROR(CheckKnown(path, i, home, manifest, identity));
    } else {
      HOTROW_RETURN_IF_ERROR(CheckNew(env, path, home, ids, identity));
    }
    ids.push_back(identity.has_value() ? identity->directory : UniqueId::Random());
  }
  return ids;
}

absl::Status MarkSsdDirs(Env& env, const SsdDirs& dirs, const std::vector<UniqueId>& ids) {
  if (ids.empty()) return absl::OkStatus();
  const std::string& home = dirs.path(0);
  std::string text = absl::StrCat("store ", ids[0].ToHex());
  if (const std::string at = Canonical(home).string(); at.find('\n') == std::string::npos) {
    absl::StrAppend(&text, std::string(kAt), at);
  }
  text.push_back('\n');
  for (uint32_t i = 1; i < dirs.count(); ++i) {
    absl::StrAppend(&text, Canonical(dirs.path(i)).lexically_relative(Canonical(home)).string(),
                    "\n");
  }
  const std::string places = PathIn(home, kSsdDirsName);
  HOTROW_ASSIGN_OR_RETURN(const bool exists, env.Exists(places));
  std::string present;
  if (exists) {
    HOTROW_ASSIGN_OR_RETURN(present, ReadWholeFile(env, places, kManifestBytesMax));
  }
  if (present != text) HOTROW_RETURN_IF_ERROR(WriteFileAtomically(env, places, text));
  for (uint32_t i = 1; i < dirs.count(); ++i) {
    const std::string& path = dirs.path(i);
    HOTROW_ASSIGN_OR_RETURN(const std::optional<Identity> identity, ReadIdentity(env, path));
    if (identity.has_value()) {
      if (identity->directory == ids[i]) continue;
      // Marked since it was looked at: two paths that lead to one directory.
      return Refused(path, "is given twice, by different paths");
    }
    HOTROW_RETURN_IF_ERROR(
        WriteFileAtomically(env, PathIn(path, kSsdDirName), Identity{ids[0], ids[i]}.Text()));
  }
  return absl::OkStatus();
}

absl::StatusOr<SsdDirs> FindSsdDirs(Env& env, const std::string& home,
                                    const SsdManifest& manifest) {
  const std::vector<UniqueId>& known = manifest.directories;
  std::vector<std::string> paths = {home};
  if (known.empty()) return SsdDirs(std::move(paths));
  HOTROW_ASSIGN_OR_RETURN(const std::optional<Places> places, ReadPlaces(env, home));
  const std::optional<Places> original = FindOriginal(env, home, places);
  for (size_t i = 1; i < known.size(); ++i) {
    const bool told = places.has_value() && i <= places->others.size();
    const std::string path = told ? PlaceOf(home, places->others[i - 1]) : "";
    std::optional<Identity> identity;
    if (told) {
      HOTROW_ASSIGN_OR_RETURN(identity, ReadIdentity(env, path));
    }
    if (!identity.has_value() || identity->store != known[0] || identity->directory != known[i]) {
      return Refused(told ? path : home, "directory ", i + 1, " of the SSD store ", home,
                     " is not there; put it back, or write where it is now, seen from ", home,
                     ", into line ", i + 1, " of ", PathIn(home, kSsdDirsName),
                     ", as opening the store with all its directories does");
    }
    HOTROW_RETURN_IF_ERROR(CheckNotOfOriginal(original, home, path));
    paths.push_back(path);
  }
  return SsdDirs(std::move(paths));
}

}  // namespace hotrow::internal
