#include <algorithm>
#include <cstring>

#include "ops/keys/distinct_keys_impl.h"
#include "ops/keys/unique_cpu_impl.h"

namespace hotrow::internal {
namespace {

constexpr int64_t kSlotsPerValue = UniqueCpuWorkspace::kSlotsPerValue;

// The same by sorting: slower, but no keys are worse than others.
int32_t SortKeys(const TableValues& values, UniqueEntry* entries, int32_t* slots) {
  struct Value {
    uint64_t key;
    int32_t number;  // among the values
  };
  static_assert(sizeof(Value) <= kSlotsPerValue * sizeof(int32_t));
  static_assert(2 <= kSlotsPerValue && sizeof(UniqueEntry) >= sizeof(int32_t));
  const int64_t n = values.count();
  auto* const sorted = reinterpret_cast<Value*>(slots);
  values.ForEach([&](const TableValues::Run& run) {
    for (int64_t i = 0; i < run.size; ++i) {
      sorted[run.first + i] = {values.keys(run.position)[i], static_cast<int32_t>(run.first + i)};
    }
    return true;
  });
  std::sort(sorted, sorted + n, [](const Value& a, const Value& b) {
    return a.key != b.key ? a.key < b.key : a.number < b.number;
  });
  // The number of the first value with the same key, for each value. Where the entries come to
  // stand first, then where the sorted values stood, when those are not needed any more.
  auto* firsts = reinterpret_cast<int32_t*>(entries);
  for (int64_t i = 0; i < n; ++i) {
    const bool same = i > 0 && sorted[i].key == sorted[i - 1].key;
    firsts[sorted[i].number] = same ? firsts[sorted[i - 1].number] : sorted[i].number;
  }
  std::memcpy(slots, firsts, static_cast<size_t>(n) * sizeof(int32_t));
  firsts = slots;
  int32_t* const entry_of = firsts + n;  // by the number of the first value
  int32_t num_keys = 0;
  values.ForEach([&](const TableValues::Run& run) {
    for (int64_t i = 0; i < run.size; ++i) {
      const int32_t number = firsts[run.first + i];
      if (number == run.first + i) {
        entries[num_keys] = {values.keys(run.position)[i], 0, 0};
        entry_of[number] = num_keys++;
      }
      ++entries[entry_of[number]].count;
      values.inverse(run.position)[i] = entry_of[number];
    }
    return true;
  });
  return num_keys;
}

}  // namespace

namespace {

// Takes its own DistinctKeys, so that the compiler keeps it in registers.
template <typename Use>
int32_t AddAll(const TableValues& values, DistinctKeys keys, const Use& use) {
  const bool found = values.ForEach([&](const TableValues::Run& run) {
    return keys.Add(values.keys(run.position), run.size, values.inverse(run.position));
  });
  use(keys);
  return found ? keys.size() : -1;
}

}  // namespace

int32_t HashDistinct(const TableValues& values, UniqueEntry* entries, int32_t* slots,
                     uint32_t* mask) {
  return AddAll(values, DistinctKeys(values.count(), entries, slots, true),
                [&](const DistinctKeys& keys) { *mask = keys.mask(); });
}

int32_t FindDistinct(const TableValues& values, UniqueEntry* entries, int32_t* slots) {
  const int32_t num_keys = AddAll(values, DistinctKeys(values.count(), entries, slots, false),
                                  [](const DistinctKeys&) {});
  return num_keys >= 0 ? num_keys : SortKeys(values, entries, slots);
}

}  // namespace hotrow::internal
