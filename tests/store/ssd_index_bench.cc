// What must bound it: a look-up reads two buckets of two cache lines each, so memory latency,
// hidden by prefetching; a new key is moved by about 16 rebuilds on the way to a growing index,
// which stream. Without other work on the machine a core does 10 to 30 M such look-ups a second.
//
// Times are of this thread, so that other work on the machine counts less.

#include <time.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/hash.h"
#include "base/philox.h"
#include "store/ssd/ssd_index_impl.h"

namespace hotrow::internal {
namespace {

struct Flags {
  int64_t rows = 4'000'000;
  int64_t batch = 16384;
  int64_t tables = 1;
  int64_t location_bits = 25;
  int64_t repeats = 5;
};

bool ParseFlags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const size_t equals = arg.find('=');
    if (equals == std::string::npos) return false;
    const std::string name = arg.substr(0, equals);
    char* end = nullptr;
    const int64_t value = std::strtoll(arg.c_str() + equals + 1, &end, 10);
    if (*end != '\0' || value < 1) return false;
    if (name == "--rows") {
      flags.rows = value;
    } else if (name == "--batch") {
      flags.batch = value;
    } else if (name == "--tables") {
      flags.tables = value;
    } else if (name == "--location_bits") {
      flags.location_bits = value;
    } else if (name == "--repeats") {
      flags.repeats = value;
    } else {
      return false;
    }
  }
  return true;
}

