#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/errno_status.h"
#include "base/io_queue_impl.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

// The error that errno holds, naming the call and the path.
absl::Status LastError(const char* call, const std::string& path) {
  const int error_number = errno;  // before StrCat can change it
  return ErrnoToStatus(error_number, absl::StrCat(call, " ", path));
}
absl::Status LastErrorAt(const char* call, const std::string& path, int64_t offset) {
  const int error_number = errno;
  return ErrnoToStatus(error_number, absl::StrCat(call, " ", path, " at offset ", offset));
}

// Calls until a signal no longer interrupts.
template <typename Call>
auto Retry(Call&& call) {
  for (;;) {
    const auto result = call();
    if (result != -1 || errno != EINTR) return result;
  }
}

class PosixFile : public File {
 public:
  PosixFile(int fd, int64_t block_bytes, std::string path)
      : fd_(fd), block_bytes_(block_bytes), path_(std::move(path)) {}
  ~PosixFile() override {
    if (fd_ >= 0) ::close(fd_);
  }

  absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) override {
    const ssize_t got = Retry([&] { return ::pread(fd_, bytes.data(), bytes.size(), offset); });
    if (got < 0) return LastErrorAt("read", path_, offset);
    return got;
  }
  absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) override {
    const ssize_t put = Retry([&] { return ::pwrite(fd_, bytes.data(), bytes.size(), offset); });
    if (put < 0) return LastErrorAt("write", path_, offset);
    return put;
  }
  absl::Status Sync() override {
    if (Retry([&] { return ::fdatasync(fd_); }) != 0) return LastError("fdatasync", path_);
    return absl::OkStatus();
  }
  absl::StatusOr<int64_t> Size() override {
    struct stat info;
    if (::fstat(fd_, &info) != 0) return LastError("fstat", path_);
    return info.st_size;
  }
  absl::Status Truncate(int64_t size) override {
    if (Retry([&] { return ::ftruncate(fd_, size); }) != 0) return LastError("ftruncate", path_);
    return absl::OkStatus();
  }
  absl::Status Allocate(int64_t bytes) override {
    if (bytes == 0) return absl::OkStatus();
    HOTROW_ASSIGN_OR_RETURN(const int64_t size, Size());
    // Not posix_fallocate: where the file system cannot, it writes single bytes, which a direct
    // file does not take.
    if (Retry([&] { return ::fallocate(fd_, 0, 0, bytes); }) == 0) return absl::OkStatus();
    const int error_number = errno;
    if (error_number == EOPNOTSUPP || error_number == ENOSYS) return File::Allocate(bytes);
    Truncate(size).IgnoreError();  // gives back what it got before the disk was full
    return ErrnoToStatus(error_number, absl::StrCat("allocate ", bytes, " bytes of ", path_));
  }
  absl::Status Close() override {
    // Linux releases the descriptor also where close fails, so it is never called twice for one.
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return LastError("close", path_);
    return absl::OkStatus();
  }
  const std::string& path() const override { return path_; }
  int64_t block_bytes() const override { return block_bytes_; }
  int descriptor() const override { return fd_; }

 private:
  int fd_;  // -1 once closed; calls then fail with EBADF
  const int64_t block_bytes_;
  const std::string path_;
};

int OpenFlags(OpenMode mode) {
  switch (mode) {
    case OpenMode::kRead:
      return O_RDONLY;
    case OpenMode::kReadWrite:
      return O_RDWR;
    case OpenMode::kCreate:
      return O_RDWR | O_CREAT;
    case OpenMode::kTruncate:
      return O_RDWR | O_CREAT | O_TRUNC;
  }
  return O_RDONLY;
}

// The alignment that direct transfers of a file opened with O_DIRECT need; 1 when the file system
// takes the flag but has no direct transfers for this file.
int64_t DirectBlockBytes(int fd) {
#ifdef STATX_DIOALIGN
  struct statx info = {};
  if (::statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &info) == 0 &&
      (info.stx_mask & STATX_DIOALIGN) != 0) {
    return std::bit_ceil(
        std::max<uint32_t>({info.stx_dio_offset_align, info.stx_dio_mem_align, 1}));
  }
