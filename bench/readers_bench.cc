// Parses Criteo TSV text, with one thread and with several, and prints one JSON object.
//
// What bounds it: every byte must be looked at once; `count_newlines` does no more than that. The
// others turn the text into samples: `parse` in memory, `stream` from a file to shuffled batches of
// 2,048 samples as the trainer gets them (windows, larger than memory), `stream_gzip` the same from
// a gzip file, where decompression runs on its own thread and counts too. `load` reads a file
// into memory. `gather` makes the batches of data that is in memory already; its bytes are those of
// the text that it stands for. `_threaded` is the same with --reader_threads. `synthetic` draws as
// many samples of the same shape, `resident` reads them from 65,536 that were drawn once. `packed`
// reads what `hotrow pack` makes of the text, in its order, `packed_blocks` the same shuffled in
// groups of blocks, and `packed_gather` as a whole, from memory, in batches of 65,536.
// Time is the process's processor time, which leaves out what other programs took, and, as
// "_wall_", what a clock says; all take turns within each repeat. Medians in MB/s (10^6 bytes of
// text), and in nanoseconds of processors a sample.
//
//   readers_bench [--file=CRITEO.tsv[.gz]] [--mib=64] [--repeats=5] [--reader_threads=2]
//
// The text is the file, over and over, up to --mib; without a file it is generated lines of the
// same layout and length.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "base/check.h"
#include "base/env.h"
#include "base/philox.h"
#include "base/run_main.h"
#include "models/data/byte_stream.h"
#include "models/data/packed_source.h"
#include "models/data/sample_feed.h"
#include "models/data/synthetic.h"
#include "models/data/table_reader.h"
#include "models/data/table_source.h"
#include "models/saving/packed_writer.h"

