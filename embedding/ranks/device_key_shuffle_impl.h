#ifndef HOTROW_EMBEDDING_RANKS_DEVICE_KEY_SHUFFLE_IMPL_H_
#define HOTROW_EMBEDDING_RANKS_DEVICE_KEY_SHUFFLE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_flag.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "comm/communicator.h"
#include "comm/device_channel.h"
#include "embedding/collection_plan_impl.h"
#include "embedding/device_keys_impl.h"
#include "ops/keys/unique.h"

namespace hotrow::internal {

// Dimensions: N ranks, T tables, U distinct keys that this rank wants, R keys that it is asked for
// by all ranks together, S of them distinct: those it serves.

// Who asked whom for which rows, for one batch: what ShuffledKeys is on the host
// (row_shuffle_impl.h), with the same contents. A view: of a DeviceShuffledKeys, or of a
// ShuffledKeys whose arrays were copied to the device.
struct DeviceRoutes {
  const int32_t* ask_order = nullptr;      // [U] memory of the device, as all that is a pointer
  std::span<const int64_t> ask_offsets;    // [N*T + 1] memory of the host, as all that is a span
  const int32_t* asked_rows = nullptr;     // [R]
  std::span<const int64_t> asked_offsets;  // [N*T + 1]
  std::span<const int64_t> table_offsets;  // [T + 1] of what is served
  const uint64_t* served = nullptr;        // [S] keys without their tables; null: of an evaluation
};

// The same, on the device. Kept with the step until the gradients have gone the same way back.
// Made again by each Exchange; until then it may be read on any stream.
class DeviceShuffledKeys {
 public:
  DeviceRoutes routes() const {
    return {ask_order(),    ask_offsets_,           asked_rows(),
            asked_offsets_, served.table_offsets(), served.values()};
  }
  // [U] positions in what is wanted, by owner, then table; memory of the device.
  const int32_t* ask_order() const { return ask_order_.data(); }
  // [R] positions in `served`, by asking rank, then table; memory of the device.
  const int32_t* asked_rows() const { return served.inverse(); }
  // [N*T + 1] in ask_order; owner p, table t at p*T + t. Memory of the host.
  const std::vector<int64_t>& ask_offsets() const { return ask_offsets_; }
  // [N*T + 1] in asked_rows. Memory of the host.
  const std::vector<int64_t>& asked_offsets() const { return asked_offsets_; }
  int64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }

  DeviceKeys served;  // [S]; counts: how many ranks asked

 private:
  friend class DeviceKeyShuffle;

  DeviceMemory<int32_t> ask_order_;
  std::vector<int64_t> ask_offsets_;
  std::vector<int64_t> asked_offsets_;
  std::atomic<int64_t> device_bytes_{0};  // without those of `served`
};

// The ID shuffle for keys that lie on a device: RowShuffle::ExchangeKeys without a loop of the host
// over keys. The host learns how many keys go from each rank to each, and how many it serves.
//
// Calls:   collective: all ranks call Exchange for the same batches in the same order.
// Threads: one at a time.
// Streams: all work is on its own stream. Exchange returns when the keys are there, so what
//          it gave can be read on any stream.
// Memory:  of the device, 20 bytes a key wanted and 8 a key asked for, beside that of Partition and
//          16 N T bytes for the counts; grown to the largest batch. It outlives what it filled.
// Errors:  those of the channel, which are final. ResourceExhausted, on all ranks alike, when one
//          is asked for 2^31 keys or more.
class DeviceKeyShuffle {
 public:
  // Collective over `host`'s ranks. On the current device where that is a GPU.
  static absl::StatusOr<std::unique_ptr<DeviceKeyShuffle>> Create(const Plan& plan,
                                                                  Communicator& host,
                                                                  Device device);
  ~DeviceKeyShuffle();

  // wanted: Find has returned. Nobody reads what `out` held before.
  absl::Status Exchange(const ExecContext& ctx, const DeviceKeys& wanted, DeviceShuffledKeys* out);

  int rank() const { return channel_->rank(); }
  int world_size() const { return channel_->world_size(); }
  // Sent to other ranks so far: counts and keys.
  int64_t bytes_sent() const { return bytes_sent_.load(std::memory_order_relaxed); }
  int64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }

 private:
  DeviceKeyShuffle(const Plan& plan, std::unique_ptr<DeviceChannel> channel, DeviceStream stream);
  absl::Status GrowForWanted(int64_t num_keys, DeviceShuffledKeys* out);
  // Sorts by owner and table, and tells the host and the other ranks how many.
  absl::Status SortAndCount(const ExecContext& ctx, const DeviceKeys& wanted,
                            DeviceShuffledKeys* out);
  // What the counts of all ranks say of this one.
  absl::Status ReadCounts(DeviceShuffledKeys* out);
  absl::Status SendKeys(const DeviceShuffledKeys& keys);
  int64_t num_parts() const { return world_size() * num_tables_; }
  void CountBytes();

  const Plan& plan_;  // not owned
  const int64_t num_tables_;
  std::vector<uint32_t> table_names_;  // RowKey::table of each
  const std::unique_ptr<DeviceChannel> channel_;
  DeviceStream stream_;                  // before the memory that is given back on it
  DeviceMemory<int32_t> parts_;          // [U]
  DeviceMemory<uint64_t> ask_values_;    // [U]
  DeviceMemory<uint64_t> asked_values_;  // [R]
  DeviceMemory<int64_t> offsets_;        // [N*T + 1] of this rank
  DeviceMemory<int64_t> all_offsets_;    // [N * (N*T + 1)] of all
  SharedBuffer<int64_t> told_offsets_;   // the same, for the host
  DeviceMemory<std::byte> workspace_;
  DeviceFlag told_;
  std::vector<LookupSegment> segments_;
  std::atomic<int64_t> bytes_sent_{0};
  std::atomic<int64_t> device_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_RANKS_DEVICE_KEY_SHUFFLE_IMPL_H_
