// Reads batches of random rows out of memory, by key, one thread, and prints one JSON object.
//
// What bounds it: every row must be read from memory and written to the batch, so nothing is faster
// than copying the same bytes in order. `memcpy` measures that; `address` gathers rows whose
// addresses are known (random rows, no index); `host_store` is HostStore::Find; the two naive ways
// are absl::flat_hash_map, one key after the other: to an index into rows in one array on huge
// pages, and to a pointer to a separate row. All take turns within each repeat, so that a machine
// that is busy now and then slows them alike. Time is the thread's processor time, which leaves out
// what other programs took. Medians and their ratios are printed.
//
//   store_gather_bench [--rows=4000000] [--row_bytes=512] [--batch=16384] [--repeats=9]
#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <ctime>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/buffer.h"
#include "base/check.h"
#include "base/hash.h"
#include "base/math.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "store/host/host_store.h"

namespace hotrow {
namespace {

struct Flags {
  int64_t rows = 4'000'000;
  int64_t row_bytes = 512;  // a multiple of 8, at least 8
  int64_t batch = 16'384;
  int64_t repeats = 9;
};

bool ParseFlags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    const bool known =
        (absl::ConsumePrefix(&arg, "--rows=") && absl::SimpleAtoi(arg, &flags.rows)) ||
        (absl::ConsumePrefix(&arg, "--row_bytes=") && absl::SimpleAtoi(arg, &flags.row_bytes)) ||
        (absl::ConsumePrefix(&arg, "--batch=") && absl::SimpleAtoi(arg, &flags.batch)) ||
        (absl::ConsumePrefix(&arg, "--repeats=") && absl::SimpleAtoi(arg, &flags.repeats));
    if (!known) return false;
  }
  return flags.rows > 0 && flags.row_bytes >= 8 && flags.row_bytes % 8 == 0 && flags.batch > 0 &&
         flags.repeats > 0;
}

// Key number i; a bijection, so that keys are distinct and look random.
uint64_t KeyOf(int64_t i) { return Mix64(static_cast<uint64_t>(i) + 1); }

// Every word of a row says whose it is and where it stands.
void FillRow(uint64_t key, int64_t row_bytes, std::byte* row) {
  for (int64_t w = 0; w < row_bytes / 8; ++w) {
    const uint64_t word = key + static_cast<uint64_t>(w) * 0x9e3779b97f4a7c15ULL;
    std::memcpy(row + 8 * w, &word, 8);
  }
}

// Huge pages that the system really granted to this process.
int64_t AnonHugeBytes() {
  std::ifstream file("/proc/self/smaps_rollup");
  std::string word;
  while (file >> word) {
    int64_t kib = 0;
    if (word == "AnonHugePages:" && file >> kib) return kib << 10;
  }
  return 0;
}

double ThreadSeconds() {
  timespec now{};
  HOTROW_CHECK(::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now) == 0);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + static_cast<int64_t>(values.size() / 2),
                   values.end());
  return values[values.size() / 2];
}

struct Contestant {
  const char* name;
  std::function<void(int64_t batch_index)> run;  // fills the output with the rows of one batch
  bool by_key = true;                            // its output can be checked
  std::vector<double> seconds_per_row;
};

