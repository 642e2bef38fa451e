#include "base/env.h"

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/errno_status.h"
#include "base/io_queue_impl.h"
#include "base/math.h"
#include "base/out_of_room.h"
#include "base/status_macros.h"

namespace hotrow {
namespace {

constexpr int64_t kRewriteBytes = int64_t{1} << 20;  // a multiple of any block

// Reads [0, bytes) and writes it back, whole blocks, with zeros for what the file does not have.
absl::Status Rewrite(File& file, int64_t bytes) {
  // Mapped by the page, so aligned for direct transfers.
  HOTROW_ASSIGN_OR_RETURN(auto buffer,
                          HostBuffer<std::byte>::Create(kRewriteBytes, HugePages::kTry));
  for (int64_t at = 0; at < bytes; at += kRewriteBytes) {
    IoRequest request;
    request.file = &file;
    request.offset = at;
    request.data = buffer.data();
    request.bytes = std::min(kRewriteBytes, RoundUp(bytes - at, file.block_bytes()));
    if (internal::StartRequest(request)) internal::FinishRequest(request);
    if (request.status.code() == absl::StatusCode::kOutOfRange) {
      std::fill(request.data + request.done, request.data + request.bytes, std::byte{0});
    } else if (!request.status.ok()) {
      return request.status;
    }
    HOTROW_RETURN_IF_ERROR(WriteFull(file, at, {request.data, static_cast<size_t>(request.bytes)}));
  }
  return absl::OkStatus();
}

std::string ParentDir(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status File::Allocate(int64_t bytes) {
  if (bytes < 0) return ErrnoToStatus(EINVAL, absl::StrCat("allocate ", path()));
  HOTROW_ASSIGN_OR_RETURN(const int64_t size, Size());
  absl::Status status = Rewrite(*this, bytes);
  const int64_t wanted_size = status.ok() ? std::max(size, bytes) : size;
  // Whole blocks may have gone beyond; and after an error the file is to be as it was.
  absl::Status cut = Truncate(wanted_size);
  if (status.ok()) status = std::move(cut);
  if (status.ok()) return status;
  return WithText(status, absl::StrCat("allocate ", bytes, " bytes of ", path(), ": ",
                                       std::string(status.message())));
}

absl::StatusOr<std::unique_ptr<FileLock>> Env::LockFile(const std::string&, LockMode) {
  return std::make_unique<FileLock>();
}

absl::StatusOr<std::unique_ptr<IoQueue>> Env::NewIoQueue(const IoQueueOptions& options) {
  HOTROW_RETURN_IF_ERROR(options.Validate());
  switch (options.kind) {
    case IoQueueKind::kAuto:
      return internal::NewInOrderIoQueue();
    case IoQueueKind::kThreads:
      return internal::NewThreadsIoQueue(options);
    case IoQueueKind::kUring:
      break;
  }
  return absl::FailedPreconditionError(
      "io_uring serves the real file system alone; choose IoQueueKind::kAuto for this Env");
}

absl::Status CreateDirsDurably(Env& env, const std::string& path) {
  // From the top, each name made durable before there is anything below it.
  for (size_t end = 0; end != std::string::npos;) {
    end = path.find('/', end + 1);
    const std::string prefix = path.substr(0, end);
    if (prefix.empty() || prefix.back() == '/') continue;
    HOTROW_ASSIGN_OR_RETURN(const bool existed, env.Exists(prefix));
    if (!existed) HOTROW_RETURN_IF_ERROR(env.CreateDirs(prefix));
    const bool last = end == std::string::npos || path.find_first_not_of('/', end) == path.npos;
    if (existed && !last) continue;
    const absl::Status synced = env.SyncDir(ParentDir(prefix));
    // Whoever made it before us may have been interrupted. That its parent may not be opened is
    // their affair.
    if (!synced.ok() && !(existed && absl::IsPermissionDenied(synced))) return synced;
  }
  return env.CreateDirs(path);  // says what is wrong if it is no directory
}

absl::Status ReadFull(File& file, int64_t offset, std::span<std::byte> bytes) {
  int64_t at = offset;
  for (std::span<std::byte> rest = bytes; !rest.empty();) {
    HOTROW_ASSIGN_OR_RETURN(const int64_t got, file.ReadAt(at, rest));
    HOTROW_CHECK(got >= 0 && got <= static_cast<int64_t>(rest.size()));
    if (got == 0) {
      return absl::DataLossError(absl::StrCat("read ", file.path(), ": the file ends at byte ", at,
                                              ", but ", bytes.size(),
                                              " bytes were expected at offset ", offset));
    }
    at += got;
    rest = rest.subspan(static_cast<size_t>(got));
  }
  return absl::OkStatus();
}

absl::Status WriteFull(File& file, int64_t offset, std::span<const std::byte> bytes) {
  for (int64_t at = offset; !bytes.empty();) {
    HOTROW_ASSIGN_OR_RETURN(const int64_t put, file.WriteAt(at, bytes));
    HOTROW_CHECK(put >= 0 && put <= static_cast<int64_t>(bytes.size()));
    // No file system does this; an error is better than a loop without end.
    if (put == 0) {
      return absl::InternalError(absl::StrCat("write ", file.path(), ": no byte of ", bytes.size(),
                                              " was taken at offset ", at));
    }
    at += put;
    bytes = bytes.subspan(static_cast<size_t>(put));
  }
  return absl::OkStatus();
}

}  // namespace hotrow
