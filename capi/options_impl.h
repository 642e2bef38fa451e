#ifndef HOTROW_CAPI_OPTIONS_IMPL_H_
#define HOTROW_CAPI_OPTIONS_IMPL_H_

#include "absl/status/statusor.h"
#include "embedding/options.h"
#include "hotrow/hotrow.h"

namespace hotrow::capi {

// The options of a collection, checked as far as their form goes; EmbeddingCollection checks what
// they mean. Ranks' communicator, checkpoints and starts are left to the caller.
absl::StatusOr<EmbeddingCollectionOptions> TakeOptions(const hotrow_collection_options& options);

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_OPTIONS_IMPL_H_
