#ifndef HOTROW_EMBEDDING_SERVING_BUDGET_SHARE_IMPL_H_
#define HOTROW_EMBEDDING_SERVING_BUDGET_SHARE_IMPL_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/buffer.h"
#include "base/host_pages.h"
#include "base/status_macros.h"
#include "embedding/serving/serving_budget.h"

namespace hotrow::internal {

// What the tables of one model have taken of a budget. Returns it when it goes.
//
// Threads: all methods, any number.
class BudgetShare {
 public:
  explicit BudgetShare(std::shared_ptr<ServingBudget> budget) : budget_(std::move(budget)) {}
  ~BudgetShare() { budget_->Return(bytes()); }
  BudgetShare(const BudgetShare&) = delete;
  BudgetShare& operator=(const BudgetShare&) = delete;

  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }
  const ServingBudget& budget() const { return *budget_; }

  // ResourceExhausted, naming `what` ("the index of ..."), what is taken and the budget.
  absl::Status Take(int64_t bytes, std::string_view what) {
    if (!budget_->Take(bytes)) {
      return absl::ResourceExhaustedError(
          absl::StrCat("memory_bytes: ", std::string(what), " needs ", bytes, " bytes more, ",
                       budget_->used(), " bytes are taken; the budget is ", budget_->bytes()));
    }
    bytes_.fetch_add(bytes, std::memory_order_relaxed);
    return absl::OkStatus();
  }
  void Return(int64_t bytes) {
    budget_->Return(bytes);
    bytes_.fetch_sub(bytes, std::memory_order_relaxed);
  }

  // A buffer of so many elements, and back.
  template <typename T>
  absl::Status Take(int64_t size, std::string_view what, HostBuffer<T>* buffer) {
    const int64_t bytes = ReservedFor<T>(size);
    HOTROW_RETURN_IF_ERROR(Take(bytes, what));
    absl::StatusOr<HostBuffer<T>> made = HostBuffer<T>::Create(size, HugePages::kTry);
    if (!made.ok()) {
      Return(bytes);
      return made.status();
    }
    *buffer = *std::move(made);
    return absl::OkStatus();
  }
  template <typename T>
  void Return(HostBuffer<T>* buffer) {
    Return(ReservedFor<T>(buffer->size()));
    *buffer = HostBuffer<T>();
  }

 private:
  template <typename T>
  static int64_t ReservedFor(int64_t size) {
    return HostBytesReserved(size * static_cast<int64_t>(sizeof(T)), HugePages::kTry);
  }

  const std::shared_ptr<ServingBudget> budget_;
  std::atomic<int64_t> bytes_ = 0;
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_SERVING_BUDGET_SHARE_IMPL_H_
