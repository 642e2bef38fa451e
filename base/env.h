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
// Direct:     a file that Env::OpenDirect opened moves bytes between the caller's memory and the
//             device, past the page cache, if its direct() says true. Then offset, length and
//             address of every transfer must be multiples of block_bytes(); others fail with
//             InvalidArgument, or succeed where a file system does not mind. A read may end short
//             of a block only at the end of the file.
// Threads:    ReadAt and WriteAt may run concurrently on one file.
// Durability: bytes written before a Sync() that returned OK survive power loss, if the file's
//             directory entry does too (Env::SyncDir). Direct writes need the Sync as well.
// Errors:     DataLoss (EIO), ResourceExhausted (disk full), others as ErrnoToStatus maps them; all
//             name the path.
class File {
 public:
  virtual ~File() = default;
  // Reads up to bytes.size() bytes at offset; returns how many. Fewer may come at any time, 0 only
  // at the end of the file. The rest of `bytes` is unspecified. ReadFull below loops.
  virtual absl::StatusOr<int64_t> ReadAt(int64_t offset, std::span<std::byte> bytes) = 0;
  // Writes up to bytes.size() bytes at offset, growing the file; returns how many. WriteFull below
  // loops.
  virtual absl::StatusOr<int64_t> WriteAt(int64_t offset, std::span<const std::byte> bytes) = 0;
  // fdatasync. After it fails the caller must not trust a second one: the kernel has dropped the
  // pages.
  virtual absl::Status Sync() = 0;
  virtual absl::StatusOr<int64_t> Size() = 0;
  virtual absl::Status Truncate(int64_t size) = 0;
  // Reserves the space of bytes [0, bytes): after OK, writing there cannot find the disk full. The
  // file grows to that size where it is shorter, with zeros, and keeps what it has. Must not race
  // writes of this file. ResourceExhausted names the bytes; size and contents are then as before.
  // The default reads the bytes and writes them back; PosixEnv asks the file system first.
  virtual absl::Status Allocate(int64_t bytes);
  // Reports what closing says; the destructor closes silently.
  virtual absl::Status Close() = 0;
  virtual const std::string& path() const = 0;
  // A power of two: the alignment of direct transfers, typically 512 or 4096; 1 when not direct().
  virtual int64_t block_bytes() const { return 1; }
  bool direct() const { return block_bytes() > 1; }
  // The descriptor, for a queue that talks to the kernel itself; -1 when there is none, as with
  // files that are not the real file system's and closed ones.
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

// The file system. Everything that hotrow stores goes through an Env, so that a test can make any
// call fail, fall short, tear or be forgotten by a power loss (tests/support/faulty_env.h).
//
// Threads: all methods may run concurrently.
class Env {
 public:
  virtual ~Env() = default;
  virtual absl::StatusOr<std::unique_ptr<File>> Open(const std::string& path, OpenMode mode) = 0;
  // Opens for direct transfers, see File. Where the file system refuses those, the file opens
  // buffered and says so: direct() is false.
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
  // What a user without privileges may still write to the file system that holds the path, which
  // must exist.
  virtual absl::StatusOr<int64_t> FreeBytes(const std::string& path) = 0;
  // Takes the lock of a file, which is made if it is missing and stays. FailedPrecondition when
  // somebody else, in this process or another, has it in a mode that excludes this one. The system
  // gives it back when the process ends, however it does. The default is for Envs that one process
  // knows alone: it locks nothing.
  virtual absl::StatusOr<std::unique_ptr<FileLock>> LockFile(const std::string& path,
                                                             LockMode mode);
  // A queue for files of this Env (base/io_queue.h). The default has kAuto carry requests out in
  // their order through File, and no kUring (FailedPrecondition, as wherever that is impossible).
  virtual absl::StatusOr<std::unique_ptr<IoQueue>> NewIoQueue(const IoQueueOptions& options);
};

// The real file system. Stateless; lives as long as the process.
Env& PosixEnv();

// Env::CreateDirs for what must survive power loss: after OK the directory does, and those above it
// that were missing. One that was there already is taken to survive, but for the name of the last.
absl::Status CreateDirsDurably(Env& env, const std::string& path);
// Reads exactly bytes.size() bytes. Errors: DataLoss when the file ends first, naming file and
// offset.
absl::Status ReadFull(File& file, int64_t offset, std::span<std::byte> bytes);
// Writes all bytes.
absl::Status WriteFull(File& file, int64_t offset, std::span<const std::byte> bytes);
absl::StatusOr<std::string> ReadFileToString(Env& env, const std::string& path);  // for tests
// Writes path.tmp, syncs it, renames it to path and syncs the directory: after OK the new text
// survives power loss; at any moment path holds either the old text or the new.
absl::Status WriteFileAtomically(Env& env, const std::string& path, std::string_view text);

}  // namespace hotrow

#endif  // HOTROW_BASE_ENV_H_
