#include "ops/products/unfused_products.h"

#include <algorithm>
#include <mutex>
#include <utility>

namespace hotrow {
namespace {

struct Lines {
  std::mutex mutex;
  std::vector<std::string> all;  // in the order in which they were found

  static Lines& Get() {
    static auto* const lines = new Lines();
    return *lines;
  }
};

}  // namespace

std::vector<std::string> UnfusedProducts() {
  Lines& lines = Lines::Get();
  const std::lock_guard<std::mutex> lock(lines.mutex);
  return lines.all;
}

void internal::AddUnfusedProduct(std::string line) {
  constexpr size_t kMaxLines = 64;
  Lines& lines = Lines::Get();
  const std::lock_guard<std::mutex> lock(lines.mutex);
  const bool is_known = std::find(lines.all.begin(), lines.all.end(), line) != lines.all.end();
  if (!is_known && lines.all.size() < kMaxLines) lines.all.push_back(std::move(line));
}

}  // namespace hotrow
