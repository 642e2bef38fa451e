#ifndef HOTROW_EMBEDDING_RANKS_DEVICE_ROW_SHUFFLE_IMPL_H_
#define HOTROW_EMBEDDING_RANKS_DEVICE_ROW_SHUFFLE_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "comm/communicator.h"
#include "comm/device_channel.h"
#include "embedding/device_keys_impl.h"
#include "embedding/ranks/device_key_shuffle_impl.h"
#include "embedding/ranks/row_shuffle_impl.h"
#include "ops/keys/key_rows.h"
#include "ops/rows/row_codec.h"

namespace hotrow::internal {

// Dimensions: N ranks, T tables, U distinct keys that this rank wants, R keys that it is asked for
// by all ranks together, S of them distinct: those it serves.

// Moves rows and gradients between ranks whose rows lie on devices: RowShuffle without a loop of
// the host over rows, and with the same bits. Sums are in the order of ranks.
//
//   StartRows       encodes the rows that others asked for, and sends them   (lookup)
//   FinishRows      every wanted key has an address to read floats from
//   StartGradients  one gradient for each wanted row travels back            (update)
//   FinishGradients each owner has the sum for its rows
//
// What belongs to this rank itself does not travel, is not rounded and not copied, but rows of 16
// bits, which are widened first, once each. There is no error feedback here.
//
// Calls:   collective: all ranks make the same ones in the same order. One exchange at a time. The
//          arrays that Start takes are read until its Finish.
// Threads: one at a time.
// Streams: all work is on its own stream, behind what is on ctx.stream at Start. What Finish
//          gives may be read on ctx.stream, where it was enqueued. The host waits for nothing but
//          the first batches of rows of 16 bits that are larger than those before.
// Memory:  of the device: both messages; where one is no fp32, or rows have 16 bits, their floats
//          once more; 24 bytes for each of the keys wanted or asked for, whichever are more, 12 a
//          key asked for, and Partition's. Grown to the largest batch.
// Errors:  those of the channel, which are final: Finish may say OK while the failure is not known
//          yet, so ask status() after a wait for the device.
class DeviceRowShuffle {
 public:
  // Collective over `host`'s ranks, which have equal options. On the current device where that is a
  // GPU.
  static absl::StatusOr<std::unique_ptr<DeviceRowShuffle>> Create(const RowShuffleOptions& options,
                                                                  Communicator& host,
                                                                  Device device);
  ~DeviceRowShuffle();

  // served_rows [S]: where the rows that are served lie, as their tables have them. step: of
  // stochastic rounding. Evaluation sends fp32. wanted_rows [U]: set, by FinishRows, to where the D
  // floats of each wanted key lie: in memory that lasts until the next Start, or in served_rows.
  absl::Status StartRows(const ExecContext& ctx, const DeviceRoutes& keys,
                         std::byte* const* served_rows, uint32_t step, bool evaluation,
                         const std::byte** wanted_rows);
  absl::Status FinishRows(const ExecContext& ctx) { return Finish(ctx); }

  // gradients [U]: of each wanted key, D floats. sums [S]: where the sum over the ranks that asked
  // goes, D floats each, set by FinishGradients.
  absl::Status StartGradients(const ExecContext& ctx, const DeviceKeys& wanted,
                              const DeviceRoutes& keys, float* const* gradients, uint32_t step,
                              float* const* sums);
  absl::Status FinishGradients(const ExecContext& ctx) { return Finish(ctx); }

  // Whether it is between a Start, one that failed included, and its Finish.
  bool busy() const { return busy_; }
  // Instead of the Finish: what is enqueued on ctx.stream from here on runs behind what is under
  // way. Not collective.
  void Drop(const ExecContext& ctx) {
    if (busy_) Finish(ctx).IgnoreError();
  }

  absl::Status status() { return channel_->status(); }
  int rank() const { return channel_->rank(); }
  int world_size() const { return channel_->world_size(); }
  // But ids.
  RowShuffleBytes bytes() const { return bytes_; }
  int64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }

 private:
  // What travels to, or from, all other ranks, one after another. Positions are those of ask_order
  // or asked_rows, in which the rows of this rank lie between the others'.
  struct Layout {
    std::vector<RowRun> runs;      // rows numbered without this rank's own
    std::vector<int64_t> first;    // [runs] position of each run's first row
    std::vector<int64_t> bytes;    // [N]
    std::vector<int64_t> offsets;  // [N]
    int64_t total_bytes = 0;
    int64_t floats = 0;
    int64_t own_begin = 0;  // positions of this rank's own
    int64_t own_end = 0;
    int64_t end = 0;
  };

  DeviceRowShuffle(const RowShuffleOptions& options, std::unique_ptr<DeviceChannel> channel,
                   DeviceStream stream);
  Layout LayOut(std::span<const int64_t> offsets, ExchangeType type) const;
  // Where the rows of a message lie that begins at `data`, by position.
  std::vector<ByteRows> RowsIn(const Layout& layout, ExchangeType type,
                               const std::byte* data) const;
  template <typename T>
  absl::Status Grow(int64_t size, DeviceMemory<T>* memory);
  // Sets *rows to addresses of floats: of tables of 16 bits, to those of widened rows.
  absl::Status Widen(const ExecContext& ctx, std::span<const int64_t> served_offsets,
                     std::byte* const* served_rows, const std::byte* const** rows);
  // Encodes what `out` says, rows[order[i]] at position i, and exchanges it for `in`.
  absl::Status Send(const ExecContext& ctx, const Layout& out, const Layout& in, ExchangeType type,
                    const int32_t* order, const std::byte* const* rows, const uint64_t* keys,
                    const StochasticKey& random);
  absl::Status Finish(const ExecContext& ctx);

  const RowShuffleOptions options_;
  const bool widens_;  // some table has rows of 16 bits
  const std::unique_ptr<DeviceChannel> channel_;
  DeviceStream stream_;  // before the memory that is given back on it
  DeviceMemory<std::byte> out_;
  DeviceMemory<std::byte> in_;
  DeviceMemory<float> decoded_;
  DeviceMemory<float> widened_;
  DeviceMemory<int64_t> widen_offsets_;       // 0, 1, 2, ...: bags of one lookup each,
  DeviceMemory<int32_t> widen_lookups_;       // and these
  DeviceMemory<const std::byte*> wide_rows_;  // [S]
  DeviceMemory<const std::byte*> out_rows_;   // by row of the message
  DeviceMemory<uint64_t> out_keys_;
  DeviceMemory<const std::byte*> in_rows_;  // by position
  DeviceMemory<int64_t> sum_offsets_;       // [S + 1]
  DeviceMemory<int32_t> sum_order_;         // [R]
  DeviceMemory<std::byte> workspace_;
  RowShuffleBytes bytes_;
  bool busy_ = false;
  std::atomic<int64_t> device_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_RANKS_DEVICE_ROW_SHUFFLE_IMPL_H_
