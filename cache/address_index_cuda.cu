#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <cuda/atomic>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/cuda_device.h"
#include "base/cuda_handles.h"
#include "base/cuda_status.h"
#include "base/device_memory.h"
#include "base/status_macros.h"
#include "cache/address_index_impl.h"
#include "cache/row_cache_cuda_impl.h"

namespace hotrow::cache {
namespace {

using AtomicWord = cuda::atomic_ref<uint64_t, cuda::thread_scope_device>;
using AtomicCount = cuda::atomic_ref<uint32_t, cuda::thread_scope_device>;

// What kernels get of an index.
struct AddressView {
  AddressBucket* buckets;
  int64_t num_buckets;
  AddressCounters* counters;
};

__device__ __forceinline__ int64_t ThreadIndex() {
  return static_cast<int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ int64_t NumThreads() {
  return static_cast<int64_t>(gridDim.x) * blockDim.x;
}

__device__ __forceinline__ void Count(int64_t* sum, int64_t number) {
  static_assert(sizeof(unsigned long long) == sizeof(int64_t));
  atomicAdd(reinterpret_cast<unsigned long long*>(sum), static_cast<unsigned long long>(number));
}

// The words of a bucket that nobody changes meanwhile, by three loads.
struct Words {
  uint64_t v[AddressBucket::kWays];
};
__device__ __forceinline__ Words LoadWords(const AddressBucket& bucket) {
  const auto* const quads = reinterpret_cast<const uint4*>(bucket.word);
  Words words;
#pragma unroll
  for (int q = 0; q < AddressBucket::kWays / 2; ++q) {
    const uint4 quad = quads[q];
    words.v[2 * q] = uint64_t{quad.y} << 32 | quad.x;
    words.v[2 * q + 1] = uint64_t{quad.w} << 32 | quad.z;
  }
  return words;
}
// The same while others take ways: whoever sees a word also sees the key and the table that were
// written before it.
__device__ __forceinline__ Words LoadRacingWords(AddressBucket& bucket) {
  Words words;
#pragma unroll
  for (int way = 0; way < AddressBucket::kWays; ++way) {
    words.v[way] = AtomicWord(bucket.word[way]).load(cuda::memory_order_acquire);
  }
  return words;
}

// The way that has a key, -1 when there is none.
__device__ __forceinline__ int WayOf(const AddressBucket& bucket, const Words& words,
                                     const RowKey& key, uint64_t tag) {
  int found = -1;
#pragma unroll
  for (int way = 0; way < AddressBucket::kWays; ++way) {
    if (MayBe(words.v[way], tag) && bucket.key[way] == key.key && bucket.table[way] == key.table) {
      found = way;
    }
  }
  return found;
}

// A thread a key.
__global__ void __launch_bounds__(kBlockThreads)
    FindAddressKernel(const AddressView index, const RowKey* keys, const int64_t* slots, int64_t n,
                      std::byte** rows) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    if (slots != nullptr && slots[i] >= 0) continue;
    const RowKey key = keys[i];
    const AddressHome home = AddressHomeOf(key, index.num_buckets);
    std::byte* row = nullptr;
    for (int choice = 0; choice < 2; ++choice) {
      const AddressBucket& bucket = index.buckets[choice == 0 ? home.bucket1 : home.bucket2];
      const Words words = LoadWords(bucket);
      const int way = WayOf(bucket, words, key, home.tag);
      if (way >= 0) row = AddressOf(bucket.word[way]);
      if (way >= 0 || bucket.overflowed == 0) break;
    }
    rows[i] = row;
  }
}

// Takes an empty way of a bucket; false when it has none. Keys are distinct, so the only thing that
// two threads may both want is a way, and the loser looks at the next.
__device__ __forceinline__ bool TakeWay(AddressBucket& bucket, const RowKey& key, uint64_t word) {
  for (int way = 0; way < AddressBucket::kWays; ++way) {
    const AtomicWord place(bucket.word[way]);
    uint64_t now = kEmptyWord;
    if (place.load(cuda::memory_order_relaxed) != kEmptyWord ||
        !place.compare_exchange_strong(now, kTakenWord, cuda::memory_order_relaxed)) {
      continue;
    }
    bucket.key[way] = key.key;
    bucket.table[way] = key.table;
    place.store(word, cuda::memory_order_release);
    return true;
  }
  return false;
}

__device__ __forceinline__ bool Assign(AddressBucket& bucket, const RowKey& key, uint64_t tag,
                                       uint64_t word) {
  const int way = WayOf(bucket, LoadRacingWords(bucket), key, tag);
  if (way < 0) return false;
  AtomicWord(bucket.word[way]).store(word, cuda::memory_order_release);
  return true;
}

// A thread a key: looks whether it is there, then takes a way for it.
__global__ void __launch_bounds__(kBlockThreads)
    InsertAddressKernel(const AddressView index, const RowKey* keys, std::byte* const* rows,
                        int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const std::byte* const row = rows[i];
    if (row == nullptr) continue;
    if (!FitsWord(row)) {
      Count(&index.counters->no_room, 1);
      continue;
    }
    const RowKey key = keys[i];
    const AddressHome home = AddressHomeOf(key, index.num_buckets);
    const uint64_t word = WordOf(home.tag, row);
    AddressBucket& first = index.buckets[home.bucket1];
    AddressBucket& second = index.buckets[home.bucket2];
    const AtomicCount overflowed(first.overflowed);
    if (Assign(first, key, home.tag, word)) continue;
    // A key that was there when the kernel began is counted since then.
    if (overflowed.load(cuda::memory_order_relaxed) != 0 && Assign(second, key, home.tag, word)) {
      continue;
    }
    if (TakeWay(first, key, word)) {
      Count(&index.counters->entries, 1);
    } else if (home.bucket2 != home.bucket1 && TakeWay(second, key, word)) {
      overflowed.fetch_add(1, cuda::memory_order_relaxed);
      Count(&index.counters->entries, 1);
    } else {
      Count(&index.counters->no_room, 1);
    }
  }
}

