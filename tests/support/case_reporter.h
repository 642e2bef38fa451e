#ifndef HOTROW_TESTS_SUPPORT_CASE_REPORTER_H_
#define HOTROW_TESTS_SUPPORT_CASE_REPORTER_H_

namespace hotrow::test {

// Makes a test binary that runs many cases say which of them went wrong. main() calls this once,
// after InitGoogleTest:
//   - a crash (signal, sanitizer, CHECK) prints "[  CRASHED ] Suite.Case" to stderr before the
//     process ends;
//   - a race (ThreadSanitizer) or a leak (LeakSanitizer) fails the case it happened in, or a later
//     one, which says so: where a look for leaks takes long, not each case has one;
//   - temporary directories of a case are removed when it passes, not at exit.
//
// It also leaves out what this run is not meant to have: cases of suites named *SlowTest unless
// HOTROW_SLOW_TESTS=1, and cases that match HOTROW_TEST_EXCLUDE, patterns of GoogleTest joined by
// colons.
void InstallCaseReporter();

}  // namespace hotrow::test

#endif  // HOTROW_TESTS_SUPPORT_CASE_REPORTER_H_
