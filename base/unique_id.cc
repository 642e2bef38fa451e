#include "base/unique_id.h"

#include <sys/random.h>
#include <unistd.h>

#include <atomic>
#include <charconv>
#include <chrono>

#include "absl/strings/str_format.h"

namespace hotrow {
namespace {

// Where the system has no random numbers (a sandbox that forbids the call): clock, process and a
// counter, mixed. Still distinct among the processes of one machine.
UniqueId FromClock() {
  static std::atomic<uint64_t> counter{0};
  const auto nanos =
      static_cast<uint64_t>(std::chrono::system_clock::now().time_since_epoch().count());
  const uint64_t who = static_cast<uint64_t>(getpid()) << 32 | counter.fetch_add(1);
  return {.high = nanos, .low = who};
}

}  // namespace

UniqueId UniqueId::Random() {
  for (;;) {
    UniqueId id;
    if (getrandom(&id, sizeof(id), 0) != static_cast<ssize_t>(sizeof(id))) id = FromClock();
    if (id.known()) return id;
  }
}

std::optional<UniqueId> UniqueId::FromHex(std::string_view text) {
  constexpr size_t kDigits = 16;
  if (text.size() != 2 * kDigits ||
      text.find_first_not_of("0123456789abcdef") != std::string_view::npos) {
    return std::nullopt;
  }
  UniqueId id;
  std::from_chars(text.data(), text.data() + kDigits, id.high, 16);
  std::from_chars(text.data() + kDigits, text.data() + 2 * kDigits, id.low, 16);
  return id;
}

std::string UniqueId::ToHex() const { return absl::StrFormat("%016x%016x", high, low); }

}  // namespace hotrow