// A thread a key; ways of other keys stay as they are.
__global__ void __launch_bounds__(kBlockThreads)
    EraseAddressKernel(const AddressView index, const RowKey* keys, int64_t n) {
  for (int64_t i = ThreadIndex(); i < n; i += NumThreads()) {
    const RowKey key = keys[i];
    const AddressHome home = AddressHomeOf(key, index.num_buckets);
    AddressBucket& first = index.buckets[home.bucket1];
    AddressBucket& second = index.buckets[home.bucket2];
    const AtomicCount overflowed(first.overflowed);
    int way = WayOf(first, LoadRacingWords(first), key, home.tag);
    AddressBucket* bucket = &first;
    // The count goes down as keys of this call leave, but not below one while this one is there.
    if (way < 0 && overflowed.load(cuda::memory_order_relaxed) != 0) {
      bucket = &second;
      way = WayOf(second, LoadRacingWords(second), key, home.tag);
    }
    if (way < 0) continue;
    AtomicWord(bucket->word[way]).store(kEmptyWord, cuda::memory_order_relaxed);
    if (bucket != &first) overflowed.fetch_add(~uint32_t{0}, cuda::memory_order_relaxed);
    Count(&index.counters->entries, -1);
  }
}

absl::Status Launched(const char* call) {
  return CudaToStatus(cudaGetLastError(), absl::StrCat("AddressIndex::", call, ": kernel launch"));
}

