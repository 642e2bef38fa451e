#ifndef HOTROW_OPS_KEYS_KEY_ROWS_IMPL_H_
#define HOTROW_OPS_KEYS_KEY_ROWS_IMPL_H_

#include "absl/status/status.h"
#include "base/exec_context.h"
#include "ops/keys/key_rows.h"

namespace hotrow::internal {

absl::Status MakeRowKeysCpu(const ExecContext& ctx, const MakeRowKeysArgs& args);
absl::Status MakeRowKeysCuda(const MakeRowKeysArgs& args, CudaStream stream);
absl::Status AddressRunsCpu(const ExecContext& ctx, const AddressRunsArgs& args);
absl::Status AddressRunsCuda(const AddressRunsArgs& args, CudaStream stream);
absl::Status AddressByteRowsCpu(const ExecContext& ctx, const AddressByteRowsArgs& args);
absl::Status AddressByteRowsCuda(const AddressByteRowsArgs& args, CudaStream stream);
absl::Status AddressSlotsCpu(const ExecContext& ctx, const AddressSlotsArgs& args);
absl::Status AddressSlotsCuda(const AddressSlotsArgs& args, CudaStream stream);
absl::Status AddressLookupsCpu(const ExecContext& ctx, const AddressLookupsArgs& args);
absl::Status AddressLookupsCuda(const AddressLookupsArgs& args, CudaStream stream);

}  // namespace hotrow::internal

#endif  // HOTROW_OPS_KEYS_KEY_ROWS_IMPL_H_
