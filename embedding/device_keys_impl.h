#ifndef HOTROW_EMBEDDING_DEVICE_KEYS_IMPL_H_
#define HOTROW_EMBEDDING_DEVICE_KEYS_IMPL_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "base/device_flag.h"
#include "base/device_memory.h"
#include "base/device_stream.h"
#include "base/exec_context.h"
#include "base/row_key.h"
#include "embedding/collection_plan_impl.h"
#include "ops/keys/unique.h"

namespace hotrow::internal {

// The distinct keys of a batch, found on the device of the caches and kept there. The host learns
// how many each table has, and the keys themselves only where it asks for them (Tell).
//
// Memory:  of the device, 68 bytes a lookup, grown to the largest batch.
// Threads: one at a time.
// Streams: what it enqueues goes to the stream of the call, always the same one. What it hands out
//          may be read there, or once Find has returned; until the next Find. Wait for that stream
//          before the keys are destroyed.
class DeviceKeys {
 public:
  DeviceKeys() = default;
  DeviceKeys(const DeviceKeys&) = delete;
  DeviceKeys& operator=(const DeviceKeys&) = delete;
  ~DeviceKeys() { side_.Wait().IgnoreError(); }

  // Finds the keys of values[0, n), memory of the device, whose runs of one table are `segments`,
  // and waits until the host knows how many there are.
  absl::Status Find(const ExecContext& ctx, const Plan& plan, const uint64_t* values, int64_t n,
                    std::span<const LookupSegment> segments, DeviceStream* stream);
  // Enqueues the lookups of each key, after Find.
  absl::Status Group(const ExecContext& ctx, DeviceStream* stream);

  // The U keys after Find, table by table in the order of the plan, each table's by first
  // appearance.
  std::span<const int64_t> table_offsets() const {  // [T + 1], memory of the host
    return table_offsets_.span().first(num_offsets_);
  }
  const int64_t* device_table_offsets() const { return device_table_offsets_.data(); }  // the same
  int64_t size() const { return num_offsets_ == 0 ? 0 : table_offsets().back(); }
  const RowKey* keys() const { return keys_.data(); }         // [U]
  const uint64_t* values() const { return values_.data(); }   // [U] without their tables
  const int32_t* counts() const { return counts_.data(); }    // [U]
  const int32_t* inverse() const { return inverse_.data(); }  // [N] the key of each lookup
  // [U] room for the addresses of their rows, which the owner puts there.
  std::span<std::byte*> rows() { return rows_.first(size()); }
  // The lookups of each key, after Group.
  const int64_t* row_offsets() const { return row_offsets_.data(); }    // [U + 1]
  const int32_t* lookup_order() const { return lookup_order_.data(); }  // [N]

  // Sends keys and counts to the host, after Find, on another stream that nobody waits for
  // but the next Find and Told.
  absl::Status Tell();
  // Waits until they are there.
  absl::Status Told(std::span<const RowKey>* keys, std::span<const int32_t>* counts);

  // Memory taken; may be asked beside a Find.
  int64_t host_bytes() const { return host_bytes_.load(std::memory_order_relaxed); }
  int64_t device_bytes() const { return device_bytes_.load(std::memory_order_relaxed); }

 private:
  absl::Status Grow(int64_t num_lookups, int64_t num_tables, DeviceStream* stream);
  void CountBytes();

  int64_t num_lookups_ = 0;
  size_t num_offsets_ = 0;
  std::vector<uint32_t> table_names_;  // RowKey::table of each
  DeviceMemory<uint64_t> values_;
  DeviceMemory<RowKey> keys_;
  DeviceMemory<int32_t> counts_;
  DeviceMemory<int32_t> inverse_;
  DeviceMemory<std::byte*> rows_;
  DeviceMemory<int64_t> row_offsets_;
  DeviceMemory<int32_t> lookup_order_;
  DeviceMemory<int64_t> device_table_offsets_;
  SharedBuffer<int64_t> table_offsets_;
  DeviceFlag found_;
  DeviceMemory<std::byte> workspace_;
  // What Tell uses.
  Device device_ = Device::kCpu;
  bool has_side_ = false;
  DeviceStream side_;
  SharedBuffer<RowKey> told_keys_;
  SharedBuffer<int32_t> told_counts_;
  std::atomic<int64_t> host_bytes_{0};
  std::atomic<int64_t> device_bytes_{0};
};

}  // namespace hotrow::internal

#endif  // HOTROW_EMBEDDING_DEVICE_KEYS_IMPL_H_
