#ifndef HOTROW_EMBEDDING_SERVING_SERVING_BUDGET_H_
#define HOTROW_EMBEDDING_SERVING_SERVING_BUDGET_H_

#include <atomic>
#include <cstdint>

namespace hotrow {

// Bytes that rows for serving and their indexes may take, shared by all models that are open. A
// hard limit: nothing is allocated before Take has agreed. Threads: any number.
class ServingBudget {
 public:
  explicit ServingBudget(int64_t bytes) : bytes_(bytes) {}
  ServingBudget(const ServingBudget&) = delete;
  ServingBudget& operator=(const ServingBudget&) = delete;

  // False, and nothing is taken: they are not there.
  bool Take(int64_t bytes) {
    int64_t used = used_.load(std::memory_order_relaxed);
    do {
      if (bytes > bytes_ - used) return false;
    } while (!used_.compare_exchange_weak(used, used + bytes, std::memory_order_relaxed));
    return true;
  }
  void Return(int64_t bytes) { used_.fetch_sub(bytes, std::memory_order_relaxed); }

  int64_t bytes() const { return bytes_; }
  int64_t used() const { return used_.load(std::memory_order_relaxed); }

 private:
  const int64_t bytes_;
  std::atomic<int64_t> used_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_EMBEDDING_SERVING_SERVING_BUDGET_H_
