#ifndef HOTROW_BASE_THREAD_H_
#define HOTROW_BASE_THREAD_H_

#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/statusor.h"

namespace hotrow {

// Starts a thread that runs `run`. `purpose` completes the error "no thread for ...": "the writer
// of the log". All threads of the library start here, because the constructor of std::thread throws
// when the system has no room for another. Errors: Unavailable (the system's EAGAIN), with its text
// and the remedy. Not ResourceExhausted, which callers answer by making room in a store.
absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run);
// What helps a program that gets no thread just now: whether memory or threads are limited.
std::string NoThreadRemedy();

}  // namespace hotrow

#endif  // HOTROW_BASE_THREAD_H_