// One separate allocation, as the cache's: buckets, then the counters.
class CudaAddressIndex : public AddressIndex {
 public:
  static absl::StatusOr<std::unique_ptr<AddressIndex>> Create(int64_t buckets) {
    HOTROW_RETURN_IF_ERROR(CheckUsableGpu());
    std::unique_ptr<CudaAddressIndex> index(new CudaAddressIndex());
    HOTROW_ASSIGN_OR_RETURN(index->last_, PinnedBuffer<AddressCounters>::Create(1));
    const int64_t bytes = AddressIndexBytes(buckets, Device::kCuda);
    void* memory = nullptr;
    HOTROW_RETURN_IF_ERROR(
        CudaToStatus(cudaMalloc(&memory, static_cast<size_t>(bytes)),
                     absl::StrCat("AddressIndex: cudaMalloc of ", bytes, " bytes")));
    index->memory_.reset(memory);
    index->view_ = {.buckets = static_cast<AddressBucket*>(memory),
                    .num_buckets = buckets,
                    .counters = reinterpret_cast<AddressCounters*>(
                        static_cast<AddressBucket*>(memory) + buckets)};
    HOTROW_ASSIGN_OR_RETURN(const StreamHandle stream, CreateStream());
    HOTROW_CUDA_RETURN_IF_ERROR(
        cudaMemsetAsync(memory, 0, static_cast<size_t>(bytes), stream.get()));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaStreamSynchronize(stream.get()));
    return index;
  }

  absl::Status Find(const ExecContext& ctx, std::span<const RowKey> keys,
                    std::span<const int64_t> slots, std::span<std::byte*> rows) const override {
    HOTROW_CHECK(rows.size() == keys.size() && (slots.empty() || slots.size() == keys.size()));
    const int64_t n = std::ssize(keys);
    if (n == 0) return absl::OkStatus();
    FindAddressKernel<<<BlocksFor(n), kBlockThreads, 0, StreamOf(ctx)>>>(
        view_, keys.data(), slots.empty() ? nullptr : slots.data(), n, rows.data());
    return Launched("Find");
  }

  absl::Status InsertOrAssign(const ExecContext& ctx, std::span<const RowKey> keys,
                              std::span<std::byte* const> rows) override {
    HOTROW_CHECK(rows.size() == keys.size());
    const int64_t n = std::ssize(keys);
    if (n == 0) return absl::OkStatus();
    InsertAddressKernel<<<BlocksFor(n), kBlockThreads, 0, StreamOf(ctx)>>>(view_, keys.data(),
                                                                           rows.data(), n);
    return Launched("InsertOrAssign");
  }

  absl::Status Erase(const ExecContext& ctx, std::span<const RowKey> keys) override {
    const int64_t n = std::ssize(keys);
    if (n == 0) return absl::OkStatus();
    EraseAddressKernel<<<BlocksFor(n), kBlockThreads, 0, StreamOf(ctx)>>>(view_, keys.data(), n);
    return Launched("Erase");
  }

  absl::Status Clear(const ExecContext& ctx) override {
    static_assert(kEmptyWord == 0);
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(
        view_.buckets, 0, static_cast<size_t>(view_.num_buckets) * sizeof(AddressBucket),
        StreamOf(ctx)));
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemsetAsync(&view_.counters->entries, 0,
                                                sizeof(view_.counters->entries), StreamOf(ctx)));
    return absl::OkStatus();
  }

  absl::Status EnqueueStats(const ExecContext& ctx) override {
    HOTROW_CUDA_RETURN_IF_ERROR(cudaMemcpyAsync(last_.data(), view_.counters,
                                                sizeof(AddressCounters), cudaMemcpyDeviceToHost,
                                                StreamOf(ctx)));
    return absl::OkStatus();
  }
  AddressIndexStats LastStats() const override {
    // A copy may be writing it.
    AddressCounters counters;
    std::memcpy(&counters, last_.data(), sizeof(counters));
    return {.ways = view_.num_buckets * AddressBucket::kWays,
            .used_bytes = used_bytes(),
            .entries = counters.entries,
            .no_room = counters.no_room};
  }

 private:
  static CudaStream StreamOf(const ExecContext& ctx) {
    HOTROW_CHECK(ctx.device == Device::kCuda && ctx.stream != nullptr);
    return ctx.stream;
  }

  AddressView view_ = {};
  std::unique_ptr<void, Destroy<cudaFree>> memory_;
  PinnedBuffer<AddressCounters> last_;  // of EnqueueStats
};

}  // namespace

absl::StatusOr<std::unique_ptr<AddressIndex>> CreateCudaAddressIndex(int64_t buckets) {
  return CudaAddressIndex::Create(buckets);
}

}  // namespace hotrow::cache
