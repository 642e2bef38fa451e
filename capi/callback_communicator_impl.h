#ifndef HOTROW_CAPI_CALLBACK_COMMUNICATOR_IMPL_H_
#define HOTROW_CAPI_CALLBACK_COMMUNICATOR_IMPL_H_

#include <memory>

#include "absl/status/statusor.h"
#include "comm/communicator.h"
#include "hotrow/hotrow.h"

namespace hotrow::capi {

// A channel over the caller's transport. An error of any callback fails the family here, and asks
// the transport to fail it on the other ranks. Errors: InvalidArgument, naming the field.
absl::StatusOr<std::unique_ptr<Communicator>> MakeCallbackCommunicator(
    const hotrow_communicator_callbacks& callbacks);

}  // namespace hotrow::capi

#endif  // HOTROW_CAPI_CALLBACK_COMMUNICATOR_IMPL_H_
