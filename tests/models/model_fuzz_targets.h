#ifndef HOTROW_TESTS_MODELS_MODEL_FUZZ_TARGETS_H_
#define HOTROW_TESTS_MODELS_MODEL_FUZZ_TARGETS_H_

#include <string>
#include <vector>

// Inputs to start the targets of tests/fuzz/fuzz_targets.h with that read files of models and of
// data.
namespace hotrow::fuzz {

std::vector<std::string> SavedManifestCorpus();
std::vector<std::string> DenseFileCorpus();
std::vector<std::string> PortableManifestCorpus();
std::vector<std::string> VocabularyFileCorpus();
std::vector<std::string> PackedBlockCorpus();
std::vector<std::string> DeltaFilesCorpus();

}  // namespace hotrow::fuzz

#endif  // HOTROW_TESTS_MODELS_MODEL_FUZZ_TARGETS_H_
