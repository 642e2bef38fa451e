#ifndef HOTROW_TESTS_SUPPORT_MEM_ENV_H_
#define HOTROW_TESTS_SUPPORT_MEM_ENV_H_

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/env.h"

namespace hotrow::test {

// A file system in memory that knows what would survive a power loss.
//
// Model:      every file has live bytes (what reads return) and durable bytes; File::Sync copies
//             the dirty pages and the size from the first to the second. Every directory has live
//             and durable entries; SyncDir copies them. So a file survives only when its bytes were
//             synced, its directory was synced, and so were the directories above: less than ext4
//             or XFS keep in practice, and all that POSIX promises. A rename inside one directory
//             is atomic; a rename between two, of which only the target was synced, leaves both
//             names.
// Space:      a page of a file takes room from when it is first written or allocated until it is
// cut
//             off or the file is removed; holes take none. After a power loss all pages take room.
// Direct:     files opened with OpenDirect refuse misaligned transfers, as a disk does.
// Limits:     no permissions, links or times. Paths are taken lexically and relative ones start at
//             the root. The root always exists.
// Threads:    all methods may run concurrently; one mutex guards everything.
// Errors:     as PosixEnv gives them (tests/base/env_test.cc holds both to one contract).
class MemEnv : public Env {
 public:
  // The unit in which the page cache writes back: what a power loss keeps or drops as a whole.
  static constexpr int64_t kPageBytes = 4096;

  MemEnv();
  ~MemEnv() override;

  absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) override;
  absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path, OpenMode mode) override;
  absl::Status CreateDirs(const std::string& path) override;
  absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) override;
  absl::StatusOr<bool> Exists(const std::string& path) override;
  absl::Status Rename(const std::string& from, const std::string& to) override;
  absl::Status Remove(const std::string& path) override;
  absl::Status RemoveDir(const std::string& path) override;
  absl::Status SyncDir(const std::string& path) override;
  absl::StatusOr<int64_t> FreeBytes(const std::string& path) override;

  // How much all files together may take; INT64_MAX at first. A write that finds the disk full
  // takes what fits, and is ResourceExhausted when that is nothing. May be lowered below what is
  // taken.
  void SetCapacity(int64_t bytes);
  // block_bytes() of files that OpenDirect opens from now on; 512 at first. 1: they open buffered.
  void SetDirectBlockBytes(int64_t bytes);

  // Power loss at its worst: all that was not synced is gone. Files that are open now belong to the
  // dead process: every later call on them is FailedPrecondition and changes nothing.
  void DropUnsyncedData();
  // Power loss as it comes: each unsynced page, each unsynced file size, and the unsynced directory
  // operations as a whole, survive or not by a coin of this seed.
  void LosePower(uint64_t seed);
  // What Linux does when write-back fails: the pages of this file (which must be of this Env) count
  // as clean although they never reached the disk, so that a second Sync says OK and saves nothing.
  void ForgetDirtyPages(File& file);
  // Flips a bit on the medium: in the live and the durable bytes, where they reach so far.
  // OutOfRange behind the end of the file.
  absl::Status FlipBit(const std::string& path, int64_t bit_offset);

 private:
  struct Node;
  struct State;
  class MemFile;

  absl::StatusOr<std::unique_ptr<File>> OpenWith(const std::string& path, OpenMode mode,
                                                 bool direct);

  std::shared_ptr<State> state_;  // shared with open files, which may outlive the Env
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_MEM_ENV_H_
