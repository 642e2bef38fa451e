#include "base/thread_pool.h"
#include "ops/keys/key_rows_impl.h"

namespace hotrow::internal {

absl::Status MakeRowKeysCpu(const ExecContext& /*ctx*/, const MakeRowKeysArgs& args) {
  if (args.max_keys == 0) return absl::OkStatus();
  for (size_t t = 0; t < args.tables.size(); ++t) {
    for (int64_t u = args.table_offsets[t]; u < args.table_offsets[t + 1]; ++u) {
      args.keys[u] = {args.values[u], args.tables[t]};
    }
  }
  return absl::OkStatus();
}

absl::Status AddressRunsCpu(const ExecContext& /*ctx*/, const AddressRunsArgs& args) {
  for (const FloatRows& run : args.runs) {
    for (int64_t i = run.begin; i < run.end; ++i) {
      args.rows[i] = run.first + (i - run.begin) * run.stride;
    }
  }
  return absl::OkStatus();
}

absl::Status AddressByteRowsCpu(const ExecContext& /*ctx*/, const AddressByteRowsArgs& args) {
  for (const ByteRows& run : args.runs) {
    for (int64_t i = run.begin; i < run.end; ++i) {
      args.rows[i] = run.first + (i - run.begin) * run.row_bytes;
    }
  }
  return absl::OkStatus();
}

absl::Status AddressSlotsCpu(const ExecContext& /*ctx*/, const AddressSlotsArgs& args) {
  for (int64_t i = 0; i < args.num_rows; ++i) {
    if (args.slots[i] >= 0) args.rows[i] = args.first + args.slots[i] * args.row_bytes;
  }
  for (int64_t k = 0; k < args.num_late; ++k) {
    args.rows[args.late_positions[k]] = args.first + args.late_slots[k] * args.row_bytes;
  }
  return absl::OkStatus();
}

absl::Status AddressLookupsCpu(const ExecContext& ctx, const AddressLookupsArgs& args) {
  constexpr int64_t kSamplesPerTask = 256;
  ParallelFor(ctx.pool, args.batch_size, kSamplesPerTask, [&](int64_t begin, int64_t end) {
    for (int64_t b = begin; b < end; ++b) {
      for (int64_t f = 0; f < args.num_features; ++f) {
        args.lookups[b * args.num_features + f] =
            reinterpret_cast<const float*>(args.rows[args.inverse[f * args.batch_size + b]]);
      }
    }
  });
  return absl::OkStatus();
}

}  // namespace hotrow::internal
