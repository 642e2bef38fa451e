#ifndef HOTROW_CACHE_ADDRESS_INDEX_H_
#define HOTROW_CACHE_ADDRESS_INDEX_H_

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/exec_context.h"
#include "base/row_key.h"

namespace hotrow {

struct AddressIndexOptions {
  int64_t budget_bytes = 0;      // required; of the device's memory: a hard limit
  Device device = Device::kCpu;  // where it lies

  absl::Status Validate() const;  // names the field, the limit and the value it got
};

struct AddressIndexStats {
  int64_t ways = 0;        // places for keys
  int64_t used_bytes = 0;  // of the budget, the same from creation on
  int64_t entries = 0;     // keys that it has now
  int64_t no_room = 0;     // keys that InsertOrAssign left out, a key as often as it was
};

// AddressIndex finds on a device where rows lie that somebody else keeps: {table, key} -> address.
// It may leave a key out, so a key that it has not got says nothing; what it has is what it was
// given last.
//
// Layout:  buckets of 128 bytes with 6 ways: a word (16 bits of the hash, and the address), a key
//          and its table. A key may lie in two buckets. It goes to the first unless that is full,
//          which then counts it; so a search reads one line unless the first bucket has
//          overflowed. A key that finds both full is left out: 0.4 % of the keys where there are
//          0.6 of them a way, 2.6 % at 0.8, 9 % at 1. Nothing moves, nothing grows.
// Races:   keys of one call are distinct. A thread of InsertOrAssign takes a way by one
//          compare-and-swap of its word, writes key and table, and then stores the word with
//          release; who looks meanwhile takes the way for somebody else's.
// Devices: with Device::kCpu everything lies in host memory and a call is done when it returns.
//          With Device::kCuda it lies in the memory of the device that was current at Create; all
//          spans are memory that the GPU reaches, calls are enqueued on ctx.stream, allocate
//          nothing and do not wait. There it depends on timing which of the keys that want one way
//          is left out; what Find says of those that were not does not.
// Threads: all calls but Find and LastStats change it: one at a time and on one stream, on which
//          Find is enqueued as well. LastStats: any thread.
// Errors:  InvalidArgument (options), ResourceExhausted (no memory) and FailedPrecondition (no
//          usable GPU) from Create; later those of launches.
class AddressIndex {
 public:
  static absl::StatusOr<std::unique_ptr<AddressIndex>> Create(const AddressIndexOptions& options);
  // The least budget_bytes.
  static int64_t MinBudgetBytes(Device device);
  virtual ~AddressIndex() = default;
  AddressIndex(const AddressIndex&) = delete;
  AddressIndex& operator=(const AddressIndex&) = delete;

  // Sets rows[i] to the address of keys[i], null when the index has not got it. With `slots`, keys
  // whose slots[i] is not negative are not looked up, and rows[i] stays as it is. Keys may repeat.
  virtual absl::Status Find(const ExecContext& ctx, std::span<const RowKey> keys,
                            std::span<const int64_t> slots, std::span<std::byte*> rows) const = 0;
  // From now on the row of keys[i] lies at rows[i]; a null is passed over, and so is an address of
  // 2^48 or more, as if there were no room. The keys of the others are distinct.
  virtual absl::Status InsertOrAssign(const ExecContext& ctx, std::span<const RowKey> keys,
                                      std::span<std::byte* const> rows) = 0;
  // Forgets these keys, which are distinct; those that it has not got are fine.
  virtual absl::Status Erase(const ExecContext& ctx, std::span<const RowKey> keys) = 0;
  // Forgets all keys.
  virtual absl::Status Clear(const ExecContext& ctx) = 0;

  // LastStats returns what the last EnqueueStats that is done has read.
  virtual absl::Status EnqueueStats(const ExecContext& ctx) = 0;
  virtual AddressIndexStats LastStats() const = 0;
  // Bytes of memory that it has taken.
  int64_t used_bytes() const { return used_bytes_; }

 protected:
  AddressIndex() = default;

  int64_t used_bytes_ = 0;
};

}  // namespace hotrow

#endif  // HOTROW_CACHE_ADDRESS_INDEX_H_
