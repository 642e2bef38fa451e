#ifndef HOTROW_BASE_THREAD_H_
#define HOTROW_BASE_THREAD_H_

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace hotrow {

// Starts a thread that runs `run`. `purpose` completes the error "no thread for ...": "the writer
// of the log". All threads of the library start here, because the constructor of std::thread throws
// when the system has no room for another. Errors: Unavailable (the system's EAGAIN), with its text
// and the remedy. Not ResourceExhausted, which callers answer by making room in a store.
absl::StatusOr<std::thread> StartThread(std::string_view purpose, std::function<void()> run);
// What helps a program that gets no thread just now: whether memory or threads are limited.
std::string NoThreadRemedy();

// The exception that is being handled, as an error: std::bad_alloc ResourceExhausted, others
// Internal. place: what threw it, "Update", in front of its words; may be empty. Where there is no
// memory for words it has none.
absl::Status StatusOfException(std::string_view place = {}) noexcept;

// Runs `work`, which returns a Status or a StatusOr, where what it throws would end the process,
// since a thread or a destructor ends there, or leave others waiting: it is the error that is
// returned, once `then` has had it. What ends a thread (pthread_exit, by which Python ends its own)
// is no std::exception and goes on.
template <typename Work, typename Then>
auto Caught(std::string_view place, const Work& work, const Then& then) -> decltype(work()) {
  try {
    return work();
  } catch (const std::exception&) {
    const absl::Status status = StatusOfException(place);
    then(status);
    return status;
  }
}
template <typename Work>
auto Caught(std::string_view place, const Work& work) -> decltype(work()) {
  return Caught(place, work, [](const absl::Status&) {});
}

}  // namespace hotrow

#endif  // HOTROW_BASE_THREAD_H_
