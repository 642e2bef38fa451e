#include "base/held_directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include "absl/strings/str_cat.h"

namespace hotrow {

HeldDirectory::HeldDirectory(const std::string& path)
    : path_(path), fd_(::open(path.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC)) {}

HeldDirectory::~HeldDirectory() {
  if (fd_ >= 0) ::close(fd_);
}

absl::Status HeldDirectory::CheckInPlace() const {
  struct stat held;
  struct stat there;
  if (fd_ < 0 || ::fstat(fd_, &held) != 0) return absl::OkStatus();
  if (::stat(path_.c_str(), &there) == 0 && there.st_dev == held.st_dev &&
      there.st_ino == held.st_ino) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      path_,
      ": the directory that was opened there is elsewhere now, or gone; move it back and try "
      "again, or open it where it is, with what the last checkpoint has"));
}

}  // namespace hotrow