namespace hotrow {
namespace {

struct Flags {
  std::string file;
  int64_t mib = 64;
  int64_t repeats = 5;
  int32_t reader_threads = 2;
};

bool ParseFlags(int argc, char** argv, Flags& flags) {
  for (int i = 1; i < argc; ++i) {
    absl::string_view arg = argv[i];
    if (absl::ConsumePrefix(&arg, "--file=")) {
      flags.file = std::string(arg);
      continue;
    }
    const bool known =
        (absl::ConsumePrefix(&arg, "--mib=") && absl::SimpleAtoi(arg, &flags.mib)) ||
        (absl::ConsumePrefix(&arg, "--repeats=") && absl::SimpleAtoi(arg, &flags.repeats)) ||
        (absl::ConsumePrefix(&arg, "--reader_threads=") &&
         absl::SimpleAtoi(arg, &flags.reader_threads));
    if (!known) return false;
  }
  return flags.mib > 0 && flags.mib <= 1024 && flags.repeats > 0 && flags.reader_threads > 0 &&
         flags.reader_threads <= kMaxReaderThreads;
}

std::string GeneratedLines(int64_t lines) {
  RandomStream random(1, RandomPurpose::kTest);
  std::string text;
  for (int64_t i = 0; i < lines; ++i) {
    absl::StrAppend(&text, random.Below(4) == 0 ? 1 : 0);
    for (int c = 0; c < 13; ++c) {
      text += '\t';
      if (random.Below(5) > 0) absl::StrAppend(&text, random.Below(1 << (1 + c)));
    }
    for (int c = 0; c < 26; ++c) {
      text += '\t';
      if (random.Below(9) > 0) absl::StrAppendFormat(&text, "%08x", random.Next32());
    }
    text += '\n';
  }
  return text;
}

std::string FileText(const std::string& path) {
  auto stream = OpenTextFile(PosixEnv(), path);
  if (!stream.ok()) {
    std::fprintf(stderr, "readers_bench: %s\n", stream.status().ToString().c_str());
    std::exit(1);
  }
  std::string text;
  std::string part(1 << 20, '\0');
  while (true) {
    const auto got = (*stream)->Read(std::as_writable_bytes(std::span(part)));
    HOTROW_CHECK(got.ok());
    if (*got == 0) return text;
    text.append(part, 0, static_cast<size_t>(*got));
  }
}

double Seconds(clockid_t clock) {
  timespec now;
  clock_gettime(clock, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

int64_t ReadEpoch(DataSource& source, int64_t epoch, int64_t batch_size = 2048) {
  auto reader = source.OpenSplit(Split::kTrain, epoch, 0);
  HOTROW_CHECK(reader.ok());
  CtrBatch batch;
  int64_t samples = 0;
  do {
    HOTROW_CHECK((*reader)->Next(batch_size, &batch).ok());
    samples += batch.batch_size;
  } while (batch.batch_size > 0);
  return samples;
}

int Main(int argc, char** argv) {
  Flags flags;
  if (!ParseFlags(argc, argv, flags)) {
    std::fputs(
        "usage: readers_bench [--file=CRITEO.tsv[.gz]] [--mib=64] [--repeats=5] "
        "[--reader_threads=2]\n",
        stderr);
    return 1;
  }
  const std::string once = flags.file.empty() ? GeneratedLines(10'000) : FileText(flags.file);
  std::string text;
  while (static_cast<int64_t>(text.size()) < flags.mib << 20) text += once;

  const char* tmp = std::getenv("TMPDIR");
  const std::string plain = absl::StrCat(tmp != nullptr ? tmp : "/tmp", "/readers_bench.XXXXXX");
  std::string path = plain;
  const int fd = mkstemp(path.data());
  HOTROW_CHECK(fd >= 0);
  HOTROW_CHECK(WriteFileAtomically(PosixEnv(), path, text).ok());
  HOTROW_CHECK(std::system(absl::StrCat("gzip -k -1 ", path).c_str()) == 0);

  const auto open = [](const std::string& file, int64_t memory_bytes, int32_t threads) {
    TableSchema schema = CriteoSchema({file});
    schema.modulo = 1;  // everything is for training
    schema.split_of.assign(1, Split::kTrain);
    auto source = OpenTableSource(schema, {.seed = 1,
                                           .memory_bytes = memory_bytes,
                                           .threads = {.opening = threads, .reading = threads}});
    HOTROW_CHECK(source.ok());
    return *std::move(source);
  };
  constexpr int64_t kAllInMemory = int64_t{8} << 30;
  const int32_t threads = flags.reader_threads;
  const auto streamed = open(path, 0, 1);
  const auto streamed_threaded = open(path, 0, threads);
  const auto gzip = open(path + ".gz", 0, 1);
  const auto gzip_threaded = open(path + ".gz", 0, threads);
  const auto in_memory = open(path, kAllInMemory, threads);
  const int64_t samples = in_memory->schema().train_samples;

  const auto synthetic = [&](int64_t resident) {
    auto source = OpenSynthetic({.rows = 1'000'000, .samples = samples, .resident = resident});
    HOTROW_CHECK(source.ok());
    return *std::move(source);
  };
  const auto drawn = synthetic(0);
  const auto resident = synthetic(65'536);
  HOTROW_CHECK(ReadEpoch(*resident, 0) == samples);  // draws them

  const std::string pack = path + ".pack";
  {
    TableSchema schema = CriteoSchema({path});
    schema.modulo = 1;
    schema.split_of.assign(1, Split::kTrain);
    const auto in_order = OpenTableSource(schema, {.memory_bytes = 0, .in_order = true});
    HOTROW_CHECK(in_order.ok());
    HOTROW_CHECK(PackData(**in_order, {.dir = pack, .source = "text"}).ok());
  }
  const auto packed = [&](int64_t memory_bytes, bool in_order, int32_t reading) {
    auto source = OpenPackedSource({pack}, {.seed = 1,
                                            .memory_bytes = memory_bytes,
                                            .in_order = in_order,
                                            .threads = {.reading = reading}});
    HOTROW_CHECK(source.ok());
    return *std::move(source);
  };
  constexpr int64_t kPackedBatch = 65'536;
  constexpr int64_t kSomeBlocks = int64_t{64} << 20;
  const auto packed_in_order = packed(0, true, 1);
  const auto packed_blocks = packed(kSomeBlocks, false, 1);
  const auto packed_gather = packed(kAllInMemory, false, 1);
  const auto packed_threaded = packed(0, true, threads);
  const auto packed_blocks_threaded = packed(kSomeBlocks, false, threads);
  const auto packed_gather_threaded = packed(kAllInMemory, false, threads);

  struct Way {
    const char* name;
    std::function<int64_t(int64_t repeat)> run;  // returns the number of samples
    std::vector<double> processor_seconds;
    std::vector<double> wall_seconds;
  };
  Way ways[] = {
      {"count_newlines",
       [&](int64_t) {
         int64_t lines = 0;
         const char* const end = text.data() + text.size();
         for (const char* at = text.data(); at < end; ++at, ++lines) {
           at = static_cast<const char*>(std::memchr(at, '\n', static_cast<size_t>(end - at)));
         }
         return lines;
       }},
      {"parse",
       [&](int64_t) {
         const TableSchema schema = CriteoSchema({path});
         TableReader reader(&schema, schema.files[0], [&](const std::string&) {
           return absl::StatusOr<std::unique_ptr<ByteStream>>(NewMemoryStream(text));
         });
         Sample sample;
         int64_t lines = 0;
         while (*reader.Next(&sample)) ++lines;
         return lines;
       }},
      {"stream", [&](int64_t repeat) { return ReadEpoch(*streamed, repeat); }},
      {"stream_threaded", [&](int64_t repeat) { return ReadEpoch(*streamed_threaded, repeat); }},
      {"stream_gzip", [&](int64_t repeat) { return ReadEpoch(*gzip, repeat); }},
      {"stream_gzip_threaded", [&](int64_t repeat) { return ReadEpoch(*gzip_threaded, repeat); }},
      {"load", [&](int64_t) { return open(path, kAllInMemory, 1)->schema().train_samples; }},
      {"load_threaded",
       [&](int64_t) { return open(path, kAllInMemory, threads)->schema().train_samples; }},
      {"gather", [&](int64_t repeat) { return ReadEpoch(*in_memory, repeat); }},
      {"synthetic", [&](int64_t repeat) { return ReadEpoch(*drawn, repeat); }},
      {"resident", [&](int64_t repeat) { return ReadEpoch(*resident, repeat); }},
      {"packed", [&](int64_t repeat) { return ReadEpoch(*packed_in_order, repeat, kPackedBatch); }},
      {"packed_blocks",
       [&](int64_t repeat) { return ReadEpoch(*packed_blocks, repeat, kPackedBatch); }},
      {"packed_gather",
       [&](int64_t repeat) { return ReadEpoch(*packed_gather, repeat, kPackedBatch); }},
      {"packed_threaded",
       [&](int64_t repeat) { return ReadEpoch(*packed_threaded, repeat, kPackedBatch); }},
      {"packed_blocks_threaded",
       [&](int64_t repeat) { return ReadEpoch(*packed_blocks_threaded, repeat, kPackedBatch); }},
      {"packed_gather_threaded",
       [&](int64_t repeat) { return ReadEpoch(*packed_gather_threaded, repeat, kPackedBatch); }},
  };
  for (int64_t repeat = 0; repeat < flags.repeats; ++repeat) {
    for (Way& way : ways) {
      const double processor = Seconds(CLOCK_PROCESS_CPUTIME_ID);
      const double wall = Seconds(CLOCK_MONOTONIC);
      HOTROW_CHECK(way.run(repeat) == samples);
      way.processor_seconds.push_back(Seconds(CLOCK_PROCESS_CPUTIME_ID) - processor);
      way.wall_seconds.push_back(Seconds(CLOCK_MONOTONIC) - wall);
    }
  }
  std::printf("{\"bytes\": %zu, \"samples\": %lld, \"reader_threads\": %d", text.size(),
              static_cast<long long>(samples), threads);
  const auto rate = [&](std::vector<double>& seconds) {
    std::sort(seconds.begin(), seconds.end());
    return 1e-6 * static_cast<double>(text.size()) / seconds[seconds.size() / 2];
  };
  for (Way& way : ways) {
    std::printf(", \"%s_mb_per_second\": %.0f, \"%s_wall_mb_per_second\": %.0f", way.name,
                rate(way.processor_seconds), way.name, rate(way.wall_seconds));
    std::printf(", \"%s_ns_per_sample\": %.0f", way.name,
                1e9 * way.processor_seconds[way.processor_seconds.size() / 2] /
                    static_cast<double>(samples));
  }
  std::printf("}\n");
  std::remove(path.c_str());
  std::remove((path + ".gz").c_str());
  std::filesystem::remove_all(pack);
  return 0;
}

}  // namespace
}  // namespace hotrow

int main(int argc, char** argv) {
  return hotrow::RunMain("readers_bench", [&] { return hotrow::Main(argc, argv); });
}
