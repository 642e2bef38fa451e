#ifndef HOTROW_TESTS_SUPPORT_FAULTY_ENV_H_
#define HOTROW_TESTS_SUPPORT_FAULTY_ENV_H_

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/philox.h"
#include "tests/support/mem_env.h"

namespace hotrow::test {

// An Env that misbehaves on request. Over its own MemEnv (the default) it can also lose power; over
// any other Env it injects faults only.
//
// Calls are counted from 0 in the order in which they arrive: every method of Env and every method
// of a File opened through it, but path(), block_bytes() and destructors. A queue's transfers are
// calls of ReadAt and WriteAt. To walk all error paths of an action:
//
//   for (int64_t k = 0;; ++k) {
//     FaultyEnv env;
//     env.FailCall(k, absl::DataLossError("injected"));
//     ... run the action, check that it reports the error and that what it stored before is intact
//     if (env.faults() == 0) break;   // the action makes fewer than k + 1 calls
//   }
//
// Threads: all methods may run concurrently. Files must not outlive the FaultyEnv.
class FaultyEnv : public Env {
 public:
  FaultyEnv();
  explicit FaultyEnv(Env* base);  // not owned
  ~FaultyEnv() override;

  // Call k returns this status instead of doing anything, once. When it is a Sync over the MemEnv,
  // the file's dirty pages count as clean from then on (MemEnv::ForgetDirtyPages).
  void FailCall(int64_t k, absl::Status status);
  // Call k throws std::bad_alloc instead of doing anything, which stands for all that finds no
  // memory on the thread that makes it. -1: none does.
  void ThrowCall(int64_t k);
  // Every call from k on returns this status: the disk is gone.
  void FailFrom(int64_t k, absl::Status status);
  // Call k, if it is a ReadAt or WriteAt of two bytes or more (of a direct file: two blocks), gets
  // half of its bytes only (of a direct file: whole blocks).
  void ShortenCall(int64_t k);
  // Each call that changes a file or directory returns this status instead, once in `one_in` calls
  // on average, by a coin of this seed. one_in 0: no more of them do.
  void FailWrites(uint64_t seed, uint64_t one_in, absl::Status status);
  // Queues made from now on (kAuto) carry their requests out in an order that this seed draws, and
  // report them in another: any that has been carried out and not been reported, or any of those
  // in flight (up to the queue's depth), may be next.
  void ShuffleIo(uint64_t seed);
  // Calls so far, and how many of them were failed, thrown at or shortened.
  int64_t calls() const;
  int64_t faults() const;

  // Not counted as calls. bit_offset = 8 * byte + bit.
  absl::Status FlipBit(const std::string& path, int64_t bit_offset);
  // See MemEnv; only with the MemEnv underneath.
  void DropUnsyncedData();
  void LosePower(uint64_t seed);
  void SetCapacity(int64_t bytes);
  void SetDirectBlockBytes(int64_t bytes);

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
  absl::StatusOr<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options) override;

 private:
  class FaultyFile;

  // Counts one call and says what it gets. `io_bytes` is what a read or write asks for, and is
  // halved, to a multiple of block_bytes, where the call is to fall short.
  absl::Status CountCall(size_t* io_bytes = nullptr, int64_t block_bytes = 1);
  // The same of a call that changes something, or makes that last.
  absl::Status CountWrite(size_t* io_bytes = nullptr, int64_t block_bytes = 1);

  const std::unique_ptr<MemEnv> mem_;  // null over another Env
  Env* const base_;

  mutable std::mutex mutex_;  // guards what follows
  int64_t calls_ = 0;
  int64_t faults_ = 0;
  std::map<int64_t, absl::Status> failures_;
  std::set<int64_t> shortened_;
  int64_t throws_at_ = -1;
  int64_t fail_from_ = INT64_MAX;
  absl::Status fail_from_status_;
  std::optional<uint64_t> io_seed_;
  std::optional<RandomStream> write_coin_;
  uint64_t one_in_ = 0;
  absl::Status write_status_;
};

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_FAULTY_ENV_H_
