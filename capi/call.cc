#include "capi/call_impl.h"

#include <pthread.h>

#include <atomic>

#include "base/version.h"

namespace hotrow::capi {
namespace {

// A fixed size, so that a thread without memory can say that it has none.
constexpr size_t kMessageBytes = 4096;
thread_local char last_message[kMessageBytes] = "";

std::atomic<uint64_t> forks = 0;
[[maybe_unused]] const int counts_forks =
    ::pthread_atfork(nullptr, nullptr, [] { forks.fetch_add(1, std::memory_order_relaxed); });

}  // namespace

uint64_t ProcessNumber() noexcept { return forks.load(std::memory_order_relaxed); }

hotrow_status Keep(hotrow_status code, std::string_view message) noexcept {
  size_t n = std::min(message.size(), kMessageBytes - 1);
  // Not in the middle of a character.
  while (n < message.size() && n > 0 && (static_cast<unsigned char>(message[n]) & 0xC0) == 0x80) {
    --n;
  }
  std::memcpy(last_message, message.data(), n);
  last_message[n] = '\0';
  return code;
}

hotrow_status Keep(const absl::Status& status) noexcept {
  const int code = static_cast<int>(status.code());
  const hotrow_status known = code <= HOTROW_DATA_LOSS ? code : HOTROW_UNKNOWN;
  const std::string_view message(status.message().data(), status.message().size());
  try {
    return Keep(known, InCallersWords(message));
  } catch (const std::bad_alloc&) {
    return Keep(known, message);
  }
}

absl::Status CheckRoom(uint64_t need, const void* out, uint64_t size, uint64_t* needed) {
  if (needed != nullptr) *needed = need;
  if (size < need) {
    return absl::OutOfRangeError(absl::StrCat("size: is ", size, ", ", need, " bytes are needed"));
  }
  return need == 0 ? absl::OkStatus() : NotNull(out, "the buffer");
}

absl::Status GiveText(std::string_view text, char* out, uint64_t size, uint64_t* needed) {
  if (absl::Status room = CheckRoom(text.size() + 1, out, size, needed); !room.ok()) return room;
  std::memcpy(out, text.data(), text.size());
  out[text.size()] = '\0';
  return absl::OkStatus();
}

absl::Status At(std::string_view place, const absl::Status& status) {
  if (status.ok()) return status;
  return absl::Status(status.code(),
                      absl::StrCat(std::string(place), ": ", std::string(status.message())));
}

}  // namespace hotrow::capi

extern "C" {

const char* hotrow_error_message(void) { return hotrow::capi::last_message; }

const char* hotrow_status_name(hotrow_status status) {
  switch (status) {
    case HOTROW_OK:
      return "OK";
    case HOTROW_CANCELLED:
      return "CANCELLED";
    case HOTROW_UNKNOWN:
      return "UNKNOWN";
    case HOTROW_INVALID_ARGUMENT:
      return "INVALID_ARGUMENT";
    case HOTROW_DEADLINE_EXCEEDED:
      return "DEADLINE_EXCEEDED";
    case HOTROW_NOT_FOUND:
      return "NOT_FOUND";
    case HOTROW_ALREADY_EXISTS:
      return "ALREADY_EXISTS";
    case HOTROW_PERMISSION_DENIED:
      return "PERMISSION_DENIED";
    case HOTROW_RESOURCE_EXHAUSTED:
      return "RESOURCE_EXHAUSTED";
    case HOTROW_FAILED_PRECONDITION:
      return "FAILED_PRECONDITION";
    case HOTROW_ABORTED:
      return "ABORTED";
    case HOTROW_OUT_OF_RANGE:
      return "OUT_OF_RANGE";
    case HOTROW_UNIMPLEMENTED:
      return "UNIMPLEMENTED";
    case HOTROW_INTERNAL:
      return "INTERNAL";
    case HOTROW_UNAVAILABLE:
      return "UNAVAILABLE";
    case HOTROW_DATA_LOSS:
      return "DATA_LOSS";
    default:
      return "?";
  }
}

const char* hotrow_version(void) { return hotrow::Version(); }

}  // extern "C"
