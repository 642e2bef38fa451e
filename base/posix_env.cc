#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/env.h"
#include "base/errno_status.h"

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
  PosixFile(int fd, std::string path) : fd_(fd), path_(std::move(path)) {}
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
  absl::Status Close() override {
    // Linux releases the descriptor whatever close returns, so it is never called twice for one.
    if (::close(std::exchange(fd_, -1)) != 0 && errno != EINTR) return LastError("close", path_);
    return absl::OkStatus();
  }
  const std::string& path() const override { return path_; }

 private:
  int fd_;  // -1 once closed; calls then fail with EBADF
  std::string path_;
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

class PosixEnvironment : public Env {
 public:
  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override {
    const int fd = Retry([&] { return ::open(path.c_str(), OpenFlags(mode) | O_CLOEXEC, 0644); });
    if (fd < 0) return LastError("open", path);
    auto file = std::make_unique<PosixFile>(fd, path);
    // Unix opens a directory for reading and fails at the first read; better here.
    struct stat info;
    if (::fstat(fd, &info) != 0) return LastError("fstat", path);
    if (S_ISDIR(info.st_mode)) return ErrnoToStatus(EISDIR, absl::StrCat("open ", path));
    return file;
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
};

}  // namespace

Env& PosixEnv() {
  static PosixEnvironment env;
  return env;
}

}  // namespace hotrow
