#include "base/entropy.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>

#include "base/hash.h"

namespace hotrow {

uint64_t EntropyBits() {
  uint64_t bits = 0;
  for (;;) {
    // So few bytes come whole or not at all.
    const ssize_t got = getrandom(&bits, sizeof(bits), 0);
    if (got == static_cast<ssize_t>(sizeof(bits))) return bits;
    if (got < 0 && errno == EINTR) continue;
    break;
  }
  static std::atomic<uint64_t> calls{0};
  const auto now = std::chrono::steady_clock::now().time_since_epoch().count();
  bits = Mix64(static_cast<uint64_t>(now) + calls.fetch_add(1, std::memory_order_relaxed));
  bits = Mix64(bits ^ static_cast<uint64_t>(getpid()));
  return Mix64(bits ^ reinterpret_cast<uintptr_t>(&bits));
}

}  // namespace hotrow
