#ifndef HOTROW_BASE_CHECK_H_
#define HOTROW_BASE_CHECK_H_

namespace hotrow::internal {
// Prints "file:line: check failed: condition" to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, const char* condition);
}  // namespace hotrow::internal

// Checks a condition that only a bug in this library can break. Aborts at once, in release builds
// too: a wrong row in a checkpoint costs more than a crash. Errors from outside are a Status, never
// a check.
#define HOTROW_CHECK(condition)                      \
  (__builtin_expect(static_cast<bool>(condition), 1) \
       ? static_cast<void>(0)                        \
       : ::hotrow::internal::CheckFailed(__FILE__, __LINE__, #condition))

// The same on hot paths: compiled out when NDEBUG is set.
#ifdef NDEBUG
#define HOTROW_DCHECK(condition) static_cast<void>(sizeof(static_cast<bool>(condition)))
#else
#define HOTROW_DCHECK(condition) HOTROW_CHECK(condition)
#endif

#endif  // HOTROW_BASE_CHECK_H_
