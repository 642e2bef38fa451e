#ifndef HOTROW_MODELS_SAVING_PORTABLE_MODEL_IMPL_H_
#define HOTROW_MODELS_SAVING_PORTABLE_MODEL_IMPL_H_

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/env.h"
#include "models/saving/dense_file.h"
#include "models/saving/portable_manifest.h"
#include "models/saving/portable_model.h"

namespace hotrow {

// What all writers and readers of whole models in the portable form do besides their tables.

// Writes the dense file, the vocabulary and the blobs (portable->model.vocabulary_bytes and
// blob_bytes), and last the manifest, beside tables that are finished.
absl::Status WritePortableRest(Env& env, const std::string& dir, const DenseVectors& dense,
                               PortableModel* portable);

// Fills in tables, files and bytes, and rows and hashes of summary->model, which is set.
void SummarisePortable(const std::vector<PortableTable>& tables,
                       const std::vector<PortableDigest>& digests, PortableSummary* summary);

}  // namespace hotrow

#endif  // HOTROW_MODELS_SAVING_PORTABLE_MODEL_IMPL_H_
