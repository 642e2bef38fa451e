#ifndef HOTROW_MODELS_DATA_OPEN_DATA_SOURCE_H_
#define HOTROW_MODELS_DATA_OPEN_DATA_SOURCE_H_

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "models/data/data_source.h"
#include "models/data/file_source.h"

namespace hotrow {

struct OpenDataOptions {
  // The vocabulary of the model that training starts from (FileSourceOptions).
  const SavedVocabulary* saved_vocabulary = nullptr;
  ReaderThreads threads;
  // Memory for training data that are mixed with each other: FileSourceOptions::memory_bytes. 0:
  // they come in the order of the files.
  int64_t shuffle_bytes = FileSourceOptions().memory_bytes;
  // In the order of the files in any case; text that fits in shuffle_bytes is then parsed once.
  bool in_order = false;
  int64_t vocabulary_bytes = FileSourceOptions().vocabulary_bytes;
};

// Opens the data of --data, such as "synthetic[:key=value,...]". Errors name the wrong part and
// list the legal ones. seed makes generated data and shuffling repeatable.
absl::StatusOr<std::unique_ptr<DataSource>> OpenDataSource(std::string_view spec, uint64_t seed,
                                                           const OpenDataOptions& options = {});

// One paragraph for --help: the kinds of data and their keys with defaults.
std::string DataSourceHelp();

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_OPEN_DATA_SOURCE_H_
