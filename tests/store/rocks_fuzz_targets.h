#ifndef HOTROW_TESTS_STORE_ROCKS_FUZZ_TARGETS_H_
#define HOTROW_TESTS_STORE_ROCKS_FUZZ_TARGETS_H_

#include <string>
#include <vector>

// Inputs to start the target RocksText of tests/fuzz/fuzz_targets.h with.
namespace hotrow::fuzz {

std::vector<std::string> RocksTextCorpus();

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_STORE_ROCKS_FUZZ_TARGETS_H_
