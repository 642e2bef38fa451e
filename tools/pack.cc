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
// A thread that parses: two blocks of text (kBlockTextBytes) and the samples that are made of them,
// which take up to seven times as much.
constexpr int64_t kParsingThreadBytes = 16 * kBlockTextBytes;

// Threads that parse text: as many as were asked for (0: what suits), in a quarter of the memory.
absl::StatusOr<int32_t> ChooseThreads(int64_t given, int64_t memory_bytes) {
  const int64_t most = memory_bytes / 4 / kParsingThreadBytes;
  if (std::max(given, int64_t{1}) > most) {
    return absl::InvalidArgumentError(
        absl::StrCat("--memory_bytes=", memory_bytes, ": is enough for ", most,
                     " threads that parse text, which take a quarter of it; give at least ",
                     4 * kParsingThreadBytes * std::max(given, int64_t{1}),
                     given > 1 ? " bytes, or fewer --reader_threads" : " bytes"));
  }
  if (given > 0) return static_cast<int32_t>(given);
  return static_cast<int32_t>(
      std::clamp<int64_t>(UsableProcessors() - 1, 1, std::min(most, kParsingThreadsMax)));
}

absl::StatusOr<int> Run(const Command& self, std::span<const char* const> arguments) {
  PackOptions options;
  int64_t seed = 1;
  int64_t reader_threads = 0;
  int64_t memory_bytes = int64_t{4} << 30;
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
  flags.AddBytes("memory_bytes", &memory_bytes,
                 "what packing may take: half for the blocks that are being filled, a quarter for "
                 "counting values (min_count), a quarter for threads that parse text",
                 kNoMinWord, kFlagMemoryBytesMax);
  flags.AddSwitch("json", &json, "print one JSON object");
  std::vector<std::string> operands;
  HOTROW_RETURN_IF_ERROR(ParseArguments(self, arguments, &flags, &operands));
  if (operands.empty()) return kExitGood;
  options.source = operands[0];
  options.dir = operands[1];
  options.memory_bytes = memory_bytes / 2;
  HOTROW_ASSIGN_OR_RETURN(const int32_t threads, ChooseThreads(reader_threads, memory_bytes));
  const absl::StatusOr<std::unique_ptr<DataSource>> data =
      OpenDataSource(options.source, static_cast<uint64_t>(seed),
                     {.threads = {.opening = threads, .reading = threads},
                      .shuffle_bytes = 0,
                      .vocabulary_bytes = memory_bytes / 4});
  if (absl::IsResourceExhausted(data.status())) {
    return absl::ResourceExhaustedError(absl::StrCat(
        data.status().message(), "; or give more --memory_bytes, of which that is a quarter"));
  }
  HOTROW_RETURN_IF_ERROR(data.status());
  const DataSchema& schema = (*data)->schema();
  Progress progress(stderr, "pack", "samples",
                    schema.train_samples + schema.valid_samples + schema.test_samples);
  options.on_progress = [&](int64_t samples) { progress.Update(samples, ""); };
  HOTROW_ASSIGN_OR_RETURN(const PackedManifest pack, PackData(**data, options));
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
        "same from it; models trained on it read the same lines of text. --memory_bytes bounds "
        "what\n"
        "it takes beside the program itself; most packs take some tens of MiB. DIR appears when it "
        "is\n"
        "whole; a kill leaves DIR.hotrow-partial, which the next one removes.\n",
    .run = Run};

}  // namespace hotrow
