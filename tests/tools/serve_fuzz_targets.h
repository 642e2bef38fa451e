#ifndef HOTROW_TESTS_TOOLS_SERVE_FUZZ_TARGETS_H_
#define HOTROW_TESTS_TOOLS_SERVE_FUZZ_TARGETS_H_

#include <string>
#include <vector>

// Inputs to start the target InferBody of tests/fuzz/fuzz_targets.h with.
namespace hotrow::fuzz {

std::vector<std::string> InferBodyCorpus();

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_TOOLS_SERVE_FUZZ_TARGETS_H_
