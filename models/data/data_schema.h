#ifndef HOTROW_MODELS_DATA_DATA_SCHEMA_H_
#define HOTROW_MODELS_DATA_DATA_SCHEMA_H_

#include <cstdint>
#include <string>
#include <vector>

// What a source of data (models/data/data_source.h) says of them.

namespace hotrow {

struct DataFeature {
  std::string name;
  std::string table;           // features with the same table share it
  int64_t num_embeddings = 0;  // keys lie in [0, num_embeddings); 0: any key
  int64_t max_hotness = 0;     // lookups per sample at most; 0: not known
};

struct DataSchema {
  std::string name;                             // "synthetic"
  std::vector<std::string> labels = {"label"};  // one for each task, in batch order
  int32_t num_dense = 0;
  std::vector<std::string> dense;     // their names, in batch order; empty: they have none
  std::vector<DataFeature> features;  // in batch order
  int64_t train_samples = 0;          // 0: not known before reading
  int64_t valid_samples = 0;
  int64_t test_samples = 0;
  double sample_bytes = 0;  // of a file, of packed data, in the mean; 0: not known
};

}  // namespace hotrow

#endif  // HOTROW_MODELS_DATA_DATA_SCHEMA_H_
