#ifndef HOTROW_TESTS_STORE_SSD_FUZZ_TARGETS_H_
#define HOTROW_TESTS_STORE_SSD_FUZZ_TARGETS_H_

#include <string>
#include <vector>

// Inputs to start the targets Ssd... of tests/fuzz/fuzz_targets.h with. The first byte of an input
// says whether checksums are made right before it is read, so that a fuzzer gets past them.
namespace hotrow::fuzz {

std::vector<std::string> SsdChunkCorpus();
std::vector<std::string> SsdFooterCorpus();
std::vector<std::string> SsdManifestCorpus();
std::vector<std::string> SsdIndexImageCorpus();

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_STORE_SSD_FUZZ_TARGETS_H_
