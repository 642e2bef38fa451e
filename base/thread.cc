#include "base/thread.h"

#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"

namespace hotrow {

absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run) {
  const auto no_thread = [purpose](const char* why) {
    return absl::UnavailableError(
        absl::StrCat("the system has no thread for ", std::string(purpose), ": ", why,
                     "; raise the limits of threads (ulimit -u, pids.max of the control group) and "
                     "of memory (ulimit -v), or ask for fewer threads"));
  };
  try {
    return std::thread(std::move(run));
  } catch (const std::system_error& error) {
    return no_thread(error.what());
  } catch (const std::bad_alloc&) {
    return no_thread("out of memory");
  }
}

}  // namespace hotrow
