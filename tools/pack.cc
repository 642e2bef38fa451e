#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/machine_limits.h"
#include "base/status_macros.h"
#include "models/data/open_data_source.h"
#include "models/data/packed_format.h"
#include "models/data/sample_feed.h"
#include "models/saving/packed_writer.h"
#include "models/train/progress.h"
#include "tools/command.h"
#include "tools/model_report.h"

namespace hotrow {
namespace {

// The parser of one file cuts records for about as many threads.
constexpr int64_t kParsingThreadsMax = 16;

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  PackOptions options;
  int64_t seed = 1;
  int64_t reader_threads = 0;
  bool json = false;
  FlagSet flags("hotrow pack");
  flags.AddInt("block_samples", 1, kPackedBlockSamplesMax, &options.block_samples,
               "samples that are read together");
  flags.Add("dense_precision",
            WordFlag("WORD", &options.dense_precision, AllWords(kPackedPrecisionWords)),
            "of dense features in the files; fp16 takes half the bytes, readers give fp32");
  flags.AddInt("seed", 0, INT64_MAX, &seed, "seed of generated data");
  flags.AddInt("reader_threads", 0, kMaxReaderThreads, &reader_threads,
               "threads that parse text; 0: one less than there are processors, 16 at most");
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.source = operands[0];
  options.dir = operands[1];
  const auto threads = static_cast<int32_t>(
      reader_threads > 0 ? reader_threads
                         : std::clamp<int64_t>(UsableProcessors() - 1, 1, kParsingThreadsMax));
  HOTROW_ASSIGN_OR_RETURN(
      const std::unique_ptr<DataSource> data,
      OpenDataSource(options.source, static_cast<uint64_t>(seed),
                     {.threads = {.opening = threads, .reading = threads}, .shuffle_bytes = 0}));
  const DataSchema& schema = data->schema();
  Progress progress(stderr, "pack", "samples",
                    schema.train_samples + schema.valid_samples + schema.test_samples);
  options.on_progress = [&](int64_t samples) { progress.Update(samples, ""); };
  HOTROW_ASSIGN_OR_RETURN(const PackedManifest pack, PackData(*data, options));
  progress.Finish();
  if (json) {
    std::fputs(PackedDataJson(options.dir, pack).c_str(), stdout);
  } else {
    std::fputs(PackedDataText(options.dir, pack).c_str(), stdout);
    std::printf("train on them with --data=packed:%s\n", options.dir.c_str());
  }
  return kExitGood;
}

}  // namespace

const Command kPackCommand = {
    .name = "pack",
    .operands = "SOURCE DIR",
    .summary = "makes packed data, which trainers read many times faster than text",
    .details =
        "SOURCE is what --data of a trainer takes: criteo:FILE, table:SCHEMA.json, "
        "criteo-npy:DIR,\n"
        "synthetic:... All its samples are written once, in their order, as columns of ids and\n"
        "numbers in blocks with checksums, with the schema that made them and the vocabulary of\n"
        "merged values (docs/formats/packed_data.md). Trainers take --data=packed:DIR and learn "
        "the\n"
        "same from it; models trained on it read the same lines of text. Memory: some MiB, and "
        "what\n"
        "counting min_count takes. DIR appears when it is whole; a kill leaves\n"
        "DIR.hotrow-partial, which the next one removes.\n",
    .run = Run};

}  // namespace hotrow
