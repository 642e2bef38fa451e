#ifndef HOTROW_OPS_PRODUCTS_UNFUSED_PRODUCTS_H_
#define HOTROW_OPS_PRODUCTS_UNFUSED_PRODUCTS_H_

#include <string>
#include <vector>

namespace hotrow {

// Products of this process on a GPU whose bias, ReLU or gradient of ReLU is a separate kernel,
// since a trial found that cublasLt does it otherwise or not at all: a line each, with the shape
// and the reason, 64 at most. Results are the same, but take a pass over memory more. Any thread.
std::vector<std::string> UnfusedProducts();

namespace internal {
void AddUnfusedProduct(std::string line);
}  // namespace internal

}  // namespace hotrow

#endif  // HOTROW_OPS_PRODUCTS_UNFUSED_PRODUCTS_H_
