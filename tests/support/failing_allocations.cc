#include "tests/support/failing_allocations.h"

#include <cstddef>
#include <cstdlib>
#include <new>

#include "base/check.h"

namespace hotrow::test {
namespace {

thread_local bool active = false;
thread_local int64_t asked = 0;
thread_local int64_t first_bad = 0;
thread_local int64_t num_bad = 0;
thread_local int64_t num_failed = 0;

bool Fails() {
  if (!active) return false;
  const int64_t number = asked++;
  if (number < first_bad || number - first_bad >= num_bad) return false;
  ++num_failed;
  return true;
}

void* Allocate(std::size_t bytes) noexcept {
  return Fails() ? nullptr : std::malloc(bytes == 0 ? 1 : bytes);
}

}  // namespace

FailingAllocations::FailingAllocations(int64_t good, int64_t bad) {
  HOTROW_CHECK(!active);
  asked = 0;
  num_failed = 0;
  first_bad = good;
  num_bad = bad;
  active = true;
}

FailingAllocations::~FailingAllocations() { active = false; }

int64_t FailingAllocations::failed() const { return num_failed; }

}  // namespace hotrow::test

// All forms: memory of a sanitizer's is not to come back here.
void* operator new(std::size_t bytes) {
  if (void* const memory = hotrow::test::Allocate(bytes); memory != nullptr) return memory;
  throw std::bad_alloc();
}
void* operator new[](std::size_t bytes) { return ::operator new(bytes); }
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return hotrow::test::Allocate(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return hotrow::test::Allocate(bytes);
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
