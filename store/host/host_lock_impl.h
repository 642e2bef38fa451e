#ifndef HOTROW_STORE_HOST_HOST_LOCK_IMPL_H_
#define HOTROW_STORE_HOST_HOST_LOCK_IMPL_H_

#include <pthread.h>

#include "base/check.h"

namespace hotrow::internal {

// A reader-writer lock for std::shared_lock and std::unique_lock under which a waiting writer goes
// before new readers. std::shared_mutex lets readers overtake for ever, so that a loop of finds
// could starve the one who inserts; absl::Mutex as Debian builds it searches for lock cycles each
// time, too dear for finds that hold 32 of them. A thread must not lock it shared twice.
class WriterFirstMutex {
 public:
  WriterFirstMutex() {
    pthread_rwlockattr_t attributes;
    HOTROW_CHECK(pthread_rwlockattr_init(&attributes) == 0);
#ifdef __GLIBC__
    HOTROW_CHECK(pthread_rwlockattr_setkind_np(&attributes,
                                               PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP) == 0);
#endif
    HOTROW_CHECK(pthread_rwlock_init(&lock_, &attributes) == 0);
    pthread_rwlockattr_destroy(&attributes);
  }
  ~WriterFirstMutex() { pthread_rwlock_destroy(&lock_); }
  WriterFirstMutex(const WriterFirstMutex&) = delete;
  WriterFirstMutex& operator=(const WriterFirstMutex&) = delete;

  // NOLINTBEGIN(readability-identifier-naming): the names that std::shared_lock calls.
  void lock() { HOTROW_CHECK(pthread_rwlock_wrlock(&lock_) == 0); }
  void unlock() { HOTROW_CHECK(pthread_rwlock_unlock(&lock_) == 0); }
  void lock_shared() { HOTROW_CHECK(pthread_rwlock_rdlock(&lock_) == 0); }
  void unlock_shared() { HOTROW_CHECK(pthread_rwlock_unlock(&lock_) == 0); }
  // NOLINTEND(readability-identifier-naming)

 private:
  pthread_rwlock_t lock_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_STORE_HOST_HOST_LOCK_IMPL_H_
