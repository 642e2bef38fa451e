#ifndef HOTROW_BASE_THREAD_H_
#define HOTROW_BASE_THREAD_H_

#include <functional>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"

namespace hotrow {

// Starts a thread that runs `run`. `purpose` ends an error's "no thread for ...": "the writer of
// the log". Every thread of the library starts here: std::thread alone throws where the system has
// no room for another. Errors: Unavailable (the system's EAGAIN), with what it says and the
// remedy. Not ResourceExhausted: no room in a store would help.
absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run);

}  // namespace hotrow

#endif  // HOTROW_BASE_THREAD_H_
