#include "tests/support/failing_threads.h"

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <cerrno>

#include "base/check.h"

namespace hotrow::test {
namespace {

std::atomic<bool> active{false};
std::atomic<int64_t> asked{0};
std::atomic<int64_t> first_bad{0};
std::atomic<int64_t> num_bad{0};
std::atomic<int64_t> num_refused{0};

bool Refuses() {
  if (!active.load()) return false;
  const int64_t number = asked.fetch_add(1);
  const int64_t first = first_bad.load();
  if (number < first || number - first >= num_bad.load()) return false;
  ++num_refused;
  return true;
}

}  // namespace

FailingThreads::FailingThreads(int64_t good, int64_t bad) {
  HOTROW_CHECK(!active.load());
  asked = 0;
  num_refused = 0;
  first_bad = good;
  num_bad = bad;
  active = true;
}

FailingThreads::~FailingThreads() { active = false; }

int64_t FailingThreads::refused() const { return num_refused.load(); }

}  // namespace hotrow::test

// Whoever starts a thread finds this one first.
extern "C" int pthread_create(pthread_t* thread, const pthread_attr_t* attributes,
                              void* (*run)(void*), void* argument) noexcept {
  if (hotrow::test::Refuses()) return EAGAIN;
  using Create = int (*)(pthread_t*, const pthread_attr_t*, void* (*)(void*), void*);
  static const auto create = reinterpret_cast<Create>(::dlsym(RTLD_NEXT, "pthread_create"));
  return create(thread, attributes, run, argument);
}
