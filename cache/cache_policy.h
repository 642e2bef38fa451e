#ifndef HOTROW_CACHE_CACHE_POLICY_H_
#define HOTROW_CACHE_CACHE_POLICY_H_

#include <string_view>

#include "absl/status/statusor.h"

namespace hotrow {

// What decides who leaves when both buckets of a new row are full. Policies change speed, never
// values. Each is a struct in cache/cache_policy_impl.h, which has its word and its formula.
enum class CachePolicy {
  kLru,    // the row whose last step lies furthest back
  kLfu,    // the row used in the fewest steps, long ago counting less
  kSieve,  // the oldest row that was not used again; one that was is spared once for it
};

// The policy of a name. The error of an unknown one lists all.
absl::StatusOr<CachePolicy> ParseCachePolicy(std::string_view name);
std::string_view CachePolicyName(CachePolicy policy);

}  // namespace hotrow

#endif  // HOTROW_CACHE_CACHE_POLICY_H_
