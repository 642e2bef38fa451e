#include "base/atomic_file.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <system_error>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/errno_status.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int kLinksMax = 40;  // as the kernel follows

// What takes bytes in order alone.
class StreamFile : public File {
 public:
  StreamFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
  ~StreamFile() override {
    if (fd_ >= 0) ::close(fd_);
  }
  absl::StatusOr<int64_t> ReadAt(int64_t, std::span<std::byte>) override { return Refuse("read"); }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    if (offset != written_) return Refuse("written out of order");
    ssize_t put;
    do {
      put = ::write(fd_, bytes.data(), bytes.size());
    } while (put < 0 && errno == EINTR);
    if (put < 0) return ErrnoToStatus(errno, absl::StrCat("write ", path_));
    written_ += put;
    return put;
  }
  absl::Status Sync() override { return absl::OkStatus(); }
  absl::StatusOr<int64_t> Size() override { return written_; }
  absl::Status Truncate(int64_t) override { return Refuse("cut"); }
  absl::Status Close() override {
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) {
      return ErrnoToStatus(errno, absl::StrCat("close ", path_));
    }
    return absl::OkStatus();
  }
  const std::string& path() const override { return path_; }

 private:
  absl::Status Refuse(const char* what) const {
    return absl::FailedPreconditionError(
        absl::StrCat(path_, ": cannot be ", what, "; give a regular file"));
  }

  int fd_;
  int64_t written_ = 0;
  const std::string path_;
};

bool IsInProc(const std::filesystem::path& dir) {
  struct statfs info;
  return ::statfs(dir.c_str(), &info) == 0 && info.f_type == PROC_SUPER_MAGIC;
}

// The number of this process's descriptor that `path` is, or -1.
int OwnDescriptor(const std::filesystem::path& path) {
  std::error_code error;
  const std::filesystem::path dir = std::filesystem::canonical(path.parent_path(), error);
  int fd = -1;
  if (error || dir != absl::StrCat("/proc/", ::getpid(), "/fd") ||
      !absl::SimpleAtoi(path.filename().string(), &fd)) {
    return -1;
  }
  return fd;
}

absl::StatusOr<std::unique_ptr<File>> OpenStream(const std::string& path) {
  // Not opened again: a file behind it would be written from its beginning, over what was printed.
  const int own = OwnDescriptor(path);
  // Without O_NONBLOCK a FIFO would wait for a reader, maybe for good.
  const int fd =
      own >= 0 ? ::fcntl(own, F_DUPFD_CLOEXEC, 0)
               : ::open(path.c_str(), O_WRONLY | O_APPEND | O_NOCTTY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENXIO) {
    return absl::FailedPreconditionError(
        absl::StrCat("open ", path, ": nobody reads this FIFO; start its reader first"));
  }
  if (fd < 0) return ErrnoToStatus(errno, absl::StrCat("open ", path));
  auto file = std::make_unique<StreamFile>(fd, path);
  if (own < 0 && ::fcntl(fd, F_SETFL, O_APPEND) != 0) {
    return ErrnoToStatus(errno, absl::StrCat("fcntl ", path));
  }
  return file;
}

absl::Status WriteOutput(Env& env, const std::string& path, bool durable,
                         absl::FunctionRef<absl::Status(File& file)> write) {
  HOTROW_ASSIGN_OR_RETURN(const OutputPlace place, FindOutput(path));
  if (place.in_place) {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, OpenStream(place.path));
    HOTROW_RETURN_IF_ERROR(write(*file));
    return file->Close();
  }
  const std::string temporary = place.temporary();
  const auto write_aside = [&]() -> absl::Status {
    HOTROW_ASSIGN_OR_RETURN(const std::unique_ptr<File> file,
                            env.Open(temporary, OpenMode::kTruncate));
    HOTROW_RETURN_IF_ERROR(write(*file));
    if (durable) HOTROW_RETURN_IF_ERROR(file->Sync());
    return file->Close();
  };
  absl::Status status = write_aside();
  if (status.ok()) status = env.Rename(temporary, place.path);
  if (!status.ok()) {
    // The first error is the one to report. A leftover would take room of a full disk.
    env.Remove(temporary).IgnoreError();
    return status;
  }
  if (!durable) return status;
  const std::filesystem::path dir = std::filesystem::path(place.path).parent_path();
  return env.SyncDir(dir.empty() ? "." : dir.string());
}

}  // namespace

absl::StatusOr<OutputPlace> FindOutput(const std::string& path) {
  std::filesystem::path at = path;
  for (int links = 0; links <= kLinksMax; ++links) {
    struct stat info;
    // What is missing or out of reach: who opens it says so.
    if (::lstat(at.c_str(), &info) != 0) return OutputPlace{.path = at.string()};
    if (S_ISLNK(info.st_mode)) {
      const std::filesystem::path dir = at.has_parent_path() ? at.parent_path() : ".";
      // Its text is no path but "pipe:[7]".
      if (IsInProc(dir)) return OutputPlace{.path = at.string(), .in_place = true};
      std::error_code error;
      const std::filesystem::path target = std::filesystem::read_symlink(at, error);
      if (error) return ErrnoToStatus(error.value(), absl::StrCat("readlink ", at.string()));
      at = at.has_parent_path() ? at.parent_path() / target : target;
      continue;
    }
    if (S_ISBLK(info.st_mode) || S_ISSOCK(info.st_mode)) {
      return absl::FailedPreconditionError(
          absl::StrCat("open ", path, ": is a ", S_ISBLK(info.st_mode) ? "block device" : "socket",
                       "; give a regular file"));
    }
    return OutputPlace{.path = at.string(),
                       .in_place = S_ISCHR(info.st_mode) || S_ISFIFO(info.st_mode)};
  }
  return absl::FailedPreconditionError(ErrnoToStatus(ELOOP, absl::StrCat("open ", path)).message());
}

absl::Status WriteFileAtomicallyWith(Env& env, const std::string& path,
                                     absl::FunctionRef<absl::Status(File& file)> write) {
  return WriteOutput(env, path, /*durable=*/true, write);
}

absl::Status WriteFileAtomically(Env& env, const std::string& path, std::string_view text) {
  return WriteFileAtomicallyWith(
      env, path, [text](File& file) { return WriteFull(file, 0, std::as_bytes(std::span(text))); });
}

absl::Status ReplaceFile(Env& env, const std::string& path, std::string_view text) {
  return WriteOutput(env, path, /*durable=*/false, [text](File& file) {
    return WriteFull(file, 0, std::as_bytes(std::span(text)));
  });
}

}  // namespace hotrow
