#include "base/buffer.h"

#include <sys/mman.h>

#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "base/host_pages.h"
#include "base/math.h"

namespace hotrow {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kHugePageBytes = int64_t{2} << 20;
// Smaller pieces come from the heap. Larger ones do not: pieces that are made a little larger again
// and again, as those of the stores' indexes are, would leave holes in it that nothing fits, memory
// that no budget counts.
constexpr int64_t kMapFromBytes = int64_t{128} << 10;

absl::Status OutOfMemory(int64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("host memory: cannot allocate ", bytes, " bytes"));
}

std::byte* MapPages(int64_t bytes) {
  void* const data = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  return data == MAP_FAILED ? nullptr : static_cast<std::byte*>(data);
}

void UnmapPages(std::byte* data, int64_t bytes) {
  if (bytes > 0) ::munmap(data, static_cast<size_t>(bytes));
}

// Maps 2 MiB more than is needed and gives back what lies before the 2 MiB boundary and behind the
// end, because mmap itself promises only 4 KiB alignment and a huge page must start at a multiple
// of its size.
std::byte* MapAtHugePageBoundary(int64_t bytes) {
  std::byte* const begin = MapPages(bytes + kHugePageBytes);
  if (begin == nullptr) return nullptr;
  const auto address = reinterpret_cast<uintptr_t>(begin);
  const auto misaligned = static_cast<int64_t>(address % kHugePageBytes);
  const int64_t head = misaligned == 0 ? 0 : kHugePageBytes - misaligned;
  UnmapPages(begin, head);
  UnmapPages(begin + head + bytes, kHugePageBytes - head);
  // The advice may be refused (no such feature, switched off): the memory is as good, only slower.
  ::madvise(begin + head, static_cast<size_t>(bytes), MADV_HUGEPAGE);
  return begin + head;
}

}  // namespace

absl::Status internal::CheckElementCount(int64_t size, int64_t element_bytes) {
  if (size >= 0 && size <= INT64_MAX / element_bytes) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("the number of elements must lie in [0, ",
                                                 INT64_MAX / element_bytes, "], got ", size));
}

absl::StatusOr<void*> HostMemory::Allocate(int64_t bytes) const {
  if (bytes == 0) return nullptr;
  if (bytes > INT64_MAX - 2 * kHugePageBytes) return OutOfMemory(bytes);
  void* data = nullptr;
  if (bytes < kMapFromBytes) {
    const auto rounded = static_cast<size_t>(RoundUp(bytes, kBufferAlignment));
    data = std::aligned_alloc(kBufferAlignment, rounded);
    if (data != nullptr) std::memset(data, 0, rounded);
  } else if (huge_pages == HugePages::kTry && bytes >= kHugePageBytes) {
    data = MapAtHugePageBoundary(RoundUp(bytes, kPageBytes));
  } else {
    data = MapPages(RoundUp(bytes, kPageBytes));
  }
  if (data == nullptr) return OutOfMemory(bytes);
  return data;
}

void HostMemory::Free(void* data, int64_t bytes) const {
  if (bytes < kMapFromBytes) {
    std::free(data);
  } else {
    UnmapPages(static_cast<std::byte*>(data), RoundUp(bytes, kPageBytes));
  }
}

absl::Status PopulatePages(std::byte* data, int64_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  // There since Linux 5.14; the headers may be older.
  constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE
  if (::madvise(data, static_cast<size_t>(bytes), kPopulateWrite) == 0) return absl::OkStatus();
  if (errno != EINVAL && errno != ENOSYS) {
    return absl::ResourceExhaustedError(
        absl::StrCat("host memory: cannot make ", bytes, " bytes present: ", std::strerror(errno)));
  }
  // A write to each page, of what is there: a read may leave it on a shared page of zeros.
  for (int64_t at = 0; at < bytes; at += kPageBytes) {
    volatile std::byte* const byte = data + at;
    *byte = *byte;
  }
  return absl::OkStatus();
}

// The same for both kinds: a mapping with huge pages ends at the page that holds its last byte, so
// its tail is of small pages. Pieces from the heap share pages with others and are counted as if
// they did not.
int64_t HostBytesReserved(int64_t bytes, HugePages) { return RoundUp(bytes, kPageBytes); }

}  // namespace hotrow
