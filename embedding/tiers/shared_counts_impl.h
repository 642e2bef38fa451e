#ifndef HOTROW_EMBEDDING_TIERS_SHARED_COUNTS_IMPL_H_
#define HOTROW_EMBEDDING_TIERS_SHARED_COUNTS_IMPL_H_

#include <mutex>

namespace hotrow::internal {

// Counts that any thread may read at any time, also while those who count hold locks. Its own lock
// is held for as long as a few numbers take to add or copy, and under it no other is taken.
template <typename Counts>
class SharedCounts {
 public:
  Counts Get() const {
    const std::lock_guard<std::mutex> lock(mutex_);
    return counts_;
  }
  void Add(const Counts& more) {
    const std::lock_guard<std::mutex> lock(mutex_);
    counts_.Add(more);
  }

 private:
  mutable std::mutex mutex_;
  Counts counts_;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_TIERS_SHARED_COUNTS_IMPL_H_
