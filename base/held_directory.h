#ifndef HOTROW_BASE_HELD_DIRECTORY_H_
#define HOTROW_BASE_HELD_DIRECTORY_H_

#include <string>

#include "absl/status/status.h"

namespace hotrow {

// A directory of the real file system, held open, so that who writes files into it by its path can
// tell whether the path still leads there. Where there was none, as with Envs of tests, nothing is
// ever amiss.
class HeldDirectory {
 public:
  explicit HeldDirectory(const std::string& path);
  ~HeldDirectory();
  HeldDirectory(const HeldDirectory&) = delete;
  HeldDirectory& operator=(const HeldDirectory&) = delete;

  // FailedPrecondition: the directory was moved, removed or replaced. Names path and remedy.
  absl::Status CheckInPlace() const;

 private:
  const std::string path_;
  const int fd_;  // -1: there was none
};

}  // namespace hotrow

#endif  // HOTROW_BASE_HELD_DIRECTORY_H_
