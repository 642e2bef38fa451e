#ifndef HOTROW_TESTS_TOOLS_PLAN_FUZZ_TARGETS_H_
#define HOTROW_TESTS_TOOLS_PLAN_FUZZ_TARGETS_H_

#include <string>
#include <vector>

// Inputs to start PlanText of tests/fuzz/fuzz_targets.h with.
namespace hotrow::fuzz {

std::vector<std::string> PlanTextCorpus();

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_TOOLS_PLAN_FUZZ_TARGETS_H_
