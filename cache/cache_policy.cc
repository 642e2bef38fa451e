#include "cache/cache_policy.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "cache/cache_policies.h"
#include "cache/cache_policy_impl.h"

namespace hotrow {
namespace {

std::vector<CachePolicyFacts> ReadFormulas() {
  std::vector<CachePolicyFacts> facts;
  cache::Policies::ForEach([&facts](auto formula) {
    HOTROW_CHECK(static_cast<size_t>(formula.kPolicy) == facts.size());
    facts.push_back({.policy = formula.kPolicy, .name = formula.kName, .help = formula.kHelp});
  });
  return facts;
}

}  // namespace

std::span<const CachePolicyFacts> CachePolicies() {
  static const auto* const facts = new std::vector<CachePolicyFacts>(ReadFormulas());
  return *facts;
}

absl::StatusOr<CachePolicy> ParseCachePolicy(std::string_view name) {
  std::string expected;
  for (const CachePolicyFacts& known : CachePolicies()) {
    if (known.name == name) return known.policy;
    absl::StrAppend(&expected, expected.empty() ? "" : ", ", std::string(known.name));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown cache policy \"", std::string(name), "\"; expected one of ", expected));
}

std::string_view CachePolicyName(CachePolicy policy) {
  const auto index = static_cast<size_t>(policy);
  HOTROW_CHECK(index < CachePolicies().size());
  return CachePolicies()[index].name;
}

}  // namespace hotrow
