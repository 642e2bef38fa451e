#include "models/saving/store_paths.h"

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "models/saving/store_paths_impl.h"

namespace hotrow {
namespace {

constexpr char kManifestName[] = "manifest.json";
constexpr char kRankPrefix[] = "rank-";
constexpr char kLockName[] = "LOCK";  // empty; locked by the job that writes the directory

}  // namespace

std::string ManifestPath(const std::string& dir) { return absl::StrCat(dir, "/", kManifestName); }

std::string ParentDir(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

std::string WithoutEndingSlashes(std::string path) {
  while (path.size() > 1 && path.back() == '/') path.pop_back();
  return path;
}

std::string AbsolutePath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  return WithoutEndingSlashes(
      (error ? std::filesystem::path(path) : absolute).lexically_normal().string());
}

std::string JoinPath(const std::string& dir, const std::string& path) {
  const std::filesystem::path joined = std::filesystem::path(dir) / path;
  return WithoutEndingSlashes(joined.lexically_normal().string());
}

std::string RankDir(const std::string& path, int32_t rank, int32_t world_size) {
  if (world_size == 1) return path;
  return absl::StrFormat("%s/%s%05d-of-%05d", path, kRankPrefix, rank, world_size);
}

std::string SavedTablesDir(const std::string& dir, int32_t rank, int32_t world_size) {
  return RankDir(absl::StrCat(dir, "/", kTablesName), rank, world_size);
}

bool IsRankDirName(const std::string& name) {
  const std::string like = RankDir("", 0, 2).substr(1);
  return name.size() == like.size() &&
         std::equal(name.begin(), name.end(), like.begin(), [](char c, char model) {
           return absl::ascii_isdigit(static_cast<unsigned char>(model))
                      ? absl::ascii_isdigit(static_cast<unsigned char>(c))
                      : c == model;
         });
}

std::string JobLockPath(const std::string& dir) { return absl::StrCat(dir, "/", kLockName); }

absl::StatusOr<std::unique_ptr<FileLock>> LockJobDir(Env& env, std::string_view flag,
                                                     const std::string& dir) {
  const std::string path = JobLockPath(dir);
  absl::StatusOr<std::unique_ptr<FileLock>> lock = env.LockFile(path, LockMode::kExclusive);
  if (absl::IsUnimplemented(lock.status())) return std::unique_ptr<FileLock>();
  if (!absl::IsFailedPrecondition(lock.status())) return lock;
  return absl::FailedPreconditionError(
      absl::StrCat("--", std::string(flag), "=", dir,
                   ": another job, in this process or another, writes to it (it holds the lock ",
                   path, "); wait until that one has ended, or give a directory of its own"));
}

}  // namespace hotrow
