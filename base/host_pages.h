#ifndef HOTROW_BASE_HOST_PAGES_H_
#define HOTROW_BASE_HOST_PAGES_H_

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "base/buffer.h"

// The pages of HostMemory (base/buffer.h).

namespace hotrow {

// What an allocation of that size really takes from the system (rounded to pages): budgets count
// this.
int64_t HostBytesReserved(int64_t bytes, HugePages huge_pages);

// Makes the pages of memory that was mapped (HostMemory of 128 KiB and more) present and writable,
// as their first use would, and changes no byte. `data` is the first byte of a page. Threads may
// share the work, each with its own pages. Errors: ResourceExhausted (names the bytes).
absl::Status PopulatePages(std::byte* data, int64_t bytes);

}  // namespace hotrow

#endif  // HOTROW_BASE_HOST_PAGES_H_
