#ifndef HOTROW_BASE_STATUS_MACROS_H_
#define HOTROW_BASE_STATUS_MACROS_H_

#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// Debian's Abseil has no status macros, so here are our few lines.

#define HOTROW_RETURN_IF_ERROR(expression)           \
  do {                                               \
    absl::Status hotrow_status_ = (expression);      \
    if (!hotrow_status_.ok()) return hotrow_status_; \
  } while (false)

// HOTROW_ASSIGN_OR_RETURN(auto file, env.Open(path)); one per line.
#define HOTROW_ASSIGN_OR_RETURN(declaration, expression)                                  \
  HOTROW_ASSIGN_OR_RETURN_IMPL_(HOTROW_CONCAT_(hotrow_status_or_, __LINE__), declaration, \
                                expression)
#define HOTROW_ASSIGN_OR_RETURN_IMPL_(status_or, declaration, expression) \
  auto status_or = (expression);                                          \
  if (!status_or.ok()) return std::move(status_or).status();              \
  declaration = *std::move(status_or)
#define HOTROW_CONCAT_(a, b) HOTROW_CONCAT_IMPL_(a, b)
#define HOTROW_CONCAT_IMPL_(a, b) a##b

#endif  // HOTROW_BASE_STATUS_MACROS_H_