#endif
  // Linux before 6.1, and file systems that do not say. A page is enough for every device that
  // those know.
  return 4096;
}

class PosixLock : public FileLock {
 public:
  explicit PosixLock(int fd) : fd_(fd), process_(::getpid()) {}
  ~PosixLock() override {
    // A child of fork has the file open, too, and would go on to hold the lock.
    if (::getpid() == process_) ::flock(fd_, LOCK_UN);
    ::close(fd_);
  }
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;

 private:
  const int fd_;
  const pid_t process_;
};

class PosixEnvironment : public Env {
 public:
  // flock, not fcntl: its lock belongs to the opened file, so it also keeps out this process.
  absl::StatusOr<std::unique_ptr<FileLock>> LockFile(const std::string& path,
                                                     LockMode mode) override {
    // Who reads needs no permission to write.
    const int access = mode == LockMode::kShared ? O_RDONLY : O_RDWR;
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const int fd = Retry(
        [&] { return ::open(path.c_str(), access | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0644); });
    // Where there is no lock and none can be made, nobody needs one: such a place is only read.
    if (fd < 0 && (errno == EROFS || errno == EACCES) && mode == LockMode::kShared &&
        ::access(path.c_str(), F_OK) != 0) {
      return std::make_unique<FileLock>();
    }
    if (fd < 0 && errno == EISDIR) {
      // Not FailedPrecondition, by which callers know that somebody else has the lock.
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": is a directory, must be a file that is locked; remove it"));
    }
    if (fd < 0) return LastError("open", path);
    auto lock = std::make_unique<PosixLock>(fd);
    const int operation = mode == LockMode::kShared ? LOCK_SH : LOCK_EX;
    if (Retry([&] { return ::flock(fd, operation | LOCK_NB); }) == 0) return lock;
    if (errno != EWOULDBLOCK) return LastError("flock", path);
    return absl::FailedPreconditionError(absl::StrCat(path, ": somebody else holds this lock"));
  }

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    return OpenWith(path, OpenFlags(mode));
  }

  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                   OpenMode mode) override {
    auto file = OpenWith(path, OpenFlags(mode) | O_DIRECT);
    // EINVAL is how a file system refuses the flag. It may have created the file by then.
    const bool refused =
        absl::IsInvalidArgument(file.status()) || (file.ok() && !(*file)->direct());
    return refused ? Open(path, mode) : std::move(file);
  }

  absl::Status CreateDirs(const std::string& path) override {
    for (size_t end = 0; end != std::string::npos;) {
      end = path.find('/', end + 1);
      const std::string prefix = path.substr(0, end);
      if (::mkdir(prefix.c_str(), 0755) != 0 && errno != EEXIST) return LastError("mkdir", prefix);
    }
    struct stat info;
    if (::stat(path.c_str(), &info) != 0) return LastError("stat", path);
    if (!S_ISDIR(info.st_mode)) return ErrnoToStatus(ENOTDIR, absl::StrCat("mkdir ", path));
    return absl::OkStatus();
  }

  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override {
    DIR* const dir = ::opendir(path.c_str());
    if (dir == nullptr) return LastError("opendir", path);
    std::vector<std::string> names;
    errno = 0;  // readdir reports an error through errno alone
    for (const dirent* entry = ::readdir(dir); entry != nullptr; entry = ::readdir(dir)) {
      const std::string_view name = entry->d_name;
      if (name != "." && name != "..") names.emplace_back(name);
      errno = 0;
    }
    const absl::Status status = errno == 0 ? absl::OkStatus() : LastError("readdir", path);
    ::closedir(dir);
    if (!status.ok()) return status;
    std::sort(names.begin(), names.end());
    return names;
  }

  absl::StatusOr<bool> Exists(const std::string& path) override {
    struct stat info;
    if (::stat(path.c_str(), &info) == 0) return true;
    if (errno == ENOENT || errno == ENOTDIR) return false;
    return LastError("stat", path);
  }

  absl::Status Rename(const std::string& from, const std::string& to) override {
    if (std::rename(from.c_str(), to.c_str()) == 0) return absl::OkStatus();
    const int error_number = errno;
    return ErrnoToStatus(error_number, absl::StrCat("rename ", from, " to ", to));
  }

  absl::Status Remove(const std::string& path) override {
    if (::unlink(path.c_str()) != 0) return LastError("unlink", path);
    return absl::OkStatus();
  }

  absl::Status RemoveDir(const std::string& path) override {
    if (::rmdir(path.c_str()) != 0) return LastError("rmdir", path);
    return absl::OkStatus();
  }

  absl::Status SyncDir(const std::string& path) override {
    const int fd = Retry([&] { return ::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); });
    if (fd < 0) return LastError("open directory", path);
    const absl::Status status = Retry([&] { return ::fsync(fd); }) == 0
                                    ? absl::OkStatus()
                                    : LastError("fsync directory", path);
    ::close(fd);
    return status;
  }

  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override {
    struct statvfs info;
    if (Retry([&] { return ::statvfs(path.c_str(), &info); }) != 0) {
      return LastError("statvfs", path);
    }
    return static_cast<int64_t>(info.f_bavail * info.f_frsize);
  }

  absl::StatusOr<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options) override {
    HOTROW_RETURN_IF_ERROR(options.Validate());
    if (options.kind != IoQueueKind::kThreads) {
      auto queue = internal::NewUringIoQueue(options);
      if (queue.ok() || options.kind == IoQueueKind::kUring) return queue;
    }
    return internal::NewThreadsIoQueue(options);
  }

 private:
  // What may be opened in place of a regular file, and why not: a FIFO waits for a writer or has no
  // offsets, a device has no size and may never end.
  static absl::Status CheckKind(const std::string& path, mode_t mode, bool is_output) {
    if (S_ISREG(mode)) return absl::OkStatus();
    // Unix opens a directory for reading and fails at the first read; better here.
    if (S_ISDIR(mode)) return ErrnoToStatus(EISDIR, absl::StrCat("open ", path));
    if (is_output && S_ISCHR(mode)) return absl::OkStatus();  // such as /dev/null for a trace
    const char* const kind = S_ISFIFO(mode)   ? "a FIFO"
                             : S_ISCHR(mode)  ? "a character device"
                             : S_ISBLK(mode)  ? "a block device"
                             : S_ISSOCK(mode) ? "a socket"
                                              : "no file";
    return absl::FailedPreconditionError(
        absl::StrCat("open ", path, ": is ", kind, ", expected a regular file",
                     is_output ? "" : "; copy its contents to one first"));
  }

  static absl::StatusOr<std::unique_ptr<File>> OpenWith(const std::string& path, int flags) {
    // O_NONBLOCK: opening a FIFO must not wait for a writer.
    const int fd =
        Retry([&] { return ::open(path.c_str(), flags | O_CLOEXEC | O_NONBLOCK, 0644); });
    if (fd < 0) return LastError("open", path);
    const int64_t block_bytes = (flags & O_DIRECT) != 0 ? DirectBlockBytes(fd) : 1;
    auto file = std::make_unique<PosixFile>(fd, block_bytes, path);
    struct stat info;
    if (::fstat(fd, &info) != 0) return LastError("fstat", path);
    HOTROW_RETURN_IF_ERROR(CheckKind(path, info.st_mode, (flags & O_CREAT) != 0));
    // With it io_uring would give EAGAIN for transfers that must wait for the disk.
    if (::fcntl(fd, F_SETFL, flags) != 0) return LastError("fcntl", path);
    return file;
  }
};

}  // namespace

#if !HOTROW_HAVE_URING  // otherwise in uring_io_queue.cc
absl::StatusOr<std::unique_ptr<IoQueue>> internal::NewUringIoQueue(const IoQueueOptions&) {
  return absl::FailedPreconditionError(
      "this build of hotrow has no io_uring: install liburing-dev and configure with "
      "-DHOTROW_URING=ON, or choose threads for the I/O queue");
}
#endif

Env& PosixEnv() {
  static PosixEnvironment env;
  return env;
}

}  // namespace hotrow