int Run(const Flags& flags) {
  const int64_t row_bytes = flags.row_bytes;
  const auto row_size = static_cast<size_t>(row_bytes);

  // Rows, 14 bytes of metadata each and 1/8 + 64 MiB for what is part-filled.
  const int64_t payload = flags.rows * (row_bytes + 14);
  auto opened = HostStore::Open({.tables = {{.table = 7, .row_bytes = row_bytes}},
                                 .budget_bytes = payload + payload / 8 + (int64_t{64} << 20)});
  HOTROW_CHECK(opened.ok());
  HostStore& store = **opened;
  auto array = *HostBuffer<std::byte>::Create(flags.rows * row_bytes, HugePages::kTry);
  absl::flat_hash_map<uint64_t, int64_t> to_index;
  absl::flat_hash_map<uint64_t, std::unique_ptr<std::byte[]>> to_row;
  to_index.reserve(static_cast<size_t>(flags.rows));
  to_row.reserve(static_cast<size_t>(flags.rows));

  double load_seconds = 0;
  {
    std::vector<RowKey> keys;
    std::vector<const std::byte*> rows;
    for (int64_t begin = 0; begin < flags.rows; begin += flags.batch) {
      keys.clear();
      rows.clear();
      for (int64_t i = begin; i < std::min(flags.rows, begin + flags.batch); ++i) {
        std::byte* const row = array.data() + i * row_bytes;
        FillRow(KeyOf(i), row_bytes, row);
        keys.push_back({KeyOf(i), 7});
        rows.push_back(row);
        to_index[KeyOf(i)] = i;
        to_row[KeyOf(i)] = std::make_unique_for_overwrite<std::byte[]>(row_size);
        std::memcpy(to_row[KeyOf(i)].get(), row, row_size);
      }
      const double insert_begin = ThreadSeconds();
      HOTROW_CHECK(store.InsertOrAssign(keys, rows).ok());
      load_seconds += ThreadSeconds() - insert_begin;
    }
  }

  // The batches, drawn beforehand: about 1 M look-ups, each of another part of the memory.
  const int64_t num_batches = std::max<int64_t>(4, CeilDiv(int64_t{1} << 20, flags.batch));
  std::vector<std::vector<int64_t>> indices(static_cast<size_t>(num_batches));
  std::vector<std::vector<RowKey>> keys(static_cast<size_t>(num_batches));
  RandomStream random(1, RandomPurpose::kTest);
  for (int64_t b = 0; b < num_batches; ++b) {
    for (int64_t i = 0; i < flags.batch; ++i) {
      const auto index = static_cast<int64_t>(random.Below(static_cast<uint64_t>(flags.rows)));
      indices[static_cast<size_t>(b)].push_back(index);
      keys[static_cast<size_t>(b)].push_back({KeyOf(index), 7});
    }
  }
  auto output = *HostBuffer<std::byte>::Create(flags.batch * row_bytes, HugePages::kTry);
  std::vector<std::byte*> output_rows;
  for (int64_t i = 0; i < flags.batch; ++i) output_rows.push_back(output.data() + i * row_bytes);
  std::vector<uint8_t> found(static_cast<size_t>(flags.batch));

  // Copied in pieces of a batch, from one large array to another, neither of which fits a cache.
  const int64_t copy_batches =
      std::min(flags.rows / flags.batch + 1,
               std::max<int64_t>(1, (int64_t{512} << 20) / (flags.batch * row_bytes)));
  auto copy_to =
      *HostBuffer<std::byte>::Create(copy_batches * flags.batch * row_bytes, HugePages::kTry);
  const int64_t copy_from_bytes = array.bytes();

  std::vector<Contestant> contestants;
  contestants.push_back({.name = "memcpy",
                         .run =
                             [&](int64_t b) {
                               const int64_t bytes = flags.batch * row_bytes;
                               const int64_t from = b % copy_batches * bytes;
                               std::memcpy(
                                   copy_to.data() + from, array.data() + from,
                                   static_cast<size_t>(std::min(bytes, copy_from_bytes - from)));
                             },
                         .by_key = false,
                         .seconds_per_row = {}});
  contestants.push_back(
      {.name = "address",
       .run =
           [&](int64_t b) {
             const auto& batch = indices[static_cast<size_t>(b)];
             constexpr int64_t kAhead = 24;  // the best of 4 .. 32
             for (int64_t i = 0; i < flags.batch; ++i) {
               if (i + kAhead < flags.batch) {
                 const std::byte* const next =
                     array.data() + batch[static_cast<size_t>(i + kAhead)] * row_bytes;
                 for (int64_t at = 0; at < std::min<int64_t>(row_bytes, 1024); at += 64) {
                   __builtin_prefetch(next + at, 0, 2);
                 }
               }
               std::memcpy(output.data() + i * row_bytes,
                           array.data() + batch[static_cast<size_t>(i)] * row_bytes, row_size);
             }
           },
       .seconds_per_row = {}});
  contestants.push_back(
      {.name = "host_store",
       .run =
           [&](int64_t b) {
             HOTROW_CHECK(store.Find(keys[static_cast<size_t>(b)], output_rows, found).ok());
           },
       .seconds_per_row = {}});
  contestants.push_back({.name = "naive_array",
                         .run =
                             [&](int64_t b) {
                               const auto& batch = keys[static_cast<size_t>(b)];
                               for (int64_t i = 0; i < flags.batch; ++i) {
                                 const auto it = to_index.find(batch[static_cast<size_t>(i)].key);
                                 if (it == to_index.end()) continue;
                                 std::memcpy(output.data() + i * row_bytes,
                                             array.data() + it->second * row_bytes, row_size);
                               }
                             },
                         .seconds_per_row = {}});
  contestants.push_back({.name = "naive_pointer",
                         .run =
                             [&](int64_t b) {
                               const auto& batch = keys[static_cast<size_t>(b)];
                               for (int64_t i = 0; i < flags.batch; ++i) {
                                 const auto it = to_row.find(batch[static_cast<size_t>(i)].key);
                                 if (it == to_row.end()) continue;
                                 std::memcpy(output.data() + i * row_bytes, it->second.get(),
                                             row_size);
                               }
                             },
                         .seconds_per_row = {}});

  // The first run warms up, and every row it returns is compared.
  std::vector<std::byte> expected(row_size);
  for (Contestant& contestant : contestants) {
    for (int64_t b = 0; b < num_batches; ++b) {
      if (contestant.by_key) std::memset(output.data(), 0, static_cast<size_t>(output.bytes()));
      contestant.run(b);
      for (int64_t i = 0; contestant.by_key && i < flags.batch; ++i) {
        FillRow(keys[static_cast<size_t>(b)][static_cast<size_t>(i)].key, row_bytes,
                expected.data());
        HOTROW_CHECK(std::memcmp(expected.data(), output.data() + i * row_bytes, row_size) == 0);
      }
    }
  }
  for (int64_t repeat = 0; repeat < flags.repeats; ++repeat) {
    for (Contestant& contestant : contestants) {
      const double begin = ThreadSeconds();
      for (int64_t b = 0; b < num_batches; ++b) contestant.run(b);
      const double seconds = ThreadSeconds() - begin;
      contestant.seconds_per_row.push_back(seconds /
                                           static_cast<double>(num_batches * flags.batch));
    }
  }

  // Ratios are taken within a repeat, then their median: what slows a whole repeat cancels.
  const auto ratio = [&](size_t of, size_t to) {
    std::vector<double> ratios;
    for (size_t r = 0; r < contestants[of].seconds_per_row.size(); ++r) {
      ratios.push_back(contestants[to].seconds_per_row[r] / contestants[of].seconds_per_row[r]);
    }
    return Median(ratios);
  };
  const RowStoreStats stats = store.Stats();
  std::printf(
      "{\"bench\": \"store_gather\", \"rows\": %lld, \"row_bytes\": %lld, \"batch\": %lld, "
      "\"repeats\": %lld, \"threads\": 1,\n",
      static_cast<long long>(flags.rows), static_cast<long long>(row_bytes),
      static_cast<long long>(flags.batch), static_cast<long long>(flags.repeats));
  for (const Contestant& contestant : contestants) {
    const double rows_per_second = 1 / Median(contestant.seconds_per_row);
    // Payload bytes, counted once: a copied row is read once and written once.
    std::printf(" \"%s\": {\"rows_per_s\": %.4g, \"bytes_per_s\": %.4g},\n", contestant.name,
                rows_per_second, rows_per_second * static_cast<double>(row_bytes));
  }
  std::printf(
      " \"host_store_to_memcpy\": %.3f, \"host_store_to_address\": %.3f, "
      "\"host_store_to_naive_array\": %.2f, \"host_store_to_naive_pointer\": %.2f,\n",
      ratio(2, 0), ratio(2, 1), ratio(2, 3), ratio(2, 4));
  std::printf(
      " \"load_rows_per_s\": %.4g, \"metadata_bytes_per_row\": %.2f, "
      "\"used_bytes_to_payload\": %.4f, \"anon_huge_bytes\": %lld}\n",
      static_cast<double>(flags.rows) / load_seconds,
      static_cast<double>(stats.metadata_bytes) / static_cast<double>(stats.rows),
      static_cast<double>(stats.used_bytes) / static_cast<double>(flags.rows * row_bytes),
      static_cast<long long>(AnonHugeBytes()));
  return 0;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, flags)) {
    std::fprintf(stderr,
                 "usage: store_gather_bench [--rows=4000000] [--row_bytes=512, a multiple of 8] "
                 "[--batch=16384] [--repeats=9]\n");
    return 2;
  }
  return Run(flags);
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("store_gather_bench", [&] { return hotrow::Main(argc, argv); });
}
