#include "base/thread.h"

#include <pthread.h>
#include <sys/mman.h>

#include <exception>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {

namespace {

constexpr size_t kNameMax = 15;  // of a thread, in tools that list them

// Whether it is its stack that a thread has no room for.
bool LacksRoomForStack() {
  pthread_attr_t attributes;
  size_t bytes = 0;
  if (::pthread_attr_init(&attributes) != 0) return true;
  ::pthread_attr_getstacksize(&attributes, &bytes);
  ::pthread_attr_destroy(&attributes);
  void* const room = ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (room == MAP_FAILED) return true;
  ::munmap(room, bytes);
  return false;
}

}  // namespace

std::string NoThreadRemedy() {
  return LacksRoomForStack()
             ? "there is no memory for its stack: raise the limit of memory (ulimit -v), or lower "
               "the budgets of memory"
             : "raise the limits of threads (ulimit -u, pids.max of the control group), or ask for "
               "fewer threads";
}

absl::Status StatusOfException(std::string_view place) noexcept {
  const auto says = [place](std::string_view what) {
    return absl::StrCat(std::string(place), place.empty() ? "" : ": ", std::string(what));
  };
  try {
    try {
      throw;
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError(says("out of memory"));
    } catch (const std::exception& error) {
      return absl::InternalError(says(error.what()));
    } catch (...) {
      return absl::InternalError(says("an exception of an unknown type"));
    }
  } catch (...) {
    return absl::ResourceExhaustedError("");  // which takes no memory
  }
}

absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run) {
  const auto no_thread = [purpose](const char* why) {
    return absl::UnavailableError(absl::StrCat(
        "the system has no thread for ", std::string(purpose), ": ", why, "; ", NoThreadRemedy()));
  };
  try {
    return std::thread([name = std::string(purpose.substr(0, kNameMax)), run = std::move(run)] {
      ::pthread_setname_np(::pthread_self(), name.c_str());
      run();
    });
  } catch (const std::system_error& error) {
    return no_thread(error.what());
  } catch (const std::bad_alloc&) {
    return no_thread("out of memory");
  }
}

}  // namespace hotrow