double ThreadSeconds() {
  timespec now;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const Flags& flags) {
  const auto num_tables = static_cast<uint64_t>(flags.tables);
  const uint64_t location_mask = (uint64_t{1} << flags.location_bits) - 1;
  const auto key_of = [&](int64_t i) {
    const auto n = static_cast<uint64_t>(i);
    return RowKey{Mix64(n), static_cast<uint32_t>(n % num_tables)};
  };
  const auto location_of = [&](int64_t i) { return static_cast<uint64_t>(i) & location_mask; };
  MemoryBudget budget(int64_t{1} << 40);
  auto created = SsdIndex::Create({.num_tables = flags.tables,
                                   .location_bits = static_cast<int32_t>(flags.location_bits),
                                   .max_rows_hint = flags.rows},
                                  budget);
  if (!created.ok()) {
    std::fprintf(stderr, "%s\n", created.status().ToString().c_str());
    return 2;
  }
  SsdIndex& index = **created;

  // New keys, with all growth. Bytes a row are taken after each batch from half of the rows on:
  // there every partition has grown about ten times.
  double insert_seconds = 0;
  double bytes_min = 1e9;
  double bytes_max = 0;
  double bytes_sum = 0;
  int64_t samples = 0;
  std::vector<RowKey> keys;
  for (int64_t begin = 0; begin < flags.rows; begin += flags.batch) {
    keys.clear();
    for (int64_t i = begin; i < std::min(flags.rows, begin + flags.batch); ++i) {
      keys.push_back(key_of(i));
    }
    const double start = ThreadSeconds();
    HOTROW_CHECK(index
                     .Upsert(keys,
                             [&](size_t i, SsdLocation old) {
                               HOTROW_CHECK(old == kNoLocation);
                               return location_of(begin + static_cast<int64_t>(i));
                             })
                     .status.ok());
    insert_seconds += ThreadSeconds() - start;
    if (index.rows() >= flags.rows / 2) {
      const double bytes = static_cast<double>(index.bytes()) / static_cast<double>(index.rows());
      bytes_min = std::min(bytes_min, bytes);
      bytes_max = std::max(bytes_max, bytes);
      bytes_sum += bytes;
      ++samples;
    }
  }
  HOTROW_CHECK(index.rows() == flags.rows);

  // About a million keys a repeat, in batches drawn before.
  const int64_t num_batches = std::max<int64_t>(1, (int64_t{1} << 20) / flags.batch);
  const auto draw = [&](int64_t from) {
    RandomStream random(1, RandomPurpose::kTest);
    std::vector<std::vector<int64_t>> result(static_cast<size_t>(num_batches));
    for (auto& batch : result) {
      for (int64_t i = 0; i < flags.batch; ++i) {
        batch.push_back(from +
                        static_cast<int64_t>(random.Below(static_cast<uint64_t>(flags.rows))));
      }
    }
    return result;
  };
  // Calls body(keys, numbers) for all batches, once to warm up; the median rate of the repeats.
  const auto rate = [&](const std::vector<std::vector<int64_t>>& batches, const auto& body) {
    std::vector<std::vector<RowKey>> batch_keys(batches.size());
    for (size_t b = 0; b < batches.size(); ++b) {
      for (const int64_t n : batches[b]) batch_keys[b].push_back(key_of(n));
    }
    std::vector<double> rates;
    for (int64_t repeat = 0; repeat <= flags.repeats; ++repeat) {
      const double start = ThreadSeconds();
      for (size_t b = 0; b < batches.size(); ++b) body(batch_keys[b], batches[b]);
      const double seconds = ThreadSeconds() - start;
      if (repeat > 0) rates.push_back(static_cast<double>(num_batches * flags.batch) / seconds);
    }
    return Median(rates);
  };
  std::vector<SsdLocation> locations(static_cast<size_t>(flags.batch));
  const double hits = rate(draw(0), [&](const auto& batch, const auto& numbers) {
    index.Find(batch, locations);
    for (size_t i = 0; i < numbers.size(); i += 61) {
      HOTROW_CHECK(locations[i] == location_of(numbers[i]));
    }
  });
  const double misses = rate(draw(flags.rows), [&](const auto& batch, const auto&) {
    index.Find(batch, locations);
    for (size_t i = 0; i < batch.size(); i += 61) HOTROW_CHECK(locations[i] == kNoLocation);
  });
  const double updates = rate(draw(0), [&](const auto& batch, const auto& numbers) {
    HOTROW_CHECK(index
                     .Upsert(batch,
                             [&](size_t i, SsdLocation old) {
                               HOTROW_CHECK(old == location_of(numbers[i]));
                               return old;
                             })
                     .status.ok());
  });

  std::printf(
      "{\"bench\": \"ssd_index\", \"rows\": %lld, \"tables\": %lld, \"location_bits\": %lld, "
      "\"batch\": %lld, \"threads\": 1,\n"
      " \"find_hits_per_s\": %.4g, \"find_misses_per_s\": %.4g, \"upsert_existing_per_s\": %.4g, "
      "\"insert_new_per_s\": %.4g,\n"
      " \"bytes_per_row_min\": %.3f, \"bytes_per_row_mean\": %.3f, \"bytes_per_row_max\": %.3f, "
      "\"peak_bytes_per_row\": %.3f,\n"
      " \"load\": %.4f, \"partitions\": %lld, \"rebuilds\": %lld}\n",
      static_cast<long long>(flags.rows), static_cast<long long>(flags.tables),
      static_cast<long long>(flags.location_bits), static_cast<long long>(flags.batch), hits,
      misses, updates, static_cast<double>(flags.rows) / insert_seconds, bytes_min,
      bytes_sum / static_cast<double>(samples), bytes_max,
      static_cast<double>(budget.peak()) / static_cast<double>(flags.rows),
      static_cast<double>(index.rows()) / static_cast<double>(index.slots()),
      static_cast<long long>(index.num_partitions()), static_cast<long long>(index.rebuilds()));
  return 0;
}

}  // namespace
}  // namespace hotrow::internal

int main(int argc, char** argv) {
  hotrow::internal::Flags flags;
  if (!hotrow::internal::ParseFlags(argc, argv, flags)) {
    std::fprintf(stderr,
                 "usage: ssd_index_bench [--rows=4000000] [--batch=16384] [--tables=1] "
                 "[--location_bits=25] [--repeats=5]\n");
    return 2;
  }
  return hotrow::internal::Run(flags);
}
