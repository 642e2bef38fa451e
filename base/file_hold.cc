#include "base/file_hold.h"

#include <sys/file.h>

#include <cerrno>
#include <chrono>
#include <thread>

namespace hotrow {

void HoldFile(File& file) {
  // IsFileHeld excludes us for a moment. Nobody else should, and a reader is not to wait for them.
  constexpr int kTries = 100;
  for (int i = 0; i < kTries && file.descriptor() >= 0; ++i) {
    if (::flock(file.descriptor(), LOCK_SH | LOCK_NB) == 0) return;
    if (errno != EWOULDBLOCK && errno != EINTR) return;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

bool IsFileHeld(File& file) {
  if (file.descriptor() < 0) return false;
  if (::flock(file.descriptor(), LOCK_EX | LOCK_NB) != 0) return errno == EWOULDBLOCK;
  ::flock(file.descriptor(), LOCK_UN);
  return false;
}

}  // namespace hotrow
