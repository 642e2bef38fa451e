#ifndef HOTROW_BASE_ENV_H_
#define HOTROW_BASE_ENV_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

class IoQueue;
struct IoQueueOptions;

// An open file. Offsets and sizes are bytes.
//
// Direct:     if direct() is true (Env::OpenDirect), transfers bypass the page cache. Offset,
//             length and address of each must then be multiples of block_bytes(); others fail with
//             InvalidArgument, or succeed where the file system allows them. A read ends inside a
//             block only at the end of the file.
// Threads:    ReadAt and WriteAt may run concurrently on one file.
// Durability: bytes written before a Sync() that returned OK survive power loss, if the file's
//             directory entry does too (Env::SyncDir). Direct writes need the Sync as well.
// Errors:     DataLoss (EIO), ResourceExhausted (disk full), others as ErrnoToStatus maps them; all
//             name the path.
class File {
 public:
  virtual ~File() = default;
  // Reads up to bytes.size() bytes at offset; returns how many. A read may be short at any time; it
  // returns 0 only at the end of the file. The rest of `bytes` is unspecified. ReadFull loops.
  virtual absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) = 0;
  // Writes up to bytes.size() bytes at offset, growing the file; returns how many. WriteFull below
  // loops.
  virtual absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) = 0;
  // fdatasync. After a failure do not trust a second call: the kernel has dropped the pages.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
  virtual absl::Status Truncate(int64_t size) = 0;
  // Reserves disk space for bytes [0, bytes): after OK, writes there cannot find the disk full. A
  // shorter file grows to that size, with zeros; its contents stay. Must not race writes of this
  // file. ResourceExhausted names the bytes and leaves size and contents unchanged.
  // The default reads the bytes and writes them back; PosixEnv asks the file system first.
  virtual absl::Status Allocate(int64_t bytes);
  // Reports errors of closing; the destructor ignores them.
  virtual absl::Status Close() = 0;
  virtual const std::string& path() const = 0;
  // A power of two: the alignment of direct transfers, typically 512 or 4096; 1 when not direct().
  virtual int64_t block_bytes() const { return 1; }
  bool direct() const { return block_bytes() > 1; }
  // The descriptor, for a queue that calls the kernel itself. -1: there is none, because the file
  // is closed or not on the real file system.
  virtual int descriptor() const { return -1; }
};

// A lock on a file, held as long as the object lives.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

enum class LockMode {
  kExclusive,  // nobody else has the lock
  kShared,     // others may, in this mode too
};

enum class OpenMode {
  kRead,       // must exist
  kReadWrite,  // must exist
  kCreate,     // created if missing, otherwise opened as it is
  kTruncate,   // created if missing, otherwise emptied
};

// The file system. All of hotrow's files go through an Env, so that a test can make any call fail,
// fall short, tear, or be lost in a power cut (tests/support/faulty_env.h).
//
// Threads: all methods may run concurrently.
class Env {
 public:
  virtual ~Env() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  // Opens for direct transfers, see File. If the file system refuses them, the file is buffered and
  // its direct() is false.
  virtual absl::StatusOr<std::unique_ptr<File>> OpenDirect(const std::string& path,
                                                           OpenMode mode) = 0;
  virtual absl::Status CreateDirs(const std::string& path) = 0;  // like mkdir -p
  // Names (not paths) of the entries but "." and "..", sorted.
  virtual absl::StatusOr<std::vector<std::string>> ListDir(const std::string& path) = 0;
  virtual absl::StatusOr<bool> Exists(const std::string& path) = 0;
  virtual absl::Status Rename(const std::string& from, const std::string& to) = 0;  // replaces `to`
  virtual absl::Status Remove(const std::string& path) = 0;                         // one file
  virtual absl::Status RemoveDir(const std::string& path) = 0;  // an empty directory
  // Makes creations, renames and removals in the directory durable.
  virtual absl::Status SyncDir(const std::string& path) = 0;
  // Free bytes, for a user without privileges, of the file system that holds the existing path.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
  // Locks a file, which is created if missing and stays. FailedPrecondition when another holder, in
  // this process or another, has it in a mode that excludes this one. The system releases the lock
  // when the process ends, however it ends. The default locks nothing: it is for Envs that live in
  // one process.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> LockFile(const std::string& path,
                                                             LockMode mode);
  // A queue for files of this Env (base/io_queue.h). By default kAuto runs requests in order
  // through File, and kUring is FailedPrecondition, as it is wherever io_uring is impossible.
  virtual absl::StatusOr<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options);
};

// The real file system. Stateless; lives as long as the process.
Env& PosixEnv();

// Env::CreateDirs, durable: after OK the directory and the parents that were missing survive power
// loss. Parents that existed already are taken to be durable; the name of the last one is synced in
// any case.
absl::Status CreateDirsDurably(Env& env, const std::string& path);
// Reads exactly bytes.size() bytes. Errors: DataLoss when the file ends first, naming file and
// offset.
absl::Status ReadFull(File& file, int64_t offset, std::span<std::byte> bytes);
// Writes all bytes.
absl::Status WriteFull(File& file, int64_t offset, std::span<const std::byte> bytes);
// Writes path.tmp, syncs it, renames it to path and syncs the directory: after OK the new text
// survives power loss; at any moment path holds either the old text or the new.
absl::Status WriteFileAtomically(Env& env, const std::string& path, std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_BASE_ENV_H_
