#ifndef HOTROW_CAPI_TABLES_IMPL_H_
#define HOTROW_CAPI_TABLES_IMPL_H_

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "capi/handles_impl.h"
#include "hotrow/hotrow.h"

namespace hotrow::capi {

// Makes the tables that the options name: opens the directory of their checkpoints, finds what they
// start from, and creates the collection.
absl::StatusOr<std::shared_ptr<Tables>> MakeTables(const hotrow_context* context,
                                                   const hotrow_collection_options& options);

// The tables that decay as a whole, with the numbers of their optimizers: what the rows of a
// checkpoint make up for steps by. In TrainingState::settings.
std::vector<std::pair<std::string, std::string>> DecayOf(const EmbeddingCollectionOptions& options);

// The texts of the interface.
std::string Describe(const Tables& tables);
std::string StatsText(const EmbeddingStats& stats);
std::string DigestText(const CollectionDigest& digest);
// No digest of these tables has a longer text.
uint64_t DigestTextBytesMax(const Tables& tables);

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_TABLES_IMPL_H_
