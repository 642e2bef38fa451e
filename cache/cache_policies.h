#ifndef HOTROW_CACHE_CACHE_POLICIES_H_
#define HOTROW_CACHE_CACHE_POLICIES_H_

#include <span>
#include <string_view>

#include "cache/cache_policy.h"

namespace hotrow {

struct CachePolicyFacts {
  CachePolicy policy;
  std::string_view name;  // "lru"
  std::string_view help;  // "lru (least recently used)"
};
// All of them, in the order of CachePolicy.
std::span<const CachePolicyFacts> CachePolicies();

}  // namespace hotrow

#endif  // HOTROW_CACHE_CACHE_POLICIES_H_
